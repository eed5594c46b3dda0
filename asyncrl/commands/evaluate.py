"""`python -m asyncrl evaluate RUN`: play episodes with what a run has learnt."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from numpy.typing import NDArray

from asyncrl.api.playing import Result, load_run, play_run
from asyncrl.commands.program import run_command
from asyncrl.config.commandline import parse
from asyncrl.core.errors import UsageError
from asyncrl.envs.spec import BadEnvironment, Environment, EnvSpec
from asyncrl.runtime.evaluator import cut_in_words
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread

FILMS = (".mp4", ".mkv", ".mov")
"""Files that can hold what is filmed."""
LEAST_HEIGHT = 400
"""Smaller pictures are magnified in a film, by a whole number."""


@dataclass(frozen=True)
class Config:
    """Play episodes with what a run has learnt, in the run's own environment; the run's folder is only read."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    checkpoint: str = "best"
    """best, newest, or the name of one, such as step_000000500000."""
    episodes: int = 10
    """Whole episodes to play."""
    greedy: bool = False
    """Take the best action. Without this or --sampled: as the run's own evaluations."""
    sampled: bool = False
    """Draw actions as the run's workers did, as far as its evaluator can."""
    seed: int = 0
    """Seed of environments and actions: the same one gives the same episodes, never those of a run's evaluations."""
    video: str = ""
    """File (.mp4) for a film of the first episode; needs imageio-ffmpeg, the extra [video]."""
    json: bool = False
    """Print the results as JSON."""

    def __post_init__(self) -> None:
        if not 1 <= self.episodes <= 1_000_000:
            raise UsageError(f"--episodes must be 1 to 1_000_000, got {self.episodes}")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed must lie between 0 and 2^63, got {self.seed}")
        if self.greedy and self.sampled:
            raise UsageError("--greedy and --sampled exclude each other: give one of them")


def main(words: Sequence[str] | None = None) -> int:
    """Play what the command line says; returns the exit code."""
    words = sys.argv[1:] if words is None else words
    request_one_thread()
    enforce_one_thread()
    program = "asyncrl evaluate"

    def evaluate() -> int:
        config = parse(Config, words, program)
        writer = find_writer() if config.video else None
        result = play_what(config, writer)
        show(result, config)
        if config.video:
            check_film(config.video, result.lengths[0] + 1, writer)
        return 0

    return run_command(program, evaluate)


def play_what(config: Config, writer: Any = None) -> Result:
    """What the command line says. Raises UsageError when the run, its checkpoint or its environment cannot be used."""
    film = partial(to_be_filmed, file=Path(config.video)) if config.video else lambda spec: spec
    greedy = config.greedy if config.greedy or config.sampled else None
    loaded = load_run(config.run, config.checkpoint, config.seed, greedy, film)
    rate = frame_rate(loaded.run.spec.environment)
    return play_run(loaded, config.episodes, lambda first: filming(first, config.video, writer, rate))


def to_be_filmed(spec: EnvSpec, file: Path) -> EnvSpec:
    """The environment, asked for pictures. Raises UsageError if it has none, or the film no folder or other name."""
    if file.suffix.lower() not in FILMS:
        raise UsageError(f"--video {file}: the name of a film ends in {', '.join(FILMS[:-1])} or {FILMS[-1]}")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--video {file}: there is no such folder")
    draw_without_a_window()
    environment = spec.make(0, evaluation=True)
    environment.close()
    if not hasattr(environment, "picture"):
        raise UsageError(f"{spec.env_id} has no picture to film: leave out --video")
    if spec.is_atari:  # the emulator always has its screen
        return spec
    spec = dataclasses.replace(spec, env_kwargs=(*spec.env_kwargs, ("render_mode", "rgb_array")))
    environment = spec.make(0, evaluation=True)
    try:
        environment.reset()
        environment.picture()  # type: ignore[attr-defined]
    except BadEnvironment as error:
        raise UsageError(str(error)) from error
    finally:
        environment.close()
    return spec


def draw_without_a_window() -> None:
    """Ask libraries that look for a window system when they are loaded to draw into memory, which is all we need."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")


def show(result: Result, config: Config) -> None:
    """Print the result as text, or as JSON."""
    summary = result.summary()
    if config.json:
        print(json.dumps(dataclasses.asdict(result) | summary, indent=2))
        return
    print(f"{result.page} on {result.env_id}, {result.checkpoint} checkpoint, trained for {result.steps:,} steps")
    print(f"{len(result.returns)} episodes, {result.policy} policy, seed {result.seed}")
    print("returns: " + " ".join(f"{score:g}" for score in result.returns))
    print("lengths: " + " ".join(str(length) for length in result.lengths))
    print(
        f"mean {summary['mean']:.2f}, standard deviation {summary['std']:.2f}, min {summary['min']:g}, "
        f"max {summary['max']:g}, mean length {summary['mean_length']:.1f} steps"
    )
    if result.cut:
        print(cut_in_words(result.cut, result.lengths))
    if config.video:
        print(config.video)


class Film:
    """A film that is begun by its first picture, whose size is that of all others."""

    def __init__(self, file: str, writer: Any, rate: float) -> None:
        """`rate` is in pictures per second."""
        self._file, self._writer, self._rate = file, writer, rate
        self._frames: Any = None

    def add(self, picture: NDArray[np.uint8]) -> None:
        """Append a picture `[height, width, 3]`."""
        large = magnified(picture)
        if self._frames is None:
            height, width, _ = large.shape
            self._frames = self._writer.write_frames(
                self._file, (width, height), fps=self._rate, macro_block_size=2, ffmpeg_log_level="error"
            )
            self._frames.send(None)
        try:
            self._frames.send(large)
        except OSError:  # ffmpeg has gone, and has said why
            raise UsageError(f"--video {self._file}: ffmpeg cannot write it") from None

    def close(self) -> None:
        """Finish the file."""
        if self._frames is not None:
            self._frames.close()


class Filmed:
    """An environment whose first episode is filmed, a picture per step."""

    def __init__(self, environment: Environment, film: Film) -> None:
        self._environment, self._film = environment, film
        self._episodes = 0

    def reset(self) -> NDArray[Any]:
        """As the environment does."""
        self._episodes += 1
        observation = self._environment.reset()
        self._shoot()
        return observation

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """As the environment does."""
        result = self._environment.step(action)
        self._shoot()
        return result

    def close(self) -> None:
        """As the environment does."""
        self._environment.close()

    def _shoot(self) -> None:
        if self._episodes == 1:
            self._film.add(self._environment.picture())  # type: ignore[attr-defined]


def magnified(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture [height, width, 3] at least LEAST_HEIGHT pixels high, each pixel a square of them."""
    times = -(-LEAST_HEIGHT // len(picture))
    return np.ascontiguousarray(picture.repeat(times, 0).repeat(times, 1))


def find_writer() -> Any:
    """What writes films. Raises UsageError when it is not installed."""
    try:
        import imageio_ffmpeg
    except ImportError:
        raise UsageError("--video needs imageio-ffmpeg: pip install imageio-ffmpeg (the extra [video])") from None
    return imageio_ffmpeg


def check_film(file: str, pictures: int, writer: Any) -> None:
    """Raise UsageError unless the film has all its pictures: ffmpeg tells a full disk to nobody but the terminal."""
    try:
        written, _ = writer.count_frames_and_secs(file)
    except (OSError, RuntimeError):
        written = 0
    if written < pictures:
        raise UsageError(f"--video {file}: {written} of {pictures} pictures could be written; is the disk full?")


def frame_rate(spec: EnvSpec) -> float:
    """Pictures per second at which a film has the game's own speed: 60 frames of Atari, elsewhere 30."""
    return (60 if spec.is_atari else 30) / spec.frames_per_step


@contextmanager
def filming(environment: Environment, file: str, writer: Any, rate: float) -> Iterator[Environment]:
    """The environment, filmed into `file` if there is one."""
    if not file:
        yield environment
        return
    film = Film(file, writer, rate)
    try:
        yield Filmed(environment, film)
    finally:
        film.close()


if __name__ == "__main__":
    raise SystemExit(main())
