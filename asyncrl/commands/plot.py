"""`python -m asyncrl plot RUN...`: draw learning curves of runs in one figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from asyncrl.commands.program import each_once, run_with
from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.output import print_line


@dataclass(frozen=True)
class Config:
    """Draw the evaluation scores of runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs."""
    x: Literal["steps", "frames", "minutes"] = "steps"
    """The horizontal axis."""
    out: Path = Path("curves.png")
    """File to write; its suffix chooses the format (png, svg, pdf)."""
    reference: tuple[Path, ...] = ()
    """CSV files of other curves to compare with: columns label, score, and steps, frames or minutes."""
    reference_until: float = math.inf
    """Draw the references only up to this many steps, frames or minutes (the unit of --x)."""
    title: str = ""
    """Title; empty: the names of the environments."""


def main(words: Sequence[str]) -> int:
    """Draw what the command line says; returns the exit code."""
    return run_with(Config, words, "asyncrl plot", draw)


def draw(config: Config) -> int:
    """Write the figure; returns the exit code. Raises UsageError."""
    from asyncrl.plots.curves import RunData, draw_curves, read_references
    from asyncrl.plots.figures import save_figure

    folders = each_once(config.runs)
    references = [one for path in config.reference for one in read_references(path, config.x, config.reference_until)]
    try:
        runs = [RunData(path) for path in folders]
        curves = [run for run in runs if run.evaluations]
        if not curves:
            raise UsageError("none of these runs has an evaluation yet")
        for run in runs:
            if not run.evaluations:
                print_line(f"skipped: {run.path} has no evaluations yet", error=True)
        figure = draw_curves(curves, config.x, config.title, references)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise UsageError(f"the records of these runs cannot be shown: {one_line(error)}") from None
    print_line(save_figure(figure, config.out))
    return 0
