"""T and the other numbers that processes of a run share, in one table: one writer per row, no lock. Who is silent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.runtime.protocols import LEARNER

STEPS, HEARTBEAT, PHASE, CAUSE = range(4)
"""Columns of a worker's row."""
UNWRITTEN = 7
"""Another one, of any row: rows of records that could not be written."""
STOP, STARTED_AT, BASE_STEPS, BASE_MILLISECONDS, HALTED_AT = range(5)
"""Columns of the supervisor's row."""
BUILDING, READY, RUNNING, ENDED = range(4)
"""Phases of a worker or the evaluator."""
UNKNOWN, RAISED, NOT_FINITE, DISK_FULL, DISK_FAILS = range(5)
"""Causes of a process's end that it told itself: it left a traceback; it met numbers no restart can fix; it could write
nothing because the disk is full."""
GO_ON, FINISH, LEAVE = range(3)
"""Values of STOP: go on; end as finished, with a last evaluation; exit as soon as possible."""

START_POLL_SECONDS = 0.005
GAP_SECONDS = 5.0
"""A watcher that has not looked for longer was itself suspended: it looks several times a second."""
NOTED_SECONDS = 5.0
"""Who has not answered for this long is named."""

_CACHE_LINE = 8  # int64 per row: 64 bytes, so that no two writers share a line


def shared_zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros in memory that every process with this tensor reads and writes.

    Allocated in shared memory, not copied there: pages that nobody writes take no memory.
    """
    size = max(1, math.prod(shape)) * dtype.itemsize  # there is no shared memory of 0 bytes
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


class Clock:
    """Counters in shared memory: row k is worker k's; the evaluator's, the learners' and the supervisor's follow.

    A killed process leaves its row as it was and blocks nobody. T is the sum of what each worker counted, exact without
    a lock, because every cell has a single writer and aligned 8-byte writes are atomic.
    """

    def __init__(
        self, workers: int, total_steps: int, base_steps: int = 0, base_seconds: float = 0.0, learners: int = 0
    ) -> None:
        """`base_steps` and `base_seconds` are those of a resumed run before it was resumed."""
        self.workers = workers
        self.learners = range(LEARNER, LEARNER - learners, -1)
        """The numbers of the learners."""
        self.total_steps = total_steps
        self._cells = shared_zeros(workers + 2 + max(1, learners), _CACHE_LINE, dtype=torch.int64)
        self._attach()
        self.rebase(base_steps, base_seconds)

    def _attach(self) -> None:
        self._table: NDArray[np.int64] = self._cells.numpy()
        self._control = self._table[-1]
        self._steps = self._table[: self.workers, STEPS]

    def __getstate__(self) -> tuple[int, int, range, Tensor]:
        return self.workers, self.total_steps, self.learners, self._cells

    def __setstate__(self, state: tuple[int, int, range, Tensor]) -> None:
        self.workers, self.total_steps, self.learners, self._cells = state
        self._attach()

    @property
    def steps(self) -> int:
        """T: steps of all workers, including those before a resume."""
        return int(self._steps.sum()) + int(self._control[BASE_STEPS])

    @property
    def base_steps(self) -> int:
        """The part of T not made by these workers: before a resume, and on other hosts."""
        return int(self._control[BASE_STEPS])

    @property
    def seconds(self) -> float:
        """Seconds from when all workers were ready until training was over, including those before a resume."""
        return self.seconds_of_this_part + float(self._control[BASE_MILLISECONDS]) / 1000

    @property
    def seconds_of_this_part(self) -> float:
        """The same without those before a resume."""
        started, halted = int(self._control[STARTED_AT]), int(self._control[HALTED_AT])
        return ((halted or time.monotonic_ns()) - started) / 1e9 if started else 0.0

    def worker_steps(self) -> list[int]:
        """Steps of each worker since the run began or was resumed."""
        return [int(steps) for steps in self._steps]

    def phases(self) -> list[int]:
        """Phase of each worker, and of each learner."""
        own = [int(phase) for phase in self._table[: self.workers, PHASE]]
        return own + [self.phase(learner) for learner in self.learners]

    def phase(self, worker: int) -> int:
        """Phase of a worker or of EVALUATOR or LEARNER."""
        return int(self._row(worker)[PHASE])

    def heartbeat(self, worker: int) -> float:
        """When a worker, a learner or EVALUATOR last gave a sign of life, in the seconds of `time.monotonic`."""
        return int(self._row(worker)[HEARTBEAT]) / 1e9

    def heartbeat_age(self, worker: int) -> float:
        """Seconds since that."""
        return time.monotonic() - self.heartbeat(worker)

    def cause(self, worker: int) -> int:
        """Why the process in the place of a worker, a learner or EVALUATOR ends, as it told itself."""
        return int(self._row(worker)[CAUSE])

    def count(self, worker: int, steps: int) -> None:
        """T <- T + steps, by the worker that made them."""
        row = self._table[worker]
        row[STEPS] += steps
        row[HEARTBEAT] = time.monotonic_ns()

    def beat(self, worker: int) -> None:
        """Heartbeat of a worker (or EVALUATOR)."""
        self._row(worker)[HEARTBEAT] = time.monotonic_ns()

    def pulse(self, worker: int) -> Callable[[], None]:
        """`beat` of one worker, for where it is given at each step of an environment; much faster."""
        row, now = self._row(worker).data, time.monotonic_ns

        def beat() -> None:
            row[HEARTBEAT] = now()

        return beat

    def explain(self, worker: int, cause: int) -> None:
        """Tell why the process in this place ends; whoever fills the place sets UNKNOWN before."""
        self._row(worker)[CAUSE] = cause
        self.beat(worker)

    def enter(self, worker: int, phase: int) -> None:
        """Note that a worker (or EVALUATOR) is now in `phase`; the supervisor does so for one that has died."""
        self._row(worker)[PHASE] = phase
        self.beat(worker)

    def note_unwritten(self, worker: int, rows: int) -> None:
        """Rows of records that a worker, learner or EVALUATOR could not write."""
        self._row(worker)[UNWRITTEN] += rows

    def unwritten(self) -> int:
        """Rows of records that could not be written, of all who noted any."""
        return int(self._table[:-1, UNWRITTEN].sum())

    def rebase(self, steps: int, seconds: float | None = None) -> None:
        """Set steps and seconds not made by these workers: before a resume, and on other hosts."""
        self._control[BASE_STEPS] = steps
        if seconds is not None:
            self._control[BASE_MILLISECONDS] = round(seconds * 1000)

    def tell(self, worker: int, steps: int) -> None:
        """How many steps a worker of another host has counted. Of reports that come out of order the largest counts."""
        row = self._table[worker]
        row[STEPS] = max(int(row[STEPS]), steps)

    def vouch(self, worker: int, phase: int, silence: float) -> None:
        """In which phase a worker or learner of another host is, and how many seconds ago it counted last."""
        row = self._row(worker)
        row[PHASE], row[HEARTBEAT] = phase, time.monotonic_ns() - int(silence * 1e9)

    def _row(self, worker: int) -> NDArray[np.int64]:
        row: NDArray[np.int64] = self._table[worker if worker >= 0 else self.workers - 1 - worker]
        return row

    def start(self) -> None:
        """The supervisor starts the clock, for which workers wait."""
        self._control[STARTED_AT] = time.monotonic_ns()

    def halt(self) -> None:
        """Training is over: from now on the clock stands still, while final parameters are evaluated."""
        self._control[HALTED_AT] = self._control[HALTED_AT] or time.monotonic_ns()

    def started(self) -> bool:
        """Whether the clock runs."""
        return bool(self._control[STARTED_AT])

    def await_start(self, worker: int) -> None:
        """A worker, a learner or EVALUATOR is ready: wait until the clock runs, or all are asked to exit."""
        self.enter(worker, READY)
        while not self.started() and not self.leaving():
            time.sleep(START_POLL_SECONDS)
        self.enter(worker, RUNNING)

    def stop(self, how: int) -> None:
        """The supervisor ends the run: FINISH or LEAVE. LEAVE is not taken back."""
        self._control[STOP] = max(int(self._control[STOP]), how)

    def leaving(self) -> bool:
        """Whether all are asked to exit as soon as possible."""
        return bool(self._control[STOP] == LEAVE)

    def finished(self) -> bool:
        """Whether workers should make no further rollout."""
        return bool(self._control[STOP] != GO_ON) or self.steps >= self.total_steps


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


def polling(seconds: float, pause: float = 0.0) -> Iterator[None]:
    """Yield every `pause` seconds, for so many seconds without those for which this process was suspended."""
    watch, began = Watch(seconds), time.monotonic()
    while watch.silence(began) <= seconds:
        yield
        time.sleep(pause)


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
