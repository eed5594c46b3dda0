"""Rows of single steps against a slow reference: stacks, ends, time limits, borders of rollouts, restarts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import UsageError
from asyncrl.core.spaces import Spaces
from asyncrl.experience.steps import Steps, StepShape
from tests.experience.streams import GOES_ON, TERMINATES, TRUNCATES, Expected, Seen, Written, collector_of, rows_of
from tests.experience.streams import spaces_of as spaces

KINDS = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=1, max_size=12)


def copy_of(steps: Steps) -> Steps:
    """As another process has it: with the same memory."""
    kind, made_of = steps.__reduce__()
    return kind(*made_of)


def fill(steps: Steps, kinds: list[list[int]], t_max: int, lives: list[int]) -> list[list[list[Seen]]]:
    """Put so many rollouts as each writer of actor 0 lives; logs by environment and writer."""
    stack = steps.shape.stack
    logs: list[list[list[Seen]]] = [[] for _ in kinds]
    for number, rollouts in enumerate(lives):
        writer = steps if not number else copy_of(steps)
        environments = [Written(own, stack, 100 * number + 50 * e) for e, own in enumerate(kinds)]
        collector = collector_of(environments, stack, t_max)
        for _ in range(rollouts):
            writer.add(0, next(collector))
        for e, environment in enumerate(environments):
            logs[e].append(environment.log)
    return logs


def check(steps: Steps, stream: int, row: int, expected: Expected | None) -> None:
    streams, rows = np.array([stream]), np.array([row])
    drawn, _, usable = steps.read(streams, rows)
    assert bool(usable[0]) == (expected is not None)
    if expected is None:
        return
    assert np.array_equal(drawn.observations[0].numpy(), expected.observation)
    assert int(drawn.actions[0]) == expected.action
    length = len(expected.rewards)
    assert drawn.rewards[:length, 0].tolist() == expected.rewards
    assert drawn.discounts[:length, 0].tolist() == expected.discounts
    cut = drawn.last[:, 0].numpy()
    assert not cut[: length - 1].any()
    assert cut[length - 1] or length == len(cut)
    if expected.following is not None:
        assert np.array_equal(drawn.following[0].numpy(), expected.following)


@settings(max_examples=150, deadline=None)
@given(
    first=KINDS, second=KINDS, t_max=st.integers(1, 5), n=st.integers(1, 4), stack=st.integers(1, 4),
    spare=st.integers(0, 30), lives=st.lists(st.integers(1, 5), min_size=1, max_size=3),
)  # fmt: skip
def test_every_row_gives_the_transition_that_one_would_write_down(
    first: list[int], second: list[int], t_max: int, n: int, stack: int, spare: int, lives: list[int]
) -> None:
    """Whatever ends where, however the ring has gone round, and whoever wrote before."""
    steps = Steps(StepShape(spaces(stack), stack, n, priorities=True), 1, 2, 2 * t_max + n + stack + spare)

    logs = fill(steps, [first, second], t_max, lives)

    begins, ends = steps.drawable()
    for stream, own in enumerate(logs):
        expected = rows_of(own, n)
        assert steps.written[stream] == len(expected)
        assert steps.put[stream] == sum(map(len, own))
        gone = len(expected) - steps.capacity
        assert begins[stream] == (gone + stack - 1 if gone > 0 else 0)
        assert ends[stream] == max(len(expected) - n, begins[stream])
        for row in range(begins[stream], ends[stream]):
            check(steps, stream, row, expected[row])
            wanted = expected[row]
            priority = steps.rows["priorities"][steps.place(np.array([stream]), np.array([row]))][0]
            assert (priority > 0) == (wanted is not None)
            if wanted is not None and wanted.following is None:
                value = sum(0.5**k * reward for k, reward in enumerate(wanted.rewards))
                assert priority == pytest.approx(abs(value - wanted.observation[-1, 0, 0] / 2) + 1e-6, rel=1e-5)


def test_a_first_priority_is_the_error_by_what_acting_left() -> None:
    """Two steps: r0 + g r1 + g^2 max Q(s2) - Q(s0, a0), rewards clipped as in the loss; at a time limit s1's value
    stands for that of the last observation."""
    steps = Steps(StepShape(spaces(1), 1, 2, priorities=True, reward_clip=3.5), 1, 1, 40)
    fill(steps, [[GOES_ON, GOES_ON, GOES_ON, GOES_ON, TRUNCATES]], 10, [1])

    priorities = steps.rows["priorities"][:6]

    # Images are 2, 3, 4, ...; rewards 2, 3, 4, 5, 6; Q(s, a) half of max Q(s, .), which is the image's number.
    expected = [2 + 0.5 * 3 + 0.25 * 4 - 1, 3 + 0.5 * 3.5 + 0.25 * 5 - 1.5, 3.5 + 0.5 * 3.5 + 0.25 * 6 - 2,
                3.5 + 0.5 * 3.5 + 0.25 * 6 - 2.5, 3.5 + 0.5 * 6 - 3]  # fmt: skip
    assert priorities[:5] == pytest.approx(expected, abs=1e-4)
    assert priorities[5] == 0


def test_what_was_overwritten_while_it_was_read_is_noticed() -> None:
    """A writer that has begun a rollout and died takes the rows it began with it, also from its successor."""
    steps = Steps(StepShape(spaces(2), 2, 1), 1, 1, 20)
    fill(steps, [[GOES_ON]], 5, [4])
    streams, rows = np.zeros(3, np.int64), np.array([1, 5, 6])
    assert steps.read(streams, rows).usable.all()

    steps._cells[0, 0] += 5  # begun, and not written

    assert steps.read(streams, rows).usable.tolist() == [False, False, True]
    assert steps.drawable()[0].tolist() == [6]
    fill(steps, [[TERMINATES]], 2, [0, 1])
    assert steps.written[0] == 22
    assert steps.drawable()[0].tolist() == [6]


def test_of_a_stack_only_the_newest_image_is_kept() -> None:
    """A million steps of the screens of 42 pixels take less than 2.5 GB, of 84 pixels less than 9 GB."""
    for pixels, most in ((42, 2.5e9), (84, 9e9)):
        for priorities in (False, True):
            atari = Spaces((4, pixels, pixels), "uint8", 6, kind="atari")
            layout = StepShape(atari, 4, 3, priorities).layout(16, 1_000_000 // 16)
            assert layout.block_bytes < most
    with pytest.raises(ValueError, match="cannot be a stack of 3"):
        Steps(StepShape(spaces(4), 3), 1, 1, 10)


def test_a_memory_goes_on_from_a_copy_of_it() -> None:
    """All rows that are there, and whether the next one begins an episode; another size is refused."""
    shape = StepShape(spaces(3), 3, 2)
    steps, again, fresh = (Steps(shape, 1, 1, 23) for _ in range(3))
    environment = Written([GOES_ON, GOES_ON, TRUNCATES, GOES_ON, GOES_ON, GOES_ON, TERMINATES], 3, 0)
    collector = collector_of([environment], 3, 4)
    for _ in range(9):
        steps.add(0, next(collector))
    state = {name: tensor.clone() for name, tensor in steps.state().items()}
    again.restore(state, writers_go_on=True)
    fresh.restore(state, writers_go_on=False)
    for _ in range(2):
        rollout = next(collector)
        for one in (steps, again, fresh):
            one.add(0, rollout)

    begins, ends = steps.drawable()
    expected = rows_of([environment.log], 2)
    for row in range(begins[0], ends[0]):
        check(again, 0, row, expected[row])
    assert all(torch.equal(ours, again.state()[name]) for name, ours in steps.state().items())
    before, streams = int(state["cells"][0, 1]), np.array([0])
    assert steps.read(streams, np.array([before - 1])).usable.all()
    assert not fresh.read(streams, np.array([before - 1])).usable.any()
    with pytest.raises(UsageError, match="--memory-steps"):
        Steps(shape, 1, 1, 24).restore(state, writers_go_on=True)


WRONG: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "rows before the first": lambda state: state["cells"][0, :2].fill_(-7),
    "more rows written than begun": lambda state: state["cells"][0, 1].add_(9),
    "more rows than there can be": lambda state: state["cells"][0, :2].fill_(2**62),
    "no steps": lambda state: state["cells"][0, 2].fill_(-1),
    "rows kept before the first": lambda state: state["kept"][0, 0].fill_(-1),
    "rows kept behind the last": lambda state: state["kept"][0, 1].add_(1),
    "rows kept backwards": lambda state: state["kept"][0, 0].add_(100),
    "more rows kept than there is room for": lambda state: state["kept"][0, 0].zero_(),
    "no age": lambda state: state["newest"][0].fill_(-(2**63)),
    "no action": lambda state: state["actions"][3].fill_(10_000),
    "an action before the first": lambda state: state["actions"][3].fill_(-1),
    "no priority": lambda state: state["priorities"][3].fill_(-1),
    "floats": lambda state: state.update(cells=state["cells"].double()),
    "another type of rewards": lambda state: state.update(rewards=state["rewards"].bfloat16()),
    "another capacity": lambda state: state.update(capacity=torch.tensor([23, 23])),
    "rows of one column": lambda state: state.update(rewards=state["rewards"][:-1]),
    "all of one shape": lambda state: state.update(kept=state["kept"][0]),
} | {
    f"without {name}": lambda state, name=name: state.pop(name)  # type: ignore[misc]
    for name in ("cells", "kept", "newest", "capacity", "actions", "frames", "marks", "priorities")
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_stranger_says_of_the_rows_is_refused(wrong: str) -> None:
    """It goes into memory that compiled code believes: in one line, and nothing has changed."""
    shape = StepShape(spaces(3), 3, 2, priorities=True)
    steps, again = Steps(shape, 1, 1, 23), Steps(shape, 1, 1, 23)
    collector = collector_of([Written([GOES_ON], 3, 0)], 3, 4)
    for _ in range(9):
        steps.add(0, next(collector))
    state = steps.state()
    WRONG[wrong](state)

    with pytest.raises(UsageError, match="replay memory"):
        again.restore(state, writers_go_on=True)
    assert again.written.tolist() == again.begun.tolist() == [0]
    again.add(0, next(collector))
