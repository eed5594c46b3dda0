"""What a program hears of its run while it is going on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from asyncrl.backends.outcome import Signals
from asyncrl.runtime.evaluator import Evaluation
from asyncrl.runtime.monitor import Summary


class Hooks:
    """Calls a program's functions. One that returns False, or raises, ends the run in order."""

    def __init__(
        self,
        signals: Signals,
        on_evaluation: Callable[[Evaluation], Any] | None = None,
        on_progress: Callable[[Summary], Any] | None = None,
    ) -> None:
        self._signals = signals
        self._on_evaluation, self._on_progress = on_evaluation, on_progress
        self._raised: BaseException | None = None

    def begun(self) -> None:
        """The workers are at work: nobody asked to be told."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """Hand on an evaluation."""
        self._call(self._on_evaluation, evaluation)

    def looked(self, summary: Summary) -> None:
        """Hand on how the run is, as a copy that stays as it is."""
        self._call(self._on_progress, replace(summary))

    def raise_what_they_raised(self) -> None:
        """After the run: let an exception of theirs go on."""
        if self._raised is not None:
            raise self._raised

    def _call(self, function: Callable[[Any], Any] | None, argument: Any) -> None:
        if function is None or self._raised is not None:
            return
        try:
            goes_on = function(argument) is not False
        except BaseException as error:
            self._raised, goes_on = error, False
        if not goes_on:
            self._signals.ask()
