"""The doctor: all is well here, and each of its checks sees the fault that it is there for."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl import a3c, apex
from asyncrl.algorithm import algorithm_of
from asyncrl.backends.handles import experience_bytes
from asyncrl.backends.processes import start_context
from asyncrl.checks import environment, group, learning, machine
from asyncrl.checks.finding import Finding
from asyncrl.checks.learning import NoAnswer, Record
from asyncrl.commands import doctor
from asyncrl.commands.doctor import A3C, exercise_run, main
from asyncrl.commands.train import main as train
from asyncrl.config.run_config import RunConfig
from asyncrl.core.rollout import Rollout
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.experience import blocks, replay, steps
from asyncrl.experience.batches import Batches
from asyncrl.experience.replay import Replay
from asyncrl.experience.steps import Steps
from asyncrl.parameters import shared
from asyncrl.runtime import collect, loops, replica
from asyncrl.runtime.protocols import LEARNER, Receipt, Update
from asyncrl.runtime.run import Run
from asyncrl.storage.records import RecordWriter
from tests.support import free_port, make_run

HERE = __name__


WHOLE = "rollouts arrive whole, each once"
POLICY = "actors act with the theta they say"
COUNTS = "updates and steps are counted once"
NEWEST = "batches in step are of the newest theta"
RATIO = "the ratio of an unchanged policy is 1"
PULLS = "workers pull theta before each rollout"
TRUE = "the gradient is the true one"
ONCE = "each reaches theta exactly once"
DRAWN = "transitions arrive whole"
PRIORITIES = "priorities reach the memory"
BOOTSTRAPS = "truncation bootstraps"
TARGET = learning.TARGET_NETWORK


def verdicts(folder: Path, algorithm: str, **settings: Any) -> dict[str, str]:
    """Let all workers and the learner take turns in this process; each check's verdict by its name."""
    run = exercise_run(f"asyncrl.{algorithm}", folder, **settings)
    initial = run.handles.store.snapshot()
    return verdicts_of(list(learning.judge_records(run, initial, learning.listen(run))))


def applied_twice(patch: pytest.MonkeyPatch) -> None:
    """The store applies each gradient a second time."""
    push = shared.SharedStore.push

    def twice(self: Any, update: Update) -> Receipt:
        push(self, dataclasses.replace(update, gradient=update.gradient.clone(), steps=0))
        return push(self, update)

    patch.setattr(shared.SharedStore, "push", twice)


def lost(patch: pytest.MonkeyPatch) -> None:
    """The store keeps nothing."""
    patch.setattr(shared.SharedStore, "push", lambda *_: Receipt(True, norm=1.0, learning_rate=0.1))


def added_up(patch: pytest.MonkeyPatch) -> None:
    """What an aliased .grad does under torch 2: the second push holds the first gradient too."""
    gradient_of, sums = loops.gradient_of, torch.zeros(())

    def summed(loss: Tensor, parameters: list[Tensor], out: Tensor) -> Tensor:
        nonlocal sums
        sums = sums + gradient_of(loss, parameters, out)
        return out.copy_(sums)

    patch.setattr(loops, "gradient_of", summed)


def not_pulled(patch: pytest.MonkeyPatch) -> None:
    """Whoever acts keeps the parameters it was made with, and says that these are the newest."""
    patch.setattr(shared.SharedStore, "pull", lambda self, into: self.updates)


def ended_by_time(patch: pytest.MonkeyPatch) -> None:
    """A discount of 0 at a truncation."""
    step = collect.Collector._step

    def ending(self: Any, t: int, e: int, *rest: Any) -> None:
        step(self, t, e, *rest)
        self._discounts[t, e] *= not self._last[t, e]

    patch.setattr(collect.Collector, "_step", ending)


def bootstrapped_from_the_next(patch: pytest.MonkeyPatch) -> None:
    """An algorithm takes the value of the observation after the reset."""
    patch.setattr(Rollout, "next_values", lambda self, following, value_of: following)


def never_refreshed(patch: pytest.MonkeyPatch) -> None:
    """A stale target network."""
    patch.setattr(shared.SharedStore, "_refresh_target", lambda *_: None)


def always_refreshed(patch: pytest.MonkeyPatch) -> None:
    """It would be no target network at all."""
    patch.setattr(shared.SharedStore, "_refresh_target", lambda self, _: self._target.copy_(self.theta))


def private_target(patch: pytest.MonkeyPatch) -> None:
    """The parameters of the target network do not lie on the shared theta^-."""
    bind = replica.bind_parameters
    patch.setattr(replica, "bind_parameters", lambda network, flat: bind(network, flat.clone()))


def counted_by_updates(patch: pytest.MonkeyPatch) -> None:
    """T runs ahead, and with it learning rate, clip and the end of the run."""
    push = shared.SharedStore.push

    def counting(self: Any, update: Update) -> Receipt:
        self._clock.count(0, 16)
        return push(self, update)

    patch.setattr(shared.SharedStore, "push", counting)


def run_ahead(patch: pytest.MonkeyPatch) -> None:
    """Rollouts of an algorithm in step go through a queue: batches are of an older theta."""
    init = Batches.__init__

    def queue(self: Any, shape: Any, actors: int, clock: Any, in_step: bool, *rest: Any) -> None:
        init(self, shape, actors, clock, False, 2)

    patch.setattr(Batches, "__init__", queue)


def wrong_ages(patch: pytest.MonkeyPatch) -> None:
    """V-trace does not need ages, but people read them."""
    read = blocks.read
    patch.setattr(blocks, "read", lambda *words: (read(*words)[0], 10**6))


def torn(patch: pytest.MonkeyPatch) -> None:
    """The actions of a rollout are never copied."""
    write = blocks.write

    def half(block: Any, rollout: Rollout, version: int) -> None:
        write(block, rollout, version)
        block["actions"].zero_()

    patch.setattr(blocks, "write", half)


def read_again(patch: pytest.MonkeyPatch) -> None:
    """The learner never hands its batch back."""
    patch.setattr(Batches, "release", lambda *_: None)


def boasted(patch: pytest.MonkeyPatch) -> None:
    """Acting tells a probability that is a little too high."""
    for algorithm in ("ppo", "impala"):
        agent = algorithm_of(f"asyncrl.{algorithm}")

        def boasting(self: Any, *words: Any, act: Any = agent.act) -> Any:
            actions, state, extras = act(self, *words)
            return actions, state, {name: values + 1e-3 for name, values in extras.items()}

        patch.setattr(agent, "act", boasting)


def steps_torn(patch: pytest.MonkeyPatch) -> None:
    """The actions of steps are never copied."""
    add = Steps.add

    def half(self: Steps, actor: int, rollout: Rollout) -> None:
        add(self, actor, rollout)
        self.rows["actions"][:] = 0

    patch.setattr(Steps, "add", half)


def into_another_episode(patch: pytest.MonkeyPatch) -> None:
    """What follows a transition is always taken n rows on."""
    patch.setattr(steps, "_length", lambda marks: np.full(marks.shape[1], len(marks) - 1))


def behind_an_end(patch: pytest.MonkeyPatch) -> None:
    """An algorithm adds rewards that belong to the next episode."""
    targets = apex.n_step_targets
    patch.setattr(apex, "n_step_targets", lambda r, d, last, v: targets(r, d, torch.zeros_like(last), v))


def first_priorities_lost(patch: pytest.MonkeyPatch) -> None:
    """Those of the actors."""

    def equal(self: Steps, *_: Any) -> None:
        self.rows["priorities"][:] = 1.0

    patch.setattr(Steps, "_first_priorities", equal)


def new_priorities_lost(patch: pytest.MonkeyPatch) -> None:
    """Those of the learner."""
    patch.setattr(Replay, "feedback", lambda *_: None)


def weights_lost(patch: pytest.MonkeyPatch) -> None:
    """What priorities make of the loss."""
    patch.setattr(replay, "importance_weights", lambda priorities, _: torch.ones(len(priorities)))


def never_waited(patch: pytest.MonkeyPatch) -> None:
    """The learner learns as often as it can."""
    patch.setattr(Replay, "ahead", lambda self, number=0: 2.0)


class TestLearning:
    """Faults of workers, of actors and one learner, and of a replay memory, each put into the program itself."""

    @pytest.mark.parametrize(
        ("algorithm", "checks", "own"),
        [
            ("a3c", 5, PULLS),
            ("n_step_q", 6, TARGET),
            ("a2c", 9, NEWEST),
            ("ppo", 10, RATIO),
            ("impala", 10, "a queue lets actors run ahead"),
            ("gorila", 10, DRAWN),
            ("apex", 11, PRIORITIES),
        ],
    )
    def test_all_is_well(self, tmp_path: Path, algorithm: str, checks: int, own: str) -> None:
        """No check complains of the program as it is."""
        found = verdicts(tmp_path, algorithm)

        assert len(found) == checks
        assert own in found
        assert set(found.values()) == {"ok"}

    @pytest.mark.parametrize(
        ("algorithm", "fault", "seen", "innocent"),
        [
            ("a3c", applied_twice, (ONCE,), (TRUE,)),
            ("a3c", lost, (ONCE,), (TRUE,)),
            ("a3c", added_up, (TRUE,), (ONCE,)),
            ("a3c", not_pulled, (PULLS,), (ONCE,)),
            ("a3c", ended_by_time, (BOOTSTRAPS,), (ONCE,)),
            ("a3c", bootstrapped_from_the_next, (BOOTSTRAPS,), (ONCE,)),
            ("n_step_q", never_refreshed, (TARGET,), (ONCE,)),
            ("n_step_q", always_refreshed, (TARGET,), (ONCE,)),
            ("n_step_q", private_target, (TARGET,), (ONCE,)),
            ("ppo", applied_twice, (ONCE, COUNTS), (WHOLE,)),
            ("impala", lost, (ONCE,), (WHOLE,)),
            ("a2c", added_up, (TRUE,), (ONCE,)),
            ("a2c", counted_by_updates, (COUNTS,), (ONCE,)),
            ("a2c", not_pulled, (POLICY,), (WHOLE, ONCE)),
            ("ppo", not_pulled, (POLICY, RATIO), (WHOLE, ONCE)),
            ("impala", not_pulled, (POLICY, RATIO), (WHOLE, ONCE)),
            ("ppo", run_ahead, (NEWEST,), (ONCE,)),
            ("impala", wrong_ages, ("a queue lets actors run ahead", WHOLE), (ONCE,)),
            ("a2c", torn, (WHOLE,), (ONCE,)),
            ("ppo", read_again, (WHOLE,), (ONCE,)),
            ("ppo", boasted, (RATIO,), (WHOLE,)),
            ("impala", boasted, (RATIO,), (WHOLE,)),
            ("a2c", bootstrapped_from_the_next, (BOOTSTRAPS,), (ONCE,)),
            ("ppo", bootstrapped_from_the_next, (BOOTSTRAPS,), (ONCE,)),
            ("impala", bootstrapped_from_the_next, (BOOTSTRAPS,), (ONCE,)),
            ("ppo", ended_by_time, (BOOTSTRAPS,), (WHOLE,)),
            ("gorila", steps_torn, (DRAWN,), (ONCE,)),
            ("apex", into_another_episode, (DRAWN,), (ONCE,)),
            ("gorila", ended_by_time, (BOOTSTRAPS,), (DRAWN,)),
            ("apex", behind_an_end, (BOOTSTRAPS,), (DRAWN, PRIORITIES)),
            ("apex", first_priorities_lost, (PRIORITIES,), (DRAWN, ONCE)),
            ("apex", new_priorities_lost, (PRIORITIES,), (DRAWN, ONCE)),
            ("apex", weights_lost, (PRIORITIES,), (DRAWN, ONCE)),
            ("gorila", never_waited, ("the replay ratio is kept",), (DRAWN,)),
            ("apex", applied_twice, (ONCE, COUNTS), (DRAWN,)),
            ("gorila", not_pulled, (POLICY,), (DRAWN,)),
            ("apex", never_refreshed, (TARGET,), (DRAWN, ONCE)),
        ],
    )
    def test_a_fault_is_seen_by_its_own_checks(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        algorithm: str,
        fault: Callable[[pytest.MonkeyPatch], None],
        seen: tuple[str, ...],
        innocent: tuple[str, ...],
    ) -> None:
        """And not by those of what is not to blame."""
        fault(monkeypatch)

        found = verdicts(tmp_path, algorithm)

        assert [found[check] for check in (*seen, *innocent)] == ["FAIL"] * len(seen) + ["ok"] * len(innocent)

    @pytest.mark.parametrize("asked", ["shared", "per-worker"])
    def test_statistics_of_the_other_kind_are_seen(self, tmp_path: Path, asked: str) -> None:
        """One set for all where each worker should have its own, the other way round, and any that a worker made."""
        own = exercise_run(A3C, tmp_path, statistics=asked)
        initial = own.handles.store.snapshot()
        records = learning.listen(own)
        other = {"shared": "per-worker", "per-worker": "shared"}[asked]
        config = dataclasses.replace(own.spec.config, statistics=other)
        asked_for_other = dataclasses.replace(own, spec=dataclasses.replace(own.spec, config=config))

        def verdict(run: Run) -> str:
            name = f"statistics are {run.spec.config.statistics.replace('-', ' ')}"
            return verdicts_of(list(learning.judge_records(run, initial, records)))[name]

        assert (verdict(own), verdict(asked_for_other)) == ("ok", "FAIL")
        own.handles.store.statistics.zero_()
        assert verdict(own) == "FAIL"

    @pytest.mark.parametrize(
        ("algorithm", "rollouts", "updates", "returns", "ratios"),
        [("a2c", 3, 3, 3, 0), ("ppo", 3, 12, 3 * 2 * 32, 3), ("impala", 6, 6, 3, 3)],
    )
    def test_what_is_compared_is_there(
        self, tmp_path: Path, algorithm: str, rollouts: int, updates: int, returns: int, ratios: int
    ) -> None:
        """No check passes for want of anything to look at: rollouts, updates, cut episodes, returns of each batch."""
        records = learning.listen(exercise_run(f"asyncrl.{algorithm}", tmp_path))
        learner, actors = records[LEARNER], [records[0], records[1]]

        assert [len(actor.rollouts) for actor in actors] == [rollouts] * 2
        assert len(learner.versions) == rollouts
        assert (len(learner.gradients), len(learner.returns), len(learner.log_ratios)) == (updates, returns, ratios)
        assert min(len(actor.truncations) for actor in actors) >= 3

    def test_real_processes_take_turns(self, tmp_path: Path) -> None:
        """Two actors and a learner, started by a fork server: all is well, and they had the files they need."""
        run = exercise_run("asyncrl.impala", tmp_path)
        initial = run.handles.store.snapshot()

        records, opened = learning.hear(start_context("asyncrl.impala"), run)

        findings = list(learning.judge_records(run, initial, records))
        assert [finding for finding in findings if finding.verdict != "ok"] == []
        assert learning.check_threads(list(records.values())).figure == "torch 1, torch interop 1, cv2 1"
        assert opened >= 3

    def test_one_that_breaks_ends_them_all(self, tmp_path: Path) -> None:
        """The others would wait for their turn for ever."""
        with pytest.raises(NoAnswer, match="raised ValueError: no ladder here"):
            learning.hear(start_context(A3C), exercise_run("asyncrl.a2c", tmp_path), raise_if_first)


def push_and_lose(run: Run, worker: int) -> None:
    """The main function of a child whose updates go to a copy of theta."""
    run.handles.store.theta = run.handles.store.theta.clone()
    learning.push_at_once(run, worker)


class TestAtOnce:
    """Processes that push at the same time."""

    def examine(self, folder: Path, child: Any = learning.push_at_once, **settings: Any) -> Finding:
        """By plain SGD, or as the settings say."""
        run = exercise_run(A3C, folder, **doctor.PLAIN_SGD | settings)
        initial = run.handles.store.snapshot()
        learning.run_children(start_context(A3C), child, run, range(run.spec.config.workers))
        return learning.check_at_once(run, initial)

    @pytest.mark.parametrize("momentum", [{}, {"optimizer_decay": 1e-30}])
    def test_nothing_is_applied_twice(self, tmp_path: Path, momentum: dict[str, Any]) -> None:
        """Neither without momentum nor if each worker keeps its own, here of one gradient's length."""
        assert self.examine(tmp_path, **momentum).verdict == "ok"

    def test_a_momentum_that_others_write_to_is_seen(self, tmp_path: Path) -> None:
        """What was once the rule of plain SGD as well: a worker reads back from shared memory what it has written."""
        assert self.examine(tmp_path, optimizer_decay=1e-30, statistics="shared").verdict == "FAIL"

    def test_updates_that_reach_nobody_are_seen(self, tmp_path: Path) -> None:
        """Those of one that has left shared memory; the few that Hogwild loses would be no fault."""
        assert self.examine(tmp_path, push_and_lose).verdict == "FAIL"


def test_a_child_may_end_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends in the middle of a look has ended; nothing else is made of it."""

    class Child:
        name = "worker-00"
        pid = None
        codes = iter([None, None])

        @property
        def exitcode(self) -> int | None:
            return next(self.codes, 0)

        def join(self, timeout: float | None = None) -> None:
            pass

        def kill(self) -> None:
            pass

    monkeypatch.setattr(learning.processes, "start", lambda *_: Child())

    assert learning.run_child(None, None, make_run(tmp_path), 0) >= 0  # type: ignore[arg-type]


def raise_if_first(exercise: Run, number: int) -> None:
    (raise_something if number == 0 else wait_for_ever)(exercise, number)


def bytes_of(run: Run) -> int:
    """Bytes of all tensors that the handles of a run hold."""
    handles = run.handles
    between = handles.experience
    rings = [between, between.steps] if isinstance(between, Replay) else [] if between is None else between.rings
    holders = [handles.store, handles.clock, handles.moments, *rings]
    tensors = [value for holder in holders for value in vars(holder).values() if isinstance(value, Tensor)]
    return sum(tensor.nbytes for tensor in tensors)


def verdicts_of(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in findings}


def raise_something(exercise: Run, number: int) -> None:
    raise ValueError("no ladder here")


def wait_for_ever(exercise: Run, number: int) -> None:
    import threading

    threading.Event().wait()


class TestProcesses:
    """What is seen of real worker processes."""

    def test_a_second_thread_in_a_worker_is_seen(self) -> None:
        """Into whichever library it was brought."""
        alone, crowded = ({"torch": number, "torch interop": 1, "cv2": 1} for number in (1, 2))
        found = learning.check_threads([Record(threads=alone), Record(threads=crowded)])

        assert learning.check_threads([Record(threads=alone)]).verdict == "ok"
        assert (found.verdict, found.figure) == ("FAIL", "torch 2, torch interop 1, cv2 1")

    def test_a_child_that_hangs_is_ended(self, tmp_path: Path) -> None:
        """The doctor must end whatever an environment does."""
        with pytest.raises(NoAnswer, match="no answer within 1 s"):
            learning.run_child(start_context(A3C), wait_for_ever, exercise_run(A3C, tmp_path), 0, seconds=1)

    def test_forks_are_seen(self) -> None:
        """By the method's name, and by whose children the workers are."""
        import os

        assert learning.check_start_method("fork", "forkserver", [Record()]).verdict == "FAIL"
        mine = Record(started_by=os.getpid())
        assert learning.check_start_method("forkserver", "forkserver", [mine]).verdict == "FAIL"


class TestRoom:
    """Memory, files and disk."""

    @pytest.mark.parametrize("statistics", ["shared", "per-worker"])
    def test_shared_memory_is_what_the_store_takes(self, tmp_path: Path, statistics: str) -> None:
        """The sum of all tensors of a run, byte by byte."""
        exercise = exercise_run(A3C, tmp_path, statistics=statistics, workers=5, normalize_observations=True)
        parameters = exercise.handles.store.theta.numel()

        needed = machine.shared_bytes(exercise.spec.config, parameters, moments=8, target=False)

        assert needed == bytes_of(exercise)

    @pytest.mark.parametrize(
        ("algorithm", "settings"),
        [
            ("a2c", {"workers": 3, "envs_per_worker": 2, "t_max": 5}),
            ("ppo", {"lstm_cells": 6, "t_max": 7, "normalize_observations": False}),
            ("impala", {"env_id": "Pendulum-v1", "queue_length": 4, "normalize_observations": True}),
            ("gorila", {"memory_steps": 3000, "learners": 3}),
            ("gorila", {"memory_steps": 3000, "layout": "bundled"}),
            ("apex", {"memory_steps": 3000, "env_id": "CartPole-v1"}),
        ],
    )
    def test_rollouts_on_their_way_to_a_learner_are_counted(
        self, tmp_path: Path, algorithm: str, settings: dict[str, Any]
    ) -> None:
        """The rings of all actors, with room for the worst case of extras, memory and cut episodes."""
        run = make_run(tmp_path, algorithm, **settings)
        spec, store = run.spec, run.handles.store
        experience = experience_bytes(spec)
        moments = math.prod(spec.spaces.observation_shape) if spec.config.normalize_observations else 0

        assert experience > 0
        target = hasattr(spec.config, "target_interval_updates")
        assert machine.shared_bytes(spec.config, store.theta.numel(), moments, target, experience) == bytes_of(run)

    def test_a_run_whose_rollouts_do_not_fit_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In one line, before a folder is made: its theta would fit, its rings do not."""
        free = SimpleNamespace(total=2**30, used=0, free=2**30)
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: free)
        words = ["--env-id", "Catch", "--workers", "2", "--total-steps", "100", "--backend", "serial", "--quiet"]
        words += ["--runs-dir", str(tmp_path / "runs"), "--envs-per-worker", "1000"]

        assert train("asyncrl.impala", [*words, "--t-max", "1000", "--queue-length", "10"]) == 2

        said = capsys.readouterr().err
        assert said.startswith("asyncrl impala: error: shared memory: needs 8.1 GiB, 1.0 GiB free")
        assert said.count("\n") == 1
        assert not (tmp_path / "runs").exists()

    def test_too_little_shared_memory_is_seen(self, tmp_path: Path) -> None:
        """With what to do."""
        found = machine.check_shared_memory(2**60, tmp_path)

        assert found.verdict == "FAIL"
        assert "--shm-size" in found.remedy
        assert machine.check_shared_memory(1, tmp_path).verdict == "ok"

    def test_too_little_memory_is_seen(self) -> None:
        """With what to do; a system that does not tell is not judged."""
        found = machine.check_memory(1000, needed=10_000_000_000, available=2**33)

        assert found.verdict == "FAIL"
        assert found.figure == "1000 workers need at least 9.3 GiB, 8.0 GiB available"
        assert "--workers" in found.remedy
        assert machine.check_memory(1000, needed=2**33 - 1, available=2**33).verdict == "ok"
        assert machine.check_memory(1000, needed=2**60, available=None).verdict == "note"
        found = machine.check_memory(0, needed=2**34, available=2**33)  # all of them in the command's own process
        assert found.figure == "the run needs at least 16.0 GiB, 8.0 GiB available"

    def test_a_worker_needs_more_with_emulators_a_large_network_and_long_rollouts(self) -> None:
        """10 MB, 3 MB an emulator, 8 bytes a parameter, 4 bytes a number of an observation."""
        spaces = Spaces(observation_shape=(4, 42, 42), observation_dtype="float32", actions=3)
        config = RunConfig(envs_per_worker=2, t_max=5)

        for env_id, needed in [("ALE/Pong-v5", 16_000_000), ("Catch", 10_000_000)]:
            taken = machine.worker_bytes(config, EnvSpec(env_id), spaces, parameters=1_000_000)
            assert taken == needed + 8_000_000 + 2 * 5 * 4 * 42 * 42 * 4

    def test_a_learner_needs_memory_for_a_batch_of_all(self) -> None:
        """10 MB, 8 bytes a parameter, and the observations of all workers; beside what these need."""
        spaces = Spaces(observation_shape=(4, 42, 42), observation_dtype="uint8", actions=3)
        config, spec = RunConfig(workers=3, envs_per_worker=2, t_max=5), EnvSpec("Catch")

        learner = machine.learner_bytes(config, spaces, parameters=1_000_000)
        assert learner == 10_000_000 + 8_000_000 + 3 * 2 * 5 * 4 * 42 * 42
        workers = machine.processes_bytes(config, spec, spaces, 1_000_000, learners=0)
        assert workers == 3 * machine.worker_bytes(config, spec, spaces, 1_000_000)
        assert machine.processes_bytes(config, spec, spaces, 1_000_000, learners=1) == workers + learner

        found = machine.check_memory(3, needed=2**34, available=2**33, learners=1)
        assert found.figure == "3 workers and a learner need at least 16.0 GiB, 8.0 GiB available"

    def test_a_learner_needs_files_like_a_worker(self) -> None:
        """As many more as one more worker."""
        figures = [
            machine.check_descriptors(workers, 3, limit=4096, learners=learner).figure
            for workers, learner in ((5, False), (4, True))
        ]

        assert figures[0].replace("5 workers", "4 workers and a learner") == figures[1]

    def test_the_memory_that_is_left_is_read(self, tmp_path: Path) -> None:
        """As Linux writes it; None elsewhere."""
        (tmp_path / "meminfo").write_text("MemTotal:       24684084 kB\nMemAvailable:   23726732 kB\n")

        assert machine.available_bytes(tmp_path / "meminfo") == 23726732 * 1024
        assert machine.available_bytes(tmp_path / "nowhere") is None

    def test_too_few_descriptors_are_seen(self) -> None:
        """100 workers of 3 files each do not fit into 256."""
        found = machine.check_descriptors(100, 3, limit=256)

        assert found.verdict == "FAIL"
        assert "ulimit -n" in found.remedy
        assert machine.check_descriptors(4, 3, limit=4096).verdict == "ok"

    def test_a_full_disk_is_seen(self, tmp_path: Path) -> None:
        """Also where the runs folder does not exist yet."""
        assert machine.check_disk(2**60, tmp_path / "not" / "yet").verdict == "FAIL"
        assert machine.check_disk(1, tmp_path / "not" / "yet").verdict == "ok"

    def test_a_worker_that_never_learnt_is_seen(self, tmp_path: Path) -> None:
        """Its records hold no update; after a while of training they do."""
        idle, busy = make_run(tmp_path / "idle"), make_run(tmp_path / "busy", total_steps=200)
        RecordWriter(idle.spec.folder.worker_file(0)).close()
        machine.train_a_while(busy, 0)

        assert machine.check_speed(idle).verdict == "FAIL"
        found = machine.check_speed(busy)
        assert found.verdict == "ok"
        assert "steps/s training" in found.figure

    @pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
    def test_the_first_rollout_is_measured_however_long_it_takes(
        self, tmp_path: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In an environment so slow that the time is over by then."""
        monkeypatch.setattr(machine, "MEASURED_SECONDS", 0.0)
        run = make_run(tmp_path, algorithm, workers=1)

        machine.train_a_while(run, 0)

        assert (machine.check_speed(run).verdict, run.handles.store.updates > 0) == ("ok", True)

    def test_the_speed_of_an_actor_is_measured_with_its_learner(self, tmp_path: Path) -> None:
        """Alone it would wait for one for ever."""
        run = make_run(tmp_path, "ppo", workers=1, total_steps=3000)
        machine.train_a_while(run, 0)

        found = machine.check_speed(run)
        assert (found.verdict, "steps/s training" in found.figure) == ("ok", True)
        assert run.handles.store.updates > 0

    def test_a_loss_that_is_not_finite_is_seen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """All its gradients are dropped."""
        loss = a3c.A3C.loss

        def infinite(self: Any, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
            value, metrics = loss(self, rollout)
            return value * float("inf"), metrics

        monkeypatch.setattr(a3c.A3C, "loss", infinite)
        exercise = make_run(tmp_path, total_steps=200)
        machine.train_a_while(exercise, 0)

        found = machine.check_speed(exercise)
        assert (found.verdict, "not finite" in found.figure) == ("FAIL", True)


class Lamp(gymnasium.Env[np.ndarray, int]):
    """An environment that keeps its promises: what goes wrong is put into `answer`."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    wrong: str = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        info: Any = [] if self.wrong == "info" else {}
        return self._observe(), info

    def step(self, action: Any) -> Any:
        observation = self._observe()
        wrong = {"reward": True, "infinite": float("inf"), "nan reward": float("nan")}
        reward: Any = wrong.get(self.wrong, float(observation[0]))
        if self.wrong == "raises":
            raise ZeroDivisionError("the bulb is broken")
        over: Any = 0 if self.wrong == "flags" else bool(observation[1] > 0.9 and self.wrong != "endless")
        return observation, reward, over, False, {}

    def _observe(self) -> np.ndarray:
        random = np.random.default_rng() if self.wrong == "seed" else self.np_random
        values = random.random(3)
        if self.wrong == "nan":
            values[0] = np.nan
        if self.wrong == "bounds":
            values[0] = 7.0
        if self.wrong == "shape":
            values = values[:2]
        return values.astype(np.float64 if self.wrong == "dtype" else np.float32)


def lamp(wrong: str = "") -> Lamp:
    """A factory, as users write them."""
    made = Lamp()
    made.wrong = wrong
    return made


def spec_of(wrong: str) -> EnvSpec:
    return EnvSpec(f"{HERE}:lamp", env_kwargs=(("wrong", wrong),))


class TestEnvironment:
    """What an environment returns."""

    @pytest.mark.parametrize("env_id", ["Catch", "Chain", "CartPole-v1", "Pendulum-v1", "ALE/Pong-v5", f"{HERE}:lamp"])
    def test_good_environments_pass(self, env_id: str) -> None:
        """Toys, Gymnasium's, Atari and one's own; continuous actions too."""
        found = verdicts_of(environment.inspect(EnvSpec(env_id), steps=100, seed=1))

        assert "FAIL" not in found.values()
        assert found["a seed repeats an episode"] == "ok"

    @pytest.mark.parametrize(
        ("wrong", "check", "verdict", "said"),
        [
            ("info", "info is a dict", "FAIL", "the info of reset() is a list"),
            ("reward", "rewards are finite numbers", "FAIL", "the reward is a bool"),
            ("infinite", "rewards are finite numbers", "FAIL", "the reward is inf"),
            ("flags", "terminated and truncated are bools", "FAIL", "terminated is a int"),
            ("dtype", "observations are in their space", "FAIL", "float64[3], outside the space float32[3]"),
            ("shape", "observations are in their space", "FAIL", "float32[2], outside the space float32[3]"),
            ("bounds", "observations are in their space", "note", "to 7"),
            ("nan", "random steps", "FAIL", "NaN"),
            ("raises", "random steps", "FAIL", "ZeroDivisionError: the bulb is broken"),
            ("seed", "a seed repeats an episode", "FAIL", "they differ from step 0"),
            ("endless", "ends of episodes", "note", "0 terminated"),
        ],
    )
    def test_a_broken_promise_is_seen(self, wrong: str, check: str, verdict: str, said: str) -> None:
        """Each by its own check, with what to do."""
        found = {finding.check: finding for finding in environment.inspect(spec_of(wrong), steps=50, seed=1)}

        assert found[check].verdict == verdict
        assert said in found[check].figure
        assert found[check].remedy

    def test_a_broken_promise_is_seen_below_a_stack(self) -> None:
        """What an environment returns is inspected before it is preprocessed."""
        spec = dataclasses.replace(spec_of("info"), frame_stack=2)
        found = verdicts_of(environment.inspect(spec, steps=20, seed=1))

        assert found["info is a dict"] == "FAIL"

    @pytest.mark.parametrize(
        ("wrong", "remedy"),
        [
            ("reward", "return a Python float"),
            ("infinite", "look where step() computes it"),
            ("nan reward", "look where step() computes it"),
        ],
    )
    def test_the_remedy_for_a_reward_fits_what_is_wrong_with_it(self, wrong: str, remedy: str) -> None:
        """A NaN is a Python float already."""
        found = {finding.check: finding for finding in environment.inspect(spec_of(wrong), steps=20, seed=1)}

        assert remedy in found["rewards are finite numbers"].remedy

    def test_a_state_that_leaves_something_out_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Catch without its random generator."""
        from asyncrl.envs.toy import Catch

        restore = Catch.restore

        def forgetful(self: Catch, state: dict[str, Any]) -> None:
            random = self._random.bit_generator.state
            restore(self, state)
            self._random.bit_generator.state = random

        monkeypatch.setattr(Catch, "restore", forgetful)

        found = {finding.check: finding for finding in environment.inspect(EnvSpec("Catch"), steps=50, seed=1)}
        assert found["state can be restored"].verdict == "FAIL"

    def test_a_slow_environment_is_noted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Told as hours per million steps."""
        monkeypatch.setattr(environment, "SLOW_STEP_SECONDS", 0.0)

        found = {finding.check: finding for finding in environment.inspect(EnvSpec("Chain"), steps=20, seed=1)}
        assert found["time per step"].verdict == "note"


class TestCommand:
    """`python -m asyncrl doctor` as people type it."""

    WORDS = ("--env-id", "CartPole-v1", "--workers", "2")

    def test_all_checks_pass_here(self, tmp_path: Path) -> None:
        """As a command, without a terminal: plain text of 80 columns, nothing left in the folder."""
        words = [sys.executable, "-m", "asyncrl", "doctor", *self.WORDS, "--runs-dir", str(tmp_path / "runs")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=500)

        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert "FAIL" not in done.stdout
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("algorithm", ["ppo", "apex"])
    def test_the_exchange_of_a_algorithm_is_checked_here(
        self, tmp_path: Path, algorithm: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Of one whose experience goes to a learner."""
        assert main(["--algorithm", algorithm, *self.WORDS, "--runs-dir", str(tmp_path / "runs")]) == 0

        said = capsys.readouterr().out
        assert "FAIL" not in said
        assert "updates and steps are counted once" in said

    @pytest.mark.parametrize("limit", [20, 48])
    def test_too_few_descriptors_for_the_doctor_itself_are_a_finding(self, limit: int) -> None:
        """No traceback, but what to do."""
        command = f"ulimit -n {limit} && exec {sys.executable} -m asyncrl.commands.doctor --env-id Catch"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=500)

        assert (done.returncode, done.stderr) == (1, "")
        assert "ulimit -n" in done.stdout

    def test_json_tells_the_same_and_a_failure_is_exit_code_1(self, capsys: pytest.CaptureFixture[str]) -> None:
        """An environment with a fault, in a real worker process."""
        assert main(["--env-id", f"{HERE}:lamp", "--env-kwargs", "wrong=info", "--workers", "2", "--json"]) == 1

        said = json.loads(capsys.readouterr().out)
        checks = {check["check"]: check for check in said["checks"]}
        assert not said["ok"]
        assert checks["info is a dict"]["verdict"] == "FAIL"
        assert checks["info is a dict"]["remedy"]
        assert checks["each reaches theta exactly once"]["verdict"] == "ok"
        assert checks["each once, pushed at the same time"]["verdict"] == "ok"

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (["--env-id", "Nowhere-v0"], "no environment has the id Nowhere-v0"),
            (["--env-id", "nowhere:lamp"], "nowhere:lamp: there is no module nowhere here"),
            (["--steps", "0"], "--steps must be 1 to"),
            (["--steps", "many"], "--steps takes a whole number, got 'many'"),
            (["--sceptical"], "there is no --sceptical"),
            (["--env-kwargs", "often"], "--env-kwargs takes key=value"),
            (["--algorithm", "a4c"], "there is no algorithm 'a4c'"),
            (["--algorithm", "ppo", "--statistics", "per-worker"], "--statistics per-worker is for workers that learn"),
            (["--algorithm", "n_step_q", "--env-id", "Pendulum-v1"], "Pendulum-v1 has continuous actions"),
        ],
    )
    def test_a_mistake_is_one_line_and_exit_code_2(
        self, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Before anything is checked."""
        assert main(words) == 2

        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"asyncrl doctor: error: {line}")
        assert captured.err.count("\n") == 1


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """The command sets what holds for its process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


HELLOS = {rank: {"host": "AAB"[rank]} for rank in range(3)}
"""Of three ranks on two hosts."""


class TestGroup:
    """Ranks that a launcher has started."""

    def test_ranks_that_are_bound_to_the_same_core_are_noted(self) -> None:
        """By host; a host of its own is none of it."""
        bound = {0: {"cores": [3]}, 1: {"cores": [3]}, 2: {"cores": [3]}}
        finding = group.check_cores(HELLOS, bound)
        assert (finding.verdict, finding.figure) == ("note", "2 ranks on A share 1 cores")
        assert group.check_cores(HELLOS, bound | {1: {"cores": [2]}}).verdict == "ok"

    def test_a_rank_with_several_threads_fails(self) -> None:
        """And what the launchers had left is said."""
        told = {0: {"threads": 1, "left": None}, 1: {"threads": 16, "left": "16"}}
        finding = group.check_threads(told)
        assert finding.verdict == "FAIL"
        assert finding.figure.startswith("OMP_NUM_THREADS was 16 or unset")
        assert finding.figure.endswith("on all but rank 1")
        assert group.check_threads({0: told[0]}).verdict == "ok"

    def test_a_slow_link_is_noted(self) -> None:
        """By its median."""
        link, theta = group.judge_exchanges(1000, [0.04, 0.041, 0.5], [0.06, 0.06, 0.06])
        assert (link.verdict, link.figure) == ("note", "41.00 ms, at most 500.00")
        assert theta.check == "Allreduce of 1,000 numbers"
        assert group.judge_exchanges(1000, [0.001] * 3, [0.06] * 3)[0].verdict == "ok"


@pytest.mark.slow
@pytest.mark.parametrize(("words", "verdict"), [((), "ok"), (("--seed", "7"), "FAIL")])
def test_a_group_of_ranks_is_examined(words: tuple[str, ...], verdict: str) -> None:
    """Rank 1 started by hand, as a launcher would, with the words of rank 0 or others; rank 0 prints."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    place["ASYNCRL_SECRET"] = secrets.token_hex(16)
    command = [sys.executable, "-m", "asyncrl", "doctor", "--env-id", "Catch", "--steps", "10", "--json"]
    ranks = [
        subprocess.Popen(
            [*command, *(words if rank else ())], stdout=subprocess.PIPE, text=True,
            env=os.environ | place | {"RANK": str(rank), "OMP_NUM_THREADS": "16"},
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=240)[0] for rank in ranks]

    checks = {check["check"]: check for check in json.loads(said[0])["checks"]}
    assert said[1] == ""
    assert ranks[1].returncode == 0
    assert checks["settings and versions are the same"]["verdict"] == verdict
    assert checks["one thread per rank"]["figure"].startswith("OMP_NUM_THREADS was 16 when")
    assert ("Allreduce of one number" in checks) == (verdict == "ok")
    assert ranks[0].returncode == int(verdict == "FAIL")
