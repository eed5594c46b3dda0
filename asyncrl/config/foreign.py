"""Suggestions for settings that do not exist, among them those of Stable-Baselines3, CleanRL and RLlib."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

SETTINGS = {
    # Words of others, and ours for what they mean: that of the first kind which an algorithm has. Units may differ.
    "n_steps num_steps rollout_fragment_length": "t_max",
    "train_batch_size batch_size minibatch_size sgd_minibatch_size": "minibatch minibatches batch_rollouts t_max",
    "num_minibatches n_minibatches": "minibatches",
    "n_epochs num_epochs update_epochs num_sgd_iter": "epochs",
    "n_workers num_processes n_processes num_actors n_actors num_rollout_workers num_env_runners num_cpus n_jobs":
        "workers",
    "num_envs_per_worker num_envs_per_env_runner envs": "envs_per_worker",
    "timesteps_total num_timesteps n_timesteps max_timesteps total_frames max_frames": "total_steps",
    "max_time time_limit max_minutes": "max_seconds",
    "ent_coef ent_coeff entropy_coef entropy_coeff entropy_beta entropy_weight beta": "entropy_weights temperature",
    "vf_coef vf_coeff vf_loss_coeff value_coef value_loss_coef": "value_cost",
    "lambda lambda_ lam tau": "gae_lambda target_rate",
    "discount discount_factor": "gamma",
    "clip_range clip_coef clip_param clip_epsilon": "clip",
    "clip_range_vf clip_vloss vf_clip_param": "value_clip",
    "max_grad_norm grad_clip gradient_clip clip_grad": "max_gradient_norm",
    "normalize_advantage norm_adv": "normalize_advantages",
    "norm_obs normalize_obs normalize": "normalize_observations",
    "norm_reward normalize_reward normalize_rewards": "normalize_returns",
    "clip_reward clip_rewards reward_clipping": "reward_clip",
    "anneal_lr lr_schedule": "learning_rate_schedule",
    "use_rms_prop optim": "optimizer",
    "rms_prop_eps adam_eps adam_epsilon eps": "optimizer_epsilon",
    "alpha": "optimizer_decay",
    "buffer_size replay_size replay_buffer_size capacity memory_size": "memory_steps",
    "learning_starts num_steps_sampled_before_learning_starts": "warmup_steps",
    "exploration_fraction epsilon_timesteps epsilon_decay": "exploration_steps",
    "exploration_final_eps exploration_initial_eps start_e end_e epsilon": "epsilons",
    "target_update_interval target_network_frequency target_network_update_freq target_update_freq":
        "target_interval_updates target_interval_steps",
    "train_freq train_frequency gradient_steps training_intensity": "replay_ratio",
    "prioritized_replay_alpha per_alpha": "priority_exponent",
    "prioritized_replay_beta per_beta": "importance_exponent",
    "double dqn_double": "double_q",
    "vtrace_clip_rho_threshold": "rho_bar",
    "vtrace_clip_c_threshold": "c_bar",
    "policy policy_kwargs model model_config features_extractor_class": "network",
    "net_arch fcnet_hiddens hidden_size hidden_dim hidden_units": "hidden_sizes",
    "use_lstm lstm_cell_size lstm_hidden_size lstm": "lstm_cells",
    "tensorboard_log log_dir logdir save_dir output_dir save_path storage_path": "runs_dir",
    "exp_name run_id": "run_name",
    "verbose progress_bar log_level": "quiet",
    "wandb use_wandb": "track",
    "save_freq save_frequency checkpoint_freq checkpoint_frequency": "checkpoint_interval_steps",
    "eval_freq eval_frequency eval_interval evaluation_interval": "evaluation_interval_steps",
    "n_eval_episodes eval_episodes evaluation_duration evaluation_num_episodes": "evaluation_episodes",
    "deterministic deterministic_eval": "evaluation_policy",
    "reward_threshold target_reward stop_reward target_score": "stop_at_score",
    "load_path checkpoint_path restore": "resume",
    "device cuda num_gpus gpu": "learner_device",
    "frameskip action_repeat": "frame_skip",
    "framestack num_stack n_stack": "frame_stack",
    "screen_size": "image_size",
    "repeat_action_probability": "sticky_actions",
    "terminal_on_life_loss episodic_life": "life_loss",
    "max_episode_length horizon": "max_episode_steps",
    "env_config env_args make_env_kwargs": "env_kwargs",
    "game gym_id env_name environment": "env_id",
}  # fmt: skip
OURS = {word: own.split() for words, own in SETTINGS.items() for word in words.split()}


def suggestion(name: str, known: Collection[str]) -> str:
    """What to say after "there is no setting `name`", where `known` are those that there are; "" if nothing is like it.

    A setting that only other algorithms have is named as theirs.
    """
    plain = name.replace("-", "_").lower()
    meant = OURS.get(plain, [])
    near = [own for own in meant if own in known] if meant else difflib.get_close_matches(plain, known, n=1)
    if near:
        return f"; perhaps you meant {near[0]}"
    return f"; other algorithms call it {meant[0]}" if meant else ""


def to_pass(name: str, value: Any) -> str:
    """What a setting that may be a class or a function takes instead of this value, and why."""
    if name != "env_id":
        return f"a name or a function that makes one, not a {type(value).__name__}: each worker has its own"
    if isinstance(value, list | tuple):
        return "an id, a class or a function that makes an environment: a run has one environment"
    if hasattr(value, "entry_point"):  # Gymnasium's EnvSpec
        return f'its id, "{value.id}": each worker has its own'
    return "an id, a class or a function that makes an environment: each worker has its own"
