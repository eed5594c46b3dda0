"""Amdahl's law and the Universal Scalability Law, recovered from what they make themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asyncrl.studies.scaling_laws import Law, fit_amdahl, fit_usl

COUNTS = [1, 2, 4, 8, 16, 32]


def test_amdahl_by_hand() -> None:
    """A tenth is serial: 1 / (0.1 + 0.9 / 4) = 3.0769 with 4 workers, and never 10."""
    law = Law(0.1)

    assert law.speedup(4) == pytest.approx(1 / 0.325)
    assert law.limit == pytest.approx(10)
    assert law.best_workers == math.inf


def test_the_universal_law_by_hand() -> None:
    """4 / (1 + 0.1 * 3 + 0.01 * 12) = 2.8169; the most is at sqrt(0.9 / 0.01) = 9.49 workers."""
    law = Law(0.1, 0.01)

    assert law.speedup(4) == pytest.approx(4 / 1.42)
    assert law.best_workers == pytest.approx(math.sqrt(90))
    assert law.limit == pytest.approx(law.speedup(math.sqrt(90)))
    assert law.speedup(9) < law.limit > law.speedup(10)


@pytest.mark.parametrize("serial", [0.0, 0.03, 0.4])
def test_amdahls_serial_fraction_is_recovered(serial: float) -> None:
    """Exactly, from points without noise."""
    law = fit_amdahl(COUNTS, [Law(serial).speedup(n) for n in COUNTS])

    assert law.contention == pytest.approx(serial, abs=1e-9)
    assert law.error == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("contention", "coherence"), [(0.05, 0.002), (0.0, 0.01), (0.2, 0.0), (0.0, 0.0)])
def test_contention_and_coherence_are_recovered(contention: float, coherence: float) -> None:
    """Exactly, also where one of them or both are 0."""
    law = fit_usl(COUNTS, [Law(contention, coherence).speedup(n) for n in COUNTS])

    assert (law.contention, law.coherence) == (pytest.approx(contention, abs=1e-9), pytest.approx(coherence, abs=1e-9))


def test_noise_of_three_percent_moves_the_law_little() -> None:
    """Contention within 0.02 and coherence within 0.001, in 50 noisy studies out of 50."""
    random = np.random.default_rng(0)
    truth = np.array([Law(0.05, 0.002).speedup(n) for n in COUNTS])
    laws = [fit_usl(COUNTS, (truth * (1 + 0.03 * random.standard_normal(6))).tolist()) for _ in range(50)]

    assert max(abs(law.contention - 0.05) for law in laws) < 0.02
    assert max(abs(law.coherence - 0.002) for law in laws) < 0.001


def test_more_than_linear_is_no_negative_contention() -> None:
    """The paper's one-step Q-learning: the laws can say no more than "ideal"."""
    law = fit_usl([1, 2, 4, 8, 16], [1.0, 3.0, 6.3, 13.3, 24.1])

    assert (law.contention, law.coherence, law.limit) == (0.0, 0.0, math.inf)
    assert law.error > 0.3


def test_two_coefficients_need_two_points() -> None:
    """With 1 and 2 workers only Amdahl's law can be fitted: 2 / 1.6 - 1 = 0.25."""
    assert fit_amdahl([1, 2], [1.0, 1.6]).contention == pytest.approx(0.25)
    with pytest.raises(ValueError, match="2 coefficients"):
        fit_usl([1, 2], [1.0, 1.6])
