"""The runs of a sweep as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asyncrl.storage.records import read_records
from asyncrl.storage.status import read_status


@dataclass(frozen=True)
class Row:
    """One run of the sweep, from its records."""

    algorithm: str
    env_id: str
    settings: Mapping[str, str]
    seed: int
    state: str
    """As in status.json; "" if the run has not been made."""
    steps: int = 0
    best_score: float | None = None
    """Best evaluation."""
    final_score: float | None = None
    """Last evaluation, of the final parameters; None unless the run finished."""

    @classmethod
    def read(cls, algorithm: str, env_id: str, settings: Mapping[str, str], seed: int, folder: Path) -> Row:
        """Read the run in a folder, if there is one."""
        status = read_status(folder)
        state = str(status.get("state", ""))
        if not state:
            return cls(algorithm, env_id, settings, seed, "")
        scores = [row["mean"] for row in read_records(folder / "evaluator.jsonl") if row.get("mean") is not None]
        return cls(
            algorithm, env_id, settings, seed, state, int(status.get("steps", 0)),
            max(scores, default=None), scores[-1] if scores and state == "finished" else None,
        )  # fmt: skip
