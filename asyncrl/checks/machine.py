"""Is there room for the run (shared memory, file descriptors, disk), and how fast is one worker?"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import time
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path

import numpy as np

from asyncrl.checks.finding import Finding, judge
from asyncrl.config.run_config import RunConfig
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.clock import RUNNING
from asyncrl.runtime.run import Run, build_learner, build_worker
from asyncrl.storage.records import read_records

SHARED_MEMORY = Path("/dev/shm")
SPARE_FILES = 64
"""File descriptors left for the environments, TensorBoard and the libraries."""
LEAST_FILES = 48
"""File descriptors without which nothing can be tried."""
MOST_FILES = 65_536
"""More descriptors than any run needs; some programs loop over all that are allowed."""
SPARE_DISK = 200 * 2**20
"""Bytes for records and TensorBoard besides the checkpoints."""
WORKER_BYTES = 10_000_000
ATARI_BYTES = 3_000_000
"""What one more worker's process, and each of its emulators, adds to a run's memory; the rest is shared with the fork
server. By `benchmarks/startup.py` (PSS) a worker costs 10.7 MB on Catch, 13.5 on CartPole, and on Pong 17.4 with one
environment, 30.5 with four, 41.8 with eight."""
MEASURED_SECONDS = 2.0
"""How long one worker trains."""
_CELL_ROW = 64
"""Bytes of a row of counters."""


def shared_bytes(config: RunConfig, parameters: int, moments: int, target: bool, experience: int = 0) -> int:
    """Bytes that the store, the counters and the rollouts of a run take in shared memory.

    `moments` is the number of components of an observation that are normalised, 0 for none; `experience` are the bytes
    of rollouts on their way to a learner.
    """
    owners = config.workers if config.per_worker_statistics else 1
    vectors = 1 + owners * config.update_rule.statistics + int(target)
    moments_bytes = (config.workers + 1) * 8 * (1 + 2 * moments + 3)
    learners = getattr(config, "learners", 1)
    store_rows, clock_rows = config.workers + learners + 1, config.workers + learners + 2
    losses = 24 * (config.workers + learners)
    return 4 * parameters * vectors + moments_bytes + 8 + (store_rows + clock_rows) * _CELL_ROW + losses + experience


def checkpoint_bytes(config: RunConfig, parameters: int, target: bool, experience: int = 0) -> int:
    """Bytes of all checkpoints that a run keeps, the best and the one being written among them.

    `experience` are those of a replay memory that they hold.
    """
    owners = config.workers if config.per_worker_statistics else 1
    vectors = 1 + owners * config.update_rule.statistics + int(target)
    return (config.checkpoints_kept + 2) * (4 * parameters * vectors + experience)


def check_shared_memory(needed: int, folder: Path = SHARED_MEMORY) -> Finding:
    """Whether the store fits; a write beyond the end of shared memory kills a process silently."""
    if not folder.is_dir():
        return Finding("shared memory", "note", f"needs {size(needed)}; this system does not say how much there is")
    free = shutil.disk_usage(folder).free
    return judge(
        "shared memory",
        free > needed,
        f"needs {size(needed)}, {size(free)} free in {folder}",
        f"make {folder} larger (docker: --shm-size), or ask for fewer --workers, fewer --envs-per-worker or "
        "--statistics shared",
    )


def check_replay(steps: int, needed: int, available: int | None, folder: Path = SHARED_MEMORY) -> Finding:
    """Whether a full replay memory of `steps` steps fits into shared memory, and into memory."""
    rooms = [] if available is None else [available]
    if folder.is_dir():
        rooms.append(shutil.disk_usage(folder).free)
    figure = f"{steps:,} steps take {size(needed)}"
    if not rooms:
        return Finding("replay memory", "note", f"{figure}; this system does not say how much there is")
    return judge(
        "replay memory",
        min(rooms) > needed,
        f"{figure}, {size(min(rooms))} available",
        f"ask for fewer --memory-steps, or make {folder} larger (docker: --shm-size)",
    )


def worker_bytes(config: RunConfig, spec: EnvSpec, spaces: Spaces, parameters: int) -> int:
    """Least private memory of each worker's process, in bytes; what an environment other than Atari needs is unknown.

    Besides the interpreter: its gradient, a copy of the parameters or autograd's own gradients, and a rollout.
    """
    observation = math.prod(spaces.observation_shape) * np.dtype(spaces.observation_dtype).itemsize
    emulators = config.envs_per_worker * ATARI_BYTES if spec.is_atari else 0
    return WORKER_BYTES + emulators + 8 * parameters + config.envs_per_worker * config.t_max * observation


def learner_bytes(config: RunConfig, spaces: Spaces, parameters: int) -> int:
    """Least private memory of a learner's process, in bytes: like a worker's, but with a batch of all workers."""
    observation = math.prod(spaces.observation_shape) * np.dtype(spaces.observation_dtype).itemsize
    batch = config.workers * config.envs_per_worker * config.t_max * observation
    return WORKER_BYTES + 8 * parameters + batch


def processes_bytes(config: RunConfig, spec: EnvSpec, spaces: Spaces, parameters: int, learners: int) -> int:
    """Least private memory of the processes of all workers, and of any learners, in bytes."""
    workers = config.workers * worker_bytes(config, spec, spaces, parameters)
    return workers + learners * learner_bytes(config, spaces, parameters)


def available_bytes(file: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of memory that processes can still get without swapping; None if the system does not say."""
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def check_memory(workers: int, needed: int, available: int | None, learners: int = 0) -> Finding:
    """Whether processes of workers and learners that need `needed` bytes together fit; else the kernel kills some.

    Without workers it is the command's own process.
    """
    if available is None:
        return Finding("memory", "note", f"needs {size(needed)}; this system does not say how much there is")
    return judge(
        "memory",
        available > needed,
        f"{_children(workers, learners) + ' need' if workers else 'the run needs'} at least {size(needed)}, "
        f"{size(available)} available",
        "ask for fewer --workers, fewer --envs-per-worker or a smaller network",
    )


def check_descriptors(workers: int, per_child: int, limit: int | None = None, learners: int = 0) -> Finding:
    """Whether the supervisor may open enough files for `workers` workers, the evaluator and learners."""
    if limit is None:
        limit = descriptor_limit()
    needed = open_files() + (workers + 1 + learners) * max(1, per_child) + SPARE_FILES
    return judge(
        "file descriptors",
        limit == 0 or limit >= needed,
        f"{_children(workers, learners)} need about {needed}, " + (f"{limit} allowed" if limit else "no limit known"),
        f"run `ulimit -n {needed}` (or more) before, or ask for fewer --workers",
    )


def open_files() -> int:
    """Number of files this process has open; 0 if the system does not say."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def allow_more_files() -> None:
    """Raise this process's own limit on open files as far as the system lets it."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    """How many files a process may have open; 0 for no limit."""
    if sys.platform == "win32":
        return 0
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0 if limit == resource.RLIM_INFINITY else limit


def check_disk(needed: int, folder: Path) -> Finding:
    """Whether the runs folder, or the nearest existing folder above it, has room for checkpoints and records."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    free, needed = shutil.disk_usage(place).free, needed + SPARE_DISK
    if not os.access(place, os.W_OK):
        return Finding("disk", "FAIL", f"{folder} cannot be written to", "give another --runs-dir")
    return judge(
        "disk",
        free > needed,
        f"needs about {size(needed)}, {size(free)} free for {folder}",
        "make room, give another --runs-dir, or keep fewer checkpoints (--checkpoints-kept)",
    )


def train_a_while(run: Run, worker: int) -> None:
    """A worker that trains for MEASURED_SECONDS, at least one rollout; its records show where the time went.

    If experience goes to a learner, the learner takes turns in the same process.
    """
    clock = run.handles.clock
    clock.enter(worker, RUNNING)
    clock.start()
    before = clock.steps
    with ExitStack() as stack:
        roles = [stack.enter_context(closing(build_worker(run, worker)))]
        for learner in clock.learners:
            roles.append(stack.enter_context(closing(build_learner(run, learner))))
        until = time.monotonic() + MEASURED_SECONDS
        for _ in zip(*(role.loop for role in roles), strict=True):
            if clock.steps > before and time.monotonic() > until:
                return


def check_speed(run: Run) -> Finding:
    """How fast the worker of `train_a_while` was, and its environments alone."""
    rows = [row for row in read_records(run.spec.folder.worker_file(0)) if "worker_steps" in row]
    steps = sum(row["worker_steps"] for row in rows)
    seconds = sum(sum(row["time"].values()) for row in rows)
    environment = sum(row["time"]["environment"] for row in rows)
    if not steps or seconds <= 0 or environment <= 0:
        return Finding("speed of one worker", "FAIL", "no update was recorded", "look at the other checks first")
    frames = run.spec.environment.frames_per_step
    figure = f"{steps / seconds:,.0f} steps/s training, {steps / environment:,.0f} in its environments alone"
    figure += f" ({frames * steps / environment:,.0f} frames/s)" if frames > 1 else ""
    learners = run.spec.folder.path.glob("learner*.jsonl")
    learnt = [row for row in (*rows, *chain.from_iterable(map(read_records, learners))) if "updates" in row]
    finite = all(math.isfinite(float(value or 0.0)) for row in learnt for value in row["metrics"].values())
    dropped = sum(row["dropped_gradients"] for row in learnt)
    return judge(
        "speed of one worker",
        finite and not dropped,
        figure + (f", {dropped} gradients not finite" if dropped else ""),
        "the loss is not finite here: look at the size of rewards and observations, or lower --learning-rate",
    )


def _children(workers: int, learners: int) -> str:
    """Numbers of workers and learners, in words."""
    others = {0: "", 1: " and a learner"}.get(learners, f" and {learners} learners")
    return f"{workers} workers{others}"


def size(number: float) -> str:
    """Bytes in readable units."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
