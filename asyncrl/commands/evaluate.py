"""`python -m asyncrl evaluate RUN...`: play episodes with what runs have learnt."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from asyncrl.api.films import Film, Filmed, check_file, frame_rate, magnified, with_pictures
from asyncrl.api.playing import Result, play_run
from asyncrl.commands.checkpoint import PlaySettings
from asyncrl.commands.program import each_once, prints_aside, run_with
from asyncrl.core.errors import UsageError
from asyncrl.core.output import fitted, print_line
from asyncrl.core.statistics import Estimate, mean_of
from asyncrl.envs.spec import NOOP_MAX, EnvSpec
from asyncrl.runtime.evaluator import cut_in_words
from asyncrl.runtime.terminal import Screen, shown
from asyncrl.storage import checkpoints
from asyncrl.storage.run_folder import RunFolder
from asyncrl.studies.scores import SOURCES, Reference, Score, Total, game_of, human_normalized, totals


@dataclass(frozen=True)
class Config(PlaySettings):
    """Play evaluation episodes with the agents of runs. Run folders are only read."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, or folders that contain runs at any depth."""
    _: KW_ONLY
    checkpoint: str = "best"
    """best, newest, all, or the name of a checkpoint, such as step_000000500000."""
    protocol: Literal["as-trained", "no-op-starts"] = "as-trained"
    """no-op-starts (Atari): 1 to 30 no-ops, no sticky actions, at most 108 000 frames, whatever the run used."""
    human: Reference = "no-op"
    """Reference scores for the human-normalised score of Atari games."""
    episodes: int = 10
    """Number of episodes."""
    video: str = ""
    """File for a film of the first episode: .gif, or .mp4 (needs the extra [video])."""
    json: bool = False
    """Print the results as JSON."""

    def __post_init__(self) -> None:
        if not 1 <= self.episodes <= 1_000_000:
            raise UsageError(f"--episodes must be 1 to 1_000_000, got {self.episodes}")
        super().__post_init__()
        if self.video:
            check_file("--video", self.video)


def main(words: Sequence[str]) -> int:
    """Play what the command line says; returns the exit code."""
    return run_with(Config, words, "asyncrl evaluate", evaluate)


def evaluate(config: Config) -> int:
    """Play, and print the results; returns the exit code. Raises UsageError."""
    chosen = choose(config)
    if config.video and len(chosen) > 1:
        raise UsageError("--video films a single checkpoint of a single run: name it")
    with prints_aside():
        results = play_all(chosen, config) if len(chosen) > 1 else [play_what(*chosen[0], config)]
    rows = [judged(result, config) for result in results]
    if len(chosen) == 1:
        show(rows[0], config)
    else:
        show_all(rows, config)
    return 0


def choose(config: Config) -> list[tuple[Path, str]]:
    """The runs and the names of their checkpoints that are to be played. Raises UsageError if there is none."""
    runs = each_once(run for path in config.runs for run in runs_below(path))
    if config.checkpoint != "all":
        return [(run, config.checkpoint) for run in runs]
    found = []
    for run in runs:
        folder = RunFolder.open(run).checkpoints
        names = [path.name for kind in ("step", "best") for path in checkpoints.find(folder, kind)]
        # In the order of steps; the best one is a copy of what lies between them.
        found += [(run, name) for name in sorted(names, key=lambda name: name.partition("_")[2])]
    if not found:
        raise UsageError(f"{runs[0]} has no checkpoint yet")
    return found


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
            print_line(f"skipped: {run}: {error.shell}", error=True)
    if not results:
        raise UsageError("none of these runs can be played")
    return results


def play_what(run: Path, checkpoint: str, config: Config) -> Result:
    """One checkpoint of one run. Raises UsageError when it, or its environment, cannot be used."""

    def change(spec: EnvSpec) -> EnvSpec:
        if config.protocol == "no-op-starts":
            spec = no_op_starts(spec)
        if config.human != "no-op" and game_of(spec.env_id) is None:
            raise UsageError(f"--human is for Atari games with published scores, not for {spec.env_id}: leave it out")
        return with_pictures(spec) if config.video else spec

    loaded = config.play(run, checkpoint, change)
    if not config.video:
        return play_run(loaded, config.episodes)
    with Film(Path(config.video), frame_rate(loaded.run.spec.environment)) as film:
        return play_run(loaded, config.episodes, lambda first: Filmed(first, lambda step: film.add(magnified(step))))


def no_op_starts(spec: EnvSpec) -> EnvSpec:
    """The game as it is evaluated in papers since Mnih et al. 2015. Raises UsageError for what is no Atari game."""
    if not spec.is_atari:
        raise UsageError(f"--protocol no-op-starts is for Atari, not for {spec.env_id}: leave it out")
    return dataclasses.replace(spec, noop_max=NOOP_MAX, sticky_actions=0.0, max_episode_steps=0)


def judged(result: Result, config: Config) -> dict[str, Any]:
    """All that there is to say of a result: with the interval of its mean, and in percent of a human."""
    interval = mean_of(result.returns)
    percent = human_normalized(result.env_id, interval.value, config.human)
    human = {} if percent is None else {"human_normalized": percent, "human_reference": config.human}
    summary = {"protocol": config.protocol, **result.summary(), "interval": _ends(interval)}
    return dataclasses.asdict(result) | summary | human


def _ends(estimate: Estimate) -> list[float] | None:
    """The ends of an interval; None if there are too few runs or episodes for one."""
    return [estimate.low, estimate.high] if estimate.has_interval else None


def _interval_in_words(ends: list[float] | None, form: str) -> str:
    return f" (95 % interval {ends[0]:{form}} to {ends[1]:{form}})" if ends else ""


def show(row: dict[str, Any], config: Config) -> None:
    """Print one result as text, or as JSON."""
    if config.json:
        print_line(json.dumps(row, indent=2))
        return
    _say("{algorithm} on {env_id}, {checkpoint} checkpoint, trained for {steps:,} steps".format(**row))
    _say(f"{config.episodes} episodes, {row['policy']} policy, seed {config.seed}{_protocol(config)}")
    _say("returns: " + " ".join(f"{score:g}" for score in row["returns"]))
    _say("lengths: " + " ".join(map(str, row["lengths"])))
    rest = "standard deviation {std:.2f}, min {min:g}, max {max:g}, mean length {mean_length:.1f} steps".format(**row)
    _say(f"mean {row['mean']:.2f}{_interval_in_words(row['interval'], '.2f')}, {rest}")
    if "human_normalized" in row:
        _say(f"human-normalised {row['human_normalized']:.1f} % ({SOURCES[config.human]})")
    if row["cut"]:
        _say(cut_in_words(row["cut"], row["lengths"]))
    if config.video:
        print_line(config.video)


def _say(line: str) -> None:
    print_line(fitted(line))


def show_all(rows: Sequence[dict[str, Any]], config: Config) -> None:
    """Print several results as a table with what they come to, or as JSON."""
    scores = [Score(row["algorithm"], row["env_id"], row["mean"]) for row in rows]
    # The checkpoints of one run are no seeds.
    together = [] if config.checkpoint == "all" else totals(scores, config.human)
    if config.json:
        print_line(json.dumps({"results": rows, "totals": list(map(_total_as_data, together))}, indent=2))
        return
    # In a narrow terminal lines wrap: rich would cut numbers and leave out whole columns.
    console = Screen(width=max(100, Screen().width) if sys.stdout.isatty() else 160, highlight=False)
    console.print(_table(rows))
    _say(f"{config.episodes} episodes each, seed {config.seed}{_protocol(config)}")
    if any("human_normalized" in row for row in rows):
        _say(f"human %: {SOURCES[config.human]}; random play is 0 in Video Pinball")
    for total in together:
        _say(_total_in_words(total))


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    human = ["human %"] if any("human_normalized" in row for row in rows) else []
    words, numbers = ("run", "environment", "checkpoint", "steps", "policy"), ("mean", "95 % interval", "min", "max")
    for name in (*words, *numbers, *human):
        is_text = name in words and name != "steps"
        table.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    for row in rows:
        percent = f"{row['human_normalized']:.1f}" if "human_normalized" in row else "-"
        interval = "-" if row["interval"] is None else "{:.2f} to {:.2f}".format(*row["interval"])
        table.add_row(
            *map(shown, (f"{row['algorithm']} {Path(row['run']).name}", row["env_id"], row["checkpoint"])),
            f"{row['steps']:,}", row["policy"], f"{row['mean']:.2f}", interval, f"{row['min']:g}", f"{row['max']:g}",
            *([percent] if human else []),
        )  # fmt: skip
    return table


def _protocol(config: Config) -> str:
    return "" if config.protocol == "as-trained" else f", protocol {config.protocol}"


def _total_as_data(total: Total) -> dict[str, Any]:
    low, high = _ends(total.interquartile) or (None, None)
    interval = {"interquartile": total.interquartile.value, "interquartile_low": low, "interquartile_high": high}
    return vars(total) | interval


def _total_in_words(total: Total) -> str:
    unit, of = (" %", "human-normalised, ") if total.normalized else ("", "")
    line = f"{total.algorithm}, {of}{total.runs} runs"
    if total.games > 1:
        line += f" of {total.games} games: median over games {total.median:.1f}{unit}, mean {total.mean:.1f}{unit};"
    iqm = total.interquartile
    over = "games and seeds" if total.games > 1 else "seeds"
    return f"{line} interquartile mean over {over} {iqm.value:.1f}{unit}{_interval_in_words(_ends(iqm), '.1f')}"
