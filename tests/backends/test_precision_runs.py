"""Runs with --precision bfloat16: what is said, recorded, repeated and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncrl.commands.train import main
from asyncrl.runtime import plan
from tests.backends.test_runs import train, what_was_learnt

WORDS = ("--backend", "serial", "--workers", "2", "--total-steps", "2000", "--precision", "bfloat16")


def tell(monkeypatch: pytest.MonkeyPatch, instructions: list[str] | None) -> None:
    """Let the processor seem to have these instructions; without them bfloat16 is only slower."""
    monkeypatch.setattr(plan, "cpu_instructions", lambda: instructions)


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


def test_a_resumed_run_keeps_its_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on as if it had not ended: equal to a run that was as long from the first."""
    tell(monkeypatch, ["amx_bf16"])
    words = (*WORDS, "--learning-rate-schedule", "constant", "--evaluation-interval-steps", "500")
    run = train(tmp_path / "run", *words)
    whole = train(tmp_path / "whole", *words, "--total-steps", "3000")

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "3000"]) == 0

    assert json.loads((run / "config.json").read_text())["config"]["precision"] == "bfloat16"
    assert what_was_learnt(run)["steps"] == what_was_learnt(whole)["steps"]


def test_a_processor_without_bfloat16_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one line, before a folder is made. A system that does not tell is believed."""
    tell(monkeypatch, ["avx2", "avx512f"])

    assert main("asyncrl.a3c", ["--env-id", "Catch", "--runs-dir", str(tmp_path / "runs"), *WORDS]) == 2

    error = capfd.readouterr().err
    assert "--precision float32" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    tell(monkeypatch, None)
    train(tmp_path / "runs", *WORDS)
