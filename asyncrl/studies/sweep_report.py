"""The report of a sweep: a table of its runs, the best first, and figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from asyncrl.core.statistics import normalized
from asyncrl.plots.figures import BLACK, Bars, Line, Panel, Scale, colours_of, draw, method_name, shades
from asyncrl.studies.documents import code, paragraph, picture, plain_table, report_in, table, write_csv, write_pages
from asyncrl.studies.measure import Measurement, measure_all
from asyncrl.studies.search import importances, is_logarithmic, is_numeric
from asyncrl.studies.study import Point, Study

SHOWN = 5
"""Number of best runs printed on the terminal."""
MOST_LABELS = 5
"""Numbers are equally spaced along an axis of parallel coordinates, and each has a label, unless there are more."""
ABREAST = 3
"""Panels in a row."""
SCORED_FOR_LINES = 3
"""Parallel coordinates need at least so many runs with a score."""
CAPTIONS = {
    "scores": "Final score of each run. Crosses are runs without a score: they failed, were stopped or have not been "
    "run.",
    "parallel": "One line per run through its settings and its best score; yellow is best.",
    "importance": "How much each setting determines whether a run is among the better ones (PED-ANOVA, Watanabe et al. "
    "2023, by Optuna). The shares add up to one; small ones need many runs to mean anything.",
}


class SweepResults:
    """Everything that the report shows."""

    def __init__(self, runs: Sequence[Measurement], variants: Mapping[str, Point]) -> None:
        self.env_ids = list(dict.fromkeys(run.cell.env_id for run in runs))
        self.runs = sorted(runs, key=self._order)
        """By environment, the best score first, those without a score last."""
        self.points = {run.cell.variant: variants[run.cell.variant] for run in runs}
        found = {name: self._values(name) for name in dict.fromkeys(name for p in self.points.values() for name in p)}
        self.varied = {name: values for name, values in found.items() if len(values) > 1}
        """The settings in which the runs differ, and their values, in order."""
        self.fixed = {name: values[0] for name, values in found.items() if len(values) == 1}

    def _order(self, run: Measurement) -> tuple[int, float]:
        best = run.best_score()
        return self.env_ids.index(run.cell.env_id), math.inf if best is None else -best

    def _values(self, name: str) -> list[str]:
        values = list(dict.fromkeys(point.get(name, "") for point in self.points.values()))
        return sorted(values, key=float) if is_numeric(values) else values

    def value(self, run: Measurement, name: str) -> str:
        """A setting of a run; "" if it has its default."""
        return self.points[run.cell.variant].get(name, "")

    def row(self, run: Measurement) -> dict[str, str]:
        """A run in the table."""
        best, final = run.best_score(), final_score(run)
        return {
            "method": run.cell.algorithm,
            "environment": run.cell.env_id,
            **{name: self.value(run, name) for name in self.varied},
            "seed": str(run.cell.seed),
            "state": run.state or "not run",
            "steps": str(run.steps),
            "best": "" if best is None else f"{best:.6g}",
            "final": "" if final is None else f"{final:.6g}",
        }


def final_score(run: Measurement) -> float | None:
    """The last evaluation, of the final parameters; None unless the run finished."""
    return run.last_score() if run.complete else None


def write_report(study: Study, say: Callable[[str], None]) -> Path:
    """Read all runs of the sweep and write RUNS_DIR/report/; returns the path of report.md.

    `say` gets the best runs of each environment.
    """
    folder = report_in(study.runs_dir)
    results = SweepResults(measure_all(study), study.variants)
    rows = [results.row(run) for run in results.runs]
    write_csv(folder / "table.csv", rows)
    marked = set()
    for env_id in results.env_ids:
        own = [i for i, row in enumerate(rows) if row["environment"] == env_id and row["best"]]
        marked |= set(own[:1])
        if own:
            say(f"best of {len(own)} runs in {env_id}:\n{plain_table([rows[i] for i in own[:SHOWN]])}")
    figures = {"scores": draw_scores(results)}
    if results.varied and sum(bool(row["best"]) for row in rows) >= SCORED_FOR_LINES:
        figures["parallel"] = draw_parallel(results)
    if shares := shares_of(results):
        figures["importance"] = draw_importances(shares)
    states = Counter(row["state"] for row in rows)
    fixed = ", ".join(f"{name} {value}" for name, value in results.fixed.items())
    blocks = [
        paragraph(
            f"{len(rows)} runs ({', '.join(f'{count} {state}' for state, count in states.items())}). "
            f"{f'In all of them: {fixed}. ' if fixed else ''}"
            "A score is the mean raw return of an evaluation; final: of the last one."
        ),
        code("\n".join(study.commands)),
        *(picture(figure, folder / name, CAPTIONS[name]) for name, figure in figures.items()),
        table(rows, marked),
    ]
    return write_pages(folder, "Sweep", blocks)


def shares_of(results: SweepResults) -> dict[str, dict[str, float]]:
    """The importance of each setting, by method and environment, if there are enough runs."""
    groups: dict[str, list[tuple[Point, float]]] = {}
    for run in results.runs:
        if (score := run.best_score()) is not None:
            name = f"{method_name(run.cell.algorithm)}, {run.cell.env_id}"
            groups.setdefault(name, []).append((results.points[run.cell.variant], score))
    found = {name: importances(own, list(results.varied)) for name, own in groups.items()}
    return {name: shares for name, shares in found.items() if shares}


def draw_importances(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """A bar for each setting, a panel for each method and environment."""
    grid = []
    for name, own in shares.items():
        fields = sorted(own, key=lambda field: own[field])
        ticks = {float(i): field.replace("_", " ") for i, field in enumerate(fields)}
        bars = Bars(list(ticks), [own[field] for field in fields], "C0", across=True)
        grid.append([Panel([bars], "importance", "", name, y_ticks=ticks, x_limits=(0, 1))])
    return draw(grid, 0.7 + 0.4 * max(map(len, shares.values())), 6.0)


def draw_parallel(results: SweepResults) -> Figure:
    """Parallel coordinates: a vertical axis per setting, the best score at the right; a panel per environment."""
    colours, grid = shades(256), []
    for env_id in results.env_ids:
        every = [(run, run.best_score()) for run in results.runs if run.cell.env_id == env_id]
        own = [(run, score) for run, score in every if score is not None]
        scores = [score for _, score in own] or [0.0]
        marks = [Line([x, x], [0, 1], BLACK, width=0.8) for x in range(len(results.varied) + 1)]
        for run, score in reversed(own):  # the best are drawn last
            heights = [height_of(results.value(run, name), values) for name, values in results.varied.items()]
            heights += normalized([score], min(scores), max(scores))
            marks.append(Line(range(len(heights)), heights, colours[int(255 * heights[-1])], alpha=0.8))
        texts = [
            (float(x), height_of(value, values), value)
            for x, values in enumerate(results.varied.values())
            for value in ((values[0], values[-1]) if is_range(values) else values)
        ]
        ends = {min(scores): 0.0, max(scores): 1.0}
        texts += [(float(len(results.varied)), height, f"{score:.6g}") for score, height in ends.items()]
        names = [*results.varied, "best_score"]
        ticks = {float(x): name.replace("_", "\n") for x, name in enumerate(names)}
        limits = (-0.1, len(results.varied) + 0.5)
        grid.append([Panel(marks, "", "", env_id, x_ticks=ticks, y_ticks={}, x_limits=limits, texts=texts)])
    return draw(grid, 3.6, 2.0 + 1.6 * (len(results.varied) + 1))


def is_range(values: Sequence[str]) -> bool:
    """Whether an axis of parallel coordinates has a scale."""
    return is_numeric(values) and len(values) > MOST_LABELS


def height_of(value: str, values: Sequence[str]) -> float:
    """The place of a value from 0 to 1 along the axis of its setting."""
    if not is_range(values):
        return values.index(value) / max(1, len(values) - 1)
    scale = math.log if is_logarithmic(values) else float
    low, high, own = (scale(float(each)) for each in (values[0], values[-1], value))
    return (own - low) / (high - low)


def draw_scores(results: SweepResults) -> Figure:
    """Final score over the setting with the most values: a panel per environment, a colour per method and the rest.

    Numbers that span more than a factor of 8 are on a logarithmic axis (the paper's Figure 2).
    """
    varied = results.varied
    across = max(varied, key=lambda name: (is_numeric(varied[name]), len(varied[name])), default="seed")
    others = [name for name, values in varied.items() if name != across and not is_range(values)]
    values = varied.get(across) or sorted({str(run.cell.seed) for run in results.runs}, key=int)
    numeric = is_numeric(values)
    # The values as they were given; many numbers have a scale instead.
    ticks = None if is_range(values) else {float(value if numeric else i): value for i, value in enumerate(values)}
    scale: Scale = "log" if across in varied and is_logarithmic(values) else "linear"

    def group_of(run: Measurement) -> str:
        return ", ".join([method_name(run.cell.algorithm), *(f"{name} {results.value(run, name)}" for name in others)])

    def place_of(run: Measurement) -> float:
        value = results.value(run, across) if across in varied else str(run.cell.seed)
        return float(value if numeric else values.index(value))

    groups = {group_of(run): run.cell.algorithm for run in results.runs}
    colours = dict(zip(groups, colours_of(list(groups.values())), strict=True))
    panels = []
    for env_id in results.env_ids:
        own = [(run, final_score(run)) for run in results.runs if run.cell.env_id == env_id]
        lowest = min((score for _, score in own if score is not None), default=0.0)
        marks = []
        for name, colour in colours.items():
            mine = [(place_of(run), score) for run, score in own if group_of(run) == name]
            known = [(x, score) for x, score in mine if score is not None]
            lost = [x for x, score in mine if score is None]
            x, y = zip(*known, strict=True) if known else ((), ())
            marks.append(Line(x, y, colour, name, "", "o", alpha=0.75))
            marks.append(Line(lost, [lowest] * len(lost), colour, "", "", "x"))
        panels.append(Panel(marks, across.replace("_", " "), "final score (raw return)", env_id, scale, x_ticks=ticks))
    grid = [panels[i : i + ABREAST] for i in range(0, len(panels), ABREAST)]
    return draw(grid, 3.8, max(6.0, min(10.0, 5.0 * len(grid[0]))))
