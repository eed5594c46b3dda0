"""Workers on several machines with Ray: the supervisor's part, in the command's own process.

The evaluator, records, checkpoints and the end of the run are here, as with the local backend. The state of the hosts
is in a mirror, shared memory that the driver (`backends/cluster.py`) writes. The driver is a child process: if it is
lost, and Ray with it, the run still ends with a checkpoint and the right exit code.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import secrets
import signal
import socket
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from torch import Tensor

from asyncrl.algorithm import GRADIENT, MEMORY
from asyncrl.backends import sockets
from asyncrl.backends.handles import clock_of
from asyncrl.backends.local import await_last_evaluation
from asyncrl.backends.outcome import STOPPING, Outcome, Signals, failed, finished, stopped
from asyncrl.backends.process_trees import lead_session
from asyncrl.backends.processes import POLL_SECONDS, Child, end, start_context
from asyncrl.backends.supervisor import Supervisor
from asyncrl.catalog import command_of
from asyncrl.config.groups import flag
from asyncrl.core.devices import CPU
from asyncrl.core.errors import UsageError
from asyncrl.parameters.mirror import Mirror
from asyncrl.runtime.clock import FINISH, LEAVE, UNKNOWN, Watch
from asyncrl.runtime.monitor import Monitor, View
from asyncrl.runtime.normalize import RunMoments
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.run import Handles, Run, RunSpec
from asyncrl.runtime.snapshots import keeps_replay

DRIVER = "driver"
LEAVE_SECONDS = 30.0
"""Time for all hosts to leave and for Ray to end, before the driver is killed."""
REACH_SECONDS = 5.0
"""Time to open a connection to a port."""
LONGEST_TMPDIR = 40
"""Bytes in the path below which Ray makes a session's folder, since a socket's path there has 67 more."""
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's default of 15 would put workers behind everything else
    "RAY_max_direct_call_object_size": "2000000",  # bytes; by way of Ray's store, from 100 kB on, a call costs twice
    "RAY_task_events_max_num_task_in_gcs": "1000",  # calls the head remembers; Ray's 100,000 take 350 MB
}
"""For Ray's processes, unless they are set already."""


def require_ray() -> None:
    """Raise UsageError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError('--backend ray needs Ray: pip install "asyncrl[ray]"')


def run(run: Run, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Follow the run to its end on a cluster. None of its processes is left on this machine when it returns."""
    keeper = Supervisor(run, monitor.note_loss, view.say, [EVALUATOR])
    here, there = multiprocessing.Pipe()
    driver = driver_of(run).start(start_context(run.spec.algorithm), driver_process, run, there)
    there.close()
    leader = Leader(run, monitor, view, driver, here)
    try:
        keeper.fill(keeper.slots[0])
        outcome = leader.follow(keeper, signals)
        if outcome.state == "finished":
            outcome = await_last_evaluation(outcome, keeper, monitor, view, signals)
        return outcome
    finally:
        run.handles.clock.stop(LEAVE)
        leader.dismiss(signals)
        keeper.end(signals)


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

    def follow(self, keeper: Supervisor, signals: Signals) -> Outcome:
        """Follow the run until all hosts have ended, the driver is lost, or somebody asks the run to stop."""
        clock, monitor = self._run.handles.clock, self._monitor
        while True:
            wait([self._driver.sentinel, self._pipe, *keeper.sentinels()], timeout=POLL_SECONDS)
            self._listen()
            if self._failed is not None:
                return self._failed
            if (outcome := keeper.tend()) is not None:
                return outcome
            if clock.started() and monitor.look():
                self._view.show(monitor.summary)
            monitor.look_at_evaluations()
            if signals.first is not None:
                return stopped(signals.first)
            if (reason := monitor.verdict()) is not None and clock.started():
                clock.stop(FINISH)
            if self._ended:
                return finished(reason) if reason is not None else failed("all hosts have left before the end")
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


def connect(address: str) -> None:
    """Connect this process, a child of its own, to the cluster at `address`; empty: RAY_ADDRESS, or a new cluster.

    Raises ConnectionError with one line.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    for variable, value in VARIABLES.items():
        os.environ.setdefault(variable, value)
    if address == "local":  # private: only this run's processes may connect
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
        for folder in sockets.short_folders(LONGEST_TMPDIR)[:1]:  # of its sockets; by default it is that of TMPDIR
            os.environ.setdefault("RAY_TMPDIR", folder)
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and not is_reached(host.strip("[]"), int(port)):  # Ray would end this process
        raise ConnectionError(f"there is no Ray cluster at {address}: start one by ray start --head")
    import ray  # reads the variables

    own = {"num_cpus": 1, "include_dashboard": False} if address == "local" else {}
    lead_session()  # so Ray's processes are in it too
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
    except Exception as error:  # Ray raises ConnectionError, but also a plain Exception
        what = "be started" if own else f"be reached at {address}"
        raise ConnectionError(f"Ray could not {what}: {' '.join(str(error).split())[:300]}") from None


def is_reached(host: str, port: int) -> bool:
    """Whether a connection can be opened."""
    try:
        socket.create_connection((host, port), REACH_SECONDS).close()
    except OSError:
        return False
    return True


def driver_process(run: Run, pipe: Connection) -> None:
    """The driver's process: connect to Ray, or start it, and drive the run."""
    try:
        connect(run.spec.config.address)
    except ConnectionError as error:
        pipe.send(("failed", str(error), None))
        return
    import ray

    from asyncrl.backends.cluster import Driver

    for number in STOPPING:  # Ray has set its own handlers for some
        signal.signal(number, signal.SIG_IGN)
    try:
        Driver(run, pipe).drive()
    finally:
        ray.shutdown()


def refuse(plan: Plan) -> None:
    """Raise UsageError for methods and settings that do not run on hosts, or if Ray is not installed."""
    config, kind, command = plan.config, plan.method.experience, command_of(plan.algorithm)
    if kind == MEMORY:
        if keeps_replay(config):
            raise UsageError("--checkpoint-replay is for one machine: the memory of hosts is not saved")
        if config.hosts == "auto":
            raise UsageError("--hosts auto is for methods without a memory, which hosts divide: give a number")
        plan.on_one_machine(config.all_workers)  # whether the memory has room for the steps of all workers
        if plan.replay_hosts and plan.learns_on_hosts:
            which = "--layout bundled" if plan.bundled else "several --learners"
            raise UsageError(f"--replay-hosts are for one learner; with {which} each host has a memory of its own")
    for name in ("parameter_shards", "push"):
        if getattr(config, name) != getattr(type(config), name) and not plan.learns_on_hosts:
            several = "; several --learners or --layout bundled do so on each host" if hasattr(config, "layout") else ""
            raise UsageError(f"{flag(name)} is for methods whose workers learn; in {command} one learner does{several}")
    for name, plain in (("learner_resource", ""), ("learner_device", CPU)):
        if getattr(config, name, plain) != plain and plan.learns_on_hosts:
            who = "workers learn" if kind == GRADIENT else "each host has its own with these settings"
            raise UsageError(f"{flag(name)} is for methods with a learner; in {command} {who}")
    require_ray()


def share(spec: RunSpec, theta: Tensor, steps: int = 0, seconds: float = 0.0) -> Handles:
    """What the driver has; begun as `clock_of` says."""
    clock = clock_of(spec, steps, seconds)
    store = Mirror(theta, spec.config.descent, spec.config.all_workers, clock)
    return Handles(store, clock, RunMoments(1, spec.moments_size))
