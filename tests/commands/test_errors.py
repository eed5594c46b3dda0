"""A mistake on the command line gets one clear line and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import gymnasium
import numpy as np
import pytest

from asyncrl.__main__ import main as asyncrl
from asyncrl.algorithm import algorithm_of
from asyncrl.backends import local, serial
from asyncrl.backends.outcome import failed
from asyncrl.catalog import ALGORITHMS
from asyncrl.commands.train import main, meaningless
from asyncrl.config.arguments import parse_argument
from asyncrl.config.commandline import parse, read_line
from asyncrl.config.groups import flag
from asyncrl.config.run_config import RunConfig
from asyncrl.config.settings import parse_integer
from asyncrl.core.extras import to_install
from asyncrl.doctor import room
from tests.config.settings import KINDS
from tests.support import run_command

HERE = __name__

WRONG_TEXT = {
    "env_id": "Nowhere-v0",
    "env_kwargs": "often",
    "runs_dir": f"{__file__}/runs",
    "run_name": "../../x",
    "resume": "nowhere",
    "init_method": "nowhere",
    "address": "nowhere",
    "learner_resource": "nowhere",
    "learner_device": "nowhere",
    "network": "natur",
    "exploration": "often",
    "track": "often",
    "track_project": "",
    "load": "nowhere",
    **dict.fromkeys(("learning_rate_schedule", "entropy_schedule", "epsilon_schedule"), "often"),
}
"""A text that each field of text refuses: others of its type accept any word."""


@dataclasses.dataclass
class Refusal:
    """What a command said when it refused to run."""

    code: int
    line: str


@pytest.fixture
def refuse(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Refusal]:
    """Run a command that must refuse its words: one line on stderr, nothing on stdout, no run, no folder."""
    for backend in (local, serial):
        monkeypatch.setattr(backend, "run", lambda *arguments: failed("began to run"))

    def run(*words: str, algorithm: str = "a3c") -> Refusal:
        runs = tmp_path / "runs"
        env_id = "Catch" if algorithm_of(f"asyncrl.{algorithm}").takes_discrete else "Pendulum-v1"
        code = main(f"asyncrl.{algorithm}", ["--env-id", env_id, "--runs-dir", str(runs), *words])
        captured = capfd.readouterr()
        assert captured.out == ""
        assert captured.err.endswith("\n")
        assert captured.err.count("\n") == 1
        assert captured.err.startswith(f"asyncrl {algorithm}: error: ")
        assert not runs.exists()
        return Refusal(code, captured.err.removeprefix(f"asyncrl {algorithm}: error: ").rstrip())

    return run


def config_of(algorithm: str) -> type[RunConfig]:
    """The algorithm's Config."""
    config: type[RunConfig] = algorithm_of(f"asyncrl.{algorithm}").Config
    return config


def every_field() -> list[tuple[str, str]]:
    """(algorithm, field): all fields of a3c, and of the other algorithms those that they do not share with it."""
    shared = {field.name for field in dataclasses.fields(config_of("a3c"))}
    return [("a3c", name) for name in sorted(shared)] + [
        (algorithm, field.name)
        for algorithm in ALGORITHMS
        if algorithm != "a3c"
        for field in dataclasses.fields(config_of(algorithm))
        if field.name not in shared
    ]


def wrong_values(algorithm: str, name: str) -> list[list[str]]:
    """Words after the flag that it cannot take."""
    kind = get_type_hints(config_of(algorithm))[name]
    if kind is bool:
        return [["often"]]
    if get_origin(kind) is tuple:
        wrong = [[WRONG_TEXT[name] if get_args(kind)[0] is str else "often"]]
        return wrong if get_args(kind)[-1] is Ellipsis else [*wrong, []]  # no value at all: an empty list
    if kind is str:
        return [[WRONG_TEXT[name]], []]
    numbers = (int, float, float | None, int | Literal["auto"])
    assert kind in numbers or get_origin(kind) is Literal, f"a new type of field: {kind}"
    return [["often"], []]


@pytest.mark.parametrize(("algorithm", "name"), every_field(), ids=lambda part: part)
def test_every_flag_refuses_a_wrong_word(algorithm: str, name: str, refuse: Callable[..., Refusal]) -> None:
    """Text for a number, an unknown choice, a missing value; the line names the flag, or repeats the word."""
    for values in wrong_values(algorithm, name):
        refusal = refuse(flag(name), *values, algorithm=algorithm)
        assert refusal.code == 2
        assert flag(name) in refusal.line or (values == [WRONG_TEXT.get(name)] and values[0] in refusal.line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--workers often", "--workers takes a whole number, got 'often'"),
        ("--workers 1.5", "--workers takes a whole number, got '1.5'"),
        ("--total-steps 1e400", "--total-steps takes a whole number, got '1e400'"),
        ("--seed nan", "--seed takes a whole number, got 'nan'"),
        ("--gamma often", "--gamma takes a number, got 'often'"),
        ("--gamma=", "--gamma takes a number, got ''"),
        ("--max-seconds inf", "--max-seconds takes a number, got 'inf'"),
        ("--stop-at-score high", "--stop-at-score takes a number, got 'high'"),
        ("--hidden-sizes 64 wide", "--hidden-sizes takes a whole number, got 'wide'"),
        ("--backend lokal", "--backend takes local, serial, collective or ray, got 'lokal'"),
        (
            "--optimizer sgd",
            "--optimizer takes rmsprop, centred-rmsprop, adam, momentum-sgd or adagrad, got 'sgd'",
        ),
        ("--seed", "--seed needs a value"),
        ("--quiet often", "--quiet takes no value, got 'often'"),
        ("--quiet=often", "--quiet takes no value, got 'often'"),
        ("--workers 2 3", "unexpected word '3'"),
        ("--total-stepz 5", "there is no --total-stepz; perhaps you meant --total-steps"),
        ("--total_stepz 5", "there is no --total_stepz; perhaps you meant --total-steps"),
        ("--zebra 5", "there is no --zebra"),
        ("-w 5", "there is no -w"),
        ("--workers 0", "--workers must be at least 1 and at most 10_000, got 0"),
        ("--frame-skip 4", "--frame-skip has no effect in Catch: leave it out"),
        ("--env-id CartPole-v1 --life-loss", "--life-loss has no effect in CartPole-v1: leave it out"),
        ("--env-id CartPole-v1 --noop-max 0", "--noop-max has no effect in CartPole-v1: leave it out"),
        (
            "--env-id CartPole-v1 --image-size 42",
            "--image-size is for grey and colour images of at least 36 rows; CartPole-v1 observes a vector [4]",
        ),
        ("--delays 1 2", "--delays is for --backend serial"),
        ("--schedule delays", "--schedule takes round-robin or random, got 'delays'"),
        (
            "--backend serial --schedule random --delays 1 2",
            "--delays and --schedule random both set the order of turns: give only one",
        ),
        ("--schedule random", "--schedule is for --backend serial"),
        (
            "--backend serial --on-worker-error restart",
            "--on-worker-error is for --backend local and ray",
        ),
        (
            "--normalize-advantages --t-max 1 --envs-per-worker 1",
            "--normalize-advantages needs more than one step per update: --t-max or --envs-per-worker",
        ),
        ("--env-kwargs often", "--env-kwargs takes key=value, got 'often'"),
        ("--network nature", "--network nature cannot take a vector of shape (50,); use --network auto"),
    ],
)
def test_the_line_says_what_was_expected(words: str, line: str, refuse: Callable[..., Refusal]) -> None:
    """Word for word."""
    assert refuse(*words.split()) == Refusal(2, line)


@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "impala"])
def test_where_one_learner_learns_there_are_no_statistics_per_worker(
    algorithm: str, refuse: Callable[..., Refusal]
) -> None:
    """They would be allocated, and never used."""
    line = f"--statistics per-worker is for workers that learn; in asyncrl {algorithm} one learner does"
    assert refuse("--statistics", "per-worker", algorithm=algorithm) == Refusal(2, line)


def test_a_serial_run_has_no_threads_to_give_to_its_learner(refuse: Callable[..., Refusal]) -> None:
    """With more than one it would not repeat itself to the bit. Where nobody is the learner there is no such flag."""
    words = ("--learner-threads", "2", "--backend", "serial")
    line = "--learner-threads is for --backend local and ray"
    assert refuse(*words, algorithm="ppo") == Refusal(2, line)
    assert refuse(*words, algorithm="a3c").line.startswith("there is no --learner-threads")
    assert refuse("--learner-threads", "2", "--backend", "collective", algorithm="ppo") == Refusal(2, line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--learner-device cuda:99", "--learner-device cuda:99: torch finds no such device on this machine"),
        ("--learner-device meta", "--learner-device meta: torch finds no such device on this machine"),
        (
            "--learner-device cuda --layout bundled",
            "--learner-threads and --learner-device are for --layout unbundled: bundled, every worker is a learner",
        ),
    ],
)
def test_a_device_on_which_no_learner_can_compute_is_refused(
    words: str, line: str, refuse: Callable[..., Refusal]
) -> None:
    """Before anything is made."""
    assert refuse(*words.split(), algorithm="gorila") == Refusal(2, line)


def test_ranks_compute_on_the_processor(refuse: Callable[..., Refusal]) -> None:
    """So there is no other device for them."""
    line = "--learner-device is for --backend local, serial and ray"
    assert refuse("--learner-device", "cuda", "--backend", "collective", algorithm="ppo") == Refusal(2, line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--layout bundled --learners 2", "--learners are for --layout unbundled; bundled, every worker is one"),
        (
            "--memory-steps 1000 --workers 8 --envs-per-worker 4 --t-max 10 --n-step 3",
            "--memory-steps must be at least 1_504, 47 for each environment (4 times --t-max and more), got 1000",
        ),
        ("--memory-steps 1e4 --warmup-steps 2e4", "--warmup-steps must be at most --memory-steps, got 20000"),
        ("--replay-ratio 0", "--replay-ratio must be more than 0, got 0.0"),
    ],
)
def test_a_replay_memory_that_cannot_be_is_refused(words: str, line: str, refuse: Callable[..., Refusal]) -> None:
    """By the settings alone."""
    assert refuse(*words.split(), algorithm="gorila") == Refusal(2, line)


@pytest.mark.parametrize("algorithm", ["gorila", "apex"])
def test_a_replay_memory_beyond_the_machines_is_refused(
    algorithm: str, refuse: Callable[..., Refusal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fit now, and kill the run when it is full."""
    monkeypatch.setattr(room.psutil, "virtual_memory", lambda: SimpleNamespace(available=100 * 2**20))

    refusal = refuse("--memory-steps", "1e6", algorithm=algorithm)

    assert refusal.code == 2
    assert refusal.line.startswith("replay memory: 1,000,000 steps take ")
    assert refusal.line.endswith(
        "100 MiB available; use fewer --memory-steps, or make /dev/shm larger (docker: --shm-size)"
    )


@pytest.mark.parametrize("width", ["20", "80"])
def test_the_line_is_the_same_on_any_terminal(width: str, tmp_path: Path) -> None:
    """Neither frames nor colours nor line breaks, also where tyro would draw them: here in a narrow pseudo-terminal."""
    pty = pytest.importorskip("pty")
    supervisor, terminal = pty.openpty()
    words = ["--hidden-sizes", "64", "wide", "--runs-dir", str(tmp_path)]
    try:
        result = subprocess.run(
            [sys.executable, "-m", "asyncrl.a3c", *words],
            stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.PIPE, text=True, timeout=200,
            env={**os.environ, "COLUMNS": width, "TERM": "xterm"},
        )  # fmt: skip
    finally:
        os.close(terminal)
        os.close(supervisor)

    assert result.stderr == "asyncrl a3c: error: --hidden-sizes takes a whole number, got 'wide'\n"
    assert result.returncode == 2


@pytest.mark.parametrize("text", ["10000000", "10_000_000", "1e7", "1E7", "10.0e6", "+10000000"])
def test_whole_numbers_are_read_as_people_write_them(text: str) -> None:
    """All of these are ten million."""
    assert parse_integer(text) == 10_000_000
    assert parse(config_of("a3c"), ["--total-steps", text], "asyncrl a3c").total_steps == 10_000_000


@pytest.mark.parametrize("text", ["1.5", "1e400", "nan", "inf", "1e-3", "ten", "", "1,000", "0x10"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    """1e400 is beyond what a float can hold."""
    with pytest.raises(ValueError, match="takes a whole number, got "):
        parse_integer(text)


def test_every_type_of_field_is_read() -> None:
    """Numbers, choices, switches, lists, nothing, flags with underscores; the last of two equal flags counts."""
    words = (
        "--workers 2 --workers 1_000 --gamma 0.5 --backend serial --no-quiet --life-loss --hidden-sizes 8 1e1 "
        "--env-kwargs a=1 b=x --stop-at-score -5 --total_steps 7 --run-name here"
    )
    config = parse(RunConfig, words.split(), "asyncrl a3c")

    assert config == RunConfig(
        workers=1000, gamma=0.5, backend="serial", life_loss=True, hidden_sizes=(8, 10), env_kwargs=("a=1", "b=x"),
        stop_at_score=-5.0, total_steps=7, run_name="here",
    )  # fmt: skip
    given = read_line(RunConfig, ["--stop-at-score", "none", "--hidden-sizes"], "asyncrl a3c").settings
    assert given == {"stop_at_score": None, "hidden_sizes": ()}


class Still(gymnasium.Env[Any, Any]):
    """An environment of the given spaces in which nothing happens."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


UNIT = gymnasium.spaces.Box(0, 1, (2,), np.float32)


def make_dict() -> Still:
    return Still(gymnasium.spaces.Dict(left=UNIT, right=gymnasium.spaces.Text(5)), gymnasium.spaces.Discrete(2))


def make_continuous() -> Still:
    return Still(UNIT, UNIT)


@pytest.mark.parametrize(
    ("env_id", "parts"),
    [
        ("CartPol-v1", ["no environment has the id CartPol-v1", "did you mean CartPole-v1"]),
        ("ALE/Pnog-v5", ["ALE/Pnog-v5", "ALE/Pong-v5"]),
        ("no.such.module:make", ["there is no module no.such.module"]),
        (f"{HERE}:make_dict", ["observes a Text", "wrap it to observe a Box"]),
    ],
)
def test_an_environment_it_cannot_take_is_refused(
    env_id: str, parts: list[str], refuse: Callable[..., Refusal]
) -> None:
    """With the remedy where there is one."""
    refusal = refuse("--env-id", env_id)

    assert refusal.code == 2
    assert all(part in refusal.line for part in parts), refusal.line


@pytest.mark.parametrize("algorithm", ["one_step_q", "one_step_sarsa", "n_step_q"])
@pytest.mark.parametrize("env_id", [f"{HERE}:make_continuous", "Pendulum-v1"])
def test_action_values_need_discrete_actions(algorithm: str, env_id: str, refuse: Callable[..., Refusal]) -> None:
    """A maximum over the actions is taken one by one."""
    refusal = refuse("--env-id", env_id, algorithm=algorithm)

    assert (refusal.code, f"{env_id} has continuous actions" in refusal.line) == (2, True), refusal.line


def test_a_missing_extra_is_named(refuse: Callable[..., Refusal], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    for name in [name for name in sys.modules if name.split(".")[0] == "minatar"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in gymnasium.registry if name.startswith("MinAtar/")]:
        monkeypatch.delitem(gymnasium.registry, name)
    monkeypatch.setitem(sys.modules, "minatar", None)

    line = f"MinAtar/Breakout-v1 needs an extra: {to_install('minatar')}"
    assert refuse("--env-id", "MinAtar/Breakout-v1", "--backend", "serial") == Refusal(2, line)


@pytest.mark.parametrize(
    "error",
    [MemoryError("out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")],
)
def test_a_network_that_does_not_fit_is_refused(
    error: Exception, refuse: Callable[..., Refusal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there is a folder; torch's error looks like the second."""

    def initial_parameters(*_: object) -> None:
        raise error

    monkeypatch.setattr("asyncrl.api.training.initial_parameters", initial_parameters)

    assert refuse() == Refusal(2, "there is not enough memory for a network of this size")


def test_more_workers_than_memory_can_hold_are_refused(
    refuse: Callable[..., Refusal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a process, of ten megabytes at least; before there is a folder."""
    monkeypatch.setattr(room.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**33))

    refusal = refuse("--workers", "1000")

    assert refusal.code == 2
    assert re.fullmatch(
        r"memory: 1000 workers need at least 9\.\d GiB, 8\.0 GiB available; use fewer --workers, .*", refusal.line
    )


def test_a_file_in_place_of_the_runs_is_refused(tmp_path: Path, refuse: Callable[..., Refusal]) -> None:
    """And stays what it is."""
    place = tmp_path / "file"
    place.write_text("mine")

    refusal = refuse("--runs-dir", str(place))

    assert (refusal.code, refusal.line.startswith(f"cannot create the run folder {place}")) == (2, True)
    assert place.read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_place_is_refused(tmp_path: Path, refuse: Callable[..., Refusal]) -> None:
    """And stays empty."""
    place = tmp_path / "locked"
    place.mkdir(mode=0o500)

    refusal = refuse("--runs-dir", str(place))

    assert (refusal.code, "Permission denied" in refusal.line) == (2, True)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", ["../../x", "a/b", ".hidden", "with space", "x" * 101])
def test_a_run_name_that_is_no_folder_s_is_refused(name: str, tmp_path: Path, refuse: Callable[..., Refusal]) -> None:
    """Nothing is made outside the folder of runs either."""
    refusal = refuse("--run-name", name)

    assert (refusal.code, f"{name!r} cannot name a run" in refusal.line) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_exists_is_not_overwritten(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Both ways out are named."""
    run = tmp_path / "a3c" / "Catch" / "mine"
    run.mkdir(parents=True)

    code = main("asyncrl.a3c", ["--env-id", "Catch", "--runs-dir", str(tmp_path), "--run-name", "mine"])

    out, error = capfd.readouterr()
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert f"{run} exists already; it has no checkpoint: begin it again with --resume auto" in error
    assert "--run-name" in error
    assert list(run.iterdir()) == []


def test_two_runs_within_a_second_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name that is made for them holds the time in seconds."""
    monkeypatch.setattr("asyncrl.api.training.default_name", lambda seed, workers: "now")
    words = ["--env-id", "Catch", "--runs-dir", str(tmp_path), "--quiet", "--backend", "serial", "--workers", "1"]

    for _ in range(2):
        assert main("asyncrl.a3c", [*words, "--total-steps", "1", "--evaluation-episodes", "1"]) == 0

    assert {run.name for run in (tmp_path / "a3c" / "Catch").iterdir()} == {"now", f"now-{os.getpid()}"}


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path, refuse: Callable[..., Refusal]) -> None:
    """A folder that is missing, empty, or whose configuration is damaged or from a later version."""
    assert refuse("--resume", str(tmp_path / "nowhere")).line.endswith("nowhere is not a run: no such folder")
    (tmp_path / "empty").mkdir()
    assert refuse("--resume", str(tmp_path / "empty")).line.endswith("is not a run: it contains no config.json")
    for content, line in [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"algorithm": "asyncrl.n_step_q", "config": {}}', "is a run of n_step_q; resume it with that command"),
        ('{"algorithm": "asyncrl.a3c", "config": {"warp_speed": 9}}', "warp_speed"),
        ('{"algorithm": "asyncrl.a3c", "config": {"env_id": "Catch"}}', "nothing to resume in"),
    ]:
        (tmp_path / "empty" / "config.json").write_text(content)
        refusal = refuse("--resume", str(tmp_path / "empty"), "--runs-dir", str(tmp_path))
        assert (refusal.code, line in refusal.line) == (2, True), refusal.line


def test_the_program_lists_its_commands(capfd: pytest.CaptureFixture[str]) -> None:
    """Without words, with --help, and when there is no such command."""
    for words in ([], ["--help"], ["-h"]):
        assert asyncrl(words) == 0
        out, error = capfd.readouterr()
        assert all(f"  {algorithm} " in out for algorithm in ALGORITHMS)
        assert error == ""
    assert asyncrl(["nope"]) == 2
    out, error = capfd.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith("asyncrl: error: there is no command 'nope'; the commands are a2c, ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("evalute runs", "asyncrl: error: there is no command 'evalute'; perhaps you meant evaluate"),
        ("PPO", "asyncrl: error: there is no command 'PPO'; perhaps you meant ppo"),
        ("train PPO", "asyncrl train PPO: error: there is no algorithm 'PPO'; perhaps you meant ppo"),
        ("train --resume nowhere", "asyncrl train: error: "),
        ("train", "asyncrl train: error: name an algorithm first: a2c, "),
        ("train --config missing.toml", "asyncrl train: error: --config missing.toml cannot be read: No such file or "),
        ("train --config broken.toml", "asyncrl train: error: --config broken.toml cannot be read: TOMLDecodeError: "),
        (
            "train --config no_algorithm.toml",
            "asyncrl train: error: name an algorithm first, or in no_algorithm.toml: a2c, ",
        ),
        ("a3c --config misspelt.toml", "asyncrl a3c: error: there is no setting worker; perhaps you meant workers"),
        ("a3c CartPole-v1", "asyncrl a3c: error: unexpected word 'CartPole-v1'"),
        ("watch", "asyncrl watch: error: give the folder of the run"),
        ("watch nothing", "asyncrl watch: error: nothing is not a run: no such folder"),
        ("export", "asyncrl export: error: give the folder of the run"),
        ("export nothing --onnx x.onnx", "asyncrl export: error: nothing is not a run: no such folder"),
        ("evaluate nothing --episodse 3", "asyncrl evaluate: error: there is no --episodse; perhaps you meant --ep"),
        ("report", "asyncrl report: error: give the folder of at least one run"),
        ("plot nothing", "asyncrl plot: error: nothing is not a run: no such folder"),
        ("doctor --env-id Nowhere-v0", "asyncrl doctor: error: no environment has the id Nowhere-v0"),
        ("race --algoritms a3c", "asyncrl race: error: there is no --algoritms; perhaps you meant --algorithms"),
        ("speedup --worker 1 2", "asyncrl speedup: error: there is no --worker; perhaps you meant --workers"),
        ("sweep --learing-rates 1", "asyncrl sweep: error: there is no --learing-rates; perhaps you meant --learning"),
        ("completion fish", "asyncrl completion: error: name a shell: bash or zsh"),
    ],
)
def test_what_a_newcomer_mistypes_is_one_line(
    words: str, line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what to do, and nothing is made."""
    files = {"broken.toml": "workers = ", "no_algorithm.toml": "workers = 2", "misspelt.toml": "worker = 2"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    assert asyncrl(words.split()) == 2

    out, error = capfd.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.replace(f"{tmp_path}/", "").startswith(line)
    assert {path.name for path in tmp_path.iterdir()} == files.keys()


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_help_names_every_flag_that_applies(
    algorithm: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 80 columns, each with a text, whatever else the line holds; nothing is started."""
    monkeypatch.setenv("COLUMNS", "80")

    with pytest.raises(SystemExit) as end:
        asyncrl([algorithm, "--workers", "2", "--help"])

    out, error = capfd.readouterr()
    assert (end.value.code or 0, error) == (0, "")
    assert out.startswith(f"usage: asyncrl {algorithm} ")
    assert max(len(line) for line in out.splitlines()) <= 80
    kind = "atari" if algorithm_of(f"asyncrl.{algorithm}").takes_discrete else "continuous"
    hidden = meaningless(config_of(algorithm)(), "local", KINDS[kind])
    for field in dataclasses.fields(config_of(algorithm)):
        assert bool(re.search(rf"^│ {flag(field.name)}[ ,]", out, re.MULTILINE)) == (field.name not in hidden)
    assert algorithm != "a3c" or len(re.findall(r"^│ --", out, re.MULTILINE)) <= 55


@pytest.mark.parametrize(
    ("backend", "kind", "hidden", "shown"),
    [
        ("local", "vector", "hosts init_method delays noop_max image_size mean overlap check_replicas", "update seed"),
        ("ray", "atari", "delays reduce init_method first_deviation", "hosts push address update noop_max image_size"),
        ("serial", "continuous", "hosts push on_worker_error life_loss", "delays schedule mean variance statistics"),
        ("collective", "board", "hosts delays update image_size worker_restarts", "reduce init_method overlap"),
    ],
)
def test_what_does_nothing_on_a_backend_or_in_an_environment_is_not_shown(
    backend: str, kind: str, hidden: str, shown: str
) -> None:
    """The other settings are."""
    left_out = meaningless(config_of("a3c")(), backend, KINDS[kind])

    assert left_out >= set(hidden.split())
    assert not left_out & set(shown.split())


def test_the_module_and_the_command_are_the_same() -> None:
    """`python -m asyncrl.a3c` helps as `asyncrl a3c` does."""
    as_module = run_command("--help")
    as_command = subprocess.run(
        [sys.executable, "-m", "asyncrl", "a3c", "--help"], capture_output=True, text=True, timeout=200
    )

    assert (as_module.returncode, as_module.stderr) == (0, "")
    assert as_module.stdout == as_command.stdout


@pytest.mark.parametrize("text", ["it's", "[", "{[]: 1}", "(" * 1000])
def test_what_is_no_literal_is_a_text(text: str) -> None:
    """Whatever Python has to say of it."""
    assert parse_argument(f"name={text}") == ("name", text)


@pytest.mark.parametrize("words", ["--help", "--version", "train --help", "list", "a3c --help", "plot --help"])
def test_a_reader_that_has_seen_enough_gets_no_traceback(words: str) -> None:
    """Into a pipe that is closed already: the command ends as others do, by SIGPIPE's exit code, without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "asyncrl", *words.split()]

    with open(writer, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, timeout=200, check=False)

    assert (done.returncode, done.stderr) == (141, b"")
