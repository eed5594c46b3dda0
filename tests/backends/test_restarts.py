"""One budget for whoever is replaced: processes, and hosts."""

from __future__ import annotations

import math
import time

import pytest

from asyncrl.backends.processes import LEAVE_SECONDS
from asyncrl.backends.supervisor import BUDGET_SECONDS, READY_SECONDS, Restartable, tolerated
from asyncrl.runtime.clock import BUILDING, ENDED, READY, RUNNING, Watch


@pytest.mark.parametrize("suspended", [False, True])
def test_time_in_which_all_were_suspended_gives_nobody_a_new_budget(
    monkeypatch: pytest.MonkeyPatch, suspended: bool
) -> None:
    """A place whose budget is one loss, and which is lost twice."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = Watch(now=lambda: now)
    place = Restartable(0)
    assert place.lose("killed", 1, watch) == 1.0
    assert (place.gone, place.due) == (False, 1.0)

    while now < BUDGET_SECONDS + 10:
        now += BUDGET_SECONDS if suspended else 1.0
        watch.look()

    assert place.lose("killed", 1, watch) == (None if suspended else 1.0)
    assert place.gone == suspended


def test_pauses_grow_with_the_losses() -> None:
    """Until there are too many."""
    watch, place = Watch(), Restartable(0)
    assert [place.lose("killed", 4, watch) for _ in range(5)] == [1.0, 2.0, 4.0, 4.0, None]


@pytest.mark.parametrize(
    ("phase", "hang_seconds", "seconds"),
    [
        (BUILDING, 2.0, READY_SECONDS),
        (READY, 2.0, math.inf),  # it waits for others
        (RUNNING, 2.0, 2.0),
        (RUNNING, 0.0, math.inf),
        (ENDED, 2.0, LEAVE_SECONDS),
    ],
)
def test_how_long_somebody_may_be_silent_depends_on_the_phase(phase: int, hang_seconds: float, seconds: float) -> None:
    """--hang-seconds is for those who work; 0: they may take any time."""
    assert tolerated(phase, hang_seconds) == seconds
