"""Progress of a run for people: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncrl.core.output import clean, duration, fitted, print_line
from asyncrl.runtime.monitor import Summary, View

PLAIN_INTERVAL_SECONDS, COUNT_INTERVAL_SECONDS = 10.0, 5.0
SILENT_SECONDS = 20.0
"""A worker that has pushed nothing for so long gets a yellow lamp."""


@contextlib.contextmanager
def even_if_nobody_reads() -> Iterator[None]:
    """Go on without output if the reader (`| head -1`) or the terminal is gone."""
    try:
        yield
    except OSError:
        # Discard the rest, and what Python has buffered and would flush at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(line: str) -> None:
    """Print a line at once."""
    with even_if_nobody_reads():
        print_line(fitted(line))


def shown(text: str, style: str = "") -> Text:
    """Somebody's text as rich shows it: as it is, without control characters and without markup."""
    return Text(clean(text), style)


class Screen(Console):
    """rich's console; if nobody reads it any more it raises BrokenPipeError, where rich would end the program."""

    def on_broken_pipe(self) -> None:
        """What it does then."""
        raise BrokenPipeError


class TerminalView(View):
    """Shows a run as a panel that renews itself, or as a line every ten seconds in logs and pipes.

    A panel needs a terminal that can move its cursor (not TERM=dumb) and draw lamps.
    """

    def __init__(self, title: str, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """`more` are further rows of the panel, which may change."""
        console = Screen()
        # Variables such as FORCE_COLOR make rich take a pipe for a terminal.
        draws = sys.stdout is not None and sys.stdout.isatty() and console.is_terminal
        draws = draws and not console.is_dumb_terminal and not console.options.ascii_only
        self.live = Live(console=console, refresh_per_second=4) if draws else None
        """What renews the panel; None: there is none."""
        self._title, self._more = title, more
        self._said_at = time.monotonic()

    def say(self, line: str) -> None:
        """Print a line that stays, above the panel."""
        if self.live is not None:
            with even_if_nobody_reads():
                self.live.console.print(clean(fitted(line)), markup=False, highlight=False, soft_wrap=True)
        else:
            say(line)

    def count(self, ready: int, workers: int) -> None:
        """As the panel's only text; as lines only if it takes a while."""
        text = f"{ready} of {workers} workers are ready"
        if self.live is not None:
            self._draw(self.live, Text(text, style="dim"))
        elif ready < workers and self._is_time(COUNT_INTERVAL_SECONDS):
            self.say(text)

    def show(self, summary: Summary) -> None:
        """As the panel; as a line if the last one was long ago."""
        if self.live is not None:
            self._draw(self.live, panel(summary, self._title, self._more))
        elif self._is_time(PLAIN_INTERVAL_SECONDS):
            self.say(one_line(summary))

    def close(self, summary: Summary) -> None:
        """As the panel, which stays on the screen, or as a line."""
        if self.live is None:
            self.say(one_line(summary))
        else:
            self.show(summary)
            with even_if_nobody_reads():
                self.live.stop()

    def _draw(self, live: Live, what: Panel | Text) -> None:
        with even_if_nobody_reads():
            live.start()  # unless it has been started
            live.update(what)

    def _is_time(self, interval: float) -> bool:
        """Whether the last line is so long ago."""
        now = time.monotonic()
        if now - self._said_at < interval:
            return False
        self._said_at = now
        return True


def number(value: float | None) -> str:
    """A score as people read it; "-" for None."""
    return "-" if value is None else f"{value:.1f}"


def percentage(summary: Summary) -> float:
    """How much of the run is done, in percent; the workers' last rollouts may exceed its end."""
    return min(100.0, 100 * summary.steps / summary.total_steps)


def speed(summary: Summary) -> str:
    """Steps per second, and frames per second where they differ."""
    text = f"{summary.steps_per_second:,.0f} steps/s"
    if summary.frames_per_step > 1:
        text += f" ({summary.steps_per_second * summary.frames_per_step:,.0f} frames/s)"
    return text


def evaluated(summary: Summary) -> str:
    """Scores of the last and the best evaluation."""
    return f"{number(summary.evaluation)} (best {number(summary.best_score)})"


def staleness(summary: Summary) -> list[str]:
    """The mean age of gradients, where they have one, and how many were dropped so far, by reason."""
    counts = {
        "dropped": summary.dropped_gradients,
        "too old": summary.stale_gradients,
        "outliers": summary.outlier_gradients,
    }
    mean = [] if summary.staleness_mean is None else [f"staleness {summary.staleness_mean:.1f}"]
    return [*mean, *(f"{what} {count}" for what, count in counts.items() if count)]


def losses(summary: Summary) -> str:
    """What has been lost and replaced so far; empty if nothing."""
    counts = {
        "worker restarts": sum(summary.worker_restarts),
        "workers gone": len(summary.workers_gone),
        "evaluator restarts": summary.evaluator_restarts,
        "learner restarts": summary.learner_restarts,
        "updates lost": summary.updates_lost,
    }
    return ", ".join(f"{what} {count:,}" for what, count in counts.items() if count)


def one_line(summary: Summary) -> str:
    """A summary in one line."""
    parts = [
        f"{duration(summary.seconds)}  {summary.steps:,} steps ({percentage(summary):.0f} %)",
        speed(summary),
        "" if summary.ended else f"left {duration(summary.seconds_left)}",
        f"return {number(summary.score_mean)}",
        f"evaluation {evaluated(summary)}",
        *staleness(summary),
        losses(summary),
    ]
    return " | ".join(filter(None, parts))


def panel(summary: Summary, title: str = "asyncrl", more: Mapping[str, str] = MappingProxyType({})) -> Panel:
    """A summary as a rich renderable, with rows for what there is `more`."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    left = "" if summary.ended or summary.seconds_left is None else f", about {duration(summary.seconds_left)} left"
    updates = [f"{summary.updates:,}", f"learning rate {summary.learning_rate:.2e}", *staleness(summary)]
    grid.add_row("steps", f"{summary.steps:,} of {summary.total_steps:,}  ({percentage(summary):.1f} %)")
    grid.add_row("", ProgressBar(total=summary.total_steps, completed=summary.steps, width=40))
    grid.add_row("time", duration(summary.seconds) + left)
    grid.add_row("speed", speed(summary))
    grid.add_row("training return", f"{number(summary.score_mean)}  (mean of the last episodes, raw)")
    grid.add_row("evaluation", evaluated(summary))
    if summary.remark:
        grid.add_row("", shown(summary.remark, "yellow"))
    grid.add_row("updates", ", ".join(updates))
    if text := losses(summary):
        grid.add_row("losses", Text(text, style="yellow"))
    for name, text in more.items():
        grid.add_row(name, text)
    if not summary.ended:
        grid.add_row("workers", lamps(summary))
    return Panel(grid, title=shown(title), title_align="left", border_style="cyan", expand=False)


def lamps(summary: Summary) -> Text:
    """A lamp per worker: green while it pushes updates, yellow when it has been silent for a while, red when gone."""
    if summary.steps >= summary.total_steps:
        return Text("done; the last evaluation is running", style="dim")
    busy = [seconds < SILENT_SECONDS for seconds in summary.worker_silence]
    row = Text()
    for worker, lit in enumerate(busy):
        row.append("●", style="red" if worker in summary.workers_gone else "green" if lit else "yellow")
    return row.append(f"  {sum(busy)} of {len(busy)} busy", style="dim")
