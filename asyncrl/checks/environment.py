"""Does an environment keep its promises? Takes a few hundred random steps and inspects what it returns."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from asyncrl.checks.finding import Finding, advise, judge
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import Environment, EnvSpec, one_line, restore, state_of
from asyncrl.runtime.run import Run
from asyncrl.runtime.threads import running_threads
from asyncrl.storage.files import read_json, write_json

LONGEST_SECONDS = 4.0
"""Seconds after which the random steps end."""
SLOW_STEP_SECONDS = 0.05
"""Slower environments get a note: a run takes millions of steps."""
REPLAYED_STEPS = 60
"""Steps that are repeated, to see whether a seed or a state reproduces them."""

Trace = list[tuple[bytes, float, bool, bool, bool]]
"""What each step returned."""


@dataclass(frozen=True)
class Inspection:
    """The main function of a child that inspects the run's environment; plain data, so that it can be sent there."""

    steps: int
    seed: int

    def __call__(self, run: Run, worker: int) -> None:
        """Inspect, and leave what was found in the run's folder."""
        found = [asdict(finding) for finding in inspect(run.spec.environment, self.steps, self.seed)]
        write_json(run.spec.folder.path / "environment.json", found)


def read_inspection(run: Run) -> list[Finding]:
    """The findings of the child."""
    return [Finding(**found) for found in read_json(run.spec.folder.path / "environment.json")]


def inspect(spec: EnvSpec, steps: int, seed: int) -> list[Finding]:
    """All checks of one environment, in this process. Raises what its constructor raises."""
    findings = list(_native_findings(spec, steps, seed))
    before = running_threads()
    environment = spec.make(seed, evaluation=False)
    try:
        findings.append(_describe(spec, environment))
        findings += _contract(environment, steps, seed, spec.step_cap)
        findings.append(_threads(running_threads() - before))
        if any(finding.verdict == "FAIL" for finding in findings):
            return findings  # further checks would only repeat it
        findings.append(_determinism(spec, seed))
        findings.append(_restoring(environment, seed))
    finally:
        environment.close()
    return findings


def spaces_of(environment: Environment) -> Spaces:
    """The spaces that every environment made from a spec has."""
    spaces: Spaces = environment.spaces  # type: ignore[attr-defined]
    return spaces


def _describe(spec: EnvSpec, environment: Environment) -> Finding:
    line = spec.describe(spaces_of(environment)).removeprefix(f"{spec.env_id}: ")
    return Finding("spaces", "ok", line)


def _actions(spaces: Spaces, seed: int) -> Iterator[Any]:
    """Endless random actions; a continuous one is between its bounds, near 0 if there are none."""
    random = np.random.default_rng(seed)
    lowest, highest = np.array(spaces.action_low), np.array(spaces.action_high)
    # Where a bound is missing, -1 or 1, or 1 beyond the other bound.
    low = np.where(lowest < -1e6, np.minimum(-1.0, highest - 1), lowest)
    high = np.where(highest > 1e6, np.maximum(1.0, lowest + 1), highest)
    while True:
        if spaces.is_continuous:
            yield random.uniform(low, high).astype(np.float32)
        else:
            yield int(random.integers(spaces.actions))


def _contract(environment: Environment, steps: int, seed: int, step_cap: int) -> Iterator[Finding]:
    """Observations, rewards and ends of episodes as a worker gets them, and the time they take."""
    spaces = spaces_of(environment)
    actions = _actions(spaces, seed)
    ends, done, scores = {"terminated": 0, "truncated": 0}, 0, [0.0]
    began = time.perf_counter()
    try:
        observations = [environment.reset()]
        problem = _problem(observations[0], spaces)
        while done < steps and not problem and time.perf_counter() - began < LONGEST_SECONDS:
            observation, reward, terminated, truncated, _ = environment.step(next(actions))
            done += 1
            problem = _problem(observation, spaces)
            if not math.isfinite(reward):
                problem = f"the reward is {reward}"
            scores[-1] += reward
            ends["terminated"] += terminated
            ends["truncated"] += truncated and not terminated
            if terminated or truncated:
                problem = problem or _problem(environment.reset(), spaces)
                scores.append(0.0)
    except Exception as error:
        problem = one_line(error)
    seconds = (time.perf_counter() - began) / max(1, done)
    yield judge(
        "random steps",
        not problem and done > 0,
        f"{done} steps, {len(scores)} episodes, first return {scores[0]:g}"
        if not problem
        else f"after {done} steps: {problem}",
        "correct the environment: one such step would poison the shared network for all workers",
    )
    yield advise(
        "ends of episodes",
        sum(ends.values()) > 0 or step_cap > 0,
        f"{ends['terminated']} terminated, {ends['truncated']} truncated"
        + (f", at most {step_cap:,} steps long" if step_cap else ""),
        "no episode ended; if none ever does, no score is counted: give --max-episode-steps",
    )
    yield advise(
        "time per step",
        seconds <= SLOW_STEP_SECONDS,
        f"{1e6 * seconds:,.0f} us, {1 / max(seconds, 1e-9):,.0f} steps/s in one process",
        f"{1e6 * seconds / 3600:,.0f} hours per million steps and worker: make the environment faster",
    )


def _threads(started: int) -> Finding:
    return advise(
        "threads it starts",
        started <= 0,
        f"{max(0, started)} beside the worker's own",
        "if those compute, workers fight for cores: ask the environment's package for one thread",
    )


def _problem(observation: NDArray[Any], spaces: Spaces) -> str:
    """What is wrong with an observation; "" if nothing."""
    if observation.shape != spaces.observation_shape:
        return f"the observation has the shape {list(observation.shape)}, not {list(spaces.observation_shape)}"
    if observation.dtype.name != spaces.observation_dtype:
        return f"the observation is {observation.dtype}, not {spaces.observation_dtype}"
    if not np.isfinite(observation).all():
        return "the observation holds a NaN or an infinity"
    return ""


def _trace(environment: Environment, actions: Iterator[Any], steps: int, reset: bool = True) -> Trace:
    """What `steps` steps return, with new episodes after each end."""
    trace: Trace = []
    if reset:
        trace.append((environment.reset().tobytes(), 0.0, False, False, False))
    for _ in range(steps):
        observation, reward, terminated, truncated, life_lost = environment.step(next(actions))
        trace.append((observation.tobytes(), reward, terminated, truncated, life_lost))
        if terminated or truncated:
            trace.append((environment.reset().tobytes(), 0.0, False, False, False))
    return trace


def _first_difference(one: Trace, other: Trace) -> int | None:
    """The first step where two traces differ; None if they do not."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)


def _determinism(spec: EnvSpec, seed: int) -> Finding:
    """Equal seeds and actions give equal episodes."""
    traces = []
    for _ in range(2):
        environment = spec.make(seed, evaluation=False)
        try:
            traces.append(_trace(environment, _actions(spaces_of(environment), seed), REPLAYED_STEPS))
        finally:
            environment.close()
    place = _first_difference(*traces)
    return judge(
        "a seed repeats an episode",
        place is None,
        f"{REPLAYED_STEPS} steps twice: " + ("equal" if place is None else f"they differ from step {place} on"),
        "call super().reset(seed=seed) and draw everything random from self.np_random",
    )


def _restoring(environment: Environment, seed: int) -> Finding:
    """Whether a saved state can be restored."""
    environment.reset()
    taken = state_of(environment)
    if taken is None:
        return Finding("state can be restored", "note", "no", "resumed runs begin new episodes, which does no harm")
    first = _trace(environment, _actions(spaces_of(environment), seed), REPLAYED_STEPS, reset=False)
    restore(environment, taken)
    place = _first_difference(first, _trace(environment, _actions(spaces_of(environment), seed), REPLAYED_STEPS, False))
    return judge(
        "state can be restored",
        place is None,
        f"{REPLAYED_STEPS} steps again: " + ("equal" if place is None else f"they differ from step {place} on"),
        "state() must contain everything that future steps depend on, also the random generator",
    )


class Listener(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes where the return values of a Gymnasium environment break its promises; changes nothing."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.problems: dict[str, str] = {}
        """The first problem of each kind: observation, reward, flags, info."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As the environment does, its answer looked at."""
        result = self.env.reset(seed=seed, options=options)
        if isinstance(result, tuple) and len(result) == 2:
            self._look(result[0], result[1], "reset")
        else:
            self.problems.setdefault("info", "reset() does not return (observation, info)")
        return result

    def step(self, action: Any) -> Any:
        """As the environment does, its answer looked at."""
        result = self.env.step(action)
        if not (isinstance(result, tuple) and len(result) == 5):
            self.problems.setdefault("flags", "step() does not return five values")
            return result
        observation, reward, terminated, truncated, info = result
        self._look(observation, info, "step")
        number: Any = reward
        if isinstance(number, bool) or not isinstance(number, int | float | np.integer | np.floating):
            self.problems.setdefault("reward", f"the reward is a {type(reward).__name__}, not a number")
        elif not math.isfinite(number):
            self.problems.setdefault("reward", f"the reward is {reward}")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                self.problems.setdefault("flags", f"{name} is a {type(flag).__name__}, not a bool")
        return result

    def _look(self, observation: Any, info: Any, where: str) -> None:
        space = self.observation_space
        if not space.contains(observation):
            promised, seen = _form(space), _form(observation)
            more = "" if promised != seen else f", values {np.min(observation):g} to {np.max(observation):g}"
            self.problems.setdefault("observation", f"{where}() observes {seen}{more}, outside the space {promised}")
        if not isinstance(info, dict):
            self.problems.setdefault("info", f"the info of {where}() is a {type(info).__name__}, not a dict")


def _form(thing: Any) -> str:
    """Type and shape of an observation, or those that a space promises."""
    dtype, shape = getattr(thing, "dtype", None), getattr(thing, "shape", None)
    return type(thing).__name__ if dtype is None else f"{dtype}{list(shape or ())}"


def _remedy_of_reward(problem: str) -> str:
    if problem.endswith("not a number"):
        return "return a Python float"
    return "look where step() computes it: a division by 0 or the logarithm of 0 gives such a value"


def _native_findings(spec: EnvSpec, steps: int, seed: int) -> Iterator[Finding]:
    """What a Gymnasium environment returns, before it is converted; nothing for those of our own."""
    environment = spec.make(seed, evaluation=False)
    if not hasattr(environment, "wrap_native"):
        environment.close()
        return
    environment.wrap_native(Listener)
    listener: Listener = environment.native  # type: ignore[attr-defined]
    done = 0
    try:
        actions = _actions(spaces_of(environment), seed)
        environment.reset()
        until = time.perf_counter() + LONGEST_SECONDS
        while done < steps and time.perf_counter() < until:
            done += 1
            _, _, terminated, truncated, _ = environment.step(next(actions))
            if terminated or truncated:
                environment.reset()
    except Exception as error:  # told in full by the steps that follow
        listener.problems.setdefault("raised", one_line(error))
    finally:
        environment.close()
    for kind, name, remedy in (
        ("observation", "observations are in their space", "correct observation_space: its shape, dtype and bounds"),
        ("reward", "rewards are finite numbers", _remedy_of_reward(listener.problems.get("reward", ""))),
        ("flags", "terminated and truncated are bools", "return (observation, reward, terminated, truncated, info)"),
        ("info", "info is a dict", "reset() returns (observation, info), info a dict that may be empty"),
    ):
        problem = listener.problems.get(kind, "")
        rule = advise if kind == "observation" and problem.count("values") else judge
        yield rule(name, not problem, problem or f"{done} steps", remedy)
