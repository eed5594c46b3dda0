"""The evaluator: whole episodes, raw returns, when it is due, what it may cost, what it keeps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.backends.restoring import flat_parameters, restore
from asyncrl.envs.environment import BadEnvironment
from asyncrl.envs.rebuilding import Rebuilding
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime import evaluator as module
from asyncrl.runtime.clock import ENDED, FINISH, LEAVE, Clock
from asyncrl.runtime.collect import Episode
from asyncrl.runtime.evaluator import Evaluator, play, serve
from asyncrl.runtime.monitor import Monitor
from asyncrl.runtime.normalize import make_normalizer
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.run import Run
from asyncrl.storage import checkpoints
from asyncrl.storage.records import read_records
from asyncrl.storage.rows import evaluations_in
from tests.support import COUNTING, Counting, FixedAgent, make_run, push


class Counted(Counting):
    """Counts what is done to it."""

    steps = 0
    resets = 0

    def reset(self) -> np.ndarray:
        self.resets += 1
        return super().reset()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, bool]:
        self.steps += 1
        return super().step(action)


class Watching(FixedAgent):
    """Remembers the batches it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[float]] = []

    def act(self, observations: torch.Tensor, state: Any, steps: int) -> tuple[torch.Tensor, Any]:
        self.seen.append(observations[:, 0].tolist())
        return super().act(observations, state, steps)


def test_each_environment_plays_the_episodes_it_was_given_at_the_start() -> None:
    """Five episodes on two environments: 0, 2 and 4 are short, 1 and 3 long; a race would find more short ones."""
    short, long = Counted(1, truncates=False, reward=1.0), Counted(10, truncates=True, reward=100.0)

    episodes = play(FixedAgent(), [short, long], COUNTING, 5, steps=0)

    assert episodes == [Episode(1.0, 1), Episode(1000.0, 10)] * 2 + [Episode(1.0, 1)]
    assert (short.steps, long.steps) == (3, 20)


def test_the_mean_does_not_favour_short_episodes() -> None:
    """Half of the environments end at once with nothing: half of the episodes do, whatever their number."""
    environments = [Counted(1, False, reward=0.0), Counted(50, False, reward=1.0)]

    episodes = play(FixedAgent(), environments, COUNTING, 8, steps=0)

    assert episodes is not None
    assert np.mean([episode.score for episode in episodes]) == 25.0


@pytest.mark.parametrize("episodes", [1, 2, 3, 7])
def test_exactly_so_many_whole_episodes_are_played(episodes: int) -> None:
    """With three environments, some of which may have none to play."""
    environments = [Counted(length, truncates=False) for length in (2, 3, 5)]

    played = play(FixedAgent(), environments, COUNTING, episodes, steps=0)

    assert played == [Episode(float(length), length) for length in [2, 3, 5, 2, 3, 5, 2][:episodes]]
    assert [one.steps for one in environments] == [
        length * len(range(place, episodes, 3)) for place, length in enumerate((2, 3, 5))
    ]


def test_the_agent_sees_the_first_observation_of_each_episode() -> None:
    """Not the last one of the episode before: 0, 1 and 0, 1 again."""
    agent = Watching()

    play(agent, [Counted(2, truncates=False)], COUNTING, 2, steps=0)

    assert agent.seen == [[0.0], [1.0], [0.0], [1.0]]


def test_an_evaluation_can_be_given_up_between_two_steps() -> None:
    """None instead of a score from half an evaluation."""
    answers = iter([False, False, False, True])  # the first is asked before the reset
    environment = Counted(100, truncates=False)

    assert play(FixedAgent(), [environment], COUNTING, 1, 0, interrupted=lambda: next(answers)) is None
    assert environment.steps == 2


def test_an_episode_without_an_end_is_cut() -> None:
    """A policy that walks into a wall for ever would hold up the run for ever; that it was cut is known."""
    endless, ending = Counted(10**9, truncates=False), Counted(30, truncates=False)

    assert play(FixedAgent(), [endless, ending], COUNTING, 2, steps=0, longest=25) == [Episode(25.0, 25, True)] * 2
    one, other = Episode(40.0, 40, cut=True), Episode(30.0, 30)
    assert play(FixedAgent(), [endless, ending], COUNTING, 2, steps=0, longest=40) == [one, other]


def test_an_episode_that_ends_with_the_last_step_allowed_is_not_cut() -> None:
    """Neither by an end nor by a limit of its own."""
    environments = [Counted(25, truncates=False), Counted(25, truncates=True)]

    assert play(FixedAgent(), environments, COUNTING, 2, steps=0, longest=25) == [Episode(25.0, 25)] * 2


def test_no_episode_is_begun_that_is_not_played() -> None:
    """Three episodes, three resets."""
    environment = Counted(5, truncates=False)

    play(FixedAgent(), [environment], COUNTING, 3, steps=0)

    assert environment.resets == 3


def test_an_environment_that_breaks_as_it_begins_is_replaced_too() -> None:
    """In the first episode or a later one."""

    class Stubborn(Counted):
        def reset(self) -> np.ndarray:
            if self.resets == 1:
                raise BadEnvironment("not again")
            return super().reset()

    said: list[str] = []
    environment = Rebuilding(lambda number: Stubborn(2, truncates=False), True, said.append)

    assert play(FixedAgent(), [environment], COUNTING, 3, steps=0) == [Episode(2.0, 2)] * 3
    assert said == ["rebuilt: not again"] * 2
    with pytest.raises(BadEnvironment, match="not again"):
        play(FixedAgent(), [Stubborn(2, truncates=False)], COUNTING, 2, steps=0)


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Evaluator]]:
    """Make an evaluator of a run whose evaluations give the scores that are put into its `scores`."""
    made: list[Evaluator] = []

    def make(run: Run, *scores: float | None) -> Evaluator:
        results = iter(scores)

        def give(*_: Any, **__: Any) -> list[Episode] | None:
            score = next(results)
            return None if score is None else [Episode(score - 1, 3), Episode(score + 1, 5, cut=True)]

        monkeypatch.setattr(module, "play", give)
        made.append(Evaluator(run))
        return made[-1]

    yield make
    for one in made:
        one.__exit__()


def test_raw_returns_are_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards of 7 are clipped in the loss, not here; life loss is for training only."""
    run = make_run(tmp_path, env_id="CartPole-v1", evaluation_episodes=3, reward_clip=1.0)
    asked = []

    class Paying(Counting):
        def _observation(self) -> np.ndarray:
            return np.zeros(4, np.float32)

    def build(_: Run, worker: int, count: int, evaluation: bool) -> list[Paying]:
        asked.append((worker, count, evaluation))
        return [Paying(2, truncates=False, reward=7.0) for _ in range(count)]

    monkeypatch.setattr(module, "build_environments", build)

    with Evaluator(run) as evaluator:
        row = evaluator.evaluate()

    assert asked == [(-1, 3, True)]
    assert row is not None
    assert (row["returns"], row["lengths"], row["mean"], row["std"]) == ([14.0] * 3, [2] * 3, 14.0, 0.0)


def test_no_more_than_ten_environments_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost memory; a hundred episodes are played in ten rounds, and twelve in two of six."""
    counts: list[int] = []
    monkeypatch.setattr(module, "build_environments", lambda *arguments, evaluation: counts.append(arguments[2]) or [])

    for place, episodes in enumerate((1, 10, 12, 25, 100)):
        with Evaluator(make_run(tmp_path / str(place), evaluation_episodes=episodes)):
            pass

    assert counts == [1, 10, 6, 9, 10]


def test_a_row_says_of_which_parameters_it_speaks(
    tmp_path: Path, evaluate: Callable[..., Evaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps, frames (four a step on Atari), seconds and updates of the snapshot."""
    monkeypatch.setattr(module, "build_environments", lambda *arguments, **options: [])
    run = make_run(tmp_path, normalize_observations=False)
    run = replace(run, spec=replace(run.spec, environment=EnvSpec("ALE/Pong-v5")))
    evaluator = evaluate(run, 4.0)
    run.handles.clock.count(0, 100)
    push(run.handles.store, 0, torch.ones_like(run.handles.store.theta), 0)

    row = evaluator.evaluate()

    assert row is not None
    assert (row["steps"], row["frames"], row["updates"], row["seconds"]) == (100, 400, 1, 0.0)
    assert (row["returns"], row["lengths"], row["mean"], row["median"]) == ([3.0, 5.0], [3, 5], 4.0, 4.0)
    assert row["cut"] == 1
    assert read_records(run.spec.folder.evaluator_file) == [row]


def test_it_is_due_when_a_multiple_of_the_interval_is_crossed(
    tmp_path: Path, evaluate: Callable[..., Evaluator]
) -> None:
    """1000, then 3000 after an evaluation at 2500: the one at 2000 is past."""
    run = make_run(tmp_path, evaluation_interval_steps=1000)
    evaluator = evaluate(run, 1.0)

    due = []
    for steps in (0, 999, 1, 1500):
        run.handles.clock.count(0, steps)
        due.append(evaluator.due())
    evaluator.evaluate()
    for steps in (0, 499, 1):
        run.handles.clock.count(0, steps)
        due.append(evaluator.due())

    assert due == [False, False, True, True, False, False, True]


def test_a_resumed_run_waits_for_its_next_multiple(tmp_path: Path, evaluate: Callable[..., Evaluator]) -> None:
    """From 2500 steps it is 3000."""
    run = make_run(tmp_path, evaluation_interval_steps=1000)
    run.handles.clock.count(0, 2500)
    evaluator = evaluate(run)

    assert not evaluator.due()
    run.handles.clock.count(0, 500)
    assert evaluator.due()


@pytest.mark.parametrize(
    ("settings", "interval"),
    [
        ({"total_steps": 10}, 1),
        ({"total_steps": 100_000}, 5_000),
        ({"total_steps": 1_999_999}, 99_999),
        ({"total_steps": 10_000_000}, 100_000),
        ({"total_steps": 100_000, "evaluation_interval_steps": 70_000}, 70_000),
    ],
)
def test_the_interval_follows_the_length_of_the_run_unless_it_is_given(
    tmp_path: Path, evaluate: Callable[..., Evaluator], settings: dict[str, Any], interval: int
) -> None:
    """A twentieth of it, but at most 100 000 steps; a resumed run goes by its new length."""
    run = make_run(tmp_path, **settings)
    evaluator = evaluate(run)

    run.handles.clock.count(0, interval - 1)
    assert not evaluator.due()
    run.handles.clock.count(0, 1)
    assert evaluator.due()


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({}, [False, True, False, True]),
        ({"backend": "serial"}, [False] * 4),
        ({"evaluation_interval_steps": 50}, [False] * 4),
        ({"max_seconds": 0}, [False] * 4),
    ],
)
def test_one_is_due_after_a_twentieth_of_the_time_as_well(
    tmp_path: Path,
    evaluate: Callable[..., Evaluator],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    due: list[bool],
) -> None:
    """3 of 60 seconds since the last one; not if runs must repeat bit for bit, or an interval is given."""
    now = [0.0]
    monkeypatch.setattr(Clock, "seconds_of_this_part", property(lambda _: now[0]))
    evaluator = evaluate(make_run(tmp_path, **({"backend": "local", "max_seconds": 60} | settings)), 1.0, 1.0)

    found = []
    for seconds in (2.9, 3.5, 6.4, 6.6):
        now[0] = seconds
        found.append(evaluator.due())
        if found[-1]:
            evaluator.evaluate()

    assert found == due


def test_without_an_interval_it_is_never_due(tmp_path: Path, evaluate: Callable[..., Evaluator]) -> None:
    """There is the one at the end all the same."""
    run = make_run(tmp_path, evaluation_interval_steps=0)
    evaluator = evaluate(run)
    run.handles.clock.count(0, 10**9)

    assert not evaluator.due()


def test_its_share_of_the_processor_is_bounded(
    tmp_path: Path, evaluate: Callable[..., Evaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """15 % of two cores for 10 seconds are 3 seconds; building it does not count."""
    used = [100.0]
    monkeypatch.setattr(time, "process_time", lambda: used[0])
    monkeypatch.setattr(module, "usable_cores", lambda: [0, 1])
    evaluator = evaluate(make_run(tmp_path, evaluation_cpu_share=0.15), 1.0)
    now = evaluator._began + 10.0
    monkeypatch.setattr(module, "time", SimpleNamespace(**vars(time) | {"monotonic": lambda: now}))

    shares = []
    for used[0] in (100.0, 103.0, 103.1):
        shares.append((round(evaluator.cpu_share(), 4), evaluator.within_share()))
    row = evaluator.evaluate()

    assert shares == [(0.0, True), (0.15, True), (0.155, False)]
    assert row is not None
    assert row["cpu_share"] == 0.155


def test_the_best_checkpoint_is_kept_and_is_there_before_its_row(
    tmp_path: Path, evaluate: Callable[..., Evaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores 1, 3, 2, 3: the first and second are saved, what is worse or equal is not."""
    run = make_run(tmp_path)
    saved = []
    really_save = checkpoints.save

    def save(folder: Path, checkpoint: checkpoints.Checkpoint, kind: str) -> Path:
        rows = len(read_records(run.spec.folder.evaluator_file))
        saved.append((checkpoint.steps, rows, checkpoint.facts["best_score"]))
        return really_save(folder, checkpoint, kind=kind)

    monkeypatch.setattr(checkpoints, "save", save)
    evaluator = evaluate(run, 1.0, 3.0, 2.0, 3.0)
    for _ in range(4):
        run.handles.clock.count(0, 10)
        run.handles.store.theta.add_(1.0)
        if run.handles.clock.steps == 20:
            theta = run.handles.store.theta.clone()
        evaluator.evaluate()

    assert saved == [(10, 0, 1.0), (20, 1, 3.0)]
    assert [row["best"] for row in read_records(run.spec.folder.evaluator_file)] == [True, True, False, False]
    best, skipped = checkpoints.load_newest(run.spec.folder.checkpoints, "best")
    assert (best.steps, skipped) == (20, [])
    assert torch.equal(torch.cat([best.parameters[name].flatten() for name, _ in run.spec.layout]), theta)


def test_the_best_checkpoint_has_the_moments_it_was_scored_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers go on while it is scored: what they see and push then is not in it."""
    run = make_run(tmp_path, env_id="CartPole-v1", normalize_observations=True, evaluation_episodes=1)
    moments = run.handles.moments.observations
    moments.add(0, torch.ones(10, 4))

    def score(*_: Any, **__: Any) -> list[Episode]:
        moments.add(0, 9 * torch.ones(90, 4))
        push(run.handles.store, 0, torch.ones_like(run.handles.store.theta), 0)
        return [Episode(1.0, 1)]

    monkeypatch.setattr(module, "play", score)
    with Evaluator(run) as evaluator:
        row = evaluator.evaluate()

    best, _ = checkpoints.load_newest(run.spec.folder.checkpoints, "best")
    assert best.tensors["observation_moments"].tolist() == [10.0, *[1.0] * 4, *[0.0] * 4]
    assert row is not None
    assert best.updates == row["updates"] == 0


def test_the_best_checkpoint_repeats_bit_by_bit_what_the_network_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments are read again only when there are 1 % more samples: what came between is not in the checkpoint."""
    run = make_run(tmp_path / "run", env_id="CartPole-v1", normalize_observations=True, evaluation_episodes=1)
    generator = torch.Generator().manual_seed(1)
    observations = 3 * torch.randn(5, 4, generator=generator)
    moments, scores = run.handles.moments.observations, iter((1.0, 2.0))
    seen = []

    def score(*arguments: Any, **_: Any) -> list[tuple[float, int]]:
        normalizer = arguments[6]
        seen.append(normalizer.observe(observations))
        return [Episode(next(scores), 1)]

    monkeypatch.setattr(module, "play", score)
    with Evaluator(run) as evaluator:
        for samples in (1000, 9):
            moments.add(0, 2 + torch.randn(samples, 4, generator=generator))
            evaluator.evaluate()

    best, _ = checkpoints.load_newest(run.spec.folder.checkpoints, "best")
    assert (best.facts["best_score"], best.tensors["observation_moments"][0]) == (2.0, 1000.0)
    again = make_run(tmp_path / "again", env_id="CartPole-v1", normalize_observations=True)
    restore(again.handles, flat_parameters(best, again.spec.layout), best)
    normalizer = make_normalizer(again.handles.moments, EVALUATOR, again.spec)
    assert normalizer is not None
    assert torch.equal(normalizer.observe(observations), seen[-1])


@pytest.mark.parametrize("counts", [True, False])
def test_parameters_that_changed_right_after_the_pull_have_not_been_evaluated(
    tmp_path: Path, evaluate: Callable[..., Evaluator], monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    """Whether the worker that pushed then came to count its steps or was killed before."""
    run = make_run(tmp_path)
    evaluator = evaluate(run, 1.0, 1.0)
    run.handles.clock.count(0, 100)
    pull = run.handles.store.pull

    def then_push(into: torch.Tensor) -> int:
        version = pull(into)
        push(run.handles.store, 1, torch.ones_like(into), version)
        if counts:
            run.handles.clock.count(1, 64)
        return version

    with monkeypatch.context() as patch:
        patch.setattr(run.handles.store, "pull", then_push)
        row = evaluator.evaluate()
    assert row is not None
    assert (row["steps"], row["updates"]) == (100, 0)
    assert not evaluator.evaluated_last()

    evaluator.evaluate()
    assert evaluator.evaluated_last()


def test_updates_that_are_lost_meanwhile_do_not_change_what_was_evaluated(
    tmp_path: Path, evaluate: Callable[..., Evaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first update was in theta at the pull, whatever an earlier theta took away after that."""
    run = make_run(tmp_path)
    evaluator, store = evaluate(run, 4.0), run.handles.store
    push(store, 0, torch.ones_like(store.theta), 0)
    play = module.play

    def then_lose(*given: Any, **more: Any) -> Any:
        store.lose(30)
        return play(*given, **more)

    monkeypatch.setattr(module, "play", then_lose)
    row = evaluator.evaluate()

    assert row is not None
    assert row["updates"] == checkpoints.load_newest(run.spec.folder.checkpoints, "best")[0].updates == 1


def test_a_resumed_evaluator_knows_the_best_score_so_far(tmp_path: Path, evaluate: Callable[..., Evaluator]) -> None:
    """A worse score after the resumption does not replace it."""
    run = make_run(tmp_path)
    evaluate(run, 5.0).evaluate()

    row = evaluate(run, 4.0).evaluate()

    assert row is not None
    assert row["best"] is False


def test_a_best_checkpoint_without_its_row_is_not_replaced_by_a_worse_one(
    tmp_path: Path, evaluate: Callable[..., Evaluator]
) -> None:
    """An evaluator that was killed between the two has saved it."""
    run = make_run(tmp_path)
    evaluate(run, 5.0).evaluate()
    run.spec.folder.evaluator_file.write_text("")
    run.handles.clock.count(0, 10)

    row = evaluate(run, 4.0).evaluate()

    assert row is not None
    assert row["best"] is False
    best, _ = checkpoints.load_newest(run.spec.folder.checkpoints, "best")
    assert (best.steps, best.facts["best_score"]) == (0, 5.0)


def test_an_evaluation_that_was_given_up_leaves_no_trace(tmp_path: Path, evaluate: Callable[..., Evaluator]) -> None:
    """No row, and the final theta still counts as not evaluated."""
    run = make_run(tmp_path)
    evaluator = evaluate(run, None)

    assert evaluator.evaluate() is None
    assert not evaluator.evaluated_last()
    assert read_records(run.spec.folder.evaluator_file) == []


class Scripted:
    """An evaluator in the hands of a test: `look` is called whenever it is asked whether an evaluation is due."""

    def __init__(self, run: Run, look: Callable[[int], None], due: bool = True, within: bool = True) -> None:
        self.run, self.look, self.is_due, self.within = run, look, due, within
        self.looks = 0
        self.evaluated: list[int] = []

    def due(self) -> bool:
        self.looks += 1
        self.look(self.looks)
        return self.is_due

    def within_share(self) -> bool:
        return self.within

    def evaluate(self) -> None:
        self.evaluated.append(self.run.handles.clock.steps)

    def evaluated_last(self) -> bool:
        return bool(self.evaluated) and self.evaluated[-1] == self.run.handles.clock.steps


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that has begun."""
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
    run = make_run(tmp_path, total_steps=1000)
    run.handles.clock.start()
    return run


def end_of(run: Run, how: int = FINISH) -> None:
    """The supervisor ends the run and the workers do."""
    run.handles.clock.stop(how)
    for worker in range(run.spec.config.workers):
        run.handles.clock.enter(worker, ENDED)


def test_the_final_parameters_are_evaluated(run: Run) -> None:
    """Once the workers have ended: not due in between, one evaluation of the last theta."""

    def look(times: int) -> None:
        run.handles.clock.count(0, 100)
        if times == 3:
            end_of(run)

    scripted = Scripted(run, look, due=False)

    serve(scripted, run)  # type: ignore[arg-type]

    assert scripted.evaluated == [300]


def test_the_final_parameters_are_not_evaluated_twice(run: Run) -> None:
    """When the last evaluation was of them already."""

    def look(times: int) -> None:
        if times == 2:
            end_of(run)

    scripted = Scripted(run, look)

    serve(scripted, run)  # type: ignore[arg-type]

    assert scripted.evaluated == [0, 0]


def test_beyond_its_share_it_waits(run: Run) -> None:
    """However long it is due; the final evaluation takes no time from any worker and is made."""

    def look(times: int) -> None:
        run.handles.clock.count(0, 10)
        if times == 5:
            end_of(run)

    scripted = Scripted(run, look, within=False)

    serve(scripted, run)  # type: ignore[arg-type]

    assert scripted.evaluated == [50]


def test_who_is_asked_to_leave_evaluates_no_more(run: Run) -> None:
    """Ctrl-C does not wait for a score."""
    scripted = Scripted(run, lambda times: end_of(run, LEAVE), due=False)

    serve(scripted, run)  # type: ignore[arg-type]

    assert scripted.evaluated == []


@pytest.mark.parametrize("mean", ["lots", None, float("nan"), 10**400, True, [5.0]])
def test_a_row_whose_score_is_none_says_nothing_about_the_best(
    mean: Any, tmp_path: Path, evaluate: Callable[..., Evaluator]
) -> None:
    """Somebody has edited it; neither the evaluator, nor the monitor, nor a report takes it for one."""
    run = make_run(tmp_path)
    row = json.dumps({"steps": 5, "seconds": 1.0, "mean": mean, "lengths": [1]})
    run.spec.folder.evaluator_file.write_text(row + "\n")

    made = evaluate(run, 4.0).evaluate()

    assert made is not None
    assert made["best"] is True
    with closing(Monitor(run)) as monitor:
        assert monitor.summary.best_score == 4.0
    assert [each["mean"] for each in evaluations_in(run.spec.folder.evaluator_file)[0]] == [4.0]
