"""Environments: Atari games, Gymnasium environments and toys, all made by `asyncrl.envs.spec.EnvSpec`."""
