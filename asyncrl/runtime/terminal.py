"""Progress of a run for people: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncrl.core.output import clean, print_line
from asyncrl.runtime.monitor import Summary

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
        print_line(line)


def shown(text: str, style: str = "") -> Text:
    """Somebody's text as rich shows it: as it is, without control characters and without markup."""
    return Text(clean(text), style)


class View:
    """Shows summaries of a run. This one shows nothing: --quiet."""

    def say(self, line: str) -> None:
        """Print a line that stays."""

    def count(self, ready: int, workers: int) -> None:
        """Show how many workers are ready, before the run begins."""

    def show(self, summary: Summary) -> None:
        """Show the present state."""

    def close(self, summary: Summary) -> None:
        """Show the last state and leave the terminal as it was."""


class PlainView(View):
    """A line every ten seconds, for logs and pipes."""

    def __init__(self) -> None:
        self._shown_at = time.monotonic()
        self._counted_at = time.monotonic()

    def say(self, line: str) -> None:
        """Print the line."""
        say(line)

    def count(self, ready: int, workers: int) -> None:
        """Print a line if some are not ready after a while, and again after a while."""
        now = time.monotonic()
        if ready < workers and now - self._counted_at >= COUNT_INTERVAL_SECONDS:
            self._counted_at = now
            self.say(counted(ready, workers))

    def show(self, summary: Summary) -> None:
        """Print a line if the last is old enough."""
        now = time.monotonic()
        if now - self._shown_at >= PLAIN_INTERVAL_SECONDS:
            self._shown_at = now
            self.say(one_line(summary))

    def close(self, summary: Summary) -> None:
        """Print the last state."""
        self.say(one_line(summary))


class LiveView(View):
    """A panel that renews itself: progress, speed, scores, staleness and a lamp per worker."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=4, transient=False)
        self._running = False

    def say(self, line: str) -> None:
        """Print the line above the panel."""
        with even_if_nobody_reads():
            self._console.print(clean(line), markup=False, highlight=False, soft_wrap=True)

    def count(self, ready: int, workers: int) -> None:
        """Count in the place of the panel."""
        self._draw(Text(counted(ready, workers), style="dim"))

    def show(self, summary: Summary) -> None:
        """Renew the panel."""
        self._draw(panel(summary, self._title))

    def _draw(self, what: Panel | Text) -> None:
        with even_if_nobody_reads():
            if not self._running:
                self._running = True
                self._live.start()
            self._live.update(what)

    def close(self, summary: Summary) -> None:
        """Leave the last panel on the screen."""
        self.show(summary)
        with even_if_nobody_reads():
            self._running = False
            self._live.stop()


def make_view(quiet: bool, title: str) -> View:
    """The view for this output: a panel needs a terminal that can move its cursor (not TERM=dumb) and draw lamps."""
    if quiet:
        return View()
    console = Console()
    draws = console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only
    return LiveView(title) if draws else PlainView()


def counted(ready: int, workers: int) -> str:
    """How many workers are ready."""
    return f"{ready} of {workers} workers are ready"


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds as people write them; "-" for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


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


def one_line(summary: Summary) -> str:
    """A summary in one line."""
    parts = [
        f"{duration(summary.seconds)}  {summary.steps:,} steps ({percentage(summary):.0f} %)",
        speed(summary),
        *([] if summary.ended else [f"left {duration(summary.seconds_left)}"]),
        f"return {number(summary.score_mean)}",
        f"evaluation {number(summary.evaluation)} (best {number(summary.best_score)}){next_evaluation(summary)}",
        *staleness(summary),
    ]
    parts += dropped(summary)
    if text := losses(summary):
        parts.append(text)
    return " | ".join(parts)


def staleness(summary: Summary) -> list[str]:
    """The mean age of gradients; empty where they have none."""
    return [] if summary.staleness_mean is None else [f"staleness {summary.staleness_mean:.1f}"]


def next_evaluation(summary: Summary) -> str:
    """When the next evaluation is due, to follow the last one's score; empty when there will be none."""
    if summary.ended or summary.evaluation_due is None:
        return ""
    if summary.evaluation_due >= summary.total_steps:
        return ", next at the end"
    left = summary.evaluation_due - summary.steps
    if left <= 0:
        return ", next now"
    return f", next in {duration(left / summary.steps_per_second)}" if summary.steps_per_second > 0 else ""


def dropped(summary: Summary) -> list[str]:
    """How many gradients were dropped so far, by reason; empty if none was."""
    counts = {
        "dropped": summary.dropped_gradients,
        "too old": summary.stale_gradients,
        "outliers": summary.outlier_gradients,
    }
    return [f"{what} {count}" for what, count in counts.items() if count]


def losses(summary: Summary) -> str:
    """What has been lost and replaced so far; empty if nothing."""
    counts = {
        "worker restarts": sum(summary.worker_restarts),
        "workers gone": len(summary.workers_gone),
        "evaluator restarts": summary.evaluator_restarts,
        "updates lost": summary.updates_lost,
    }
    return ", ".join(f"{what} {count:,}" for what, count in counts.items() if count)


def panel(summary: Summary, title: str = "asyncrl") -> Panel:
    """A summary as a rich renderable."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("steps", f"{summary.steps:,} of {summary.total_steps:,}  ({percentage(summary):.1f} %)")
    grid.add_row("", ProgressBar(total=summary.total_steps, completed=summary.steps, width=40))
    left = "" if summary.ended or summary.seconds_left is None else f", about {duration(summary.seconds_left)} left"
    grid.add_row("time", duration(summary.seconds) + left)
    grid.add_row("speed", speed(summary))
    grid.add_row("training return", f"{number(summary.score_mean)}  (mean of the last episodes, raw)")
    scores = f"{number(summary.evaluation)}  (best {number(summary.best_score)})"
    grid.add_row("evaluation", scores + next_evaluation(summary))
    if summary.remark:
        grid.add_row("", shown(summary.remark, "yellow"))
    grid.add_row(
        "updates",
        ", ".join(
            [
                f"{summary.updates:,}",
                *staleness(summary),
                f"learning rate {summary.learning_rate:.2e}",
                *dropped(summary),
            ]
        ),
    )
    if text := losses(summary):
        grid.add_row("losses", Text(text, style="yellow"))
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
