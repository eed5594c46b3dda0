"""The evaluator: plays whole episodes with a snapshot of theta while the training goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypedDict

import numpy as np
import torch

from asyncrl.algorithm import Algorithm
from asyncrl.config.run_config import RunConfig
from asyncrl.core.devices import usable_cores
from asyncrl.core.spaces import Spaces
from asyncrl.envs.environment import Environment, EpisodeLost, close_all, restore_all, states_of
from asyncrl.envs.spec import LONGEST_EPISODE
from asyncrl.runtime.clock import ENDED
from asyncrl.runtime.collect import Episode, for_environments, reset_state
from asyncrl.runtime.normalize import Normalizer, make_normalizer
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.roles import build_agent, build_environments
from asyncrl.runtime.run import Run
from asyncrl.runtime.snapshots import beside_theta, require_finite, take_checkpoint
from asyncrl.storage import checkpoints
from asyncrl.storage.records import RecordWriter, is_score, read_records

AUTO_EVALUATIONS, AUTO_MOST_STEPS = 20, 100_000
"""Of --evaluation-interval-steps auto: parts of the run between evaluations, and their most steps."""
MOST_ENVIRONMENTS = 10
"""Most episodes played side by side: one batch of 8 costs a third of 8 single observations."""
POLL_SECONDS = 0.1


class Evaluation(TypedDict):
    """One evaluation: a row of evaluator.jsonl."""

    steps: int
    """Steps of all workers when theta was read."""
    frames: int
    seconds: float
    """Seconds of training by then."""
    updates: int
    returns: list[float]
    """Raw return of each episode."""
    lengths: list[int]
    """Its steps."""
    cut: int
    """How many episodes had not ended and were cut."""
    mean: float
    """Of the returns, as the next two."""
    median: float
    std: float
    policy: str
    """greedy or sampled."""
    evaluation_seconds: float
    evaluation_cpu_seconds: float
    cpu_share: float
    """Of all CPU time so far, by all evaluations."""
    best: bool
    """Whether it is the best of the run so far."""


class Evaluator:
    """Plays evaluations, writes a row for each, keeps the best checkpoint."""

    def __init__(self, run: Run, interrupted: Callable[[], bool] | None = None) -> None:
        """`interrupted` says that an evaluation should be abandoned; by default the clock says so."""
        self._run = run
        self._interrupted = interrupted or self._leaving
        self._config = run.spec.config
        self._agent, self._replica = build_agent(run, EVALUATOR)
        self._normalizer = make_normalizer(run.handles.moments, EVALUATOR, run.spec)
        earlier = read_records(run.spec.folder.evaluator_file)
        scores = [row.get("mean") for row in earlier]
        with suppress(checkpoints.BadCheckpoint):  # one that was killed may have saved it and written no row
            scores.append(checkpoints.load_newest(run.spec.folder.checkpoints, "best")[0].facts.get("best_score"))
        self._best = max(filter(is_score, scores), default=-math.inf)
        self._writer = RecordWriter(run.spec.folder.evaluator_file)
        self._due_steps, self._due_seconds = self._next_multiple(run.handles.clock.steps), self._next_second()
        self._evaluated = (-1, -1)
        """T and the number of updates at the pull of the last evaluation."""
        # The last that may fail: whoever enters this evaluator closes them.
        count = side_by_side(self._config.evaluation_episodes)
        self._environments = build_environments(run, EVALUATOR, count, evaluation=True)
        self._began, self._cpu_before = time.monotonic(), time.process_time()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._run.handles.clock.note_unwritten(EVALUATOR, self._writer.missing)
        close_all(self._environments)

    def state(self) -> dict[str, Any] | None:
        """Everything its next evaluations depend on besides theta; None if an environment cannot save its state."""
        environments = states_of(self._environments)
        if environments is None:
            return None
        return {
            "environments": environments,
            "random": self._agent.generator.get_state(),
            "due_steps": self._due_steps,
            "evaluated": self._evaluated,
            "normalizer": None if self._normalizer is None else self._normalizer.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        restore_all(self._environments, state["environments"])
        self._agent.generator.set_state(state["random"])
        self._due_steps, self._evaluated = state["due_steps"], tuple(state["evaluated"])
        if self._normalizer is not None:
            self._normalizer.restore(state["normalizer"])

    def _leaving(self) -> bool:
        """Called before each step of an environment; it is also a sign of life."""
        self._run.handles.clock.beat(EVALUATOR)
        return self._run.handles.clock.leaving()

    def _next_multiple(self, steps: int) -> int:
        interval = interval_of(self._config)
        return (steps // interval + 1) * interval if interval else -1

    def _next_second(self) -> float:
        return self._run.handles.clock.seconds_of_this_part + seconds_between(self._config)

    def due(self) -> bool:
        """Whether T has crossed the next multiple of the interval, or a share of --max-seconds has passed."""
        clock = self._run.handles.clock
        return 0 <= self._due_steps <= clock.steps or clock.seconds_of_this_part >= self._due_seconds

    def within_share(self) -> bool:
        """Whether this process has used less than the evaluator's share of the CPU time since it was built."""
        return self.cpu_share() <= self._config.evaluator_share

    def cpu_share(self) -> float:
        """CPU seconds of this process since it was built, divided by those of all usable cores."""
        elapsed = time.monotonic() - self._began
        return (time.process_time() - self._cpu_before) / max(1e-9, elapsed * len(usable_cores()))

    def evaluate(self) -> Evaluation | None:
        """One evaluation of theta as it is now; None when the run is being left before its end.

        In a serial run, which resumes exactly, an abandoned evaluation is made after the resume.
        """
        clock, store = self._run.handles.clock, self._run.handles.store
        before = self.state() if self._config.backend == "serial" else None
        # Counters before parameters: workers push before they count, so theta contains everything counted.
        steps, seconds = clock.steps, clock.seconds
        version, lost = self._replica.pull(store), store.lost
        beside = beside_theta(self._run)
        require_finite(self._replica.theta, self._run.spec.layout)
        if self._normalizer is not None:
            self._normalizer.renew()
            if self._normalizer.read is not None:
                # Exactly these moments: a score belongs to what the network saw.
                beside["observation_moments"] = torch.from_numpy(self._normalizer.read)
        self._due_steps, self._due_seconds = self._next_multiple(steps), self._next_second()
        began, cpu = time.perf_counter(), time.process_time()
        episodes = play(
            self._agent, self._environments, self._run.spec.spaces, self._config.evaluation_episodes, steps,
            self._interrupted, self._normalizer,
            longest=self._run.spec.environment.evaluation_step_cap,
        )  # fmt: skip
        if episodes is None:
            if before is not None:
                self.restore(before)
            return None
        self._evaluated = (steps, version)
        scores = [episode.score for episode in episodes]
        mean = float(np.mean(scores))
        row: Evaluation = {
            "steps": steps,
            "frames": steps * self._run.spec.environment.frames_per_step,
            "seconds": round(seconds, 3),
            "updates": version - lost,
            "returns": scores,
            "lengths": [episode.length for episode in episodes],
            "cut": sum(episode.cut for episode in episodes),
            "mean": mean,
            "median": float(np.median(scores)),
            "std": float(np.std(scores)),
            "policy": self._config.evaluation_policy,
            "evaluation_seconds": round(time.perf_counter() - began, 3),
            "evaluation_cpu_seconds": round(time.process_time() - cpu, 3),
            "cpu_share": round(self.cpu_share(), 4),
            "best": mean > self._best,
        }
        if mean > self._best:
            self._best = mean
            # Workers have gone on since: these were kept when theta was pulled.
            checkpoint = take_checkpoint(
                self._run, self._replica.theta, beside,
                steps=steps, seconds=seconds, updates=row["updates"], best_score=mean,
            )  # fmt: skip
            checkpoints.save(self._run.spec.folder.checkpoints, checkpoint, kind="best")
        # The row comes last, so that its readers find the checkpoint.
        self._writer.write(row)
        return row

    def evaluated_last(self) -> bool:
        """Whether the newest evaluation is of theta as it is now.

        Both counters were read before the pull, and workers count after they have changed theta. So an update that the
        pull did not see, or saw in part, has been counted since, and makes another evaluation due.
        """
        return self._evaluated == (self._run.handles.clock.steps, self._run.handles.store.updates)


def interval_of(config: RunConfig) -> int:
    """Steps between evaluations; 0: a single one at the end."""
    if config.evaluation_interval_steps == "auto":
        return max(1, min(AUTO_MOST_STEPS, config.total_steps // AUTO_EVALUATIONS))
    return config.evaluation_interval_steps


def seconds_between(config: RunConfig) -> float:
    """Seconds after which an evaluation is due in any case, as --max-seconds may end a run before the first interval.

    Not on the serial backend, which repeats a run whatever its speed.
    """
    timed = config.evaluation_interval_steps == "auto" and config.max_seconds > 0 and config.backend != "serial"
    return config.max_seconds / AUTO_EVALUATIONS if timed else math.inf


def serve(evaluator: Evaluator, run: Run) -> None:
    """Evaluate whenever it is due until the run ends, then evaluate the final theta. The evaluator's process."""
    clock = run.handles.clock
    clock.await_start(EVALUATOR)
    while not clock.finished():
        if evaluator.due() and evaluator.within_share():
            evaluator.evaluate()
        clock.beat(EVALUATOR)
        time.sleep(POLL_SECONDS)
    while not clock.leaving() and any(phase != ENDED for phase in clock.phases()):
        clock.beat(EVALUATOR)
        time.sleep(POLL_SECONDS / 5)
    if not clock.leaving() and not evaluator.evaluated_last():
        evaluator.evaluate()
    clock.enter(EVALUATOR, ENDED)


def side_by_side(episodes: int) -> int:
    """How many environments play so many episodes in the fewest rounds, none of them idle for long."""
    rounds = -(-episodes // MOST_ENVIRONMENTS)
    return -(-episodes // rounds)


def cut_in_words(cut: int, lengths: Sequence[int]) -> str:
    """The remark about an evaluation in which `cut` episodes did not end by themselves."""
    return (
        f"{cut} of {len(lengths)} evaluated episodes had not ended after {max(lengths):,} steps and were cut: if "
        "the environment never ends an episode, give the run --max-episode-steps"
    )


@torch.inference_mode()
def play(
    agent: Algorithm,
    environments: list[Environment],
    spaces: Spaces,
    episodes: int,
    steps: int,
    interrupted: Callable[[], bool] = lambda: False,
    normalizer: Normalizer | None = None,
    longest: int = LONGEST_EPISODE,
) -> list[Episode] | None:
    """Whole `episodes`, played side by side; None if `interrupted()`, asked before each reset and step, became true.

    Episode i is played in environment i mod E: taking those that end first would favour short ones. Episodes are cut
    after `longest` steps.
    """
    count = len(environments)
    dtype = getattr(torch, spaces.observation_dtype)
    observations = torch.zeros((count, *spaces.observation_shape), dtype=dtype)
    rows = observations.numpy()
    left = [len(range(e, episodes, count)) for e in range(count)]
    results: list[list[Episode]] = [[] for _ in range(count)]
    scores, lengths = [0.0] * count, [0] * count
    state = agent.initial_state(count)
    for e in range(count):
        if interrupted():
            return None
        rows[e] = environments[e].reset()
    while any(left):
        seen = observations if normalizer is None else normalizer.observe(observations)
        actions, state, _ = agent.act(seen, state, steps)
        ended = np.zeros(count, np.bool_)
        for e, action in enumerate(for_environments(actions, spaces)):
            if not left[e]:
                continue
            if interrupted():
                return None
            try:
                observation, reward, terminated, truncated, _ = environments[e].step(action)
            except EpisodeLost:  # it is played again, from its beginning
                rows[e] = environments[e].reset()
                scores[e], lengths[e], ended[e] = 0.0, 0, True
                continue
            scores[e] += reward
            lengths[e] += 1
            if terminated or truncated or lengths[e] >= longest:
                ended[e] = True
                results[e].append(Episode(scores[e], lengths[e], cut=not (terminated or truncated)))
                scores[e], lengths[e] = 0.0, 0
                left[e] -= 1
                if left[e]:
                    observation = environments[e].reset()
            rows[e] = observation
        state = reset_state(agent, state, ended)
    return [results[i % count][i // count] for i in range(episodes)]
