"""Reports as Markdown and HTML."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from asyncrl.core.errors import UsageError
from asyncrl.studies.documents import code, heading, items, paragraph, picture, report_in, table, write_pages

NASTY = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'


def test_no_text_of_a_report_becomes_html(tmp_path: Path) -> None:
    """Whichever block it is in."""
    blocks = [heading(NASTY), paragraph(NASTY), items([NASTY]), code(NASTY), table([{NASTY: NASTY}], marked=[0])]
    path = write_pages(tmp_path, NASTY, [*blocks, picture(Figure(), tmp_path / "a'><script>", NASTY)])

    assert path == tmp_path / "report.md"
    page = (tmp_path / "report.html").read_text()
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;&#34;&gt;&lt;img") == 9
    assert "<script" not in page
    assert page.count("<img ") == 1


def test_a_table_aligns_numbers_to_the_right_and_words_to_the_left() -> None:
    rows = [["a3c", "lost", "1", "unknown"], ["n_step_q", "", "", "< 0.50 *"]]
    block = table([dict(zip(["method", "state", "1", "8"], row, strict=True)) for row in rows])

    assert block.markdown.splitlines()[1] == "| --- | --- | --: | --: |"
    assert '<th class="words">state</th><th>1</th>' in block.html
    assert '<td class="words"></td><td></td><td>&lt; 0.50 *</td>' in block.html


def test_no_report_is_written_through_a_link(tmp_path: Path) -> None:
    """The study may be a stranger's."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "study").mkdir()
    assert report_in(tmp_path / "study") == tmp_path / "study" / "report"
    (tmp_path / "study" / "report").rmdir()
    (tmp_path / "study" / "report").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UsageError, match=r"report is a link to .*elsewhere: replace the link by a folder"):
        report_in(tmp_path / "study")
