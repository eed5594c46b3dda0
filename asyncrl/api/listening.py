"""A program's functions that are called during its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from asyncrl.backends.outcome import Signals
from asyncrl.runtime.evaluator import Evaluation
from asyncrl.runtime.monitor import Summary


class Hooks:
    """Calls a program's functions. If one returns False or raises, the run stops in order."""

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
        """Does nothing: there is no function for it."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """Pass an evaluation on."""
        self._call(self._on_evaluation, evaluation)

    def looked(self, summary: Summary) -> None:
        """Pass on a copy of the run's summary, which changes."""
        self._call(self._on_progress, replace(summary))

    def raise_what_they_raised(self) -> None:
        """After the run: raise the exception of a function, if there was one."""
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
