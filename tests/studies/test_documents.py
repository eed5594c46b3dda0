"""Reports as Markdown and HTML."""

from __future__ import annotations

from pathlib import Path

from asyncrl.studies.documents import Code, Heading, Items, Picture, Table, Text, write_pages

NASTY = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'


def test_no_text_of_a_report_becomes_html(tmp_path: Path) -> None:
    """Whichever block it is in."""
    picture = "a'><script>.png"
    (tmp_path / picture).write_bytes(b"png")
    blocks = [Heading(NASTY, 1), Text(NASTY), Items([NASTY]), Code(NASTY), Table([NASTY], [[NASTY]], marked=[0])]
    write_pages(tmp_path, [*blocks, Picture(picture, NASTY)])

    page = (tmp_path / "report.html").read_text()
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;&#34;&gt;&lt;img") == 8
    assert "<script" not in page
    assert page.count("<img ") == 1
