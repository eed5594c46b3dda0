"""Rows of records on their way: passed on for somebody else to write, and read of a run that was resumed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.storage.records import is_score, read_records


class Passed:
    """Rows that are passed on, for somebody else to write."""

    missing = 0

    def __init__(self, send: Callable[[int, Mapping[str, Any]], object]) -> None:
        """`send` takes each row, after the number of those before it."""
        self._send, self._sent = send, 0

    def write(self, row: Mapping[str, Any]) -> None:
        """Pass on one row."""
        self._send(self._sent, row)
        self._sent += 1

    def close(self) -> None:
        """Nothing is held."""


def made_last(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a run without those that it made anew, after it was resumed from an earlier step."""
    kept, least, most = [], math.inf, math.inf
    for row in reversed(rows):
        steps = row.get("steps")
        if steps is not None and steps > most:
            most = least - 1  # the same step may have been made anew as well
            continue
        kept.append(row)
        if steps is not None:
            least = most = steps
    return kept[::-1]


def add_up(counts: Iterable[Mapping[Any, Any]]) -> Counter[Any]:
    """The sum of histograms."""
    total: Counter[Any] = Counter()
    for each in counts:
        total.update(each)
    return total


def evaluations_in(file: Path) -> tuple[list[dict[str, Any]], float | None]:
    """A run's evaluations with at least one whole episode, as `made_last`, one of each step; and the best mean.

    The best is of all that were made: its checkpoint is kept even if the run was resumed from an earlier one.
    """
    every = [row for row in read_records(file) if is_score(row.get("mean"))]
    best = max((row["mean"] for row in every), default=None)
    return list({row["steps"]: row for row in made_last(every)}.values()), best
