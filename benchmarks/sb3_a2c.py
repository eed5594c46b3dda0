"""Stable-Baselines3's A2C on a continuous task, for comparison with A3C: same steps, evaluations and records.

Its settings are the tuned ones of RL Baselines3 Zoo for HalfCheetahBulletEnv-v0 (4 environments, n_steps 8, gSDE,
RMSProp, a learning rate that falls linearly from 0.00096), without that entry's time-feature wrapper. `python -m
asyncrl plot` can draw the folder it writes. It needs its own Python environment:

    pip install torch==2.13.0 && pip install stable-baselines3 "gymnasium[mujoco]"
    python benchmarks/sb3_a2c.py --total-steps 1000000 --out runs/sb3/HalfCheetah-v5/seed-1
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization


class Evaluations(BaseCallback):
    """Writes a row of evaluator.jsonl whenever the steps have crossed a multiple of `interval`; greedy episodes."""

    def __init__(self, env_id: str, seed: int, interval: int, episodes: int, out: Path, normalized: bool) -> None:
        super().__init__()
        self.environments = VecNormalize(
            make_vec_env(env_id, n_envs=1, seed=seed + 10_000), training=False, norm_obs=normalized, norm_reward=False
        )
        self.interval, self.episodes, self.out = interval, episodes, out
        self.due = interval
        self.began = time.perf_counter()

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.due:
            self.due += self.interval
            self.evaluate()
        return True

    def evaluate(self) -> None:
        """Play the episodes with the statistics of observations as they are now, unscaled rewards."""
        sync_envs_normalization(self.training_env, self.environments)
        returns, lengths = evaluate_policy(
            self.model, self.environments, self.episodes, deterministic=True, return_episode_rewards=True
        )
        row = {
            "steps": self.num_timesteps,
            "frames": self.num_timesteps,
            "seconds": round(time.perf_counter() - self.began, 3),
            "returns": [float(score) for score in returns],
            "lengths": lengths,
            "mean": float(np.mean(returns)),
        }
        with (self.out / "evaluator.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


def begin(method: str, description: str | None, total_steps: int, interval: int) -> argparse.Namespace:
    """Read the command line, these being its defaults, and begin the folder that it names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="HalfCheetah-v5")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--total-steps", type=int, default=total_steps)
    parser.add_argument("--evaluation-interval-steps", type=int, default=interval)
    parser.add_argument("--evaluation-episodes", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True)
    config = {"env_id": arguments.env_id, "seed": arguments.seed, "total_steps": arguments.total_steps}
    (arguments.out / "config.json").write_text(
        json.dumps({"algorithm": f"Stable-Baselines3 {method}", "config": config})
    )
    return arguments


def learn(model: BaseAlgorithm, arguments: argparse.Namespace) -> None:
    """Train, evaluating every so many steps."""
    evaluations = Evaluations(
        arguments.env_id, arguments.seed, arguments.evaluation_interval_steps, arguments.evaluation_episodes,
        arguments.out, getattr(model.get_vec_normalize_env(), "norm_obs", False),
    )  # fmt: skip
    model.learn(arguments.total_steps, callback=evaluations)


def main() -> None:
    """A2C."""
    arguments = begin("A2C", __doc__, 3_000_000, 100_000)
    environments = make_vec_env(arguments.env_id, n_envs=4, seed=arguments.seed)
    model = A2C(
        "MlpPolicy",
        VecNormalize(environments, gamma=0.99),
        learning_rate=lambda remaining: 0.00096 * remaining, n_steps=8, gamma=0.99, gae_lambda=0.9, ent_coef=0.0,
        vf_coef=0.4, max_grad_norm=0.5, use_rms_prop=True, use_sde=True, normalize_advantage=False,
        policy_kwargs={"log_std_init": -2, "ortho_init": False}, seed=arguments.seed, device="cpu",
    )  # fmt: skip
    learn(model, arguments)


if __name__ == "__main__":
    main()
