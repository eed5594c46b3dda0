"""All races on one picture: how many times the best median each method took, in time and in steps.

Reads the runs.csv files of races (`asyncrl race` writes them into RUNS_DIR/report), prints tables and draws a figure.

    python benchmarks/race_overview.py runs/race-1/report/runs.csv runs/race-2/report/runs.csv --figure races.png

Times and steps are medians over seeds, divided by the best median in that environment. A run that did not reach the
score counts as longer than it was. Environments in which no run has a time to a score are races to equal steps: there
the median of the last scores is divided by the best. Rows are ordered by the geometric mean over the environments in
which all methods ran; last scores must be positive.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asyncrl.core.statistics import Sample
from asyncrl.plots.figures import save_figure
from asyncrl.studies.documents import table

Row = Mapping[str, str]
MARKERS = "osD^vP*X"


@dataclass(frozen=True)
class Ratio:
    """A median divided by the best one of its environment."""

    value: float
    bound: bool = False
    """Whether the median is censored, and the ratio only a lower bound."""

    def __str__(self) -> str:
        return f"{'> ' if self.bound else ''}{self.value:.{2 if self.value < 10 else 1}f}"


Quantity = Mapping[str, Mapping[str, Ratio]]
"""Ratios by environment and method."""


def read_runs(paths: Sequence[Path]) -> dict[str, dict[str, list[Row]]]:
    """The finished runs by environment and method."""
    runs: dict[str, dict[str, list[Row]]] = {}
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                if row["state"] == "finished":
                    runs.setdefault(row["environment"], {}).setdefault(row["entrant"], []).append(row)
    return runs


def has_score(methods: Mapping[str, Sequence[Row]]) -> bool:
    """Whether there was a score to reach."""
    return any(row["seconds_to_it"] for rows in methods.values() for row in rows)


def to_the_score(rows: Sequence[Row], reached: str, whole: str) -> Sample:
    """What the runs needed to the score; of those that did not reach it, what they had when they ended."""
    return Sample(tuple(float(row[reached] or row[whole]) for row in rows), tuple(bool(row[reached]) for row in rows))


def costs(methods: Mapping[str, Sequence[Row]], reached: str, whole: str) -> dict[str, Ratio]:
    """Each method's median, in multiples of the smallest."""
    samples = {method: to_the_score(rows, reached, whole) for method, rows in methods.items()}
    best = min(sample.median for sample in samples.values())
    return {method: Ratio(sample.bound / best, not math.isfinite(sample.median)) for method, sample in samples.items()}


def shares(methods: Mapping[str, Sequence[Row]]) -> dict[str, Ratio]:
    """Each method's median of last scores, as a share of the largest."""
    medians = {
        method: Sample.complete([float(row["last_score"]) for row in rows]).median for method, rows in methods.items()
    }
    return {method: Ratio(median / max(medians.values())) for method, median in medians.items()}


def mean(quantity: Quantity, method: str) -> Ratio:
    """The geometric mean over the environments in which all methods ran."""
    everybody = {each for own in quantity.values() for each in own}
    own = [ratios[method] for ratios in quantity.values() if len(ratios) == len(everybody)]
    return Ratio(geometric_mean(each.value for each in own), any(each.bound for each in own))


def order(quantity: Quantity, sign: int) -> list[str]:
    """The methods, from the smallest mean (`sign` 1) or the largest (-1) on."""
    methods = dict.fromkeys(method for own in quantity.values() for method in own)
    return sorted(methods, key=lambda method: sign * mean(quantity, method).value)


def print_table(title: str, quantity: Quantity, sign: int) -> None:
    """A Markdown table: a row per method, a column per environment, and the mean."""
    rows = [
        {"method": one, **{name: own.get(one, "") for name, own in quantity.items()}, "mean": mean(quantity, one)}
        for one in order(quantity, sign)
    ]
    print(f"\n{title}\n\n{table(rows).markdown}")


def draw(axes: Axes, quantity: Quantity, sign: int, title: str) -> None:
    """A row per method, the best on top; a mark per environment, a bar for the mean."""
    rows = order(quantity, sign)
    for i, (environment, ratios) in enumerate(quantity.items()):
        colour, places = f"C{i % 10}", [rows.index(method) for method in ratios]
        values = [ratio.value for ratio in ratios.values()]
        axes.plot(values, places, MARKERS[i % len(MARKERS)], color=colour, alpha=0.8, label=short(environment))
        for ratio, place in zip(ratios.values(), places, strict=True):
            if ratio.bound:
                axes.annotate("→", (ratio.value, place), (3, -4), textcoords="offset points", color=colour)
    for place, method in enumerate(rows):
        axes.plot([mean(quantity, method).value] * 2, [place - 0.35, place + 0.35], color="0.3", linewidth=1.5)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    if sign > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(left=0)


def short(environment: str) -> str:
    """The name of an environment without its namespace and version."""
    return environment.rpartition("/")[2].partition("-v")[0]


def main() -> None:
    """Print the tables and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="runs.csv of races")
    parser.add_argument("--figure", type=Path, help="PNG file to draw")
    arguments = parser.parse_args()
    runs = read_runs(arguments.runs)
    raced = {environment: methods for environment, methods in runs.items() if has_score(methods)}
    equal = {environment: methods for environment, methods in runs.items() if not has_score(methods)}
    times = {environment: costs(methods, "seconds_to_it", "seconds") for environment, methods in raced.items()}
    steps = {environment: costs(methods, "steps_to_the_score", "steps") for environment, methods in raced.items()}
    scores = {environment: shares(methods) for environment, methods in equal.items()}
    panels = [
        ("time to the score, in multiples of the best", times, 1),
        ("steps to the score, in multiples of the best", steps, 1),
        ("last score after equal steps, share of the best", scores, -1),
    ]
    panels = [panel for panel in panels if panel[1]]
    for panel in panels:
        print_table(*panel)
    if arguments.figure:
        figure = Figure(figsize=(4.6 * len(panels), 4.6), layout="constrained")
        columns = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, quantity, sign) in zip(columns, panels, strict=True):
            draw(axes, quantity, sign, title)
        figure.supxlabel(
            "A mark is the median of an environment's seeds (arrow: at least that; most runs did not get there), "
            "a bar the mean.",
            fontsize="small",
        )
        save_figure(figure, arguments.figure)


if __name__ == "__main__":
    main()
