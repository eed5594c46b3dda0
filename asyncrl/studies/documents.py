"""A study's report: Markdown, one self-contained page of HTML, tables as CSV and figures as PNG and SVG.

A table is a sequence of rows, and a row has a cell for each title.
"""

from __future__ import annotations

import base64
import csv
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from asyncrl.plots.curves import save_figure
from asyncrl.plots.templates import Markup, Parts
from asyncrl.studies.measure import Measurement

PARTS = Parts("studies/document.html")
Rows = Sequence[Mapping[str, Any]]


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
    states = Counter(run.state or "not made" for run in runs)
    replaced = sum(run.restarts > 0 for run in runs if run.complete)
    machines = Counter((run.machine, run.cell.backend, run.cores) for run in runs if run.complete)
    return [
        heading("How it was measured"),
        paragraph(
            f"{len(runs)} runs: {', '.join(f'{count} {state}' for state, count in states.items())}."
            f"{f' In {replaced} of them workers were replaced, which costs time.' if replaced else ''}"
        ),
        items([f"{count} {back} on {cores} cores of: {name}" for (name, back, cores), count in machines.items()]),
        code("\n".join(commands)),
    ]


def write_pages(folder: Path, title: str, blocks: Sequence[Block]) -> Path:
    """Write report.md and report.html into the folder; returns the path of report.md."""
    blocks = [heading(title, 1), *blocks]
    path = folder / "report.md"
    path.write_text("\n\n".join(block.markdown for block in blocks) + "\n")
    (folder / "report.html").write_text(PARTS.page(title, [block.html for block in blocks]))
    return path


def write_csv(path: Path, rows: Rows) -> None:
    """Write a table."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["empty"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
