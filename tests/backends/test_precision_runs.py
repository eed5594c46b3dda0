"""Runs with --precision bfloat16: what is said, recorded, repeated and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from asyncrl.commands.train import main
from asyncrl.runtime import precision
from tests.backends.test_runs import train, what_was_learnt

WORDS = ("--backend", "serial", "--workers", "2", "--total-steps", "2000", "--precision", "bfloat16")


def tell(monkeypatch: pytest.MonkeyPatch, instructions: list[str] | None, gain: float = 1.5) -> None:
    """Let the processor seem to have these instructions, and to be so many times as fast in bfloat16."""
    monkeypatch.setattr(precision, "cpu_instructions", lambda: instructions)
    monkeypatch.setattr(precision, "gain_of_bfloat16", lambda: gain)


def test_a_serial_run_in_bfloat16_repeats_itself_and_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """To the bit; float32 gives another run. The choice is printed, and stands in config.json."""
    tell(monkeypatch, ["avx512f", "avx512_bf16"])
    first = train(tmp_path / "first", *WORDS, "--no-quiet")
    assert ", bfloat16\n" in capfd.readouterr().out
    second = train(tmp_path / "second", *WORDS)
    plain = train(tmp_path / "plain", *WORDS[:-2])

    assert what_was_learnt(first) == what_was_learnt(second)
    assert what_was_learnt(first)["parameters"] != what_was_learnt(plain)["parameters"]
    assert json.loads((first / "config.json").read_text())["config"]["precision"] == "bfloat16"


def test_a_resumed_run_keeps_its_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Though nobody gives it again; it goes on as if it had not ended, and prints and writes what it is."""
    tell(monkeypatch, ["amx_bf16"])
    words = (*WORDS, "--learning-rate-schedule", "constant", "--evaluation-interval-steps", "500")
    run = train(tmp_path / "run", *words)
    whole = train(tmp_path / "whole", *words, "--total-steps", "3000")
    capfd.readouterr()

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "3000", "--no-quiet"]) == 0

    assert ", bfloat16\n" in capfd.readouterr().out
    assert what_was_learnt(run)["steps"] == what_was_learnt(whole)["steps"]
    assert json.loads((run / "config.json").read_text())["config"]["precision"] == "bfloat16"


def test_a_processor_without_bfloat16_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one line, before a folder is made. Where the system does not tell, it is measured."""
    tell(monkeypatch, ["avx2", "avx512f"])

    assert main("asyncrl.a3c", ["--env-id", "Catch", "--runs-dir", str(tmp_path / "runs"), *WORDS]) == 2

    error = capfd.readouterr().err
    assert "--precision float32" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    tell(monkeypatch, None)
    train(tmp_path / "runs", *WORDS)


@pytest.mark.parametrize("instructions", [["avx512f", "avx512_bf16"], ["bf16"], None])
def test_a_processor_that_is_slower_in_bfloat16_refuses_it(
    instructions: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Whatever its instructions promise: in one line, which says what was measured."""
    tell(monkeypatch, instructions, gain=0.8)

    assert main("asyncrl.a3c", ["--env-id", "Catch", "--runs-dir", str(tmp_path / "runs"), *WORDS]) == 2

    error = capfd.readouterr().err
    assert "--precision bfloat16 takes 1.25 times as long as float32" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_processor_with_tiles_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """amx_bf16 is enough."""
    tell(monkeypatch, ["amx_bf16"], gain=0.0)

    train(tmp_path, *WORDS)


def test_the_measurement_changes_no_random_numbers() -> None:
    """It makes a network; a run's own must be the same after it."""
    precision.gain_of_bfloat16.cache_clear()
    before = torch.random.get_rng_state()

    assert precision.gain_of_bfloat16() > 0
    assert torch.equal(torch.random.get_rng_state(), before)
