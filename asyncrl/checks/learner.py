"""Does experience reach the learner, and do its updates reach the actors? A few turns, computed a second time.

Actors and learner are built and run exactly as in a run, each in its own process, but they take turns, so the right
value of theta is known at every moment. What passed between them is compared with arithmetic done here.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.context import BaseContext
from typing import Any, cast

import torch
from torch import Tensor

from asyncrl.algorithm import IN_STEP, algorithm_of
from asyncrl.checks import learning
from asyncrl.checks.finding import Finding, judge
from asyncrl.checks.learning import TOLERANCE, Heard, ListeningStore, Replay, difference, file_of, joined
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Extras, Minibatch, Part, Rollout, State
from asyncrl.runtime.clock import RUNNING
from asyncrl.runtime.protocols import LEARNER, Agent, Batch, Experience, Learning, Receipt, Store
from asyncrl.runtime.replica import Replica
from asyncrl.runtime.run import Run, build_agent, build_learner, build_worker
from asyncrl.runtime.shared_memory import shared_zeros

ROUNDS = 3
"""In each round every actor has two turns, then the learner. In a queue the rollouts of the second turn grow old; in
step there is neither room for them nor a second batch."""


@dataclass
class HeardExchange(Heard):
    """What was recorded of an actor or the learner: its updates, and the rollouts that it put, or took in batches."""

    policies: list[Tensor] = field(default_factory=list)
    """Actor: theta' `[P]` with which each rollout was made."""
    rollouts: list[tuple[int, int]] = field(default_factory=list)
    """For each rollout its version of theta and a checksum."""
    versions: list[list[int]] = field(default_factory=list)
    """Learner: the versions of the rollouts in each batch."""
    newest: list[int] = field(default_factory=list)
    """Learner: the version of theta when each batch was taken."""
    waits: int = 0
    """Turns in which there was no room for a rollout, or no batch."""
    log_ratios: list[float] = field(default_factory=list)
    """Learner: largest |log pi / mu| of the steps of a batch made with the current theta."""
    returns: list[tuple[float, float]] = field(default_factory=list)
    """Learner: value losses or returns, from the page and from the definition of the n-step return."""


class ListeningExperience:
    """The run's experience; records what passes through it."""

    def __init__(self, experience: Experience, store: Store, heard: HeardExchange) -> None:
        self._experience, self._store, self._heard = experience, store, heard
        self.policy = Tensor()
        """theta' `[P]` of the actor that puts."""
        self.replay: Replay | None = None
        """Repeats that actor's actions."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._experience, name)

    def put(self, actor: int, rollout: Rollout, version: int) -> Receipt:
        """Pass a rollout on."""
        self._heard.rollouts.append((version, sum_of(rollout, slice(None))))
        self._heard.policies.append(self.policy.clone())
        if self.replay is not None:
            self.replay.follow(rollout)
        return self._experience.put(actor, rollout, version)

    def take(self, learner: int = LEARNER) -> Batch | None:
        """Pass a batch on."""
        batch = self._experience.take(learner)
        if batch is not None:
            rollout = cast(Rollout, batch.rollout)
            width = rollout.rewards.shape[1] // len(batch.versions)
            columns = [slice(i * width, (i + 1) * width) for i in range(len(batch.versions))]
            sums = [sum_of(rollout, place) for place in columns]
            self._heard.rollouts += zip(batch.versions, sums, strict=True)
            self._heard.versions.append(batch.versions)
            self._heard.newest.append(self._store.updates)
        return batch


class ListeningLearner:
    """The page's agent in the learner; records what its losses were computed from."""

    def __init__(self, agent: Learning, heard: HeardExchange) -> None:
        self._agent, self._heard = agent, heard
        self.network, self.exploration, self.generator = agent.network, agent.exploration, agent.generator
        self._expected: float | None = None
        """The expected value loss of the batch, if it is known."""

    def initial_state(self, environments: int) -> State:
        """As the page has it."""
        return self._agent.initial_state(environments)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """As the page has it."""
        return self._agent.act(observations, state, steps)

    def passes(self, batch: Rollout) -> Iterator[Part]:
        """The page's, after checking the batch with the current theta."""
        fresh = torch.tensor(self._heard.versions[-1]) == self._heard.newest[-1]
        prepared: list[Tensor] = []
        returns = None
        if hasattr(self.network, "values_of"):  # a policy and a value
            returns = self._check_batch(batch, fresh.repeat_interleave(batch.rewards.shape[1] // len(fresh)))
        for part in self._agent.passes(batch):
            if isinstance(part, Minibatch) and "return" in part.extras:
                prepared.append(part.extras["return"].flatten())
            yield part
        if prepared and returns is not None:
            seen = torch.cat(prepared).sort().values
            expected = returns.flatten().repeat(len(seen) // returns.numel()).sort().values
            if len(seen) == len(expected):  # whole passes over the batch
                self._heard.returns += zip(seen.tolist(), expected.tolist(), strict=True)

    @torch.no_grad()
    def _check_batch(self, batch: Rollout, fresh: Tensor) -> Tensor:
        """Record ratios and the expected value loss; returns R `[T, B]`. `fresh` `[B]`: made with the current theta."""
        network: Any = self.network
        policy, values, states = network(batch.observations, batch.state, batch.last)
        if "log_probability" in batch.extras and bool(fresh.any()):
            now = policy[:-1].log_probability(batch.actions)
            self._heard.log_ratios.append(float((now - batch.extras["log_probability"])[:, fresh].abs().max()))
        returns = returns_of(batch, batch.next_values(values[1:], network.values_of(batch, states)))
        same_policy = bool(fresh.all()) or "log_probability" not in batch.extras
        self._expected = float((returns - values[:-1]).square().mean()) if same_policy else None
        return returns

    def loss(self, part: Part) -> tuple[Tensor, Metrics]:
        """The page's loss, and its gradient a second time by other means."""
        parameters = list(self.network.parameters())
        self._heard.local.append(joined(parameters))
        self._agent.loss(part)[0].backward()  # type: ignore[no-untyped-call]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self._heard.true_gradients.append(joined(gradients))
        self.network.zero_grad()
        loss, metrics = self._agent.loss(part)
        if self._expected is not None and isinstance(part, Rollout) and "value_loss" in metrics():
            self._heard.returns.append((float(metrics()["value_loss"]), self._expected))
            self._expected = None
        return loss, metrics


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


def sum_of(rollout: Rollout, columns: slice) -> int:
    """A checksum of everything in some environments' columns of a rollout."""
    total = 0
    held = (rollout.observations, rollout.actions, rollout.rewards, rollout.discounts, rollout.last)
    for tensor in (*held, *rollout.extras.values()):
        total = zlib.crc32(tensor[:, columns].contiguous().numpy().tobytes(), total)
    return total


class Participant:
    """One actor of a run, or its learner, with everything recorded."""

    heard_of: type[HeardExchange] = HeardExchange
    listens_to: Callable[[Any, Store, Any], ListeningExperience] = ListeningExperience

    def __init__(self, run: Run, who: int) -> None:
        self.heard = self.heard_of(threads=learning.threads(), started_by=os.getppid())
        handles = run.handles
        self.store = handles.store
        experience = type(self).listens_to(handles.experience, handles.store, self.heard)
        store = cast(Store, ListeningStore(handles.store, self.heard))
        heard = replace(handles, store=store, experience=cast(Experience, experience))
        listening = replace(run, handles=heard)

        def make_agent(_: Run, number: int) -> tuple[Agent, Replica]:
            agent, replica = build_agent(run, number)
            if number == LEARNER:
                return self.learns(cast(Learning, agent), replica), replica
            experience.policy, experience.replay = replica.theta, Replay(run, self.heard)
            return agent, replica

        handles.clock.enter(who, RUNNING)
        self._role = (
            build_learner(listening, who, make_agent) if who == LEARNER else build_worker(listening, who, make_agent)
        )

    def learns(self, agent: Learning, replica: Replica) -> ListeningLearner:
        """The learner's agent."""
        return ListeningLearner(agent, self.heard)

    def turn(self) -> None:
        """Go on until it is another's turn."""
        self.heard.waits += not next(self._role.loop)

    def close(self) -> None:
        """End after the last turn."""
        self._role.close()


def turns_of(run: Run) -> list[int]:
    """Whose turn it is, for all turns."""
    actors = range(run.spec.config.workers)
    return [*actors, *actors, LEARNER, LEARNER] * ROUNDS


@dataclass(frozen=True)
class Turns:
    """The main function of a child, which waits for its turns."""

    taken: Tensor
    """`[1]` in shared memory: the number of finished turns."""
    takes_part: type[Participant]

    def __call__(self, run: Run, who: int) -> None:
        """Take part, and write what was recorded to the run's folder."""
        participant = self.takes_part(run, who)
        for number, owner in enumerate(turns_of(run)):
            if owner == who:
                while int(self.taken) != number:
                    time.sleep(0.001)
                participant.turn()
                self.taken.fill_(number + 1)
        participant.close()
        torch.save(asdict(participant.heard), file_of(run, who))


def listen(run: Run, takes_part: type[Participant] = Participant) -> tuple[Any, list[Any]]:
    """Run the learner and the actors in this process; returns what was recorded of them."""
    participants = {who: takes_part(run, who) for who in dict.fromkeys(turns_of(run))}
    for who in turns_of(run):
        participants[who].turn()
    for participant in participants.values():
        participant.close()
    return participants[LEARNER].heard, [participants[k].heard for k in range(run.spec.config.workers)]


def hear(context: BaseContext, run: Run, takes_part: type[Participant] = Participant) -> tuple[Any, list[Any], int]:
    """The same in separate processes; also the largest number of open files. Raises NoAnswer if one breaks."""
    everyone = [*range(run.spec.config.workers), LEARNER]
    opened = learning.run_children(context, Turns(shared_zeros(1, dtype=torch.int64), takes_part), run, everyone)
    *actors, learner = [takes_part.heard_of(**learning.read_plain(run, who)) for who in everyone]
    return learner, actors, opened


def judge_exchange(
    run: Run, initial: Tensor, learner: HeardExchange, actors: Sequence[HeardExchange]
) -> Iterator[Finding]:
    """All checks of what passed between actors and learner."""
    thetas = learning.apply_again(run, initial, [learner])[0]
    yield check_rollouts(learner, actors)
    yield check_policies(thetas, actors)
    yield check_versions(run, learner, actors)
    yield check_order(run, learner, actors)
    yield learning.check_pulls(run, initial, [learner], "the learner computes at the newest theta")
    yield learning.check_gradients([learner])
    yield learning.check_theta(run, initial, [learner])
    yield learning.check_statistics(run, initial, [learner])
    if learner.log_ratios:
        yield check_ratios(learner)
    yield check_returns(run, learner, actors)


def check_rollouts(learner: HeardExchange, actors: Sequence[HeardExchange]) -> Finding:
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


def check_policies(thetas: Sequence[Tensor], actors: Sequence[HeardExchange]) -> Finding:
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


def check_versions(run: Run, learner: HeardExchange, actors: Sequence[HeardExchange]) -> Finding:
    """An update adds one to the version and nothing to T; a rollout adds its steps to T, once."""
    config, updates, steps = run.spec.config, run.handles.store.updates, run.handles.clock.steps
    put = sum(len(actor.rollouts) for actor in actors) * config.t_max * config.envs_per_worker
    return judge(
        "updates and steps are counted once",
        updates == len(learner.gradients) and steps == put,
        f"{len(learner.gradients)} updates, counted {updates}; {put} steps, counted {steps}",
        "versions or T are wrong, and with them ages and schedules: look at SharedStore.push and Batches.put",
    )


def check_order(run: Run, learner: HeardExchange, actors: Sequence[HeardExchange]) -> Finding:
    """In step every rollout of a batch is made with the newest theta, and actors wait; in a queue they may be older."""
    batches = zip(learner.versions, learner.newest, strict=True)
    ages = [newest - version for versions, newest in batches for version in versions]
    waits = sum(actor.waits for actor in actors)
    if algorithm_of(run.spec.page).experience == IN_STEP:
        turns = len(actors) * ROUNDS  # and as many in which an actor finds no room before the batch is learnt from
        return judge(
            "batches in step are of the newest theta",
            ages == [0] * turns and waits == turns,
            f"ages of {len(ages)} rollouts up to {max(ages, default=0)}; actors waited {waits} times",
            "actors run ahead of the learner, or are missing: look at Batches.has_room and at the page's EXPERIENCE",
        )
    return judge(
        "a queue lets actors run ahead",
        bool(ages) and min(ages) == 0 and max(ages) > 0,
        f"ages of {len(ages)} rollouts from {min(ages, default=0)} to {max(ages, default=0)} updates",
        "rollouts are lost or of a wrong version: look at Batches.put and Batches.take",
    )


def check_ratios(learner: HeardExchange) -> Finding:
    """With the same theta, actor and learner compute the same probability of an action."""
    error = max(learner.log_ratios)
    return judge(
        "the ratio of an unchanged policy is 1",
        error <= TOLERANCE,
        f"{len(learner.log_ratios)} batches, largest |log ratio| {error:.1e}",
        "the learner sees other observations, states or actions than the actor did, or act's log-probability is wrong",
    )


def check_returns(run: Run, learner: HeardExchange, actors: Sequence[HeardExchange]) -> Finding:
    """A time limit keeps its discount, its last real observation, and its value in the return."""
    cuts = [cut for actor in actors for cut in actor.truncations]
    return learning.check_truncation(run, [Heard(value_losses=learner.returns, truncations=cuts)])
