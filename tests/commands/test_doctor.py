"""The doctor: all is well here, and each of its checks sees the fault that it is there for."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl import a3c
from asyncrl.algorithm import algorithm_of
from asyncrl.backends.collective.launch import Launch
from asyncrl.backends.handles import experience_bytes
from asyncrl.backends.processes import start_context
from asyncrl.commands import doctor
from asyncrl.commands.doctor import exercise_run, main
from asyncrl.commands.train import main as train
from asyncrl.config.run_config import RunConfig
from asyncrl.core import kernels, updates
from asyncrl.core.rollout import Rollout
from asyncrl.core.spaces import Spaces
from asyncrl.doctor import Finding, environment, group, learning, room
from asyncrl.doctor.learning import BOOTSTRAPS, COUNTED, NEWEST, ONCE, RATIO, STATISTICS, TARGET, TRUE, WHOLE, NoAnswer
from asyncrl.envs.spec import EnvSpec
from asyncrl.experience import blocks
from asyncrl.experience.batches import Batches
from asyncrl.experience.replay import Replay
from asyncrl.experience.steps import Steps
from asyncrl.parameters import shared
from asyncrl.runtime import collect, loops
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.protocols import Receipt, Update
from asyncrl.runtime.run import Run
from tests.support import free_port, make_run

HERE = __name__


A3C = "asyncrl.a3c"
MEMORY_COUNTS = {NEWEST: 17, TRUE: 5, ONCE: 6, STATISTICS: 1, COUNTED: 17, WHOLE: 80, TARGET: 10}


def judged(run: Run) -> list[Finding]:
    """Let all workers and the learner of a run take turns in this process; what the doctor says of it."""
    initial = run.handles.store.snapshot()
    turns = learning.turns_of(run)
    recorders = {who: learning.Recorder(run, who) for who in dict.fromkeys(turns)}
    for number, who in enumerate(turns):
        recorders[who].turn(number)
    for recorder in recorders.values():
        recorder.close()
    return learning.judge_events(run, initial, [event for one in recorders.values() for event in one.events])


def verdicts(folder: Path, algorithm: str, **settings: Any) -> dict[str, str]:
    """Each check's verdict by its name."""
    return verdicts_of(judged(exercise_run(f"asyncrl.{algorithm}", folder, **settings)))


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
    patch.setattr(shared.SharedStore, "target_view", lambda self: self._target.clone())


def counted_by_updates(patch: pytest.MonkeyPatch) -> None:
    """T runs ahead, and with it learning rate, clip and the end of the run."""
    push = shared.SharedStore.push

    def counting(self: Any, update: Update) -> Receipt:
        self._clock.count(0, 16)
        return push(self, update)

    patch.setattr(shared.SharedStore, "push", counting)


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


class TestLearning:
    """Faults of workers, of actors and one learner, and of a replay memory, each put into the program itself."""

    @pytest.mark.parametrize(
        ("algorithm", "compared"),
        [
            ("a3c", {NEWEST: 6, TRUE: 6, ONCE: 7, STATISTICS: 1, COUNTED: 6, BOOTSTRAPS: 8}),
            ("reinforce", {NEWEST: 6, TRUE: 6, ONCE: 7, STATISTICS: 1, COUNTED: 6}),
            ("one_step_sarsa", {NEWEST: 6, TRUE: 6, ONCE: 7, STATISTICS: 1, COUNTED: 6, BOOTSTRAPS: 6, TARGET: 12}),
            ("a2c", {NEWEST: 9, TRUE: 3, ONCE: 4, STATISTICS: 1, COUNTED: 9, WHOLE: 96, BOOTSTRAPS: 3}),
            ("ppo", {NEWEST: 18, TRUE: 12, ONCE: 13, STATISTICS: 1, COUNTED: 18, WHOLE: 96, RATIO: 3, BOOTSTRAPS: 3}),
            ("impala", {NEWEST: 18, TRUE: 6, ONCE: 7, STATISTICS: 1, COUNTED: 18, WHOLE: 192, RATIO: 3, BOOTSTRAPS: 6}),
            ("gorila", MEMORY_COUNTS | {BOOTSTRAPS: 4}),
            ("apex", MEMORY_COUNTS | {BOOTSTRAPS: 5}),
            ("apex_dpg", MEMORY_COUNTS | {BOOTSTRAPS: 5}),
            ("sac", MEMORY_COUNTS | {BOOTSTRAPS: 5}),
        ],
    )
    def test_all_is_well(self, tmp_path: Path, algorithm: str, compared: dict[str, int]) -> None:
        """No check complains of the program as it is, and none passes for want of anything to look at."""
        found = judged(exercise_run(f"asyncrl.{algorithm}", tmp_path))

        assert [finding for finding in found if finding.verdict != "ok"] == []
        assert {finding.check: int(finding.figure.split()[0]) for finding in found} == compared

    @pytest.mark.parametrize(
        ("algorithm", "fault", "seen", "innocent"),
        [
            ("a3c", applied_twice, (ONCE, COUNTED), (TRUE,)),
            ("a3c", lost, (ONCE, COUNTED), (TRUE,)),
            ("a3c", added_up, (TRUE,), (ONCE, NEWEST)),
            ("a3c", not_pulled, (NEWEST,), (ONCE, TRUE)),
            ("a3c", ended_by_time, (BOOTSTRAPS,), (ONCE,)),
            ("a3c", bootstrapped_from_the_next, (BOOTSTRAPS,), (ONCE,)),
            ("n_step_q", never_refreshed, (TARGET,), (ONCE,)),
            ("n_step_q", always_refreshed, (TARGET,), (ONCE,)),
            ("n_step_q", private_target, (TARGET,), (ONCE,)),
            ("ppo", applied_twice, (ONCE, COUNTED), (WHOLE,)),
            ("impala", lost, (ONCE,), (TRUE,)),
            ("a2c", added_up, (TRUE,), (ONCE,)),
            ("a2c", counted_by_updates, (COUNTED,), (ONCE,)),
            ("a2c", not_pulled, (NEWEST,), (WHOLE, ONCE)),
            ("ppo", not_pulled, (NEWEST, RATIO), (WHOLE, ONCE)),
            ("impala", wrong_ages, (WHOLE,), (ONCE,)),
            ("a2c", torn, (WHOLE,), (ONCE,)),
            ("ppo", read_again, (WHOLE,), (ONCE,)),
            ("ppo", boasted, (RATIO,), (WHOLE,)),
            ("impala", boasted, (RATIO,), (WHOLE,)),
            ("ppo", bootstrapped_from_the_next, (BOOTSTRAPS,), (ONCE,)),
            ("impala", ended_by_time, (BOOTSTRAPS,), (WHOLE,)),
            ("gorila", steps_torn, (WHOLE,), (ONCE,)),
            ("gorila", ended_by_time, (BOOTSTRAPS,), (WHOLE,)),
            ("apex", applied_twice, (ONCE, COUNTED), (WHOLE,)),
            ("gorila", not_pulled, (NEWEST,), (WHOLE,)),
            ("apex", never_refreshed, (TARGET,), (WHOLE, ONCE)),
            ("sac", never_refreshed, (TARGET,), (WHOLE, ONCE)),
            ("sac", steps_torn, (WHOLE,), (ONCE,)),
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
        other = {"shared": "per-worker", "per-worker": "shared"}[asked]
        run = exercise_run(A3C, tmp_path, statistics=asked)
        config = dataclasses.replace(run.spec.config, statistics=other)
        told = dataclasses.replace(run, spec=dataclasses.replace(run.spec, config=config))

        assert verdicts_of(judged(told))[STATISTICS] == "FAIL"

    def test_real_processes_take_turns(self, tmp_path: Path) -> None:
        """Two actors and a learner, started by a fork server: all is well."""
        run = exercise_run("asyncrl.impala", tmp_path)
        initial = run.handles.store.snapshot()

        said = learning.take_turns(start_context("asyncrl.impala"), run)

        findings = learning.judge_events(run, initial, [event for one in said for event in one["events"]])
        assert [finding for finding in findings if finding.verdict != "ok"] == []
        threads = learning.check_threads([one["threads"] for one in said])
        assert (threads.verdict, threads.figure) == ("ok", "torch 1, torch interop 1, cv2 1")

    def test_one_that_breaks_ends_them_all(self, tmp_path: Path) -> None:
        """The others would wait for their turn for ever."""
        with pytest.raises(NoAnswer, match="raised ValueError: no ladder here"):
            learning.ask(start_context(A3C), raise_if_first, exercise_run("asyncrl.a2c", tmp_path), [0, 1])


def push_and_lose(run: Run, worker: int) -> None:
    """The main function of a child whose updates go to a copy of theta."""
    run.handles.store.theta = run.handles.store.theta.clone()
    learning.push_at_once(run, worker)


def push_what_is_read_back(run: Run, worker: int) -> None:
    """The main function of a child that reads its momentum back from shared memory a moment after it wrote it.

    The compiled rule reads nothing back, and by the formula it depends on chance whether another writes in between.
    Only the first worker waits there, the others before they write: if all waited there, they could apply each other's
    updates in turn, each of them once.
    """

    def momentum_sgd(rule: Any, theta: Tensor, gradient: Tensor, statistics: Tensor, eta: float, _: int) -> None:
        time.sleep(0.0005 if worker else 0.0)
        statistics[0].mul_(rule.decay).add_(gradient, alpha=1.0 - rule.decay)
        time.sleep(0.0 if worker else 0.0005)
        theta.add_(statistics[0], alpha=-eta)

    kernels.RULES.clear()
    updates.UpdateRule.momentum_sgd = momentum_sgd
    learning.push_at_once(run, worker)


class TestAtOnce:
    """Processes that push at the same time."""

    def examine(self, folder: Path, child: Any = learning.push_at_once, **settings: Any) -> Finding:
        """By plain SGD, or as the settings say."""
        run = exercise_run(A3C, folder, **doctor.PLAIN_SGD | settings)
        initial = run.handles.store.snapshot()
        learning.ask(start_context(A3C), child, run, range(run.spec.config.workers))
        return learning.check_at_once(run, initial)

    @pytest.mark.parametrize("momentum", [{}, {"optimizer_decay": 1e-30}])
    def test_nothing_is_applied_twice(self, tmp_path: Path, momentum: dict[str, Any]) -> None:
        """Neither without momentum nor if each worker keeps its own, here of one gradient's length."""
        assert self.examine(tmp_path, **momentum).verdict == "ok"

    def test_a_momentum_that_others_write_to_is_seen(self, tmp_path: Path) -> None:
        """What was once the rule of plain SGD as well: a worker reads back from shared memory what it has written."""
        settings = {"optimizer_decay": 1e-30, "statistics": "shared"}
        assert self.examine(tmp_path, push_what_is_read_back, **settings).verdict == "FAIL"

    def test_updates_that_reach_nobody_are_seen(self, tmp_path: Path) -> None:
        """Those of one that has left shared memory; the few that Hogwild loses would be no fault."""
        assert self.examine(tmp_path, push_and_lose).verdict == "FAIL"


def raise_if_first(exercise: Run, number: int) -> None:
    (raise_something if number == 0 else wait_for_ever)(exercise, number)


def bytes_of(run: Run) -> int:
    """Bytes of all tensors that the handles of a run hold."""
    handles = run.handles
    between = handles.experience
    rings = [between, between.steps] if isinstance(between, Replay) else [] if between is None else between.rings
    values = [value for holder in (handles.store, handles.clock, *rings) for value in vars(holder).values()]
    values += vars(handles.moments)["_rows"].values()
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def needed_by(run: Run) -> int:
    """Bytes of shared memory that a run with these settings is said to need."""
    return room.shared_bytes(run.spec, run.handles.store.theta.numel(), experience_bytes(run.spec))


def verdicts_of(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in findings}


def raise_something(exercise: Run, number: int) -> None:
    raise ValueError("no ladder here")


def step_slowly(run: Run, who: int) -> list[int]:
    """As an environment does whose steps take long."""
    for _ in range(6):
        time.sleep(1)
        run.handles.clock.beat(who)
    return [6]


def wait_for_ever(exercise: Run, number: int) -> None:
    import threading

    threading.Event().wait()


class TestProcesses:
    """What is seen of real worker processes."""

    def test_a_second_thread_in_a_worker_is_seen(self) -> None:
        """Into whichever library it was brought."""
        alone, crowded = ({"torch": number, "torch interop": 1, "cv2": 1} for number in (1, 2))
        found = learning.check_threads([alone, crowded])

        assert (found.verdict, found.figure) == ("FAIL", "torch 2, torch interop 1, cv2 1")

    def test_a_child_that_hangs_is_ended(self, tmp_path: Path) -> None:
        """The doctor must end whatever an environment does."""
        with pytest.raises(NoAnswer, match="did not answer within 1 s"):
            learning.ask(start_context(A3C), wait_for_ever, exercise_run(A3C, tmp_path), [0], seconds=1)

    def test_a_child_that_is_only_slow_is_waited_for(self, tmp_path: Path) -> None:
        """Each step is a sign of life."""
        run = exercise_run(A3C, tmp_path)

        assert learning.ask(start_context(A3C), step_slowly, run, [0], seconds=4) == [[6]]


class TestRoom:
    """Memory, files and disk."""

    def test_memory_is_what_control_groups_leave(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The least of all above a process; pages of files can be given up."""
        monkeypatch.setattr(room.psutil, "virtual_memory", lambda: SimpleNamespace(available=9_000))
        assert room.available_memory(tmp_path) == 9_000
        job = tmp_path / "sys/fs/cgroup/job"
        (job / "step").mkdir(parents=True)
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
        for place, most, now in ((job, "5000", "2000"), (job / "step", "max", "1500")):
            (place / "memory.max").write_text(f"{most}\n")
            (place / "memory.current").write_text(f"{now}\n")
            (place / "memory.stat").write_text("anon 700\ninactive_file 300\nactive_file 200\n")

        assert room.available_memory(tmp_path) == 5_000 - 2_000 + 500

    @pytest.mark.parametrize("statistics", ["shared", "per-worker"])
    def test_shared_memory_is_what_the_store_takes(self, tmp_path: Path, statistics: str) -> None:
        """The sum of all tensors of a run, byte by byte."""
        run = exercise_run(A3C, tmp_path, statistics=statistics, workers=5, normalize_observations=True)

        assert needed_by(run) == bytes_of(run)

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

        assert needed_by(run) == bytes_of(run)

    @pytest.mark.parametrize(
        ("place", "here"), [({}, 3), ({"RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2"}, 2)]
    )
    @pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
    def test_each_rank_on_this_machine_has_a_store_of_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, place: dict[str, str], here: int
    ) -> None:
        """And moments and counters, but no rings. All are here, unless a launcher says otherwise."""
        for name, value in place.items():
            monkeypatch.setenv(name, value)
        run = make_run(tmp_path, algorithm, backend="collective", workers=3, normalize_observations=True)
        needed: list[int] = []

        def note(size: int) -> Finding:
            needed.append(size)
            return Finding("shared memory", "ok", "")

        monkeypatch.setattr(room, "check_shared_memory", note)
        found = {one.check: one for one in room.check_room(run.spec, run.handles.store.theta.numel(), tmp_path)}

        handles = run.handles
        held = [*vars(handles.store).values(), *vars(handles.clock).values(), *vars(handles.moments)["_rows"].values()]
        assert needed == [here * sum(one.nbytes for one in held if isinstance(one, Tensor) and one.is_shared())]
        assert found["memory"].figure.startswith(f"{here} ranks")

    @pytest.mark.parametrize(
        ("backend", "launch", "checked"),
        [
            ("local", None, ("local", 2)),
            ("collective", None, ("collective", 2)),
            ("local", Launch("torchrun", 0, 3, "tcp://hostA:1"), ("collective", 3)),
        ],
    )
    def test_the_room_is_that_of_the_planned_run(
        self, monkeypatch: pytest.MonkeyPatch, backend: Any, launch: Launch | None, checked: tuple[str, int]
    ) -> None:
        """Of its ranks, if it has any."""
        plans: list[Plan] = []
        monkeypatch.setattr(doctor, "check_group", lambda *_: [])
        monkeypatch.setattr(doctor, "check_room", lambda plan, *_: plans.append(plan) or [])
        monkeypatch.setattr(doctor, "raised_limit", lambda: 20)  # too few files: nothing else is checked

        doctor.find(doctor.Config("ppo", "Catch", workers=2, backend=backend), launch, [])

        assert [(plan.config.backend, plan.config.workers) for plan in plans] == [checked]

    def test_a_run_whose_rollouts_do_not_fit_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In one line, before a folder is made: its theta would fit, its rings do not."""
        free = SimpleNamespace(total=2**30, used=0, free=2**30)
        monkeypatch.setattr(room.shutil, "disk_usage", lambda _: free)
        words = ["--env-id", "Catch", "--workers", "2", "--total-steps", "100", "--backend", "serial", "--quiet"]
        words += ["--runs-dir", str(tmp_path / "runs"), "--envs-per-worker", "1000"]

        assert train("asyncrl.impala", [*words, "--t-max", "1000", "--queue-length", "10"]) == 2

        said = capsys.readouterr().err
        assert said.startswith("asyncrl impala: error: shared memory: needs 8.1 GiB, 1.0 GiB free")
        assert said.count("\n") == 1
        assert not (tmp_path / "runs").exists()

    def test_too_little_shared_memory_is_seen(self, tmp_path: Path) -> None:
        """With what to do."""
        found = room.check_shared_memory(2**60, tmp_path)

        assert found.verdict == "FAIL"
        assert "--shm-size" in found.remedy
        assert room.check_shared_memory(1, tmp_path).verdict == "ok"

    @pytest.mark.parametrize(
        ("free", "limit", "wrong"),
        [
            (2**33, 4096, {}),
            (2**24, 4096, {"memory": "3 workers and a learner need at least 39 MiB, 16 MiB available"}),
            (2**33, 80, {"file descriptors": r"3 workers and a learner need about \d+, 80 allowed"}),
        ],
    )
    def test_too_little_is_seen(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, limit: int, wrong: dict[str, str]
    ) -> None:
        """Of memory or of files, with what to do."""
        monkeypatch.setattr(room.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
        monkeypatch.setattr(room, "raised_limit", lambda: limit)
        run = make_run(tmp_path, "ppo", workers=3, backend="local")

        found = room.check_room(run.spec, run.handles.store.theta.numel(), tmp_path)

        failed = {finding.check: finding for finding in found if finding.verdict == "FAIL"}
        assert failed.keys() == wrong.keys()
        for check, figure in wrong.items():
            assert re.fullmatch(figure, failed[check].figure)
            assert "--workers" in failed[check].remedy

    def test_checkpoints_of_a_resumed_run_are_there_already(self, tmp_path: Path) -> None:
        """Its disk need not have room for them twice."""
        run, needed = make_run(tmp_path, "a3c"), []
        config = dataclasses.replace(run.spec.config, resume=str(run.spec.folder.path))
        there = run.spec.folder.checkpoints / "step_000000000100"
        there.mkdir()
        (there / "weights.safetensors").write_bytes(bytes(5_000))
        for plan in (run.spec, dataclasses.replace(run.spec, config=config)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(room, "check_disk", lambda bytes_needed, folder: needed.append(bytes_needed))
                list(room.check_room(plan, 10_000, run.spec.folder.path))

        assert needed[0] - needed[1] == 5_000

    def test_processes_need_memory_for_emulators_parameters_and_rollouts(self) -> None:
        """10 MB, 3 MB an emulator, 8 bytes a parameter, 4 bytes a number of an observation; a learner all rollouts."""
        spaces = Spaces(observation_shape=(4, 42, 42), observation_dtype="float32", actions=3)
        config, rollout = RunConfig(workers=3, envs_per_worker=2, t_max=5), 2 * 5 * 4 * 42 * 42 * 4

        for env_id, emulators in [("ALE/Pong-v5", 6_000_000), ("Catch", 0)]:
            alone, both = (
                room.processes_bytes(Plan(f"asyncrl.{name}", config, EnvSpec(env_id), spaces), 1_000_000, workers=3)
                for name in ("a3c", "ppo")
            )
            assert alone == 3 * (10_000_000 + emulators + 8_000_000 + rollout)
            assert both == alone + 10_000_000 + 8_000_000 + 3 * rollout

    def test_a_full_disk_is_seen(self, tmp_path: Path) -> None:
        """Also where the runs folder does not exist yet."""
        assert room.check_disk(2**60, tmp_path / "not" / "yet").verdict == "FAIL"
        assert room.check_disk(1, tmp_path / "not" / "yet").verdict == "ok"

    @pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
    def test_the_first_rollout_is_measured_however_long_it_takes(
        self, tmp_path: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In an environment so slow that the time is over by then; an actor has turns with its learner."""
        monkeypatch.setattr(environment, "MEASURED_SECONDS", 0.0)
        run = make_run(tmp_path, algorithm, workers=1)

        (found,) = environment.measure_speed(run, 0)

        assert (found["verdict"], "steps/s training" in found["figure"]) == ("ok", True)
        assert run.handles.store.updates > 0

    def test_a_loss_that_is_not_finite_is_seen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """All its gradients are dropped."""
        loss = a3c.A3C.loss

        def infinite(self: Any, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
            value, metrics = loss(self, rollout)
            return value * float("inf"), metrics

        monkeypatch.setattr(a3c.A3C, "loss", infinite)
        (found,) = environment.measure_speed(make_run(tmp_path, total_steps=200), 0)

        assert (found["verdict"], "not finite" in found["figure"]) == ("FAIL", True)


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
    return EnvSpec(f"{HERE}:lamp", env_kwargs=(f"wrong={wrong!r}",))


RULES = "Gymnasium's rules"


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
            ("info", "random steps", "FAIL", "was not a dictionary"),
            ("reward", RULES, "FAIL", "must be a float, int"),
            ("infinite", "random steps", "FAIL", "the reward is inf"),
            ("flags", RULES, "FAIL", "Expects `terminated` signal to be a boolean, actual type: <class 'int'>"),
            ("dtype", RULES, "FAIL", "dtype to be float32, actual type: float64"),
            ("shape", "random steps", "FAIL", "[2]"),
            ("bounds", RULES, "note", "is not within the observation space"),
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
        spec = dataclasses.replace(spec_of("flags"), frame_stack=2)
        found = verdicts_of(environment.inspect(spec, steps=20, seed=1))

        assert found[RULES] == "FAIL"

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
        assert "experience arrives whole" in said

    @pytest.mark.parametrize("limit", [20, 48])
    def test_too_few_descriptors_for_the_doctor_itself_are_a_finding(self, limit: int) -> None:
        """No traceback, but what to do."""
        command = f"ulimit -n {limit} && exec {sys.executable} -m asyncrl doctor --env-id Catch"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=500)

        assert (done.returncode, done.stderr) == (1, "")
        assert "ulimit -n" in done.stdout

    def test_json_tells_the_same_and_a_failure_is_exit_code_1(self, capsys: pytest.CaptureFixture[str]) -> None:
        """An environment with a fault, in a real worker process."""
        assert main(["--env-id", f"{HERE}:lamp", "--env-kwargs", "wrong=flags", "--workers", "2", "--json"]) == 1

        said = json.loads(capsys.readouterr().out)
        checks = {check["check"]: check for check in said["checks"]}
        assert not said["ok"]
        assert checks[RULES]["verdict"] == "FAIL"
        assert checks[RULES]["remedy"]
        assert checks["each reaches theta exactly once"]["verdict"] == "ok"
        assert checks["no concurrent update applied twice"]["verdict"] == "ok"

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
            (["--algorithm", "impala", "--backend", "collective"], "asyncrl impala does not wait for its actors"),
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


class TestGroup:
    """Ranks that a launcher has started."""

    def test_ranks_that_are_bound_to_the_same_core_are_noted(self) -> None:
        """By host; a host of its own is none of it."""
        bound = {rank: {"host": "AAB"[rank], "cores": [3]} for rank in range(3)}
        finding = group.check_cores(bound)
        assert (finding.verdict, finding.figure) == ("note", "2 ranks on A share 1 cores")
        assert group.check_cores(bound | {1: {"host": "A", "cores": [2]}}).verdict == "ok"

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


def two_ranks(*words: str, more: tuple[str, ...] = ()) -> list[subprocess.Popen[str]]:
    """The doctor as a launcher would start it twice; rank 1 has `more` words."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    place["ASYNCRL_SECRET"] = secrets.token_hex(16)
    return [
        subprocess.Popen(
            [sys.executable, "-m", "asyncrl", "doctor", *words, *(more if rank else ())],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | place | {"RANK": str(rank), "OMP_NUM_THREADS": "16"},
        )
        for rank in range(2)
    ]  # fmt: skip


@pytest.mark.slow
def test_ranks_do_not_wait_for_a_rank_0_that_has_nothing_to_examine() -> None:
    """It says why in one line, and the others end at once, in silence."""
    ranks = two_ranks("--backend", "collective", "--env-id", "NoSuch-v0")
    said = [rank.communicate(timeout=240) for rank in ranks]

    assert [rank.returncode for rank in ranks] == [2, 0]
    assert "NoSuch" in said[0][1]
    assert len(said[0][1].splitlines()) == 1
    assert said[1] == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize(("words", "verdict"), [((), "ok"), (("--seed", "7"), "FAIL")])
def test_a_group_of_ranks_is_examined(words: tuple[str, ...], verdict: str) -> None:
    """Rank 1 started by hand, as a launcher would, with the words of rank 0 or others; rank 0 prints."""
    ranks = two_ranks("--env-id", "Catch", "--steps", "10", "--json", more=words)
    said = [rank.communicate(timeout=240)[0] for rank in ranks]

    checks = {check["check"]: check for check in json.loads(said[0])["checks"]}
    assert said[1] == ""
    assert ranks[1].returncode == 0
    assert checks["settings and versions are the same"]["verdict"] == verdict
    assert checks["one thread per rank"]["figure"].startswith("OMP_NUM_THREADS was 16 when")
    assert ("Allreduce of one number" in checks) == (verdict == "ok")
    assert ranks[0].returncode == int(verdict == "FAIL")
