"""The checks of `python -m asyncrl doctor`, each on the code that a run uses, and the form of their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    """What was checked, in a few words."""
    verdict: Literal["ok", "note", "FAIL"]
    """ok: as it should be. note: works, but worth knowing. FAIL: a run would go wrong."""
    figure: str
    """What was measured, with numbers and units."""
    remedy: str = ""
    """What to do about it; empty when all is well."""


def judge(check: str, good: bool, figure: str, remedy: str) -> Finding:
    """ok, or FAIL with the remedy."""
    return Finding(check, "ok", figure) if good else Finding(check, "FAIL", figure, remedy)


def advise(check: str, good: bool, figure: str, remedy: str) -> Finding:
    """ok or a note."""
    return Finding(check, "ok", figure) if good else Finding(check, "note", figure, remedy)
