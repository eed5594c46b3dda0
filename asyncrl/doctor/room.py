"""Is there room for a run: shared memory, memory, file descriptors and disk? A run refuses to begin without it."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import psutil

from asyncrl.algorithm import MEMORY
from asyncrl.backends.handles import experience_bytes
from asyncrl.backends.processes import control_groups, size_of
from asyncrl.core.errors import UsageError
from asyncrl.doctor import Finding, judge
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.snapshots import keeps_replay

SHARED_MEMORY = Path("/dev/shm")
FILES_PER_CHILD = 3
"""File descriptors of the supervisor per child: two, and one to spare."""
SPARE_FILES = 64
"""File descriptors left for the environments, TensorBoard and the libraries."""
MOST_FILES = 65_536
"""More descriptors than any run needs; some programs loop over all that are allowed."""
SPARE_DISK = 200 * 2**20
"""Bytes for records and TensorBoard besides the checkpoints."""
WORKER_BYTES = 10_000_000
ATARI_BYTES = 3_000_000
"""What one more worker's process, and each of its emulators, adds to a run's memory; the rest is shared with the fork
server. By `benchmarks/startup.py` (PSS) a worker costs 10.7 MB on Catch, 13.5 on CartPole, and on Pong 17.4 with one
environment, 30.5 with four, 41.8 with eight."""
_CELL_ROW = 64
"""Bytes of a row of counters."""


def check_room(plan: Plan, parameters: int, place: Path) -> Iterator[Finding]:
    """Whether a run with so many parameters, written below `place`, fits into this machine."""
    config, experience, learners, ranks = plan.config, experience_bytes(plan), plan.learners, 0
    if config.backend == "collective":  # each rank has a store of its own
        from asyncrl.backends.collective.launch import ranks_here

        ranks = ranks_here(os.environ, config.workers)
    workers = ranks or (config.workers if config.backend == "local" else 0)
    also = {0: "", 1: " and a learner"}.get(learners, f" and {learners} learners")
    who = f"{workers} {'ranks' if ranks else 'workers'}{also} need" if workers else "the run needs"

    memory = available_memory()
    if plan.method.experience == MEMORY:
        steps = config.memory_steps // max(1, plan.replay_hosts)  # type: ignore[attr-defined]
        room = min(memory, shutil.disk_usage(SHARED_MEMORY).free) if SHARED_MEMORY.is_dir() else memory
        figure = f"{steps:,} steps take {size(experience)}, {size(room)} available"
        remedy = f"use fewer --memory-steps, or make {SHARED_MEMORY} larger (docker: --shm-size)"
        yield judge("replay memory", room > experience, figure, remedy)
    yield check_shared_memory(max(1, ranks) * shared_bytes(plan, parameters, experience))
    private = processes_bytes(plan, parameters, workers) if workers else 0
    figure = f"{who} at least {size(private + experience)}, {size(memory)} available"
    remedy = "use fewer --workers, fewer --envs-per-worker or a smaller network"
    yield judge("memory", memory > private + experience, figure, remedy)
    limit = raised_limit()
    files = (psutil.Process().num_fds() if limit else 0) + (workers + 1 + learners) * FILES_PER_CHILD + SPARE_FILES
    figure = f"{who} about {files}, " + (f"{limit} allowed" if limit else "no limit known")
    remedy = f"run `ulimit -n {files}` (or more) first, or use fewer --workers"
    yield judge("file descriptors", limit == 0 or limit >= files, figure, remedy)
    # A run that is resumed in `place` has some already.
    files = (place / "checkpoints").rglob("*.*") if config.is_resumed else ()
    there = sum(size_of(file) for file in files if file.is_file())
    yield check_disk(max(0, checkpoint_bytes(plan, parameters, experience) - there), place)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that processes can still take: of the machine's memory, or of what a container or a cluster's job may."""
    least: int = psutil.virtual_memory().available
    for group in control_groups(root):
        with contextlib.suppress(OSError, ValueError):  # no limit, or no such group
            limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            given_up = sum(int(stat.get(kind, 0)) for kind in ("inactive_file", "active_file", "slab_reclaimable"))
            least = min(least, limit - used + given_up)
    return max(0, least)


def demand(findings: Iterable[Finding]) -> None:
    """Raise UsageError for the first finding that is a failure."""
    for finding in findings:
        if finding.verdict == "FAIL":
            raise UsageError(f"{finding.check}: {finding.figure}; {finding.remedy}")


def shared_bytes(plan: Plan, parameters: int, experience: int) -> int:
    """Bytes that the store, the counters and the rollouts of a run take in shared memory; of ranks: those of one.

    `experience` are the bytes of rollouts on their way to a learner.
    """
    workers = plan.config.workers
    moments_bytes = (workers + 1) * 8 * (1 + 2 * plan.moments_size + 3)
    writers = workers + getattr(plan.config, "learners", 1)
    rows, losses = (2 * writers + 3) * _CELL_ROW, 24 * writers
    return _vectors_bytes(plan, parameters) + moments_bytes + 8 + rows + losses + experience


def checkpoint_bytes(plan: Plan, parameters: int, experience: int) -> int:
    """Bytes of all checkpoints that a run keeps, the best and the one being written among them."""
    kept = experience if keeps_replay(plan.config) else 0
    return (plan.config.checkpoints_kept + 2) * (_vectors_bytes(plan, parameters) + kept)


def _vectors_bytes(plan: Plan, parameters: int) -> int:
    """Bytes of theta, theta^- and the optimiser's statistics."""
    config = plan.config
    owners = config.workers if config.per_worker_statistics else 1
    return 4 * parameters * (1 + owners * config.update_rule.statistics + int(plan.method.has_target))


def processes_bytes(plan: Plan, parameters: int, workers: int) -> int:
    """Least private memory of the processes of so many workers, and of any learners, in bytes.

    Besides the interpreter each has its gradient, a copy of the parameters or autograd's own gradients, and a rollout;
    a learner has a batch of all workers. What an environment other than Atari needs is unknown.
    """
    config, spaces = plan.config, plan.spaces
    observation = math.prod(spaces.observation_shape) * np.dtype(spaces.observation_dtype).itemsize
    rollout = config.envs_per_worker * config.t_max * observation
    emulators = config.envs_per_worker * ATARI_BYTES if plan.environment.is_atari else 0
    process = WORKER_BYTES + 8 * parameters
    return workers * (process + emulators + rollout) + plan.learners * (process + config.workers * rollout)


def check_shared_memory(needed: int, folder: Path = SHARED_MEMORY) -> Finding:
    """Whether the store fits; a write beyond the end of shared memory kills a process silently."""
    figure = f"needs {size(needed)}"
    if not folder.is_dir():
        return Finding("shared memory", "note", f"{figure}; how much is available is unknown on this system")
    free = shutil.disk_usage(folder).free
    remedy = f"make {folder} larger (docker: --shm-size), or use fewer --workers, fewer --envs-per-worker or "
    remedy += "--statistics shared"
    return judge("shared memory", free > needed, f"{figure}, {size(free)} free in {folder}", remedy)


def raised_limit() -> int:
    """How many files this process may have open, raised as far as the system lets it; 0 for no limit."""
    if sys.platform == "win32":
        return 0
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return 0 if soft == resource.RLIM_INFINITY else soft


def check_disk(needed: int, folder: Path) -> Finding:
    """Whether the runs folder, or the nearest existing folder above it, has room for checkpoints and records."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    free, needed = shutil.disk_usage(place).free, needed + SPARE_DISK
    if not os.access(place, os.W_OK):
        return Finding("disk", "FAIL", f"{folder} is not writable", "choose another --runs-dir")
    figure = f"needs about {size(needed)}, {size(free)} free for {folder}"
    remedy = "free some space, choose another --runs-dir, or keep fewer checkpoints (--checkpoints-kept)"
    return judge("disk", free > needed, figure, remedy)


def size(number: float) -> str:
    """Bytes in readable units."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
