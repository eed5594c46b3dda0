"""Whole runs from handles, without the command."""

from __future__ import annotations

from typing import Any

from asyncrl.api.training import conclude, follow
from asyncrl.backends.outcome import Outcome, Signals
from asyncrl.runtime.monitor import Monitor, View
from asyncrl.runtime.run import Run
from asyncrl.storage.checkpoints import load_newest
from tests.support import evaluations_of


def outcome_of(run: Run) -> Outcome:
    """From the first turn to the last checkpoint, as the command does it."""
    monitor = Monitor(run)
    return conclude(follow(run, monitor, View(), Signals()), monitor)


def train(run: Run) -> None:
    """A run that finishes."""
    outcome = outcome_of(run)
    assert outcome.state == "finished", outcome


def learnt(run: Run) -> dict[str, Any]:
    """All of the last checkpoint, and what was evaluated on the way."""
    checkpoint, _ = load_newest(run.spec.folder.checkpoints)
    tensors = checkpoint.parameters | checkpoint.tensors
    return {
        "counters": (checkpoint.steps, checkpoint.updates),
        "tensors": {name: tensor.tolist() for name, tensor in tensors.items()},
        "evaluations": [row["returns"] for row in evaluations_of(run.spec.folder.path)],
    }
