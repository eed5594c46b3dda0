"""Does learning reach the shared memory as the paper says? A few turns of a real run, computed a second time.

Workers, actors and learner are built as in a run, each in its own process, but they take turns, so the right value of
theta is known at every moment. A recorder around the store, the experience and the agent of each notes every update,
every rollout and every batch. In the order of turns these events are then compared with arithmetic done here: gradients
by `backward`, theta, theta^- and statistics by applying each gradient once to private copies.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import torch
from torch import Tensor

from asyncrl.algorithm import GRADIENT, MEMORY, Algorithm, algorithm_of
from asyncrl.backends.processes import Child, end
from asyncrl.core import kernels
from asyncrl.core.flat import clip_by_norm
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Rollout, Transitions
from asyncrl.core.schedules import crossed
from asyncrl.doctor import Finding, advise, judge
from asyncrl.runtime.clock import RUNNING, shared_zeros
from asyncrl.runtime.protocols import LEARNER, Batch, Receipt, Update
from asyncrl.runtime.roles import build_agent, build_learner, build_worker
from asyncrl.runtime.run import Run

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
WRONG = float("inf")
"""The difference where something is not as it must be, rather than near it."""

Event = dict[str, Any]
"""What happened in a turn, as plain data; the recorder's methods say what it holds."""


NEWEST = "theta' is the newest theta"
TRUE = "the gradient is the true one"
ONCE = "each reaches theta exactly once"
STATISTICS = "statistics are as --statistics says"
COUNTED = "updates and steps are counted once"
WHOLE = "experience arrives whole, each step once"
RATIO = "the ratio of an unchanged policy is 1"
BOOTSTRAPS = "truncation bootstraps"
TARGET = "the target network is shared, and refreshed"
CHECKS = {
    NEWEST: (
        "losses and rollouts use it",
        "workers act or learn with old parameters: look at SharedStore.pull, and at what flatten_parameters binds",
    ),
    TRUE: (
        "gradients are what backward computes",
        "gradients are stale, summed or aliased: look at core/flat.py gradient_of and the algorithm's loss",
    ),
    ONCE: (
        "snapshots of theta show each gradient applied once",
        "the store lost a gradient or applied it more than once: look at SharedStore.push; is theta in shared memory?",
    ),
    STATISTICS: (
        "sets match these updates",
        "the owners of the statistics are wrong, or a worker made them: they must be allocated with the store",
    ),
    COUNTED: (
        "counts are right",
        "versions or T are wrong, and with them ages and schedules: look at SharedStore.push and Batches.put",
    ),
    WHOLE: (
        "steps match what the actors stored",
        "steps are lost, torn, mixed up or read again: look at experience/blocks.py, steps.py and Batches.release",
    ),
    RATIO: (
        "batches have the actors' probabilities",
        "the learner sees other observations, states or actions than the actor did, or act's log-probability is wrong",
    ),
    BOOTSTRAPS: (
        "losses with a cut episode depend on its last observation",
        "a time limit is treated as a termination: Rollout.next_values takes the values of these observations",
    ),
    TARGET: (
        "snapshots of theta^- show it refreshed when due, and the loss depends on it",
        "theta^- is private or stale: look at build_agent's target and SharedStore.push",
    ),
}
"""Each with what is compared, and what to do if it is not as it should be."""


class NoAnswer(Exception):
    """A child ended or was killed without a result; the message says how in one line."""


class Around:
    """Something with some of its methods replaced."""

    def __init__(self, wrapped: Any, **replaced: Callable[..., Any]) -> None:
        self._wrapped = wrapped
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class Recorder:
    """One worker, actor or learner of a run, built as in a run, and what passes through its store and experience."""

    def __init__(self, run: Run, who: int) -> None:
        self.events: list[Event] = []
        self._run, self._who, self._turn = run, who, 0
        self._loss: Event = {}
        """Of the newest loss: theta' `[P]`, theta^- `[P]` if there is one, and the true gradient `[P]`."""
        self._versions: list[int] = []
        """Of the rollouts in the newest batch."""
        handles = replace(run.handles, store=cast(Any, Around(run.handles.store, push=self._push)))
        if (experience := handles.experience) is not None:
            handles = replace(handles, experience=cast(Any, Around(experience, put=self._put, take=self._take)))
        handles.clock.enter(who, RUNNING)
        build = build_learner if who == LEARNER else build_worker
        self._role = build(replace(run, handles=handles), who, self._make_agent)
        self.close = self._role.close

    def turn(self, number: int) -> None:
        """Go on until it is another's turn."""
        self._turn = number
        next(self._role.loop)

    def _make_agent(self, _: Run, who: int) -> tuple[Algorithm, Any]:
        self._agent, self._replica = build_agent(self._run, who)
        return cast(Algorithm, Around(self._agent, loss=self._compute_loss, passes=self._passes)), self._replica

    def _note(self, **event: Any) -> None:
        self.events.append({"turn": self._turn, "who": self._who} | event)

    def _counted(self) -> tuple[int, int]:
        """The run's updates, and T."""
        return self._run.handles.store.updates, self._run.handles.clock.steps

    def _push(self, update: Update) -> Receipt:
        """Note an update: its gradient, what it was computed from, and theta afterwards."""
        store, event = self._run.handles.store, self._loss | {"gradient": update.gradient.clone()}
        receipt = store.push(update)
        event["theta"] = store.snapshot()
        event |= {"version": update.version, "steps": update.steps, "learning_rate": receipt.learning_rate}
        self._note(**event, counted=self._counted())
        return receipt

    def _put(self, actor: int, rollout: Rollout, version: int) -> None:
        """Note a rollout: its steps, and theta' with which it was made."""
        experience: Any = self._run.handles.experience
        remembered = algorithm_of(self._run.spec.algorithm).experience == MEMORY
        put = checksums(rollout, [] if remembered else [version])
        experience.put(actor, rollout, version)
        made = {"version": version, "steps": rollout.steps, "local": self._replica.theta.clone()}
        self._note(put=put, **made, counted=self._counted())

    def _take(self, learner: int = LEARNER) -> Batch | None:
        """Note the steps of a batch."""
        experience: Any = self._run.handles.experience
        batch: Batch | None = experience.take(learner)
        if batch is not None:
            self._versions = batch.versions
            self._note(taken=checksums(batch.rollout, batch.versions))
        return batch

    def _passes(self, batch: Any) -> Iterator[Any]:
        """A learner's passes, after a look at the batch with the current theta."""
        self._probe(batch)
        if "log_probability" in getattr(batch, "extras", {}) and hasattr(self._agent.network, "policy_at"):
            fresh = torch.tensor(self._versions) == self._run.handles.store.updates
            fresh = fresh.repeat_interleave(batch.rewards.shape[1] // len(fresh))
            with torch.no_grad():
                now = self._agent.network(batch.observations, batch.state, batch.last)[0][:-1]
                ratios = now.log_probability(batch.actions) - batch.extras["log_probability"]
            if fresh.any():
                self._note(log_ratio=float(ratios[:, fresh].abs().max()))
        passes: Iterator[Any] = cast(Any, self._agent).passes(batch)
        return passes

    def _compute_loss(self, part: Any) -> tuple[Tensor, Metrics]:
        """The algorithm's loss, after its gradient was computed by other means."""
        if self._who != LEARNER:
            self._probe(part)
        parameters = list(self._agent.network.parameters())
        # A copy of the observations is not on the tape of what the network computed while it acted.
        again: Any = self._agent.loss(replace(part, observations=part.observations.clone()))[0]
        again.backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self._loss = {"local": joined(parameters), "true": joined(gradients)}
        if self._replica.target is not None:
            self._loss["target"] = self._replica.target.clone()
        self._agent.network.zero_grad()
        return self._agent.loss(part)

    def _probe(self, experience: Any) -> None:
        """Note whether the loss depends on theta^-, and on the real last observations of cut episodes."""
        loss = self._loss_of(experience)
        if (target := self._replica.target) is not None:
            before = target.clone()
            target.add_(1.0)
            self._note(target_matters=difference(self._loss_of(experience), loss) > TOLERANCE)
            target.copy_(before)
        if (changed := with_other_ends(experience)) is not None:
            self._note(ends_matter=difference(self._loss_of(changed), loss) > TOLERANCE)

    def _loss_of(self, experience: Any) -> Tensor:
        """The sum of the losses of all parts of a batch, or of a worker's rollout, without any update between them."""
        agent: Any = self._agent
        random = agent.generator.get_state()
        loss = sum(agent.loss(part)[0].detach() for part in agent.passes(experience))
        agent.generator.set_state(random)
        return cast(Tensor, loss)


def checksums(experience: Rollout | Transitions, versions: Sequence[int]) -> list[int]:
    """One for each step of a rollout made with theta of these `versions`, or for the first of each transition."""
    if isinstance(experience, Transitions):
        held = [experience.observations[None], experience.actions[None]]
        held += [experience.rewards[:1], experience.discounts[:1], experience.last[:1]]
    else:
        held = [experience.observations[:-1], experience.actions]
        held += [experience.rewards, experience.discounts, experience.last]
        if versions:
            ages = torch.tensor(versions).repeat_interleave(experience.rewards.shape[1] // len(versions))
            held += [experience.observations[1:], *experience.extras.values(), ages.expand(experience.rewards.shape)]
    sums = [0] * held[2].numel()
    for tensor in held:
        steps = tensor.flatten(0, 1).contiguous().numpy()
        sums = [zlib.crc32(step.tobytes(), total) for step, total in zip(steps, sums, strict=True)]
    return sums


def with_other_ends(experience: Rollout | Transitions) -> Rollout | Transitions | None:
    """The same with other last observations of the episodes that a time limit cut; None if there are none."""
    if isinstance(experience, Rollout):
        finals = experience.final_observations
        return None if finals is None else replace(experience, final_observations=finals + 1)
    cut = (experience.last & (experience.discounts > 0)).any(0)
    following = experience.following.clone()
    following[cut] += 1
    return replace(experience, following=following) if cut.any() else None


def turns_of(run: Run) -> list[int]:
    """Whose turn it is, for all turns."""
    workers = range(run.spec.config.workers)
    if algorithm_of(run.spec.algorithm).experience == GRADIENT:  # each turn pushes a gradient and computes the next
        return [worker for worker in workers for _ in range(UPDATES + 1)]
    return [*workers, *workers, LEARNER, LEARNER] * ROUNDS


Question = Callable[[Run, int], Any]
"""What is asked of a process of a run, with its number; the answer is plain data."""


def take_turns(context: BaseContext, run: Run) -> list[dict[str, Any]]:
    """What every process of a run recorded, and how many threads it has. Raises NoAnswer if one breaks."""
    take = partial(_take_own_turns, shared_zeros(1, dtype=torch.int64))
    return ask(context, take, run, list(dict.fromkeys(turns_of(run))))


def _take_own_turns(taken: Tensor, run: Run, who: int) -> dict[str, Any]:
    """Those of one process; `taken` `[1]`, in shared memory, is the number of finished turns."""
    recorder = Recorder(run, who)
    for number, owner in enumerate(turns_of(run)):
        if owner == who:
            while int(taken) != number:
                time.sleep(0.001)
            recorder.turn(number)
            taken.fill_(number + 1)
    recorder.close()
    threads = {"torch": torch.get_num_threads(), "torch interop": torch.get_num_interop_threads()}
    return {"events": recorder.events, "threads": threads | {"cv2": cv2.getNumThreads()}}


def _answer(question: Question, run: Run, who: int) -> None:
    """The main function of a child, which leaves its answer in the run's folder."""
    torch.save(question(run, who), answer_file(run, who))


def ask(
    context: BaseContext, question: Question, run: Run, everyone: Sequence[int], seconds: float = ANSWER_SECONDS
) -> list[Any]:
    """The answer of a process for each of `everyone`, started as a run starts its workers.

    If one fails, or neither ends nor makes a step within `seconds`, all are killed. Raises NoAnswer.
    """
    children: list[BaseProcess] = []
    try:
        for who in everyone:
            children.append(Child.of(run, who).start(context, partial(_answer, question), run, who))
        began, clock = time.monotonic(), run.handles.clock
        while running := [child for child in children if child.exitcode is None]:
            if any(child.exitcode for child in children):
                break
            if time.monotonic() > max(began, *map(clock.heartbeat, everyone)) + seconds:
                raise NoAnswer(f"did not answer within {seconds:.0f} s")
            running[0].join(0.02)
        for who, child in zip(everyone, children, strict=True):
            if child.exitcode:
                raise NoAnswer(Child.of(run, who).end_of(child).cause)
        return [torch.load(answer_file(run, who), weights_only=True) for who in everyone]
    finally:
        end(*children)


def answer_file(run: Run, who: int) -> Path:
    """Where a child writes its answer."""
    return run.spec.folder.path / f"answer-{who}.pt"


def judge_events(run: Run, initial: Tensor, events: Sequence[Event]) -> list[Finding]:
    """All checks of what was recorded of a run that began with theta `initial` `[P]`."""
    config, method = run.spec.config, algorithm_of(run.spec.algorithm)
    descent, shared = config.descent, not config.per_worker_statistics
    theta, target = initial.clone(), initial.clone()
    statistics = torch.zeros(1 if shared else config.workers, descent.rule.statistics, len(initial))
    made = [0] * len(statistics)
    updates = steps = before = 0
    waiting: Counter[int] = Counter()
    """Steps on their way, or in the memory."""
    seen: defaultdict[str, list[float]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event["turn"]):
        if "local" in event:
            seen[NEWEST].append(difference(event["local"], theta) if event["version"] == updates else WRONG)
        if "target" in event:
            seen[TARGET].append(difference(event["target"], target))
        if "gradient" in event:
            gradient, owner = event["gradient"], 0 if shared else event["who"]
            seen[TRUE].append(difference(gradient, event["true"]) if gradient.any() else WRONG)
            clip_by_norm(gradient, descent.max_gradient_norm)
            descent.rule.apply(theta, gradient, statistics[owner], event["learning_rate"], made[owner])
            made[owner] += 1
            seen[ONCE].append(difference(event["theta"], theta))
        updates, steps = updates + ("gradient" in event), steps + event.get("steps", 0)
        if "counted" in event:
            seen[COUNTED].append(0.0 if event["counted"] == (updates, steps) else WRONG)
        now = steps if descent.target_interval_steps else updates
        if crossed(before, now, descent.target_interval_steps or descent.target_interval_updates):
            target = torch.lerp(target, theta, descent.target_rate)
        before = now
        for key in event.get("put", ()):
            waiting[key] += 1
        for key in event.get("taken", ()):
            seen[WHOLE].append(0.0 if waiting[key] else WRONG)
            waiting[key] -= method.experience != MEMORY
        for name, check in (("target_matters", TARGET), ("ends_matter", BOOTSTRAPS)):
            if name in event:
                seen[check].append(0.0 if event[name] else WRONG)
        if "log_ratio" in event:
            seen[RATIO].append(event["log_ratio"])
    if method.experience != MEMORY:
        seen[WHOLE] += [WRONG] * waiting.total()  # never taken
    seen[ONCE].append(difference(run.handles.store.snapshot(), theta))  # as another process sees it
    seen[STATISTICS] += [difference(run.handles.store.state()["statistics"], statistics)] * len(statistics)
    needed = {NEWEST, TRUE, ONCE, STATISTICS, COUNTED}
    needed |= {WHOLE} if method.experience != GRADIENT else set()
    needed |= {TARGET} if method.has_target else set()
    needed |= {RATIO} if seen[RATIO] else set()
    needed |= {BOOTSTRAPS} if not method.whole_episodes else set()  # after which nothing counts
    return [conclude(check, seen[check]) for check in CHECKS if check in needed]


def conclude(check: str, differences: Sequence[float]) -> Finding:
    """What the differences between what was seen and what should be say; without any the check fails."""
    compared, remedy = CHECKS[check]
    good, worst = sum(one <= TOLERANCE for one in differences), max(differences, default=WRONG)
    figure = f"{good} of {len(differences)} {compared}"
    figure += f", largest difference {worst:.1e}" if 0 < worst < WRONG else ""
    return judge(check, 0 < good == len(differences), figure, remedy)


def check_threads(counts: Sequence[dict[str, int]]) -> Finding:
    """Every library of a worker computes in one thread."""
    most = {name: max(one[name] for one in counts) for name in counts[0]}
    figure = ", ".join(f"{name} {number}" for name, number in most.items())
    remedy = "workers compete for cores: look for set_num_threads in your own code, and at runtime/threads.py"
    return judge("one thread per worker", all(number == 1 for number in most.values()), figure, remedy)


def check_kernels() -> Finding:
    """Whether the compiled code is used."""
    missing = kernels.MISSING
    remedy = "learning is the same, but slower: where there is a C compiler, install asyncrl again"
    return advise("compiled kernels", not missing, f"not used: {missing}" if missing else "used", remedy)


def push_at_once(run: Run, worker: int) -> None:
    """Push, at the same time as the other workers, gradients of 1 in a part of theta.

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
    figure = f"{run.spec.config.workers} x {PUSHES_AT_ONCE:,} updates: {share:.3%} applied, {twice:,} twice"
    remedy = "the update rule reads back what other workers have written meanwhile: look at core/updates.py"
    return judge("no concurrent update applied twice", not twice and share >= 1 - MOST_LOST, figure, remedy)


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def difference(seen: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest number expected; infinite for other shapes or a NaN."""
    if seen.shape != expected.shape:
        return WRONG
    if not expected.numel():
        return 0.0
    difference = float((seen - expected).abs().max()) / max(float(expected.abs().max()), 1e-12)
    return difference if np.isfinite(difference) else WRONG
