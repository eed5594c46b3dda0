"""Whole runs from handles, without the command."""

from __future__ import annotations

from typing import Any

from asyncrl.api.training import conclude, follow
from asyncrl.backends.outcome import Signals
from asyncrl.runtime.monitor import Monitor
from asyncrl.runtime.run import Run
from asyncrl.runtime.terminal import make_view
from asyncrl.storage.checkpoints import load_newest
from tests.support import evaluations_of


def train(run: Run) -> None:
    """From the first turn to the last checkpoint, as the command does it."""
    monitor = Monitor(run)
    outcome = conclude(follow(run, monitor, make_view(quiet=True, title=""), Signals()), monitor)
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
