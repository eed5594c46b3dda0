"""How ranks in step agree on the end of a run, with each exchange.

A rank may want the run to end: because of a signal or, on rank 0, because it is over. No rank leaves on its own, since
the others would wait for it: its wish is sent with the next exchange, and all leave after the same update.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asyncrl.runtime.clock import FINISH, LEAVE, Clock

NOTHING, OVER = 0, -1
"""Wishes: none; that the run ends as finished. Any other is the number of a signal that asks to leave."""


class Agreement:
    """One rank's wish, what all decided, and where the time of exchanges went."""

    def __init__(self) -> None:
        self.wish = NOTHING
        """Of this rank, for the next exchange."""
        self.decided = NOTHING
        """What all ranks have agreed on."""
        self._spent: dict[str, float] = {}

    def settle(self, wishes: Iterable[int], clock: Clock) -> int:
        """Decide from the wishes of all ranks: signals have priority over the end, lower ranks over higher ones."""
        wishes = [wish for wish in wishes if wish != NOTHING]
        if wishes:
            self.decided = next((wish for wish in wishes if wish > 0), OVER)
            clock.stop(LEAVE if self.decided > 0 else FINISH)
        return self.decided

    def book(self, seconds: Sequence[float], rank: int) -> None:
        """Note an exchange, given its seconds on each rank.

        The last rank to arrive has the shortest time, all of it communication. The others waited for the rest. Clocks
        of different hosts need not agree for this.
        """
        shortest = min(seconds)
        self.note(wait_for_ranks=seconds[rank] - shortest, communicate=shortest)

    def note(self, **seconds: float) -> None:
        """Note what this rank spent in a phase: `wait_for_ranks`, `communicate`, or `wait` for the learner."""
        for phase, spent in seconds.items():
            self._spent[phase] = self._spent.get(phase, 0.0) + spent

    def spent(self) -> dict[str, float]:
        """Seconds since this was last asked, by phase."""
        spent, self._spent = self._spent, {}
        return spent
