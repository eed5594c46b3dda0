"""A part of a run's replay memory in a process of its own: hosts send it their steps, the learner draws from it.

The transport is elsewhere, as for hosts. Everything that holds for a memory beside the learner holds for each part: its
hosts' rollouts arrive on credit, and its own replay ratio says when a minibatch is due and when its actors wait. A part
that dies loses its steps. Its successor is an empty memory, in a new epoch for hosts and learner.
"""

from __future__ import annotations

import threading
import uuid

import numpy as np

from asyncrl.backends.calls import Answer, Draw, Drew, Question, arrays_of, tensor_of
from asyncrl.backends.handles import memory_plan_of_host, rollout_shape
from asyncrl.backends.reports import Keeper
from asyncrl.core.rollout import Transitions
from asyncrl.experience.credit import Numbered, Taken
from asyncrl.experience.landing import Cargo, Landing
from asyncrl.experience.replay import Replay
from asyncrl.parameters.shards import Empty, State
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.run import RunSpec
from asyncrl.runtime.threads import enforce_one_thread


class ReplayHost(Keeper):
    """One part of the memory. Calls may come from several threads at once."""

    def __init__(self, spec: RunSpec, number: int) -> None:
        """`spec` is that of the whole run. The memory takes nothing until `begin`."""
        enforce_one_thread()
        self._life = uuid.uuid4().hex
        self._spec, self._number = spec, number
        self._lock = threading.Lock()
        """Held while it begins, and while a minibatch is drawn."""
        self._landing: Landing | None = None
        self._epoch = 0
        self._clock = Clock(1, 0)
        self._newest = 0, 0
        """Learner and number of the newest minibatch."""
        self._drew = Drew(0)
        """That minibatch, in case its answer was lost."""

    # ------------------------------------------------------------------------------------------- called by the driver

    def life(self) -> str:
        """Distinguishes this process from earlier ones."""
        return self._life

    def begin(self, life: str, times: int, state: State) -> bool:
        """Begin with an empty memory; `times` counts the memories of this number in this run, from 1.

        Returns whether it began now: a call for an earlier `life`, or a repeated one, changes nothing. Nothing of
        `state` is needed.
        """
        with self._lock:
            if self._landing is not None or life != self._life:
                return False
            spec, config = self._spec, self._spec.config
            # Each memory of each part of the run has random numbers of its own.
            place = spec.part, self._number, times
            plan = memory_plan_of_host(spec, self._number, place)
            self._clock = Clock(plan.actors, 0)
            shape = rollout_shape(spec.on_one_machine(config.workers))
            self._epoch = times
            memory = Replay(plan, self._clock, lambda: None)
            self._landing = Landing(memory, shape, plan.actors // config.workers, config.workers, epoch=times)
            return True

    def state(self) -> State:
        """How many steps are stored. Raises Empty."""
        memory = self._memory(self._filled())
        put = memory.steps.put
        return {"stored": np.array([np.minimum(put, memory.steps.capacity).sum()])}

    # -------------------------------------------------------------------------------- called by hosts and the learner

    def exchange(self, call: Numbered[Cargo] | Question | Draw) -> Taken | Answer | Drew | None:
        """Take a parcel, answer a question without theta, or give a minibatch. Raises Empty.

        A host's number in parcels and questions is its number among the hosts of this memory.
        """
        landing = self._filled()
        match call:
            case Numbered():
                return landing.deliver(call)
            case Question():
                return Answer(*landing.hear(call.host, call.incarnation, call.news, call.seconds))
            case Draw():
                with self._lock:
                    return self._draw(landing, call)

    def _draw(self, landing: Landing, draw: Draw) -> Drew | None:
        """A new minibatch if one is due, or the newest once more; None for a call that is outdated."""
        feedback, memory = draw.feedback, self._memory(landing)
        if feedback is not None and feedback.epoch == self._epoch:
            memory.feedback(tensor_of(feedback.keys), tensor_of(feedback.errors))
        if (draw.learner, draw.number) <= self._newest:
            return self._drew if (draw.learner, draw.number) == self._newest else None
        self._clock.rebase(draw.steps)
        with landing.changed:
            landing.changed.wait_for(lambda: memory.ahead() >= 1, timeout=draw.seconds)
        batch = landing.take()
        if batch is None:
            return Drew(self._epoch)
        landing.release()  # it counts as learnt: hosts may send the steps that this allows
        assert isinstance(batch.rollout, Transitions)
        keys = None if batch.keys is None else batch.keys.numpy()
        self._newest = draw.learner, draw.number
        self._drew = Drew(self._epoch, arrays_of(batch.rollout), keys, dict(batch.facts))
        return self._drew

    def _filled(self) -> Landing:
        if self._landing is None:
            raise Empty
        return self._landing

    def _memory(self, landing: Landing) -> Replay:
        assert isinstance(landing.experience, Replay)
        return landing.experience
