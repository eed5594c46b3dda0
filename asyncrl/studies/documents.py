"""A report as a list of blocks, written as Markdown and as one self-contained HTML file."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
       background: #fff; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 0.82rem; display: block; overflow-x: auto; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th.words, td.words { text-align: left; } tr.marked { font-weight: 600; background: #fff7d6; }
img { max-width: 100%; height: auto; } figure { margin: 1.5rem 0; } figcaption { font-size: 0.85rem; color: #444; }
pre { background: #f4f4f4; padding: 0.8rem; overflow-x: auto; font-size: 0.82rem; }
"""


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the page's."""

    text: str
    level: int = 2

    def markdown(self, folder: Path) -> str:
        """As Markdown."""
        return f"{'#' * self.level} {self.text}"

    def html(self, folder: Path) -> str:
        """As HTML."""
        return f"<h{self.level}>{html.escape(self.text)}</h{self.level}>"


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    def markdown(self, folder: Path) -> str:
        """As Markdown."""
        return self.text

    def html(self, folder: Path) -> str:
        """As HTML."""
        return f"<p>{html.escape(self.text)}</p>"


@dataclass(frozen=True)
class Items:
    """A list."""

    items: Sequence[str]

    def markdown(self, folder: Path) -> str:
        """As Markdown."""
        return "\n".join(f"- {item}" for item in self.items)

    def html(self, folder: Path) -> str:
        """As HTML."""
        return "<ul>" + "".join(f"<li>{html.escape(item)}</li>" for item in self.items) + "</ul>"


@dataclass(frozen=True)
class Code:
    """A command."""

    text: str

    def markdown(self, folder: Path) -> str:
        """As Markdown."""
        return f"```bash\n{self.text}\n```"

    def html(self, folder: Path) -> str:
        """As HTML."""
        return f"<pre>{html.escape(self.text)}</pre>"


@dataclass(frozen=True)
class Table:
    """Rows of cells below a row of titles, with numbers aligned right and words left."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: Collection[int] = ()
    """Rows in bold type."""

    def markdown(self, folder: Path) -> str:
        """As Markdown."""
        rows = [
            [f"**{cell}**" if cell and i in self.marked else cell for cell in row] for i, row in enumerate(self.rows)
        ]
        lines = [self.titles, ["---" if words else "--:" for words in self._of_words()], *rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def html(self, folder: Path) -> str:
        """As HTML."""

        classes = [' class="words"' if words else "" for words in self._of_words()]

        def line(cells: Sequence[str], tag: str, bold: bool = False) -> str:
            marked = zip(cells, classes, strict=True)
            style = ' class="marked"' if bold else ""
            inner = "".join(f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for cell, mark in marked)
            return f"<tr{style}>{inner}</tr>"

        rows = "".join(line(row, "td", i in self.marked) for i, row in enumerate(self.rows))
        return "<table>" + line(self.titles, "th") + rows + "</table>"

    def _of_words(self) -> list[bool]:
        """For each column, whether none of its cells begins with a number."""
        return [
            not any(re.match(r"[<>]? ?[-+]?\d", row[column]) for row in self.rows) for column in range(len(self.titles))
        ]


@dataclass(frozen=True)
class Picture:
    """A PNG in the report's folder, with a caption."""

    file: str
    caption: str

    def markdown(self, folder: Path) -> str:
        """As Markdown: a link to the file."""
        return f"![{Path(self.file).stem}]({self.file})\n\n{self.caption}"

    def html(self, folder: Path) -> str:
        """As HTML: the picture itself."""
        content = base64.b64encode((folder / self.file).read_bytes()).decode()
        text = html.escape(self.caption)
        name = html.escape(Path(self.file).stem)
        return (
            f'<figure><img alt="{name}" src="data:image/png;base64,{content}"><figcaption>{text}</figcaption></figure>'
        )


Block = Heading | Text | Items | Code | Table | Picture


def write_pages(folder: Path, blocks: Sequence[Block]) -> None:
    """Write report.md and report.html into the folder that holds the pictures."""
    (folder / "report.md").write_text("\n\n".join(block.markdown(folder) for block in blocks) + "\n")
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    body = "\n".join(block.html(folder) for block in blocks)
    (folder / "report.html").write_text(
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
