"""Stable-Baselines3's SAC on a continuous task, for comparison with asyncrl.sac: same steps, evaluations and records.

Its settings are those of RL Baselines3 Zoo (`hyperparams/sac.yml`): for MuJoCo the library's defaults after 10,000
random steps, for Pendulum a learning rate of 1e-3. torch computes in as many threads as it chooses, one per core. The
folder that it writes can be drawn by `python -m asyncrl plot`. It needs its own Python environment:

    pip install torch==2.13.0 && pip install stable-baselines3 "gymnasium[mujoco]"
    python benchmarks/sb3_sac.py --seed 1 --out runs/sb3-sac/HalfCheetah-v5/seed-1
"""

from __future__ import annotations

import torch
from sb3_a2c import begin, learn
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

SETTINGS = {"Pendulum-v1": {"learning_rate": 1e-3}}
MUJOCO = {"learning_starts": 10_000}


def main() -> None:
    """SAC."""
    threads = torch.get_num_threads()
    arguments = begin("SAC", __doc__, 300_000, 10_000)
    torch.set_num_threads(threads)
    # Nothing is normalised: the evaluations ask the environments for their moments, and find none.
    environments = VecNormalize(
        make_vec_env(arguments.env_id, n_envs=1, seed=arguments.seed), norm_obs=False, norm_reward=False
    )
    settings = SETTINGS.get(arguments.env_id, MUJOCO)
    model = SAC("MlpPolicy", environments, seed=arguments.seed, device="cpu", **settings)
    learn(model, arguments)


if __name__ == "__main__":
    main()
