"""Hundreds of random sets of flags: a clear refusal before anything starts, or a run that finishes."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncrl.commands.train import main

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1800)]

ANY = st.sampled_from(["0", "1", "2", "3", "7", "-1", "0.5", "1e-9", "1e9", "nan", "inf", "", "x", "none", "1e400"])
SMALL = st.integers(1, 4).map(str)
FLAGS: dict[str, st.SearchStrategy[str]] = {
    "--workers": SMALL,
    "--envs-per-worker": SMALL,
    "--t-max": SMALL,
    "--seed": ANY,
    "--gamma": ANY,
    "--learning-rate": ANY,
    "--optimizer": st.sampled_from(["adam", "rmsprop", "centred-rmsprop", "momentum-sgd", "adagrad", "sgd"]),
    "--optimizer-decay": ANY,
    "--optimizer-epsilon": ANY,
    "--max-gradient-norm": ANY,
    "--reward-clip": ANY,
    "--update": st.sampled_from(["hogwild", "locked"]),
    "--statistics": st.sampled_from(["shared", "per-worker"]),
    "--schedule": st.sampled_from(["round-robin", "random", "x"]),
    "--delays": ANY,
    "--max-seconds": st.sampled_from(["0", "1", "-1", "nan"]),
    "--stop-at-score": ANY,
    "--evaluation-interval-steps": st.sampled_from(["0", "50", "1000", "-3", "x"]),
    "--record-interval-seconds": ANY,
    "--evaluation-episodes": st.sampled_from(["0", "1", "3"]),
    "--evaluation-cpu-share": ANY,
    "--checkpoint-interval-steps": st.sampled_from(["0", "50", "1000", "-3"]),
    "--checkpoints-kept": st.sampled_from(["0", "1", "3"]),
    "--hidden-sizes": ANY,
    "--network": st.sampled_from(["auto", "mlp", "small", "paper", "x"]),
    "--max-episode-steps": st.sampled_from(["0", "1", "5", "-2"]),
    "--env-kwargs": st.sampled_from(["limit=5", "limit=0", "length=3", "x", "=", "a=b"]),
    "--run-name": st.sampled_from(["", "run", "../x", "a b", "x" * 200]),
    "--resume": st.sampled_from(["", "auto", "nowhere"]),
    "--preset": st.sampled_from(["default", "paper"]),
    "--on-worker-error": st.sampled_from(["stop", "restart"]),
    "--on-env-error": st.sampled_from(["stop", "rebuild"]),
    "--worker-restarts": ANY,
    "--hang-seconds": st.sampled_from(["0", "0.5", "-1", "nan", "x", "600", "1e9"]),  # healthy ones never seem to hang
    "--lstm-cells": st.sampled_from(["0", "1", "4", "-1"]),
    "--normalize-observations": st.just("True"),
    "--learning-rate-schedule": st.sampled_from(["linear", "cosine", "constant", "0:1,1:0", "1:0,0:1", "x", ""]),
    "--entropy-schedule": st.sampled_from(["linear", "0:1,0.5:0", "-1:0"]),
    "--epsilon-schedule": st.sampled_from(["linear", "0:1,0.5:0.1", "0:2"]),
    "--nonsense": ANY,
}
SWITCHES = ("--normalize-observations", "--normalize-returns", "--life-loss")


@st.composite
def words(draw: st.DrawFn) -> list[str]:
    """An algorithm's flags, most of them sensible, in any combination."""
    chosen = draw(st.lists(st.sampled_from(sorted(FLAGS)), max_size=4, unique=True))
    switches = draw(st.lists(st.sampled_from(SWITCHES), max_size=2, unique=True))
    return [*switches, *(word for flag in chosen for word in (flag, draw(FLAGS[flag])))]


ALGORITHMS = st.sampled_from(["a3c", "one_step_q", "one_step_sarsa", "n_step_q", "a2c", "ppo", "impala"])
ENVIRONMENTS = st.sampled_from(["Catch", "Chain", "CartPole-v1", "Pendulum-v1"])


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(algorithm=ALGORITHMS, env_id=ENVIRONMENTS, flags=words())
def test_any_flags_are_refused_in_one_line_or_make_a_run_that_ends(
    algorithm: str, env_id: str, flags: list[str]
) -> None:
    """All workers in one process."""
    refused_or_finished(algorithm, env_id, "serial", flags)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(algorithm=ALGORITHMS, env_id=ENVIRONMENTS, flags=words())
def test_any_flags_are_refused_in_one_line_or_make_processes_that_end(
    algorithm: str, env_id: str, flags: list[str]
) -> None:
    """Workers and evaluator in processes of their own, none of which is left."""
    refused_or_finished(algorithm, env_id, "local", flags)
    assert multiprocessing.active_children() == []


def refused_or_finished(algorithm: str, env_id: str, backend: str, flags: list[str]) -> None:
    """Exit code 2, one line and no folder; or exit code 0 and `finished`. Never a traceback.

    A run may also fail, in one line, when the numbers that were asked for are such that nothing can be learnt.
    """
    base = ["--env-id", env_id, "--backend", backend, "--workers", "2", "--quiet", "--total-steps", "150"]
    with tempfile.TemporaryDirectory() as name:
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = main(f"asyncrl.{algorithm}", [*base, *flags, "--runs-dir", name])
        runs = list(Path(name).glob("*/*/*/status.json"))
        assert "Traceback" not in error.getvalue(), (flags, error.getvalue())
        if code == 2:
            assert error.getvalue().count("\n") == 1, (flags, error.getvalue())
            assert runs == [], flags
        else:
            status = json.loads(runs[0].read_text())
            assert (code, status["state"]) == (0, "finished") or "not finite" in status["reason"], (flags, status)
