"""What holds for every test: one thread, and nothing left behind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")

import psutil
import pytest
import torch

torch.set_num_threads(1)
_LAUNCHERS = re.compile(r"(SLURM|OMPI|PMI|MASTER)_|ASYNCRL_SECRET|((LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE)$")
for _name in filter(_LAUNCHERS.match, list(os.environ)):
    del os.environ[_name]  # the tests are no ranks of whoever has started them

_LASTING = ("forkserver", "resource_tracker")
"""Helpers of multiprocessing that serve the whole test session."""
_HOSTS = {"test_ray.py", "test_ray_faults.py", "test_hosts.py", "test_slurm.py"}
"""Files whose tests start clusters or make hosts, which is too much for two at a time."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist loadfile`: besides the tests of a file, all that need hosts are run by one worker."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "hosts" if file.rpartition("/")[2] in _HOSTS else file

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def a_key_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the tests sign is no business of the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a process behind, which is killed, or a file in shared memory."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    files = _shared_memory_files()
    yield
    left = []
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            if child.pid not in before and not any(name in command for name in _LASTING):
                left.append(f"{child.pid}: {command}")
                child.kill()
        except psutil.Error:
            continue
    assert not left, f"left running: {left}"
    assert _shared_memory_files() <= files


def _shared_memory_files() -> set[str]:
    try:
        return {name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")}
    except OSError:
        return set()
