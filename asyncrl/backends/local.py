"""A process per worker and one for the evaluator, on this machine, supervised from the command's own process."""

from __future__ import annotations

from multiprocessing.connection import wait

from asyncrl.backends.handles import shared as share  # noqa: F401  (as every backend)
from asyncrl.backends.outcome import Outcome, Signals, finished, stopped
from asyncrl.backends.processes import POLL_SECONDS
from asyncrl.backends.supervisor import Supervisor
from asyncrl.runtime.clock import BUILDING, FINISH, LEAVE, READY
from asyncrl.runtime.monitor import Monitor, View
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.run import Run

START_SECONDS = 0.02
"""Time between two looks at workers that build their environments."""


def refuse(plan: Plan) -> None:
    """Nothing: all methods run here."""


def run(run: Run, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Follow the run to its end in processes of this machine. No process is left when it returns."""
    clock, workers = run.handles.clock, range(run.spec.config.workers)
    supervisor = Supervisor(run, monitor.note_loss, view.say, [*clock.learners, *workers, EVALUATOR])
    try:
        for slot in supervisor.slots:
            if signals.first is not None:
                return stopped(signals.first)
            supervisor.fill(slot)
        while BUILDING in (phases := clock.phases()):
            view.count(sum(phases[worker] == READY for worker in workers), len(workers))
            if (outcome := look_after(supervisor, monitor, view, signals)) is not None:
                return outcome
        view.count(len(workers), len(workers))
        lines = monitor.begin()  # a learner may die in its first update: the first checkpoint comes before that
        clock.start()
        for line in [f"all {len(workers)} workers are ready", *lines]:
            view.say(line)
        while (reason := monitor.verdict()) is None or not supervisor.all_ended():
            if reason is not None:
                clock.stop(FINISH)
            if (outcome := look_after(supervisor, monitor, view, signals)) is not None:
                return outcome
        clock.stop(FINISH)
        return await_last_evaluation(finished(reason), supervisor, monitor, view, signals)
    finally:
        clock.stop(LEAVE)
        supervisor.end(signals)


def look_after(supervisor: Supervisor, monitor: Monitor, view: View, signals: Signals) -> Outcome | None:
    """Wait a moment, replace those who were lost, and show how the run is; an Outcome if it cannot or may not go on."""
    started = monitor.run.handles.clock.started()
    wait(supervisor.sentinels(), timeout=POLL_SECONDS if started else START_SECONDS)
    if (outcome := supervisor.tend()) is not None:
        return outcome
    if started and monitor.look():
        view.show(monitor.summary)
    monitor.look_at_evaluations()
    return None if signals.first is None else stopped(signals.first)


def await_last_evaluation(
    outcome: Outcome, supervisor: Supervisor, monitor: Monitor, view: View, signals: Signals
) -> Outcome:
    """The workers have finished with this outcome; evaluate the final parameters unless a signal asks to stop."""
    monitor.run.handles.clock.halt()
    while not supervisor.evaluator_ended():
        if (end := look_after(supervisor, monitor, view, signals)) is not None:
            return outcome if end.state == "stopped" else end
    monitor.look_at_evaluations()  # the last one may have reached the score
    return finished(monitor.verdict() or outcome.reason)
