"""What every algorithm promises, whatever its algorithm."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from asyncrl import catalog
from asyncrl.algorithm import Who, algorithm_of
from asyncrl.commands.train import main
from asyncrl.core.flat import flatten_parameters, gradient_of
from asyncrl.core.rollout import Rollout, Transitions
from asyncrl.core.spaces import Spaces
from asyncrl.storage.checkpoints import load_newest
from tests.support import status_of, the_run

ALGORITHMS = list(catalog.ALGORITHMS)
CONTROL = ["apex_dpg", "sac"]
"""Those whose actions are always vectors."""
DISCRETE = [algorithm for algorithm in ALGORITHMS if algorithm not in CONTROL]
POLICIES = ["a3c", "a2c", "ppo", "impala", "reinforce"]
"""Those with a policy: actions may be vectors, and there is no target network."""
VECTOR = Spaces((5,), "float32", 3)
ATARI = Spaces((4, 42, 42), "uint8", 6, kind="atari")
SCREEN = Spaces((3, 60, 80), "uint8", 6, kind="screen")
BOARD = Spaces((4, 10, 10), "float32", 3, kind="board")
CONTINUOUS = Spaces((5,), "float32", 0, (-1.0, -2.0), (1.0, 2.0))
CAMERA = replace(CONTINUOUS, observation_shape=(3, 40, 40), observation_dtype="uint8", kind="screen")
WORLDS = {"vector": VECTOR, "atari": ATARI, "screen": SCREEN, "board": BOARD}
LEARNT = ["a2c", "ppo", "impala"]
"""Those whose experience goes to a learner."""
REPLAY = ["gorila", "apex", *CONTROL]
"""Those that keep it in a memory."""
CASES: list[tuple[str, Spaces, dict[str, Any]]] = [
    *((algorithm, spaces, {}) for algorithm in DISCRETE for spaces in WORLDS.values()),
    *((algorithm, VECTOR, {"lstm_cells": 7}) for algorithm in [*POLICIES, "n_step_q"]),
    *((algorithm, CONTINUOUS, {}) for algorithm in POLICIES),
    *(
        (algorithm, spaces, {"hidden_sizes": (16, 16), "n_step": 3})
        for algorithm in CONTROL
        for spaces in (CONTINUOUS, CAMERA)
    ),
    ("sac", CONTINUOUS, {"priority_exponent": 0.6, "n_step": 3}),
    *((algorithm, CONTINUOUS, {"mean": "linear", "variance": "state", "lstm_cells": 7}) for algorithm in POLICIES),
]


def name_of(case: Any) -> str:
    if isinstance(case, Spaces):
        if case.is_continuous:
            return "camera" if case.is_image else "continuous"
        return next(name for name, world in WORLDS.items() if world == case)
    return str(case)


def build(algorithm_name: str, spaces: Spaces, settings: dict[str, Any], who: Who = "worker") -> Any:
    algorithm = algorithm_of(f"asyncrl.{algorithm_name}")
    config = algorithm.Config(**(algorithm.preset("default", spaces) | settings))
    torch.manual_seed(0)
    network = algorithm.make_network(config, spaces)
    target = algorithm.make_network(config, spaces) if algorithm.has_target else None
    return algorithm(config, network, target, who, 0, torch.Generator().manual_seed(1))


def observations_of(spaces: Spaces, *leading: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    if spaces.observation_dtype == "uint8":
        return torch.randint(0, 256, (*leading, *spaces.observation_shape), dtype=torch.uint8, generator=generator)
    return torch.randn(*leading, *spaces.observation_shape, generator=generator)


def parts_of(algorithm: str, agent: Any, rollout: Rollout) -> list[Any]:
    """What one update is made of each: the rollout, or what the learner's passes make of a batch."""
    batch = transitions_of(rollout, agent.config.n_step) if algorithm in REPLAY else rollout
    return list(agent.passes(batch)) if algorithm in LEARNT + REPLAY else [rollout]


def transitions_of(rollout: Rollout, n: int) -> Transitions:
    """The first n steps of all environments, as if they had been drawn."""
    return Transitions(
        observations=rollout.observations[0],
        actions=rollout.actions[0],
        rewards=rollout.rewards[:n],
        discounts=rollout.discounts[:n],
        last=rollout.last[:n],
        following=rollout.observations[n],
        weights=torch.full((rollout.actions.shape[1],), 0.5),
    )


def in_order(observations: torch.Tensor) -> torch.Tensor:
    """Observations `[n, ...]` in an order that is theirs alone."""
    flat = observations.flatten(1).double()
    return flat[torch.argsort(flat @ torch.arange(1.0, flat.shape[1] + 1, dtype=torch.float64))]


def rollout_of(agent: Any, spaces: Spaces, steps: int, environments: int) -> Rollout:
    """Random states, the agent's own actions, an episode that ends and one that is cut."""
    observations = observations_of(spaces, steps + 1, environments)
    state = agent.initial_state(environments)
    with torch.no_grad():
        acted = [agent.act(observation, state, 0) for observation in observations]
    actions = torch.stack([chosen for chosen, _, _ in acted])
    extras = {name: torch.stack([left[name] for _, _, left in acted[:-1]]) for name in acted[0][2]}
    rng = np.random.default_rng(3)
    last = torch.zeros(steps, environments, dtype=torch.bool)
    discounts = torch.full((steps, environments), 0.9)
    last[1, 0], discounts[1, 0] = True, 0.0
    last[2, -1] = True
    return Rollout(
        observations=observations,
        actions=actions[:-1],
        rewards=torch.from_numpy(rng.normal(size=(steps, environments)).astype(np.float32)),
        discounts=discounts,
        last=last,
        truncated=(torch.tensor([2]), torch.tensor([environments - 1])),
        final_observations=observations_of(spaces, 1),
        state=state,
        next_actions=actions[1:],
        extras=extras,
    )


@pytest.mark.parametrize(("algorithm", "spaces", "settings"), CASES, ids=name_of)
@pytest.mark.parametrize("environments", [1, 3])
def test_actions_fit_the_environment(
    algorithm: str, spaces: Spaces, settings: dict[str, Any], environments: int
) -> None:
    """One per environment, of the right type, within the action set; for all who act."""
    for who in get_args(Who):
        agent = build(algorithm, spaces, settings, who)

        observations, initial = observations_of(spaces, environments), agent.initial_state(environments)
        actions, state, extras = agent.act(observations, initial, 10**9)

        if spaces.is_continuous:
            assert actions.shape == (environments, 2)
            assert actions.dtype == torch.float32
        else:
            assert actions.shape == (environments,)
            assert actions.dtype == torch.int64
            assert 0 <= int(actions.min()) <= int(actions.max()) < spaces.actions
        assert (state is None) == ("lstm_cells" not in settings)
        assert tuple(extras) == algorithm_of(f"asyncrl.{algorithm}").extras
        assert all(values.shape == (environments,) for values in extras.values())


@pytest.mark.parametrize(("algorithm", "spaces", "settings"), CASES, ids=name_of)
@pytest.mark.parametrize("environments", [1, 3])
def test_the_loss_reaches_every_parameter_and_is_a_function_of_the_rollout(
    algorithm: str, spaces: Spaces, settings: dict[str, Any], environments: int
) -> None:
    """Finite, the same when asked twice, with a gradient in each tensor of the network; metrics are plain scalars."""
    # A single advantage, normalised, is 0: of PPO's minibatches none may be of one step or one sequence.
    agent = build(algorithm, spaces, settings | ({"minibatches": 1} if algorithm == "ppo" else {}))
    flat = flatten_parameters(agent.network)
    rollout = rollout_of(agent, spaces, 4, environments)

    for part in parts_of(algorithm, agent, rollout):
        first, metrics = agent.loss(part)
        gradient = gradient_of(first, list(agent.network.parameters()), torch.empty_like(flat))
        second, _ = agent.loss(part)

        assert first.item() == second.item()
        assert torch.isfinite(gradient).all()
        start = 0
        for name, parameter in agent.network.named_parameters():
            assert gradient[start : start + parameter.numel()].abs().sum() > 0, name
            start += parameter.numel()
        assert all(value.dim() == 0 and not value.requires_grad for value in metrics().values())
    assert all(isinstance(value, float) for value in agent.exploration.values())


@pytest.mark.parametrize(
    ("algorithm", "spaces", "settings"), [case for case in CASES if case[0] in LEARNT], ids=name_of
)
def test_a_batch_taken_apart_and_put_together_is_the_batch(
    algorithm: str, spaces: Spaces, settings: dict[str, Any]
) -> None:
    """The passes of an algorithm over the rollouts of two actors: every step of each is in each pass exactly once."""
    agent = build(algorithm, spaces, settings)
    actors = [rollout_of(agent, spaces, 4, environments) for environments in (3, 2)]
    batch = Rollout.side_by_side(actors)

    parts = list(agent.passes(batch))

    steps = sum(part.actions.shape[0] * part.actions.shape[1] for part in parts)
    epochs = agent.config.epochs if algorithm == "ppo" else 1
    assert steps == epochs * batch.steps == epochs * 20
    for epoch in range(epochs):
        ours = parts[epoch * len(parts) // epochs : (epoch + 1) * len(parts) // epochs]
        seen = torch.cat([part.observations[: len(part.actions)].flatten(0, 1) for part in ours])
        assert torch.equal(in_order(seen), in_order(batch.observations[:-1].flatten(0, 1)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", ["default", "paper"])
@pytest.mark.parametrize("spaces", WORLDS.values(), ids=WORLDS)
def test_presets_name_settings_that_exist(algorithm: str, name: str, spaces: Spaces) -> None:
    """Every key is a field, and the configuration they make is possible."""
    module = algorithm_of(f"asyncrl.{algorithm}")

    settings = module.preset(name, spaces)

    assert set(settings) <= {field.name for field in fields(module.Config)}
    module.Config(**settings)


@pytest.mark.parametrize("algorithm", DISCRETE)
@pytest.mark.parametrize("name", ["default", "paper"])
def test_only_ataris_rewards_are_clipped(algorithm: str, name: str) -> None:
    """Elsewhere a clip turns 10 into 1, and what pays 10 or -1 into what pays nothing on average."""
    module = algorithm_of(f"asyncrl.{algorithm}")

    clips = {world: module.Config(**module.preset(name, spaces)).reward_clip for world, spaces in WORLDS.items()}

    assert clips == {"vector": 0.0, "atari": 1.0, "screen": 0.0, "board": 0.0}


@pytest.mark.parametrize("algorithm", DISCRETE)
def test_a_small_atari_screen_is_a_screen(algorithm: str) -> None:
    """Below 36 pixels too: presets and networks ask what it is, not how large."""
    module = algorithm_of(f"asyncrl.{algorithm}")
    small = replace(ATARI, observation_shape=(4, 32, 32))

    assert module.preset("default", small) == module.preset("default", ATARI)
    network = module.make_network(module.Config(), small)
    assert [layer.stride for layer in network.modules() if isinstance(layer, torch.nn.Conv2d)] == [(5, 5), (3, 3)]


@pytest.mark.parametrize("backend", ["serial", "local"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_and_resumes(tmp_path: Path, algorithm: str, backend: str) -> None:
    """Two workers on Catch or Pendulum, then half as far again; the target network comes along."""
    words = [
        "--env-id",
        "Pendulum-v1" if algorithm in CONTROL else "Catch",
        "--workers",
        "2",
        "--total-steps",
        "1500",
        "--backend",
        backend,
        "--quiet",
    ]
    has_target = algorithm not in POLICIES
    target = ["--target-interval-steps", "500"] if has_target else []
    if algorithm in REPLAY:
        target = ["--target-interval-updates", "100", "--warmup-steps", "200", "--replay-ratio", "0.25"]
        target += ["--minibatch", "32"]

    assert main(f"asyncrl.{algorithm}", [*words, *target, "--runs-dir", str(tmp_path)]) == 0
    run = the_run(tmp_path)
    assert main(f"asyncrl.{algorithm}", ["--resume", str(run), "--total-steps", "2500"]) == 0

    status = status_of(run)
    assert (status["state"], status["part"]) == ("finished", 1)
    assert status["steps"] >= 2500
    checkpoint, _ = load_newest(run / "checkpoints")
    assert ("target" in checkpoint.tensors) == has_target
    if has_target:
        counted, interval = (status["updates"], 100) if algorithm in REPLAY else (status["steps"], 500)
        renewed, last = int(checkpoint.tensors["target_steps"]) // interval, counted // interval
        # Of two workers that renew it, the one that saw the earlier crossing may write its T after the other.
        assert renewed == last or (backend == "local" and algorithm not in REPLAY and 0 < renewed < last)
        assert algorithm not in REPLAY or 450 <= status["updates"] <= 600


@pytest.mark.parametrize("algorithm", POLICIES)
@pytest.mark.parametrize(
    "flags",
    [
        ("--lstm-cells", "8", "--no-normalize-observations", "--no-normalize-returns"),
        ("--normalize-observations", "--normalize-returns"),
    ],
    ids=["memory", "normalisation"],
)
def test_memory_and_normalisation_repeat_bit_by_bit(tmp_path: Path, algorithm: str, flags: tuple[str, ...]) -> None:
    """The serial backend twice: equal parameters and equal moments, which are saved."""
    words = ["--env-id", "CartPole-v1", "--workers", "2", "--total-steps", "1200", "--backend", "serial", "--quiet"]
    saved = []
    for name in ("first", "second"):
        assert main(f"asyncrl.{algorithm}", [*words, *flags, "--runs-dir", str(tmp_path / name)]) == 0
        saved.append(load_newest(the_run(tmp_path / name) / "checkpoints")[0])

    first, second = saved
    assert all(torch.equal(first.parameters[key], second.parameters[key]) for key in first.parameters)
    assert all(torch.equal(first.tensors[key], second.tensors[key]) for key in first.tensors)
    assert (first.tensors["observation_moments"].numel() > 1) == ("--normalize-observations" in flags)


@pytest.mark.parametrize("cells", [0, 7])
def test_ppos_minibatches_are_never_too_small(cells: int) -> None:
    """A batch that lacks actors may have fewer steps, or with memory fewer sequences, than there are minibatches.

    None is empty, and none is of a single step, whose advantage would be all of its mean.
    """
    agent = build("ppo", VECTOR, {"workers": 8, "envs_per_worker": 1, "minibatches": 8, "lstm_cells": cells})

    parts = list(agent.passes(rollout_of(agent, VECTOR, 4, 1)))

    assert [part.actions.numel() for part in parts] == ([4] if cells else [2] * 2) * agent.config.epochs
    assert all(torch.isfinite(agent.loss(part)[0]) for part in parts)
