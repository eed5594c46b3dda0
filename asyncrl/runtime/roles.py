"""What each process of a run does: its agent, its environments, and the loop that it follows."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from asyncrl.algorithm import GRADIENT, Algorithm, Who
from asyncrl.core.devices import CPU
from asyncrl.core.rollout import Part
from asyncrl.envs.environment import Environment, closed_on_error
from asyncrl.runtime.clock import BUILDING, Clock
from asyncrl.runtime.collect import Collector
from asyncrl.runtime.loops import Pending, Replica, actor, actor_learner, bundled, learner
from asyncrl.runtime.normalize import make_normalizer
from asyncrl.runtime.protocols import EVALUATOR, LEARNER, name_of
from asyncrl.runtime.run import Run
from asyncrl.runtime.seeding import ACTIONS, ENVIRONMENT, GLOBAL_GENERATOR, derive, generator
from asyncrl.runtime.telemetry import Telemetry
from asyncrl.runtime.threads import limit_threads, running_threads
from asyncrl.storage.files import write_synced
from asyncrl.storage.records import RecordWriter, Rows


def build_agent(run: Run, worker: int) -> tuple[Algorithm, Replica]:
    """An agent and its replica: of a worker, a learner or the evaluator."""
    spec, store = run.spec, run.handles.store
    algorithm = spec.method
    with GLOBAL_GENERATOR, torch.device(spec.learner_device if worker <= LEARNER else CPU):
        network = algorithm.make_network(spec.config, spec.spaces)
        target = algorithm.make_network(spec.config, spec.spaces) if algorithm.has_target else None
    if worker == EVALUATOR:
        network.eval()  # it has no dropout
    # The only writer of theta may compute on it; so may those whose method is to do so while others write.
    only_writer = worker == LEARNER and len(run.handles.clock.learners) == 1
    private_copy = worker == EVALUATOR or (algorithm.private_copy and not only_writer)
    # The evaluator says what theta is worth as it stands in the checkpoint.
    precision = "float32" if worker == EVALUATOR else spec.config.precision
    # Who acts and learns with one theta' need not compute everything twice. Whole episodes would be too long to keep.
    alike = algorithm.private_copy and algorithm.experience == GRADIENT and not algorithm.whole_episodes
    taped = (spec.config.t_max + 1, spec.config.envs_per_worker) if alike and worker >= 0 else None
    # Compiled code rounds differently. Serial runs are the same on all machines of a kind, with a compiler or without.
    compiled = spec.config.backend != "serial" and worker > LEARNER
    replica = Replica(store, network, target, private_copy, precision, taped, compiled)
    random = generator(spec.config.seed, ACTIONS, *spec.stream(worker))
    number = spec.among_all(worker)
    who: Who = "evaluator" if worker == EVALUATOR else "worker" if worker >= 0 else "learner"
    place = {"worker": number, "learner": LEARNER - number, "evaluator": 0}[who]
    return algorithm(spec.config, network, target, who, place, random), replica


MakeAgent = Callable[[Run, int], tuple[Algorithm, Replica]]
"""What builds an agent and its replica: `build_agent`, or something around it."""


def build_environments(
    run: Run, worker: int, count: int, evaluation: bool, say: Callable[[str], None] = lambda line: None
) -> list[Environment]:
    """The environments of one worker, each with its own seed; `say` is called for those that are rebuilt."""
    spec, clock = run.spec, run.handles.clock

    def make(e: int, number: int) -> Environment:
        place = spec.stream(worker, e)
        if number:
            place += (number,) if spec.incarnation else (0, number)  # in the place of the incarnation, if there is none
        phase = clock.phase(worker)
        clock.enter(worker, BUILDING)  # making one may take its time
        environment = spec.environment.make(derive(spec.config.seed, ENVIRONMENT, *place), evaluation=evaluation)
        clock.enter(worker, phase)
        limit_threads()  # whatever it has told the libraries
        return environment

    environments: list[Environment] = []
    with closed_on_error(environments):
        for e in range(count):
            if spec.config.on_env_error == "stop":
                environments.append(make(e, 0))
                continue
            from asyncrl.envs.rebuilding import Rebuilding

            environments.append(Rebuilding(partial(make, e), evaluation, say))
    return environments


@dataclass(frozen=True)
class Role:
    """What one process of a run does, ready to go: environments reset, memory allocated."""

    who: int
    clock: Clock
    loop: Generator[bool]
    agent: Algorithm
    writer: Rows
    collector: Collector | None = None
    """None for a learner."""
    pending: Pending | None = None
    """None for an actor and a learner, which have nothing on its way between two turns."""

    def close(self) -> None:
        """End the loop, which writes its last row, and close its file and, whatever happens, its environments."""
        with contextlib.ExitStack() as stack:
            if self.collector is not None:
                stack.callback(self.collector.close)
            stack.callback(self._close_records)
            self.loop.close()

    def _close_records(self) -> None:
        self.writer.close()
        self.clock.note_unwritten(self.who, self.writer.missing)

    def state(self) -> dict[str, Any] | None:
        """Everything its future depends on besides what all share; None if an environment cannot save its state."""
        collector = None if self.collector is None else self.collector.state()
        if self.collector is not None and collector is None:
            return None
        pending = self.pending.state() if self.pending is not None and self.pending.waiting else None
        return {"collector": collector, "random": self.agent.generator.get_state(), "pending": pending}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; before the loop has begun."""
        if self.collector is not None:
            self.collector.restore(state["collector"])
        self.agent.generator.set_state(state["random"])
        if self.pending is not None and state["pending"] is not None:
            self.pending.restore(state["pending"])


def build_worker(
    run: Run, worker: int, make_agent: MakeAgent = build_agent, make_writer: Callable[[Path], Rows] = RecordWriter
) -> Role:
    """An actor-learner, or an actor if experience goes to a learner.

    `make_agent` lets the doctor observe the agent; everything else is as in a run. `make_writer` is for workers whose
    records are written elsewhere.
    """
    spec, handles = run.spec, run.handles
    config, algorithm = spec.config, spec.method
    agent, replica = make_agent(run, worker)
    before = running_threads()
    writer = make_writer(spec.folder.records_file(name_of(worker)))
    environments = build_environments(
        run, worker, config.envs_per_worker, False, lambda line: writer.write({"worker": worker, "event": line})
    )
    with closed_on_error(environments):
        collector = Collector(
            environments, agent, spec.spaces, config.t_max, config.gamma, handles.clock,
            look_ahead=algorithm.looks_ahead, extras=algorithm.extras, whole_episodes=algorithm.whole_episodes,
            normalizer=make_normalizer(handles.moments, worker, spec), beat=handles.clock.pulse(worker),
        )  # fmt: skip
    threads = running_threads() - before
    writer.write({"worker": worker, "event": "ready", "exploration": agent.exploration, "threads": threads})
    telemetry = telemetry_of(run, worker, agent, writer, collector)
    if handles.experience is not None:
        loop = actor(worker, replica, collector, handles.store, handles.experience, handles.clock, telemetry)
        if not handles.clock.learners:  # each learns itself from what it puts, and acts and learns with one theta'
            loop = bundled(loop, learning_loop(run, worker, agent, replica, writer))
        return Role(worker, handles.clock, loop, agent, writer, collector)
    pending = Pending(torch.empty_like(replica.theta), algorithm.private_copy)
    loop = actor_learner(worker, agent, replica, collector, handles.store, handles.clock, telemetry, pending)
    return Role(worker, handles.clock, loop, agent, writer, collector, pending)


def build_learner(
    run: Run,
    learner: int = LEARNER,
    make_agent: MakeAgent = build_agent,
    make_writer: Callable[[Path], Rows] = RecordWriter,
) -> Role:
    """A learner of an algorithm whose experience goes to one; `make_writer` as for workers."""
    agent, replica = make_agent(run, learner)
    writer = make_writer(run.spec.folder.records_file(name_of(learner)))
    writer.write({"worker": name_of(learner), "event": "ready"})
    return Role(learner, run.handles.clock, learning_loop(run, learner, agent, replica, writer), agent, writer)


def learning_loop(run: Run, who: int, agent: Algorithm, replica: Replica, writer: Rows) -> Generator[bool]:
    """What a learner does."""
    handles, telemetry = run.handles, telemetry_of(run, who, agent, writer)
    assert handles.experience is not None
    return learner(agent, replica, handles.store, handles.experience, handles.clock, telemetry, who)


def telemetry_of(run: Run, who: int, agent: Algorithm, writer: Rows, collector: Collector | None = None) -> Telemetry:
    """What a worker, an actor or a learner records about itself; a learner has no `collector`."""
    spec, agreement = run.spec, run.handles.agreement
    exchanges = spec.config.reduce == ("gradients" if collector is None else "experience")
    return Telemetry(
        who, run.handles.clock, writer, spec.config.record_interval_seconds, collector, spec.method.private_copy,
        partial(dump_culprit, spec.folder.culprit_file(name_of(who)), agent),
        agreement.spent if agreement is not None and exchanges else None,
    )  # fmt: skip


def dump_culprit(file: Path, agent: Algorithm, part: Part) -> str:
    """Save the inputs of an update and the parameters of its gradient, as named tensors; returns where."""
    tensors = {f"parameters.{name}": parameter.detach() for name, parameter in agent.network.named_parameters()}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            tensors[f"rollout.{field.name}"] = value
    try:
        write_synced(file, safetensors.torch.save({name: tensor.clone() for name, tensor in tensors.items()}))
    except OSError:  # a full disk, or a rank on another host, which need not see the run's folder
        return "its rollout could not be kept"
    return f"its rollout and parameters are in {file.name}"
