"""A process per worker and one for the evaluator, on this machine, supervised from the command's own process."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from types import ModuleType

import torch.multiprocessing  # noqa: F401  (registers how shared tensors travel to a child)

from asyncrl.backends.outcome import STOPPING, Outcome, Signals, failed, finished, stopped
from asyncrl.runtime.evaluator import Evaluator, serve
from asyncrl.runtime.monitor import Monitor
from asyncrl.runtime.plan import RunPlan, build_worker
from asyncrl.runtime.progress import BUILDING, ENDED, FINISH, LEAVE, READY, RUNNING
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.terminal import View
from asyncrl.runtime.threads import enforce_one_thread
from asyncrl.storage.files import disk_is_full

POLL_SECONDS = 0.1
READY_SECONDS = 300.0
"""Time for all workers to build their environments."""
LEAVE_SECONDS = 5.0
"""Time for a child to notice that it should leave, before it is killed."""
NICENESS = 5
"""Of workers. With more of them than cores the evaluator would get one share in N + 1, and an evaluation of seconds
would take minutes; so it goes first, and `--evaluation-cpu-share` bounds what it takes."""
DISK_FULL = 74
"""Exit code of a child that found the disk full: it could not leave a file that says so."""


def run(plan: RunPlan, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Run the plan to its end in processes of this machine. No process is left when it returns."""
    context = start_context(plan.page)
    processes: list[BaseProcess] = []
    try:
        for worker in [*range(plan.config.workers), EVALUATOR]:
            if signals.first is not None:
                return stopped(signals.first)
            processes.append(start(context, worker_process if worker >= 0 else evaluator_process, plan, worker))
        *workers, evaluator = processes
        outcome = _await_ready(plan, workers, signals)
        if outcome is None:
            plan.progress.start()
            view.say(f"all {len(workers)} workers are ready; {monitor.begin()}")
            outcome = _supervise(plan, workers, evaluator, monitor, view, signals)
        if outcome.state == "finished":
            _await_last_evaluation(evaluator, monitor, view, signals)
        return outcome
    finally:
        plan.progress.stop(LEAVE)
        end_all(processes, signals)


def _await_ready(plan: RunPlan, workers: list[BaseProcess], signals: Signals) -> Outcome | None:
    """Wait until every worker can begin; an Outcome if the run ended before it began."""
    deadline = time.monotonic() + READY_SECONDS
    while any(phase == BUILDING for phase in plan.progress.phases()):
        if signals.first is not None:
            return stopped(signals.first)
        if time.monotonic() > deadline:
            slow = [worker for worker, phase in enumerate(plan.progress.phases()) if phase == BUILDING]
            return failed(f"workers {slow} were not ready after {READY_SECONDS:.0f} seconds")
        wait([worker.sentinel for worker in workers], timeout=0.02)
        if (outcome := _first_failure(plan, workers)) is not None:
            return outcome
    return None


def _supervise(
    plan: RunPlan,
    workers: list[BaseProcess],
    evaluator: BaseProcess,
    monitor: Monitor,
    view: View,
    signals: Signals,
) -> Outcome:
    """Follow the run until the workers have ended, or one of them broke, or somebody wants it to stop."""
    evaluator_missed = False
    while True:
        running = [worker.sentinel for worker in workers if worker.exitcode is None]
        if running:
            wait(running, timeout=POLL_SECONDS)
        if (outcome := _first_failure(plan, workers)) is not None:
            return outcome
        if monitor.look():
            view.show(monitor.summary)
        monitor.look_at_evaluations()
        if not evaluator_missed and evaluator.exitcode not in (None, 0):
            evaluator_missed = True  # training goes on without it
            view.say(f"the evaluator {how_it_died(evaluator)}; training goes on without it")
        if signals.first is not None:
            return stopped(signals.first)
        if (reason := monitor.verdict()) is not None:
            plan.progress.stop(FINISH)
            if not running:
                return finished(reason)


def _first_failure(plan: RunPlan, workers: list[BaseProcess]) -> Outcome | None:
    """The first worker that did not end well, with its own traceback if it could leave one."""
    broken = [worker for worker in workers if worker.exitcode not in (None, 0)]
    if not broken:
        return None
    # One that raised explains more than one that was killed because the run was already breaking up.
    for process in broken:
        file = plan.folder.traceback_file(process.name)
        if file.exists():
            text = file.read_text()
            return failed(f"{process.name} raised {text.strip().splitlines()[-1]}", text)
    return failed(f"{broken[0].name} {how_it_died(broken[0])}")


def how_it_died(process: BaseProcess) -> str:
    """The end of a process in words."""
    code = process.exitcode
    if code == DISK_FULL:
        return "could not write its records: the disk is full"
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _await_last_evaluation(evaluator: BaseProcess, monitor: Monitor, view: View, signals: Signals) -> None:
    """The workers are done; let the evaluator score the final parameters unless somebody is in a hurry."""
    while evaluator.exitcode is None and not signals.received:
        evaluator.join(POLL_SECONDS)
        if monitor.look():
            view.show(monitor.summary)
    monitor.look_at_evaluations()


def start_context(page: str) -> BaseContext:
    """forkserver with everything heavy imported once, on Linux; spawn elsewhere. Never fork: it copies locks."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "gymnasium", "ale_py", "cv2", page, __name__, "asyncrl.envs.atari", "asyncrl.backends.preloaded"]
    )
    return context


def start(context: BaseContext, target: Callable[[RunPlan, int], None], plan: RunPlan, worker: int) -> BaseProcess:
    """Start one child."""
    name = "evaluator" if worker == EVALUATOR else f"worker-{worker:02}"
    process: BaseProcess = context.Process(target=child, args=(target, plan, worker, name), name=name)  # type: ignore[attr-defined]
    with no_main_module(), signals_held_back():
        process.start()
    return process


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Let a process that is started now inherit SIGINT and SIGTERM as blocked.

    Otherwise a Ctrl-C would end the fork server, or a child, while it still imports. What arrives here meanwhile is
    delivered afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # it would unblock both when it starts
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


@contextlib.contextmanager
def no_main_module() -> Iterator[None]:
    """Keep multiprocessing from running the command's own module a second time in each child.

    Nothing of it is needed there: all that crosses is data, and the functions are importable.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def end_all(processes: list[BaseProcess], signals: Signals) -> None:
    """Wait a little for each child to leave by itself, then kill it; at once if somebody asked twice.

    All are joined: none stays as a zombie.
    """
    deadline = time.monotonic() + LEAVE_SECONDS
    while (running := [process.sentinel for process in processes if process.exitcode is None]) and not signals.urgent:
        if time.monotonic() > deadline:
            break
        wait(running, timeout=POLL_SECONDS)
    for process in processes:
        if process.exitcode is None:
            process.kill()
        process.join()


def child(target: Callable[[RunPlan, int], None], plan: RunPlan, worker: int, name: str) -> None:
    """The frame of every child: signals, threads, parent watch, and a traceback that survives it."""
    # The supervisor decides when to end; a Ctrl-C reaches the whole group and must not tear rollouts apart.
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    leave_with_parent()
    enforce_one_thread()
    file = plan.folder.traceback_file(name)
    try:
        target(plan, worker)
    except BaseException as error:
        if disk_is_full(error):
            os._exit(DISK_FULL)
        with contextlib.suppress(OSError):
            file.write_text(traceback.format_exc())
            sys.stderr.flush()
        os._exit(1)


def leave_with_parent() -> None:
    """End this process when the supervisor dies, however it dies.

    A thread that waits on the parent is the one way that works under spawn and forkserver alike: `daemon` does
    nothing on SIGKILL, and a parent-death signal is tied to the fork server instead.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def worker_process(plan: RunPlan, worker: int) -> None:
    """An actor-learner's process."""
    faulthandler.enable()
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    learning = build_worker(plan, worker)
    progress = plan.progress
    progress.enter(worker, READY)
    while not progress.started() and not progress.leaving():
        time.sleep(0.005)
    progress.enter(worker, RUNNING)
    for _ in learning:
        pass
    progress.enter(worker, ENDED)


def evaluator_process(plan: RunPlan, _: int) -> None:
    """The evaluator's process."""
    with Evaluator(plan) as evaluator:
        serve(evaluator, plan)
