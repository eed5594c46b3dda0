"""All workers in one process, in turns: runs are repeatable bit for bit."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.backends.handles import shared as share  # noqa: F401  (as every backend)
from asyncrl.backends.outcome import Outcome, Signals, finished, stopped
from asyncrl.config.run_config import RunConfig, to_plain
from asyncrl.core.errors import UsageError
from asyncrl.core.user_code import watched
from asyncrl.runtime.clock import ENDED, FINISH, RUNNING
from asyncrl.runtime.evaluator import Evaluator
from asyncrl.runtime.monitor import Monitor, View, no_state
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.roles import Role, build_learner, build_worker
from asyncrl.runtime.run import Run
from asyncrl.runtime.seeding import SCHEDULE, derive
from asyncrl.storage.checkpoints import Checkpoint
from asyncrl.storage.files import plain


def refuse(plan: Plan) -> None:
    """Nothing: all methods run here."""


def run(run: Run, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Follow the run to its end in this process."""
    with watched(run.spec.config.hang_seconds), ExitStack() as stack:
        # Each worker is closed whatever happens: that is when it writes its last row.
        roles = [stack.enter_context(closing(build_worker(run, worker))) for worker in range(run.spec.config.workers)]
        learners = run.handles.clock.learners
        roles += [stack.enter_context(closing(build_learner(run, learner))) for learner in learners]
        evaluator = stack.enter_context(Evaluator(run, interrupted=lambda: signals.first is not None))
        turns = Turns(run, roles, evaluator)
        try:
            monitor.exact = lambda: split(turns.state(), "exact")
            return _take_turns(run, turns, monitor, view, signals)
        finally:
            monitor.exact = no_state


class Turns:
    """Whose turn it is, and the state needed to resume with exactly that turn."""

    def __init__(self, run: Run, roles: Sequence[Role], evaluator: Evaluator) -> None:
        self.roles = roles
        self.evaluator = evaluator
        self._run = run
        self._part, self._taken = run.spec.part, 0
        if run.spec.exact is not None:
            try:
                self._restore(run.spec.exact)
            except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise UsageError(
                    f"the state of the workers in the checkpoint cannot be used ({type(error).__name__}: {error}); "
                    "with --backend local the run continues without it"
                ) from None
        config = run.spec.config
        seed = derive(config.seed, SCHEDULE, self._part)
        self._schedule = make_schedule(config.schedule, len(self.roles), seed, config.delays)
        for _ in range(self._taken):
            next(self._schedule)

    def _restore(self, state: dict[str, Any]) -> None:
        self._part, self._taken = int(state["part"]), int(state["turns"])
        self._run.handles.moments.restore_rows(state["moments"])
        self.evaluator.restore(state["evaluator"])
        if self._run.handles.experience is not None:
            self._run.handles.experience.restore(state["experience"])
        for role, own in zip(self.roles, state["roles"], strict=True):
            role.restore(own)

    def next(self) -> int:
        """The number of the role whose turn it is: a worker's, or the next one for a learner."""
        self._taken += 1
        return next(self._schedule)

    def state(self) -> dict[str, Any] | None:
        """Everything that is not shared; None if an environment cannot save its state, or a worker has ended."""
        if any(phase == ENDED for phase in self._run.handles.clock.phases()):
            return None
        roles = [role.state() for role in self.roles]
        between = self._run.handles.experience
        experience = None if between is None else between.state()
        evaluator = self.evaluator.state()
        if evaluator is None or any(state is None for state in roles) or (experience is None) != (between is None):
            return None
        return {
            "part": self._part,
            "turns": self._taken,
            "moments": self._run.handles.moments.rows(),
            "evaluator": evaluator,
            "experience": experience,
            "roles": roles,
        }


MAY_CHANGE = {
    "total_steps", "max_seconds", "stop_at_score", "quiet", "resume", "runs_dir", "run_name",
    "checkpoint_interval_steps", "checkpoints_kept", "record_interval_seconds", "on_worker_error",
    "worker_restarts", "hang_seconds", "learning_rate", "learning_rate_schedule", "max_gradient_norm",
}  # fmt: skip
"""Settings that may change when a run resumes exactly: no state depends on them."""


def exact_state(checkpoint: Checkpoint, config: RunConfig) -> dict[str, Any] | None:
    """The state of all workers at the checkpoint; None if it has none, or if the settings have changed."""
    before, now = checkpoint.facts["config"], plain(to_plain(config))
    if checkpoint.facts.get("exact") is None or any(before.get(name) != now[name] for name in now.keys() - MAY_CHANGE):
        return None
    return joined(checkpoint)


def joined(checkpoint: Checkpoint) -> dict[str, Any]:
    """All that the checkpoint holds of the workers. Raises UsageError if it is damaged."""
    step = f"the checkpoint of step {checkpoint.steps}"
    try:
        return dict(join(checkpoint.facts["exact"], checkpoint.tensors))
    except KeyError as error:
        raise UsageError(f"{step} cannot be used: it lacks {error}") from None
    except (TypeError, ValueError, AttributeError, RecursionError):
        raise UsageError(f"{step} cannot be used: the state of its workers is invalid") from None


_TENSOR = "$tensor"


def split(state: Any, prefix: str) -> tuple[Any, dict[str, Tensor]]:
    """Plain JSON data and tensors, named `prefix`, a dot and a number.

    Arrays, tensors and bytes become tensors; dicts, lists, tuples, numbers, texts and None stay.
    """
    tensors: dict[str, Tensor] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, Tensor | np.ndarray | bytes):
            name = f"{prefix}.{len(tensors)}"
            tensor = torch.frombuffer(bytearray(value), dtype=torch.uint8) if isinstance(value, bytes) else value
            tensors[name] = torch.as_tensor(tensor)
            return {_TENSOR: name, "type": type(value).__name__}
        if isinstance(value, Mapping):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [walk(item) for item in value]
        return value

    return walk(state), tensors


def join(data: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `split` was given; tuples come back as lists."""
    if isinstance(data, Mapping):
        if _TENSOR not in data:
            return {key: join(item, tensors) for key, item in data.items()}
        tensor = tensors[data[_TENSOR]]
        if data["type"] == "bytes":
            return tensor.numpy().tobytes()
        return tensor.numpy() if data["type"] == "ndarray" else tensor
    return [join(item, tensors) for item in data] if isinstance(data, list) else data


def _take_turns(run: Run, turns: Turns, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """A turn at a time: push the gradient computed in the turn before, pull, and compute the next."""
    config, clock, evaluator = run.spec.config, run.handles.clock, turns.evaluator
    names = [*range(config.workers), *clock.learners]
    for worker in names:
        clock.enter(worker, RUNNING)
    clock.start()
    for line in monitor.begin():
        view.say(line)

    def evaluate_if_due() -> None:
        if evaluator.due() and not clock.finished():
            evaluator.evaluate()
            monitor.look_at_evaluations()

    evaluate_if_due()  # the run may have been stopped while it evaluated
    running = set(range(len(names)))
    while running:
        if signals.first is None:  # or it was stopped in the evaluation above
            turn = turns.next()
            if turn not in running:
                continue
            if next(turns.roles[turn].loop, ENDED) is ENDED:
                running.discard(turn)
                clock.enter(names[turn], ENDED)
            evaluate_if_due()
        if monitor.look():
            view.show(monitor.summary)
        if signals.first is not None:
            monitor.save_checkpoint()  # before the workers are closed, so that it can go on from this very turn
            return stopped(signals.first)
        if monitor.verdict() is not None:
            clock.stop(FINISH)
    reason = monitor.verdict() or "total_steps reached"
    clock.halt()
    if not evaluator.evaluated_last():
        evaluator.evaluate()
        monitor.look_at_evaluations()  # it may have reached the score
    return finished(monitor.verdict() or reason)


def random_order(workers: int, seed: int) -> Iterator[int]:
    """Each turn goes to a worker sampled uniformly."""
    random = np.random.default_rng(seed)
    while True:
        yield from random.integers(workers, size=1024).tolist()


def by_delays(workers: int, delays: Sequence[float]) -> Iterator[int]:
    """Worker k's turns take `delays[k mod len]` units of time; the worker that is ready first goes next.

    Slow workers' updates are the stale ones, as on a machine with unequal cores.
    """
    ready = [(float(delays[worker % len(delays)]), worker) for worker in range(workers)]
    heapq.heapify(ready)
    while True:
        time, worker = ready[0]
        yield worker
        heapq.heapreplace(ready, (time + delays[worker % len(delays)], worker))


def make_schedule(name: str, workers: int, seed: int, delays: Sequence[float]) -> Iterator[int]:
    """The schedule of that name; `by_delays` if there are any, and with equal ones it is round-robin."""
    return random_order(workers, seed) if name == "random" and not delays else by_delays(workers, delays or (1.0,))
