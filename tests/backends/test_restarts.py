"""One budget for whoever is replaced: processes, and hosts."""

from __future__ import annotations

import time

import pytest

from asyncrl.backends.ray.actors import Place
from asyncrl.backends.supervisor import BUDGET_SECONDS, Restarts
from asyncrl.runtime.clock import Watch


@pytest.mark.parametrize("suspended", [False, True])
def test_time_in_which_all_were_suspended_gives_nobody_a_new_budget(
    monkeypatch: pytest.MonkeyPatch, suspended: bool
) -> None:
    """A place whose budget is one loss, and which is lost twice; a host's place as well as a process's."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch = Watch(now=lambda: now)
    restarts, host = Restarts(), Place(0)
    assert restarts.lose(1, watch) == 1.0
    host.lose("killed", 1, watch)
    assert (host.gone, host.due) == (False, 1.0)

    while now < BUDGET_SECONDS + 10:
        now += BUDGET_SECONDS if suspended else 1.0
        watch.look()

    assert restarts.lose(1, watch) == (None if suspended else 1.0)
    host.lose("killed", 1, watch)
    assert host.gone == suspended


def test_pauses_grow_with_the_losses() -> None:
    """Until there are too many."""
    watch, restarts = Watch(), Restarts()
    assert [restarts.lose(4, watch) for _ in range(5)] == [1.0, 2.0, 4.0, 4.0, None]
