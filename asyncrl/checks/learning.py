"""Does learning reach the shared memory as the paper says? A few updates of real workers, computed a second time.

A worker is built and run exactly as in a run (`build_worker`, in its own process), but its agent and store are
recorded. The records are compared with arithmetic done here: gradients by `backward`, parameters and statistics by
applying each gradient once to private copies, returns step by step from their definition.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import torch
from torch import Tensor

from asyncrl.backends import processes
from asyncrl.checks.finding import Finding, judge
from asyncrl.checks.machine import open_files
from asyncrl.core.flat import clip_by_norm
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Extras, Rollout, State
from asyncrl.core.schedules import crossed
from asyncrl.runtime.clock import RUNNING
from asyncrl.runtime.protocols import Agent, Receipt, Store, Update
from asyncrl.runtime.replica import Replica
from asyncrl.runtime.run import Run, build_agent, build_worker

UPDATES = 3
"""Updates of each worker: stale or summed gradients show from the second update on."""
PUSHES_AT_ONCE = 2_000
"""Updates of each worker while the other makes its own: a tenth of a second on an idle machine."""
MOST_LOST = 0.25
"""Share of them that may be lost without suspicion: Hogwild loses one when two workers write a number at once."""
TOLERANCE = 1e-5
"""Largest accepted difference between what was seen and what was recomputed, relative to the largest number."""
ANSWER_SECONDS = 120.0
"""Seconds for a child that takes one second on an idle machine."""

Target = Callable[[Run, int], None]
"""The main function of a child."""


class NoAnswer(Exception):
    """A child ended or was killed without a result; the message says how in one line."""


@dataclass
class Heard:
    """What was recorded of one worker: U updates of P parameters."""

    local: list[Tensor] = field(default_factory=list)
    """theta' `[P]` when each loss was computed."""
    true_gradients: list[Tensor] = field(default_factory=list)
    """`[P]` by `backward`, from the same rollout and theta'."""
    gradients: list[Tensor] = field(default_factory=list)
    """`[P]` as handed to the store."""
    learning_rates: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """T after each update."""
    targets: list[Tensor] = field(default_factory=list)
    """theta^- `[P]` after each update; empty without a target network."""
    thetas: list[Tensor] = field(default_factory=list)
    """theta `[P]` after each update."""
    target_matters: list[bool] = field(default_factory=list)
    """Whether changing the shared theta^- changed the loss."""
    value_losses: list[tuple[float, float]] = field(default_factory=list)
    """A3C's value loss: from its page, and from the definition of the n-step return."""
    truncations: list[tuple[float, bool]] = field(default_factory=list)
    """For each truncated episode: the discount at its end, and whether its last real observation was kept."""
    actions: list[int] = field(default_factory=list)
    threads: dict[str, int] = field(default_factory=dict)
    started_by: int = 0
    """The parent process, as the child sees it."""


class ListeningStore:
    """The run's store; records what passes through it."""

    def __init__(self, store: Store, heard: Heard) -> None:
        self._store, self._heard = store, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def push(self, update: Update) -> Receipt:
        """Pass a gradient on."""
        self._heard.gradients.append(update.gradient.clone())
        receipt = self._store.push(update)
        self._heard.learning_rates.append(receipt.learning_rate)
        self._heard.thetas.append(self._store.snapshot())
        return receipt


class Replay:
    """An environment that repeats a worker's actions, to see where a time limit cuts."""

    def __init__(self, run: Run, heard: Heard) -> None:
        self._environment = run.spec.environment.make(0, evaluation=False)
        self._environment.reset()
        self._heard = heard

    def follow(self, rollout: Rollout) -> None:
        """Repeat a rollout's actions, in the only environment of a worker."""
        finals = () if rollout.final_observations is None else tuple(rollout.final_observations)
        kept = dict(zip(rollout.truncated[0].tolist(), finals, strict=True))
        for t, action in enumerate(rollout.actions[:, 0].tolist()):
            observation, _, terminated, truncated, _ = self._environment.step(action)
            if truncated:
                same = t in kept and np.array_equal(kept[t].numpy(), observation)
                self._heard.truncations.append((float(rollout.discounts[t, 0]), same))
            if terminated or truncated:
                self._environment.reset()


class ListeningAgent:
    """The page's agent; records what its loss was computed from."""

    def __init__(self, agent: Agent, replica: Replica, run: Run, heard: Heard) -> None:
        self._agent, self._target, self._heard = agent, replica.target, heard
        self.network, self.exploration, self.generator = agent.network, agent.exploration, agent.generator
        self._replay = Replay(run, heard)

    def initial_state(self, environments: int) -> State:
        """As the page has it."""
        return self._agent.initial_state(environments)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """As the page has it."""
        return self._agent.act(observations, state, steps)

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """The page's loss, computed a second time by other means."""
        parameters = list(self.network.parameters())
        self._heard.local.append(joined(parameters))
        self._agent.loss(rollout)[0].backward()  # type: ignore[no-untyped-call]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self._heard.true_gradients.append(joined(gradients))
        self.network.zero_grad()
        loss, metrics = self._agent.loss(rollout)
        target = self._target
        if target is None:
            self._heard.value_losses.append((float(metrics()["value_loss"]), self._value_loss(rollout)))
        else:
            before = target.clone()
            target.add_(1.0)
            self._heard.target_matters.append(not torch.equal(self._agent.loss(rollout)[0], loss))
            target.copy_(before)
        self._replay.follow(rollout)
        return loss, metrics

    @torch.no_grad()
    def _value_loss(self, rollout: Rollout) -> float:
        """Mean of (R_t - V(s_t))^2 of one environment, R_t step by step as Algorithm S3 has it."""
        _, values, _ = self.network(rollout.observations, rollout.state, rollout.last)
        following = values[1:, 0].tolist()
        for k, t in enumerate(rollout.truncated[0]):
            assert rollout.final_observations is not None
            following[t] = float(self.network(rollout.final_observations[k][None, None], None)[1])
        total, errors = following[-1], []
        for t in reversed(range(rollout.steps)):
            after = following[t] if rollout.last[t, 0] else total
            total = float(rollout.rewards[t, 0]) + float(rollout.discounts[t, 0]) * after
            errors.append((total - float(values[t, 0])) ** 2)
        return float(np.mean(errors))


def listen(run: Run, worker: int) -> Heard:
    """Make UPDATES updates as worker `worker` of the run, in this process; returns what was recorded."""
    heard = Heard(threads=threads(), started_by=os.getppid())
    store = cast(Store, ListeningStore(run.handles.store, heard))
    listening = replace(run, handles=replace(run.handles, store=store))

    def make_agent(_: Run, number: int) -> tuple[Agent, Replica]:
        agent, replica = build_agent(run, number)
        return ListeningAgent(agent, replica, run, heard), replica

    run.handles.clock.enter(worker, RUNNING)
    target = torch.zeros_like(run.handles.store.snapshot())
    with closing(build_worker(listening, worker, make_agent)) as role:
        next(role.loop)
        for _ in range(UPDATES):
            next(role.loop)  # pushes the gradient, and computes the next
            heard.steps.append(run.handles.clock.steps)
            if run.handles.store.state().get("target") is not None:
                run.handles.store.target(target)
                heard.targets.append(target.clone())
    for ahead in (heard.local, heard.true_gradients):
        del ahead[len(heard.gradients) :]  # the last gradient was computed but not pushed
    return heard


def listen_in_child(run: Run, worker: int) -> None:
    """`listen`, as the main function of a child; what was recorded goes into a file of the run's folder."""
    torch.save(asdict(listen(run, worker)), file_of(run, worker))


def hear(context: BaseContext, run: Run, worker: int, target: Target = listen_in_child) -> Heard:
    """Let a real worker process make updates; returns what was recorded. Raises NoAnswer if it breaks."""
    run_child(context, target, run, worker)
    return read(run, worker)


def read(run: Run, worker: int) -> Heard:
    """What `listen_in_child` wrote."""
    return Heard(**read_plain(run, worker))


def read_plain(run: Run, worker: int) -> dict[str, Any]:
    """What a child wrote, as plain data."""
    return cast(dict[str, Any], torch.load(file_of(run, worker), weights_only=True))


def run_child(context: BaseContext, target: Target, run: Run, worker: int, seconds: float = ANSWER_SECONDS) -> int:
    """Run `target` in a child as a run starts its workers; returns the largest number of files this process had open.

    Raises NoAnswer if the child fails, or does not end within `seconds`.
    """
    return run_children(context, target, run, [worker], seconds)


def run_children(
    context: BaseContext, target: Target, run: Run, workers: Sequence[int], seconds: float = ANSWER_SECONDS
) -> int:
    """The same for several children at once; if one breaks, all are killed."""
    children: list[BaseProcess] = []
    try:
        children += [processes.start(context, target, run, worker) for worker in workers]
        deadline = time.monotonic() + seconds
        most = open_files()
        while (running := [child for child in children if child.exitcode is None]) and time.monotonic() < deadline:
            most = max(most, open_files())
            if any(child.exitcode for child in children):
                break
            running[0].join(0.02)
        for worker, child in zip(workers, children, strict=True):
            if child.exitcode:
                raise NoAnswer(processes.end_of(child, run.handles.clock, worker, run.spec.folder).cause)
        if any(child.exitcode is None for child in children):
            raise NoAnswer(f"gave no answer within {seconds:.0f} s")
        return most
    finally:
        processes.end_now(children)


def threads() -> dict[str, int]:
    """How many threads each library of this process computes with."""
    return {
        "torch": torch.get_num_threads(),
        "torch interop": torch.get_num_interop_threads(),
        "cv2": cv2.getNumThreads(),
    }


def check_gradients(heard: Sequence[Heard]) -> Finding:
    """Each worker pushed the gradient of its own loss at its own theta', not an old or a summed one."""
    seen, true = _all(heard, "gradients"), _all(heard, "true_gradients")
    error = difference(seen, true)
    return judge(
        "the gradient is the true one",
        len(seen) == len(true) and error <= TOLERANCE and bool(seen.any()),
        f"{len(seen)} updates by {len(heard)} processes, largest difference {error:.1e}",
        "gradients are stale, summed or aliased: look at core/flat.py gradient_of and the page's loss",
    )


def check_theta(run: Run, initial: Tensor, heard: Sequence[Heard]) -> Finding:
    """theta equals a copy to which each gradient was applied once. The workers ran one after the other."""
    theta = run.handles.store.snapshot()
    error = difference(theta, apply_again(run, initial, heard)[0][-1])
    moved = float((theta - initial).abs().max())
    return judge(
        "each reaches theta exactly once",
        error <= TOLERANCE and moved > 0,
        f"theta moved by {moved:.1e}, difference to applying each once {error:.1e}",
        "the store lost a gradient or applied it more than once: look at SharedStore.push; is theta in shared memory?",
    )


def check_pulls(
    run: Run, initial: Tensor, heard: Sequence[Heard], check: str = "workers pull theta before each rollout"
) -> Finding:
    """Every loss was computed at theta after the previous update."""
    expected = torch.stack(apply_again(run, initial, heard)[0][:-1])
    error = difference(_all(heard, "local"), expected)
    return judge(
        check,
        error <= TOLERANCE,
        f"{len(expected)} pulls, largest difference of theta' to theta {error:.1e}",
        "workers act on old parameters: look at SharedStore.pull and at what flatten_parameters binds",
    )


def check_statistics(run: Run, initial: Tensor, heard: Sequence[Heard]) -> Finding:
    """The optimiser's statistics are one set for all workers, or one for each, as set."""
    wanted = "per-worker" if run.spec.config.per_worker_statistics else "shared"
    shape = apply_again(run, initial, heard)[1]
    statistics = run.handles.store.state()["statistics"]
    same = statistics.shape == shape.shape and difference(statistics, shape) <= TOLERANCE
    return judge(
        f"statistics are {wanted.replace('-', ' ')}",
        same and bool(statistics.any()),
        f"{' x '.join(f'{size:,}' for size in statistics.shape)} numbers, {run.spec.config.workers} workers",
        f"the statistics are not {wanted} or were made in a worker: they must be allocated with the store",
    )


def apply_again(run: Run, initial: Tensor, heard: Sequence[Heard]) -> tuple[list[Tensor], Tensor]:
    """theta `[P]` before and after each update heard, and the statistics `[owners, S, P]` at the end."""
    config = run.spec.config
    rule, theta = config.update_rule, initial.clone()
    shared = not config.per_worker_statistics
    statistics = torch.zeros(1 if shared else config.workers, rule.statistics, len(initial))
    thetas, updates = [theta.clone()], [0] * len(statistics)
    for worker, one in enumerate(heard):
        owner = 0 if shared else worker
        for pushed, eta in zip(one.gradients, one.learning_rates, strict=True):
            gradient = pushed.clone()
            clip_by_norm(gradient, config.max_gradient_norm)
            rule.apply(theta, gradient, statistics[owner], eta, updates[owner])
            updates[owner] += 1
            thetas.append(theta.clone())
    return thetas, statistics


def check_target(initial: Tensor, heard: Heard, period: int, counted: str = "T") -> Finding:
    """The loss depends on the shared theta^-, which becomes theta when T crosses a multiple, and only then.

    `counted` says what `heard.steps` counts.
    """
    expected, before, refreshes = initial, 0, 0
    right = all(heard.target_matters)
    for theta, target, steps in zip(heard.thetas, heard.targets, heard.steps, strict=True):
        if crossed(before, steps, period):
            expected, before, refreshes = theta, steps, refreshes + 1
        right = right and torch.equal(target, expected)
    return judge(
        "the target network is shared, and refreshed",
        right and refreshes > 0,
        f"{counted} went to {heard.steps[-1]}, {refreshes} refresh at a multiple of {period}",
        "theta^- is private or stale: look at build_agent's target and SharedStore.push",
    )


def check_truncation(run: Run, heard: Sequence[Heard]) -> Finding:
    """A time limit keeps its discount, its last real observation, and its value in the return."""
    cuts = [cut for one in heard for cut in one.truncations]
    pairs = [pair for one in heard for pair in one.value_losses]
    error = difference(*torch.tensor(pairs).unbind(1)) if pairs else 0.0
    kept = [np.isclose(discount, run.spec.config.gamma) and same for discount, same in cuts]
    return judge(
        "truncation bootstraps",
        bool(cuts) and all(kept) and error <= TOLERANCE,
        f"{sum(map(bool, kept))} of {len(cuts)} cut episodes kept their last observation; "
        + (f"returns differ by {error:.1e}" if pairs else "returns were not checked"),
        "a time limit is treated as a termination: look at Collector._step and Rollout.next_values",
    )


def check_threads(heard: Sequence[Heard]) -> Finding:
    """Every library of a worker computes in one thread."""
    most = {name: max(one.threads[name] for one in heard) for name in heard[0].threads}
    return judge(
        "one thread per worker",
        all(number == 1 for number in most.values()),
        ", ".join(f"{name} {number}" for name, number in most.items()),
        "workers fight for cores: look for set_num_threads in your own code, and at runtime/threads.py",
    )


def check_start_method(method: str, wanted: str, heard: Sequence[Heard]) -> Finding:
    """Children are not forked from the command, whose locks and threads they would copy."""
    forked = any(one.started_by == os.getpid() for one in heard) and wanted == "forkserver"
    return judge(
        "start method",
        method == wanted and not forked,
        f"{method}" + (", by the command itself" if forked else ""),
        f"workers must be started by {wanted}: a fork copies locks that nobody will release",
    )


def push_at_once(run: Run, worker: int) -> None:
    """The main function of a child: push, at the same time as the other workers, gradients of 1 in a part of theta.

    Each worker has a part of its own, so each number moves by one learning rate per update of one worker.
    """
    store, clock = run.handles.store, run.handles.clock
    gradient = torch.zeros_like(store.snapshot())
    gradient.chunk(run.spec.config.workers)[worker].fill_(1.0)
    clock.enter(worker, RUNNING)
    while min(clock.phases()) < RUNNING:
        time.sleep(0)
    for _ in range(PUSHES_AT_ONCE):
        store.push(Update(worker, gradient.clone(), version=0, steps=0))


def check_at_once(run: Run, initial: Tensor) -> Finding:
    """Of what `push_at_once` pushed by plain SGD nothing was applied twice, and little was lost."""
    applied = ((initial - run.handles.store.snapshot()) / run.spec.config.learning_rate).round()
    twice, share = int((applied - PUSHES_AT_ONCE).clamp(min=0).sum()), float(applied.mean()) / PUSHES_AT_ONCE
    return judge(
        "each once, pushed at the same time",
        not twice and share >= 1 - MOST_LOST,
        f"{run.spec.config.workers} x {PUSHES_AT_ONCE:,} updates: {share:.3%} applied, {twice:,} twice",
        "the update rule reads back what others write meanwhile: look at core/updates.py",
    )


def file_of(run: Run, worker: int) -> Path:
    """Where a child writes what was recorded of it."""
    return run.spec.folder.path / f"heard-{worker}.pt"


def _all(heard: Sequence[Heard], name: str) -> Tensor:
    return torch.stack([tensor for one in heard for tensor in getattr(one, name)])


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def difference(seen: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest number expected; infinite for other shapes or a NaN."""
    if seen.shape != expected.shape:
        return float("inf")
    difference = float((seen - expected).abs().max()) / max(float(expected.abs().max()), 1e-12)
    return difference if np.isfinite(difference) else float("inf")
