"""Environments that raise, hang or return nonsense: the run ends, or goes on, as asked, and names the environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.commands.evaluate import main as evaluate
from asyncrl.commands.train import main
from asyncrl.core import user_code
from asyncrl.envs import gymnasium_env
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.records import read_records
from tests.faults.running import environment_of, import_here, running
from tests.support import evaluations_of, status_of, the_run

pytestmark = pytest.mark.faults

SOURCE = """
import random
import gymnasium, numpy as np
class Env(gymnasium.Wrapper):
    steps = 0
    def step(self, action):
        Env.steps += 1
        observation, reward, terminated, truncated, info = super().step(action)
        {trouble}
        return observation, reward, terminated, truncated, info
def make(): return Env(gymnasium.make("CartPole-v1"))
"""
BROKEN = {
    "raises": ("raise RuntimeError('the wheels came off')", "RuntimeError: the wheels came off"),
    "NaN": ("observation = observation * np.nan", "the observation contains NaN or infinity"),
    "shape": ("observation = observation[:3]", "the observation has the shape [3], not [4]"),
    "text": ("reward = 'much'", "the reward is str, not a number"),
    "range": ("reward = 1e39", "the reward is 1e+39"),
}


def named(kind: str) -> str:
    """The environment's id and what it did."""
    return f"module:make {'failed in step()' if kind == 'raises' else 'broke its contract in step'}"


def words(folder: Path, *more: str) -> list[str]:
    """A short serial run of `module:make`."""
    return [
        "--env-id", "module:make", "--backend", "serial", "--workers", "2", "--total-steps", "3000", "--quiet",
        "--runs-dir", str(folder), "--evaluation-interval-steps", "0", "--evaluation-episodes", "2", *more,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_environment_ends_the_run_and_is_named(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a worker's process: exit code 1, one reason with the id, the step and what was wrong, and the traceback."""
    trouble, complaint = BROKEN[kind]
    import_here(tmp_path, SOURCE.format(trouble=f"if Env.steps > 100: {trouble}"), monkeypatch)

    assert main("asyncrl.a3c", words(tmp_path / "runs", "--backend", "local")) == 1

    status = status_of(the_run(tmp_path / "runs"))
    assert status["state"] == "failed"
    assert named(kind) in status["reason"]
    assert complaint in status["reason"]
    assert "BadEnvironment" in status["traceback"]
    assert load_newest(the_run(tmp_path / "runs") / "checkpoints")[0].steps == status["steps"]


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_environment_can_be_rebuilt_instead(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--on-env-error rebuild, and one step in 200 goes wrong: the run finishes, all of it is counted and recorded."""
    trouble, complaint = BROKEN[kind]
    import_here(tmp_path, SOURCE.format(trouble=f"if Env.steps % 200 == 199: {trouble}"), monkeypatch)

    assert main("asyncrl.a3c", words(tmp_path / "runs", "--on-env-error", "rebuild")) == 0

    run = the_run(tmp_path / "runs")
    rows = [row for file in run.glob("worker-*.jsonl") for row in read_records(file)]
    rebuilt = [row["event"] for row in rows if "rebuilt: " in row.get("event", "")]
    assert len(rebuilt) >= 10
    assert all(named(kind) in event and complaint in event for event in rebuilt)
    assert all(len(row["returns"]) == 2 for row in evaluations_of(run))


@pytest.mark.slow
def test_a_slow_environment_does_not_hang(tmp_path: Path) -> None:
    """A rollout takes 8 seconds, a step of all environments 4, and a hang 3: each step is a sign of life."""
    source = SOURCE.format(trouble="time.sleep(1)").replace("import random", "import random, time")
    command = ["--env-id", "module:make", "--workers", "1", "--t-max", "2", "--envs-per-worker", "4", "--quiet"]
    command += ["--total-steps", "8", "--hang-seconds", "3", "--evaluation-episodes", "4", "--max-episode-steps", "1"]
    with running(tmp_path / "runs", *command, env=environment_of(tmp_path, source)) as run:
        run.ends_with(0)

        assert run.status["steps"] == 8
        assert run.restarts == run.status["evaluator_restarts"] == 0


def test_an_environment_that_only_breaks_is_given_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten new ones in a row, without an episode between them, are enough."""
    source = SOURCE.format(trouble="if Env.steps > 100: raise RuntimeError('no wheels at all')")
    import_here(tmp_path, source, monkeypatch)

    assert main("asyncrl.a3c", words(tmp_path / "runs", "--on-env-error", "rebuild")) == 1

    assert "no wheels at all" in status_of(the_run(tmp_path / "runs"))["reason"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cartpole_is_solved_by_environments_that_raise_once_in_2000_steps(tmp_path: Path) -> None:
    """Every fourth episode of a good agent breaks off; it reaches 475 all the same."""
    source = SOURCE.format(trouble="if random.random() < 0.0005: raise RuntimeError('no luck')")
    command = ["--env-id", "module:make", "--workers", "4", "--total-steps", "2e6", "--quiet"]
    command += ["--evaluation-interval-steps", "20_000", "--evaluation-episodes", "20", "--stop-at-score", "475"]
    command += ["--on-env-error", "rebuild"]
    with running(tmp_path / "runs", *command, env=environment_of(tmp_path, source)) as run:
        run.process.wait(timeout=1500)
        run.ends_with(0)

        status = run.status
        assert status["reason"] == "an evaluation reached 475.0"
        rows = [row for file in run.folder.glob("worker-*.jsonl") for row in read_records(file)]
        rebuilt = sum("rebuilt: " in row.get("event", "") for row in rows)
        assert rebuilt > status["steps"] * 0.0005 / 4
        print(f"{rebuilt} environments rebuilt, {status['steps']} steps, {status['seconds']} s")


KEEPER = """
import gymnasium, os, pathlib, uuid
class Env(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.mine = pathlib.Path({place!r}) / f"{{os.getpid()}}-{{uuid.uuid4()}}"
        self.mine.touch()
    def close(self):
        self.mine.unlink()
        super().close()
def make(): return Env(gymnasium.make("CartPole-v1"))
"""


@pytest.mark.parametrize("backend", ["local", "serial"])
def test_every_environment_of_a_run_that_finishes_is_closed(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of workers, evaluator and probe; a simulator may have processes or files of its own."""
    place = tmp_path / "open"
    place.mkdir()
    import_here(tmp_path, KEEPER.format(place=str(place)), monkeypatch)

    assert main("asyncrl.a3c", words(tmp_path / "runs", "--backend", backend, "--envs-per-worker", "3")) == 0

    assert list(place.iterdir()) == []


@pytest.mark.parametrize("backend", ["local", "serial"])
def test_every_environment_of_a_run_that_is_stopped_is_closed(tmp_path: Path, backend: str) -> None:
    """The same, by a signal."""
    place = tmp_path / "open"
    place.mkdir()
    command = [*words(tmp_path / "runs"), "--backend", backend, "--envs-per-worker", "3", "--total-steps", "1e9"]
    with running(tmp_path / "runs", *command, env=environment_of(tmp_path, KEEPER.format(place=str(place)))) as run:
        run.until(lambda: run.status.get("steps", 0) > 0, "the first steps")
        run.until(lambda: len(list(place.iterdir())) == 2 * 3 + 2, "all environments")
        run.process.terminate()
        run.ends_with(143)

    assert list(place.iterdir()) == []


QUITTING = """
import multiprocessing, os, sys, time
import gymnasium, numpy as np
from torch import nn
WHERE, HOW = {where!r}, {how!r}
def trouble(where):
    if where == WHERE:
        if HOW == "quit": quit()
        if HOW == "exit": sys.exit(0)
        if HOW == "cancel": import asyncio; raise asyncio.CancelledError
        if HOW == "abort": os.abort()
        if HOW == "abort evaluator" and multiprocessing.current_process().name == "evaluator": os.abort()
        if HOW == "hang": time.sleep(600)
        if HOW == "print": print("hello from", where); os.write(1, b"and from C\\n")
        if HOW == "float64": import torch; torch.set_default_dtype(torch.float64)
        if HOW == "no_grad": import torch; torch.set_grad_enabled(False)
        if HOW == "environ": os.environ.clear()
        if HOW == "folder": os.makedirs({folder!r}, exist_ok=True); os.chdir({folder!r})
        if HOW == "raise": raise AttributeError("it has no window")
trouble("import")
class Env(gymnasium.Wrapper):
    steps = 0
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        trouble("init")
    def reset(self, **given):
        trouble("reset")
        return super().reset(**given)
    def step(self, action):
        Env.steps += 1
        trouble("step")
        if Env.steps > 100: trouble("later step")
        return super().step(action)
    def close(self):
        trouble("close")
        super().close()
def body(shape):
    trouble("network")
    return nn.Linear(*shape, 8)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a module whose environment and network do something at some place."""

    def write(where: str, how: str) -> None:
        source = QUITTING.format(where=where, how=how, folder=str(tmp_path / "elsewhere"))
        import_here(tmp_path, source, monkeypatch)
        monkeypatch.chdir(tmp_path)

    return write


OWN = ["--env-id", "module:Env", "--network", "module:body"]


@pytest.mark.parametrize("backend", ["local", "serial"])
@pytest.mark.parametrize(
    ("where", "how", "complaint"),
    [
        ("import", "exit", "the import of module:Env: SystemExit: 0"),
        ("init", "quit", "module:Env: Env() failed: SystemExit: None"),
        ("reset", "exit", "failed in reset() after 0 steps of an episode: SystemExit: 0"),
        ("step", "cancel", "failed in step() after 0 steps of an episode: CancelledError"),
        ("network", "exit", "--network module:body failed: SystemExit: 0"),
        ("init", "hang", "module:Env: Env() did not return within 1 seconds"),
        ("reset", "hang", "module:Env's reset() did not return within 1 seconds"),
        ("network", "hang", "--network module:body did not return within 1 seconds"),
    ],
)
def test_user_code_that_ends_the_program_or_hangs_is_refused_before_the_run(
    backend: str,
    where: str,
    how: str,
    complaint: str,
    tmp_path: Path,
    module: Callable[[str, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line, exit code 2 and no folder."""
    module(where, how)

    assert main("asyncrl.a3c", words(tmp_path / "runs", *OWN, "--backend", backend, "--hang-seconds", "1")) == 2

    assert complaint in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "runs").exists()


def test_an_environment_that_crashes_in_the_first_look_is_named(
    tmp_path: Path, module: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends its own process, and no other."""
    module("reset", "abort")

    assert main("asyncrl.a3c", words(tmp_path / "runs", *OWN, "--backend", "local")) == 2

    assert "module:Env's reset(): its process was killed by SIGABRT" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["local", "serial"])
def test_an_environment_that_ends_the_program_in_a_step_is_broken(
    backend: str, tmp_path: Path, module: Callable[[str, str], None]
) -> None:
    """The run has failed, and says so."""
    module("later step", "exit")

    assert main("asyncrl.a3c", words(tmp_path / "runs", *OWN, "--backend", backend)) == 1

    status = status_of(the_run(tmp_path / "runs"))
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    assert "module:Env failed in step()" in status["reason"]
    assert "SystemExit: 0" in status["reason"]


@pytest.mark.filterwarnings("default::asyncrl.envs.spec.EnvironmentNotice")
@pytest.mark.parametrize("backend", ["local", "serial"])
@pytest.mark.parametrize(
    ("where", "how", "line"),
    [
        ("init", "float64", "torch's default dtype"),
        ("reset", "no_grad", "torch's gradient recording"),
        ("step", "environ", "environment variables"),
        ("init", "folder", "the working folder"),
        ("close", "raise", ""),
        ("close", "exit", ""),
    ],
)
def test_an_environment_that_changes_its_process_or_does_not_close_can_be_trained_on(
    backend: str,
    where: str,
    how: str,
    line: str,
    tmp_path: Path,
    module: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Into the folder where the command was started; one line names what is put back."""
    module(where, how)
    monkeypatch.setattr(user_code, "_changed", set())  # so that it is told, whatever this process has been told before

    assert main("asyncrl.a3c", words(Path("runs"), *OWN, "--backend", backend, "--total-steps", "300")) == 0

    assert status_of(the_run(tmp_path / "runs"))["state"] == "finished"
    assert Path.cwd() == tmp_path
    assert line in capsys.readouterr().err


def test_an_evaluator_that_crashes_as_it_closes_is_not_followed(
    tmp_path: Path, module: Callable[[str, str], None]
) -> None:
    """Its last evaluation is made: a successor would make it again, and the best of several would count."""
    module("close", "abort evaluator")

    assert main("asyncrl.a3c", words(tmp_path / "runs", *OWN, "--backend", "local", "--total-steps", "300")) == 0

    run = the_run(tmp_path / "runs")
    assert status_of(run)["evaluator_restarts"] == 0
    steps = [row["steps"] for row in evaluations_of(run)]
    assert len(steps) == len(set(steps)) > 0


def test_an_environment_whose_close_does_not_return_is_left(
    tmp_path: Path,
    module: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One of them: nobody waits for the others."""
    monkeypatch.setattr(gymnasium_env, "CLOSE_SECONDS", 0.5)
    monkeypatch.setattr(gymnasium_env, "_hanging", set())
    module("close", "hang")

    assert main("asyncrl.a3c", words(tmp_path / "runs", *OWN, "--total-steps", "300")) == 0

    assert capfd.readouterr().err.count("module:Env's close() did not return within 0.5 seconds") == 1


def test_what_an_environment_prints_does_not_spoil_the_results_of_a_command(
    tmp_path: Path, module: Callable[[str, str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """Python's prints, and those of C, go to stderr."""
    module("reset", "print")
    assert main("asyncrl.a3c", words(tmp_path / "runs", *OWN, "--total-steps", "300")) == 0
    capfd.readouterr()

    assert evaluate([str(the_run(tmp_path / "runs")), "--episodes", "1", "--json"]) == 0

    out, err = capfd.readouterr()
    assert json.loads(out)["env_id"] == "module:Env"
    assert "hello from reset" in err
    assert "and from C" in err


@pytest.mark.parametrize("how", ["hang", "exit"])
def test_an_environment_that_breaks_after_its_run_is_refused_by_evaluate(
    how: str, tmp_path: Path, module: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the time that its run had."""
    module("nowhere", how)
    assert main("asyncrl.a3c", words(tmp_path / "runs", *OWN, "--total-steps", "300", "--hang-seconds", "1")) == 0
    module("reset", how)

    assert evaluate([str(the_run(tmp_path / "runs")), "--episodes", "1"]) == 2

    assert "module:Env" in capsys.readouterr().err.splitlines()[-1]
