"""Every tuned table of settings, by preset and kind of environment, with what justifies it.

A table holds what differs from the algorithm's plain defaults. Those were chosen on Pong (docs/results/pong.md) and are
what screens have. Kinds of environments are those of `Spaces`, and "continuous" for vectors with continuous actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Settings = dict[str, Any]
Presets = Mapping[str, Mapping[str, Settings]]
"""By preset and kind of environment: the settings that differ from the Config's defaults."""

# ------------------------------------------------------------------------------------------------------------ defaults

ATARI: Settings = {"reward_clip": 1.0}
"""All algorithms. Atari's games differ by orders of magnitude in what they pay (docs/results/atari.md)."""

A3C_VECTOR: Settings = {
    "envs_per_worker": 8,
    "t_max": 8,
    "optimizer": "adam",
    "optimizer_decay": 0.999,
    "optimizer_epsilon": 1e-5,
    "learning_rate": 5e-4,
    "max_gradient_norm": 0.5,
    "entropy_weights": (0.01,),
    "normalize_observations": True,
    # Without it the error of a value that has to grow to 100 drowns the policy's gradient in the layers they share.
    "normalize_returns": True,
    "evaluation_policy": "greedy",
}
"""CartPole at 475 and Acrobot at -100 with five of five seeds. With 2e-3, chosen on CartPole, Acrobot fails
(docs/results/race.md)."""
A3C_BOARD: Settings = {
    "envs_per_worker": 16,
    "t_max": 8,
    "learning_rate": 3e-3,
    "optimizer_epsilon": 1e-5,
    "max_gradient_norm": 0.5,
    "entropy_weights": (0.01,),
    "normalize_observations": False,
}
"""What trained MinAtar's Breakout best of what was tried (docs/results/minatar.md); normalised planes did worse."""
A3C_CONTINUOUS: Settings = {
    "envs_per_worker": 8,
    "t_max": 32,
    "optimizer": "adam",
    "optimizer_decay": 0.999,
    "optimizer_epsilon": 1e-5,
    "learning_rate": 5e-4,
    "max_gradient_norm": 5.0,
    "gae_lambda": 0.95,
    "entropy_weights": (0.0,),
    "normalize_observations": True,
    "normalize_returns": True,
    "evaluation_policy": "greedy",
}
"""What trained HalfCheetah steadily, with 2 workers as with 16 (docs/results/continuous.md). Where actions are vectors,
observations and returns have no common scale."""

VALUE_SCREEN: Settings = {"evaluation_policy": "sampled"}
"""A player of Pong who only takes the best actions may return the ball for ever, 27 000 steps of an evaluation that say
nothing (docs/results/atari.md has Pong by one-step Q)."""
VALUE_ATARI: Settings = ATARI | VALUE_SCREEN
VALUE_VECTOR: Settings = {
    "envs_per_worker": 8,
    "t_max": 5,
    "learning_rate": 1e-3,
    "optimizer_epsilon": 1e-5,
    "max_gradient_norm": 10.0,
    "normalize_observations": True,
    # Values grow to 100 in CartPole; divided by the spread of returns they stay where the learning rate was chosen.
    "normalize_returns": True,
    "target_interval_steps": 1_000,
    "exploration_steps": 50_000,
}
"""CartPole at 450, five of five seeds (docs/results/cartpole.md): small problems want a target and an epsilon that move
on sooner."""
VALUE_BOARD: Settings = VALUE_VECTOR | {
    "envs_per_worker": 16,
    "normalize_returns": False,
    "target_interval_steps": 2_000,
}
"""What trains MinAtar's Breakout well with n-step Q (docs/results/minatar.md)."""
ONE_STEP_BOARD: Settings = VALUE_BOARD | {
    "envs_per_worker": 8,
    "normalize_observations": False,
    "target_interval_steps": 4_000,
    "exploration_steps": 100_000,
}
"""What trains MinAtar's Breakout best with one-step Q of what was tried (docs/results/minatar.md)."""

A2C_SCREEN: Settings = {"envs_per_worker": 2, "entropy_weights": (0.003,), "overlap": True}
"""A3C's entropy, and batches of half the plain size: A2C makes one update where A3C's workers make one each
(docs/results/pong.md)."""
A2C_VECTOR: Settings = {
    "envs_per_worker": 4,
    "t_max": 8,
    "optimizer_epsilon": 1e-5,
    "learning_rate": 2e-3,
    "normalize_observations": True,
    "normalize_returns": True,
    "evaluation_policy": "greedy",
}
"""A3C's with half the environments, and a larger learning rate, as the update is one for all of them."""
A2C_BOARD: Settings = {
    "envs_per_worker": 2,
    "t_max": 8,
    "learning_rate": 3e-3,
    "optimizer_epsilon": 1e-5,
    "normalize_observations": False,
}
"""A3C's for MinAtar, with smaller batches, since A2C makes one update where A3C's workers make one each
(docs/results/minatar.md)."""
A2C_CONTINUOUS: Settings = A2C_VECTOR | {"t_max": 32, "learning_rate": 5e-4, "entropy_weights": (0.0,)}
"""A3C's for HalfCheetah with half the environments, and the algorithm's own gradient norm."""

PPO_SCREEN: Settings = {"t_max": 64, "learning_rate": 1e-3, "overlap": True}
"""Pong at 18 sooner than any other algorithm (docs/results/pong.md): a batch of 1,024 steps with four times the paper's
learning rate, and no core that waits."""
PPO_VECTOR: Settings = {
    "envs_per_worker": 4,
    "t_max": 32,
    "epochs": 10,
    "learning_rate": 1e-3,
    "clip": 0.2,
    "entropy_weights": (0.0,),
    "normalize_observations": True,
    "normalize_returns": True,
    "evaluation_policy": "greedy",
}
"""Epochs and clip of the paper's table 3, with short rollouts and a larger learning rate for small problems."""
PPO_BOARD: Settings = {"t_max": 8, "learning_rate": 1e-3, "normalize_observations": False}
"""For MinAtar, without normalisation of its planes. Minibatches of 32 steps with 4 workers: four times the steps per
batch make twice the steps per second and learn less from them (docs/results/minatar.md)."""
PPO_CONTINUOUS: Settings = PPO_VECTOR | {
    "envs_per_worker": 1,
    "t_max": 128,
    "minibatches": 8,
    "learning_rate": 3e-4,
    "first_deviation": 0.5,
}
"""Rate, epochs, clip, minibatches (64 steps with 4 workers) of the paper's table 3, batches of a quarter of its size,
and a large first deviation: with a small one more episodes of HalfCheetah fail (docs/results/one-learner.md). The
paper's linear mean came further with two seeds of four and got stuck with another."""

IMPALA_VECTOR: Settings = {
    "envs_per_worker": 4,
    "t_max": 8,
    "optimizer_epsilon": 1e-5,
    "learning_rate": 1e-3,
    "max_gradient_norm": 0.5,
    "entropy_weights": (0.01,),
    "normalize_observations": True,
    "normalize_returns": True,
    "evaluation_policy": "greedy",
}
"""A3C's with half the environments and twice the learning rate."""
IMPALA_SCREEN: Settings = {"batch_rollouts": 1}
"""An update for every rollout, as A3C makes them; Pong takes about as many steps as with A3C
(docs/results/pong.md)."""
IMPALA_BOARD: Settings = IMPALA_SCREEN | {
    "t_max": 8,
    "gae_lambda": 0.95,
    "learning_rate": 3e-3,
    "optimizer_epsilon": 1e-5,
    "max_gradient_norm": 0.5,
    "entropy_weights": (0.01,),
    "normalize_observations": False,
}
"""A3C's for MinAtar, with an update for every rollout; a lambda of 1, and fewer and larger updates, learn less
(docs/results/minatar.md)."""
IMPALA_CONTINUOUS: Settings = IMPALA_VECTOR | {"t_max": 32, "learning_rate": 3e-4, "entropy_weights": (0.0,)}
"""A3C's for HalfCheetah with half the environments and a smaller learning rate."""

REPLAY_VECTOR: Settings = {
    "t_max": 4,
    "learning_rate": 1e-3,
    "optimizer_epsilon": 1e-5,
    "max_gradient_norm": 10.0,
    "normalize_observations": True,
    "normalize_returns": True,
    "memory_steps": 50_000,
    "warmup_steps": 1_000,
    "minibatch": 64,
    "error_clip": 0.0,
    "target_interval_updates": 200,
}
"""One-step Q's for CartPole, with a memory."""
REPLAY_BOARD: Settings = REPLAY_VECTOR | {
    "normalize_observations": False,
    "normalize_returns": False,
    "memory_steps": 100_000,
    "warmup_steps": 5_000,
    "replay_ratio": 0.025,
    "target_interval_updates": 100,
}
"""For MinAtar, without normalisation of its planes, with the memory and warm-up of its DQN (Young & Tian 2019). Few
updates with large minibatches: with five times as many, Gorila's values in Asterix grow beyond what is earned, Ape-X's
do not grow, and nothing is learnt (docs/results/minatar.md)."""
GORILA_VECTOR: Settings = REPLAY_VECTOR | {"exploration": "equal", "epsilons": (0.05,), "exploration_steps": 20_000}
GORILA_BOARD: Settings = REPLAY_BOARD | {"exploration": "equal", "epsilons": (0.1,), "exploration_steps": 100_000}
"""All actors explore alike, as in the paper."""
REPLAY_SCREEN: Settings = VALUE_SCREEN | {
    "minibatch": 64,
    "replay_ratio": 0.125,
    "learning_rate": 5e-4,
    "exploration": "equal",
    "epsilons": (0.02,),
    "exploration_steps": 100_000,
}
"""All actors explore alike and little: with four of them, Ape-X's ladder gives a quarter of the steps an epsilon of
0.4. Larger minibatches cost less per transition (docs/results/pong.md)."""
GORILA_SCREEN: Settings = REPLAY_SCREEN | {"n_step": 3, "double_q": True}
"""Ape-X's targets: Pong in about half of A3C's steps (docs/results/pong.md)."""
REINFORCE_VECTOR: Settings = {
    "envs_per_worker": 4,
    "optimizer_epsilon": 1e-5,
    "learning_rate": 5e-3,
    "entropy_weights": (0.01,),
    "normalize_observations": True,
    "normalize_returns": True,
    "evaluation_policy": "greedy",
}
"""A3C's with half the environments; an update is of whole episodes, so there are fewer and larger ones."""
REINFORCE_BOARD: Settings = {"learning_rate": 3e-3, "optimizer_epsilon": 1e-5, "normalize_observations": False}
"""A3C's for MinAtar."""
REINFORCE_CONTINUOUS: Settings = REINFORCE_VECTOR | {"learning_rate": 1e-3, "entropy_weights": (0.0,)}
"""The same with a smaller rate."""

# ------------------------------------------------------------------------------------------------------------- papers

MNIH: Settings = {
    "workers": 16,
    "envs_per_worker": 1,
    "t_max": 5,
    "total_steps": 80_000_000,
    "gamma": 0.99,
    "optimizer": "rmsprop",
    "optimizer_decay": 0.99,
    "optimizer_epsilon": 0.1,
    "learning_rate": 7e-4,
    "anneal_learning_rate": True,
    "max_gradient_norm": 40.0,
    "update": "hogwild",
    "network": "paper",
    "hidden_sizes": (),
    "normalize_observations": False,
    "normalize_returns": False,
    "exchange_updates": 16,
}
"""Section 8 of Mnih et al. 2016; what it leaves out is from its author's published answers (epsilon, learning rate,
reward clipping, length) and from the re-implementations that reproduce it (norm of 40). Each number of this and the
other papers, with its source: docs/algorithms/paper-settings.md."""
MNIH_ATARI: Settings = {
    "reward_clip": 1.0,
    "life_loss": False,
    "frame_skip": 4,
    "frame_stack": 4,
    "image_size": 84,
    "noop_max": 30,
    "sticky_actions": 0.0,
}
"""The same section, for Atari."""
A3C_PAPER: Settings = MNIH | {
    "gae_lambda": 1.0,
    "entropy_weights": (0.01,),
    "value_cost": 0.5,
    "normalize_advantages": False,
    "evaluation_policy": "sampled",
    "lstm_cells": 0,
    "mean": "linear",
    "variance": "state",
}
"""Section 8."""
A3C_PAPER_CONTINUOUS: Settings = A3C_PAPER | {"entropy_weights": (1e-4,)}
"""Section 9, but for its networks and its updates of whole episodes."""
VALUE_PAPER: Settings = MNIH | {
    "target_interval_steps": 10_000,
    "double_q": False,
    "exploration": "drawn",
    "epsilons": (0.1, 0.01, 0.5),
    "epsilon_probabilities": (0.4, 0.3, 0.3),
    "exploration_steps": 1_000_000,
}
"""Section 5.1 and section 8 (frames there, steps of 4 frames here)."""

A2C_PAPER: Settings = {
    "workers": 16,
    "envs_per_worker": 1,
    "t_max": 5,
    "gae_lambda": 1.0,
    "optimizer": "rmsprop",
    "optimizer_decay": 0.99,
    "optimizer_epsilon": 1e-5,
    "learning_rate": 7e-4,
    "max_gradient_norm": 0.5,
    "entropy_weights": (0.01,),
    "value_cost": 0.5,
    "network": "nature",
    "normalize_observations": False,
    "normalize_returns": False,
}
"""OpenAI Baselines' A2C for Atari."""

PPO_PAPER: Settings = {
    "envs_per_worker": 1,
    "gae_lambda": 0.95,
    "value_cost": 1.0,
    "max_gradient_norm": 0.0,
    "anneal_learning_rate": True,
    "normalize_observations": False,
    "normalize_returns": False,
}
"""What tables 3 and 5 of Schulman et al. 2017 share. Scaled advantages, and Adam's epsilon of 1e-5, are plain
defaults here and those of its authors' code (ppo1 of OpenAI Baselines), which limits no norm."""
PPO_PAPER_ATARI: Settings = (
    PPO_PAPER
    | ATARI
    | {
        "workers": 8,
        "t_max": 128,
        "learning_rate": 2.5e-4,
        "epochs": 3,
        "minibatches": 4,
        "entropy_weights": (0.01,),
        "clip": 0.1,
        "network": "nature",
        "image_size": 84,
    }
)
"""Table 5."""
PPO_PAPER_CONTINUOUS: Settings = PPO_PAPER | {
    "workers": 1,
    "t_max": 2048,
    "total_steps": 1_000_000,
    "learning_rate": 3e-4,
    "epochs": 10,
    "minibatches": 32,
    "entropy_weights": (0.0,),
    "clip": 0.2,
    "anneal_clip": False,
    "anneal_learning_rate": False,
    "mean": "linear",
    "first_deviation": 1.0,
}
"""Table 3 (MuJoCo), and for all that is not Atari."""

IMPALA_BATCH = 32
IMPALA_PAPER: Settings = {
    "workers": 16,
    "envs_per_worker": 1,
    "t_max": 20,
    "batch_rollouts": IMPALA_BATCH,
    "total_steps": 50_000_000,
    "optimizer": "rmsprop",
    "optimizer_decay": 0.99,
    "optimizer_epsilon": 0.01 / IMPALA_BATCH**2,
    "learning_rate": 6e-4,
    "max_gradient_norm": 40.0 / IMPALA_BATCH,
    "entropy_weights": (0.01,),
    "value_cost": 0.5 / 2,
    "network": "nature",
    "normalize_observations": False,
    "normalize_returns": False,
}
"""The Atari settings in the appendix of Espeholt et al. 2018: epsilon 0.01, norm 40, baseline cost 0.5.

Those are for a loss that is summed over the batch, with a factor 1/2 in the squared error. Here it is the mean over the
rollouts and has no such factor. RMSProp's step d / sqrt(g + epsilon) is the same if d is divided by 32 and epsilon by
32^2, and so is the clipped gradient if its norm is."""

REINFORCE_PAPER: Settings = {
    "envs_per_worker": 1,
    "optimizer": "momentum-sgd",
    "optimizer_decay": 0.0,
    "learning_rate": 1e-2,
    "gamma": 1.0,
    "anneal_learning_rate": False,
    "max_gradient_norm": 0.0,
    "entropy_weights": (0.0,),
    "normalize_advantages": False,
    "normalize_observations": False,
    "normalize_returns": False,
}
"""Williams 1992: the plain gradient of each episode's undiscounted rewards, times a learning rate that the paper leaves
open."""

NATURE_SCREEN: Settings = ATARI | {"image_size": 84}
"""Further settings of A2C's and IMPALA's papers, for images for the network of Mnih et al. 2015."""
NO_SCREEN: Settings = {"network": "auto"}
"""The same for other observations."""


GORILA_PAPER: Settings = {
    "envs_per_worker": 1,
    "t_max": 4,
    "optimizer": "adagrad",
    "max_gradient_norm": 0.0,
    "anneal_learning_rate": False,
    "memory_steps": 1_000_000,
    "warmup_steps": 50_000,
    "minibatch": 32,
    "replay_ratio": 0.25,
    "target_interval_updates": 60_000,
    "double_q": False,
    "exploration": "equal",
    "epsilons": (0.1,),
    "exploration_steps": 4_000_000,  # over a million updates, of which there is one every 4 steps
    "evaluation_policy": "sampled",
    "evaluation_epsilon": 0.05,
    "network": "nature",
    "normalize_observations": False,
    "normalize_returns": False,
}
"""Nair et al. 2015, and Mnih et al. 2015 where it refers to it. The learning rate was not published."""

APEX_PAPER: Settings = {
    "envs_per_worker": 1,
    "t_max": 50,
    "optimizer": "centred-rmsprop",
    "optimizer_decay": 0.95,
    "optimizer_epsilon": 1.5e-7 * 2**2,
    "learning_rate": 6.25e-5,
    "anneal_learning_rate": False,
    "max_gradient_norm": 40.0 * 2,
    "memory_steps": 2_000_000,
    "warmup_steps": 50_000,
    "minibatch": 512,
    "replay_ratio": 19 / 12_500,
    "error_clip": 0.0,
    "target_interval_updates": 2_500,
    "network": "nature",
    "normalize_observations": False,
    "normalize_returns": False,
}
"""The Atari settings of Horgan et al. 2018, as its re-implementations have them. Epsilon 1.5e-7 and norm 40 belong to
half the squared error; here it is minimised without that factor.

The learner runs freely there. It made about 19 updates per second, while 360 actors made about 50,000 frames, 12,500
steps: with 512 transitions in an update, a step is learnt from 0.78 times."""


def _mnih(paper: Settings) -> dict[str, Settings]:
    others = dict.fromkeys(("screen", "board", "vector", "continuous"), paper)
    return {"atari": paper | MNIH_ATARI, **others}


def _nature(paper: Settings) -> dict[str, Settings]:
    others = dict.fromkeys(("screen", "board", "vector", "continuous"), paper | NO_SCREEN)
    return {"atari": paper | NATURE_SCREEN, **others}


def _default(atari: Settings, screen: Settings, board: Settings, vector: Settings, continuous: Settings) -> Any:
    return {"atari": atari, "screen": screen, "board": board, "vector": vector, "continuous": continuous}


ONE_STEP_Q: Presets = {
    "default": _default(VALUE_ATARI, VALUE_SCREEN, ONE_STEP_BOARD, VALUE_VECTOR, VALUE_VECTOR),
    "paper": _mnih(VALUE_PAPER),
}
N_STEP_VECTOR = VALUE_VECTOR | {"t_max": 8}
"""docs/results/cartpole.md has what 4 did instead."""

A3C: Presets = {
    "default": _default(ATARI, {}, A3C_BOARD, A3C_VECTOR, A3C_CONTINUOUS),
    "paper": _mnih(A3C_PAPER) | {"continuous": A3C_PAPER_CONTINUOUS},
}
N_STEP_Q: Presets = {
    "default": _default(VALUE_ATARI, VALUE_SCREEN, VALUE_BOARD | {"t_max": 8}, N_STEP_VECTOR, N_STEP_VECTOR),
    "paper": _mnih(VALUE_PAPER),
}
A2C: Presets = {
    "default": _default(ATARI | A2C_SCREEN, A2C_SCREEN, A2C_BOARD, A2C_VECTOR, A2C_CONTINUOUS),
    "paper": _nature(A2C_PAPER),
}
PPO: Presets = {
    "default": _default(ATARI | PPO_SCREEN, PPO_SCREEN, PPO_BOARD, PPO_VECTOR, PPO_CONTINUOUS),
    "paper": {"atari": PPO_PAPER_ATARI}
    | dict.fromkeys(("screen", "board", "vector", "continuous"), PPO_PAPER_CONTINUOUS),
}
GORILA: Presets = {
    "default": _default(ATARI | GORILA_SCREEN, GORILA_SCREEN, GORILA_BOARD, GORILA_VECTOR, GORILA_VECTOR),
    "paper": _nature(GORILA_PAPER),
}
APEX: Presets = {
    "default": _default(ATARI | REPLAY_SCREEN, REPLAY_SCREEN, REPLAY_BOARD, REPLAY_VECTOR, REPLAY_VECTOR),
    "paper": _nature(APEX_PAPER),
}
REINFORCE: Presets = {
    "default": _default(ATARI, {}, REINFORCE_BOARD, REINFORCE_VECTOR, REINFORCE_CONTINUOUS),
    "paper": {"atari": REINFORCE_PAPER | ATARI}
    | dict.fromkeys(("screen", "board", "vector", "continuous"), REINFORCE_PAPER),
}
IMPALA: Presets = {
    "default": _default(ATARI | IMPALA_SCREEN, IMPALA_SCREEN, IMPALA_BOARD, IMPALA_VECTOR, IMPALA_CONTINUOUS),
    "paper": _nature(IMPALA_PAPER),
}
