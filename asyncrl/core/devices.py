"""What this machine computes on: its cores, and torch's devices."""

from __future__ import annotations

import os

from asyncrl.core.errors import UsageError

CPU = "cpu"
"""The device of everything but a learner's computation."""


def usable_cores() -> list[int]:
    """Numbers of the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def require_device(name: str) -> None:
    """Raise UsageError unless this machine has the device."""
    import torch  # slow, and settings count cores without it

    try:
        device = torch.device(name)
        module = torch.get_device_module(device)
        found = module.is_available() and (device.index or 0) < module.device_count()
    except (RuntimeError, AttributeError):  # no device's name, or one of which this build of torch knows nothing
        found = False
    if not found:
        raise UsageError(f"--learner-device {name}: torch finds no such device on this machine")
