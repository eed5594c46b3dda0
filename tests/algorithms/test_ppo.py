"""PPO's passes and loss, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl import ppo
from asyncrl.core.errors import UsageError
from asyncrl.core.rollout import Minibatch, Rollout
from asyncrl.core.spaces import Spaces
from asyncrl.runtime.roles import build_worker
from tests.algorithms.tables import Table, gradients_of, rollout_of
from tests.support import make_run

STEPS = ([1, 2, 3], [0, 1], [1, 1], [0.5, 0.5])
HALF = math.log(0.5)


def agent_of(network: Table, **settings: Any) -> ppo.PPO:
    defaults: dict[str, Any] = {
        "entropy_weights": (0.0,), "reward_clip": 0.0, "gamma": 0.5, "gae_lambda": 1.0, "value_cost": 0.5,
        "normalize_advantages": False, "epochs": 1, "minibatches": 1, "clip": 0.2, "anneal_clip": False,
    }  # fmt: skip
    config = ppo.PPO.Config(**(defaults | settings))
    return ppo.PPO(config, network, None, "learner", 0, torch.Generator().manual_seed(0))  # type: ignore[arg-type]


def part_of(
    actions: list[int], advantages: list[float], states: list[float] | None = None, acted_at: int = 0, **extras: float
) -> Minibatch:
    """Steps acted with equal probabilities; returns and old values are 0 unless given."""

    def row(values: list[float]) -> Tensor:
        return torch.tensor([values])

    count = len(actions)
    told = {"return": 0.0, "value": 0.0, "log_probability": HALF} | extras
    return Minibatch(
        row(states or [0.0] * count)[..., None],
        torch.tensor([actions]),
        {"advantage": row(advantages)} | {name: row([value] * count) for name, value in told.items()},
        acted_at,
    )


def numbered_batch(steps: int, environments: int, remembers: bool = False) -> Rollout:
    """Every observation is a number of its own: 10 for each environment and 1 for each step."""
    rollout = rollout_of([0] * (steps + 1), [0] * steps, [1] * steps, [0.5] * steps, environments)
    numbers = torch.arange(steps + 1)[:, None] + 10 * torch.arange(environments)
    state = (100.0 + torch.arange(environments)[:, None],) if remembers else None
    extras = rollout.extras | {"value": 2.0 * numbers[:-1]}
    return replace(rollout, observations=numbers[..., None].float(), state=state, extras=extras)


def test_the_first_pass_is_the_actor_critics() -> None:
    """Ratios of 1: A2C's gradient of the same rollout, by hand in its own tests."""
    agent, rollout = agent_of(Table()), rollout_of(*STEPS)
    rollout.extras["value"] = 2.0 * rollout.observations[:-1, :, 0]
    (part,) = agent.passes(rollout)

    assert gradients_of(agent, part) == {"v": -0.5, "logit": 0.25}
    # In the order in which the steps were drawn.
    assert sorted(part.extras["advantage"][0].tolist()) == [0.0, 1.0]
    assert sorted(part.extras["return"][0].tolist()) == [3.0, 4.0]
    assert sorted(part.extras["value"][0].tolist()) == [2.0, 4.0]


def test_in_the_first_pass_every_ratio_is_exactly_1() -> None:
    """What acting returned and what the learner works out are the same numbers, whatever the minibatch."""
    agent = agent_of(Table(logit=0.7), minibatches=3)
    observations = torch.randn(4, 3, 1)
    acted = [agent.act(row, None, 0) for row in observations[:-1]]
    batch = replace(
        rollout_of([0] * 4, [0] * 3, [1] * 3, [0.5] * 3, environments=3),
        observations=observations,
        actions=torch.stack([actions for actions, _, _ in acted]),
        extras={name: torch.stack([extras[name] for _, _, extras in acted]) for name in agent.extras},
    )

    for part in agent.passes(batch):
        now = agent.network(part.observations)[0].log_probability(part.actions)
        metrics = agent.loss(part)[1]()

        assert torch.equal(now, part.extras["log_probability"])
        assert (float(metrics["approx_kl"]), float(metrics["clip_fraction"])) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("action", "advantage", "gradient"),
    [
        # pi(1) = 0.731: ratio 1.462, above 1.2. d(-r A)/dl = -A r (1 - pi(1)).
        (1, 1.0, 0.0),
        (1, -1.0, 1.4621 * 0.2689),
        # pi(0) = 0.269: ratio 0.538, below 0.8. d(-r A)/dl = A r pi(1).
        (0, -1.0, 0.0),
        (0, 1.0, 0.5379 * 0.7311),
    ],
)
def test_a_ratio_that_has_left_the_interval_goes_no_further(action: int, advantage: float, gradient: float) -> None:
    """There is a gradient only back into it."""
    gradients = gradients_of(agent_of(Table(logit=1.0)), part_of([action], [advantage]))

    assert gradients["logit"] == pytest.approx(gradient, abs=1e-4)


def test_advantages_are_normalised_in_each_minibatch() -> None:
    """1 and 3, 10 and 30: -1 and 1. Policy: -1/2 for action 0 of -1, -1/2 for action 1 of 1; the mean."""
    agent = agent_of(Table(), normalize_advantages=True)

    gradients = [gradients_of(agent, part_of([0, 1], scaled))["logit"] for scaled in ([1.0, 3.0], [10.0, 30.0])]

    assert gradients == pytest.approx([-0.5, -0.5])


def test_a_value_that_has_moved_far_enough_goes_no_further() -> None:
    """V = 2, was 1, may move by 1/2. Towards a return of 5 it has; back towards 0 it may: 1/2 2 (2 - 0) = 2."""
    clipped, free = agent_of(Table(), value_clip=0.5), agent_of(Table())
    far, back = (part_of([0], [0.0], [1.0], value=1.0, **{"return": target}) for target in (5.0, 0.0))

    assert [gradients_of(clipped, part)["v"] for part in (far, back)] == [0.0, 2.0]
    assert [gradients_of(free, part)["v"] for part in (far, back)] == [-3.0, 2.0]


@pytest.mark.parametrize(("steps", "clipped"), [(0, False), (400, False), (600, True), (1000, True), (2000, True)])
def test_the_clip_is_annealed_with_t(steps: int, clipped: bool) -> None:
    """A ratio of 1.1 is outside when less than half of 0.2 is left."""
    network = Table(logit=math.log(0.55 / 0.45))
    agent = agent_of(network, anneal_clip=True, total_steps=1000)

    assert (gradients_of(agent, part_of([1], [1.0], acted_at=steps))["logit"] == 0.0) == clipped


def test_the_minibatches_of_each_pass_are_the_batch() -> None:
    """Every step once in each of three epochs, with what belongs to it, in another order each time."""
    agent = agent_of(Table(), epochs=3, minibatches=4)
    parts = list(agent.passes(numbered_batch(5, 3)))

    assert [part.observations.shape for part in parts] == [(1, 4, 1), (1, 4, 1), (1, 4, 1), (1, 3, 1)] * 3
    epochs = [torch.cat([part.observations.view(-1) for part in parts[i : i + 4]]).tolist() for i in (0, 4, 8)]
    assert all(sorted(epoch) == sorted(t + 10 * e for t in range(5) for e in range(3)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    for part in parts:
        assert torch.equal(part.extras["value"], agent.network(part.observations)[1].detach())


def test_with_memory_minibatches_are_of_whole_sequences() -> None:
    """From the state in which each began, and with the ends of its episodes."""
    agent = agent_of(Table(), epochs=2, minibatches=2, lstm_cells=1, workers=1, envs_per_worker=5)
    batch = numbered_batch(4, 5, remembers=True)

    parts = list(agent.passes(batch))

    assert [part.observations.shape for part in parts] == [(4, 3, 1), (4, 2, 1)] * 2
    for epoch in (parts[:2], parts[2:]):
        chosen = [int(number) // 10 for part in epoch for number in part.observations[0, :, 0]]
        assert sorted(chosen) == [0, 1, 2, 3, 4]
        for name, dimension in (("observations", 1), ("last", 1)):
            joined = torch.cat([getattr(part, name) for part in epoch], dimension)
            assert torch.equal(joined, getattr(batch, name)[:4, chosen])
        states = torch.cat([part.state[0] for part in epoch if part.state is not None])
        assert states[:, 0].tolist() == [100.0 + e for e in chosen]


def test_with_memory_there_are_at_most_as_many_minibatches_as_sequences() -> None:
    """What suits single steps need not be changed for an LSTM."""
    agent = agent_of(Table(), epochs=1, minibatches=8, lstm_cells=1, workers=3, envs_per_worker=1)

    parts = list(agent.passes(numbered_batch(4, 3, remembers=True)))

    assert [part.observations.shape for part in parts] == [(4, 1, 1)] * 3


def test_no_minibatch_is_empty_where_actors_are_missing() -> None:
    """Two sequences of four were there in time: a mean over nothing would be no number."""
    agent = agent_of(Table(), minibatches=4, lstm_cells=1, workers=4, envs_per_worker=1)

    parts = list(agent.passes(numbered_batch(4, 2, remembers=True)))

    assert [part.observations.shape for part in parts] == [(4, 1, 1)] * 2
    assert all(math.isfinite(agent.loss(part)[0].item()) for part in parts)


def test_as_many_minibatches_as_can_be_learnt_from_are_allowed() -> None:
    """Of single steps where advantages are not normalised; of single sequences where these are longer."""
    few = {"workers": 2, "envs_per_worker": 1, "t_max": 4}
    for settings in ({"minibatches": 4}, {"minibatches": 8, "normalize_advantages": False}):
        assert ppo.PPO.Config(**(few | settings)).minibatches == settings["minibatches"]
    assert ppo.PPO.Config(**few, minibatches=2, lstm_cells=4).minibatches == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"minibatches": 9, "workers": 2, "envs_per_worker": 1, "t_max": 4}, "must be 1 to the 8 steps of a batch"),
        ({"minibatches": 5, "workers": 2, "envs_per_worker": 1, "t_max": 4}, "to 4: one step cannot be normalised"),
        ({"clip": 0.0}, "--clip must be more than 0"),
        ({"epochs": 0}, "--epochs must be at least 1 and at most 10_000"),
        ({"value_clip": -1.0}, "--value-clip must be at least 0"),
    ],
)
def test_an_impossible_value_is_refused_with_its_flag(settings: dict[str, Any], message: str) -> None:
    """Before anything is made."""
    with pytest.raises(UsageError) as error:
        ppo.PPO.Config(**settings)

    assert message in str(error.value)


def test_the_paper_presets_are_tables_3_and_5() -> None:
    """MuJoCo's and Atari's."""
    atari = ppo.PPO.Config(**ppo.PPO.preset("paper", Spaces((4, 84, 84), "uint8", 6, kind="atari")), preset="paper")
    continuous = ppo.PPO.Config(**ppo.PPO.preset("paper", Spaces((3,), "float32", 0, (-1.0,), (1.0,))), preset="paper")

    assert (atari.workers, atari.t_max, atari.epochs, atari.minibatches) == (8, 128, 3, 4)
    assert (atari.clip, atari.anneal_clip, atari.learning_rate) == (0.1, True, 2.5e-4)
    assert atari.learning_rate_schedule == "linear"
    assert (atari.value_cost, atari.entropy_weights, atari.gae_lambda, atari.gamma) == (1.0, (0.01,), 0.95, 0.99)
    assert (continuous.workers, continuous.t_max, continuous.epochs, continuous.minibatches) == (1, 2048, 10, 32)
    assert (continuous.clip, continuous.learning_rate, continuous.gae_lambda) == (0.2, 3e-4, 0.95)


def test_values_are_those_of_the_parameters_that_acted() -> None:
    """Of V(s_t) = 3 at every step, though the learner's are 2 by now; it values the last state itself, V(4) = 8.

    lambda 1: returns 1 + 1/2 (1 + 1/2 8) = 3.5 and 1 + 1/2 8 = 5. With lambda 0, 1 + 1/2 3 = 2.5 and 5.
    """
    for gae_lambda, returns in ((1.0, [3.5, 5.0]), (0.0, [2.5, 5.0])):
        agent = agent_of(Table(), gae_lambda=gae_lambda)
        rollout = rollout_of([1, 1, 4], [0, 0], [1, 1], [0.5, 0.5])
        rollout.extras["value"] = torch.full((2, 1), 3.0)
        part = agent._prepare(rollout)

        assert part.extras["return"][:, 0].tolist() == returns
        assert part.extras["advantage"][:, 0].tolist() == [value - 3.0 for value in returns]


@pytest.mark.parametrize("lstm_cells", [0, 8])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_actors_send_the_values_that_the_network_has_at_the_observations(
    tmp_path: Path, env_id: str, lstm_cells: int
) -> None:
    """One network or two, with and without a memory."""
    role = build_worker(make_run(tmp_path, "ppo", env_id=env_id, lstm_cells=lstm_cells, t_max=40, minibatches=1), 0)
    network: Any = role.agent.network
    assert role.collector is not None
    rollout = next(role.collector)
    role.close()

    values = network(rollout.observations, rollout.state, rollout.last)[1][:-1]
    torch.testing.assert_close(rollout.extras["value"], values.detach())


def test_minibatches_of_images_are_the_images() -> None:
    """Of all steps in any order; in memory their channels are last, so that no pass reorders them."""
    images = torch.randint(0, 256, (3, 2, 4, 5, 6), dtype=torch.uint8)
    count = torch.arange(6.0).view(3, 2)
    part = Minibatch(images, count.long(), {"number": count}, acted_at=0).flat()
    chosen = torch.tensor([4, 0, 3])
    selected = part.select(chosen)

    assert torch.equal(part.observations, images.flatten(0, 1)[None])
    assert torch.equal(selected.observations, images.flatten(0, 1)[None, chosen])
    assert selected.observations[0].is_contiguous(memory_format=torch.channels_last)
    assert selected.actions.tolist() == [chosen.tolist()]
    assert selected.extras["number"].tolist() == [chosen.tolist()]
