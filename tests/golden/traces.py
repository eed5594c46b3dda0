"""What short serial runs do, to the bit: a net under every change that is not about learning.

A trace is made by the commands alone, so it survives any change behind them. It holds checksums of theta at several
checkpoints, the returns of all training episodes and those of the evaluations. Floating point differs between kinds of
processors, so a set of traces belongs to one kind (`processor`) and one version of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

SETS = Path(__file__).parent / "sets"

_SHORT = (
    "--backend", "serial", "--workers", "3", "--seed", "7", "--evaluation-episodes", "2", "--quiet",
    "--checkpoints-kept", "100", "--record-interval-seconds", "1000",
)  # fmt: skip
_VECTOR = (
    *_SHORT, "--env-id", "CartPole-v1", "--max-episode-steps", "40", "--envs-per-worker", "2", "--t-max", "5",
    "--total-steps", "6000", "--checkpoint-interval-steps", "1500", "--evaluation-interval-steps", "3000",
)  # fmt: skip
_SCREEN = (
    *_SHORT, "--env-id", "ALE/Pong-v5", "--max-episode-steps", "60", "--envs-per-worker", "2", "--t-max", "5",
    "--total-steps", "2400", "--checkpoint-interval-steps", "600", "--evaluation-interval-steps", "1200",
)  # fmt: skip
_BOARD = (*_SCREEN, "--env-id", "MinAtar/Breakout-v0", "--max-episode-steps", "200")
_CONTINUOUS = (*_VECTOR, "--env-id", "Pendulum-v1")

_RATES = {"a3c-vector": ("--learning-rate", "0.002")}
"""Kept as it was when the traces were made, although the preset has another one now."""

CASES: dict[str, tuple[str, ...]] = {
    **{
        f"{algorithm}-{kind}": (f"asyncrl.{algorithm}", *words, *_RATES.get(f"{algorithm}-{kind}", ()))
        for algorithm in ("a3c", "one_step_q", "one_step_sarsa", "n_step_q")
        for kind, words in {"vector": _VECTOR, "screen": _SCREEN, "board": _BOARD}.items()
    },
    **{
        f"{algorithm}-{kind}-memory": (
            f"asyncrl.{algorithm}",
            *words,
            *_RATES.get(f"{algorithm}-{kind}", ()),
            "--lstm-cells",
            "16",
        )
        for algorithm in ("a3c", "n_step_q")
        for kind, words in {"vector": _VECTOR, "screen": _SCREEN}.items()
    },
    "a3c-continuous": ("asyncrl.a3c", *_CONTINUOUS),
    "a3c-continuous-memory": ("asyncrl.a3c", *_CONTINUOUS, "--lstm-cells", "16"),
    **{
        f"{algorithm}-continuous": (
            f"asyncrl.{algorithm}",
            *_CONTINUOUS,
            "--warmup-steps",
            "600",
            "--replay-ratio",
            "0.1",
            "--minibatch",
            "32",
        )
        for algorithm in ("apex_dpg", "sac")
    },
    "a3c-paper": ("asyncrl.a3c", *_SCREEN, "--preset", "paper"),
    "a3c-random-turns": ("asyncrl.a3c", *_VECTOR, *_RATES["a3c-vector"], "--schedule", "random"),
}
"""Name: algorithm and flags."""


def processor() -> str:
    """What decides how numbers are rounded here: architecture, maker, torch's choice of kernels, torch's version."""
    import torch

    maker = "unknown"
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = [line for line in info.read_text(errors="replace").splitlines() if line.startswith("vendor_id")]
        maker = lines[0].partition(":")[2].strip() if lines else maker
    release = torch.__version__.partition("+")[0]
    return f"{platform.machine()}-{maker}-{torch.backends.cpu.get_cpu_capability()}-torch-{release}".replace(" ", "_")


def make_trace(case: str, folder: Path, source: Path | None = None) -> dict[str, Any]:
    """Run a case in `folder` and say what came out; with the package in `source`, or in this process with its own."""
    algorithm, *words = CASES[case]
    words += ["--runs-dir", str(folder), "--run-name", case]
    if source is None:
        from asyncrl.commands.train import main

        code, error = main(algorithm, words), ""
    else:
        command = [sys.executable, "-m", algorithm, *words]
        environment = os.environ | {"PYTHONPATH": str(source)}
        done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
        code, error = done.returncode, done.stderr.strip()
    if code != 0:
        raise RuntimeError(f"{case} ended with exit code {code}: {error}")
    (run,) = folder.glob(f"*/*/{case}")
    return {
        "theta": {path.name: _checksum(path) for path in sorted((run / "checkpoints").glob("step_*"))},
        "episodes": [
            [episode for row in _rows(file) for episode in row.get("episodes", ())]
            for file in sorted(run.glob("worker-*.jsonl"))
        ],
        "evaluations": [[row["steps"], row["returns"]] for row in _rows(run / "evaluator.jsonl") if "returns" in row],
    }


def _checksum(checkpoint: Path) -> str:
    """SHA-256 of theta, whatever the parameters are called: their values in the order of their names."""
    import safetensors.torch

    tensors = safetensors.torch.load_file(checkpoint / "weights.safetensors")
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
