"""Does a replay memory give the learner what actors put into it? A few turns, computed a second time.

What passes through the memory is recorded as in `asyncrl.checks.learner`. The expected rows of each ring are rebuilt
from the rollouts, and every sampled transition is compared with the rows it begins with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from asyncrl.checks import learner, learning
from asyncrl.checks.finding import Finding, judge
from asyncrl.checks.learning import TOLERANCE, difference
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Part, Rollout, Transitions
from asyncrl.experience.replay import Replay
from asyncrl.experience.steps import ACTION_VALUE, LEAST_PRIORITY, STATE_VALUE
from asyncrl.runtime.protocols import LEARNER, Batch, Receipt
from asyncrl.runtime.replica import Replica
from asyncrl.runtime.run import Run

UPDATES_PER_ROLLOUT = 0.5
"""In the exercise. With a warm-up of one rollout from each of two actors, the learner waits in its second turn."""
TARGET_UPDATES = 2
"""Updates between two refreshes of theta^- in the exercise."""


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


@dataclass
class HeardMemory(learner.HeardExchange):
    """What was recorded of one actor, or of the learner."""

    put: list[dict[str, Any]] = field(default_factory=list)
    """Actor: its rollouts, as plain data."""
    drawn: list[dict[str, Tensor]] = field(default_factory=list)
    """Learner: the fields of each minibatch."""
    places: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """Learner: streams and rows with which the transitions of each minibatch begin."""
    drawn_by: list[Tensor] = field(default_factory=list)
    """Learner: the priorities `[B]` by which each minibatch was sampled."""
    renewed: list[tuple[float, float]] = field(default_factory=list)
    """Learner: its new priorities, in the memory and as expected."""


class ListeningMemory(learner.ListeningExperience):
    """The run's memory; records what passes through it."""

    def __init__(self, memory: Replay, store: Any, heard: HeardMemory) -> None:
        super().__init__(memory, store, heard)
        self._memory, self._memory_heard = memory, heard
        self._places: tuple[list[int], list[int]] = [], []
        read = memory.steps.read

        def listening(streams: Any, rows: Any) -> Any:
            self._places = streams.tolist(), rows.tolist()
            return read(streams, rows)

        memory.steps.read = listening  # type: ignore[method-assign]

    def put(self, actor: int, rollout: Rollout, version: int) -> Receipt:
        """Pass a rollout on."""
        self._memory_heard.put.append(rollout.as_dict())
        return super().put(actor, rollout, version)

    def take(self, learner: int = LEARNER) -> Batch | None:
        """Pass a minibatch on."""
        batch = self._memory.take(learner)
        if batch is not None:
            drawn = cast(Transitions, batch.rollout)
            fields = ("observations", "actions", "rewards", "discounts", "last", "following", "weights")
            self._memory_heard.drawn.append({name: getattr(drawn, name).clone() for name in fields})
            self._memory_heard.places.append(self._places)
            if batch.keys is not None:
                self._memory_heard.drawn_by.append(self._memory.priorities(batch.keys, learner))
        return batch

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Pass errors on, and record the resulting priorities."""
        self._memory.feedback(keys, errors, learner)
        own = dict(zip(keys.tolist(), errors.tolist(), strict=True))  # for one that was sampled twice, the last counts
        exponent = self._memory.plan.priority_exponent
        for key, priority in zip(keys.tolist(), self._memory.priorities(keys, learner).tolist(), strict=True):
            self._memory_heard.renewed.append((priority, (abs(own[key]) + LEAST_PRIORITY) ** exponent))


class ListeningLearner(learner.ListeningLearner):
    """The page's agent in the learner; records what its losses were computed from."""

    def __init__(self, agent: Any, heard: HeardMemory, replica: Replica) -> None:
        super().__init__(agent, heard)
        self._target, self._memory_heard = replica.target, heard

    @property
    def errors(self) -> Tensor:
        """As the page has it."""
        return cast(Any, self._agent).errors  # type: ignore[no-any-return]

    def passes(self, batch: Any) -> Iterator[Part]:
        """The page's."""
        yield from self._agent.passes(batch)

    def loss(self, part: Any) -> tuple[Tensor, Metrics]:
        """The page's loss; its gradient by other means; the value loss from the definition of n-step returns."""
        loss, metrics = super().loss(part)
        agent: Any = self._agent
        if self._target is not None:
            before = self._target.clone()
            self._target.add_(1.0)
            self._memory_heard.target_matters.append(not torch.equal(agent.loss(part)[0], loss))
            self._target.copy_(before)
            agent.loss(part)  # so that the page's errors are again those of the update
        if "value_loss" in metrics() and hasattr(agent, "target"):
            self._memory_heard.returns.append((float(metrics()["value_loss"]), self._value_loss(agent, part)))
        return loss, metrics

    @torch.no_grad()
    def _value_loss(self, agent: Any, part: Transitions) -> float:
        """Mean of (y - Q(s, a))^2, y step by step."""
        following = agent.target(part.following[None])[0][0]
        chooser = agent.network(part.following[None])[0][0] if agent.config.double_q else following
        values = agent.network(part.observations[None])[0][0]
        errors = []
        for b, action in enumerate(part.actions.tolist()):
            total = float(following[b, chooser[b].argmax()])
            for k in reversed(range(length_of(part.last[:, b].tolist()))):
                total = float(part.rewards[k, b]) + float(part.discounts[k, b]) * total
            errors.append((total - float(values[b, action])) ** 2)
        return sum(errors) / len(errors)


class Participant(learner.Participant):
    """One actor of a run, or its learner, with everything recorded."""

    heard_of = HeardMemory
    listens_to = ListeningMemory

    def learns(self, agent: Any, replica: Replica) -> ListeningLearner:
        """The learner's agent."""
        return ListeningLearner(agent, cast(HeardMemory, self.heard), replica)

    def turn(self) -> None:
        """Go on until it is another's turn; after an update also record the target network."""
        updates = len(self.heard.thetas)
        super().turn()
        if len(self.heard.thetas) > updates:
            target = torch.empty_like(self.heard.thetas[-1])
            self.store.target(target)
            self.heard.targets.append(target)


def length_of(last: Sequence[bool]) -> int:
    """Steps of a transition: n, or fewer if the return ends before."""
    return last.index(True) + 1 if True in last else len(last)


def rows_of(actor: HeardMemory) -> list[Row]:
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


def judge_exchange(
    run: Run, initial: Tensor, learner_heard: HeardMemory, actors: Sequence[HeardMemory]
) -> Iterator[Finding]:
    """All checks of what passed between actors, memory and learner."""
    thetas = learning.apply_again(run, initial, [learner_heard])[0]
    rows = [rows_of(actor) for actor in actors]
    yield check_transitions(run, learner_heard, rows)
    if learner_heard.drawn_by:
        yield check_priorities(run, learner_heard, rows)
    yield check_ratio(run, learner_heard, actors)
    yield learner.check_policies(thetas, actors)
    yield learner.check_versions(run, learner_heard, actors)
    yield learning.check_pulls(run, initial, [learner_heard], "the learner computes at the newest theta")
    yield learning.check_gradients([learner_heard])
    yield learning.check_theta(run, initial, [learner_heard])
    yield learning.check_statistics(run, initial, [learner_heard])
    if learner_heard.targets:
        learner_heard.steps = list(range(1, len(learner_heard.targets) + 1))
        yield learning.check_target(initial, learner_heard, TARGET_UPDATES, "updates")
    yield learner.check_returns(run, learner_heard, actors)


def check_transitions(run: Run, heard: HeardMemory, rows: Sequence[Sequence[Row]]) -> Finding:
    """Every sampled transition consists of up to n steps that were put, and none crosses the end of an episode."""
    drawn, whole, ends = 0, 0, 0
    for batch, (streams, numbers) in zip(heard.drawn, heard.places, strict=True):
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


def check_priorities(run: Run, heard: HeardMemory, rows: Sequence[Sequence[Row]]) -> Finding:
    """Priorities are |G - Q(s, a)|, of the actor and then of the learner, and determine the importance weights."""
    config: Any = run.spec.config
    seen: set[tuple[int, int]] = set()
    first: list[tuple[float, float]] = []
    weights: list[tuple[float, float]] = []
    for batch, (streams, numbers), priorities in zip(heard.drawn, heard.places, heard.drawn_by, strict=True):
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
    kinds = (first, heard.renewed, weights)
    error = max(
        difference(*torch.tensor(pairs, dtype=torch.float64).unbind(1)) if pairs else torch.inf for pairs in kinds
    )
    return judge(
        "priorities reach the memory",
        error <= TOLERANCE,
        f"{len(first)} of actors, {len(heard.renewed)} of the learner, {len(weights)} weights, "
        f"largest difference {error:.1e}",
        "errors do not become priorities: look at Steps._first_priorities, Replay.feedback and the page's errors",
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


def check_ratio(run: Run, heard: HeardMemory, actors: Sequence[HeardMemory]) -> Finding:
    """Learning begins after the warm-up, and then keeps the replay ratio."""
    config: Any = run.spec.config
    put = sum(len(actor.put) for actor in actors) * config.t_max * config.envs_per_worker
    due = int(config.replay_ratio * (put - config.warmup_steps))
    turns = learner.turns_of(run).count(LEARNER)
    return judge(
        "the replay ratio is kept",
        len(heard.drawn) == due and heard.waits == turns - due > 0,
        f"{len(heard.drawn)} updates for {put} steps, {config.warmup_steps} of them warm-up; {due} were due; "
        f"the learner waited {heard.waits} times",
        "the learner learns more or less often than --replay-ratio says: look at Replay.ahead and Replay.has_room",
    )
