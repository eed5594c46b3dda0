"""The learner's loop: the order of calls, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Rollout
from asyncrl.core.updates import Descent, UpdateRule
from asyncrl.experience.batches import Batches
from asyncrl.experience.blocks import RolloutShape
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import FINISH, LEAVE, Clock
from asyncrl.runtime.loops import WAITS, WORKED, Replica, learner
from asyncrl.runtime.protocols import LEARNER, Receipt, Update
from asyncrl.runtime.telemetry import Telemetry
from asyncrl.storage.records import RecordWriter, read_records
from tests.experience.test_blocks import VECTOR, rollout_of
from tests.support import FixedAgent

SHAPE = RolloutShape(2, 1, VECTOR)


class TapedStore(SharedStore):
    """Writes down what is asked of it; its parameters can only be copied."""

    def __init__(self, tape: list[str], clock: Clock) -> None:
        descent = Descent(UpdateRule("momentum-sgd", decay=0.0), learning_rate=0.25)
        super().__init__(torch.tensor([1.0]), descent, clock.workers, clock)
        self.tape = tape

    def view(self) -> None:  # type: ignore[override]
        return None

    def pull(self, into: Tensor) -> int:
        self.tape.append("pull")
        return super().pull(into)

    def push(self, update: Update) -> Receipt:
        self.tape.append(f"push {update.worker}")
        return super().push(update)


class TapedAgent(FixedAgent):
    """Learns from each batch twice, and says at which parameters."""

    def __init__(self, tape: list[str]) -> None:
        super().__init__()
        self.tape = tape

    def _weight(self) -> Tensor:
        return next(self.network.parameters())

    def passes(self, batch: Rollout) -> Iterator[Rollout]:
        self.tape.append(f"passes at {self._weight().item()}")
        yield from (batch, batch)

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        self.tape.append(f"loss at {self._weight().item()}")
        weight = self._weight()
        return weight.square().sum(), lambda: {"weight": weight.detach().sum()}


def learner_of(folder: Path, tape: list[str]) -> tuple[Iterator[bool], Batches, Clock]:
    clock = Clock(1, total_steps=10**6, learners=1)
    store, agent = TapedStore(tape, clock), TapedAgent(tape)
    experience = Batches(SHAPE, 1, clock, in_step=True)
    replica = Replica(store, agent.network, None, private_copy=False)

    def loop() -> Iterator[bool]:
        with closing(RecordWriter(folder / "learner.jsonl")) as writer:
            telemetry = Telemetry(LEARNER, clock, writer, 1e9)
            yield from learner(agent, replica, store, experience, clock, telemetry)  # type: ignore[arg-type]

    return loop(), experience, clock


def test_a_batch_begins_with_theta_as_it_is_and_so_does_every_part_of_it(tmp_path: Path) -> None:
    """Also where theta can only be copied: gradients 2 w, steps of 1/4, so that w is halved each time."""
    tape: list[str] = []
    loop, experience, clock = learner_of(tmp_path, tape)
    assert next(loop) == WAITS
    for _ in range(2):
        experience.put(0, rollout_of(SHAPE), 0)
        assert next(loop) == WORKED
        assert experience.has_room(0)

    first = [
        "pull",
        "passes at 1.0",
        "pull",
        "loss at 1.0",
        f"push {LEARNER}",
        "pull",
        "loss at 0.5",
        f"push {LEARNER}",
    ]
    second = [word.replace("0.5", "0.125").replace("1.0", "0.25") for word in first]
    assert tape == first + second
    assert clock.steps == 4
    loop.close()  # type: ignore[attr-defined]
    (row,) = read_records(tmp_path / "learner.jsonl")
    assert (row["updates"], row["batches"], row["rollout_age_counts"]) == (4, 2, {"0": 1, "2": 1})


def test_what_is_left_at_the_end_of_a_run_is_learnt_from(tmp_path: Path) -> None:
    """And then there is nothing to wait for."""
    tape: list[str] = []
    loop, experience, clock = learner_of(tmp_path, tape)
    experience.put(0, rollout_of(SHAPE), 0)
    clock.stop(FINISH)

    assert list(loop) == [WORKED]
    assert tape.count(f"push {LEARNER}") == 2


def test_a_learner_that_should_leave_does_not_finish_its_batch(tmp_path: Path) -> None:
    """A batch may be of a hundred updates, and who does not leave in time is killed."""
    tape: list[str] = []
    loop, experience, clock = learner_of(tmp_path, tape)
    experience.put(0, rollout_of(SHAPE), 0)
    clock.stop(LEAVE)

    assert list(loop) == []
    assert not any(word.startswith("push") for word in tape)
