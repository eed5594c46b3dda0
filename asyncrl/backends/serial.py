"""All workers in one process, in turns: bit-identical from run to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

from asyncrl.backends.outcome import Outcome, Signals, finished, stopped
from asyncrl.backends.schedules import make_schedule
from asyncrl.runtime.evaluator import Evaluator
from asyncrl.runtime.monitor import Monitor
from asyncrl.runtime.plan import RunPlan, build_worker
from asyncrl.runtime.progress import ENDED, FINISH, LEAVE, RUNNING
from asyncrl.runtime.seeding import SCHEDULE, derive
from asyncrl.runtime.terminal import View


def run(plan: RunPlan, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Run the plan to its end in this process."""
    with ExitStack() as stack:
        # Each worker is closed whatever happens: that is when it writes its last row.
        workers = [stack.enter_context(closing(build_worker(plan, worker))) for worker in range(plan.config.workers)]
        evaluator = stack.enter_context(Evaluator(plan, interrupted=lambda: signals.first is not None))
        return _take_turns(plan, workers, evaluator, monitor, view, signals)


def _take_turns(
    plan: RunPlan,
    workers: Sequence[Iterator[None]],
    evaluator: Evaluator,
    monitor: Monitor,
    view: View,
    signals: Signals,
) -> Outcome:
    """A turn at a time: push the gradient computed in the turn before, pull, and compute the next."""
    config, progress = plan.config, plan.progress
    seed = derive(config.seed, SCHEDULE, plan.part)
    schedule = make_schedule(config.schedule, config.workers, seed, config.delays)
    for worker in range(config.workers):
        progress.enter(worker, RUNNING)
    progress.start()
    view.say(monitor.begin())
    running = set(range(config.workers))
    while running:
        worker = next(schedule)
        if worker not in running:
            continue
        if next(workers[worker], ENDED) is ENDED:
            running.discard(worker)
            progress.enter(worker, ENDED)
        if evaluator.due() and not progress.finished():
            evaluator.evaluate()
            monitor.look_at_evaluations()
        if monitor.look():
            view.show(monitor.summary)
        if signals.first is not None:
            progress.stop(LEAVE)
        elif monitor.verdict() is not None:
            progress.stop(FINISH)
    if signals.first is not None:
        return stopped(signals.first)
    reason = monitor.verdict() or "total_steps reached"
    if not evaluator.evaluated_last():
        evaluator.evaluate()
    return finished(reason)
