"""The whole program learns: tasks whose optimum is known, and which a random agent fails.

Runs stop when they get there. Budgets are several times what seeds 1 to 3 needed: processes never repeat a run, and
other kinds of processors make other runs of the same seed.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from asyncrl.commands.train import main
from asyncrl.envs.spec import EnvSpec
from asyncrl.envs.toy import Catch, Chain
from tests.support import evaluations_of, the_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

OPTIMUM = {"Chain": Chain.OPTIMUM, "Catch": Catch.OPTIMUM}
BUDGET = {"Chain": 30_000, "Catch": 200_000}
"""Steps of all workers together."""
CARTPOLE_SOLVED = 475.0


def train(runs_dir: Path, env_id: str, *words: str, algorithm: str = "a3c") -> Path:
    """A whole run with twenty episodes per evaluation; returns its folder."""
    always = ("--env-id", env_id, "--evaluation-episodes", "20", "--quiet", "--runs-dir", str(runs_dir))
    assert main(f"asyncrl.{algorithm}", [*always, *words]) == 0
    return the_run(runs_dir)


def random_returns(env_id: str, episodes: int = 200) -> list[float]:
    """Raw returns of a policy that draws every action uniformly."""
    spec = EnvSpec(env_id)
    environment, random = spec.make(seed=1, evaluation=True), np.random.default_rng(1)
    actions = spec.probe().actions
    returns = []
    for _ in range(episodes):
        environment.reset()
        score, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = environment.step(int(random.integers(actions)))
            score += reward
            over = terminated or truncated
        returns.append(score)
    environment.close()
    return returns


@pytest.mark.parametrize(
    ("backend", "workers"), [("serial", 1), ("serial", 2), ("serial", 4), ("local", 2), ("collective", 2)]
)
@pytest.mark.parametrize("env_id", ["Chain", "Catch"])
def test_a_toy_reaches_its_optimum(env_id: str, backend: str, workers: int, tmp_path: Path) -> None:
    """An evaluation of twenty greedy episodes, the last one that there was."""
    # Ranks make one update together where others make one each.
    budget = BUDGET[env_id] * (workers if backend == "collective" else 1)
    words = ("--backend", backend, "--workers", str(workers), "--total-steps", str(budget))
    words += ("--evaluation-interval-steps", str(budget // 20), "--stop-at-score", str(OPTIMUM[env_id] - 0.05))

    run = train(tmp_path, env_id, *words)

    best = max(evaluations_of(run), key=lambda row: row["mean"])
    assert len(best["returns"]) == 20
    assert best["mean"] == pytest.approx(OPTIMUM[env_id], abs=0.05)


@pytest.mark.parametrize(("env_id", "at_most"), [("Chain", 0.3), ("Catch", -0.3), ("CartPole-v1", 100.0)])
def test_a_random_agent_stays_far_below(env_id: str, at_most: float) -> None:
    """Over two hundred episodes; so reaching the optimum is learning."""
    assert statistics.fmean(random_returns(env_id)) < at_most


def test_four_workers_balance_the_pole(tmp_path: Path) -> None:
    """An evaluation's mean reaches 475 over twenty episodes, in processes."""
    run = train(
        tmp_path, "CartPole-v1", "--workers", "4", "--seed", "1", "--total-steps", "1_000_000",
        "--evaluation-interval-steps", "20_000", "--stop-at-score", str(CARTPOLE_SOLVED),
    )  # fmt: skip

    best = max(evaluations_of(run), key=lambda row: row["mean"])
    assert best["mean"] >= CARTPOLE_SOLVED
    assert len(best["returns"]) == 20


@pytest.mark.parametrize("algorithm", ["a3c", "a2c", "ppo"])
def test_ranks_in_step_balance_the_pole(algorithm: str, tmp_path: Path) -> None:
    """Two of them: gradients reduced, or rollouts gathered; their replicas are compared on the way."""
    run = train(
        tmp_path, "CartPole-v1", "--backend", "collective", "--workers", "2", "--seed", "1", "--check-replicas", "100",
        "--total-steps", "1_000_000", "--evaluation-interval-steps", "20_000", "--stop-at-score", str(CARTPOLE_SOLVED),
        algorithm=algorithm,
    )  # fmt: skip

    assert max(row["mean"] for row in evaluations_of(run)) >= CARTPOLE_SOLVED


@pytest.mark.parametrize(("env_id", "score"), [("Catch", 0.9), ("CartPole-v1", CARTPOLE_SOLVED)])
def test_gradients_of_whole_episodes_learn(env_id: str, score: float, tmp_path: Path) -> None:
    """REINFORCE, two workers in turns."""
    run = train(
        tmp_path, env_id, "--backend", "serial", "--workers", "2", "--seed", "1", "--total-steps", "1_000_000",
        "--evaluation-interval-steps", "20_000", "--stop-at-score", str(score), algorithm="reinforce",
    )  # fmt: skip

    assert max(row["mean"] for row in evaluations_of(run)) >= score


@pytest.mark.parametrize("algorithm", ["one_step_q", "one_step_sarsa", "n_step_q"])
def test_values_balance_the_pole(algorithm: str, tmp_path: Path) -> None:
    """Greedy episodes of eight workers taking turns reach a mean of 450."""
    run = train(
        tmp_path, "CartPole-v1", "--workers", "8", "--backend", "serial", "--seed", "1", "--total-steps", "1_000_000",
        "--evaluation-interval-steps", "20_000", "--stop-at-score", "450", algorithm=algorithm,
    )  # fmt: skip

    assert max(row["mean"] for row in evaluations_of(run)) >= 450


@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "impala"])
def test_one_learner_balances_the_pole(algorithm: str, tmp_path: Path) -> None:
    """Greedy episodes of four actors and their learner taking turns reach a mean of 475."""
    run = train(
        tmp_path, "CartPole-v1", "--workers", "4", "--backend", "serial", "--seed", "1", "--total-steps", "1_000_000",
        "--evaluation-interval-steps", "10_000", "--stop-at-score", str(CARTPOLE_SOLVED), algorithm=algorithm,
    )  # fmt: skip

    assert max(row["mean"] for row in evaluations_of(run)) >= CARTPOLE_SOLVED


@pytest.mark.parametrize("algorithm", ["a3c", "n_step_q"])
def test_a_board_is_learnt(algorithm: str, tmp_path: Path) -> None:
    """MinAtar's Breakout: four times what a random agent scores."""
    pytest.importorskip("minatar")
    chance = statistics.fmean(random_returns("MinAtar/Breakout-v1"))
    run = train(
        tmp_path, "MinAtar/Breakout-v1", "--workers", "4", "--backend", "serial", "--total-steps", "500_000",
        "--evaluation-interval-steps", "20_000", "--stop-at-score", str(4 * chance), algorithm=algorithm,
    )  # fmt: skip

    assert max(row["mean"] for row in evaluations_of(run)) >= 4 * chance
