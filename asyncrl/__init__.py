"""Asynchronous reinforcement learning on all cores of a machine (Mnih et al. 2016)."""

from __future__ import annotations

__version__ = "0.1.0"
