"""The commands of all documents run, with small numbers and in this process; those that cannot are listed, and why."""

from __future__ import annotations

import glob
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.__main__ import main
from asyncrl.catalog import ALGORITHMS
from asyncrl.runtime.precision import BFLOAT16, gain_of_bfloat16
from asyncrl.storage.run_folder import cpu_instructions
from tests.test_commands_in_documents import DOCS, TAUGHT, commands, files_in, of_the_package, tutorial

RUN_ELSEWHERE = {
    "README.md": "test_commands_in_documents.py",
    "quickstart.md": "test_commands_in_documents.py",
    "environments.md": "test_commands_in_documents.py",
    "tutorial.md": "test_commands_in_documents.py",
    "extending.md": "test_recipes.py",
}
"""Documents whose commands another test runs."""
NOT_RUN = {
    r"python3 -m venv|pip|\. ": "installs from a registry: .ci/run does so",
    r"ruff|mypy|\.ci/run|python -m (pytest|tests)|-m slow": "checks this repository: .ci/run does so",
    r"docker": "needs Docker",
    r"srun|scontrol": "needs SLURM; the scripts around it are run by test_documentation.py",
    r"mpirun": "needs an MPI; backends/test_collective.py runs such a group where there is one",
    r"torchrun --nnodes": "needs two machines",
    r"ray |.*--backend ray": "needs Ray; backends/test_ray.py trains on it where it is installed",
    r"python benchmarks": "no command of the package; whoever measures runs it",
    r"parallel": "needs GNU Parallel; the jobs that it would run are run here",
    r"code=|preempted=|case |esac|\d+( |\)|$)|\*\)|grep |if |then |fi$|\[ |exit |export |seed=|bash$"
    r"|while |until |do |sleep |done$|tr |here=|node|trap |\}": "is the shell's",
}
"""How commands begin that are not run, and why. The flags of all are understood: test_commands_in_documents.py."""
RUNS = ("a3c --env-id CartPole-v1", "a3c --env-id ALE/Pong-v5", "ppo --env-id ALE/Pong-v5")
"""What documents evaluate, watch, report and export, as the run NAME."""

TRAINING = {"--total-steps": "400", "--evaluation-interval-steps": "400", "--evaluation-episodes": "1"}
STUDY = {"--total-steps": "400", "--evaluation-episodes": "1", "--seeds": "1", "--backend": "serial"}
SMALL = {
    **dict.fromkeys(ALGORITHMS, TRAINING | {"--workers": "2", "--max-episode-steps": "50", "--backend": "serial"}),
    "evaluate": {"--episodes": "2"},
    "watch": {"--steps": "10"},
    "race": STUDY | {"--workers": "2"},
    "speedup": STUDY | {"--env-ids": "Catch"},
    "sweep": STUDY | {"--workers": "2", "--evaluation-interval-steps": "200", "--max-episode-steps": "50"},
}
"""Flags of each command that a test gives other values, to be done soon."""
for page in ("gorila", "apex", "apex_dpg", "sac"):
    SMALL[page] = SMALL[page] | {"--memory-steps": "4000", "--warmup-steps": "200"}
SMALL["my_package.my_algorithm"] = SMALL["a3c"]
FURTHER = {"race": ["--", "--max-episode-steps", "50"], "speedup": ["--workers", "1", "2"]}
"""What stands behind them."""


def small(words: list[str]) -> list[str]:
    """A command of ours with small numbers; where it says which backend or which learners, these stay."""
    start = 2 if words[0] == "train" else 1
    name, words = words[start - 1], words[:]
    for flag, value in SMALL.get(name, {}).items():
        if flag in words:
            if flag != "--backend":
                words[words.index(flag) + 1] = value
        elif flag != "--backend" or not {"--learners", "--layout"} & set(words):
            words += [flag, value]
    text = re.sub(r"\b\d+ (log-)?uniform|--trials \d+", lambda many: re.sub(r"\d+", "2", many[0]), shlex.join(words))
    return shlex.split(text) + FURTHER.get(name, [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs and files that documents speak of, one after the other."""
    folder = tmp_path_factory.mktemp("documents")
    tutorial(folder)
    for name, block in files_in((DOCS / "quickstart.md").read_text()).items():
        (folder / name).write_text(block)
    for run in RUNS:
        words = [*run.split(), "--workers", "2", "--backend", "serial", "--run-name", "NAME", "--quiet"]
        words += ["--runs-dir", str(folder / "runs"), *(word for pair in TRAINING.items() for word in pair)]
        assert main(words) == 0
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", [page for page in TAUGHT if page.name not in RUN_ELSEWHERE], ids=lambda p: p.name)
def test_the_commands_of_a_document_run(
    document: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One after the other. What is printed as jobs is run as well."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).parent.parent}")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    for words in commands(document.read_text()):
        line, own = " ".join(words), of_the_package(words)
        if any(re.match(start, line) for start in NOT_RUN):
            continue
        assert own is not None, f"{line}: run it here, or say in NOT_RUN why not"
        own = small([found for word in own for found in (glob.glob(word) if "*" in word else [word])])
        if words[0] == "torchrun":
            ours = words.index("-m")
            torchrun = [sys.executable, "-m", "torch.distributed.run", *words[1:ours], "-m", "asyncrl", *own]
            assert subprocess.run(torchrun, timeout=200).returncode == 0, line
            continue
        absent = BFLOAT16.isdisjoint(cpu_instructions() or BFLOAT16)
        if "bfloat16" in own and (absent or gain_of_bfloat16() < 1):
            pytest.skip("bfloat16 does not pay on this processor")
        code = main(own)
        said = capfd.readouterr()
        assert code == 0, f"{shlex.join(own)}: {said.out[-500:]}{said.err[-1500:]}"
        if "--print-jobs" in own:
            assert [main(shlex.split(job)[3:]) for job in said.out.splitlines()] == [0] * 2
