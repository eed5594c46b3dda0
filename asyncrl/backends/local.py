"""A process per worker and one for the evaluator, on this machine, supervised from the command's own process."""

from __future__ import annotations

import os
import time
from contextlib import closing
from multiprocessing.connection import wait

from asyncrl.backends.handles import shared
from asyncrl.backends.outcome import Outcome, Signals, finished, stopped
from asyncrl.backends.processes import POLL_SECONDS, explaining
from asyncrl.backends.supervisor import Supervisor
from asyncrl.runtime.clock import BUILDING, ENDED, FINISH, LEAVE, READY, RUNNING, Clock
from asyncrl.runtime.monitor import Monitor, View
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.protocols import EVALUATOR, name_of
from asyncrl.runtime.run import Role, Run, build_learner, build_worker
from asyncrl.runtime.threads import compute_with

SHORTEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.0001, 0.002
"""Pauses of an actor that waits for room, or a learner that waits for a batch: longer and longer."""
NICENESS = 5
"""Priority of workers. With more workers than cores, an evaluation of seconds would otherwise take minutes;
`--evaluation-cpu-share` bounds what the evaluator takes."""


share = shared


def refuse(plan: Plan) -> None:
    """Nothing: all methods run here."""


def run(run: Run, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Follow the run to its end in processes of this machine. No process is left when it returns."""
    supervisor = Supervisor(run, monitor, view, worker_process, evaluator_process, learner_process)
    try:
        for slot in supervisor.slots:
            if signals.first is not None:
                return stopped(signals.first)
            supervisor.fill(slot)
        outcome = _await_ready(run, supervisor, view, signals)
        if outcome is None:
            lines = monitor.begin()  # a learner may die in its first update: the first checkpoint comes before that
            run.handles.clock.start()
            for line in [f"all {len(supervisor.workers)} workers are ready", *lines]:
                view.say(line)
            outcome = _supervise(run, supervisor, monitor, view, signals)
        if outcome.state == "finished":
            outcome = await_last_evaluation(supervisor, monitor, view, signals) or outcome
        return outcome
    finally:
        run.handles.clock.stop(LEAVE)
        supervisor.end(signals)


def _await_ready(run: Run, supervisor: Supervisor, view: View, signals: Signals) -> Outcome | None:
    """Wait until every worker can begin, and count them meanwhile; an Outcome if the run ended before it began."""
    workers = run.spec.config.workers
    while BUILDING in (phases := run.handles.clock.phases()):
        view.count(sum(phase == READY for phase in phases[:workers]), workers)  # learners come after the workers
        if signals.first is not None:
            return stopped(signals.first)
        wait(supervisor.sentinels(), timeout=0.02)
        if (outcome := supervisor.tend()) is not None:
            return outcome
    return None


def _supervise(run: Run, supervisor: Supervisor, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Follow the run until the workers have ended, too many are lost, or it is asked to stop."""
    while True:
        # If nobody is at work there is nothing to wait for but the start of a successor.
        wait(supervisor.sentinels(), timeout=POLL_SECONDS)
        if (outcome := supervisor.tend()) is not None:
            return outcome
        if monitor.look():
            view.show(monitor.summary)
        monitor.look_at_evaluations()
        if signals.first is not None:
            return stopped(signals.first)
        if (reason := monitor.verdict()) is not None:
            run.handles.clock.stop(FINISH)
            if supervisor.all_ended():
                return finished(reason)


def await_last_evaluation(supervisor: Supervisor, monitor: Monitor, view: View, signals: Signals) -> Outcome | None:
    """The workers are done; evaluate the final parameters unless a signal asked to stop."""
    while not supervisor.evaluator_ended() and not signals.received:
        wait(supervisor.sentinels(), timeout=POLL_SECONDS)
        if (outcome := supervisor.tend()) is not None:
            return outcome
        if monitor.look():
            view.show(monitor.summary)
    monitor.look_at_evaluations()
    return None


def worker_process(run: Run, worker: int) -> None:
    """An actor-learner's process."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    fill(build_worker(run, worker), run, worker)


def learner_process(run: Run, learner: int) -> None:
    """A learner's process."""
    compute_with(getattr(run.spec.config, "learner_threads", 1))
    fill(build_learner(run, learner), run, learner)


def fill(role: Role, run: Run, worker: int) -> None:
    """What the process of a role does: follow its loop, and close its environments however that ends."""
    with closing(role), explaining(run, worker, name_of(worker), run.handles.clock):
        follow(role, run.handles.clock, worker)


def follow(role: Role, clock: Clock, worker: int) -> None:
    """Run a role's loop from the start of the clock to its end."""
    clock.enter(worker, READY)
    while not clock.started() and not clock.leaving():
        time.sleep(0.005)
    clock.enter(worker, RUNNING)
    pause = SHORTEST_WAIT_SECONDS
    for worked in role.loop:
        if worked:
            pause = SHORTEST_WAIT_SECONDS
        else:  # it waits for another process, which needs the core
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_WAIT_SECONDS)
    clock.enter(worker, ENDED)


def evaluator_process(run: Run, _: int) -> None:
    """The evaluator's process."""
    from asyncrl.runtime.evaluator import Evaluator, serve  # which no other process needs

    with Evaluator(run) as evaluator, explaining(run, EVALUATOR, name_of(EVALUATOR), run.handles.clock):
        serve(evaluator, run)
