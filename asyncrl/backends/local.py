"""A process per worker and one for the evaluator, on this machine, supervised from the command's own process."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import wait

from asyncrl.backends.crew import Crew
from asyncrl.backends.outcome import Outcome, Signals, finished, stopped
from asyncrl.backends.processes import POLL_SECONDS
from asyncrl.runtime.evaluator import Evaluator, serve
from asyncrl.runtime.monitor import Monitor
from asyncrl.runtime.plan import RunPlan, build_learner
from asyncrl.runtime.progress import BUILDING, ENDED, FINISH, LEAVE, READY, RUNNING
from asyncrl.runtime.scheduling import ask_for_long_slices
from asyncrl.runtime.terminal import View

TOLD_SECONDS = 5.0
"""Between two lines that say how many workers are ready."""
NICENESS = 5
"""Of workers. With more of them than cores the evaluator would get one share in N + 1, and an evaluation of seconds
would take minutes; so it goes first, and `--evaluation-cpu-share` bounds what it takes."""


def run(plan: RunPlan, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Run the plan to its end in processes of this machine. No process is left when it returns."""
    crew = Crew(plan, monitor, view, worker_process, evaluator_process)
    try:
        for post in crew.posts:
            if signals.first is not None:
                return stopped(signals.first)
            crew.fill(post)
        outcome = _await_ready(plan, crew, view, signals)
        if outcome is None:
            plan.progress.start()
            view.say(f"all {len(crew.workers)} workers are ready")
            for line in monitor.begin():
                view.say(line)
            outcome = _supervise(plan, crew, monitor, view, signals)
        if outcome.state == "finished":
            outcome = _await_last_evaluation(crew, monitor, view, signals) or outcome
        return outcome
    finally:
        plan.progress.stop(LEAVE)
        crew.end(signals)


def _await_ready(plan: RunPlan, crew: Crew, view: View, signals: Signals) -> Outcome | None:
    """Wait until every worker can begin, and count them meanwhile; an Outcome if the run ended before it began."""
    told = time.monotonic()
    while BUILDING in (phases := plan.progress.phases()):
        if time.monotonic() - told >= TOLD_SECONDS:
            told = time.monotonic()
            view.say(f"{sum(phase == READY for phase in phases)} of {len(phases)} workers are ready")
        if signals.first is not None:
            return stopped(signals.first)
        wait(crew.sentinels(), timeout=0.02)
        if (outcome := crew.tend()) is not None:
            return outcome
    return None


def _supervise(plan: RunPlan, crew: Crew, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Follow the run until the workers have ended, or too many broke, or somebody wants it to stop."""
    while True:
        # Without anybody at work there is nothing to wait for but the time at which a successor starts.
        wait(crew.sentinels(), timeout=POLL_SECONDS)
        if (outcome := crew.tend()) is not None:
            return outcome
        if monitor.look():
            view.show(monitor.summary)
        monitor.look_at_evaluations()
        if signals.first is not None:
            return stopped(signals.first)
        if (reason := monitor.verdict()) is not None:
            plan.progress.stop(FINISH)
            if crew.all_ended():
                return finished(reason)


def _await_last_evaluation(crew: Crew, monitor: Monitor, view: View, signals: Signals) -> Outcome | None:
    """The workers are done; let the evaluator score the final parameters unless somebody is in a hurry."""
    while not crew.evaluator_ended() and not signals.received:
        wait(crew.sentinels(), timeout=POLL_SECONDS)
        if (outcome := crew.tend()) is not None:
            return outcome
        if monitor.look():
            view.show(monitor.summary)
    monitor.look_at_evaluations()
    return None


def worker_process(plan: RunPlan, worker: int) -> None:
    """An actor-learner's process."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    ask_for_long_slices()
    learner = build_learner(plan, worker)
    progress = plan.progress
    progress.enter(worker, READY)
    while not progress.started() and not progress.leaving():
        time.sleep(0.005)
    progress.enter(worker, RUNNING)
    for _ in learner.learning:
        pass
    progress.enter(worker, ENDED)
    learner.close()


def evaluator_process(plan: RunPlan, _: int) -> None:
    """The evaluator's process."""
    with Evaluator(plan) as evaluator:
        serve(evaluator, plan)
