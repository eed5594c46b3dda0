"""An algorithm of the tests' own: IMPALA that counts its updates, in place of learning."""

from __future__ import annotations

from asyncrl.impala import Impala
from tests.counting import Counts


class Counting(Counts, Impala):
    """Acts as IMPALA does, which here is at random."""
