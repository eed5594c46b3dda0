"""The ring: against a plain deque at every point where somebody may die, and between processes that are killed."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from asyncrl.backends.processes import start, start_context
from asyncrl.core.errors import UsageError
from asyncrl.experience.blocks import Block, BlockLayout, Ring, ring_bytes
from asyncrl.runtime.clock import shared_zeros

SMALL = BlockLayout(
    (
        ("version", (), torch.int64),
        ("observations", (3, 2), torch.uint8),
        ("rewards", (3,), torch.float32),
        ("last", (3,), torch.bool),
    )
)
LARGE = BlockLayout(
    (
        ("version", (), torch.int64),
        ("seconds", (), torch.float64),
        ("observations", (20, 1001), torch.int32),
        ("rewards", (20, 7), torch.float64),
    )
)
"""80 kB: long enough in the writing to be torn by a kill."""


def fill(block: Block, value: int) -> None:
    for tensor in block.values():
        tensor.fill_(value)


def holds(block: Block, value: int) -> bool:
    """Whether every element is what `fill` makes of `value`."""
    return all(bool((t == torch.tensor(value).to(t.dtype)).all()) for t in block.values())


def put(ring: Ring, value: int) -> None:
    fill(ring.begin(), value)
    ring.publish()


def successor(ring: Ring) -> Ring:
    """Another process's view of the same memory."""
    return copy.copy(ring)


class Died(BaseException):
    """What a process would notice of SIGKILL if it could."""


class Mortal:
    """Counts of a process that dies in place of its next store to them."""

    def __init__(self, counts: np.ndarray) -> None:
        self.counts = counts

    def __getitem__(self, key: Any) -> Any:
        return self.counts[key]

    def __setitem__(self, key: Any, value: int) -> None:
        raise Died


def dies(ring: Ring, do: Callable[[], Any]) -> None:
    """Let the process that holds `ring` die in place of the first store of `do` to the counts."""
    ring._counts = Mortal(ring._counts)  # type: ignore[assignment]
    with pytest.raises(Died):
        do()


class RingMachine(RuleBasedStateMachine):
    """A ring beside a deque of the values in its unread blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.value = 0

    @initialize(capacity=st.integers(1, 3))
    def make(self, capacity: int) -> None:
        self.capacity = capacity
        self.writer = Ring(SMALL, capacity)
        self.reader = successor(self.writer)
        self.unread: deque[int] = deque()
        self.written = self.freed = 0
        self.begun: Block | None = None

    def fill(self, tensors: int = 4) -> None:
        assert self.begun is not None
        self.value = self.value % 250 + 1
        for tensor in itertools.islice(self.begun.values(), tensors):
            tensor.fill_(self.value)

    @rule()
    def begin(self) -> None:
        if len(self.unread) == self.capacity:
            with pytest.raises(RuntimeError, match="full"):
                self.writer.begin()
            return
        self.begun = self.writer.begin()

    @precondition(lambda self: self.begun is not None)
    @rule(tensors=st.integers(1, 4))
    def write(self, tensors: int) -> None:
        """Some of the block only: it is published with what is there then, or lost."""
        self.fill(tensors)

    @precondition(lambda self: self.begun is not None)
    @rule()
    def publish(self) -> None:
        self.fill()
        self.writer.publish()
        self.unread.append(self.value)
        self.written += 1
        self.begun = None

    @rule(n=st.integers(1, 5))
    def put(self, n: int) -> None:
        """A few blocks in a row, as many as the ring takes; what was begun before is begun again."""
        for _ in range(min(n, self.writer.free())):
            self.begin()
            self.publish()

    @precondition(lambda self: self.begun is not None)
    @rule()
    def writer_dies_as_it_publishes(self) -> None:
        self.fill()
        dies(self.writer, self.writer.publish)
        self.writer_dies()

    @rule()
    def writer_dies(self) -> None:
        """Between two blocks, or while it fills one."""
        self.writer, self.begun = successor(self.reader), None

    @rule(i=st.integers(0, 4))
    def read(self, i: int) -> None:
        if i >= len(self.unread):
            with pytest.raises(IndexError):
                self.reader.read(i)
            return
        assert holds(self.reader.read(i), self.unread[i])
        assert holds(self.reader.block(self.freed + i), self.unread[i])

    @rule(n=st.integers(0, 4))
    def release(self, n: int) -> None:
        if n > len(self.unread):
            with pytest.raises(ValueError, match="cannot release"):
                self.reader.release(n)
            return
        self.reader.release(n)
        self.freed += n
        for _ in range(n):
            self.unread.popleft()

    @precondition(lambda self: self.unread)
    @rule()
    def reader_dies_as_it_releases(self) -> None:
        dies(self.reader, self.reader.release)
        self.reader = successor(self.writer)

    @rule(more=st.integers(0, 3))
    def go_on_from_a_checkpoint(self, more: int) -> None:
        """In a ring that may be larger; what was read is not kept, what was begun is lost."""
        state = self.reader.state()
        assert all(len(tensor) == len(self.unread) for name, tensor in state.items() if name != "counts")
        self.capacity += more if self.capacity < 5 else 0
        self.writer = Ring(SMALL, self.capacity)
        self.writer.restore(state)
        self.reader, self.begun = successor(self.writer), None

    @invariant()
    def the_counts_are_those_of_the_deque(self) -> None:
        for side in (self.writer, self.reader):
            assert (side.written, side.freed) == (self.written, self.freed)
            assert side.ready() == len(self.unread) == self.written - self.freed
            assert side.free() == self.capacity - len(self.unread)


# A busy machine is no reason to fail.
RingMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestRingAgainstADeque = RingMachine.TestCase


def test_the_memory_is_what_was_announced_before_it_is_allocated() -> None:
    """Two rows of counts, and 3 blocks of 64 + 64 + 64 + 64 bytes: 2 * 64 + 3 * 256."""
    ring = Ring(SMALL, 3)

    assert ring_bytes(SMALL, 3) == 2 * 64 + 3 * 256
    assert ring._memory.numel() == ring_bytes(SMALL, 3)
    assert ring._memory.is_shared()


def test_tensors_have_their_shapes_and_types_and_begin_on_a_cache_line() -> None:
    layout = BlockLayout(
        (
            ("flag", (), torch.bool),
            ("image", (2, 3, 5, 5), torch.uint8),
            ("nothing", (0, 7), torch.float32),
            ("cells", (2, 9), torch.float64),
        )
    )
    ring = Ring(layout, 2)

    for _ in range(2):
        block = ring.begin()
        assert [(name, tuple(t.shape), t.dtype) for name, t in block.items()] == list(layout.fields)
        assert all(tensor.data_ptr() % 64 == 0 and tensor.is_contiguous() for tensor in block.values())
        ring.publish()


def test_tensors_do_not_overlap() -> None:
    """Each tensor of each block gets a number of its own, and keeps it."""
    ring = Ring(SMALL, 3)
    numbers = itertools.count(1)
    for _ in range(3):
        for tensor in ring.begin().values():
            tensor.fill_(next(numbers))
        ring.publish()

    numbers = itertools.count(1)
    for i in range(3):
        for tensor in ring.read(i).values():
            assert torch.equal(tensor, torch.full_like(tensor, next(numbers)))


def test_a_reader_sees_the_writers_memory_without_a_copy() -> None:
    ring = Ring(SMALL, 2)
    written = ring.begin()
    fill(written, 7)
    ring.publish()

    assert all(tensor.data_ptr() == written[name].data_ptr() for name, tensor in ring.read().items())


def test_layouts_are_plain_values() -> None:
    again = pickle.loads(pickle.dumps(SMALL))

    assert again == SMALL
    assert hash(again) == hash(SMALL)


def test_contents_and_counts_come_back_to_the_bit() -> None:
    """Two blocks unread of five, one begun: the same two afterwards, and the begun one is number 5 again."""
    ring = Ring(SMALL, 4)
    for value in range(5):
        put(ring, value)
        if value < 3:
            ring.release()
    fill(ring.begin(), 99)
    state = {name: tensor.clone() for name, tensor in ring.state().items()}

    again = Ring(SMALL, 3)
    put(again, 200)
    again.restore(state)

    assert (again.written, again.freed, again.ready(), again.free()) == (5, 3, 2, 1)
    assert holds(again.read(0), 3)
    assert holds(again.read(1), 4)
    for name, tensor in again.state().items():
        assert torch.equal(tensor, state[name])


def test_the_state_is_a_copy() -> None:
    ring = Ring(SMALL, 1)
    put(ring, 5)
    state = ring.state()
    ring.release()
    put(ring, 6)

    assert state["blocks.rewards"].tolist() == [[5.0] * 3]


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    ring = Ring(SMALL, 2)
    put(ring, 1)
    put(ring, 2)
    state = ring.state()
    lacking = {name: tensor for name, tensor in state.items() if name != "blocks.last"}

    small = Ring(SMALL, 1)
    put(small, 9)
    for wrong, words in [
        (state, "2 blocks of experience, this run has room for 1"),
        (lacking, "2 blocks of experience, this run has room for 1"),
    ]:
        with pytest.raises(UsageError, match=words):
            small.restore(wrong)
    assert holds(small.read(), 9)
    for wrong in (
        lacking,
        state | {"blocks.rewards": torch.zeros(2, 4)},
        state | {"blocks.rewards": torch.zeros(2, 3, dtype=torch.float64)},
        state | {"blocks.rewards": torch.zeros(1, 3)},
    ):
        with pytest.raises(UsageError, match="different shape"):
            ring.restore(wrong)
    counts = [[0, 2], [-1, -3], [2**62, 2**62 - 2], [2.0, 0.0], [2, 0, 0]]
    for wrong in ({}, *(state | {"counts": torch.tensor(numbers)} for numbers in counts)):
        with pytest.raises(UsageError, match="its counts are missing or invalid"):
            ring.restore(wrong)
    assert holds(ring.read(0), 1)


READS = 1 << 22
"""Blocks that a test can account for; it stops long before."""


def write_for_ever(ring: Ring) -> None:
    while True:
        if not ring.free():
            time.sleep(0)
            continue
        value = ring.written
        block = ring.begin()
        fill(block, -1)  # whatever is seen of a block before it is whole is wrong
        for tensor in block.values():
            for row in tensor.view(-1, 20).unbind(-1) if tensor.dim() else [tensor]:  # slowly: kills are to strike here
                row.fill_(value)
        ring.publish()


def read_for_ever(ring: Ring, times: Tensor, faults: Tensor) -> None:
    """Count in `times` `[READS]` how often each block was read, in `faults` `[1]` those torn or wrong."""
    following = ring.freed
    while True:
        if not ring.ready():
            time.sleep(0)
            continue
        if ring.freed != following or not holds(ring.read(), following):
            faults[0] += 1
        times[following] += 1
        ring.release()
        following += 1


@pytest.mark.faults
@pytest.mark.parametrize(
    ("victims", "capacity", "kills"),
    [
        pytest.param(("writer",), 1, 20, marks=pytest.mark.slow),
        pytest.param(("reader",), 3, 20, marks=pytest.mark.slow),
        pytest.param(("writer", "reader"), 2, 20, marks=pytest.mark.slow),
        (("writer", "reader"), 2, 5),
    ],
    ids=str,
)
def test_kills_lose_no_published_block_and_tear_none(victims: tuple[str, ...], capacity: int, kills: int) -> None:
    """Every block that was released was read whole, in order; twice only those a reader died with in its hands."""
    context = start_context("asyncrl.a3c")
    ring, times, faults = Ring(LARGE, capacity), shared_zeros(READS, dtype=torch.int32), shared_zeros(1)
    roles: dict[str, tuple[Any, ...]] = {
        "writer": (write_for_ever, ring),
        "reader": (read_for_ever, ring, times, faults),
    }
    chance = random.Random(capacity)
    killed = dict.fromkeys(roles, 0)

    def launch(role: str) -> BaseProcess:
        target, *arguments = roles[role]
        process = context.Process(target=target, args=arguments, daemon=True)  # type: ignore[attr-defined]
        start(process)
        return process

    def wait_for_blocks(n: int) -> None:
        beyond, deadline = ring.freed + n, time.monotonic() + 200
        while ring.freed < beyond:
            assert all(process.is_alive() for process in running.values())
            assert time.monotonic() < deadline, "nothing moves any more"
            time.sleep(0.001)

    running = {role: launch(role) for role in roles}
    try:
        for _ in range(kills):
            wait_for_blocks(2 * capacity + 3)
            time.sleep(chance.uniform(0, 0.003))
            victim = chance.choice(victims)
            running[victim].kill()
            running[victim].join()
            killed[victim] += 1
            running[victim] = launch(victim)
        wait_for_blocks(100)
    finally:
        for process in running.values():
            process.kill()
            process.join()
    killed["reader"] += 1

    assert faults.tolist() == [0]
    assert ring.written - ring.freed <= capacity
    read = times[: ring.freed]
    assert int(read.min()) >= 1
    assert int((read - 1).sum()) <= killed["reader"]
    assert int(times[ring.freed + 1 :].sum()) == 0
    following = ring.freed
    for i in range(ring.ready()):
        assert holds(ring.read(i), following + i)
