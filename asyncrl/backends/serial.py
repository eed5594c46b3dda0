"""All workers in one process, in turns: bit-identical from run to run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from asyncrl.backends.outcome import Outcome, Signals, finished, stopped
from asyncrl.backends.schedules import make_schedule
from asyncrl.core.errors import UsageError
from asyncrl.runtime.evaluator import Evaluator
from asyncrl.runtime.monitor import Monitor
from asyncrl.runtime.plan import Learner, RunPlan, build_learner
from asyncrl.runtime.progress import ENDED, FINISH, RUNNING
from asyncrl.runtime.seeding import SCHEDULE, derive
from asyncrl.runtime.terminal import View


def run(plan: RunPlan, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Run the plan to its end in this process."""
    with ExitStack() as stack:
        # Each worker is closed whatever happens: that is when it writes its last row.
        learners = [stack.enter_context(closing(build_learner(plan, worker))) for worker in range(plan.config.workers)]
        evaluator = stack.enter_context(Evaluator(plan, interrupted=lambda: signals.first is not None))
        turns = Turns(plan, learners, evaluator)
        try:
            monitor.exact = turns.state
            return _take_turns(plan, turns, monitor, view, signals)
        finally:
            monitor.exact = None


class Turns:
    """Whose turn it is, and what has to be known to go on with exactly that turn later."""

    def __init__(self, plan: RunPlan, learners: Sequence[Learner], evaluator: Evaluator) -> None:
        self.learners = learners
        self.evaluator = evaluator
        self._plan = plan
        self._part, self._taken = plan.part, 0
        if plan.exact is not None:
            try:
                self._restore(plan.exact)
            except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise UsageError(
                    f"the state of the workers in the checkpoint cannot be used ({type(error).__name__}: {error}); "
                    "with --backend local the run goes on without it"
                ) from None
        config = plan.config
        seed = derive(config.seed, SCHEDULE, self._part)
        self._schedule = make_schedule(config.schedule, config.workers, seed, config.delays)
        for _ in range(self._taken):
            next(self._schedule)

    def _restore(self, state: dict[str, Any]) -> None:
        self._part, self._taken = int(state["part"]), int(state["turns"])
        self._plan.store.restore_moments(state["moments"])
        self.evaluator.restore(state["evaluator"])
        for learner, own in zip(self.learners, state["learners"], strict=True):
            learner.restore(own)

    def next(self) -> int:
        """The worker whose turn it is."""
        self._taken += 1
        return next(self._schedule)

    def state(self) -> dict[str, Any] | None:
        """Everything that is not shared; None if an environment cannot tell its state, or a worker has ended."""
        if any(phase == ENDED for phase in self._plan.progress.phases()):
            return None
        learners = [learner.state() for learner in self.learners]
        evaluator = self.evaluator.state()
        if evaluator is None or any(state is None for state in learners):
            return None
        return {
            "part": self._part,
            "turns": self._taken,
            "moments": self._plan.store.moments(),
            "evaluator": evaluator,
            "learners": learners,
        }


def _take_turns(plan: RunPlan, turns: Turns, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """A turn at a time: push the gradient computed in the turn before, pull, and compute the next."""
    config, progress, evaluator = plan.config, plan.progress, turns.evaluator
    for worker in range(config.workers):
        progress.enter(worker, RUNNING)
    progress.start()
    for line in monitor.begin():
        view.say(line)

    def evaluate_if_due() -> None:
        if evaluator.due() and not progress.finished():
            evaluator.evaluate()
            monitor.look_at_evaluations()

    evaluate_if_due()  # the run may have been stopped while it evaluated
    running = set(range(config.workers))
    while running:
        worker = turns.next()
        if worker not in running:
            continue
        if next(turns.learners[worker].learning, ENDED) is ENDED:
            running.discard(worker)
            progress.enter(worker, ENDED)
        evaluate_if_due()
        if monitor.look():
            view.show(monitor.summary)
        if signals.first is not None:
            monitor.save_checkpoint()  # before the workers are closed, so that it can go on from this very turn
            return stopped(signals.first)
        if monitor.verdict() is not None:
            progress.stop(FINISH)
    reason = monitor.verdict() or "total_steps reached"
    if not evaluator.evaluated_last():
        evaluator.evaluate()
    return finished(reason)
