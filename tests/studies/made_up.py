"""Run folders with made-up records, for studies that never ran."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from asyncrl.studies.study import Cell, Reference, Settings, Study, StudyPlan, make_cells

PHASES = ("environment", "act", "collect", "loss", "pull", "push", "wait")
Reaches = Callable[[Cell], int]
"""Steps at which a run's score goes from 0 to 1; beyond 10 000 it never does."""


def make_run(
    folder: Path, cell: Cell, reached_at: int, steps_per_second: float = 100.0, cores: int = 4, state: str = "finished"
) -> None:
    """A run of 10 000 steps with an evaluation every 100."""
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps({"state": state}))
    (folder / "host.json").write_text(
        json.dumps({"cores_usable": cores, "cpu": "A processor", "torch_kernels": "AVX2"})
    )
    rows = [
        {"steps": at, "seconds": at / steps_per_second, "mean": float(at >= reached_at), "cpu_share": 0.02}
        for at in range(100, 10_001, 100)
    ]
    (folder / "evaluator.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for worker in range(cell.workers):
        row = {
            "steps": 10_000,
            "seconds": 10_000 / steps_per_second,
            "worker_steps": 10_000 // cell.workers,
            "staleness_counts": {str(cell.workers - 1): 90, str(cell.workers): 10},
            "time": {phase: (i + 1) * cell.workers**0.2 for i, phase in enumerate(PHASES)},
        }
        (folder / f"worker-{worker:02d}.jsonl").write_text('{"event": "ready"}\n' + json.dumps(row) + "\n")


def make_study(
    runs_dir: Path,
    reaches: Reaches,
    rate: Callable[[Cell], float],
    algorithms: tuple[str, ...] = ("a3c", "one_step_q"),
    env_ids: tuple[str, ...] = ("Catch", "CartPole-v1"),
    backends: tuple[str, ...] = ("local", "serial"),
    workers: tuple[int, ...] = (1, 2, 4, 8),
    seeds: int = 3,
    ablation: str = "none",
) -> Study:
    """A study whose runs all look finished. The reference score is 1, the machine has 4 cores."""
    runs_dir.mkdir(exist_ok=True)
    file = Study(runs_dir, "speedup")
    entrants = [(algorithm, backend) for backend in backends for algorithm in algorithms]
    cells = make_cells(entrants, ablation, env_ids, workers, seeds)
    settings = dict.fromkeys(env_ids, Settings(10_000, 0.0, 100, 20, False, ("--t-max", "5")))
    references = {(env, algorithm): Reference(1.0, "made up") for env in env_ids for algorithm in algorithms}
    file.add(StudyPlan("python -m asyncrl speedup", settings, cells, references, ablation))
    file.save()
    for cell in cells:
        make_run(file.folder(cell), cell, reaches(cell), rate(cell))
    return file
