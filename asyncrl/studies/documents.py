"""A study's report: Markdown, one self-contained page of HTML, tables as CSV and figures as PNG and SVG."""

from __future__ import annotations

import base64
import csv
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from asyncrl.plots.curves import save_figure
from asyncrl.plots.templates import Markup, Parts

PARTS = Parts("studies/document.html")


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


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], marked: Collection[int] = ()) -> Block:
    """Rows of cells, numbers aligned right and words left; rows with a number in `marked` are bold."""
    words = [not any(re.match(r"[<>]? ?[-+]?\d", row[column]) for row in rows) for column in range(len(titles))]
    bold = [[f"**{cell}**" if cell and i in marked else cell for cell in row] for i, row in enumerate(rows)]
    lines = [titles, ["---" if left else "--:" for left in words], *bold]
    markdown = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return Block(markdown, PARTS.table(titles, rows, words, marked))


def picture(figure: Figure, path: Path, caption: str) -> Block:
    """Save a figure as `path` with .png and .svg; it stands in the HTML itself, and as a link in Markdown."""
    png, svg = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")
    save_figure(figure, svg)
    save_figure(figure, png)
    content = base64.b64encode(png.read_bytes()).decode()
    return Block(f"![{path.name}]({png.name})\n\n{caption}", PARTS.picture(path.name, content, caption))


def write_pages(folder: Path, title: str, blocks: Sequence[Block]) -> Path:
    """Write report.md and report.html into the folder; returns the path of report.md."""
    blocks = [heading(title, 1), *blocks]
    path = folder / "report.md"
    path.write_text("\n\n".join(block.markdown for block in blocks) + "\n")
    (folder / "report.html").write_text(PARTS.page(title, [block.html for block in blocks]))
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, which all have the same columns."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["empty"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
