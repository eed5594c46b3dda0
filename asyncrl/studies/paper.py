"""The paper's measurements, for comparison."""

from __future__ import annotations

TABLE_2 = {
    "one_step_q": {1: 1.0, 2: 3.0, 4: 6.3, 8: 13.3, 16: 24.1},
    "one_step_sarsa": {1: 1.0, 2: 2.8, 4: 5.9, 8: 13.1, 16: 22.1},
    "n_step_q": {1: 1.0, 2: 2.7, 4: 5.9, 8: 10.7, 16: 17.2},
    "a3c": {1: 1.0, 2: 2.1, 4: 3.7, 8: 6.9, 16: 12.5},
}
"""Mnih et al. 2016 (arXiv 1602.01783v2), Table 2: how much faster n threads reached a fixed score than one, mean over
seven Atari games. It is a speed-up in time; each of the paper's threads had a core."""
