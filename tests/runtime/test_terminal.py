"""What a person reads while a run is going."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from asyncrl.core.output import Typed, duration
from asyncrl.runtime import terminal
from asyncrl.runtime.monitor import Summary, View
from asyncrl.runtime.terminal import (
    Screen,
    TerminalView,
    number,
    one_line,
    panel,
    say,
    speed,
)

PONG = Summary(
    steps=1_234_567,
    total_steps=10_000_000,
    frames_per_step=4,
    seconds=3723.4,
    steps_per_second=1500.0,
    updates=240_000,
    score_mean=-20.25,
    evaluation=-19.0,
    best_score=-18.5,
    staleness_mean=14.96,
    learning_rate=6.1e-4,
    worker_silence=[0.5] * 15 + [60.0],
)


def drawn(summary: Summary, width: int = 80) -> list[str]:
    """The panel as lines of text."""
    output = io.StringIO()
    Console(file=output, width=width, force_terminal=False).print(panel(summary, "a3c on ALE/Pong-v5"))
    return output.getvalue().splitlines()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0:00"), (9.4, "0:09"), (59.6, "1:00"), (754, "12:34"), (3599.7, "1:00:00"), (90061, "25:01:01")],
)
def test_durations_are_written_as_on_a_clock(seconds: float | None, text: str) -> None:
    """Minutes and seconds, hours where there are any; rounding carries over."""
    assert duration(seconds) == text


def test_a_score_that_is_not_known_is_a_dash() -> None:
    """Not 0 and not None."""
    assert (number(None), number(0.0), number(-20.25)) == ("-", "0.0", "-20.2")


def test_frames_are_told_where_they_are_not_steps() -> None:
    """Four a step on Atari."""
    assert speed(PONG) == "1,500 steps/s (6,000 frames/s)"
    assert speed(Summary(steps_per_second=1500.0)) == "1,500 steps/s"


def test_a_pipe_is_no_terminal_whatever_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets lines; and who closes it ends no run, which `print` would tell as well."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")

    assert TerminalView("a run").live is None
    with pytest.raises(BrokenPipeError):
        Screen().on_broken_pipe()


def test_a_line_holds_what_matters() -> None:
    """For logs; what is not known yet is a dash."""
    assert one_line(PONG) == (
        "1:02:03  1,234,567 steps (12 %) | 1,500 steps/s (6,000 frames/s) | left 1:37:24 | return -20.2 | "
        "evaluation -19.0 (best -18.5) | staleness 15.0"
    )
    assert one_line(Summary(total_steps=100)) == (
        "0:00  0 steps (0 %) | 0 steps/s | left - | return - | evaluation - (best -) | staleness 0.0"
    )


def test_the_time_left_is_that_to_whatever_ends_the_run_first() -> None:
    """A limit of time in the line and in the panel."""
    limited = replace(PONG, seconds_to_limit=61.0)

    assert " | left 1:01 | " in one_line(limited)
    assert "about 1:01 left" in "\n".join(drawn(limited))


def test_dropped_gradients_are_told_when_there_are_any() -> None:
    """In the line and in the panel."""
    summary = replace(PONG, dropped_gradients=3)

    assert one_line(summary).endswith(" | dropped 3")
    assert "dropped 3" in "\n".join(drawn(summary))
    assert "dropped" not in "\n".join(drawn(PONG))


def test_gradients_that_were_too_old_or_outliers_are_told_apart() -> None:
    """In the line and in the panel."""
    summary = replace(PONG, dropped_gradients=1, stale_gradients=2, outlier_gradients=3)

    assert one_line(summary).endswith(" | dropped 1 | too old 2 | outliers 3")
    assert all(told in "\n".join(drawn(summary)) for told in ("dropped 1", "too old 2", "outliers 3"))


def test_losses_are_told_when_there_are_any() -> None:
    """In the line, and in the panel with a red lamp for who is gone."""
    summary = replace(
        PONG, worker_restarts=[2, 1, *[0] * 14], workers_gone=[3], evaluator_restarts=1, learner_restarts=2
    )
    told = "worker restarts 3, workers gone 1, evaluator restarts 1, learner restarts 2"

    assert one_line(summary).endswith(f" | {told}")
    assert told in " ".join(" ".join(line.strip("│ ").split()) for line in drawn(summary, 120))
    assert [str(span.style) for span in terminal.lamps(summary).spans][:5] == [*["green"] * 3, "red", "green"]
    assert "losses" not in "\n".join(drawn(PONG))


def test_the_last_line_leaves_out_what_is_left() -> None:
    """The last rollouts go beyond the end; that is still 100 %."""
    line = one_line(replace(PONG, steps=10_000_040, ended=True))

    assert "10,000,040 steps (100 %)" in line
    assert "left" not in line


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("summary", [PONG, Summary(total_steps=100), replace(PONG, ended=True)])
def test_the_panel_fits_the_terminal(summary: Summary, width: int) -> None:
    """A frame without gaps, no line broken."""
    lines = drawn(summary, width)

    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= width
    assert lines[0].startswith("╭─ a3c on ALE/Pong-v5 ─")
    assert len(lines) == (9 if summary.ended else 10)


def test_the_panel_says_how_the_run_is() -> None:
    """A row for each question."""
    rows = [" ".join(line.strip("│ ").split()) for line in drawn(PONG)[1:-1]]

    assert rows[0] == "steps 1,234,567 of 10,000,000 (12.3 %)"
    assert rows[2:] == [
        "time 1:02:03, about 1:37:24 left",
        "speed 1,500 steps/s (6,000 frames/s)",
        "training return -20.2 (mean of the last episodes, raw)",
        "evaluation -19.0 (best -18.5)",
        "updates 240,000, learning rate 6.10e-04, staleness 15.0",
        "workers ●●●●●●●●●●●●●●●● 15 of 16 busy",
    ]


def test_a_hundred_workers_have_their_lamps_on_several_lines() -> None:
    """Within 80 columns, none missing."""
    lines = drawn(replace(PONG, worker_silence=[1.0] * 100))

    assert max(map(len, lines)) <= 80
    assert "\n".join(lines).count("●") == 100


def test_an_unlit_lamp_differs_in_colour() -> None:
    """Yellow for the worker that made no step."""
    styles = [str(span.style) for span in terminal.lamps(PONG).spans]

    assert styles == ["green"] * 15 + ["yellow", "dim"]


def test_after_the_last_step_the_lamps_say_why_it_is_not_over() -> None:
    """Workers are gone; nobody should think that they hang."""
    assert terminal.lamps(replace(PONG, steps=10_000_000)).plain == "done; the last evaluation is running"


class FakeTerminal(io.StringIO):
    """Output that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_view_suits_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panel on a terminal, lines in a pipe or file, next to nothing under --quiet; no output is no crash."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", FakeTerminal())
    assert TerminalView("").live is not None
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert TerminalView("").live is None
    monkeypatch.setattr(sys, "stdout", None)
    assert TerminalView("").live is None


@pytest.mark.parametrize(("term", "encoding"), [("dumb", "utf-8"), ("unknown", "utf-8"), ("xterm", "latin-1")])
def test_a_terminal_that_cannot_draw_a_panel_gets_lines(
    term: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not move its cursor would show nothing until the end; one without lamps, their numbers."""

    class Plain(FakeTerminal):
        @property
        def encoding(self) -> str:
            return encoding

    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stdout", Plain())

    assert TerminalView("").live is None


def test_lines_come_every_ten_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """However often the view is renewed; the last state is always told."""
    now = 0.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    view = TerminalView("")
    for now in range(0, 26, 2):
        view.show(replace(PONG, seconds=now))
    view.close(replace(PONG, seconds=25.0, ended=True))

    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == ["0:10", "0:20", "0:25"]


def test_quiet_means_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Errors and the run folder are said by others."""
    view = View()
    view.say("hello")
    view.show(PONG)
    view.close(PONG)

    assert capsys.readouterr().out == ""


def test_the_live_view_leaves_its_last_panel_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines stand above it; a run too short for a look on the way shows it too."""
    for looks in (0, 1):
        screen = FakeTerminal()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")
        view = TerminalView("a3c on Catch")
        view.say("run folder: [here]")
        for _ in range(looks):
            view.show(PONG)
        view.close(replace(PONG, ended=True))

        text = screen.getvalue()
        assert "run folder: [here]\r\n" in text or "run folder: [here]\n" in text
        assert "a3c on Catch" in text
        assert "1,234,567 of 10,000,000" in text
        assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize("live", [True, False])
def test_prose_is_broken_between_words_and_what_is_typed_is_not(monkeypatch: pytest.MonkeyPatch, live: bool) -> None:
    """On a terminal; a log has each line as it is."""
    prose, typed = "some words " * 10, Typed("python -m asyncrl train " + "a3c " * 10)
    for width, screen in ((30, FakeTerminal()), (60, FakeTerminal()), (30, io.StringIO())):
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("TERM", "xterm" if live else "dumb")
        monkeypatch.setenv("COLUMNS", str(width))
        view = TerminalView("")
        assert (view.live is not None) == (live and isinstance(screen, FakeTerminal))
        for line in (prose, typed):
            view.say(line)
            say(line)

        lines = screen.getvalue().splitlines()
        broken = [line for line in lines if "python" not in line]
        assert [line.rstrip() for line in lines if "python" in line] == [typed.rstrip()] * 2
        assert " ".join(" ".join(broken).split()) == (prose * 2).rstrip()
        if isinstance(screen, FakeTerminal):
            assert max(map(len, broken)) <= width
            assert len(broken) == 2 * (4 if width == 30 else 2)
        else:
            assert len(broken) == 2


def test_output_that_nobody_reads_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line that fails sends all others, and what is still held, to nowhere."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        say("lost")
        say("lost as well")
    # Closing flushes, which would raise BrokenPipeError.


def test_a_terminal_that_goes_away_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window was closed under a run in the background: what the view does from then on is for nobody."""
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal_left:
        monkeypatch.setattr(sys, "stdout", terminal_left)
        monkeypatch.setenv("TERM", "xterm")
        view = TerminalView("a3c on Catch")
        view.show(PONG)
        os.close(master)

        view.say("worker-01 was killed")
        view.show(PONG)
        view.close(replace(PONG, ended=True))
        say("run folder")


def test_other_mistakes_in_saying_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed file is a mistake in the program, not a reader who left."""
    closed: Any = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)

    with pytest.raises(ValueError, match="closed"):
        say("never")


def test_workers_are_counted_until_all_are_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line every five seconds in a log; nothing if they are ready before."""
    times = iter([0.0, 1.0, 6.0, 7.0, 12.0, 18.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(times))
    view = TerminalView("")
    for ready in (0, 2, 3, 3, 4):
        view.count(ready, 4)

    assert capsys.readouterr().out == "2 of 4 workers are ready\n3 of 4 workers are ready\n"
