"""Workers on several machines with Ray: the supervisor's part, in the command's own process.

The evaluator, records, checkpoints and the end of the run are here, as with the local backend. The state of the hosts
is in a mirror, shared memory that the driver (`driver.py`) writes. The driver is a child process: if it is
lost, and Ray with it, the run still ends with a checkpoint and the right exit code.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from asyncrl.backends.local import await_last_evaluation
from asyncrl.backends.outcome import STOPPING, Outcome, Signals, failed, finished, stopped
from asyncrl.backends.processes import POLL_SECONDS, Child, end, start_context
from asyncrl.backends.ray.connection import connect
from asyncrl.backends.supervisor import Supervisor
from asyncrl.runtime.clock import FINISH, LEAVE, UNKNOWN, Watch
from asyncrl.runtime.monitor import Monitor, View
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.run import Run

DRIVER = "driver"
LEAVE_SECONDS = 30.0
"""Time for all hosts to leave and for Ray to end, before the driver is killed."""


def run(run: Run, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Follow the run to its end on a cluster. None of its processes is left on this machine when it returns."""
    supervisor = Supervisor(run, monitor.note_loss, view.say, [EVALUATOR])
    here, there = multiprocessing.Pipe()
    driver = driver_of(run).start(start_context(run.spec.algorithm), driver_process, run, there)
    there.close()
    leader = Leader(run, monitor, view, driver, here)
    try:
        supervisor.fill(supervisor.slots[0])
        outcome = leader.follow(supervisor, signals)
        if outcome.state == "finished":
            outcome = await_last_evaluation(outcome, supervisor, monitor, view, signals)
        return outcome
    finally:
        run.handles.clock.stop(LEAVE)
        leader.dismiss(signals)
        supervisor.end(signals)


def driver_of(run: Run) -> Child:
    """The driver as a child of this process."""
    return Child(0, DRIVER, run.handles.clock, run.spec.folder)


class Leader:
    """The supervisor's side of the driver."""

    def __init__(self, run: Run, monitor: Monitor, view: View, driver: BaseProcess, pipe: Connection) -> None:
        self._run, self._monitor, self._view = run, monitor, view
        self._driver, self._pipe = driver, pipe
        self._ended = False
        self._failed: Outcome | None = None

    def follow(self, supervisor: Supervisor, signals: Signals) -> Outcome:
        """Follow the run until all hosts have ended, the driver is lost, or somebody asks the run to stop."""
        clock, monitor = self._run.handles.clock, self._monitor
        if clock.finished():  # resumed at its end: no host will come, and what is missing is the last evaluation
            monitor.begin()
            clock.start()
        while True:
            wait([self._driver.sentinel, self._pipe, *supervisor.sentinels()], timeout=POLL_SECONDS)
            self._listen()
            if self._failed is not None:
                return self._failed
            if (outcome := supervisor.tend()) is not None:
                return outcome
            if clock.started() and monitor.look():
                self._view.show(monitor.summary)
            monitor.look_at_evaluations()
            if signals.first is not None:
                return stopped(signals.first)
            if (reason := monitor.verdict()) is not None and clock.started():
                clock.stop(FINISH)
            if self._ended:  # hosts leave at the end by their own count, of which the last may have been lost
                return finished(reason or "total_steps reached")
            if self._driver.exitcode is not None:
                self._listen()
                return self._failed or self._without_driver()

    def dismiss(self, signals: Signals) -> None:
        """Let the driver shut Ray down, and process its last messages."""
        began, watch = time.monotonic(), Watch(LEAVE_SECONDS)
        while self._driver.exitcode is None and watch.silence(began) < LEAVE_SECONDS and not signals.urgent:
            wait([self._driver.sentinel, self._pipe], timeout=POLL_SECONDS)
            self._listen()
        end(self._driver)
        self._listen()
        self._pipe.close()

    def _without_driver(self) -> Outcome:
        """Why the driver ended: it raised, the disk was full, or Ray exited it as the head of the cluster was lost."""
        ended = driver_of(self._run).end_of(self._driver)
        question = ": was the head of the cluster lost?" if ended.kind == UNKNOWN else ""
        return failed(f"Ray's driver {ended.cause}{question}", ended.traceback)

    def _listen(self) -> None:
        try:
            while self._pipe.poll():
                self._hear(*self._pipe.recv())
        except (EOFError, OSError):
            return

    def _hear(self, kind: str, *facts: object) -> None:
        match kind, facts:
            case "say", (str(line),):
                self._view.say(line)
            case "loss", (str(event), int(worker), str(cause)):
                self._monitor.note_loss(event, worker, cause)
            case "event", (str(event), dict(more)):
                self._monitor.note_event(event, **more)
                if event == "host_gone":
                    first, each = more["host"] * self._run.spec.config.workers, self._run.spec.config.workers
                    self._monitor.summary.workers_gone += range(first, first + each)
            case "failed", (str(reason), traceback):
                self._failed = failed(reason, None if traceback is None else str(traceback))
            case "ready", (int(hosts),):
                self._begin(hosts)
            case "ended", ():
                self._ended = True

    def _begin(self, hosts: int) -> None:
        lines = self._monitor.begin()
        self._run.handles.clock.start()
        config = self._run.spec.config
        of = "" if config.hosts == "auto" else f" of {config.hosts}"
        ready = f"all {hosts * config.workers} workers are ready, on {hosts}{of} hosts"
        for line in [ready, *lines]:
            self._view.say(line)


def driver_process(run: Run, pipe: Connection) -> None:
    """The driver's process: connect to Ray, or start it, and drive the run."""
    try:
        connect(run.spec.config.address)
    except ConnectionError as error:
        pipe.send(("failed", str(error), None))
        return
    import ray

    from asyncrl.backends.ray.driver import Driver

    for number in STOPPING:  # Ray has set its own handlers for some
        signal.signal(number, signal.SIG_IGN)
    try:
        Driver(run, pipe).drive()
    finally:
        ray.shutdown()
