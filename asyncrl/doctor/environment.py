"""Does an environment keep its promises, and how fast is a worker in it? A few hundred random steps, then training."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.passive_env_checker import env_reset_passive_checker, env_step_passive_checker
from numpy.typing import NDArray

from asyncrl.core.errors import one_line
from asyncrl.core.spaces import Spaces
from asyncrl.doctor import Finding, advise, judge
from asyncrl.envs.environment import Environment, restore_all, states_of
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.clock import RUNNING
from asyncrl.runtime.roles import build_learner, build_worker
from asyncrl.runtime.run import Run
from asyncrl.runtime.threads import running_threads

LONGEST_SECONDS = 4.0
"""Seconds after which the random steps end."""
SLOW_STEP_SECONDS = 0.05
"""Slower environments get a note: a run takes millions of steps."""
REPLAYED_STEPS = 60
"""Steps that are repeated, to see whether a seed or a state reproduces them."""
MEASURED_SECONDS = 2.0
"""How long one worker trains."""


def inspect_own(steps: int, seed: int, run: Run, worker: int) -> list[dict[str, str]]:
    """What there is to say of a run's environment; the findings, as plain data."""
    return [asdict(finding) for finding in inspect(run.spec.environment, steps, seed)]


def inspect(spec: EnvSpec, steps: int, seed: int) -> list[Finding]:
    """All checks of one environment, in this process. Raises what its constructor raises."""
    before = running_threads()
    environment = spec.make(seed, evaluation=False)
    spaces = environment.spaces
    try:
        described = spec.describe(spaces).removeprefix(f"{spec.env_id}: ")
        findings = [*_random_steps(environment, steps, seed, spec.step_cap), Finding("spaces", "ok", described)]
        started = max(0, running_threads() - before)
        remedy = "if those compute, workers compete for cores: limit the environment's package to one thread"
        findings.append(advise("threads it starts", not started, f"{started} besides the worker's own", remedy))
        if any(finding.verdict == "FAIL" for finding in findings):
            return findings  # further checks would only repeat it
        return [*findings, *_repeating(spec, seed), _restoring(spec, seed)]
    finally:
        environment.close()


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


def _valid(action: Any, observation: NDArray[Any], spaces: Spaces) -> Any:
    """A random action as it is, or another one that is valid after this observation."""
    if not spaces.masked or observation[action - spaces.actions]:
        return action
    return int(np.resize(observation[-spaces.actions :].nonzero()[0], spaces.actions)[action])


def _random_steps(environment: Environment, steps: int, seed: int, step_cap: int) -> Iterator[Finding]:
    """Gymnasium's own checks, what a worker gets, and ends of episodes."""
    spaces, native = environment.spaces, hasattr(environment, "wrap_native")
    if native:
        environment.wrap_native(Checked)  # type: ignore[attr-defined]
    problem, done, ends, scores = "", 0, {"terminated": 0, "truncated": 0}, [0.0]
    actions, began = _actions(spaces, seed), time.perf_counter()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            observation = environment.reset()
            problem = _problem(observation, spaces)
            while done < steps and not problem and time.perf_counter() - began < LONGEST_SECONDS:
                observation, reward, terminated, truncated, _ = environment.step(
                    _valid(next(actions), observation, spaces)
                )
                done += 1
                problem = _problem(observation, spaces) or ("" if math.isfinite(reward) else f"the reward is {reward}")
                scores[-1] += reward
                ends["terminated"] += terminated
                ends["truncated"] += truncated and not terminated
                if terminated or truncated:
                    observation = environment.reset()
                    problem = problem or _problem(observation, spaces)
                    scores.append(0.0)
        except Exception as error:
            problem = one_line(error)
    if native:
        yield _rules(warned, done)
    whole = scores[:-1]  # the last one goes on
    figure = f"{done} steps, {len(whole)} episodes" + (f", first return {whole[0]:g}" if whole else "")
    figure = f"after {done} steps: {problem}" if problem else figure
    remedy = "correct the environment: one such step ends a worker, or corrupts the shared network for all of them"
    yield judge("random steps", not problem and done > 0, figure, remedy)
    figure = f"{ends['terminated']} terminated, {ends['truncated']} truncated"
    figure += f", at most {step_cap:,} steps long" if step_cap else ""
    remedy = "no episode ended; if none ever does, no score is counted: give --max-episode-steps"
    yield advise("ends of episodes", sum(ends.values()) > 0 or step_cap > 0, figure, remedy)


def _problem(observation: NDArray[Any], spaces: Spaces) -> str:
    """What is wrong with an observation; "" if nothing."""
    if observation.shape != spaces.observation_shape:
        return f"the observation has the shape {list(observation.shape)}, not {list(spaces.observation_shape)}"
    if observation.dtype.name != spaces.observation_dtype:
        return f"the observation is {observation.dtype}, not {spaces.observation_dtype}"
    return "" if np.isfinite(observation).all() else "the observation contains NaN or infinity"


def _trace(environment: Environment, seed: int, observation: NDArray[Any]) -> list[tuple[Any, ...]]:
    """What random steps after an observation return, with new episodes after each end."""
    trace, spaces = list[tuple[Any, ...]](), environment.spaces
    for _, action in zip(range(REPLAYED_STEPS), _actions(spaces, seed), strict=False):
        action = _valid(action, observation, spaces)
        observation, reward, terminated, truncated, life_lost = environment.step(action)
        trace.append((observation.tobytes(), reward, terminated, truncated, life_lost))
        if terminated or truncated:
            observation = environment.reset()
            trace.append((observation.tobytes(),))
    return trace


def _compare(check: str, how: str, traces: Sequence[Sequence[tuple[Any, ...]]], remedy: str) -> Finding:
    """Whether two traces are the same."""
    place = next((i for i, (one, other) in enumerate(zip(*traces, strict=False)) if one != other), None)
    said = "equal" if place is None else f"they differ from step {place} on"
    return judge(check, place is None, f"{REPLAYED_STEPS} steps {how}: {said}", remedy)


def _repeating(spec: EnvSpec, seed: int) -> list[Finding]:
    """Equal seeds and actions give equal episodes; and how long steps take that nobody looks at."""
    traces, seconds = [], 0.0
    for _ in range(2):
        with closing(spec.make(seed, evaluation=False)) as environment:
            observation = environment.reset()
            first = (observation.tobytes(),)
            began = time.perf_counter()
            traces.append([first, *_trace(environment, seed, observation)])
            seconds += (time.perf_counter() - began) / (2 * REPLAYED_STEPS)
    remedy = "call super().reset(seed=seed) and draw everything random from self.np_random"
    repeats = _compare("a seed repeats an episode", "twice", traces, remedy)
    figure = f"{1e6 * seconds:,.0f} us, {1 / max(seconds, 1e-9):,.0f} steps/s in one process"
    remedy = f"{1e6 * seconds / 3600:,.0f} hours per million steps and worker: speed up the environment"
    return [repeats, advise("time per step", seconds <= SLOW_STEP_SECONDS, figure, remedy)]


def _restoring(spec: EnvSpec, seed: int) -> Finding:
    """Whether a saved state can be restored."""
    with closing(spec.make(seed, evaluation=False)) as environment:
        observation = environment.reset().copy()
        taken = states_of([environment])
        if taken is None:
            return Finding("state can be restored", "note", "no", "resumed runs begin new episodes, which is harmless")
        first = _trace(environment, seed, observation)
        restore_all([environment], taken)
        remedy = "state() must contain everything that future steps depend on, including the random generator"
        return _compare("state can be restored", "again", (first, _trace(environment, seed, observation)), remedy)


class Checked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A Gymnasium environment of which Gymnasium checks every answer: it warns, or raises AssertionError."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment does."""
        return env_reset_passive_checker(self.env, seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment does."""
        return env_step_passive_checker(self.env, action)


def _rules(warned: Sequence[warnings.WarningMessage], done: int) -> Finding:
    """What Gymnasium has warned of. Many environments leave the bounds of their space, which does no harm here."""
    said = [re.search("WARN: (.*?)(\x1b|$)", str(one.message)) for one in warned]
    broken = list(dict.fromkeys(match[1] for match in said if match))
    rule = advise if all(one.endswith("is not within the observation space.") for one in broken) else judge
    return rule("Gymnasium's rules", not broken, " ".join(broken) or f"{done} steps", "correct the environment")


def measure_speed(run: Run, worker: int) -> list[dict[str, str]]:
    """How fast a worker trains, in MEASURED_SECONDS or for one rollout; the finding, as plain data.

    If experience goes to a learner, the learner takes turns in the same process.
    """
    store, clock = run.handles.store, run.handles.clock
    clock.enter(worker, RUNNING)
    clock.start()
    before = clock.steps
    with ExitStack() as stack:
        roles = [stack.enter_context(closing(build_worker(run, worker)))]
        roles += [stack.enter_context(closing(build_learner(run, learner))) for learner in clock.learners]
        began = time.monotonic()
        for _ in zip(*(role.loop for role in roles), strict=True):
            if clock.steps > before and time.monotonic() > began + MEASURED_SECONDS:
                break
        speed = (clock.steps - before) / (time.monotonic() - began)
    dropped = store.counts().dropped_gradients
    figure = f"{speed:,.0f} steps/s training" + (f", {dropped} gradients not finite" if dropped else "")
    remedy = "the loss is not finite here: check the size of rewards and observations, or lower --learning-rate"
    return [asdict(judge("speed of one worker", not dropped, figure, remedy))]
