"""A study's report: Markdown, one self-contained page of HTML, tables as CSV and figures as PNG and SVG.

A table is a sequence of rows, and a row has a cell for each title.
"""

from __future__ import annotations

import base64
import csv
import io
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from asyncrl.core.errors import UsageError
from asyncrl.plots.figures import BLACK, Line, Panel, median_curve, save_figure, unit_of
from asyncrl.plots.templates import Markup, Parts
from asyncrl.storage.files import replace_file
from asyncrl.studies.measure import LAST, Measurement
from asyncrl.studies.study import CLOCKED

PARTS = Parts("studies/document.html")
Rows = Sequence[Mapping[str, Any]]


def report_in(runs_dir: Path) -> Path:
    """The folder of a study's report, made if it is missing. Raises UsageError for a link: a study may be anybody's."""
    folder = runs_dir / "report"
    if folder.is_symlink():
        raise UsageError(f"{folder} is a link to {os.readlink(folder)}: replace the link by a folder")
    folder.mkdir(exist_ok=True)
    return folder


def time_text(time: float) -> str:
    """A time with one decimal; with two digits if it is less than one."""
    return f"{time:.1f}" if time >= 1 else f"{time:.2g}"


def score_text(score: float | None) -> str:
    """A score with four digits; nothing if there is none (None or -inf)."""
    return "" if score is None or not math.isfinite(score) else f"{score:.4g}"


@dataclass(frozen=True)
class Block:
    """A part of a report, as Markdown and as HTML."""

    markdown: str
    html: Markup


def heading(text: str, level: int = 2) -> Block:
    """A title; level 1 is the page's."""
    return Block(f"{'#' * level} {text}", PARTS.heading(level, text))


def paragraph(text: str) -> Block:
    """A paragraph."""
    return Block(text, PARTS.paragraph(text))


def items(texts: Sequence[str]) -> Block:
    """A list."""
    return Block("\n".join(f"- {text}" for text in texts), PARTS.items(texts))


def code(text: str) -> Block:
    """Commands."""
    return Block(f"```bash\n{text}\n```", PARTS.code(text))


def table(rows: Rows, marked: Collection[int] = ()) -> Block:
    """A table with numbers aligned right and words left; rows with a number in `marked` are bold."""
    titles = list(rows[0]) if rows else []
    cells = [[str(cell) for cell in row.values()] for row in rows]
    words = [not any(re.match(r"[<>]?=? ?[-+]?\d", row[column]) for row in cells) for column in range(len(titles))]
    bold = [[f"**{cell}**" if cell and i in marked else cell for cell in row] for i, row in enumerate(cells)]
    lines = [titles, ["---" if left else "--:" for left in words], *bold]
    markdown = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return Block(markdown, PARTS.table(titles, cells, words, marked))


def plain_table(rows: Rows) -> str:
    """A table for the terminal."""
    lines = [list(rows[0]), *([str(cell) for cell in row.values()] for row in rows)] if rows else []
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def picture(figure: Figure, path: Path, caption: str) -> Block:
    """Save a figure as `path` with .png and .svg; it stands in the HTML itself, and as a link in Markdown."""
    png, svg = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")
    save_figure(figure, svg)
    save_figure(figure, png)
    content = base64.b64encode(png.read_bytes()).decode()
    return Block(f"![{path.name}]({png.name})\n\n{caption}", PARTS.picture(path.name, content, caption))


def how_measured(runs: Sequence[Measurement], commands: Sequence[str]) -> list[Block]:
    """How many runs there are, on which machines, and how to repeat them."""
    states = Counter(run.state or "not run" for run in runs)
    replaced = sum(run.restarts > 0 for run in runs if run.complete)
    machines = Counter((run.machine, run.cell.backend, run.cores) for run in runs if run.complete)
    return [
        heading("How it was measured"),
        paragraph(
            f"{len(runs)} runs: {', '.join(f'{count} {state}' for state, count in states.items())}."
            f"{f' In {replaced} of them workers had to be replaced, which costs time.' if replaced else ''}"
        ),
        items([f"{count} {back} on {cores} cores of: {name}" for (name, back, cores), count in machines.items()]),
        code("\n".join(commands)),
    ]


def write_pages(folder: Path, title: str, blocks: Sequence[Block]) -> Path:
    """Write report.md and report.html into the folder; returns the path of report.md."""
    blocks = [heading(title, 1), *blocks]
    path = folder / "report.md"
    texts = {path: "\n\n".join(block.markdown for block in blocks) + "\n"}
    texts[folder / "report.html"] = PARTS.page(title, [block.html for block in blocks])
    for file, text in texts.items():  # a path in a command may be in another encoding
        replace_file(file, text.encode("utf-8", "backslashreplace"))
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, rows: Rows) -> None:
    """Write a table, in place of an older one only when it is whole."""
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(rows[0]) if rows else ["empty"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, lines.getvalue().encode("utf-8", "backslashreplace"))


def write_runs(folder: Path, runs: Sequence[tuple[str, Measurement]]) -> Rows:
    """Write all planned runs to runs.csv, and their learning curves to evaluations.csv; returns the former's rows.

    `runs` are runs with the name of their method. The clock of the serial backend is meaningless, so it is left out.
    """
    rows, evaluations = [], []
    for name, run in runs:
        cell, reach, clocked = run.cell, run.reach, run.cell.backend in CLOCKED
        place = {"environment": cell.env_id, "backend": cell.backend, "entrant": name, "seed": cell.seed}
        place["workers"] = cell.workers or ""
        rows.append(
            place
            | {
                "state": run.state or "not run",
                "restarts": run.restarts,
                "steps": run.steps,
                "seconds": time_text(run.seconds) if clocked else "",
                "reference_score": run.reference.score if run.reference else "",
                "steps_to_the_score": reach.steps if reach else "",
                "seconds_to_it": time_text(reach.seconds) if reach and clocked else "",
                "last_score": score_text(run.last_score(LAST)),
                "best_score": score_text(run.best_score()),
            }
        )
        evaluations += [
            place | {"steps": at.steps, "seconds": time_text(at.seconds) if clocked else "", "score": f"{at.score:g}"}
            for at in run.evaluations
        ]
    write_csv(folder / "runs.csv", rows)
    write_csv(folder / "evaluations.csv", evaluations)
    return rows


def learning_curves(
    groups: Mapping[str, Sequence[Measurement]],
    colours: Mapping[str, Any],
    axis: Literal["minutes", "steps"],
    y_label: str = "score (raw return)",
    title: str = "",
) -> Panel:
    """Scores over steps or time by groups of runs: the median, and a band from the worst run to the best.

    A dotted line is at the reference score.
    """
    every = [run for runs in groups.values() for run in runs]
    place = attrgetter("seconds" if axis == "minutes" else "steps")
    last = max((place(run.evaluations[-1]) for run in every if run.evaluations), default=1.0)
    unit, size = unit_of(axis, last)
    marks = []
    for name, runs in groups.items():
        curves = [[(place(at) / size, at.score) for at in run.evaluations] for run in runs if run.evaluations]
        if curves:
            marks.append(median_curve(curves, colours[name], name))
    references = {run.reference.score for run in every if run.reference}
    marks += [Line((0, last / size), (score, score), BLACK, style=":", width=1) for score in references]
    return Panel(marks, unit if axis == "minutes" else f"{unit.removesuffix('s')} steps", y_label, title)
