"""The folder of a run: where it lies, which files it holds, and what it says about its host.

    runs/<algorithm>/<environment>/<name>/
        config.json  config.signature  host.json  status.json  run.lock
        worker-00.jsonl ...  evaluator.jsonl  supervisor.jsonl     records, one writer each
        <role>.traceback.txt                                       only when something failed
        checkpoints/  tb/

Nothing here imports torch: commands that only read runs start quickly.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from asyncrl import __version__
from asyncrl.core.devices import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.storage.files import read_facts, unlinked
from asyncrl.storage.holding import Hold, holding, is_held

LOCK, STATUS = "run.lock", "status.json"
"""Names of the files in a run's folder that say who trains there, and how it goes."""
GOING = ("starting", "running")
"""States of a run that a process is working at."""
DIED = "died"
"""The state of a run whose process ended without reporting it."""
MAX_NAME_LENGTH = 100
STAMP = "%Y%m%d-%H%M%S"
"""How the name of a run tells its time."""
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_.+=-]")

_PACKAGES = ("torch", "numpy", "gymnasium", "ale-py", "safetensors", "tensorboard", "opencv-python-headless")
_INSTRUCTIONS = (
    "sse4_2", "avx", "avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8",
    "asimd", "asimdhp", "asimddp", "sve", "sve2", "bf16", "i8mm",
)  # fmt: skip
"""What torch, oneDNN and BLAS choose their kernels by, as Linux calls it: x86, and in the last line ARM."""
_CPU_INFO = Path("/proc/cpuinfo")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class RunExists(UsageError):
    """There is a run of that name already."""


class _Entry:
    """A file or folder in a run's folder, by its name there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: RunFolder, owner: object) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run. `path` is absolute, so that an environment that changes directory moves nothing."""

    path: Path

    @classmethod
    def create(cls, runs_dir: Path, algorithm: str, env_id: str, name: str, again: bool = False) -> RunFolder:
        """Make the folder of a new run, with its empty `checkpoints` and `tb`; `again`: it may be there.

        Raises UsageError for a name that is no safe folder name and for a place that cannot be written, RunExists for
        a run that exists already; then nothing is left behind.
        """
        if len(name) > MAX_NAME_LENGTH or not _SAFE_NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot name a run: use at most {MAX_NAME_LENGTH} letters, digits and _ . + = -, "
                "starting with a letter, a digit or _"
            )
        run = cls(run_path(runs_dir, algorithm, env_id, name))
        made: list[Path] = []
        try:
            make_folders(run.path.parent, made)
            for folder in (run.path, run.checkpoints, run.tensorboard):
                if not (again and folder.is_dir()):
                    folder.mkdir()
                    made.append(folder)
        except OSError as error:
            remove_folders(made)
            if isinstance(error, FileExistsError) and run.path.is_dir():
                raise RunExists(f"{run.path} exists already") from error
            raise UsageError(f"cannot create the run folder {run.path}: {error.strerror}") from error
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the existing run at `path`. Raises UsageError when there is none."""
        run = cls(Path(os.path.abspath(path)))
        if not run.path.is_dir():
            raise UsageError(f"{run.path} is not a run: no such folder")
        if not run.config_file.is_file():
            raise UsageError(f"{run.path} is not a run: it contains no {run.config_file.name}")
        return run

    def occupied(
        self, say: Callable[[str], None] = lambda _: None, interrupted: Callable[[], bool] | None = None
    ) -> AbstractContextManager[Hold]:
        """Hold the run for this process. Raises UsageError while another process that is alive holds it.

        After a crash on another machine, and on file systems without locks, it takes some time to see that; `say` and
        `interrupted` as for `holding`.
        """
        return holding(self.path / LOCK, say, interrupted)

    def remove_remains(self) -> None:
        """Take away what was written while somebody deleted this folder.

        All that is in it goes if none of the files is there that a run creates at its start and never again.
        """
        once = self.config_file, self.host_file, self.supervisor_file, self.path / LOCK
        if not any(file.exists() for file in once):
            shutil.rmtree(self.path, ignore_errors=True)

    config_file = _Entry("config.json")
    """The configuration the run was started with."""
    host_file = _Entry("host.json")
    """What `host_facts` said at the start."""
    status_file = _Entry(STATUS)
    """Whether the run is going on, and how it ended."""
    supervisor_file = _Entry("supervisor.jsonl")
    evaluator_file = _Entry("evaluator.jsonl")
    checkpoints = _Entry("checkpoints")
    tensorboard = _Entry("tb")
    """The folder of TensorBoard event files."""
    store_lock = _Entry("store.lock")
    """Who pushes or pulls with `--update locked` holds it."""

    def records_file(self, role: str) -> Path:
        """The records of a worker or a learner; `role` is such as "worker-03" or "learner"."""
        return self.path / f"{role}.jsonl"

    def exchange_file(self, host: int) -> Path:
        """The records of what a host exchanged with the others; hosts count from 0."""
        return self.path / f"host-{host}.jsonl"

    def traceback_file(self, role: str) -> Path:
        """Where a process that fails leaves its traceback; `role` is such as "worker-03" or "evaluator"."""
        return self.path / f"{role}.traceback.txt"

    def write_traceback(self, role: str, text: str) -> None:
        """Leave a traceback there if that is possible, with escapes for what UTF-8 has not."""
        with contextlib.suppress(OSError), open(self.traceback_file(role), "wb", opener=unlinked) as file:
            file.write(text.encode("utf-8", "backslashreplace"))

    def culprit_file(self, role: str) -> Path:
        """What a process whose gradients are not finite any more has learnt from last, and with which parameters."""
        return self.path / f"{role}.culprit.safetensors"

    def stack_file(self, role: str) -> Path:
        """Where a process that hangs or crashes leaves its stack."""
        return self.path / f"{role}.stack.txt"


def run_path(runs_dir: Path, algorithm: str, env_id: str, name: str) -> Path:
    """Where the run of that name lies: RUNS_DIR/algorithm/environment/name, absolute."""
    return Path(os.path.abspath(runs_dir)) / safe_name(algorithm) / safe_name(env_id) / name


def default_name(seed: int, workers: int, stamp: str = STAMP) -> str:
    """Return a name for a run that tells its size, its seed and the local time: `w16-s1-20261121-052310`.

    The time is for people; `started_at` decides which of two runs was first.
    """
    return f"w{workers}-s{seed}-{time.strftime(stamp)}"


def started_at(folder: Path) -> datetime:
    """When a run was first started, from its status.json, in UTC: clocks on walls differ and are turned back.

    Without that a run counts as older than all others.
    """
    try:
        return datetime.fromisoformat(read_status(folder)["started"]).astimezone(UTC)
    except (ValueError, KeyError, TypeError, OverflowError):
        return datetime.min.replace(tzinfo=UTC)


def read_status(folder: Path) -> dict[str, Any]:
    """What status.json in a run's folder says; empty if there is none, or it cannot be read, and no process is there.

    A run that is said to be going on, but that no process holds, is in the state DIED: its command was killed, or its
    machine went down. Nothing is written, so the folder may be read-only.
    """
    status = read_facts(folder / STATUS)
    if status.get("state", GOING[0]) not in GOING:
        return status
    if is_held(folder / LOCK):
        return status or {"state": GOING[0]}
    status = read_facts(folder / STATUS)  # the run may have ended since
    if status.get("state") not in GOING:
        return status
    return status | {"state": DIED, "reason": "its process is gone: it was killed, or its machine went down"}


def runs_of(runs_dir: Path, algorithm: str, env_id: str) -> list[RunFolder]:
    """Return all runs of an algorithm on an environment, whatever their state."""
    place = run_path(runs_dir, algorithm, env_id, "_").parent
    return [RunFolder(path) for path in sorted(place.iterdir()) if path.is_dir()] if place.is_dir() else []


def versions() -> dict[str, str | None]:
    """Return the versions of Python, of asyncrl and of the packages a result depends on; None for one not installed."""
    own = {"python": platform.python_version(), "asyncrl": __version__}
    return own | {name: _version(name) for name in _PACKAGES}


def host_facts() -> dict[str, Any]:
    """Return what a reader must know of the machine to judge a result.

    This is an allow-list. Nothing else of the host belongs into a file that people publish: no names, no paths, no
    environment but the three variables that set the number of threads.
    """
    return {
        "versions": versions(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cpu_instructions": cpu_instructions(),
        "cores_logical": os.cpu_count(),
        "cores_usable": len(usable_cores()),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "threads": {name: os.environ.get(name) for name in _THREAD_VARIABLES},
    }


def cpu_instructions() -> list[str] | None:
    """Return those of _INSTRUCTIONS that the processor has; None where the system does not tell."""
    facts = _cpu_facts()
    flags = facts.get("flags") or facts.get("Features")
    return None if flags is None else [name for name in _INSTRUCTIONS if name in flags.split()]


def safe_name(part: str) -> str:
    """Return `part` as one folder name: "ALE/Pong-v5" becomes "ALE_Pong-v5"."""
    return _UNSAFE_CHARACTERS.sub("_", part)[:MAX_NAME_LENGTH].lstrip(".-") or "_"


def make_folders(path: Path, made: list[Path]) -> None:
    """Make a folder and its missing parents, noting each one made."""
    if path.is_dir():
        return
    make_folders(path.parent, made)
    with contextlib.suppress(FileExistsError):  # another run may be making the same parents
        path.mkdir()
        made.append(path)


def remove_folders(made: list[Path]) -> None:
    """Remove the folders made, last first; those that others have filled since stay."""
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            folder.rmdir()


@functools.cache  # reading it takes milliseconds, and every checkpoint says it
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    """Return the processor's name, with family and model, which a name may leave open."""
    facts = _cpu_facts()
    name, family, model = (facts.get(key) for key in ("model name", "cpu family", "model"))
    if name and family and model:
        return f"{name} (family {family}, model {model})"
    return name or platform.processor() or None


def _cpu_facts() -> dict[str, str]:
    """Return what Linux says of the first processor; nothing elsewhere."""
    try:
        first = _CPU_INFO.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
