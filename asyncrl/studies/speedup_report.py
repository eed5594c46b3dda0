"""The report of a speed-up study: method, results and limits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from asyncrl.core.statistics import LEAST, Estimate
from asyncrl.studies.documents import Block, code, heading, items, paragraph, picture, table, write_pages
from asyncrl.studies.measure import Measurement, machines, measure_all
from asyncrl.studies.plan import Series, StudyFile
from asyncrl.studies.scaling_laws import Law
from asyncrl.studies.speedup_figures import Data, all_figures, laws_of, name_of, phase_mean, who
from asyncrl.studies.speedups import CLOCKED, KINDS, MEAN, Point, make_points, write_runs, write_table

MEANINGS = {
    "throughput": "steps per second",
    "data": "steps to the reference score",
    "time": "seconds to the reference score",
}


def write_report(file: StudyFile, runs_dir: Path, price_per_core_hour: float = 0.0) -> Path:
    """Read all runs of the study and write RUNS_DIR/report/; returns the path of report.md."""
    measurements = measure_all(file, runs_dir)
    points = make_points(measurements, file.references)
    data = Data(measurements, points, file.references, price_per_core_hour)
    folder = runs_dir / "report"
    folder.mkdir(exist_ok=True)
    write_table(folder / "table.csv", points, file.references, price_per_core_hour)
    write_runs(folder / "runs.csv", measurements, file.references)
    blocks = [
        *_summary(data),
        heading("How it was measured"),
        *_method(file, measurements),
        heading("Speed-ups"),
        *_tables(data),
        heading("What limits it"),
        items([limits(data, series) for series in data.series]),
        heading("Figures"),
        *(picture(figure, folder / name, caption) for name, (figure, caption) in all_figures(data).items()),
    ]
    return write_pages(folder, "What do more workers buy?", blocks)


def _summary(data: Data) -> list[Block]:
    lines = [line for series in data.series if (line := verdict(data, series))]
    if not lines:
        return [paragraph("No series has a speed-up yet: it takes finished runs with one worker and with more.")]
    return [
        paragraph("Did more workers need less data, which would make them more than linearly faster?"),
        items(lines),
    ]


def verdict(data: Data, series: Series) -> str:
    """One sentence on whether the largest number of workers needed less data than one."""
    backend = data.curve_backend
    pairs = [(p, e) for p in data.means(series, backend) if p.workers > 1 and (e := p.speedup("data"))]
    if not pairs:
        return ""
    point, estimate = pairs[-1]
    them = who(backend)
    start = f"{name_of(series)}: with {point.workers} {them} ({backend} backend) the data speed-up is {estimate}"
    if estimate.bound == "?":
        return f"{start}, because too many runs never reached the reference score."
    if estimate.bound == "<=":
        return f"{start}: more data, if they reach the score at all; {_censored(point)}."
    if not estimate.has_interval:
        return f"{start}: from fewer than {LEAST} seeds, which show no difference."
    if estimate.low > 1:
        return f"{start}: less data than one {them[:-1]}, so more than linear wherever throughput is linear."
    if estimate.high < 1:
        return f"{start}: more data than one {them[:-1]}, so less than linear however many cores there are."
    return f"{start}: the interval holds 1, so no difference is shown."


def _censored(point: Point) -> str:
    return f"{point.runs - point.reached} of {point.runs} runs are censored"


def _method(file: StudyFile, measurements: Sequence[Measurement]) -> list[Block]:
    finished = sum(run.complete for run in measurements)
    replaced = sum(run.restarts > 0 for run in measurements if run.complete)
    missing = Counter(run.state or "not made" for run in measurements if not run.complete)
    left_out = ", ".join(f"{count} {state}" for state, count in missing.items())
    settings = [
        f"{env_id}: {s.max_steps:,} steps at most{f', {s.max_seconds:g} s at most' if s.max_seconds else ''}; "
        f"{s.evaluation_episodes} episodes every {s.evaluation_interval_steps:,} steps"
        f"{'; runs end at the reference score' if s.stop_at_reference else ''}"
        f"{'; ' + ' '.join(s.words) if s.words else ''}"
        for env_id, s in file.environments.items()
    ]
    references = Counter(
        f"{env_id}, {name_of(Series(algorithm))}: {reference.score:g}{reference.in_mean}, {reference.how}"
        for (env_id, algorithm), reference in file.references.items()
    )
    return [
        paragraph(
            f"{finished} of {len(measurements)} runs finished{f' ({left_out})' if left_out else ''}. "
            f"{f'In {replaced} of them workers were replaced, which costs time. ' if replaced else ''}"
            "Speed-ups are ratios of medians over seeds against one worker, in the mean over environments; in brackets "
            f"95 % bootstrap intervals over seeds, from {LEAST} seeds on. A run that never reached the reference score "
            "is censored: it counts as slower than all that did. The clock starts when all workers are ready, each "
            "worker computes in one thread, and the evaluator is not counted among the workers."
        ),
        items(settings),
        heading("Reference scores", 3),
        items(list(references)),
        heading("Machine", 3),
        items(machines(measurements)),
        paragraph(f"Cores that a run could use: {_cores(measurements)}."),
        heading("Commands", 3),
        code("\n".join(file.commands)),
    ]


def _cores(measurements: Sequence[Measurement]) -> str:
    """The cores of the runs, by backend."""
    seen = sorted({(run.cell.backend, run.cores) for run in measurements if run.complete})
    return ", ".join(f"{cores} ({backend} backend)" for backend, cores in seen) or "unknown"


def _tables(data: Data) -> list[Block]:
    blocks = []
    for kind in KINDS:
        for backend in (*CLOCKED, "serial"):
            points = [p for p in data.points if p.backend == backend and p.speedup(kind)]
            if not any(point.workers > 1 for point in points):
                continue
            blocks.append(heading(f"{kind.capitalize()}: {MEANINGS[kind]} ({backend} backend)", 3))
            blocks.append(_table(data, points, kind))
            if any(point.crowded for point in points):
                blocks.append(paragraph(f"* more {who(backend)} than cores."))
    return blocks


def _table(data: Data, points: Sequence[Point], kind: str) -> Block:
    """Rows are series and environments, columns numbers of workers."""
    counts = sorted({point.workers for point in points})
    found = {(p.series, p.env_id, p.workers): p for p in points}
    env_ids = [*data.env_ids, MEAN] if len(data.env_ids) > 1 else data.env_ids
    rows = [
        [name_of(series), env_id, *(_cell(found.get((series, env_id, count)), kind) for count in counts)]
        for env_id in env_ids
        for series in data.series
        if any((series, env_id, count) in found for count in counts)
    ]
    return table(["method", "environment", *(str(count) for count in counts)], rows)


def _cell(point: Point | None, kind: str) -> str:
    estimate: Estimate | None = point.speedup(kind) if point else None
    if point is None or estimate is None:
        return ""
    star = " *" if point.crowded else ""
    lost = point.runs - point.reached
    censored = f" ({lost} of {point.runs} censored)" if kind != "throughput" and lost else ""
    return ("1" if point.workers == 1 and not estimate.bound else str(estimate)) + star + censored


def limits(data: Data, series: Series) -> str:
    """What keeps the throughput of a series below the ideal, in words: scaling laws and the workers' time split."""
    name = name_of(series)
    points = [p for p in data.means(series, data.clock_backend) if p.speedup("throughput")]
    own = [p for p in points if not p.crowded]
    if not points or points[-1].workers == 1:
        return f"{name}: no throughput was measured with more than one worker."
    most = (own if own and own[-1].workers > 1 else points)[-1]
    gain = most.speedup("throughput")
    assert gain is not None
    them = who(data.clock_backend)
    told = [f"{name}: {most.workers} {them} on {most.cores} cores make {gain} times the steps per second of one"]
    runs = data.runs(data.clock_backend)
    phases = list(dict.fromkeys(phase for run in runs for phase in run.phases))
    one = {phase: phase_mean(runs, series, 1, phase) for phase in phases}
    many = {phase: phase_mean(runs, series, most.workers, phase) for phase in phases}
    if sum(one.values()) > 0:
        slower = sum(many.values()) / sum(one.values())
        grown = max(phases, key=lambda phase: many[phase] - one[phase])
        told.append(
            f"a step takes each of them {slower:.2f} times as long as it takes one alone, and what grew most is "
            f"{_phase(grown)} (from {1e3 * one[grown]:.3f} to {1e3 * many[grown]:.3f} ms per step)"
        )
    amdahl, usl = laws_of(data, series, "throughput")
    if amdahl:
        told.append(f"Amdahl's law then has a serial fraction of {amdahl.contention:.3f}{_limit(amdahl.limit)}")
    if usl:
        told.append(f"the Universal Scalability Law a contention of {usl.contention:.3f} and {_coherence(usl)}")
    else:
        told.append(
            "for the Universal Scalability Law's two coefficients there are too few points with a core for each worker"
        )
    if points[-1].crowded:
        last = points[-1]
        told.append(
            f"{last.workers} {them} on {last.cores} cores reach {last.speedup('throughput')}: they share the cores, "
            "which no law of the method explains"
        )
    return "; ".join(told) + "."


def _coherence(usl: Law) -> str:
    if not math.isfinite(usl.best_workers):
        return "no coherence: what workers cost each other does not grow with every pair of them"
    return f"a coherence of {usl.coherence:.5f}, which makes about {usl.best_workers:.0f} workers the most that help"


def _limit(limit: float) -> str:
    return f": never more than {limit:.0f} times one worker" if math.isfinite(limit) else ""


PHASES = {
    "environment": "the environment itself",
    "act": "choosing actions",
    "collect": "storing what was seen",
    "loss": "loss and gradient",
    "pull": "copying theta",
    "push": "updating theta",
    "wait": "waiting",
    "wait_for_ranks": "waiting for the slowest rank",
    "communicate": "exchanging with other ranks",
}


def _phase(phase: str) -> str:
    return PHASES.get(phase, phase)
