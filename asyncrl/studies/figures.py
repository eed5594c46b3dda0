"""What the figures of all studies have in common."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NAMES = {
    "a3c": "A3C", "one_step_q": "one-step Q", "one_step_sarsa": "one-step Sarsa", "n_step_q": "n-step Q", "a2c": "A2C",
    "ppo": "PPO", "impala": "IMPALA", "reinforce": "REINFORCE", "gorila": "Gorila", "apex": "Ape-X",
}  # fmt: skip
COLOURS = {
    "a3c": "C0", "one_step_q": "C1", "one_step_sarsa": "C2", "n_step_q": "C3", "reinforce": "C4", "a2c": "C5",
    "ppo": "C6", "impala": "C7", "gorila": "C8", "apex": "C9",
}  # fmt: skip
"""The same in every figure of a study."""


def method_name(algorithm: str) -> str:
    """The name of a method in tables and legends."""
    return NAMES.get(algorithm, algorithm)


def colours_of(algorithms: Sequence[str]) -> list[str]:
    """A colour for each: the method's own, or colours in turn if one occurs twice or is not of this package."""
    if len(set(algorithms)) == len(algorithms) and COLOURS.keys() >= set(algorithms):
        return [COLOURS[algorithm] for algorithm in algorithms]
    return [f"C{i % 10}" for i in range(len(algorithms))]


def open_frame(axes: Axes) -> None:
    """Leave out the frame's upper and right side."""
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """One legend for all panels, below them."""
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False, fontsize=9)
