"""A live view of an active run, from its files alone: the run itself is not involved."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from asyncrl.catalog import short
from asyncrl.core.output import print_line
from asyncrl.runtime.monitor import Summary
from asyncrl.runtime.terminal import PlainView, number, panel
from asyncrl.storage.records import RecordReader
from asyncrl.storage.run_folder import DIED, GOING, RunFolder, read_status
from asyncrl.storage.stored import read_stored

POLL_SECONDS = 1.0
FROM_STATUS = (
    "steps", "seconds", "steps_per_second", "updates", "updates_lost", "dropped_gradients", "stale_gradients",
    "outlier_gradients", "worker_restarts", "workers_gone", "evaluator_restarts", "learner_restarts",
)  # fmt: skip
"""What a summary has under the same name as status.json."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 48


def is_going_on(folder: RunFolder) -> bool:
    """Whether a process is working at the run."""
    return read_status(folder.path).get("state") in GOING


def silence(file: Path, now: float) -> float:
    """Seconds since something was written to a file; infinite if there is none."""
    try:
        return now - file.stat().st_mtime
    except OSError:
        return float("inf")


class Reader:
    """Follows the files of a run."""

    def __init__(self, folder: RunFolder) -> None:
        """Raises UsageError if the folder's settings cannot be read."""
        self.folder = folder
        stored = read_stored(folder.config_file)
        self.config = stored.config
        self.title = f"{short(stored.algorithm)} on {self.config.get('env_id')}"
        self._supervisor = RecordReader(folder.supervisor_file)
        self._evaluator = RecordReader(folder.evaluator_file)
        self._row: dict[str, Any] = {}
        self.returns: list[float] = []
        """Mean return of the newest training episodes, row by row."""
        self.evaluations: list[float] = []
        self.state, self.reason = "starting", ""

    def read(self, now: float) -> Summary:
        """The current state of the run."""
        status = read_status(self.folder.path)
        for row in self._supervisor.new():
            if "event" not in row:
                self._row = row
                if row.get("rollout/ep_rew_mean") is not None:
                    self.returns.append(row["rollout/ep_rew_mean"])
        self.evaluations += [row["mean"] for row in self._evaluator.new() if row.get("mean") is not None]
        self.state, self.reason = status.get("state", DIED), status.get("reason", "")
        steps, row = status.get("steps", 0), self._row
        return Summary(
            **{name: status[name] for name in FROM_STATUS if name in status},
            total_steps=max(1, status.get("total_steps", self.config["total_steps"])),
            frames_per_step=max(1, round(status.get("frames", steps) / steps)) if steps else 1,
            score_mean=row.get("rollout/ep_rew_mean"),
            evaluation=self.evaluations[-1] if self.evaluations else None,
            best_score=max(self.evaluations, default=None),
            staleness_mean=row.get("async/staleness_mean") or 0.0,
            learning_rate=row.get("train/learning_rate") or 0.0,
            worker_silence=[silence(self.folder.worker_file(k), now) for k in range(self.config["workers"])],
            ended=self.state not in GOING,
        )


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """A curve of block characters from the smallest value to the largest; adjacent values are averaged to `width`."""
    if not values:
        return ""
    edges = [len(values) * i // width for i in range(width + 1)] if len(values) > width else range(len(values) + 1)
    parts = [values[a:b] for a, b in zip(edges, list(edges)[1:], strict=False)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(top * (mean - low) / (high - low))] if high > low else _BLOCKS[0] for mean in means)


def view(reader: Reader, summary: Summary) -> Group:
    """The panel of the run's own command, with the curves so far below it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(style="dim", no_wrap=True)
    for name, values in (("training return", reader.returns), ("evaluations", reader.evaluations)):
        if values:
            grid.add_row(name, sparkline(values), f"{number(min(values))} to {number(max(values))}")
    hint = "; Ctrl-C leaves, the run goes on" if reader.state in GOING else ""
    title = f"{reader.title} ({reader.state}{hint})"
    parts: list[Any] = [panel(summary, title)]
    if reader.returns or reader.evaluations:
        parts.append(Panel(grid, title="so far", title_align="left", border_style="dim", expand=False))
    return Group(*parts)


def follow(folder: RunFolder) -> int:
    """Show the run until it has ended or died; returns the exit code."""
    reader = Reader(folder)
    console = Console()
    plain = PlainView()
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not console.is_dumb_terminal else None
    if live is not None:
        live.start()
    try:
        while True:
            summary = reader.read(time.time())
            if live is None:
                plain.show(summary)
            else:
                live.update(view(reader, summary), refresh=True)
            if reader.state not in GOING:
                break
            time.sleep(POLL_SECONDS)
    finally:
        if live is not None:
            live.stop()
    if live is None:
        plain.close(summary)
    print_line(f"{reader.state}: {reader.reason}; best evaluation {number(summary.best_score)}")
    return 1 if reader.state == DIED else 0
