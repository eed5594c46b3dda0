"""The command behind every page: `python -m asyncrl.a3c ...` and its siblings, and `asyncrl train PAGE ...`."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl import pages
from asyncrl.api.resume import AUTO, is_finished, is_resumed, newest
from asyncrl.api.training import Settled, carry_out, settle
from asyncrl.backends import collective
from asyncrl.backends.launch import Launch, launched
from asyncrl.backends.outcome import Signals
from asyncrl.commands.program import run_command
from asyncrl.config.commandline import parse, value_of
from asyncrl.config.groups import default_workers
from asyncrl.core.cores import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.experience.replay import Replay
from asyncrl.pages import command_of, short
from asyncrl.runtime.allocation import keep_freed_memory
from asyncrl.runtime.run import Run, load_page
from asyncrl.runtime.terminal import View, make_view, number, say
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread


def main(page: str, words: Sequence[str] | None = None) -> int:
    """Train as the command line `words` say, with the algorithm of module `page`; returns the exit code."""
    words = sys.argv[1:] if words is None else words
    request_one_thread()
    enforce_one_thread()
    keep_freed_memory()
    return run_command(command_of(page), lambda: train(page, words))


def train(page: str, words: Sequence[str]) -> int:
    """One run from the first check to the last line. Raises UsageError before anything is made or started."""
    pages.load(page)
    launch = launch_of(words)
    if launch is None:
        return train_here(page, words)
    if launch.rank != 0:
        return collective.attend_launched(launch, words)
    with collective.convened(launch, words) as meeting:
        code = train_here(page, with_ranks(words, launch), meeting)
    collective.leave(code, meeting.board.stuck)
    return code


def launch_of(words: Sequence[str]) -> Launch | None:
    """As which of several ranks a launcher has started this command; None if it was started alone."""
    if value_of("--backend", words) != "collective" or {"-h", "--help"} & set(words):
        return None
    return launched(os.environ, value_of("--init-method", words))


def with_ranks(words: Sequence[str], launch: Launch) -> list[str]:
    """The words, with as many workers as there are ranks. Raises UsageError if they say something else."""
    size = str(launch.size)
    if (given := value_of("--workers", words)) not in ("", size):
        raise UsageError(f"{launch.by} has started {size} ranks, and --workers says {given}: leave it away")
    return [*words, "--workers", size]


def train_here(page: str, words: Sequence[str], meeting: collective.Meeting | None = None) -> int:
    """The same in the process that keeps the run: rank 0 of `meeting`, or the only one that was started."""
    settled = configure(page, words)
    if value_of("--resume", words) == AUTO:
        if not is_resumed(settled.config) and (path := newest(page, settled.config)) is not None:
            settled = configure(page, [*words, "--resume", str(path)])
        if is_resumed(settled.config) and is_finished(Path(settled.config.resume)) and not settled.changes:
            say(f"{settled.config.resume} is finished; there is nothing to do")
            return 0

    def begin(run: Run) -> View:
        view = make_view(settled.config.quiet, f"{short(page)} on {settled.config.env_id}")
        say(f"run folder: {run.spec.folder.path}")
        for line in [settled.facts["description"], *introduction(run), *settled.changes]:
            view.say(line)
        return view

    # From here on a signal is noted instead: there is a folder that has to say how the run ended.
    with Signals().caught() as signals:
        ended = carry_out(settled, signals, begin, meeting)
    outcome, summary = ended.outcome, ended.summary
    if outcome.traceback:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(outcome.traceback, file=sys.stderr, flush=True)
    if summary.remark:
        say(summary.remark)
    say(f"{outcome.state}: {outcome.reason}; best evaluation {number(summary.best_score)}")
    say(f"run folder: {ended.run.spec.folder.path}")
    return outcome.exit_code


def configure(page: str, words: Sequence[str]) -> Settled:
    """What the command line says, settled. Raises UsageError."""
    cls = load_page(page).Config
    return settle(page, lambda default: parse(cls, words, command_of(page), default), value_of("--resume", words))


def chosen_by_preset(run: Run) -> str:
    """Where the preset set something else than the page's plain defaults and the command line left it at that."""
    module, config, spaces = load_page(run.spec.page), run.spec.config, run.spec.spaces
    plain = module.Config()
    chosen = {
        name: value
        for name, value in module.preset(config.preset, spaces).items()
        if value != getattr(plain, name) and value == getattr(config, name)
    }
    kind = "Atari" if spaces.kind == "atari" else f"a {spaces.kind}"
    kind += " and continuous actions" if spaces.is_continuous else ""
    said = ", ".join(f"{name} {_plainly(value)}" for name, value in chosen.items())
    return f"preset {config.preset} for {kind}: {said or 'the plain defaults'}"


def _plainly(value: Any) -> str:
    """The value of a setting, as it is typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(_plainly, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def introduction(run: Run) -> list[str]:
    """What a run says at its start, after the environment's description."""
    config = run.spec.config
    parameters = sum(math.prod(shape) for _, shape in run.spec.layout)
    lines = [
        f"{short(run.spec.page)}, preset {config.preset}: {parameters:,} parameters, "
        f"{config.workers} workers x {config.envs_per_worker} environments, t_max {config.t_max}, "
        f"{config.optimizer} {config.learning_rate:g}, {config.precision}, "
        + ("in step" if config.backend == "collective" else f"{config.update} updates, {config.statistics} statistics"),
    ]
    lines.append(chosen_by_preset(run))
    if config.backend == "local" and config.workers > default_workers():
        cores = len(usable_cores())
        lines.append(f"{config.workers} workers share {cores} cores: no faster than {default_workers()} would be")
    if isinstance(run.handles.experience, Replay):
        lines += remembered(run.handles.experience, run)
    if run.spec.part:
        lines.append(
            f"resumed at {run.handles.clock.steps:,} steps after {run.handles.clock.seconds:.0f} s; "
            + ("every worker goes on where it was" if run.spec.exact else "environments begin new episodes")
        )
    lines.append(f"watch it: tensorboard --logdir {run.spec.folder.path}")
    return lines


def remembered(memory: Replay, run: Run) -> list[str]:
    """What there is to say of a replay memory."""
    plan = memory.plan
    lines = [
        f"replay memory: {plan.capacity:,} steps take {plan.bytes / 2**20:,.0f} MiB; after {plan.warmup_steps:,} steps "
        f"{plan.ratio:g} updates per step, each of {plan.minibatch} transitions of {plan.shape.n_step} steps"
    ]
    if run.spec.part and not run.spec.exact and not memory.steps.put.any():
        lines.append(f"the memory is filled again: nothing is learnt before it holds {plan.warmup_steps:,} steps")
    return lines
