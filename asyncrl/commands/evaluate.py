"""`python -m asyncrl evaluate RUN...`: play episodes with what runs have learnt."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from asyncrl.api.playing import Result, load_run, play_run
from asyncrl.commands.program import permission_of, prints_aside, run_command
from asyncrl.config.commandline import parse
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.core.statistics import Estimate, mean_of
from asyncrl.envs.pictures import resized
from asyncrl.envs.spec import NOOP_MAX, BadEnvironment, Environment, EnvSpec
from asyncrl.envs.wrapper import Wrapper
from asyncrl.runtime.evaluator import cut_in_words
from asyncrl.runtime.terminal import shown
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread
from asyncrl.storage import checkpoints
from asyncrl.storage.run_folder import RunFolder
from asyncrl.studies.scores import SOURCES, Reference, Score, Total, human_normalized, totals

FILMS = (".mp4", ".mkv", ".mov")
"""Files that can hold what is filmed."""
LEAST_HEIGHT = 400
"""Smaller pictures are magnified in a film, by a whole number."""
MOST_WIDTH = 4096
"""Pictures are not magnified beyond this width."""


@dataclass(frozen=True)
class Config:
    """Play episodes with what runs have learnt, each in its own environment; their folders are only read."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs, or folders with runs somewhere below them."""
    checkpoint: str = "best"
    """best, newest, all of them, or the name of one, such as step_000000500000."""
    protocol: Literal["as-trained", "no-op-starts"] = "as-trained"
    """no-op-starts, Atari: 1 to 30 no-ops, no sticky actions, at most 108 000 frames, whatever the run had."""
    human: Reference = "no-op"
    """Reference scores for the human-normalised score of Atari games."""
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
    env_id: str = ""
    """The run's environment, where it has another name here."""
    trust: bool = False
    """Import whatever the folder names, whoever made it."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UsageError("give the folder of at least one run")
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
        chosen = choose(config)
        if len(chosen) > 1:
            if config.video:
                raise UsageError("--video films one checkpoint of one run: name it")
            with prints_aside():
                results = play_all(chosen, config)
            show_all(results, config)
            return 0
        with prints_aside():
            result = play_what(*chosen[0], config, writer)
        show(result, config)
        if config.video:
            check_film(config.video, result.lengths[0] + 1, writer)
        return 0

    return run_command(program, evaluate)


def choose(config: Config) -> list[tuple[Path, str]]:
    """The runs and the names of their checkpoints that are to be played. Raises UsageError if there is none."""
    runs = [run for path in config.runs for run in runs_below(path)]
    if config.checkpoint != "all":
        return [(run, config.checkpoint) for run in runs]
    # In the order of steps; the best one is a copy of what lies between them.
    found = [(run, path.name) for run in runs for path in _by_steps(RunFolder.open(run))]
    if not found:
        raise UsageError(f"{runs[0]} has no checkpoint yet")
    return found


def _by_steps(folder: RunFolder) -> list[Path]:
    paths = [path for kind in ("step", "best") for path in checkpoints.find(folder.checkpoints, kind)]
    return sorted(paths, key=lambda path: path.name.partition("_")[2])


def runs_below(path: Path) -> list[Path]:
    """The folder itself if it is a run, else all runs below it. Raises UsageError if there is none."""
    runs = [path] if (path / "config.json").is_file() else sorted(file.parent for file in path.rglob("config.json"))
    return runs or [RunFolder.open(path).path]


def play_all(chosen: Sequence[tuple[Path, str]], config: Config) -> list[Result]:
    """What can be played of several; a line on stderr for each that cannot. Raises UsageError if nothing can."""
    results = []
    for run, name in chosen:
        try:
            results.append(play_what(run, name, config))
        except UsageError as error:
            print_line(f"left out: {run}: {error}", error=True)
    if not results:
        raise UsageError("none of these runs can be played")
    return results


def play_what(run: Path, checkpoint: str, config: Config, writer: Any = None) -> Result:
    """One checkpoint of one run. Raises UsageError when it, or its environment, cannot be used."""

    def change(spec: EnvSpec) -> EnvSpec:
        if config.protocol == "no-op-starts":
            spec = no_op_starts(spec)
        return to_be_filmed(spec, Path(config.video)) if config.video else spec

    greedy = config.greedy if config.greedy or config.sampled else None
    loaded = load_run(run, checkpoint, config.seed, greedy, change, permission_of(config.env_id, config.trust))
    rate = frame_rate(loaded.run.spec.environment)
    return play_run(loaded, config.episodes, lambda first: filming(first, config.video, writer, rate))


def no_op_starts(spec: EnvSpec) -> EnvSpec:
    """The game as it is evaluated in papers since Mnih et al. 2015. Raises UsageError for what is no Atari game."""
    if not spec.is_atari:
        raise UsageError(f"--protocol no-op-starts is of Atari, and {spec.env_id} is none: leave it out")
    return dataclasses.replace(spec, noop_max=NOOP_MAX, sticky_actions=0.0, max_episode_steps=0)


def to_be_filmed(spec: EnvSpec, file: Path) -> EnvSpec:
    """As `with_pictures`. Raises UsageError also for a film of another kind or without a folder."""
    if file.suffix.lower() not in FILMS:
        raise UsageError(f"--video {file}: the name of a film ends in {', '.join(FILMS[:-1])} or {FILMS[-1]}")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--video {file}: there is no such folder")
    return with_pictures(spec)


def with_pictures(spec: EnvSpec) -> EnvSpec:
    """The environment, asked for pictures. Raises UsageError if it has none."""
    draw_without_a_window()
    environment = spec.make(0, evaluation=True)
    environment.close()
    if not hasattr(environment, "picture"):
        raise UsageError(f"{spec.env_id} has no picture to film")
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


def judged(result: Result, config: Config) -> dict[str, Any]:
    """What there is to say of a result beside its episodes: summary, interval of the mean, percent of a human."""
    interval = mean_of(result.returns)
    percent = human_normalized(result.env_id, interval.value, config.human)
    human = {} if percent is None else {"human_normalized": percent, "human_reference": config.human}
    return {"protocol": config.protocol, **result.summary(), "interval": _ends(interval), **human}


def _ends(estimate: Estimate) -> list[float] | None:
    """The ends of an interval; None if there are too few runs or episodes for one."""
    return [estimate.low, estimate.high] if estimate.has_interval else None


def _interval_in_words(ends: list[float] | None, form: str) -> str:
    return f" (95 % interval {ends[0]:{form}} to {ends[1]:{form}})" if ends else ""


def show(result: Result, config: Config) -> None:
    """Print the result as text, or as JSON."""
    summary = judged(result, config)
    if config.json:
        print_line(json.dumps(dataclasses.asdict(result) | summary, indent=2))
        return
    print_line(f"{result.page} on {result.env_id}, {result.checkpoint} checkpoint, trained for {result.steps:,} steps")
    print_line(f"{len(result.returns)} episodes, {result.policy} policy, seed {result.seed}{_protocol(config)}")
    print_line("returns: " + " ".join(f"{score:g}" for score in result.returns))
    print_line("lengths: " + " ".join(str(length) for length in result.lengths))
    print_line(
        f"mean {summary['mean']:.2f}{_interval_in_words(summary['interval'], '.2f')}, "
        f"standard deviation {summary['std']:.2f}, "
        f"min {summary['min']:g}, max {summary['max']:g}, mean length {summary['mean_length']:.1f} steps"
    )
    if "human_normalized" in summary:
        print_line(f"human-normalised {summary['human_normalized']:.1f} % ({SOURCES[config.human]})")
    if result.cut:
        print_line(cut_in_words(result.cut, result.lengths))
    if config.video:
        print_line(config.video)


def show_all(results: Sequence[Result], config: Config) -> None:
    """Print several results as a table with what they come to, or as JSON."""
    rows = [judged(result, config) for result in results]
    scores = [Score(result.page, result.env_id, row["mean"]) for result, row in zip(results, rows, strict=True)]
    # The checkpoints of one run are no seeds.
    together = [] if config.checkpoint == "all" else totals(scores, config.human)
    if config.json:
        said = [dataclasses.asdict(result) | row for result, row in zip(results, rows, strict=True)]
        print_line(json.dumps({"results": said, "totals": list(map(_total_as_data, together))}, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(_table(results, rows))
    print_line(f"{config.episodes} episodes each, seed {config.seed}{_protocol(config)}")
    if any("human_normalized" in row for row in rows):
        print_line(f"human %: {SOURCES[config.human]}; random play is 0 in Video Pinball")
    for total in together:
        print_line(_total_in_words(total))


def _table(results: Sequence[Result], rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    human = any("human_normalized" in row for row in rows)
    names = ["run", "environment", "checkpoint", "steps", "policy", "mean", "95 % interval", "min", "max"]
    for name in [*names, *(["human %"] if human else [])]:
        table.add_column(name, justify="left" if name in ("run", "environment", "checkpoint", "policy") else "right")
    for result, row in zip(results, rows, strict=True):
        percent = f"{row['human_normalized']:.1f}" if "human_normalized" in row else "-"
        interval = "-" if row["interval"] is None else "{:.2f} to {:.2f}".format(*row["interval"])
        table.add_row(
            *map(shown, (f"{result.page} {Path(result.run).name}", result.env_id, result.checkpoint)),
            f"{result.steps:,}", result.policy, f"{row['mean']:.2f}", interval, f"{row['min']:g}", f"{row['max']:g}",
            *([percent] if human else []),
        )  # fmt: skip
    return table


def _protocol(config: Config) -> str:
    return "" if config.protocol == "as-trained" else f", protocol {config.protocol}"


def _total_as_data(total: Total) -> dict[str, Any]:
    low, high = _ends(total.interquartile) or (None, None)
    interval = {"interquartile": total.interquartile.value, "interquartile_low": low, "interquartile_high": high}
    return {name: value for name, value in vars(total).items() if name != "interquartile"} | interval


def _total_in_words(total: Total) -> str:
    unit, of = (" %", "human-normalised, ") if total.normalized else ("", "")
    line = f"{total.page}, {of}{total.runs} runs"
    if total.games > 1:
        line += f" of {total.games} games: median over games {total.median:.1f}{unit}, mean {total.mean:.1f}{unit};"
    iqm = total.interquartile
    over = "games and seeds" if total.games > 1 else "seeds"
    return f"{line} interquartile mean over {over} {iqm.value:.1f}{unit}{_interval_in_words(_ends(iqm), '.1f')}"


class Film:
    """A film whose first picture determines its size; others are resized to it."""

    def __init__(self, file: str, writer: Any, rate: float) -> None:
        """`rate` is in pictures per second."""
        self._file, self._writer, self._rate = file, writer, rate
        self._frames: Any = None
        self._shape: tuple[int, ...] | None = None

    def add(self, picture: NDArray[np.uint8]) -> None:
        """Append a picture `[height, width, 3]`."""
        large = magnified(picture)
        if self._shape is not None and large.shape != self._shape:
            large = resized(large, self._shape)
        if self._frames is None:
            self._shape = large.shape
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


class Filmed(Wrapper):
    """An environment whose first episode is filmed, a picture per step."""

    def __init__(self, environment: Environment, film: Film) -> None:
        super().__init__(environment)
        self._film, self._episodes = film, 0

    def reset(self) -> NDArray[Any]:
        """As the environment does."""
        self._episodes += 1
        observation = super().reset()
        self._shoot()
        return observation

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """As the environment does."""
        result = super().step(action)
        self._shoot()
        return result

    def _shoot(self) -> None:
        if self._episodes == 1:
            self._film.add(self.picture())


def magnified(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture [height, width, 3], magnified to LEAST_HEIGHT rows or more unless it is too wide for that."""
    times = max(1, min(-(-LEAST_HEIGHT // len(picture)), MOST_WIDTH // picture.shape[1]))
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
