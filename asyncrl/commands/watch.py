"""`python -m asyncrl watch RUN`: a film of the agent with its policy and values, or a live view of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from asyncrl.api.films import Film, Filmed, check_file, frame_rate, with_pictures
from asyncrl.catalog import short
from asyncrl.commands.checkpoint import PlaySettings
from asyncrl.commands.program import run_with
from asyncrl.core.errors import UsageError
from asyncrl.core.output import fitted, print_line
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.monitor import Summary
from asyncrl.runtime.terminal import TerminalView, number
from asyncrl.storage.records import RecordReader
from asyncrl.storage.run_folder import DIED, GOING, RunFolder, read_status
from asyncrl.storage.stored import read_stored

MOST_EPISODES = 10
"""Most episodes in a film."""
POLL_SECONDS = 1.0
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Config(PlaySettings):
    """Film the agent of a run with its values and policy, or show a live view of an active run in the terminal."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: str = ""
    """File for the film: .gif, or .mp4 (needs the extra [video]). Empty: watch.gif; for an active run, the terminal."""
    skip: int = 0
    """Number of steps to skip at the start of the episode."""
    steps: int = 500
    """Maximum number of steps to show. The film ends with the episode; after a short episode it continues with more."""
    every: int = 1
    """Show only every n-th step; the game keeps its speed."""
    height: int = 400
    """Height of the picture in pixels."""

    def __post_init__(self) -> None:
        for name, least, most in (("skip", 0, 10**6), ("steps", 1, 10**5), ("every", 1, 1000), ("height", 160, 2160)):
            if not least <= getattr(self, name) <= most:
                raise UsageError(f"--{name} must be {least} to {most:_}, got {getattr(self, name)}")
        super().__post_init__()
        check_file("--out", self.out or "watch.gif")


def main(words: Sequence[str]) -> int:
    """Film or follow what the command line says; returns the exit code."""
    return run_with(Config, words, "asyncrl watch", watch)


def watch(config: Config) -> int:
    """Follow an active run unless a file for a film is named, film others; returns the exit code."""
    folder = RunFolder.open(config.run)
    if not config.out and read_status(folder.path).get("state") in GOING:
        return follow(folder)
    film(config, Path(config.out or "watch.gif"))
    return 0


def film(config: Config, file: Path) -> None:
    """Play an episode, or several short ones, and write the film of it. Raises UsageError."""
    shows = True

    def change(spec: EnvSpec) -> EnvSpec:
        nonlocal shows
        try:
            return with_pictures(spec)
        except UsageError as error:
            shows = False
            print_line(f"asyncrl watch: {error}; showing the agent's observations instead", error=True)
            return spec

    loaded = config.play(config.run, change=change)
    from asyncrl.api.drawing import Filming, ObservedAgent, look_of
    from asyncrl.api.playing import play_episodes

    agent = ObservedAgent(loaded)
    with Film(file, frame_rate(loaded.run.spec.environment) / config.every) as pictures:
        filming = Filming(pictures, agent, look_of(loaded, config.height), config.skip, config.steps, config.every)
        first = config.skip if shows else math.inf
        play_episodes(
            loaded, MOST_EPISODES, lambda inner: Filmed(inner, filming.look_on, first, MOST_EPISODES),
            agent, interrupted=lambda: filming.is_done, abreast=1,
        )  # fmt: skip
    if filming.steps <= config.skip:
        raise UsageError(f"the episode ended before step {config.skip}: give a smaller --skip")
    scores = " ".join(f"{score:g}" for score in filming.scores)
    if len(filming.scores) > 1:
        print_line(f"{len(filming.scores)} episodes, scores {scores}")
    else:
        print_line(f"steps {config.skip} to {filming.steps - 1} of an episode, score {scores}")
    print_line(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")


class Reader:
    """Follows the files of a run."""

    def __init__(self, folder: RunFolder) -> None:
        """Raises UsageError if the folder's settings cannot be read."""
        stored = read_stored(folder.config_file)
        self.title = f"{short(stored.algorithm)} on {stored.config.get('env_id')}"
        self.curves: dict[str, str] = {}
        """Rows of a panel: the scores so far."""
        self.state, self.reason = GOING[0], ""
        self._folder, self._total_steps = folder, stored.config["total_steps"]
        self._scores = {
            "returns so far": (RecordReader(folder.supervisor_file), "rollout/ep_rew_mean", list[float]()),
            "evaluations": (RecordReader(folder.evaluator_file), "mean", list[float]()),
        }

    def read(self) -> Summary:
        """The current state of the run."""
        for name, (reader, key, values) in self._scores.items():
            values += [row[key] for row in reader.new() if row.get(key) is not None]
            if values:
                self.curves[name] = f"{sparkline(values)}  {number(min(values))} to {number(max(values))}"
        status = read_status(self._folder.path)
        self.state, self.reason = status.get("state", DIED), status.get("reason", "")
        told = {field.name: status[field.name] for field in fields(Summary) if field.name in status}
        return Summary(**{"total_steps": self._total_steps} | told | {"ended": self.state not in GOING})


def sparkline(values: Sequence[float], width: int = 48) -> str:
    """A curve of block characters from the smallest value to the largest; adjacent values are averaged to `width`."""
    means = [part.mean() for part in np.array_split(values, min(width, len(values)))]
    low, high = min(means), max(means)
    return "".join(BLOCKS[round(7 * (mean - low) / (high - low))] if high > low else BLOCKS[0] for mean in means)


class Lines(TerminalView):
    """A view that ends with its reader, as after `| head -1`; a training goes on without one."""

    def say(self, line: str) -> None:
        """Print a line. Raises BrokenPipeError."""
        print_line(fitted(line))


def follow(folder: RunFolder) -> int:
    """Show the run until it has ended or died; returns the exit code."""
    reader = Reader(folder)
    view = Lines(f"{reader.title} (Ctrl-C closes this view; the run continues)", reader.curves)
    summary = reader.read()
    try:
        while not summary.ended:
            view.show(summary)
            time.sleep(POLL_SECONDS)
            summary = reader.read()
    finally:
        view.close(summary)
    print_line(f"{reader.state}: {reader.reason}; best evaluation {number(summary.best_score)}")
    return 1 if reader.state == DIED else 0
