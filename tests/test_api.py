"""The Python API: from a program, with nothing of the program changed."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import asyncrl
from asyncrl.api.playing import load_run
from asyncrl.api.request import request_for
from asyncrl.api.runs import Rows
from asyncrl.catalog import ALGORITHMS
from asyncrl.commands.train import configure
from asyncrl.core.extras import to_install
from asyncrl.runtime.protocols import EVALUATOR, name_of
from asyncrl.runtime.seeding import ENVIRONMENT, NO_PART, derive
from asyncrl.storage.records import read_records
from asyncrl.storage.run_folder import RunFolder
from tests.support import status_of

HERE = __name__
ROOT = Path(__file__).parent.parent
TINY: dict[str, Any] = {
    "backend": "serial", "workers": 2, "total_steps": 1000, "evaluation_interval_steps": 0, "evaluation_episodes": 2,
}  # fmt: skip


class Screen(gymnasium.Env[Any, Any]):
    """A colour screen on which a light moves; the action nearest to it is paid. Actions begin at 5."""

    observation_space = gymnasium.spaces.Box(0, 255, (40, 48, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(3, start=5)

    def _observe(self) -> Any:
        screen = np.zeros((40, 48, 3), np.uint8)
        screen[:, 16 * self.light : 16 * self.light + 16] = 50 + 3 * self.at
        return screen

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at, self.light = 0, int(self.np_random.integers(3))
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        reward = float(action - 5 == self.light)
        self.at, self.light = self.at + 1, int(self.np_random.integers(3))
        return self._observe(), reward, self.at == 20, False, {}


class Levers(gymnasium.Env[Any, Any]):
    """One of three lamps shines: turn its lever to where the level is, which pays 1."""

    observation_space = gymnasium.spaces.Dict(
        lamp=gymnasium.spaces.Discrete(3), level=gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    )
    action_space = gymnasium.spaces.MultiDiscrete([3, 2])

    def _observe(self) -> Any:
        self.lamp = int(self.np_random.integers(3))
        self.level = self.np_random.random(1).astype(np.float32)
        return {"lamp": self.lamp, "level": self.level}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        reward = float(action[0] == self.lamp and action[1] == (self.level[0] > 0.5))
        self.at += 1
        return self._observe(), reward, self.at == 20, False, {}


class Breaking(Screen):
    """Raises in its third step."""

    def step(self, action: Any) -> Any:
        if self.at == 2:
            raise ValueError("the light went out")
        return super().step(action)


class BreakingLater(Breaking):
    """The same, once it may; all of them are in this process."""

    may_break = threading.Event()

    def step(self, action: Any) -> Any:
        if self.at == 2:
            self.may_break.wait()
        return super().step(action)


def state_of_the_process() -> dict[str, Any]:
    """What a call must leave as it was."""
    numbers = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]
    return {
        "threads": torch.get_num_threads(),
        "handlers": {number: signal.getsignal(number) for number in numbers},
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "variables": {name: value for name, value in os.environ.items() if "THREADS" in name},
        "random": torch.random.get_rng_state().tolist(),
    }


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with threads, a handler and a mask of its own, which are the same afterwards."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        before = state_of_the_process()
        yield
        assert state_of_the_process() == before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTERM, handler)
        torch.set_num_threads(1)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> asyncrl.Run:
    """CartPole, solved."""
    return asyncrl.train(
        "a2c", env_id="CartPole-v1", backend="serial", workers=2, total_steps=60_000, stop_at_score=475,
        evaluation_interval_steps=10_000, runs_dir=tmp_path_factory.mktemp("runs"),
    )  # fmt: skip


def play(policy: asyncrl.Policy, environment: gymnasium.Env[Any, Any], seed: int) -> float:
    """The return of one episode in Gymnasium's environment."""
    observation, _ = environment.reset(seed=seed)
    state, score = None, 0.0
    while True:
        action, state = policy.act(observation, state)
        observation, reward, terminated, truncated, _ = environment.step(action)
        score += float(reward)
        if terminated or truncated:
            return score


def test_cartpole_is_solved_and_its_policy_plays_in_gymnasiums_environment(cartpole: asyncrl.Run) -> None:
    """The two calls of the API, and what a run says of itself."""
    assert cartpole.state == "finished"
    assert cartpole.best_score is not None
    assert cartpole.best_score >= 400
    assert status_of(cartpole.path)["best_score"] == cartpole.best_score
    assert max(row["mean"] for row in cartpole.evaluations()) == cartpole.best_score

    policy = asyncrl.load(cartpole)

    environment = gymnasium.make("CartPole-v1")
    assert np.mean([play(policy, environment, seed) for seed in range(10)]) >= 300
    assert (policy.algorithm, policy.env_id, policy.greedy) == ("asyncrl.a2c", "CartPole-v1", True)


def test_a_run_plays_whole_episodes(cartpole: asyncrl.Run) -> None:
    """The same seed gives the same ones."""
    result = cartpole.evaluate(episodes=3, seed=5)

    assert len(result.returns) == 3
    assert result == cartpole.evaluate(episodes=3, seed=5)
    assert result.summary()["mean"] >= 300
    assert cartpole.evaluate(episodes=1, greedy=False).policy == "sampled"


def test_who_only_plays_needs_no_room_for_rollouts(cartpole: asyncrl.Run) -> None:
    """They can take gigabytes, and nobody puts any."""
    assert load_run(cartpole.path).run.handles.experience is None


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("backend", ["serial", "local"])
def test_threads_signals_and_random_numbers_are_as_before(
    tmp_path: Path, backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of training, evaluating, loading and acting; and nothing is printed."""
    run = asyncrl.train("a3c", env_id="Catch", **TINY | {"backend": backend}, runs_dir=tmp_path)
    run.evaluate(episodes=2)
    asyncrl.load(run).act(np.zeros(50, np.float32))

    assert run.state == "finished"
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("unchanged")
def test_threads_and_signals_are_as_before_a_mistake(tmp_path: Path) -> None:
    """An environment that does not exist, and one that breaks."""
    with pytest.raises(asyncrl.UsageError, match="no environment has the id Nowhere-v0"):
        asyncrl.train("a3c", env_id="Nowhere-v0", runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(asyncrl.RunFailed):
        asyncrl.train("a3c", env_id=f"{HERE}:Breaking", **TINY, runs_dir=tmp_path)


def test_what_is_asked_for_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder, the environment and the course."""
    run = asyncrl.train("a3c", env_id="Catch", **TINY, runs_dir=tmp_path, quiet=False)

    assert f"run folder: {run.path}" in capsys.readouterr().out


def test_a_run_that_broke_raises_its_reason_with_the_traceback(tmp_path: Path) -> None:
    """The one of the process that raised."""
    with pytest.raises(asyncrl.RunFailed, match="the light went out") as failed:
        asyncrl.train("a3c", env_id=f"{HERE}:Breaking", **TINY | {"backend": "local"}, runs_dir=tmp_path)

    assert failed.value.traceback is not None
    assert "ValueError: the light went out" in failed.value.traceback
    assert failed.value.__notes__ == [failed.value.traceback]
    assert status_of(failed.value.path)["state"] == "failed"
    sent = pickle.loads(pickle.dumps(failed.value))  # as from a pool's process
    assert (str(sent), sent.path, sent.traceback) == (str(failed.value), failed.value.path, failed.value.traceback)


@pytest.mark.parametrize(
    ("algorithm", "settings", "line"),
    [
        ("a4c", {}, "there is no algorithm 'a4c'"),
        ("PPO", {}, "there is no algorithm 'PPO'; perhaps you meant ppo"),
        ("a3c", {"n_steps": 128}, "there is no setting n_steps; perhaps you meant t_max"),
        ("a3c", {"buffer_size": 128}, "there is no setting buffer_size; other algorithms call it memory_steps"),
        ("a3c", {"worker": 2}, "there is no setting worker; perhaps you meant workers"),
        ("a3c", {"workers": "two"}, "workers takes a whole number, got 'two'"),
        ("a3c", {"workers": 2.5}, "workers takes int, got 2.5"),
        ("a3c", {"workers": True}, "workers takes int, got True"),
        ("a3c", {"workers": 0}, "--workers must be at least 1"),
        ("a3c", {"backend": "seriel"}, "backend takes local, serial, collective or ray, got 'seriel'"),
        ("a3c", {"hidden_sizes": 64}, "hidden_sizes takes several values, got 64"),
        ("a3c", {"config": asyncrl.a3c.A3C.Config(), "workers": 2}, "not both"),
        ("a3c", {"config": asyncrl.ppo.PPO.Config()}, "asyncrl.a3c takes a asyncrl"),
        ("one_step_q", {"env_id": "Pendulum-v1"}, "asyncrl one_step_q chooses between discrete ones"),
        ("sac", {"env_id": "CartPole-v1"}, "asyncrl sac chooses vectors of numbers"),
        (None, {"workers": 2}, "name an algorithm first: a2c, "),
        ("a3c", {"config": "nowhere.toml"}, "--config nowhere.toml cannot be read: No such file or directory"),
        ("a3c", {"config": {"env_id": "Chain"}}, "config takes the path of a file or a run, got {'env_id': 'Chain'}"),
        (None, {"resume": True}, "resume takes the path of a file or a run, got True"),
        ("a3c", {"resume": "nowhere"}, "is not a run"),
        ("a3c", {"env_id": Screen()}, "env_id takes an id, a class or a function that makes an environment"),
        (
            "a3c",
            {"env": ["Catch"]},
            "env_id takes an id, a class or a function that makes an environment: a run",
        ),
        ("a3c", {"env": gymnasium.spec("CartPole-v1")}, 'env_id takes its id, "CartPole-v1": each worker has its own'),
        (
            "a3c",
            {"network": nn.Linear(4, 4)},
            "network takes a name or a function that makes one, not a Linear: each worker has",
        ),
        ("a3c", {"env_id": dict}, "dict() returned a dict, not a gymnasium.Env"),
        ("a3c", {"network": "mpl"}, "--network takes auto, small, board, paper, nature, mlp or module:factory"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    tmp_path: Path, algorithm: str | None, settings: Any, line: str
) -> None:
    """Before a folder is made."""
    if "config" not in settings:
        settings = {"runs_dir": tmp_path} | settings

    with pytest.raises(asyncrl.UsageError, match=re.escape(line)):
        asyncrl.train(algorithm, **settings)

    assert list(tmp_path.iterdir()) == []


def test_settings_are_taken_as_a_program_has_them(tmp_path: Path) -> None:
    """Lists, scalars of numpy, 1e3, paths, dictionaries."""
    settings = TINY | {"env_id": "Chain", "total_steps": 1e3, "workers": np.int64(2), "learning_rate": np.float32(0.5)}
    run = asyncrl.train(asyncrl.a3c.A3C, **settings, hidden_sizes=[8], env_kwargs={"limit": 9}, runs_dir=tmp_path)

    assert run.path.parent == tmp_path / "a3c" / "Chain"
    text = (run.path / "config.json").read_text()
    assert '"limit=9"' in text
    assert '"total_steps": 1000,' in text


def test_a_configuration_is_taken_as_it_is(tmp_path: Path) -> None:
    """No preset changes it."""
    config = asyncrl.a3c.A3C.Config(env_id="Catch", **TINY, runs_dir=str(tmp_path), envs_per_worker=3)
    run = asyncrl.train("a3c", config=config)

    assert '"envs_per_worker": 3' in (run.path / "config.json").read_text()


@pytest.mark.parametrize("count", ["many", 2.5])
def test_environments_that_cannot_be_counted_are_refused(count: object) -> None:
    """As on the command line."""
    with pytest.raises(asyncrl.UsageError, match=r"n_envs takes (a whole number|int)"):
        asyncrl.train("a3c", env_id="Catch", n_envs=count)


TOML = """
algorithm = "a3c"
env-id = "Catch"
n_envs = 6
stop_at_score = "none"
total_steps = "1e6"
[network]
lr = 1
hidden_sizes = [8]
[env_kwargs]
rows = 5
"""


def test_a_file_has_the_settings_that_are_not_given_as_on_the_command_line(tmp_path: Path) -> None:
    """Under any of their names; it may name the algorithm."""
    (tmp_path / "mine.toml").write_text(TOML)

    more = {"workers": 3, "learning_rate": 0.5, "env_kwargs": {}}
    config = request_for(None, tmp_path / "mine.toml", more, quiet=True).resolved().config

    words = ["--config", str(tmp_path / "mine.toml"), "--workers", "3", "--lr", "0.5", "--env-kwargs", "--quiet"]
    assert config == configure("asyncrl.a3c", words).config
    assert (config.workers, config.envs_per_worker, config.stop_at_score, config.env_kwargs) == (3, 2, None, ())
    with pytest.raises(asyncrl.UsageError, match="has settings for a3c, not for ppo"):
        asyncrl.train("ppo", config=tmp_path / "mine.toml")
    for line, message in (
        ('workers = "two"', "workers takes a whole number, got 'two'"),
        ("env_kwargs = 5", "env_kwargs takes several values, got 5"),
    ):
        (tmp_path / "mine.toml").write_text(f'algorithm = "a3c"\n{line}')
        with pytest.raises(asyncrl.UsageError, match=message):
            asyncrl.train(config=tmp_path / "mine.toml")


def test_flags_override_a_files_number_of_all_environments(tmp_path: Path) -> None:
    """Two of the three say all."""
    (tmp_path / "mine.toml").write_text(TOML)

    settings = request_for(None, tmp_path / "mine.toml", {"workers": 2, "envs_per_worker": 5}).settings
    assert (settings["workers"], settings["envs_per_worker"]) == (2, 5)

    (tmp_path / "mine.toml").write_text(TOML.replace("n_envs", "workers = 2\nn_envs"))
    settings = request_for(None, tmp_path / "mine.toml", {"envs_per_worker": 5}).settings
    assert (settings["workers"], settings["envs_per_worker"]) == (2, 5)


def test_a_run_that_was_resumed_on_another_backend_can_be_loaded(tmp_path: Path) -> None:
    """It keeps settings that its first backend had."""
    run = asyncrl.train("a3c", env_id="Catch", **TINY, schedule="random", runs_dir=tmp_path)
    asyncrl.train(resume=run.path, backend="local", total_steps=1500)

    assert asyncrl.load(run).act is not None
    assert run.evaluate(episodes=1).lengths


def test_a_program_may_have_another_default_device(tmp_path: Path) -> None:
    """All is on the CPU; another default type of numbers is refused in one line."""
    with torch.device("meta"):
        run = asyncrl.train("a3c", env_id="CartPole-v1", **TINY, lstm_cells=4, runs_dir=tmp_path)
        policy = asyncrl.load(run)
        observation = policy.spaces.observation_shape
        action, state = policy.act(np.zeros(observation, np.float32))
        assert action in range(policy.spaces.actions)
        policy.act(np.zeros(observation, np.float32), policy.restart(state, [True]))
        assert torch.empty(1).is_meta
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(asyncrl.UsageError, match=r"torch's default dtype is torch.float64 here: asyncrl needs"):
            asyncrl.train("a3c", env_id="Catch", **TINY, runs_dir=tmp_path)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_run_is_made_again_by_its_folder(tmp_path: Path) -> None:
    """With the same settings; here it repeats itself, since it is serial."""
    runs = {"runs_dir": tmp_path}
    first = asyncrl.train("a3c", env_id="Catch", **TINY, **runs, seed=5, hidden_sizes=[8])
    again = asyncrl.train(config=first.path, **runs, run_name="again")

    assert again.path.name == "again"
    stored = [status_of(run.path) for run in (first, again)]
    assert stored[0]["worker_steps"] == stored[1]["worker_steps"]
    assert first.best_score == again.best_score


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"learning_rate": lambda left: 1e-3 * left}, {"learning_rate": 1e-3, "learning_rate_schedule": "0:1,1:0"}),
        ({"epsilons": [(0, 1.0), (1, 0.1)]}, {"epsilon_schedule": "0:1,1:0.1"}),
        ({"n_envs": 6, "workers": 3}, {"workers": 3, "envs_per_worker": 2}),
        ({"workers": 3, "envs_per_worker": 1}, {"workers": 3, "envs_per_worker": 1}),
        ({"envs_per_worker": 3}, {"workers": 2, "envs_per_worker": 3}),
        ({"learning_rate": 1e-3}, {"learning_rate": 1e-3, "learning_rate_schedule": "0:1,1:0.5"}),
    ],
)
def test_what_a_call_gives_by_another_name_overrides_a_runs_settings(
    tmp_path: Path, given: dict[str, Any], taken: dict[str, Any]
) -> None:
    """Schedules as functions or points, and the number of all environments; the rest stays."""
    words = TINY | {"learning_rate_schedule": "0:1,1:0.5", "total_steps": 100}
    run = asyncrl.train("one_step_q", env_id="Catch", **words, runs_dir=tmp_path)

    settings = request_for(None, run.path, given).settings

    assert {name: settings[name] for name in taken} == taken
    assert settings["env_id"] == "Catch"


def test_a_run_goes_on_where_it_was_left(tmp_path: Path) -> None:
    """By its folder, or the newest of its name; one that is finished is given as it is."""
    words = TINY | {"env_id": "Catch", "runs_dir": tmp_path, "run_name": "one"}
    first = asyncrl.train("a3c", **words, resume="auto")
    again = asyncrl.train("a3c", **words, resume="auto")
    further = asyncrl.train("a3c", resume=first.path, total_steps=2000)

    assert again == first
    assert further.path == first.path
    assert status_of(first.path)["steps"] >= 2000


@pytest.mark.parametrize("backend", ["serial", "local"])
def test_ctrl_c_ends_the_run_in_order_and_is_raised(
    tmp_path: Path, backend: str, request: pytest.FixtureRequest
) -> None:
    """There is a last checkpoint; the signal comes when the run is at work."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def interrupt() -> None:
        while not any('"running"' in file.read_text() for file in tmp_path.glob("*/*/*/status.json")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        asyncrl.train("a3c", **TINY | {"env_id": "Catch", "total_steps": 1e9, "backend": backend}, runs_dir=tmp_path)
    thread.join()

    (run,) = tmp_path.glob("*/*/*")
    assert (status_of(run)["state"], status_of(run)["reason"]) == ("stopped", "received SIGINT")
    assert list((run / "checkpoints").glob("step_*"))


def test_another_thread_may_train(tmp_path: Path) -> None:
    """Without signals, which are the main thread's."""
    ended: list[asyncrl.Run] = []
    thread = threading.Thread(
        target=lambda: ended.append(asyncrl.train("a3c", env_id="Catch", **TINY, runs_dir=tmp_path))
    )
    thread.start()
    thread.join()

    assert [run.state for run in ended] == ["finished"]


def test_evaluations_and_progress_are_told_while_it_trains(tmp_path: Path) -> None:
    """In their order, as typed rows and copies; the same rows are read afterwards, also as a frame."""
    evaluations: list[asyncrl.Evaluation] = []
    progress: list[asyncrl.Progress] = []
    run = asyncrl.train(
        "a3c", env_id="Catch", **TINY | {"evaluation_interval_steps": 400}, runs_dir=tmp_path,
        on_evaluation=evaluations.append, on_progress=progress.append,
    )  # fmt: skip

    assert [row["steps"] // 400 for row in evaluations] == [1, 2, 2]  # the last one is of the end
    assert evaluations == run.evaluations()
    assert progress[-1].steps >= 1000
    assert progress[-1].best_score == run.best_score
    frame = run.evaluations().frame()
    assert list(frame["mean"]) == [row["mean"] for row in evaluations]
    assert list(run.records().frame()["steps"])[-1] == progress[-1].steps


def test_a_frame_needs_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it there is one line."""
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(asyncrl.UsageError, match=re.escape(f"a frame needs pandas: {to_install('', 'pandas')}")):
        Rows([{"mean": 1.0}]).frame()


ENDLESS = TINY | {"env_id": "Catch", "total_steps": 1e9, "evaluation_interval_steps": 400}


def test_a_function_that_returns_false_ends_the_run_in_order(tmp_path: Path) -> None:
    """With a last checkpoint, from which it could go on."""
    run = asyncrl.train("a3c", **ENDLESS, runs_dir=tmp_path, on_evaluation=lambda row: row["steps"] < 800)

    assert (run.state, run.reason) == ("stopped", "on_evaluation returned False")
    assert [row["steps"] // 400 for row in run.evaluations()] == [1, 2]
    assert list((run.path / "checkpoints").glob("step_*"))


def test_what_a_function_raises_ends_the_run_and_goes_on(tmp_path: Path) -> None:
    """It is the program's own exception, not the run's."""

    def fails(evaluation: asyncrl.Evaluation) -> None:
        raise ZeroDivisionError(evaluation["steps"])

    with pytest.raises(ZeroDivisionError):
        asyncrl.train("a3c", **ENDLESS, runs_dir=tmp_path, on_evaluation=fails)

    (run,) = tmp_path.glob("*/*/*")
    assert status_of(run)["state"] == "stopped"
    assert status_of(run)["reason"].startswith("on_evaluation raised ZeroDivisionError: 4")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("backend", ["serial", "local"])
def test_a_run_in_the_background_gives_its_evaluations_until_it_has_ended(tmp_path: Path, backend: str) -> None:
    """Then it is a run as any other; to ask once more gives nothing."""
    settings = TINY | {"evaluation_interval_steps": 400, "backend": backend}
    training = asyncrl.training("a3c", env_id="Catch", **settings, runs_dir=tmp_path)
    evaluations = list(training)

    assert evaluations == training.run.evaluations()
    assert (training.run.state, training.run.best_score) == ("finished", max(row["mean"] for row in evaluations))
    assert training.progress.steps >= 1000
    assert list(training) == []


@pytest.mark.usefixtures("unchanged")
def test_a_run_in_the_background_ends_with_its_block_or_with_the_loop(tmp_path: Path) -> None:
    """Whichever way the program leaves it."""
    with asyncrl.training("a3c", **ENDLESS, runs_dir=tmp_path, run_name="block") as training:
        next(training)
    for evaluation in asyncrl.training("a3c", **ENDLESS, runs_dir=tmp_path, run_name="loop"):
        assert evaluation["steps"] >= 400
        break
    stopped = asyncrl.training("a3c", **ENDLESS, runs_dir=tmp_path, run_name="stop").stop()

    assert training.run.state == stopped.state == "stopped"
    assert status_of(tmp_path / "a3c" / "Catch" / "loop")["state"] == "stopped"


def test_in_the_background_a_mistake_is_raised_at_once_and_a_failure_where_it_is_waited_for(tmp_path: Path) -> None:
    """Before anything begins, and when it breaks."""
    with pytest.raises(asyncrl.UsageError, match="there is no setting worker"):
        asyncrl.training("a3c", worker=2)
    training = asyncrl.training("a3c", env_id=BreakingLater, **TINY, runs_dir=tmp_path)  # it would be raised here, too
    BreakingLater.may_break.set()
    with pytest.raises(asyncrl.RunFailed, match="the light went out"):
        list(training)
    with pytest.raises(asyncrl.RunFailed, match="the light went out"):
        _ = training.run


def test_random_numbers_of_the_program_go_on_while_it_trains(tmp_path: Path) -> None:
    """None is drawn twice, and none by the run."""
    torch.manual_seed(1)
    expected = torch.rand(4).tolist()
    torch.manual_seed(1)
    drawn = [torch.rand(()).item()]
    training = asyncrl.training("a3c", env_id="Catch", **TINY, runs_dir=tmp_path)
    drawn.append(torch.rand(()).item())
    list(training)
    drawn += [torch.rand(()).item(), torch.rand(()).item()]

    assert drawn == expected


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """A program of its own, in a folder of its own."""
    (folder / "script.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )


def test_each_process_has_global_random_numbers_of_its_own(tmp_path: Path) -> None:
    """For environments that draw from them: the same again for the same seed."""
    script = """
import gymnasium, multiprocessing, random
import numpy as np
import torch
import asyncrl
class Drawing(gymnasium.Wrapper):
    def __init__(self, seed):
        super().__init__(gymnasium.make("CartPole-v1"))
        with open(f"{multiprocessing.current_process().name}-{seed}", "a") as file:
            file.write(f"{random.random()} {np.random.random()} {torch.rand(1).item()} ")
for name, seed in ("a", 1), ("b", 1), ("c", 2):
    words = {"workers": 2, "envs_per_worker": 1, "total_steps": 50, "evaluation_episodes": 1, "seed": seed}
    asyncrl.train("a3c", env_id=Drawing, env_kwargs={"seed": name}, run_name=name, **words)
"""
    done = run_script(tmp_path, script)
    assert done.returncode == 0, done.stderr

    drawn = {file.name: file.read_text().split() for file in tmp_path.glob("*-?")}
    for who in ("worker-00", "worker-01", "evaluator"):
        assert drawn[f"{who}-a"] == drawn[f"{who}-b"]
    different = [drawn[name][:3] for name in ("worker-00-a", "worker-01-a", "evaluator-a", "worker-00-c")]
    assert [len(set(numbers)) for numbers in zip(*different, strict=True)] == [4, 4, 4]


def test_an_algorithm_that_was_changed_and_imported_again_is_trained(tmp_path: Path) -> None:
    """In all processes, of which one has lived since before."""
    text = """
from asyncrl.a3c import A3C
VERSION = 1
class Mine(A3C):
    def act(self, *given):
        open(f"seen-{self.who}-{VERSION}", "w").close()
        return super().act(*given)
"""
    script = f"""
import importlib, pathlib
import asyncrl, mine
words = {{"env_id": "Chain", "workers": 1, "total_steps": 50, "evaluation_episodes": 1}}
asyncrl.train(mine.Mine, **words)
pathlib.Path("mine.py").write_text({text.replace("VERSION = 1", "VERSION = 22")!r})
asyncrl.train(importlib.reload(mine).Mine, **words)
"""
    (tmp_path / "mine.py").write_text(text)
    done = run_script(tmp_path, script)
    assert done.returncode == 0, done.stderr

    seen = sorted(file.name for file in tmp_path.glob("seen-*"))
    assert seen == ["seen-evaluator-1", "seen-evaluator-22", "seen-worker-1", "seen-worker-22"]


def test_runs_of_an_algorithm_of_the_program_are_used_by_it(tmp_path: Path) -> None:
    """Earlier runs keep their class, though there is another one of its name."""
    script = """
import asyncrl
from asyncrl.a2c import A2C
words = {"env_id": "Chain", "backend": "serial", "workers": 1, "total_steps": 100, "evaluation_episodes": 1}
class Mine(A2C):
    pass
runs = [asyncrl.train(Mine, **words, run_name="a")]
class Mine(A2C):
    pass
runs.append(asyncrl.train(Mine, **words, run_name="b"))
for run in runs:
    asyncrl.load(run)
print(asyncrl.train(resume=runs[1], total_steps=200).state)
"""
    done = run_script(tmp_path, script)

    assert (done.stdout, done.stderr) == ("finished\n", "")


def test_importing_the_package_is_not_importing_torch(tmp_path: Path) -> None:
    """Nor does it touch a signal or a variable; all that is public can be listed and imported."""
    script = """
import os, signal, sys
before = (signal.getsignal(signal.SIGINT), dict(os.environ))
import asyncrl
assert (signal.getsignal(signal.SIGINT), dict(os.environ)) == before
assert not {"torch", "numpy", "gymnasium"} & set(sys.modules)
assert set(asyncrl.__all__) <= set(dir(asyncrl))
for name in asyncrl.__all__:
    getattr(asyncrl, name)
try:
    asyncrl.nothing
except AttributeError as error:
    print(error)
"""
    done = run_script(tmp_path, script)

    assert (done.stdout, done.stderr) == ("module 'asyncrl' has no attribute 'nothing'\n", "")
    assert set(ALGORITHMS) <= set(asyncrl.__all__)


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Its lines run once, not again in each process, which know its classes and functions all the same; its threads of
    both kinds are as torch has them; what it left in the background ends with it."""
    script = """
import gymnasium
import numpy as np
import torch
import asyncrl
class Lamps(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lamp = self.np_random.integers(4)
        return np.eye(4, dtype=np.float32)[self.lamp], {}
    def step(self, action):
        return np.zeros(4, np.float32), float(action == self.lamp), True, False, {}
before = (torch.get_num_threads(), torch.get_num_interop_threads())
width = 8
for backend in "local", "serial":
    run = asyncrl.train(
        "one_step_q", env_id=Lamps, workers=2, total_steps=2000, backend=backend, run_name=backend,
        network=lambda shape: torch.nn.Sequential(torch.nn.Linear(shape[0], width), torch.nn.Tanh()),
        exploration=lambda config, worker: asyncrl.one_step_q.OneStepQ.Config().exploration_of(worker),
    )
    print(run.state, (torch.get_num_threads(), torch.get_num_interop_threads()) == before)
    action, _ = asyncrl.load(run).act(np.zeros(4, np.float32))
    print(run.path.parent.name, action in range(4))
for evaluation in asyncrl.training("a3c", env_id=Lamps, workers=2, total_steps=1e9, evaluation_interval_steps=1000):
    kept = asyncrl.training("a3c", env_id=Lamps, workers=2, total_steps=1e9, run_name="at-exit")
    break
"""
    done = run_script(tmp_path, script)

    assert (done.stdout, done.stderr) == ("finished True\n__main___Lamps True\n" * 2, "")
    states = [status_of(path)["state"] for path in tmp_path.glob("runs/a3c/*/*")]
    assert states == ["stopped", "stopped"]


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("a3c", "CartPole-v1", {"normalize_observations": True}),
    ("a3c", "CartPole-v1", {"lstm_cells": 8, "frame_stack": 3}),
    ("a3c", "Pendulum-v1", {}),
    ("sac", "Pendulum-v1", {"hidden_sizes": (16, 16)}),
    ("apex_dpg", "Pendulum-v1", {"hidden_sizes": (16, 16)}),
    ("one_step_q", f"{HERE}:Screen", {"image_size": 16, "frame_stack": 2}),
    ("n_step_q", f"{HERE}:Screen", {}),
]


@pytest.fixture(
    scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1].rpartition(':')[2]}-{'-'.join(case[2])}"
)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[asyncrl.Run, Callable[[], Any]]:
    """A short run, which the tests only read, and what makes Gymnasium's environment."""
    algorithm, env_id, settings = request.param
    make = Screen if env_id.endswith("Screen") else lambda: gymnasium.make(env_id)
    run = asyncrl.train(algorithm, env_id=env_id, **TINY | settings, runs_dir=tmp_path_factory.mktemp("runs"))
    return run, make


def test_a_policy_plays_the_episodes_that_evaluate_plays(trained: tuple[asyncrl.Run, Callable[[], Any]]) -> None:
    """Normalisation, memory, stacked images and the numbers of actions are as in the run."""
    run, make = trained
    (expected,) = run.evaluate(episodes=1, seed=3, greedy=True).returns

    score = play(asyncrl.load(run, greedy=True), make(), derive(3, ENVIRONMENT, EVALUATOR, 0, NO_PART))

    assert score == pytest.approx(expected)


def test_a_batch_is_acted_on_as_its_observations_one_by_one(trained: tuple[asyncrl.Run, Callable[[], Any]]) -> None:
    """With the state of each, and an episode that ends in one of them."""
    run, make = trained
    policy, environment = asyncrl.load(run, greedy=True), make()
    rng = np.random.default_rng(1)
    batches = []
    for _ in range(4):
        environment.reset(seed=int(rng.integers(100)))
        batches.append([environment.step(environment.action_space.sample())[0] for _ in range(3)])
    state: Any = None
    states: list[Any] = [None] * 3
    for t, batch in enumerate(batches):
        actions, state = policy.act(np.stack(batch), state)
        one_by_one = []
        for e, observation in enumerate(batch):
            action, states[e] = policy.act(observation, states[e])
            one_by_one.append(action)
        np.testing.assert_allclose(actions, one_by_one, rtol=1e-5, atol=1e-6)
        if t == 1:
            state, states[1] = policy.restart(state, [False, True, False]), None
    for e in range(3):
        np.testing.assert_array_equal(state.seen[e : e + 1], states[e].seen)
        if state.memory is not None:
            for part, own in zip(state.memory, states[e].memory, strict=True):
                torch.testing.assert_close(part[e : e + 1], own)


def test_a_memory_remembers(tmp_path: Path) -> None:
    """The same observation, another state."""
    policy = asyncrl.load(
        asyncrl.train("a3c", env_id="CartPole-v1", **TINY, lstm_cells=8, runs_dir=tmp_path).path, checkpoint="newest"
    )
    _, first = policy.act(np.ones(4, np.float32))
    _, second = policy.act(np.ones(4, np.float32), first)

    assert not torch.equal(first.memory[0], second.memory[0])  # type: ignore[index]


@pytest.mark.parametrize(("algorithm", "on_env_error"), [("a3c", "stop"), ("n_step_q", "rebuild")])
def test_observations_and_actions_of_several_parts_are_acted_in_as_they_are(
    tmp_path: Path, algorithm: str, on_env_error: str
) -> None:
    """A Dict alone or as a batch, whose parts are batches; actions are what the environment takes."""
    run = asyncrl.train(algorithm, env_id=f"{HERE}:Levers", **TINY, on_env_error=on_env_error, runs_dir=tmp_path)
    policy, environment = asyncrl.load(run), Levers()
    seen = [environment.reset(seed=1)[0]]
    for _ in range(4):
        action, _ = policy.act(seen[-1])
        seen.append(environment.step(action)[0])

    batch = {key: np.array([one[key] for one in seen]) for key in seen[0]}
    together, _ = policy.act(batch)
    assert together.shape == (5, 2)
    if algorithm == "n_step_q":  # the others draw
        np.testing.assert_array_equal(together, [policy.act(one)[0] for one in seen])
    with pytest.raises(asyncrl.UsageError, match="it must have the parts lamp, level"):
        policy.act({"lamp": 1})
    with pytest.raises(asyncrl.UsageError, match="have different numbers of environments"):
        policy.act(batch | {"lamp": 1})


def test_what_is_no_observation_is_refused(cartpole: asyncrl.Run) -> None:
    """In one line, with what it should be."""
    policy = asyncrl.load(cartpole)

    with pytest.raises(asyncrl.UsageError, match=r"shape must be \[4\].*not \[5\]"):
        policy.act(np.zeros(5))
    with pytest.raises(asyncrl.UsageError, match="contains NaN"):
        policy.act([0.0, np.nan, 0.0, 0.0])
    _, state = policy.act(np.zeros((2, 4)))
    with pytest.raises(asyncrl.UsageError, match="the state is for 2 environments, the observations are for 3"):
        policy.act(np.zeros((3, 4)), state)
    for begin in ([True], [True, False, True], [[True, False]]):
        with pytest.raises(asyncrl.UsageError, match="the state is for 2 environments, the ended episodes have shape"):
            policy.predict(np.zeros((2, 4)), state, begin)
    with pytest.raises(asyncrl.UsageError, match="no such checkpoint"):
        asyncrl.load(cartpole, checkpoint="none")
    for name in (500, None):
        with pytest.raises(asyncrl.UsageError, match=f'checkpoint must be "best", "newest".*got {name}'):
            asyncrl.load(cartpole, checkpoint=name)  # type: ignore[arg-type]
    for episodes in (0, "3", 2.5, None):
        with pytest.raises(asyncrl.UsageError, match="episodes must be at least 1"):
            cartpole.evaluate(episodes=episodes)  # type: ignore[arg-type]
    for seed in ("x", 1.5, None):
        with pytest.raises(asyncrl.UsageError, match="seed"):
            asyncrl.load(cartpole, seed=seed)  # type: ignore[arg-type]
    assert repr(asyncrl.load(cartpole, seed="7")) == repr(asyncrl.load(cartpole, seed=np.int64(7)))  # type: ignore[arg-type]
    with pytest.raises(asyncrl.UsageError, match="greedy must be True, False or None, got 'no'"):
        asyncrl.load(cartpole, greedy="no")  # type: ignore[arg-type]
    for method in (asyncrl.load, asyncrl.Run.open):
        with pytest.raises(asyncrl.UsageError, match="a run is given by its folder, got None"):
            method(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["a3c", "n_step_q"])
def test_predict_has_the_signature_of_stable_baselines3(tmp_path: Path, algorithm: str) -> None:
    """Best or drawn actions whichever way the policy was loaded; episodes begin where it is told so."""
    settings = {"evaluation_policy": "sampled", "lstm_cells": 8, "frame_stack": 2}
    settings |= {"evaluation_epsilon": 1.0} if algorithm == "n_step_q" else {}
    run = asyncrl.train(algorithm, env_id="CartPole-v1", **TINY | settings, runs_dir=tmp_path)
    policy, best = asyncrl.load(run), asyncrl.load(run, greedy=True)
    observations = np.random.default_rng(1).normal(size=(200, 4)).astype(np.float32)

    actions, state = policy.predict(observations, deterministic=True)
    drawn = asyncrl.load(run).predict(observations)[0]
    assert actions.tolist() == best.act(observations)[0].tolist() == best.predict(observations)[0].tolist()
    assert drawn.tolist() == asyncrl.load(run).act(observations)[0].tolist()
    assert drawn.tolist() == asyncrl.load(run, greedy=True).predict(observations, deterministic=False)[0].tolist()
    assert drawn.tolist() != actions.tolist()
    assert (policy.greedy, best.greedy) == (False, True)

    begin = np.arange(200) < 100
    _, again = policy.predict(observations, state, episode_start=begin, deterministic=True)
    _, anew = policy.predict(observations, deterministic=True)
    _, further = policy.predict(observations, state, np.zeros(200, bool), deterministic=True)
    assert again.memory is not None
    assert anew.memory is not None
    assert further.memory is not None
    for memory, first, later in zip(again.memory, anew.memory, further.memory, strict=True):
        assert torch.allclose(memory[:100], first[:100])
        assert torch.allclose(memory[100:], later[100:])
    assert not again.seen[:100, 0].any()
    assert again.seen[100:, 0].all()

    action, alone = policy.predict(observations[0], None, True, deterministic=True)
    assert action == actions[0]
    assert len(policy.predict(observations[0], alone, episode_start=True)[1].seen) == 1


def test_runs_and_policies_say_what_they_are(cartpole: asyncrl.Run) -> None:
    """Also when the run's folder is gone."""
    policy, status = asyncrl.load(cartpole), status_of(cartpole.path)

    assert repr(cartpole) == (
        f"<Run of a2c on CartPole-v1: finished after {status['steps']:,} steps, best score "
        f"{cartpole.best_score:.1f}, in {cartpole.path}>"
    )
    assert repr(policy) == (
        f"<Policy of a2c on CartPole-v1: greedy, best checkpoint after {policy.steps:,} steps, best score "
        f"{cartpole.best_score:.1f}, in {cartpole.path}>"
    )
    gone = asyncrl.Run(Path("nowhere"), "stopped", "received SIGINT", None, 1234)
    assert repr(gone) == "<Run of a folder that cannot be read: stopped after 1,234 steps, not evaluated, in nowhere>"


def test_a_config_cannot_give_a_resumed_run_another_name(tmp_path: Path) -> None:
    """As the words of a command cannot."""
    run = asyncrl.train("a3c", env_id="Catch", **TINY | {"total_steps": 100}, runs_dir=tmp_path)
    config = asyncrl.a3c.A3C.Config(env_id="Catch", **TINY, resume=str(run.path), run_name="other")
    with pytest.raises(asyncrl.UsageError, match="a run that is resumed stays in its folder"):
        asyncrl.train("a3c", config=config)


def test_a_run_that_was_resumed_later_says_what_it_was(tmp_path: Path) -> None:
    """All of it is of one moment."""
    run = asyncrl.train("a3c", env_id="Catch", **TINY | {"total_steps": 100}, runs_dir=tmp_path)
    before = repr(run)
    longer = asyncrl.train(resume=run, total_steps=400)

    assert repr(run) == before
    assert run.steps < 400 <= longer.steps == asyncrl.Run.open(run).steps


def test_threads_may_share_a_policy(tmp_path: Path) -> None:
    """As those of a web server do; compiled code has one memory for its numbers."""
    words = TINY | {"backend": "local", "total_steps": 100}
    run = asyncrl.train("one_step_q", env_id="CartPole-v1", **words, runs_dir=tmp_path, hidden_sizes=(256, 256))
    policy = asyncrl.load(run, greedy=True)
    seen = np.random.default_rng(0).normal(size=(2, 64, 4)).astype(np.float32)
    expected = [policy.act(observations)[0] for observations in seen]
    wrong: list[int] = []

    def act(number: int) -> None:
        wrong.append(sum((policy.act(seen[number])[0] != expected[number]).any() for _ in range(100)))

    threads = [threading.Thread(target=act, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == [0, 0]


class Rooms(gymnasium.Env[Any, Any]):
    """Observations whose encoder has one array that it overwrites."""

    observation_space = gymnasium.spaces.MultiDiscrete([50] * 20)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.integers(0, 50, 20), {}

    def step(self, action: Any) -> Any:
        return self.np_random.integers(0, 50, 20), 0.0, False, False, {}


def test_threads_that_share_a_policy_encode_their_own_observations(tmp_path: Path) -> None:
    """Threads take turns as often as Python lets them."""
    run = asyncrl.train("a3c", env_id=f"{HERE}:Rooms", **TINY | {"total_steps": 100}, runs_dir=tmp_path)
    policy = asyncrl.load(run, greedy=True)
    seen = np.random.default_rng(0).integers(0, 50, (2, 400, 20))
    expected = [policy.act(observations)[1].seen for observations in seen]
    wrong: list[int] = []

    def act(number: int) -> None:
        wrong.append(sum((policy.act(seen[number])[1].seen != expected[number]).any() for _ in range(10)))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=act, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert wrong == [0, 0]


def test_a_policy_that_draws_repeats_with_its_seed(tmp_path: Path) -> None:
    """And differs with another."""
    run = asyncrl.train("a3c", env_id="CartPole-v1", **TINY, runs_dir=tmp_path)
    observations = np.zeros((200, 4), np.float32)
    first, again, other = (asyncrl.load(run, greedy=False, seed=s).act(observations)[0].tolist() for s in (1, 1, 2))

    assert first == again != other


def test_the_documentation_says_what_works(tmp_path: Path) -> None:
    """Every program in docs/python.md runs, one after the other, as it stands there, without optional packages."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    assert programs

    without = "import sys\nsys.modules.update(dict.fromkeys(['pandas', 'onnx', 'optuna', 'ray']))\n"
    done = run_script(tmp_path, without + "\n".join(programs))

    assert done.stderr == ""
    scores = [float(line) for line in done.stdout.splitlines() if re.fullmatch(r"\d+\.\d", line)]
    assert scores[0] >= 300


class Paid(gymnasium.Env[Any, Any]):
    """Pays in its only step what it was given, a number or the sum of anything else."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, pay: Any) -> None:
        self.pay = pay

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Pay, and end."""
        pay = float(np.sum(self.pay))
        np.multiply(self.pay, 0, out=self.pay) if isinstance(self.pay, np.ndarray) else None
        return np.zeros(3, np.float32), pay, True, False, {}

    def __call__(self) -> Paid:
        """An instance is a factory, too."""
        return Paid(self.pay)

    def again(self) -> Paid:
        """And so is its method."""
        return Paid(self.pay)


def body(width: int, shape: tuple[int, ...]) -> nn.Module:
    """A network's body."""
    return nn.Sequential(nn.Linear(*shape, width), nn.Tanh())


@pytest.mark.parametrize(
    "make",
    [
        lambda pay: partial(Paid, pay),
        lambda pay: lambda: Paid(pay),
        lambda pay: Paid(pay).again,
        lambda pay: type("Pays", (), {"__call__": lambda self: Paid(pay)})(),
        lambda pay: type("Paid", (Paid,), {"__init__": lambda self: Paid.__init__(self, pay)}),
    ],
)
def test_runs_of_one_program_keep_what_each_was_given(make: Callable[[float], Any], tmp_path: Path) -> None:
    """Environment and network, whatever kind of object they are."""
    runs = [
        asyncrl.train(
            "a3c", env_id=make(pay), network=partial(body, width), **TINY, runs_dir=tmp_path, run_name=f"{width}"
        )
        for pay, width in ((1.0, 8), (2.0, 16))
    ]

    assert [run.best_score for run in runs] == [1.0, 2.0]
    assert [run.evaluate(episodes=1).returns for run in runs] == [[1.0], [2.0]]
    assert len({run.path.parent.name for run in runs}) == 2


def test_what_a_program_handed_over_must_be_given_again_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the other one calls by the same name."""
    monkeypatch.setattr("asyncrl.core.named._things", {})
    run = asyncrl.train("a3c", env_id=partial(Paid, 1.0), **TINY, runs_dir=tmp_path)
    monkeypatch.setattr("asyncrl.core.named._things", {})
    monkeypatch.setattr("asyncrl.core.named.PROGRAM", "another")
    other = asyncrl.train("a3c", env_id=partial(Paid, 2.0), **TINY, runs_dir=tmp_path, run_name="other")
    assert other.path.parent == run.path.parent

    for call in (run.evaluate, lambda: asyncrl.load(run), lambda: asyncrl.train("a3c", resume=run.path)):
        with pytest.raises(asyncrl.UsageError, match="__main__:partial_Paid was passed by another program"):
            call()
    assert asyncrl.load(run, env_id=partial(Paid, 1.0)).steps > 0
    again = asyncrl.train("a3c", env_id=partial(Paid, 3.0), resume=run.path, total_steps=2000)
    assert (again.evaluate(episodes=1).returns, other.evaluate(episodes=1).returns) == ([3.0], [2.0])


def test_an_argument_that_is_an_array_reaches_all_processes(tmp_path: Path) -> None:
    """Each environment has its own, whatever others do to theirs; another program must give it again."""
    pays = np.array([1.0, 2.0])
    settings = {"workers": 1, "total_steps": 300, "evaluation_episodes": 2, "runs_dir": tmp_path}
    run = asyncrl.train("a3c", env_id=f"{HERE}:Paid", env_kwargs={"pay": pays}, **settings)
    pays[:] = 5.0

    assert run.best_score == 3.0
    assert run.evaluate(episodes=1).returns == [3.0]
    stored = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps(stored | {"program": "another"}))
    with pytest.raises(asyncrl.UsageError, match="env_kwargs pay: give env_kwargs again"):
        asyncrl.load(run, trust=True)
    assert asyncrl.load(run, env_kwargs={"pay": 1.0}, trust=True).steps > 0


@pytest.mark.parametrize("backend", ["local", "serial"])
def test_several_threads_of_a_program_train_at_a_time(tmp_path: Path, backend: str) -> None:
    """Each run is as it would be alone, and the program's own settings are as before."""
    before = (dict(os.environ), torch.get_num_threads(), sys.modules["__main__"])
    first: dict[int, bytes] = {}

    def go(number: int) -> None:
        run = asyncrl.train(
            "a3c", env_id="Chain", seed=5, workers=1, backend=backend, total_steps=200, evaluation_interval_steps=0,
            runs_dir=str(tmp_path),
        )  # fmt: skip
        (beginning,) = run.path.glob("checkpoints/step_000000000000/weights.safetensors")
        first[number] = beginning.read_bytes()

    threads = [threading.Thread(target=go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(first) == 4
    assert len(set(first.values())) == 1
    assert before == (dict(os.environ), torch.get_num_threads(), sys.modules["__main__"])


def test_a_schedule_from_a_function_reaches_the_workers_and_a_resumed_run(tmp_path: Path) -> None:
    """As data: the run's folder has points, and another program goes on with them."""
    settings = TINY | {"env_id": "Catch", "backend": "local", "total_steps": 4000, "record_interval_seconds": 0.0}

    def rate(remaining: float) -> float:
        return 1e-3 if remaining > 0.75 else 5e-4

    first = asyncrl.train("a3c", **settings, learning_rate=rate, runs_dir=tmp_path)
    config = json.loads((first.path / "config.json").read_text())["config"]
    assert (config["learning_rate"], config["learning_rate_schedule"]) == (1e-3, "0:1,0.24:1,0.25:0.5,1:0.5")
    further = asyncrl.train("a3c", resume=first.path, total_steps=8000)

    rows = [row for worker in range(2) for row in read_records(RunFolder(further.path).records_file(name_of(worker)))]
    rates = {row["learning_rate"] for row in rows if row.get("updates")}
    assert {1e-3, 5e-4} <= rates
    assert all(5e-4 <= one <= 1e-3 for one in rates)
    assert (
        json.loads((first.path / "config.json").read_text())["config"] | {"total_steps": 4000, "resume": ""} == config
    )


class Stuck(Screen):
    """Its thirtieth step never returns."""

    taken = 0

    def step(self, action: Any) -> Any:
        Stuck.taken += 1
        if Stuck.taken == 30:
            time.sleep(1000)
        return super().step(action)


def test_a_serial_run_whose_environment_hangs_fails_in_one_line(tmp_path: Path) -> None:
    """Nobody else could end it: the command itself steps the environment."""
    with pytest.raises(asyncrl.RunFailed, match=r"Stuck's step\(\) did not return within 1 seconds"):
        asyncrl.train("a3c", env_id=Stuck, runs_dir=tmp_path, hang_seconds=1.0, **TINY | {"workers": 1})
    status = status_of(next(tmp_path.glob("a3c/*/*")))
    assert (status["state"], "traceback" in status) == ("failed", False)


def test_a_program_that_records_no_gradients_can_train(tmp_path: Path) -> None:
    """As within a function that plays; afterwards nothing is recorded again."""
    with torch.inference_mode():
        run = asyncrl.train("a3c", env_id="Catch", runs_dir=tmp_path, **TINY)
        assert torch.is_inference_mode_enabled()
    with torch.no_grad():
        other = asyncrl.train("ppo", env_id="Catch", runs_dir=tmp_path, **TINY)
        assert not torch.is_grad_enabled()

    assert run.state == other.state == "finished"
