"""What is said while the processes of a run begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from asyncrl.backends import local
from asyncrl.backends.outcome import Signals
from asyncrl.runtime.clock import BUILDING, READY


def test_the_workers_that_are_ready_are_counted_while_the_others_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every few seconds; here at each look."""
    monkeypatch.setattr(local, "TOLD_SECONDS", 0.0)
    looks = iter([[BUILDING, BUILDING, BUILDING], [READY, BUILDING, READY], [READY, READY, READY]])
    clock = SimpleNamespace(phases=lambda: next(looks))
    run = SimpleNamespace(handles=SimpleNamespace(clock=clock))
    supervisor = SimpleNamespace(sentinels=lambda: [], tend=lambda: None)
    said: list[str] = []
    view = SimpleNamespace(say=said.append)

    outcome = local._await_ready(cast(Any, run), cast(Any, supervisor), cast(Any, view), Signals())

    assert outcome is None
    assert said == ["0 of 3 workers are ready", "2 of 3 workers are ready"]
