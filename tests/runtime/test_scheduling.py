"""The slice a worker asks for is granted, and its niceness stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
from asyncrl.runtime.scheduling import ask_for_long_slices
before = os.nice(3)
agreed = ask_for_long_slices()
slices = [line for line in open("/proc/self/sched") if line.startswith("se.slice")]
print(agreed, os.nice(0) == before, *(line.split()[-1] for line in slices))
"""


def kernel() -> tuple[int, ...]:
    """Version of the Linux kernel; (0,) elsewhere."""
    return tuple(map(int, os.uname().release.split(".")[:2])) if sys.platform == "linux" else (0,)


@pytest.mark.skipif(kernel() < (6, 12), reason="slices can be asked for since Linux 6.12")
@pytest.mark.skipif(not Path("/proc/self/sched").exists(), reason="the kernel does not tell")
def test_a_long_slice_is_granted_and_niceness_stays() -> None:
    """In a process of its own: the tests should not keep it."""
    words = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout.split()

    if words[0] == "False":
        pytest.skip("not allowed here, or another processor")
    assert words == ["True", "True", "100000000"]
