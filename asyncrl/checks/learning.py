"""Does learning reach the shared memory as the paper says? A few turns of a real run, computed a second time.

Workers, actors and learner are built and run exactly as in a run, each in its own process, but they take turns, so the
right value of theta is known at every moment. A recorder lies around the store, the experience and the agent of each.
The records are compared with arithmetic done here: gradients by `backward`, parameters and statistics by applying each
gradient once to private copies, returns step by step from their definition, transitions from the rows that were put.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithm import GRADIENT, IN_STEP, MEMORY, algorithm_of
from asyncrl.backends import processes
from asyncrl.checks.finding import Finding, judge
from asyncrl.checks.machine import open_files
from asyncrl.core.flat import clip_by_norm
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Minibatch, Part, Rollout, Transitions, at_places
from asyncrl.core.schedules import crossed
from asyncrl.experience.replay import Replay
from asyncrl.experience.steps import ACTION_VALUE, LEAST_PRIORITY, STATE_VALUE
from asyncrl.runtime.clock import RUNNING, shared_zeros
from asyncrl.runtime.loops import Replica
from asyncrl.runtime.protocols import LEARNER, Agent, Batch, Experience, Receipt, Store, Update
from asyncrl.runtime.run import Run, build_agent, build_learner, build_worker

UPDATES = 3
"""Updates of each worker that learns: stale or summed gradients show from the second update on."""
ROUNDS = 3
"""With a learner every actor has two turns in each round, then the learner. In a queue the rollouts of the second turn
grow old; in step there is neither room for them nor a second batch."""
PUSHES_AT_ONCE = 2_000
"""Updates of each worker while the other makes its own: a tenth of a second on an idle machine."""
MOST_LOST = 0.25
"""Share of them that may be lost without suspicion: Hogwild loses one when two workers write a number at once."""
TOLERANCE = 1e-5
"""Largest accepted difference between what was seen and what was recomputed, relative to the largest number."""
ANSWER_SECONDS = 120.0
"""Seconds for a child that takes one second on an idle machine."""

TARGET_NETWORK = "the target network is shared, and refreshed"

Target = Callable[[Run, int], None]
"""The main function of a child."""
Pairs = list[tuple[float, float]]
"""Numbers as they were seen, and as they should be."""


class NoAnswer(Exception):
    """A child ended or was killed without a result; the message says how in one line."""


@dataclass
class Record:
    """What one worker, actor or learner did: updates of P parameters, rollouts that it put, batches that it took."""

    local: list[Tensor] = field(default_factory=list)
    """theta' `[P]` when each loss was computed."""
    true_gradients: list[Tensor] = field(default_factory=list)
    """`[P]` by `backward`, from the same experience and theta'."""
    gradients: list[Tensor] = field(default_factory=list)
    """`[P]` as handed to the store."""
    learning_rates: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """T after each update."""
    thetas: list[Tensor] = field(default_factory=list)
    """theta `[P]` after each update."""
    targets: list[Tensor] = field(default_factory=list)
    """theta^- `[P]` after each update; empty without a target network."""
    target_matters: list[bool] = field(default_factory=list)
    """Whether changing the shared theta^- changed the loss."""
    returns: Pairs = field(default_factory=list)
    """Value losses or returns, from the algorithm and from the definition of the n-step return."""
    truncations: list[tuple[float, bool]] = field(default_factory=list)
    """For each truncated episode: the discount at its end, and whether its last real observation was kept."""
    waits: int = 0
    """Turns in which there was no room for a rollout, or no batch."""
    policies: list[Tensor] = field(default_factory=list)
    """Actor: theta' `[P]` with which each rollout was made."""
    rollouts: list[tuple[int, int]] = field(default_factory=list)
    """For each rollout that was put, or taken in a batch, its version of theta and a checksum."""
    put: list[dict[str, Any]] = field(default_factory=list)
    """Actor: its rollouts, as plain data."""
    versions: list[list[int]] = field(default_factory=list)
    """Learner: the versions of the rollouts in each batch."""
    newest: list[int] = field(default_factory=list)
    """Learner: the version of theta when each batch was taken."""
    log_ratios: list[float] = field(default_factory=list)
    """Learner: largest |log pi / mu| of the steps of a batch made with the current theta."""
    drawn: list[dict[str, Tensor]] = field(default_factory=list)
    """Learner: the fields of each minibatch that a memory gave."""
    places: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """Learner: streams and rows with which the transitions of each minibatch begin."""
    drawn_by: list[Tensor] = field(default_factory=list)
    """Learner: the priorities `[B]` by which each minibatch was sampled."""
    renewed: Pairs = field(default_factory=list)
    """Learner: its new priorities, in the memory and as expected."""
    threads: dict[str, int] = field(default_factory=dict)
    started_by: int = 0
    """The parent process, as the child sees it."""


Records = Mapping[int, Record]
"""What was recorded, by the number of a worker or LEARNER."""


class Recorder:
    """The store or the experience of a run, behind which a subclass records what passes through it."""

    def __init__(self, wrapped: Any, run: Run, record: Record) -> None:
        self._wrapped, self._run, self._record = wrapped, run, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class RecordedStore(Recorder):
    """The run's store; records each update."""

    def push(self, update: Update) -> Receipt:
        """Pass a gradient on."""
        record, store = self._record, self._run.handles.store
        record.gradients.append(update.gradient.clone())
        receipt = store.push(update)
        record.learning_rates.append(receipt.learning_rate)
        record.thetas.append(store.snapshot())
        record.steps.append(self._run.handles.clock.steps)
        if store.state().get("target") is not None:
            target = torch.zeros_like(record.thetas[-1])
            store.target(target)
            record.targets.append(target)
        return receipt


class RecordedExperience(Recorder):
    """The run's rollouts or memory; records what passes through."""

    def __init__(self, wrapped: Any, run: Run, record: Record) -> None:
        super().__init__(wrapped, run, record)
        self.policy = Tensor()
        """theta' `[P]` of the actor that puts."""
        self.followed: Followed | None = None
        """Repeats that actor's actions."""
        self._places: tuple[list[int], list[int]] = [], []
        if isinstance(wrapped, Replay):
            read = wrapped.steps.read

            def recorded(streams: Any, rows: Any) -> Any:
                self._places = streams.tolist(), rows.tolist()
                return read(streams, rows)

            wrapped.steps.read = recorded  # type: ignore[method-assign]

    def put(self, actor: int, rollout: Rollout, version: int) -> Receipt:
        """Pass a rollout on."""
        self._record.rollouts.append((version, sum_of(rollout, slice(None))))
        self._record.put.append(rollout.as_dict())
        self._record.policies.append(self.policy.clone())
        if self.followed is not None:
            self.followed.follow(rollout)
        return cast(Receipt, self._wrapped.put(actor, rollout, version))

    def take(self, learner: int = LEARNER) -> Batch | None:
        """Pass a batch on."""
        batch: Batch | None = self._wrapped.take(learner)
        if batch is not None and isinstance(batch.rollout, Transitions):
            fields = ("observations", "actions", "rewards", "discounts", "last", "following", "weights")
            self._record.drawn.append({name: getattr(batch.rollout, name).clone() for name in fields})
            self._record.places.append(self._places)
            if batch.keys is not None:
                self._record.drawn_by.append(self._wrapped.priorities(batch.keys, learner))
        elif batch is not None:
            rollout = cast(Rollout, batch.rollout)
            width = rollout.rewards.shape[1] // len(batch.versions)
            sums = [sum_of(rollout, slice(i * width, (i + 1) * width)) for i in range(len(batch.versions))]
            self._record.rollouts += zip(batch.versions, sums, strict=True)
            self._record.versions.append(batch.versions)
            self._record.newest.append(self._run.handles.store.updates)
        return batch

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Pass errors on, and record the resulting priorities."""
        self._wrapped.feedback(keys, errors, learner)
        own = dict(zip(keys.tolist(), errors.tolist(), strict=True))  # for one that was sampled twice, the last counts
        exponent = self._wrapped.plan.priority_exponent
        for key, priority in zip(keys.tolist(), self._wrapped.priorities(keys, learner).tolist(), strict=True):
            self._record.renewed.append((priority, (abs(own[key]) + LEAST_PRIORITY) ** exponent))


def sum_of(rollout: Rollout, columns: slice) -> int:
    """A checksum of everything in some environments' columns of a rollout."""
    total = 0
    held = (rollout.observations, rollout.actions, rollout.rewards, rollout.discounts, rollout.last)
    for tensor in (*held, *rollout.extras.values()):
        total = zlib.crc32(tensor[:, columns].contiguous().numpy().tobytes(), total)
    return total


class Followed:
    """An environment that repeats a worker's actions, to see where a time limit cuts."""

    def __init__(self, run: Run, record: Record) -> None:
        self._environment = run.spec.environment.make(0, evaluation=False)
        self._environment.reset()
        self._record = record

    def follow(self, rollout: Rollout) -> None:
        """Repeat a rollout's actions, in the only environment of a worker."""
        finals = () if rollout.final_observations is None else tuple(rollout.final_observations)
        kept = dict(zip(rollout.truncated[0].tolist(), finals, strict=True))
        for t, action in enumerate(rollout.actions[:, 0].tolist()):
            observation, _, terminated, truncated, _ = self._environment.step(action)
            if truncated:
                same = t in kept and np.array_equal(kept[t].numpy(), observation)
                self._record.truncations.append((float(rollout.discounts[t, 0]), same))
            if terminated or truncated:
                self._environment.reset()


class RecordedAgent(Recorder):
    """The algorithm's agent; records what its losses were computed from, and computes them by other means."""

    def __init__(
        self, wrapped: Agent, run: Run, record: Record, target: Tensor | None, followed: Followed | None
    ) -> None:
        super().__init__(wrapped, run, record)
        self._target, self._followed = target, followed
        self._expected: float | None = None
        """The expected value loss of the batch, if it is known."""

    def passes(self, batch: Any) -> Iterator[Part]:
        """The algorithm's, after checking a batch of rollouts with the current theta."""
        returns, prepared = None, []
        if isinstance(batch, Rollout) and hasattr(self.network, "policy_at"):  # a policy and a value
            fresh = torch.tensor(self._record.versions[-1]) == self._record.newest[-1]
            returns = self._check_batch(batch, fresh.repeat_interleave(batch.rewards.shape[1] // len(fresh)))
        for part in self._wrapped.passes(batch):
            if isinstance(part, Minibatch) and "return" in part.extras:
                prepared.append(part.extras["return"].flatten())
            yield part
        if prepared and returns is not None:
            seen = torch.cat(prepared).sort().values
            expected = returns.flatten().repeat(len(seen) // returns.numel()).sort().values
            if len(seen) == len(expected):  # whole passes over the batch
                self._record.returns += zip(seen.tolist(), expected.tolist(), strict=True)

    @torch.no_grad()
    def _check_batch(self, batch: Rollout, fresh: Tensor) -> Tensor:
        """Record ratios and the expected value loss; returns R `[T, B]`. `fresh` `[B]`: made with the current theta."""
        policy, values, states = self.network(batch.observations, batch.state, batch.last)
        if "log_probability" in batch.extras and bool(fresh.any()):
            now = policy[:-1].log_probability(batch.actions)
            self._record.log_ratios.append(float((now - batch.extras["log_probability"])[:, fresh].abs().max()))
        following = values[1:].clone()
        if batch.final_observations is not None:
            finals = self.network(batch.final_observations[None], at_places(states, *batch.truncated))[1][0]
            for t, e, value in zip(*batch.truncated, finals, strict=True):
                following[t, e] = value
        returns = returns_of(batch, following)
        same_policy = bool(fresh.all()) or "log_probability" not in batch.extras
        self._expected = float((returns - values[:-1]).square().mean()) if same_policy else None
        return returns

    def loss(self, part: Any) -> tuple[Tensor, Metrics]:
        """The algorithm's loss; its gradient and its value loss a second time by other means."""
        parameters = list(self.network.parameters())
        self._record.local.append(joined(parameters))
        self._wrapped.loss(part)[0].backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self._record.true_gradients.append(joined(gradients))
        self.network.zero_grad()
        if self._target is not None:
            true = self._wrapped.loss(part)[0]
            before = self._target.clone()
            self._target.add_(1.0)
            self._record.target_matters.append(not torch.equal(self._wrapped.loss(part)[0], true))
            self._target.copy_(before)
        if self._followed is not None:  # a worker, which learns from its own rollout
            self._followed.follow(part)
            if hasattr(self.network, "policy_at"):
                self._check_batch(part, torch.ones(part.rewards.shape[1], dtype=torch.bool))
        elif isinstance(part, Transitions) and hasattr(self._wrapped, "target"):
            self._expected = self._loss_of_transitions(part)
        loss, metrics = self._wrapped.loss(part)
        if self._expected is not None and not isinstance(part, Minibatch) and "value_loss" in metrics():
            self._record.returns.append((float(metrics()["value_loss"]), self._expected))
            self._expected = None
        return cast(Tensor, loss), metrics

    @torch.no_grad()
    def _loss_of_transitions(self, part: Transitions) -> float:
        """Mean of (y - Q(s, a))^2, y step by step."""
        following = self._wrapped.target(part.following[None])[0][0]
        chooser = self.network(part.following[None])[0][0] if self._wrapped.config.double_q else following
        values = self.network(part.observations[None])[0][0]
        errors = []
        for b, action in enumerate(part.actions.tolist()):
            total = float(following[b, chooser[b].argmax()])
            for k in reversed(range(length_of(part.last[:, b].tolist()))):
                total = float(part.rewards[k, b]) + float(part.discounts[k, b]) * total
            errors.append((total - float(values[b, action])) ** 2)
        return sum(errors) / len(errors)


def returns_of(batch: Rollout, following: Tensor) -> Tensor:
    """R `[T, B]`, step by step as n-step returns are defined; `following` `[T, B]` are values of the next states."""
    returns = torch.empty_like(batch.rewards)
    for e in range(batch.rewards.shape[1]):
        total = float(following[-1, e])
        for t in reversed(range(len(batch.rewards))):
            after = float(following[t, e]) if batch.last[t, e] else total
            total = float(batch.rewards[t, e]) + float(batch.discounts[t, e]) * after
            returns[t, e] = total
    return returns


class Participant:
    """One worker, actor or learner of a run, with everything recorded."""

    def __init__(self, run: Run, who: int) -> None:
        self.record = Record(threads=threads(), started_by=os.getppid())
        handles = replace(run.handles, store=cast(Store, RecordedStore(run.handles.store, run, self.record)))
        experience = None
        if handles.experience is not None:
            experience = RecordedExperience(handles.experience, run, self.record)
            handles = replace(handles, experience=cast(Experience, experience))

        def make_agent(_: Run, number: int) -> tuple[Agent, Replica]:
            agent, replica = build_agent(run, number)
            followed = None if number == LEARNER else Followed(run, self.record)
            if number != LEARNER and experience is not None:
                experience.policy, experience.followed = replica.theta, followed
                return agent, replica
            return cast(Agent, RecordedAgent(agent, run, self.record, replica.target, followed)), replica

        handles.clock.enter(who, RUNNING)
        build = build_learner if who == LEARNER else build_worker
        self._role = build(replace(run, handles=handles), who, make_agent)

    def turn(self) -> None:
        """Go on until it is another's turn."""
        self.record.waits += not next(self._role.loop)

    def close(self) -> None:
        """End after the last turn."""
        self._role.close()
        for ahead in (self.record.local, self.record.true_gradients):
            del ahead[len(self.record.gradients) :]  # a worker has computed a last gradient, but not pushed it


def turns_of(run: Run) -> list[int]:
    """Whose turn it is, for all turns."""
    workers = range(run.spec.config.workers)
    if algorithm_of(run.spec.algorithm).experience == GRADIENT:  # each turn pushes a gradient and computes the next
        return [worker for worker in workers for _ in range(UPDATES + 1)]
    return [*workers, *workers, LEARNER, LEARNER] * ROUNDS


@dataclass(frozen=True)
class Turns:
    """The main function of a child, which waits for its turns."""

    taken: Tensor
    """`[1]` in shared memory: the number of finished turns."""

    def __call__(self, run: Run, who: int) -> None:
        """Take part, and write what was recorded to the run's folder."""
        participant = Participant(run, who)
        for number, owner in enumerate(turns_of(run)):
            if owner == who:
                while int(self.taken) != number:
                    time.sleep(0.001)
                participant.turn()
                self.taken.fill_(number + 1)
        participant.close()
        torch.save(asdict(participant.record), file_of(run, who))


def listen(run: Run) -> dict[int, Record]:
    """Let all take their turns in this process; returns what was recorded."""
    turns = turns_of(run)
    participants = {who: Participant(run, who) for who in dict.fromkeys(turns)}
    for who in turns:
        participants[who].turn()
    for participant in participants.values():
        participant.close()
    return {who: participant.record for who, participant in participants.items()}


def hear(context: BaseContext, run: Run, target: Target | None = None) -> tuple[dict[int, Record], int]:
    """The same in separate processes; also the largest number of open files. Raises NoAnswer if one breaks.

    `target` is another main function of the children.
    """
    everyone = list(dict.fromkeys(turns_of(run)))
    opened = run_children(context, target or Turns(shared_zeros(1, dtype=torch.int64)), run, everyone)
    return {who: Record(**torch.load(file_of(run, who), weights_only=True)) for who in everyone}, opened


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


def judge_records(run: Run, initial: Tensor, records: Records) -> Iterator[Finding]:
    """All checks of what was recorded of a run that began with theta `initial` `[P]`."""
    kind, learner = algorithm_of(run.spec.algorithm).experience, records.get(LEARNER)
    actors = [record for who, record in records.items() if who != LEARNER]
    updating = actors if learner is None else [learner]
    thetas, statistics = apply_again(run, initial, updating)
    if learner is not None:
        if kind == MEMORY:
            rows = [rows_of(actor) for actor in actors]
            yield check_transitions(run, learner, rows)
            if learner.drawn_by:
                yield check_priorities(run, learner, rows)
            yield check_ratio(run, learner, actors)
        else:
            yield check_rollouts(learner, actors)
            yield check_order(run, learner, actors)
        yield check_policies(thetas, actors)
        yield check_versions(run, learner, actors)
    yield check_pulls(thetas, updating, learner is not None)
    yield check_gradients(updating)
    yield check_theta(run, thetas)
    yield check_statistics(run, statistics)
    if any(one.log_ratios for one in updating):
        yield check_ratios(updating[0])
    if updating[0].targets:
        yield check_target(run, initial, updating[0])
    yield check_truncation(run, actors, [pair for one in updating for pair in one.returns])


def check_gradients(records: Sequence[Record]) -> Finding:
    """Each worker pushed the gradient of its own loss at its own theta', not an old or a summed one."""
    seen, true = _all(records, "gradients"), _all(records, "true_gradients")
    error = difference(seen, true)
    return judge(
        "the gradient is the true one",
        len(seen) == len(true) and error <= TOLERANCE and bool(seen.any()),
        f"{len(seen)} updates by {len(records)} processes, largest difference {error:.1e}",
        "gradients are stale, summed or aliased: look at core/flat.py gradient_of and the algorithm's loss",
    )


def check_theta(run: Run, thetas: Sequence[Tensor]) -> Finding:
    """theta equals a copy to which each gradient was applied once. The workers took turns."""
    theta = run.handles.store.snapshot()
    error = difference(theta, thetas[-1])
    moved = float((theta - thetas[0]).abs().max())
    return judge(
        "each reaches theta exactly once",
        error <= TOLERANCE and moved > 0,
        f"theta moved by {moved:.1e}, difference to applying each once {error:.1e}",
        "the store lost a gradient or applied it more than once: look at SharedStore.push; is theta in shared memory?",
    )


def check_pulls(thetas: Sequence[Tensor], records: Sequence[Record], by_learner: bool) -> Finding:
    """Every loss was computed at theta after the previous update."""
    expected = torch.stack(list(thetas[:-1]))
    error = difference(_all(records, "local"), expected)
    return judge(
        "the learner computes at the newest theta" if by_learner else "workers pull theta before each rollout",
        error <= TOLERANCE,
        f"{len(expected)} pulls, largest difference of theta' to theta {error:.1e}",
        "workers act on old parameters: look at SharedStore.pull and at what flatten_parameters binds",
    )


def check_statistics(run: Run, expected: Tensor) -> Finding:
    """The optimiser's statistics are one set for all workers, or one for each, as set."""
    wanted = "per-worker" if run.spec.config.per_worker_statistics else "shared"
    statistics = run.handles.store.state()["statistics"]
    return judge(
        f"statistics are {wanted.replace('-', ' ')}",
        difference(statistics, expected) <= TOLERANCE and bool(statistics.any()),
        f"{' x '.join(f'{size:,}' for size in statistics.shape)} numbers, {run.spec.config.workers} workers",
        f"the statistics are not {wanted} or were made in a worker: they must be allocated with the store",
    )


def apply_again(run: Run, initial: Tensor, records: Sequence[Record]) -> tuple[list[Tensor], Tensor]:
    """theta `[P]` before and after each update recorded, and the statistics `[owners, S, P]` at the end."""
    config = run.spec.config
    rule, theta = config.update_rule, initial.clone()
    shared = not config.per_worker_statistics
    statistics = torch.zeros(1 if shared else config.workers, rule.statistics, len(initial))
    thetas, updates = [theta.clone()], [0] * len(statistics)
    for worker, one in enumerate(records):
        owner = 0 if shared else worker
        for pushed, eta in zip(one.gradients, one.learning_rates, strict=True):
            gradient = pushed.clone()
            clip_by_norm(gradient, config.max_gradient_norm)
            rule.apply(theta, gradient, statistics[owner], eta, updates[owner])
            updates[owner] += 1
            thetas.append(theta.clone())
    return thetas, statistics


def check_target(run: Run, initial: Tensor, record: Record) -> Finding:
    """The loss depends on the shared theta^-, which becomes theta when the count crosses a multiple, and only then."""
    config: Any = run.spec.config
    counted, period, counts = "T", getattr(config, "target_interval_steps", 0), record.steps
    if not period:
        counted, period = "updates", config.target_interval_updates
        counts = list(range(1, len(record.targets) + 1))
    expected, before, refreshes = initial, 0, 0
    right = all(record.target_matters)
    for theta, target, count in zip(record.thetas, record.targets, counts, strict=True):
        if crossed(before, count, period):
            expected, before, refreshes = theta, count, refreshes + 1
        right = right and torch.equal(target, expected)
    return judge(
        TARGET_NETWORK,
        right and refreshes > 0,
        f"{counted} went to {counts[-1]}, {refreshes} refresh at a multiple of {period}",
        "theta^- is private or stale: look at build_agent's target and SharedStore.push",
    )


def check_truncation(run: Run, actors: Sequence[Record], returns: Pairs) -> Finding:
    """A time limit keeps its discount, its last real observation, and its value in the return."""
    cuts = [cut for one in actors for cut in one.truncations]
    error = difference(*torch.tensor(returns).unbind(1)) if returns else 0.0
    kept = [np.isclose(discount, run.spec.config.gamma) and same for discount, same in cuts]
    return judge(
        "truncation bootstraps",
        bool(cuts) and all(kept) and error <= TOLERANCE,
        f"{sum(map(bool, kept))} of {len(cuts)} cut episodes kept their last observation; "
        + (f"returns differ by {error:.1e}" if returns else "returns were not checked"),
        "a time limit is treated as a termination: look at Collector._step and Rollout.next_values",
    )


def check_rollouts(learner: Record, actors: Sequence[Record]) -> Finding:
    """The learner took the rollouts that the actors put: whole, in order, each once."""
    own = [[one for one in learner.rollouts if one in actor.rollouts] for actor in actors]
    put = [actor.rollouts for actor in actors]
    whole = sum(map(len, own))
    return judge(
        "rollouts arrive whole, each once",
        own == put and all(put) and whole == len(learner.rollouts),
        f"{sum(map(len, put))} put by {len(actors)} processes, {len(learner.rollouts)} taken in "
        f"{len(learner.versions)} batches, {whole} of them as they were put",
        "rollouts are lost, torn, mixed up or read again: look at experience/blocks.py and at Batches.release",
    )


def check_policies(thetas: Sequence[Tensor], actors: Sequence[Record]) -> Finding:
    """Each rollout was made with theta after as many updates as its version says."""
    pairs = [
        (policy, version)
        for actor in actors
        for policy, (version, _) in zip(actor.policies, actor.rollouts, strict=True)
    ]
    versions = sorted({version for _, version in pairs})
    known = [(policy, thetas[version]) for policy, version in pairs if version < len(thetas)]
    error = max((difference(*pair) for pair in known), default=float("inf"))
    return judge(
        "actors act with the theta they say",
        len(known) == len(pairs) and error <= TOLERANCE,
        f"{len(pairs)} rollouts of versions {', '.join(map(str, versions))}, largest difference {error:.1e}",
        "actors act on other parameters than their rollouts' version says: look at SharedStore.pull and Replica",
    )


def check_versions(run: Run, learner: Record, actors: Sequence[Record]) -> Finding:
    """An update adds one to the version and nothing to T; a rollout adds its steps to T, once."""
    config, updates, steps = run.spec.config, run.handles.store.updates, run.handles.clock.steps
    put = sum(len(actor.rollouts) for actor in actors) * config.t_max * config.envs_per_worker
    return judge(
        "updates and steps are counted once",
        updates == len(learner.gradients) and steps == put,
        f"{len(learner.gradients)} updates, counted {updates}; {put} steps, counted {steps}",
        "versions or T are wrong, and with them ages and schedules: look at SharedStore.push and Batches.put",
    )


def check_order(run: Run, learner: Record, actors: Sequence[Record]) -> Finding:
    """In step every rollout of a batch is made with the newest theta, and actors wait; in a queue they may be older."""
    batches = zip(learner.versions, learner.newest, strict=True)
    ages = [newest - version for versions, newest in batches for version in versions]
    waits = sum(actor.waits for actor in actors)
    if algorithm_of(run.spec.algorithm).experience == IN_STEP:
        turns = len(actors) * ROUNDS  # and as many in which an actor finds no room before the batch is learnt from
        return judge(
            "batches in step are of the newest theta",
            ages == [0] * turns and waits == turns,
            f"ages of {len(ages)} rollouts up to {max(ages, default=0)}; actors waited {waits} times",
            "actors run ahead of the learner, or are missing: look at Batches.has_room and the algorithm's experience",
        )
    return judge(
        "a queue lets actors run ahead",
        bool(ages) and min(ages) == 0 and max(ages) > 0,
        f"ages of {len(ages)} rollouts from {min(ages, default=0)} to {max(ages, default=0)} updates",
        "rollouts are lost or of a wrong version: look at Batches.put and Batches.take",
    )


def check_ratios(learner: Record) -> Finding:
    """With the same theta, actor and learner compute the same probability of an action."""
    error = max(learner.log_ratios)
    return judge(
        "the ratio of an unchanged policy is 1",
        error <= TOLERANCE,
        f"{len(learner.log_ratios)} batches, largest |log ratio| {error:.1e}",
        "the learner sees other observations, states or actions than the actor did, or act's log-probability is wrong",
    )


@dataclass(frozen=True)
class Row:
    """The expected row of a ring."""

    observation: Tensor
    action: int = 0
    reward: float = 0.0
    discount: float = 0.0
    last: bool = False
    is_step: bool = True
    action_value: float = 0.0
    state_value: float = 0.0


def length_of(last: Sequence[bool]) -> int:
    """Steps of a transition: n, or fewer if the return ends before."""
    return last.index(True) + 1 if True in last else len(last)


def rows_of(actor: Record) -> list[Row]:
    """The expected rows in the ring of an actor's only environment."""
    rows = []
    for rollout in actor.put:
        cuts, finals = rollout["truncated"][0].tolist(), rollout["final_observations"]
        extras = rollout["extras"]
        for t, action in enumerate(rollout["actions"][:, 0].tolist()):
            acted = [float(extras[name][t, 0]) if name in extras else 0.0 for name in (ACTION_VALUE, STATE_VALUE)]
            reward, discount, last = (float(rollout[name][t, 0]) for name in ("rewards", "discounts", "last"))
            rows.append(Row(rollout["observations"][t, 0], action, reward, discount, bool(last), True, *acted))
            if t in cuts:
                rows.append(Row(finals[cuts.index(t)], is_step=False, state_value=acted[1]))
    return rows


def check_transitions(run: Run, learner: Record, rows: Sequence[Sequence[Row]]) -> Finding:
    """Every sampled transition consists of up to n steps that were put, and none crosses the end of an episode."""
    drawn, whole, ends = 0, 0, 0
    for batch, (streams, numbers) in zip(learner.drawn, learner.places, strict=True):
        for b, (stream, number) in enumerate(zip(streams, numbers, strict=True)):
            ring = rows[stream]
            drawn += 1
            whole += is_whole(batch, b, ring[number : number + cast(Any, run.spec.config).n_step + 1])
            ends += bool(batch["last"][:, b].any())
    steps = sum(row.is_step for ring in rows for row in ring)
    return judge(
        "transitions arrive whole",
        whole == drawn and ends > 0,
        f"{steps} steps put by {len(rows)} processes, {drawn} transitions sampled, {whole} of them as they were put, "
        f"{ends} with the end of an episode",
        "steps are lost, torn, overwritten or joined across episodes: look at experience/steps.py",
    )


def is_whole(batch: dict[str, Tensor], b: int, rows: Sequence[Row]) -> bool:
    """Whether transition b of a minibatch is the one that begins with these rows, at most n + 1."""
    n = len(batch["last"])
    length = length_of([row.last for row in rows[:n]])
    if not rows or not rows[0].is_step or len(rows) <= length:
        return False
    steps = rows[:length]
    return (
        torch.equal(batch["observations"][b], steps[0].observation)
        and int(batch["actions"][b]) == steps[0].action
        and batch["rewards"][:length, b].tolist() == [row.reward for row in steps]
        and batch["discounts"][:length, b].tolist() == [row.discount for row in steps]
        and batch["last"][:length, b].tolist() == [row.last for row in steps]
        and torch.equal(batch["following"][b], rows[length].observation)
    )


def check_priorities(run: Run, learner: Record, rows: Sequence[Sequence[Row]]) -> Finding:
    """Priorities are |G - Q(s, a)|, of the actor and then of the learner, and determine the importance weights."""
    config: Any = run.spec.config
    seen: set[tuple[int, int]] = set()
    first: list[tuple[float, float]] = []
    weights: list[tuple[float, float]] = []
    for batch, (streams, numbers), priorities in zip(learner.drawn, learner.places, learner.drawn_by, strict=True):
        places = list(zip(streams, numbers, strict=True))
        expected = [first_priority(rows[stream][number:], config) for stream, number in places]
        first += [
            (priority, own**config.priority_exponent)
            for place, priority, own in zip(places, priorities.tolist(), expected, strict=True)
            if place not in seen
        ]
        seen |= set(places)
        right = (priorities.min() / priorities) ** config.importance_exponent
        weights += zip(batch["weights"].tolist(), right.tolist(), strict=True)
    kinds = (first, learner.renewed, weights)
    error = max(
        difference(*torch.tensor(pairs, dtype=torch.float64).unbind(1)) if pairs else torch.inf for pairs in kinds
    )
    return judge(
        "priorities reach the memory",
        error <= TOLERANCE,
        f"{len(first)} of actors, {len(learner.renewed)} of the learner, {len(weights)} weights, "
        f"largest difference {error:.1e}",
        "errors do not become priorities: look at Steps._first_priorities, Replay.feedback and the algorithm's errors",
    )


def first_priority(rows: Sequence[Row], config: Any) -> float:
    """|G - Q(s, a)| of the transition that begins with these rows, from the actor's values."""
    length = length_of([row.last for row in rows[: config.n_step]])
    total = rows[length].state_value
    for row in reversed(rows[:length]):
        clip = config.reward_clip
        reward = min(clip, max(-clip, row.reward)) if clip else row.reward
        total = reward + row.discount * total
    return abs(total - rows[0].action_value) + LEAST_PRIORITY


def check_ratio(run: Run, learner: Record, actors: Sequence[Record]) -> Finding:
    """Learning begins after the warm-up, and then keeps the replay ratio."""
    config: Any = run.spec.config
    put = sum(len(actor.put) for actor in actors) * config.t_max * config.envs_per_worker
    due = int(config.replay_ratio * (put - config.warmup_steps))
    turns = turns_of(run).count(LEARNER)
    return judge(
        "the replay ratio is kept",
        len(learner.drawn) == due and learner.waits == turns - due > 0,
        f"{len(learner.drawn)} updates for {put} steps, {config.warmup_steps} of them warm-up; {due} were due; "
        f"the learner waited {learner.waits} times",
        "the learner learns more or less often than --replay-ratio says: look at Replay.ahead and Replay.has_room",
    )


def check_threads(records: Sequence[Record]) -> Finding:
    """Every library of a worker computes in one thread."""
    most = {name: max(one.threads[name] for one in records) for name in records[0].threads}
    return judge(
        "one thread per worker",
        all(number == 1 for number in most.values()),
        ", ".join(f"{name} {number}" for name, number in most.items()),
        "workers fight for cores: look for set_num_threads in your own code, and at runtime/threads.py",
    )


def check_start_method(method: str, wanted: str, records: Sequence[Record]) -> Finding:
    """Children are not forked from the command, whose locks and threads they would copy."""
    forked = any(one.started_by == os.getpid() for one in records) and wanted == "forkserver"
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
    return run.spec.folder.path / f"recorded-{worker}.pt"


def _all(records: Sequence[Record], name: str) -> Tensor:
    return torch.stack([tensor for one in records for tensor in getattr(one, name)])


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def difference(seen: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest number expected; infinite for other shapes or a NaN."""
    if seen.shape != expected.shape:
        return float("inf")
    difference = float((seen - expected).abs().max()) / max(float(expected.abs().max()), 1e-12)
    return difference if np.isfinite(difference) else float("inf")
