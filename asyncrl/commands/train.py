"""The command behind every algorithm: `python -m asyncrl.a3c ...` and its like, and `asyncrl train ALGORITHM ...`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from asyncrl.algorithm import algorithm_of, load
from asyncrl.api.request import Request, ResolvedRun, request_for
from asyncrl.api.training import carry_out
from asyncrl.backends.outcome import Signals
from asyncrl.catalog import command_of
from asyncrl.commands.program import run_command, version
from asyncrl.config.commandline import asks_for_help, read_line, show_help, understood, value_of
from asyncrl.config.files import read_settings
from asyncrl.config.groups import BACKENDS
from asyncrl.config.policy import InStepConfig
from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import TOYS
from asyncrl.runtime.terminal import say
from asyncrl.runtime.threads import enforce_one_thread, keep_freed_memory, request_one_thread

if TYPE_CHECKING:
    from asyncrl.backends.collective.board import Board
    from asyncrl.backends.collective.launch import Launch

RARE = (
    "record_interval_seconds", "checkpoints_kept", "evaluation_cpu_share", "check_replicas", "entropy_schedule",
    "epsilon_schedule", "full_action_space",
)  # fmt: skip
"""Settings that few runs change, which help does not show."""


def main(algorithm: str, words: Sequence[str] | None = None) -> int:
    """Train as the command line `words` say, with the algorithm of module `algorithm`; returns the exit code."""
    words = sys.argv[1:] if words is None else words
    request_one_thread()
    enforce_one_thread()
    keep_freed_memory()
    return run_command(command_of(algorithm), lambda: train(algorithm, words))


def train(algorithm: str, words: Sequence[str]) -> int:
    """One run from the first check to the last line. Raises UsageError before anything is made or started."""
    if "--version" in words:
        say(version())
        return 0
    load(algorithm)
    if asks_for_help(words):
        help_with(algorithm, words)
    words = understood(words)
    launch = launch_of(words)
    if launch is None:
        return train_here(algorithm, words)
    from asyncrl.backends import collective
    from asyncrl.backends.collective import ranks
    from asyncrl.backends.collective.exchanges import leave

    if launch.rank != 0:
        return ranks.attend_launched(launch, algorithm, words)
    with collective.convened(launch, words) as meeting:
        code = train_here(algorithm, with_ranks(words, launch), meeting)
    leave(code)
    return code


def help_with(algorithm: str, words: Sequence[str]) -> NoReturn:
    """Print the help, with the defaults of the preset and environment that the words name, and end the program.

    With the algorithm's plain defaults if the words are not right.
    """
    default: RunConfig = algorithm_of(algorithm).Config()
    spaces = None
    with contextlib.suppress(UsageError):
        resolved = configure(algorithm, [word for word in words if not asks_for_help([word])])
        default, spaces = resolved.config, resolved.spaces
    hidden = meaningless(default, value_of("--backend", words) or default.backend, spaces)
    show_help(type(default), command_of(algorithm), default, hidden)


def meaningless(config: RunConfig, backend: str, spaces: Spaces | None) -> set[str]:
    """The settings that help leaves out: rare ones, and those without effect on this backend or environment."""
    hidden = {*RARE, *(name for name, backends in BACKENDS.items() if backend not in backends)}
    if backend != "collective" and not isinstance(config, InStepConfig):
        hidden.add("overlap")
    if not config.track:
        hidden.add("track_project")
    if spaces is not None:
        hidden |= set() if spaces.is_continuous else {"mean", "variance", "first_deviation"}
        hidden |= set() if spaces.kind == "atari" else {"noop_max", "life_loss", "full_action_space"}
        hidden |= set() if spaces.kind in ("atari", "screen") else {"image_size"}
        hidden |= {"frame_skip", "frame_stack", "sticky_actions"} if config.env_id in TOYS else set()
        masks = spaces.kind != "atari" and config.env_id not in TOYS and not spaces.is_continuous
        hidden |= set() if masks else {"action_masks"}
    return hidden


def launch_of(words: Sequence[str]) -> Launch | None:
    """As which of several ranks a launcher has started this command; None if it was started alone.

    Raises UsageError if the ranks cannot meet as the words say.
    """
    if given_early("--backend", words) != "collective":
        return None
    from asyncrl.backends.collective.launch import launched

    place = given_early("--init-method", words)
    launch = launched(os.environ, place)
    if place and launch is None:
        raise UsageError("--init-method is for ranks that torchrun, mpirun or srun starts; this command starts its own")
    return launch


def given_early(flag: str, words: Sequence[str]) -> str:
    """What the words, or the file that they name, say of a setting before the others are judged; "" if nothing."""
    if (value := value_of(flag, words)) or not (file := value_of("--config", words)):
        return value
    return str(read_settings(Path(file)).config.get(flag[2:].replace("-", "_"), ""))


def with_ranks(words: Sequence[str], launch: Launch) -> list[str]:
    """The words, with as many workers as there are ranks. Raises UsageError if they say something else."""
    size = str(launch.size)
    if (given := given_early("--workers", words)) not in ("", size):
        raise UsageError(f"{launch.by} has started {size} ranks, but --workers is {given}: leave it out")
    return [*words, "--workers", size]


def train_here(algorithm: str, words: Sequence[str], meeting: Board | None = None) -> int:
    """The same in the process that keeps the run: rank 0 of `meeting`, or the only one that was started."""
    request = request_in(algorithm, words)
    resolved = request.resolved()
    if request.has_nothing_to_do(resolved):
        say(f"{resolved.config.resume} is finished; there is nothing to do")
        return 0
    # From here on a signal is noted instead: there is a folder that has to say how the run ended.
    with Signals().caught() as signals:
        outcome = carry_out(resolved, signals, speaks="shell", meeting=meeting).outcome
    if outcome.traceback:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print_line(outcome.traceback, error=True)
    return outcome.exit_code


def request_in(algorithm: str, words: Sequence[str]) -> Request:
    """The run that a command line asks for. Raises UsageError."""
    line = read_line(algorithm_of(algorithm).Config, words, command_of(algorithm))
    return request_for(algorithm, line.config, line.settings, line.trust)


def configure(algorithm: str, words: Sequence[str]) -> ResolvedRun:
    """The run that a command line asks for, resolved. Raises UsageError."""
    return request_in(algorithm, words).resolved()
