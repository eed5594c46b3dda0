"""A report as a list of blocks, written as Markdown and as one self-contained HTML file."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.plots.templates import Markup, Parts

PARTS = Parts("studies/document.html")


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the page's."""

    text: str
    level: int = 2

    def markdown(self, folder: Path) -> str:
        """As Markdown."""
        return f"{'#' * self.level} {self.text}"

    def html(self, folder: Path) -> Markup:
        """As HTML."""
        return PARTS.heading(self.level, self.text)


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    def markdown(self, folder: Path) -> str:
        """As Markdown."""
        return self.text

    def html(self, folder: Path) -> Markup:
        """As HTML."""
        return PARTS.paragraph(self.text)


@dataclass(frozen=True)
class Items:
    """A list."""

    items: Sequence[str]

    def markdown(self, folder: Path) -> str:
        """As Markdown."""
        return "\n".join(f"- {item}" for item in self.items)

    def html(self, folder: Path) -> Markup:
        """As HTML."""
        return PARTS.items(self.items)


@dataclass(frozen=True)
class Code:
    """A command."""

    text: str

    def markdown(self, folder: Path) -> str:
        """As Markdown."""
        return f"```bash\n{self.text}\n```"

    def html(self, folder: Path) -> Markup:
        """As HTML."""
        return PARTS.code(self.text)


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

    def html(self, folder: Path) -> Markup:
        """As HTML."""
        return PARTS.table(self.titles, self.rows, self._of_words(), self.marked)

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

    def html(self, folder: Path) -> Markup:
        """As HTML: the picture itself."""
        content = base64.b64encode((folder / self.file).read_bytes()).decode()
        return PARTS.picture(Path(self.file).stem, content, self.caption)


Block = Heading | Text | Items | Code | Table | Picture


def write_pages(folder: Path, blocks: Sequence[Block]) -> None:
    """Write report.md and report.html into the folder that holds the pictures."""
    (folder / "report.md").write_text("\n\n".join(block.markdown(folder) for block in blocks) + "\n")
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    (folder / "report.html").write_text(PARTS.page(title, [block.html(folder) for block in blocks]))
