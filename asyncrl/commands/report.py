"""`python -m asyncrl report RUN...`: a page of HTML about runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from asyncrl.commands.program import each_once, run_with
from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.output import print_line


@dataclass(frozen=True)
class Config:
    """Write a single, self-contained HTML page that compares runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders; an active run is shown up to the present."""
    out: Path = Path("report.html")
    """File to write."""
    title: str = ""
    """Title; empty: methods and environments."""


def main(words: Sequence[str]) -> int:
    """Write what the command line says; returns the exit code."""
    return run_with(Config, words, "asyncrl report", report)


def report(config: Config) -> int:
    """Write the page; returns the exit code. Raises UsageError."""
    from jinja2 import TemplateError

    from asyncrl.plots.report import make_page, read_runs

    try:
        page = make_page(read_runs(each_once(config.runs)), config.title)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, TemplateError) as error:
        raise UsageError(f"the records of these runs cannot be shown: {one_line(error)}") from None
    try:
        config.out.parent.mkdir(parents=True, exist_ok=True)
        config.out.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"cannot write {config.out}: {error}") from None
    print_line(f"{config.out} ({config.out.stat().st_size / 1000:.0f} kB)")
    return 0
