"""`python -m asyncrl.plot RUN...`: learning curves of any runs in one figure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from asyncrl.commandline import parse, run_command


@dataclass(frozen=True)
class Config:
    """Draw the evaluation scores of runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs."""
    x: Literal["steps", "frames", "minutes"] = "steps"
    """What the score is drawn over."""
    out: Path = Path("curves.png")
    """File to write; its suffix chooses the format (png, svg, pdf)."""
    title: str = ""
    """Title; empty: the environments."""


def main(words: Sequence[str] | None = None) -> int:
    """Draw what the command line says; returns the exit code."""
    words = sys.argv[1:] if words is None else words
    program = "asyncrl plot"

    def draw() -> int:
        config = parse(Config, words, program)
        from asyncrl.plots.curves import draw_curves, read_curve, save_figure

        save_figure(draw_curves([read_curve(run) for run in config.runs], config.x, config.title), config.out)
        print(config.out)
        return 0

    return run_command(program, draw)


if __name__ == "__main__":
    raise SystemExit(main())
