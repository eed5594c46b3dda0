"""Shared memory: zeros for everybody, and no more of them than are written."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from asyncrl.backends.processes import start
from asyncrl.runtime.clock import shared_zeros


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (2, 3, 5)])
def test_they_are_zeros_of_that_shape_in_shared_memory(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A scalar, none at all, and several."""
    made = shared_zeros(*shape, dtype=dtype)

    assert made.is_shared()
    assert made.is_contiguous()
    assert torch.equal(made, torch.zeros(shape, dtype=dtype))


def add_own_number(tensor: Tensor, row: int) -> None:
    """A child's part: it must find zeros, and what it writes must be seen."""
    assert not tensor[row].any()
    tensor[row] = row + 1


def test_what_a_child_writes_is_seen_here() -> None:
    """Children of the fork server, which were not there when the memory was made; pieces of one storage too."""
    tensor = shared_zeros(3, 1000)
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=add_own_number, args=(tensor, row)) for row in range(2)]
    processes.append(context.Process(target=add_own_number, args=(tensor[2:], 0)))
    for process in processes:
        start(process)
    for process in processes:
        process.join(200)

    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert tensor[:, 0].tolist() == tensor[:, -1].tolist() == [1.0, 2.0, 1.0]


def resident_shared_bytes() -> int:
    """Shared memory that this process has touched."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssShmem"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
def test_what_is_never_written_takes_no_memory() -> None:
    """Of 256 MiB one page is touched; rings reserve room for the worst case, which is hardly ever written."""
    before = resident_shared_bytes()

    made = shared_zeros(2**28, dtype=torch.uint8)
    made[2**27] = 1

    assert 0 < resident_shared_bytes() - before < 2**22
    assert made[-1] == 0
