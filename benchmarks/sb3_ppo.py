"""Stable-Baselines3's PPO on HalfCheetah, for comparison with asyncrl.ppo: same steps, evaluations and records.

Its settings are the tuned ones of RL Baselines3 Zoo for HalfCheetah-v4 (`hyperparams/ppo.yml`): one environment,
512 steps and 20 passes over them in minibatches of 64, two networks of 256 x 256 ReLU, observations and rewards
normalised. `python -m asyncrl plot` can draw the folder it writes. It needs its own Python environment:

    pip install torch==2.13.0 && pip install stable-baselines3 "gymnasium[mujoco]"
    python benchmarks/sb3_ppo.py --seed 1 --out runs/sb3-ppo/HalfCheetah-v5/seed-1
"""

from __future__ import annotations

import torch
from sb3_a2c import begin, learn
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

GAMMA = 0.98


def main() -> None:
    """PPO."""
    arguments = begin("PPO", __doc__, 1_000_000, 50_000)
    environments = make_vec_env(arguments.env_id, n_envs=1, seed=arguments.seed)
    model = PPO(
        "MlpPolicy",
        VecNormalize(environments, gamma=GAMMA),
        learning_rate=2.0633e-05, n_steps=512, batch_size=64, n_epochs=20, gamma=GAMMA, gae_lambda=0.92,
        clip_range=0.1, ent_coef=0.000401762, vf_coef=0.58096, max_grad_norm=0.8,
        policy_kwargs={
            "log_std_init": -2, "ortho_init": False, "activation_fn": torch.nn.ReLU,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        },
        seed=arguments.seed, device="cpu",
    )  # fmt: skip
    learn(model, arguments)


if __name__ == "__main__":
    main()
