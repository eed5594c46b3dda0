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

from asyncrl.backends.processes import no_main_module, start_context
from asyncrl.core.errors import UsageError
from asyncrl.experience.ring import Block, BlockLayout, Ring, ring_bytes
from asyncrl.runtime.shared_memory import shared_zeros

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


def holds(block: Block | None, value: int) -> bool:
    """Whether every element is what `fill` makes of `value`."""
    return block is not None and all(bool((t == torch.tensor(value).to(t.dtype)).all()) for t in block.values())


def put(ring: Ring, value: int, overwrite: bool = False) -> None:
    fill(ring.begin(overwrite), value)
    ring.publish()


def successor(ring: Ring) -> Ring:
    """Another process's view of the same memory."""
    return copy.copy(ring)


class Died(BaseException):
    """What a process would notice of SIGKILL if it could."""


class Mortal:
    """Control cells of a process that dies in place of a certain store."""

    def __init__(self, cells: np.ndarray, stores: int) -> None:
        self.cells, self.stores = cells, stores

    def __getitem__(self, key: Any) -> Any:
        return self.cells[key]

    def __setitem__(self, key: Any, value: int) -> None:
        if not self.stores:
            raise Died
        self.stores -= 1
        self.cells[key] = value


def dies(ring: Ring, stores: int, do: Callable[[], Any]) -> bool:
    """Let the process that holds `ring` do something; whether it died after so many stores to control cells."""
    ring._cells = Mortal(ring._cells, stores)  # type: ignore[assignment]
    try:
        do()
    except Died:
        return True
    ring._cells = ring._cells.cells  # type: ignore[attr-defined]
    return False


class RingMachine(RuleBasedStateMachine):
    """A ring beside a deque: `unread` is the queue, `there` what no writer has begun to overwrite."""

    def __init__(self) -> None:
        super().__init__()
        self.value = 0

    @initialize(capacity=st.integers(1, 3))
    def make(self, capacity: int) -> None:
        self.capacity = capacity
        self.writer = Ring(SMALL, capacity)
        self.reader = successor(self.writer)
        self.unread: deque[int] = deque()
        self.there: dict[int, int] = {}
        self.written = self.freed = 0
        self.begun: Block | None = None

    def full(self) -> bool:
        return len(self.unread) >= self.capacity

    def takes_a_slot(self) -> None:
        self.there.pop(self.written - self.capacity, None)

    @rule(overwrite=st.booleans())
    def begin(self, overwrite: bool) -> None:
        if self.full() and not overwrite:
            with pytest.raises(RuntimeError, match="full"):
                self.writer.begin()
            return
        self.begun = self.writer.begin(overwrite)
        self.takes_a_slot()

    @precondition(lambda self: self.begun is not None)
    @rule(tensors=st.integers(1, 4))
    def write(self, tensors: int) -> None:
        """Some of the block only: it is published with what is there then, or lost."""
        self.value = self.value % 250 + 1
        for tensor in itertools.islice(self.begun.values(), tensors):
            tensor.fill_(self.value)

    @precondition(lambda self: self.begun is not None)
    @rule()
    def publish(self) -> None:
        self.value = self.value % 250 + 1
        fill(self.begun, self.value)
        self.writer.publish()
        self.published()

    @rule(n=st.integers(1, 5), overwrite=st.booleans())
    def put(self, n: int, overwrite: bool) -> None:
        """A few blocks in a row, as many as the ring takes; what was begun before is begun again."""
        for _ in range(n if overwrite else min(n, self.writer.free())):
            self.begin(overwrite)
            self.publish()

    def published(self) -> None:
        self.unread.append(self.written)
        self.there[self.written] = self.value
        self.written += 1
        self.begun = None

    @precondition(lambda self: self.begun is None)
    @rule()
    def nothing_to_publish(self) -> None:
        with pytest.raises(RuntimeError, match="no block has been begun"):
            self.writer.publish()

    @precondition(lambda self: not self.full())
    @rule(stores=st.integers(0, 2))
    def writer_dies_as_it_begins(self, stores: int) -> None:
        """Before the first store of `begin`, before the second, or just after it."""
        assert dies(self.writer, stores, self.writer.begin) is (stores < 2)
        if stores:
            self.takes_a_slot()
        self.writer_is_succeeded()

    @precondition(lambda self: self.begun is not None)
    @rule(stores=st.integers(0, 2))
    def writer_dies_as_it_publishes(self, stores: int) -> None:
        """Before the first store of `publish`, before the second, or just after it."""
        self.value = self.value % 250 + 1
        fill(self.begun, self.value)
        assert dies(self.writer, stores, self.writer.publish) is (stores < 2)
        if stores == 2:
            self.published()
        self.writer_is_succeeded()

    @rule()
    def writer_dies(self) -> None:
        """Between two blocks, or while it fills one."""
        self.writer_is_succeeded()

    def writer_is_succeeded(self) -> None:
        self.writer, self.begun = successor(self.reader), None

    @rule(i=st.integers(0, 4))
    def read(self, i: int) -> None:
        if i >= len(self.unread):
            with pytest.raises(IndexError):
                self.reader.read(i)
            return
        sequence = self.unread[i]
        if sequence not in self.there:
            assert self.reader.read(i) is None
            return
        assert holds(self.reader.read(i), self.there[sequence])

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
    @rule(released=st.booleans())
    def reader_dies(self, released: bool) -> None:
        """Before or after the one store of a release."""
        assert dies(self.reader, int(released), self.reader.release) is not released
        if released:
            self.unread.popleft()
            self.freed += 1
        self.reader = successor(self.writer)

    @rule(more=st.integers(0, 3))
    def go_on_from_a_checkpoint(self, more: int) -> None:
        """In a ring that may be larger; what was read is not kept, what was begun is lost."""
        state = self.reader.state()
        self.there = {s: value for s, value in self.there.items() if s in self.unread}
        assert all(len(tensor) == len(self.there) for name, tensor in state.items() if name != "counts")
        self.capacity += more if self.capacity < 5 else 0
        self.writer = Ring(SMALL, self.capacity)
        self.writer.restore(state)
        self.reader, self.begun = successor(self.writer), None

    @invariant()
    def the_counts_are_those_of_the_deque(self) -> None:
        for side in (self.writer, self.reader):
            assert (side.written, side.freed) == (self.written, self.freed)
            assert side.ready() == len(self.unread) == self.written - self.freed
            assert side.free() == max(0, self.capacity - len(self.unread))

    @invariant()
    def exactly_the_blocks_that_nobody_has_begun_to_overwrite_are_intact(self) -> None:
        for sequence in range(-1, self.written + 2):
            assert self.reader.intact(sequence) == (sequence in self.there)
            if sequence in self.there:
                assert holds(self.reader.block(sequence), self.there[sequence])
            else:
                assert self.reader.block(sequence) is None


# A busy machine is no reason to fail.
RingMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestRingAgainstADeque = RingMachine.TestCase


def test_the_memory_is_what_was_announced_before_it_is_allocated() -> None:
    """Two rows of counts, three of numbers, and 3 blocks of 64 + 64 + 64 + 64 bytes: 5 * 64 + 3 * 256."""
    ring = Ring(SMALL, 3)

    assert ring_bytes(SMALL, 3) == 5 * 64 + 3 * 256
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


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_ring_without_room_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="at least one block"):
        Ring(SMALL, capacity)


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="the same name"):
        BlockLayout((("a", (), torch.int64), ("a", (2,), torch.int64)))


def test_a_copy_of_an_overwritten_block_is_noticed() -> None:
    """A reader that copies while the writer comes round: intact before, not intact after."""
    ring = Ring(SMALL, 2)
    put(ring, 1)
    put(ring, 2)
    copied = ring.block(0)["rewards"].clone()
    assert ring.intact(0)

    half = ring.begin(overwrite=True)

    assert not ring.intact(0)
    assert ring.intact(1)
    fill(half, 3)
    ring.publish()
    assert copied.tolist() == [1.0] * 3
    assert [ring.intact(sequence) for sequence in range(3)] == [False, True, True]
    assert holds(ring.block(2), 3)


def test_a_block_that_was_ended_and_not_published_is_not_there_while_its_successor_writes_it() -> None:
    """A writer that died between the two stores of `publish` leaves an end number that must not vouch for a half."""
    ring = Ring(SMALL, 1)
    fill(ring.begin(), 1)
    assert dies(ring, 1, ring.publish)
    heir = successor(ring)

    heir.begin()["rewards"].fill_(2)

    assert heir.ready() == 0
    assert not heir.intact(0)
    row = heir._cells[2]
    assert row[0] != row[1]


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
    with pytest.raises(RuntimeError, match="no block has been begun"):
        again.publish()
    for name, tensor in again.state().items():
        assert torch.equal(tensor, state[name])


def test_the_state_is_a_copy() -> None:
    ring = Ring(SMALL, 1)
    put(ring, 5)
    state = ring.state()
    ring.release()
    put(ring, 6)

    assert state["blocks.rewards"].tolist() == [[5.0] * 3]


def test_a_block_that_is_being_overwritten_is_not_kept() -> None:
    """Blocks 0 and 1 unread in a ring of two, and 2 begun in the place of 0: only 1 is worth keeping."""
    ring = Ring(SMALL, 2)
    put(ring, 10)
    put(ring, 11)
    ring.begin(overwrite=True)

    again = Ring(SMALL, 2)
    again.restore(ring.state())

    assert again.state()["blocks.rewards"].tolist() == [[11.0] * 3]
    assert (again.written, again.freed) == (2, 0)
    assert again.read(0) is None
    assert holds(again.read(1), 11)


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
        with pytest.raises(UsageError, match="another shape"):
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
    """Count in `times` `[READS]` how often each block was read, in `faults` `[2]` those torn and those wrong."""
    following = ring.freed
    while True:
        if not ring.ready():
            time.sleep(0)
            continue
        block = ring.read()
        if block is None:
            faults[0] += 1
        elif ring.freed != following or not holds(block, following):
            faults[1] += 1
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
    ring, times, faults = Ring(LARGE, capacity), shared_zeros(READS, dtype=torch.int32), shared_zeros(2)
    roles: dict[str, tuple[Any, ...]] = {
        "writer": (write_for_ever, ring),
        "reader": (read_for_ever, ring, times, faults),
    }
    chance = random.Random(capacity)
    killed = dict.fromkeys(roles, 0)

    def start(role: str) -> BaseProcess:
        target, *arguments = roles[role]
        with no_main_module():
            process = context.Process(target=target, args=arguments, daemon=True)  # type: ignore[attr-defined]
            process.start()
        return process

    def wait_for_blocks(n: int) -> None:
        beyond, deadline = ring.freed + n, time.monotonic() + 200
        while ring.freed < beyond:
            assert all(process.is_alive() for process in running.values())
            assert time.monotonic() < deadline, "nothing moves any more"
            time.sleep(0.001)

    running = {role: start(role) for role in roles}
    try:
        for _ in range(kills):
            wait_for_blocks(2 * capacity + 3)
            time.sleep(chance.uniform(0, 0.003))
            victim = chance.choice(victims)
            running[victim].kill()
            running[victim].join()
            killed[victim] += 1
            running[victim] = start(victim)
        wait_for_blocks(100)
    finally:
        for process in running.values():
            process.kill()
            process.join()
    killed["reader"] += 1

    assert faults.tolist() == [0, 0]
    assert ring.written - ring.freed <= capacity
    read = times[: ring.freed]
    assert int(read.min()) >= 1
    assert int((read - 1).sum()) <= killed["reader"]
    assert int(times[ring.freed + 1 :].sum()) == 0
    following = ring.freed
    for i in range(ring.ready()):
        assert holds(ring.read(i), following + i)
