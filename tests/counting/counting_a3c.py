"""An algorithm of the tests' own: A3C that counts its updates, in place of learning."""

from __future__ import annotations

from asyncrl.a3c import A3C
from tests.counting import Counts


class Counting(Counts, A3C):
    """Acts as A3C does, which here is at random."""
