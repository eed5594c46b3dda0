"""Devices that torch computes on."""

from __future__ import annotations

import torch

from asyncrl.core.errors import UsageError

CPU = "cpu"
"""The device of everything but a learner's computation."""


def require_device(name: str) -> None:
    """Raise UsageError unless this machine has the device."""
    try:
        device = torch.device(name)
        module = torch.get_device_module(device)
        found = module.is_available() and (device.index or 0) < module.device_count()
    except (RuntimeError, AttributeError):  # no device's name, or one of which this build of torch knows nothing
        found = False
    if not found:
        raise UsageError(f"--learner-device {name}: torch finds no such device on this machine")
