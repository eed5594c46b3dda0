"""What ranks that work in step agree on with each exchange, beside what the exchange is for.

A rank may want the run to end: because of a signal, or, rank 0, because it is over. Nobody leaves by itself, since the
others would wait for it: the wish travels with the next exchange, and all leave after the same update.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asyncrl.runtime.clock import FINISH, LEAVE, Clock

NOTHING, OVER = 0, -1
"""Wishes: none; that the run ends as finished. Any other is the number of a signal that asks to leave."""


class Accord:
    """One rank's wish, what all decided, and where the time of exchanges went."""

    def __init__(self) -> None:
        self.wish = NOTHING
        """Of this rank, for the next exchange."""
        self.decided = NOTHING
        """What all ranks have agreed on."""
        self._spent: dict[str, float] = {}

    def settle(self, wishes: Iterable[int], clock: Clock) -> int:
        """Decide by everybody's wishes: a signal goes before the end, a lower rank's before a higher one's."""
        wishes = [wish for wish in wishes if wish != NOTHING]
        if wishes:
            self.decided = next((wish for wish in wishes if wish > 0), OVER)
            clock.stop(LEAVE if self.decided > 0 else FINISH)
        return self.decided

    def book(self, seconds: Sequence[float], rank: int) -> None:
        """Note what an exchange took on each rank: on the last to come it was all communication, on others waiting too.

        The same for all ranks is what the shortest took; clocks of different hosts need not agree for that.
        """
        shortest = min(seconds)
        self.note(waiting=seconds[rank] - shortest, communicating=shortest)

    def note(self, waiting: float = 0.0, communicating: float = 0.0, learning: float = 0.0) -> None:
        """Note what this rank waited for others to come, for messages to arrive, and for a learner elsewhere."""
        spent = {"wait_for_ranks": waiting, "communicate": communicating} | ({"wait": learning} if learning else {})
        for phase, seconds in spent.items():
            self._spent[phase] = self._spent.get(phase, 0.0) + seconds

    def spent(self) -> dict[str, float]:
        """Seconds since this was last asked, by phase."""
        spent, self._spent = self._spent, {}
        return spent
