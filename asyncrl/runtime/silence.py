"""How long others have been silent, as measured by a process that may have been suspended itself."""

from __future__ import annotations

import time
from collections.abc import Callable

GAP_SECONDS = 5.0
"""A watcher that has not looked for longer was itself suspended: it looks several times a second."""
NOTED_SECONDS = 5.0
"""Who has not answered for this long is named."""


class Watch:
    """Measures silence without the time for which this process was suspended.

    Ctrl-Z, `scontrol suspend`, a frozen container or a closed lid stop all processes of a run at once. When it
    continues, nobody has given a sign of life for a long time, and nobody hangs. Call `look` in each round of the
    watcher's loop: whatever passes between two calls beyond `GAP_SECONDS` (or half of `limit`, if that is shorter) does
    not count as silence. `limit` is the silence in seconds that the watcher tolerates; 0 if it tolerates any.
    """

    def __init__(self, limit: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._gap = min(GAP_SECONDS, limit / 2) if limit else GAP_SECONDS
        self._now = now
        self._looked = now()
        self._gaps: list[tuple[float, float]] = []
        """When each suspension ended, and how many seconds it took."""

    def look(self) -> None:
        """Note that this process is awake."""
        now = self._now()
        if now - self._looked > self._gap:
            self._gaps.append((now, now - self._looked))
        self._looked = now

    def silence(self, heard: float) -> float:
        """Seconds since `heard`, by the monotonic clock, without those of suspensions that ended later."""
        self.look()
        return self._now() - heard - sum(seconds for ended, seconds in self._gaps if ended > heard)


class Silences:
    """Says who does not answer, once for each silence, and when it answers again."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._silent: set[str] = set()

    def note(self, who: str, seconds: float) -> None:
        """It has been silent for so long."""
        if seconds > NOTED_SECONDS and who not in self._silent:
            self._silent.add(who)
            self._say(f"{who} has not answered for {NOTED_SECONDS:g} seconds")

    def end(self, who: str, answers: bool) -> None:
        """It answers, or is replaced."""
        if who in self._silent:
            self._silent.remove(who)
            if answers:
                self._say(f"{who} answers again")
