"""`python -m asyncrl watch RUN`: a film of the agent and what it thinks, or a live view of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from asyncrl.commands.evaluate import Film, check_film, find_writer, frame_rate, with_pictures
from asyncrl.commands.live import follow, is_going_on
from asyncrl.commands.program import permission_of, run_command
from asyncrl.config.commandline import parse
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.envs.pictures import resized
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread
from asyncrl.storage.run_folder import RunFolder

FILMS = (".gif", ".mp4", ".mkv", ".mov")


@dataclass(frozen=True)
class Config:
    """Film the agent of a run and what it thinks, or show a live view of an active run in the terminal."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    out: str = ""
    """File for the film: .gif, or .mp4 with the extra [video]. Empty: watch.gif, or the terminal for an active run."""
    checkpoint: str = "best"
    """best, newest, or the name of one, such as step_000000500000."""
    greedy: bool = False
    """Take the best action. Without this or --sampled: as the run's own evaluations."""
    sampled: bool = False
    """Draw actions as the run's workers did, as far as its evaluator can."""
    seed: int = 0
    """Seed of environment and actions: the same one gives the same film."""
    skip: int = 0
    """Steps to leave out at the beginning of the episode."""
    steps: int = 500
    """Most steps to show; the end of the episode ends the film in any case."""
    every: int = 1
    """Show only every n-th step, at the same speed of the game."""
    height: int = 400
    """Height of the picture in pixels."""
    env_id: str = ""
    """The run's environment, where it has another name here."""
    trust: bool = False
    """Import whatever the folder names, whoever made it."""

    def __post_init__(self) -> None:
        for name, least, most in (("skip", 0, 10**6), ("steps", 1, 10**5), ("every", 1, 1000), ("height", 160, 2160)):
            if not least <= getattr(self, name) <= most:
                raise UsageError(f"--{name} must be {least} to {most:_}, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed must lie between 0 and 2^63, got {self.seed}")
        if self.greedy and self.sampled:
            raise UsageError("--greedy and --sampled exclude each other: give one of them")
        if self.out and Path(self.out).suffix.lower() not in FILMS:
            raise UsageError(f"--out {self.out}: the name of a film ends in {', '.join(FILMS[:-1])} or {FILMS[-1]}")
        if not Path(self.out).absolute().parent.is_dir():
            raise UsageError(f"--out {self.out}: there is no such folder")


def main(words: Sequence[str] | None = None) -> int:
    """Film or follow what the command line says; returns the exit code."""
    words = sys.argv[1:] if words is None else words
    request_one_thread()
    enforce_one_thread()
    program = "asyncrl watch"

    def watch() -> int:
        config = parse(Config, words, program)
        folder = RunFolder.open(config.run)
        if not config.out and is_going_on(folder):
            return follow(folder)
        film(config, Path(config.out or "watch.gif"))
        return 0

    return run_command(program, watch)


def film(config: Config, file: Path) -> None:
    """Play an episode and write the film of it. Raises UsageError."""
    from asyncrl.api.playing import load_run
    from asyncrl.api.watching import action_names, watch
    from asyncrl.pages import short
    from asyncrl.plots.thoughts import Look, Sight, draw, save_gif

    writer = None if file.suffix.lower() == ".gif" else find_writer()
    shows = True

    def change(spec: EnvSpec) -> EnvSpec:
        nonlocal shows
        try:
            return with_pictures(spec)
        except UsageError as error:
            shows = False
            print_line(f"asyncrl watch: {error}; shown is what the agent sees", error=True)
            return spec

    greedy = config.greedy if config.greedy or config.sampled else None
    permission = permission_of(config.env_id, config.trust)
    loaded = load_run(config.run, config.checkpoint, config.seed, greedy, change, permission)
    spec, spaces = loaded.run.spec.environment, loaded.run.spec.spaces
    title = f"{short(loaded.run.spec.page)} on {spec.env_id}"
    look = Look(title, action_names(loaded), spaces.action_low, spaces.action_high, config.height // 2 * 2)
    moments = list(watch(loaded, config.steps, config.skip, shows))
    if not moments:
        raise UsageError(f"the episode has ended before step {config.skip}: give a smaller --skip")
    values = [float(moment.thought["value"]) for moment in moments if "value" in moment.thought]
    rewards = [moment.reward for moment in moments]

    def drawn(i: int) -> Any:
        moment = moments[i]
        picture = None if moment.picture is None else moment.picture.unpacked()
        if picture is not None and moments[0].picture is not None and picture.shape != moments[0].picture.shape:
            picture = resized(picture, moments[0].picture.shape)
        begin = max(0, i - 1000)
        sight = Sight(
            picture, moment.observation, moment.thought, moment.action, moment.score, moment.step,
            values[begin : i + 1], [0.0, *rewards][begin : i + 1] if values else [],
        )  # fmt: skip
        return draw(sight, look)

    shown = range(0, len(moments), config.every)
    rate = frame_rate(spec) / config.every
    try:
        if writer is None:
            save_gif(shown, drawn, file, rate)
        else:
            save_video(map(drawn, shown), file, writer, rate)
            check_film(str(file), len(shown), writer)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error}") from None
    score = moments[-1].score + moments[-1].reward
    print_line(f"steps {config.skip} to {moments[-1].step} of an episode, score {score:g}")
    print_line(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")


def save_video(pictures: Iterator[Any], file: Path, writer: Any, rate: float) -> None:
    """Write pictures as a film."""
    made = Film(str(file), writer, rate)
    try:
        for picture in pictures:
            made.add(np.array(picture))
    finally:
        made.close()


if __name__ == "__main__":
    raise SystemExit(main())
