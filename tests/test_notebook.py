"""The Python API in a notebook, run without a browser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import asyncrl

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

CELLS = [
    "import gymnasium, numpy as np, torch\nimport asyncrl",
    """
class Lamps(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.lamp = self.np_random.integers(4)
        return np.eye(4, dtype=np.float32)[self.lamp], {}

    def step(self, action):
        return np.zeros(4, np.float32), float(action == self.lamp), True, False, {}
""",
    """
threads = torch.get_num_threads()
run = asyncrl.train("a3c", env_id=Lamps, workers=2, total_steps=2_000, run_name="first", quiet=False)
assert torch.get_num_threads() == threads
run.state
""",
    """
with asyncrl.training("a3c", env_id=Lamps, workers=2, total_steps=1e9, evaluation_interval_steps=1_000) as training:
    seen = [next(training)["steps"] >= 1_000]
(seen, training.run.state)
""",
    "action, _ = asyncrl.load(run).act(np.zeros(4, np.float32))\nint(action) in range(4)",
    """
from dataclasses import dataclass
from asyncrl.a3c import A3C

class Scaled(A3C):
    @dataclass(frozen=True)
    class Config(A3C.Config):
        scale: float = 1.0

    def loss(self, rollout):
        loss, metrics = super().loss(rollout)
        return self.config.scale * loss, metrics

asyncrl.train(Scaled, env_id=Lamps, workers=2, total_steps=1_000, scale=0.5).state
""",
    "run.evaluations().frame()",
]


@pytest.mark.slow
def test_a_notebook_trains_on_a_class_of_its_own_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In worker processes, which never see the notebook; so does an algorithm of its own with settings of its own."""
    monkeypatch.setenv("PYTHONPATH", str(Path(asyncrl.__file__).parent.parent))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])

    nbclient.NotebookClient(
        notebook, timeout=250, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

    results = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.outputs
        if output["output_type"] == "execute_result"
    ]
    assert results[:4] == ["'finished'", "([True], 'stopped')", "True", "'finished'"]
    assert "mean" in results[4]
    printed = [output["text"] for output in notebook.cells[2].outputs if output["output_type"] == "stream"]
    assert "finished: total_steps reached" in "".join(printed)
    assert os.listdir(tmp_path / "runs" / "a3c") == ["__main___Lamps"]
