"""One page of HTML about runs, from their records only: it needs no other file and no network."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from asyncrl.pages import short as page_name
from asyncrl.plots.svg import Line, Point, histogram, line_chart
from asyncrl.storage.files import read_json
from asyncrl.storage.records import read_records
from asyncrl.storage.run_folder import RunFolder
from asyncrl.storage.stored import read_stored

COLOURS = ("#2b7de0", "#e8770c", "#169b62", "#c13b8c", "#7c5cd6", "#a8870a", "#0a93a6", "#d5484f")
PHASES = {
    "environment": "#169b62", "act": "#2b7de0", "collect": "#7c5cd6", "loss": "#e8770c", "push": "#c13b8c",
    "pull": "#0a93a6", "take": "#a8870a", "put": "#d5484f", "wait": "#9aa0a8",
}  # fmt: skip
"""Where time goes; further phases are grey."""
EPISODES = 20
"""A worker's return is the mean of so many of its newest episodes."""
OWN = ("seed", "run_name", "runs_dir", "resume", "quiet", "preset")
"""Settings that are no difference between methods."""


@dataclass(frozen=True)
class RunData:
    """All that a page says of one run."""

    name: str
    """What tells it from the others."""
    colour: str
    page: str
    config: dict[str, Any]
    environment: dict[str, Any]
    status: dict[str, Any]
    host: dict[str, Any]
    evaluations: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    """Of supervisor.jsonl, without events."""
    events: list[dict[str, Any]]
    workers: dict[int, list[dict[str, Any]]]
    learners: list[dict[str, Any]]


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """What the folders hold. Raises UsageError for one that is no run."""
    read = [_read(path) for path in paths]
    names = _names([run.config | {"page": run.page} for run in read], [Path(path).name for path in paths])
    return [
        RunData(**vars(run) | {"name": name, "colour": COLOURS[i % len(COLOURS)]})
        for i, (run, name) in enumerate(zip(read, names, strict=True))
    ]


def _read(path: Path) -> RunData:
    folder = RunFolder.open(path)
    stored = read_stored(folder.config_file)
    config = stored.config
    supervisor = read_records(folder.supervisor_file)
    workers = {k: read_records(folder.worker_file(k)) for k in range(config["workers"])}
    learners = [row for file in sorted(folder.path.glob("learner*.jsonl")) for row in read_records(file)]
    evaluations = [row for row in read_records(folder.evaluator_file) if row.get("mean") is not None]
    return RunData(
        "", "", page_name(stored.page), config, stored.environment, _json(folder.status_file),
        _json(folder.host_file), evaluations,
        [row for row in supervisor if "event" not in row], [row for row in supervisor if "event" in row],
        workers, learners,
    )  # fmt: skip


def _json(file: Path) -> dict[str, Any]:
    """What a file holds; nothing if it cannot be read, as of a run that was killed at its start."""
    try:
        return dict(read_json(file))
    except (OSError, ValueError, TypeError):
        return {}


def _names(configs: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> list[str]:
    """The least that tells the runs apart: method, environment, seed, or else the folder's name."""
    for keys in (("page",), ("page", "env_id"), ("page", "seed"), ("page", "env_id", "seed")):
        names = [", ".join(f"seed {c[key]}" if key == "seed" else str(c[key]) for key in keys) for c in configs]
        if len(set(names)) == len(names):
            return names
    return list(folders) if len(set(folders)) == len(folders) else [f"{i + 1}: {n}" for i, n in enumerate(folders)]


def make_page(runs: Sequence[RunData], title: str = "") -> str:
    """The whole page."""
    environments = ", ".join(dict.fromkeys(str(run.config["env_id"]) for run in runs))
    title = title or f"{', '.join(dict.fromkeys(run.page for run in runs))} on {environments}"
    sections = [
        _section("", _cards(runs[0]) if len(runs) == 1 else _overview(runs)),
        _section("Learning", _legend(runs) + _curves(runs)),
        _section("Evaluations", _each(runs, _evaluations)),
        _section("Workers", _each(runs, _workers)),
        _section("How old what is learnt from was", _legend(runs) + _ages(runs)),
        _section("Where the time went", _each(runs, _times)),
        _section("Inside the update", _legend(runs) + _inside(runs)),
        _section("Faults", _each(runs, _faults)),
        _section("Settings", _settings(runs)),
        _section("Machine", _machines(runs)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>" + "".join(sections) + "<footer>Made by asyncrl report from the records of "
        f"{_counted(len(runs), 'run')}.</footer></main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    if not content:
        return ""
    return f"<section>{f'<h2>{escape(title)}</h2>' if title else ''}{content}</section>"


def _legend(runs: Sequence[RunData]) -> str:
    if len(runs) == 1:
        return ""
    return '<p class="legend">' + "".join(f"<span>{_swatch(run)}{escape(run.name)}</span>" for run in runs) + "</p>"


def _swatch(run: RunData) -> str:
    return f'<i class="swatch" style="background:{run.colour}"></i>'


def _each(runs: Sequence[RunData], part: Callable[[RunData], str]) -> str:
    """A part for each run that has something to say in it; of several beside each other, below their names."""
    said = [(run, part(run)) for run in runs]
    if len(runs) == 1:
        return said[0][1]
    told = [f"<div><h3>{_swatch(run)}{escape(run.name)}</h3>{text}</div>" for run, text in said if text]
    return f'<div class="runs">{"".join(told)}</div>' if told else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A table of cells that are HTML already; the first `texts` columns are words, the others numbers."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(f"<{tag}{'' if i < texts else ' class=n'}>{cell}</{tag}>" for i, cell in enumerate(row))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def _number(value: Any, form: str = ",.4g") -> str:
    return "-" if value is None else format(value, form)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def _best(run: RunData) -> float | None:
    return max((row["mean"] for row in run.evaluations), default=None)


def _cards(run: RunData) -> str:
    """The figures one looks for first, of a single run."""
    status, last = run.status, run.evaluations[-1]["mean"] if run.evaluations else None
    cards = [
        ("best evaluation", _number(_best(run), ".4g")),
        ("last evaluation", _number(last, ".4g")),
        ("steps", f"{status.get('steps', 0):,}"),
        ("time", _duration(status.get("seconds"))),
        ("steps per second", _number(_speed(run), ",.0f")),
        ("updates", f"{status.get('updates', 0):,}"),
        ("workers", str(run.config["workers"])),
        ("seed", str(run.config["seed"])),
    ]
    boxes = "".join(f"<div><b>{value}</b>{name}</div>" for name, value in cards)
    return f'<div class="cards">{boxes}</div><p>{_ended(run)}.</p><p class="note">{_description(run)}</p>'


def _ended(run: RunData) -> str:
    state, reason = run.status.get("state", "no status"), run.status.get("reason", "")
    return escape(f"{state}: {reason}" if reason else str(state))


def _description(run: RunData) -> str:
    return escape(str(run.environment.get("description", run.config["env_id"])))


def _speed(run: RunData) -> float | None:
    steps, seconds = run.status.get("steps"), run.status.get("seconds")
    return steps / seconds if steps and seconds else None


def _overview(runs: Sequence[RunData]) -> str:
    head = ["run", "method", "environment", "ended", "workers", "seed", "steps", "time", "steps/s", "updates"]
    rows = [
        [
            _swatch(run) + escape(run.name), escape(run.page), escape(str(run.config["env_id"])),
            f'<div class="words">{_ended(run)}</div>',
            str(run.config["workers"]), str(run.config["seed"]), f"{run.status.get('steps', 0):,}",
            _duration(run.status.get("seconds")), _number(_speed(run), ",.0f"), f"{run.status.get('updates', 0):,}",
            _number(_best(run)), _number(run.evaluations[-1]["mean"] if run.evaluations else None),
        ]
        for run in runs
    ]  # fmt: skip
    told = "".join(f'<p class="note">{text}</p>' for text in dict.fromkeys(map(_description, runs)))
    return _table([*head, "best", "last"], rows, texts=4) + told


def _chart(title: str, chart: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{chart}</figure>" if chart else ""


def _curves(runs: Sequence[RunData]) -> str:
    """Two charts for each environment: scores of different ones have nothing in common."""
    environments = list(dict.fromkeys(str(run.config["env_id"]) for run in runs))
    charts = ""
    for environment in environments:
        own = [run for run in runs if run.config["env_id"] == environment]
        where = f" in {environment}" if len(environments) > 1 else ""
        minutes = max((row["seconds"] for run in own for row in run.rows), default=0) >= 180
        unit, size = ("minutes", 60.0) if minutes else ("seconds", 1.0)
        steps = line_chart(_scores(own, "steps", 1.0), "agent steps, all workers", "score")
        charts += _chart(f"Score{where} over steps", steps)
        charts += _chart(f"Score{where} over time", line_chart(_scores(own, "seconds", size), unit, "score"))
    if not charts:
        return ""
    note = "Strong: mean raw return of an evaluation. Faint: of the newest 100 training episodes, exploration included."
    return f'<div class="charts">{charts}</div><p class="note">{note}</p>'


def _scores(runs: Sequence[RunData], key: str, size: float) -> list[Line]:
    """Scores in training below those of evaluations."""
    drawn = []
    for run in runs:
        rows = [row for row in run.rows if row.get("rollout/ep_rew_mean") is not None]
        drawn.append(Line([(row[key] / size, row["rollout/ep_rew_mean"]) for row in rows], run.colour, faint=True))
    for run in runs:
        points = sorted((row[key] / size, row["mean"]) for row in run.evaluations)
        drawn.append(Line(points, run.colour, run.name, marks=True))
    return drawn


def _evaluations(run: RunData) -> str:
    if not run.evaluations:
        return "<p>none yet</p>"
    head = ["steps", "time", "mean", "median", "sd", "least", "most", "episodes", "length"]
    best = _best(run)
    rows = [
        [
            f"{row['steps']:,}", _duration(row["seconds"]),
            f"<b>{row['mean']:.4g}</b> ★" if row["mean"] == best else f"{row['mean']:.4g}",
            _number(row.get("median")), _number(row.get("std"), ".3g"), f"{min(row['returns']):.4g}",
            f"{max(row['returns']):.4g}", str(len(row["returns"])), f"{statistics.fmean(row['lengths']):,.0f}",
        ]
        for row in run.evaluations
    ]  # fmt: skip
    said = [_counted(len(rows), "evaluation"), *dict.fromkeys(str(row.get("policy", "")) for row in run.evaluations)]
    if cut := sum(row.get("cut", 0) for row in run.evaluations):
        said.append(f"{_counted(cut, 'episode')} cut")
    return _details(", ".join(said), _table(head, rows, 0), len(rows) <= 12)


def _details(summary: str, content: str, opened: bool) -> str:
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{content}</details>"


def _workers(run: RunData) -> str:
    ready = {row["worker"]: row["exploration"] for own in run.workers.values() for row in own if "exploration" in row}
    all_scores = [score for own in run.workers.values() for row in own for score, _ in row.get("episodes", ())]
    low, high = min(all_scores, default=0.0), max(all_scores, default=0.0)
    rows = []
    for worker, own in run.workers.items():
        steps, episodes, mean = _recent(own)
        words = ", ".join(f"{name} {value:.3g}" for name, value in ready.get(worker, {}).items())
        told = escape(words.replace("_", " ")).replace(" ", "&nbsp;")
        rows.append([str(worker), told, _bar(mean, low, high), _number(mean), f"{episodes:,}", f"{steps:,}"])
    table = _table(["worker", "exploration", "", "return", "episodes", "steps"], rows, 3)
    note = f"Return: mean of its newest {EPISODES} training episodes; the bars go from the run's worst one to its best."
    return _details(_counted(len(rows), "worker"), f'{table}<p class="note">{note}</p>', len(rows) <= 16)


def _recent(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int, float | None]:
    """Steps and episodes of a worker, and the mean return of its newest episodes."""
    scores = [score for row in rows for score, _ in row.get("episodes", ())]
    steps = sum(row.get("worker_steps", 0) for row in rows)
    return steps, len(scores), statistics.fmean(scores[-EPISODES:]) if scores else None


def _bar(value: float | None, low: float, high: float) -> str:
    """A bar as long as a value is above `low`, in a cell that ends at `high`."""
    if value is None or high == low:
        return ""
    return f'<div class="bar"><i style="width:{max(1.0, 100 * (value - low) / (high - low)):.1f}%"></i></div>'


def _ages(runs: Sequence[RunData]) -> str:
    def counts(rows: Iterable[Mapping[str, Any]], key: str) -> dict[int, int]:
        total: Counter[int] = Counter()
        for row in rows:
            total.update({int(age): count for age, count in row.get(key, {}).items()})
        return dict(total)

    everyone = {run.name: [row for own in run.workers.values() for row in own] for run in runs}
    gradient = [(run.name, run.colour, counts(everyone[run.name], "staleness_counts")) for run in runs]
    rollout = [(run.name, run.colour, counts(run.learners, "rollout_age_counts")) for run in runs]
    samples = [Line(_series(run, "learner/sample_age"), run.colour, run.name) for run in runs]
    ratio = [Line(_series(run, "learner/replay_ratio"), run.colour, run.name) for run in runs]
    unit = "updates by others in between"
    charts = _chart("Staleness of workers' gradients", histogram(gradient, unit))
    charts += _chart("Age of rollouts when the learner took them", histogram(rollout, unit))
    charts += _chart("Age of what was drawn from the memory, in steps", line_chart(samples, "agent steps", "age"))
    charts += _chart("Updates per step", line_chart(ratio, "agent steps", "updates per step"))
    return f'<div class="charts">{charts}</div>' if charts else ""


def _series(run: RunData, key: str) -> list[Point]:
    return [(row["steps"], row[key]) for row in run.rows if row.get(key) is not None]


def _times(run: RunData) -> str:
    own = [row for rows in run.workers.values() for row in rows]
    bars = [_split("workers", [row for row in own if "worker_steps" in row])]
    learning = run.learners + [row for row in own if "worker_steps" not in row]
    bars.append(_split("learner" if len({row.get("worker") for row in run.learners}) < 2 else "learners", learning))
    return "".join(bars)


def _split(who: str, rows: Iterable[Mapping[str, Any]]) -> str:
    sums: Counter[str] = Counter()
    for row in rows:
        sums.update(row.get("time", {}))
    total = sum(sums.values())
    if total <= 0:
        return ""
    shares = sorted(((name, seconds / total) for name, seconds in sums.items()), key=lambda pair: -pair[1])
    bar = "".join(
        f'<i style="width:{100 * share:.2f}%;background:{PHASES.get(name, "#c4c8ce")}" '
        f'title="{escape(name)} {100 * share:.1f} %"></i>' for name, share in shares
    )  # fmt: skip
    words = "".join(
        f'<span><i class="swatch" style="background:{PHASES.get(name, "#c4c8ce")}"></i>'
        f"{escape(name.replace('_', ' '))} "
        f"{100 * share:.1f} %</span>" for name, share in shares if share >= 0.001
    )  # fmt: skip
    return f'<p class="who">{who}</p><div class="split">{bar}</div><p class="legend">{words}</p>'


INSIDE: dict[str, str] = {
    "train/policy_gradient_loss": "Policy loss", "train/value_loss": "Value loss", "train/q_mean": "Mean action value",
    "train/entropy": "Entropy in nats", "train/explained_variance": "Explained variance",
    "train/gradient_norm": "Norm of the gradient", "train/approx_kl": "Approximate KL",
    "train/clip_fraction": "Share of clipped steps", "train/learning_rate": "Learning rate",
    "time/fps": "Steps per second",
}  # fmt: skip


def _inside(runs: Sequence[RunData]) -> str:
    charts = "".join(
        _chart(
            title,
            line_chart([Line(_series(run, key), run.colour, run.name) for run in runs], "agent steps", title, True),
        )
        for key, title in INSIDE.items()
    )
    return f'<div class="charts small">{charts}</div>' if charts else ""


def _faults(run: RunData) -> str:
    told = [event for event in run.events if event["event"] in ("restarted", "gone", "lost", "unrecorded", "resumed")]
    worker_says = [
        {"event": row["event"], "who": row["worker"], "steps": row.get("steps")}
        for own in run.workers.values() for row in own if row.get("event") not in (None, "ready")
    ]  # fmt: skip
    kinds = ("dropped_gradients", "stale_gradients", "outlier_gradients")
    dropped = {key.replace("_", " "): run.status[key] for key in kinds if run.status.get(key)}
    words = [f"{count:,} {name}" for name, count in dropped.items()]
    lost = {name: count for name, count in (run.status.get("unrecorded") or {}).items() if count}
    words += [f"{count:,} {name.replace('_', ' ')} in no record" for name, count in lost.items()]
    rows = [
        [
            escape(str(event["event"])), escape(str(event.get("who", ""))), escape(str(event.get("cause", ""))),
            _number(event.get("steps"), ",d"), _duration(event.get("seconds")),
        ]
        for event in [*told, *worker_says]
    ]  # fmt: skip
    text = f"<p>{escape('; '.join(words))}</p>" if words else ""
    text += _table(["event", "who", "cause", "at step", "time"], rows, 3) if rows else ""
    if traceback := run.status.get("traceback"):
        text += f"<pre>{escape(str(traceback))}</pre>"
    return text or "<p>none: nobody was lost and no gradient dropped</p>"


def _settings(runs: Sequence[RunData]) -> str:
    keys = list(dict.fromkeys(key for run in runs for key in run.config))
    differing = [key for key in keys if len({repr(run.config.get(key)) for run in runs}) > 1]
    equal = [key for key in keys if key not in differing]
    head = ["setting", *(_swatch(run) + escape(run.name) for run in runs)]

    def rows(chosen: Sequence[str], value_of: Callable[[RunData, str], Any]) -> list[list[str]]:
        return [[f"<code>{escape(key)}</code>", *(_value(value_of(run, key)) for run in runs)] for key in chosen]

    text = ""
    if differing:
        text += "<h3>What differs</h3>" + _table(head, rows(differing, lambda run, key: run.config.get(key)), len(head))
    same = _table(
        ["setting", "value"], [[f"<code>{escape(key)}</code>", _value(runs[0].config[key])] for key in equal], 2
    )
    title = "all settings" if len(runs) == 1 else f"{len(equal)} settings that all runs have in common"
    return text + _details(title, same, opened=False)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return escape(" ".join(map(str, value))) or "-"
    return "-" if value in (None, "") else escape(str(value))


def _machines(runs: Sequence[RunData]) -> str:
    keys = [key for key in dict.fromkeys(key for run in runs for key in run.host) if key != "packages"]
    if not keys:
        return ""
    equal = all(run.host == runs[0].host for run in runs)
    shown = runs[:1] if equal else runs
    head = ["", *("all runs" if equal and len(runs) > 1 else _swatch(run) + escape(run.name) for run in shown)]
    rows = [[escape(key.replace("_", " ")), *(_fact(run.host.get(key)) for run in shown)] for key in keys]
    return _table(head, rows, len(head))


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return escape(", ".join(f"{name} {item}" for name, item in value.items() if item is not None)) or "-"
    return _value(value)


STYLE = """
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--text:#1d2127;--dim:#667080;--line:#e1e5ea;--bar:#8fb4e3}
@media(prefers-color-scheme:dark){:root{--back:#14161a;--card:#1d2026;--text:#e6e8eb;--dim:#98a1ae;--line:#31363f;--bar:#4a6fa5}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.5 system-ui,"Segoe UI",Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:20px 16px 40px}
h1{font-size:1.5rem;margin:.3em 0 .7em;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:0 0 .7em}
h3{font-size:.95rem;margin:1.2em 0 .4em}section>h3:first-of-type{margin-top:0}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px;margin:0 0 16px}
p{margin:.5em 0}.note,.who,footer{color:var(--dim);font-size:.85rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:10px;margin-bottom:14px}
.cards div{border:1px solid var(--line);border-radius:8px;padding:8px 12px;color:var(--dim);font-size:.8rem}
.cards b{display:block;font-size:1.25rem;color:var(--text);font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-size:.86rem;font-variant-numeric:tabular-nums}
th{color:var(--dim);font-weight:500;text-align:left;white-space:nowrap}
th,td{padding:4px 10px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
td:first-child{white-space:nowrap}.words{min-width:11em}.n{text-align:right;white-space:nowrap}
tr:last-child td{border-bottom:0}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:14px}
.small{grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr))}
.runs{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,500px),1fr));gap:18px 28px}
.runs>div{min-width:0}.runs h3{margin:0 0 .4em}
figure{margin:0;min-width:0}figcaption{font-size:.88rem;font-weight:600;margin:0 0 4px}
svg{width:100%;height:auto;display:block}
svg text{font:12.5px system-ui,sans-serif;fill:var(--dim)}
.grid{stroke:var(--line)}.axis{stroke:var(--dim)}
.line{fill:none;stroke-width:2.2;stroke-linejoin:round}.faint{fill:none;stroke-width:1.2;opacity:.4}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:.85rem}
.swatch{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
.split{display:flex;height:22px;border-radius:6px;overflow:hidden}
.bar{position:relative;width:110px;height:12px;margin-top:5px;background:var(--back);border-radius:3px}
.bar i{position:absolute;left:0;top:0;bottom:0;background:var(--bar);border-radius:3px}
summary{cursor:pointer;color:var(--dim);font-size:.88rem;margin:.3em 0}
pre{overflow-x:auto;font-size:.8rem;background:var(--back);padding:10px;border-radius:6px}code{font-size:.95em}
@media print{body{background:#fff}section{break-inside:avoid}}
"""
