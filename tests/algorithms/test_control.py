"""Ape-X DPG and SAC: updates by hand, against slow formulas and against Stable-Baselines3, and how actors act."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from asyncrl.apex_dpg import ApeXDPG, Layers, ReplayActorCritic
from asyncrl.commands.train import main
from asyncrl.core.distributions import Gaussian
from asyncrl.core.flat import flatten_parameters, gradient_of, split_like
from asyncrl.core.rollout import Transitions
from asyncrl.core.spaces import Spaces
from asyncrl.core.updates import Descent, UpdateRule
from asyncrl.nets.gaussian import Box
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.protocols import LEARNER, Update
from asyncrl.sac import SAC, Noisy, Squashed

SPACES = Spaces((3,), "float32", 0, (-2.0, -2.0), (2.0, 2.0))
SB3 = json.loads(Path(__file__).with_name("sb3_sac.json").read_text())


def agent_of(algorithm: Any, who: Any = "learner", number: int = 0, spaces: Spaces = SPACES, **settings: Any) -> Any:
    config = algorithm.Config(**settings)
    torch.manual_seed(3)
    network, target = (algorithm.make_network(config, spaces) for _ in range(2))
    return algorithm(config, network, target, who, number, torch.Generator().manual_seed(5))


def gradient(agent: Any, part: Transitions) -> Tensor:
    flat = flatten_parameters(agent.network)
    return gradient_of(agent.loss(part)[0], list(agent.network.parameters()), torch.empty_like(flat))


def transitions_of(count: int, n: int = 1) -> Transitions:
    """Random ones; of each fifth the return ends with its first step, of which every other terminates."""
    torch.manual_seed(11)
    discounts, last = torch.full((n, count), 0.9), torch.zeros(n, count, dtype=torch.bool)
    last[0, ::5], discounts[0, ::10] = True, 0.0
    return Transitions(
        torch.randn(count, 3), 4 * torch.rand(count, 2) - 2, torch.randn(n, count), discounts, last,
        torch.randn(count, 3), torch.rand(count),
    )  # fmt: skip


class Bilinear(nn.Module):
    """pi(s) = w s and q(s, a) = u s a, for numbers s and a; the box is from -1 to 1."""

    def __init__(self, w: float, u: float) -> None:
        super().__init__()
        self.w, self.u = nn.Parameter(torch.tensor([w])), nn.Parameter(torch.tensor([u]))
        self.box = Box((-1.0,), (1.0,))

    def seen(self, observations: Tensor) -> Tensor:
        return observations

    def choose(self, observations: Tensor) -> Tensor:
        return self.w * observations

    def values_of(self, seen: Tensor, scaled: Tensor, frozen: bool = False) -> Tensor:
        return (self.u * seen * scaled)[..., 0][None]

    slope = ReplayActorCritic.slope


@pytest.mark.parametrize(("clip", "climb"), [(0.0, -2.0), (1.0, -1.0)])
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_an_update_of_apex_dpg_by_hand(clip: float, climb: float, weight: float) -> None:
    """From 1 by action 0.5, which earns 1, to 2: y = 1 + 0.5 * 4 * 2 * 1 = 5, q = 2 * 0.5 = 1.

    d/du = -(5 - 1) * 0.5 = -2, times the weight; q rises with the action by u s = 2, so that d/dw = -2, or -1 clipped.
    """
    config = ApeXDPG.Config(slope_clip=clip)
    agent = ApeXDPG(config, Bilinear(1.0, 2.0), Bilinear(0.5, 4.0), "learner", 0, torch.Generator())
    one = torch.tensor([1.0])
    part = Transitions(
        one[None], torch.tensor([[0.5]]), one[None], torch.tensor([[0.5]]), torch.tensor([[False]]),
        torch.tensor([[2.0]]), weight * one,
    )  # fmt: skip

    assert gradient(agent, part).tolist() == [climb, -2.0 * weight]
    assert agent.errors.tolist() == [4.0]
    assert not agent.errors.requires_grad


def pairs_of(layers: Layers) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of the layers, from the first to the last."""
    numbers = list(layers.parameters())
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def by_hand(layers: Layers, inputs: Tensor) -> Tensor:
    """What the layers make of `[B, i]`, one by one."""
    *hidden, last = pairs_of(layers)
    for weight, bias in hidden:
        inputs = (inputs @ weight.T + bias).clamp(min=0)
    return inputs @ last[0].T + last[1]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("learns", [True, False])
def test_an_update_of_sac_is_the_paper_s(n: int, learns: bool) -> None:
    """Each of the three losses from the paper's formulas, with torch's own distributions, in its own parameters."""
    settings = {"hidden_sizes": (16, 16), "n_step": n, "temperature": 0.3, "learn_temperature": learns}
    agent = agent_of(SAC, **settings)
    network, target = agent.network, agent.target
    (part,) = agent.passes(transitions_of(64, n))

    def policy(observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_deviation = by_hand(network.policy, observations).chunk(2, -1)
        normal = Normal(mean, log_deviation.exp())
        squashed = TransformedDistribution(Independent(normal, 1), [TanhTransform(cache_size=1)])
        action = squashed.transforms[0](mean + log_deviation.exp() * noise)
        return action, squashed.log_prob(action)

    def q(of: Any, copy: int, observations: Tensor, scaled: Tensor) -> Tensor:
        return by_hand(of.value[copy], torch.cat([observations, scaled], -1))[..., 0]

    with torch.no_grad():
        chosen, log_probability = policy(part.following, part.noise[1])
        soft = torch.minimum(*(q(target, i, part.following, chosen) for i in range(2))) - 0.3 * log_probability
        targets = torch.zeros(64)
        for b in range(64):
            factor = 1.0
            for rewards, discounts, last in zip(part.rewards, part.discounts, part.last, strict=True):
                targets[b] += factor * rewards[b]
                factor *= float(discounts[b])
                if last[b]:
                    break
            targets[b] += factor * soft[b]
    mean = part.weights * sum((q(network, i, part.observations, part.actions / 2) - targets) ** 2 for i in range(2))
    chosen, log_probability = policy(part.observations, part.noise[0])
    least = torch.minimum(*(q(network, i, part.observations, chosen) for i in range(2)))
    log_alpha = network.log_temperature
    losses = {
        "value": 0.5 * mean.mean(),
        "policy": (0.3 * log_probability - least).mean(),
        "log_temperature": -(log_alpha * (log_probability.detach() - 2)).mean() * learns,
    }
    expected = {}
    for name, parameter in network.named_parameters():
        (found,) = torch.autograd.grad(losses[name.split(".")[0]], parameter, retain_graph=True)
        expected[name] = found.clone()

    flat = gradient(agent, part)

    parameters = list(network.parameters())
    for (name, want), got in zip(expected.items(), split_like(flat, parameters), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, msg=name)


def test_an_update_of_sac_is_stable_baselines3_s() -> None:
    """Its weights, minibatch and noise, which benchmarks/sb3_sac_update.py has noted: gradients, and what they do."""
    agent = agent_of(SAC, hidden_sizes=(8, 8), learning_rate=1e-3)
    network, target = agent.network, agent.target
    take_weights(network, SB3["before"]["actor"], SB3["before"]["critic"], SB3["before"]["temperature"])
    take_weights(target, SB3["before"]["actor"], SB3["before"]["target"], SB3["before"]["temperature"])
    batch = {name: torch.tensor(value) for name, value in SB3["batch"].items()}
    part = Noisy(
        batch["observations"], 2 * batch["actions"], batch["rewards"].T, 0.99 * (1 - batch["dones"].T),
        batch["dones"].T > 0, batch["next_observations"], torch.ones(16), noise=torch.tensor(SB3["noise"]),
    )  # fmt: skip
    clock = Clock(1, 100, learners=1)
    config = agent.config
    store = SharedStore(flatten_parameters(network), config.descent, 1, clock)
    store.target_view().copy_(flatten_parameters(target))  # type: ignore[union-attr]

    found = gradient(agent, part)
    store.push(Update(LEARNER, found.clone(), 0, 0))

    want = agent_of(SAC, hidden_sizes=(8, 8)).network
    gradients = [dict(zip(SB3["before"][of], SB3["gradients"][of], strict=True)) for of in ("actor", "critic")]
    take_weights(want, *gradients, SB3["gradients"]["temperature"][0])
    torch.testing.assert_close(found, flatten_parameters(want), rtol=1e-5, atol=1e-5)
    take_weights(want, SB3["after"]["actor"], SB3["after"]["critic"], SB3["after"]["temperature"])
    torch.testing.assert_close(store.theta, flatten_parameters(want), rtol=1e-5, atol=1e-5)
    of_critics = sum(p.numel() for p in network.value.parameters())
    take_weights(want, SB3["after"]["actor"], SB3["after"]["target"], SB3["after"]["temperature"])
    own = store.target_view()
    assert own is not None
    flat, names_of = flatten_parameters(want), [name for name, _ in want.named_parameters()]
    compared = 0
    for name, got, wanted in zip(
        names_of, split_like(own, want.parameters()), split_like(flat, want.parameters()), strict=True
    ):
        if name.startswith("value"):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
            compared += got.numel()
    assert compared == of_critics


def take_weights(network: Any, actor: dict[str, Any], critic: dict[str, Any], temperature: list[float]) -> None:
    """Copy Stable-Baselines3's numbers, by its names, into a network of ours."""
    of = {name: torch.tensor(value) for name, value in (actor | critic).items()}
    policy = pairs_of(network.policy)
    with torch.no_grad():
        for (weight, bias), name in zip(policy, ["latent_pi.0", "latent_pi.2"], strict=False):
            weight.copy_(of[f"{name}.weight"])
            bias.copy_(of[f"{name}.bias"])
        policy[2][0].copy_(torch.cat([of["mu.weight"], of["log_std.weight"]]))
        policy[2][1].copy_(torch.cat([of["mu.bias"], of["log_std.bias"]]))
        for number, critic in enumerate(network.value):
            for place, (weight, bias) in enumerate(pairs_of(critic)):
                weight.copy_(of[f"qf{number}.{2 * place}.weight"])
                bias.copy_(of[f"qf{number}.{2 * place}.bias"])
        network.log_temperature.copy_(torch.tensor(temperature))


def test_a_squashed_gaussian_is_torch_s_tanh_of_a_normal() -> None:
    """Densities of drawn actions; draws have its mean and variance."""
    torch.manual_seed(2)
    mean, deviation = torch.randn(5, 2), torch.rand(5, 2) + 0.1
    ours = Squashed(Gaussian(mean, deviation), Box((-2.0, 1.0), (2.0, 4.0)))
    theirs = TransformedDistribution(Independent(Normal(mean, deviation), 1), [TanhTransform(cache_size=1)])
    noise = torch.randn(5, 2)

    scaled, log_probability = ours.drawn(noise)

    torch.testing.assert_close(scaled, (mean + deviation * noise).tanh())
    torch.testing.assert_close(log_probability, theirs.log_prob(scaled), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.mean, torch.tensor([0.0, 2.5]) + torch.tensor([2.0, 1.5]) * mean.tanh())
    generator = torch.Generator().manual_seed(1)
    one = Squashed(Gaussian(mean[:1], deviation[:1]), ours.box)
    many = torch.tensor([2.0, 1.5]) * one.drawn(torch.randn(200_000, 2, generator=generator))[0]
    with torch.random.fork_rng():
        torch.manual_seed(4)
        others = torch.tensor([2.0, 1.5]) * theirs.sample((200_000,))[:, 0]
    torch.testing.assert_close(many.mean(0), others.mean(0), rtol=0, atol=0.01)
    torch.testing.assert_close(many.var(0), others.var(0), rtol=0, atol=0.02)


def test_its_log_probability_is_finite_at_the_edge_of_the_box() -> None:
    """There tanh is 1 in float32: log(1 - tanh(20)^2) is log 4 - 40."""
    ours = Squashed(Gaussian(torch.tensor([[20.0]]), torch.tensor([[1.0]])), Box((-1.0,), (1.0,)))

    scaled, log_probability = ours.drawn(torch.zeros(1, 1))

    assert float(scaled) == 1.0
    assert float(log_probability) == pytest.approx(-0.5 * math.log(2 * math.pi) - (math.log(4) - 40), rel=1e-6)


def with_a_fixed_component(part: Transitions) -> Transitions:
    """The same with a third component of actions, whose only possible value is 0.7."""
    return dataclasses.replace(part, actions=torch.cat([part.actions, torch.full((len(part.actions), 1), 0.7)], -1))


@pytest.mark.parametrize("algorithm", [ApeXDPG, SAC])
def test_a_component_with_a_single_value_counts_for_nothing(algorithm: Any) -> None:
    """Critics, policies and temperatures learn the same from any outputs for it, and these learn nothing."""
    fixed = dataclasses.replace(SPACES, action_low=(-2.0, -2.0, 0.7), action_high=(2.0, 2.0, 0.7))
    part = with_a_fixed_component(transitions_of(20))
    gradients, rows = [], []
    for bias in (0.0, 2.0):
        agent = agent_of(algorithm, spaces=fixed)
        outputs = agent.network.policy.output.bias
        rows = list(range(2, len(outputs), 3))  # of SAC's two outputs for each component
        with torch.no_grad():
            outputs[rows] += bias
        batch = next(iter(agent.passes(part)))
        flat = gradient(agent, batch)
        shapes = {name: parameter.shape for name, parameter in agent.network.named_parameters()}
        gradients.append(dict(zip(shapes, split_like(flat, list(agent.network.parameters())), strict=True)))

    first, second = gradients
    assert first["policy.output.bias"].count_nonzero() == len(first["policy.output.bias"]) - len(rows)
    for name in first:
        torch.testing.assert_close(first[name], second[name])


def test_targets_are_averages_by_hand() -> None:
    """theta falls by 1 with every update; theta^- follows a quarter of the way: 0, -0.25, -0.6875."""
    descent = Descent(UpdateRule("momentum-sgd", decay=0.0), 1.0, target_interval_updates=1, target_rate=0.25)
    store = SharedStore(torch.zeros(2), descent, 1, Clock(1, 100, learners=1))
    seen = []
    for _ in range(2):
        store.push(Update(LEARNER, torch.ones(2), 0, 0))
        seen.append(store.target_view().tolist())  # type: ignore[union-attr]

    assert store.theta.tolist() == [-2.0, -2.0]
    assert seen == [[-0.25, -0.25], [-0.6875, -0.6875]]


def test_temperature_falls_where_entropy_is_more_than_wanted() -> None:
    """And rises where it is less; by how much, per component."""
    part = transitions_of(32)
    slopes = {}
    for wanted in (-1.0, 5.0):
        agent = agent_of(SAC, hidden_sizes=(8, 8), target_entropy=wanted)
        (noisy,) = agent.passes(part)
        slopes[wanted] = float(gradient(agent, noisy)[-1 if last_is_temperature(agent) else 0])

    assert slopes[-1.0] > 0 > slopes[5.0]
    assert slopes[-1.0] - slopes[5.0] == pytest.approx(12.0, rel=1e-5)


def last_is_temperature(agent: Any) -> bool:
    """Where theta has it: a module's own parameters come before those of its parts."""
    names = [name for name, _ in agent.network.named_parameters()]
    assert "log_temperature" in (names[0], names[-1])
    return names[-1] == "log_temperature"


def test_actors_of_apex_dpg_have_a_ladder_of_noise() -> None:
    """0.1, 0.2 and 0.4 for three; the evaluator has none. All actions are within the box."""
    agents = [agent_of(ApeXDPG, "worker", number, workers=3) for number in range(3)]
    seen = torch.randn(4_000, 3)

    spread = []
    for agent in agents:
        actions, _, left = agent.act(seen, None, 0)
        assert actions.abs().max() <= 2
        assert left["action_value"].shape == left["state_value"].shape == (4_000,)
        spread.append(float((actions / 2 - agent.network.choose(seen)).detach().std()))

    assert [agent.exploration["noise"] for agent in agents] == pytest.approx([0.1, 0.2, 0.4])
    assert spread == pytest.approx([0.1, 0.2, 0.4], rel=0.15)
    evaluator = agent_of(ApeXDPG, "evaluator", workers=3)
    best = evaluator.act(seen, None, 0)[0]
    torch.testing.assert_close(best, 2 * evaluator.network.choose(seen))
    torch.testing.assert_close(best, evaluator.network.policy_at(seen)[0].mode())


def test_apex_dpg_s_first_priorities_are_of_the_values_it_acted_with() -> None:
    """q of the action taken, and q of the policy's own."""
    agent = agent_of(ApeXDPG, "worker", workers=1)
    seen = torch.randn(7, 3)

    actions, _, left = agent.act(seen, None, 0)

    network = agent.network
    torch.testing.assert_close(left["action_value"], network.values_of(seen, actions / 2)[0])
    torch.testing.assert_close(left["state_value"], network.values_of(seen, network.choose(seen))[0])


def test_sac_begins_with_random_actions_and_is_evaluated_without_noise() -> None:
    """In the first steps they fill the box evenly, later they are the policy's; the evaluator takes the best."""
    agent = agent_of(SAC, "worker", warmup_steps=100)
    seen = torch.zeros(4_000, 3)

    early, late = agent.act(seen, None, 99)[0], agent.act(seen, None, 100)[0]

    assert early.abs().max() <= 2
    assert early.var(0).tolist() == pytest.approx([16 / 12] * 2, rel=0.05)
    policy = agent.network.policy_of(seen[:1])
    before = torch.atanh((late / 2).clamp(-0.999999, 0.999999))
    torch.testing.assert_close(before.mean(0), policy.inner.mean[0], rtol=0, atol=0.08)
    torch.testing.assert_close(before.std(0), policy.inner.deviation[0], rtol=0.08, atol=0)
    evaluator = agent_of(SAC, "evaluator")
    torch.testing.assert_close(evaluator.act(seen[:2], None, 0)[0], evaluator.network.policy_at(seen[:2])[0].mean)


@pytest.mark.parametrize("algorithm", ["sac", "apex_dpg"])
@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPole-v1", "CartPole-v1 has discrete actions; asyncrl {} chooses vectors of numbers"),
        ("tests.algorithms.test_control:Boundless", "has unbounded actions; this algorithm scales actions to bounds"),
    ],
)
def test_what_they_cannot_act_in_is_refused_in_one_line(
    algorithm: str, env_id: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    assert main(f"asyncrl.{algorithm}", ["--env-id", env_id, "--runs-dir", str(tmp_path)]) == 2

    said = capsys.readouterr().err
    assert message.format(algorithm) in said
    assert said.count("\n") == 1


class Boundless(gymnasium.Env[np.ndarray, np.ndarray]):
    """Actions are any numbers."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def reset(self, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_the_presets_are_what_they_are_named_after() -> None:
    """Horgan et al. 2018, table 1 of Haarnoja et al. 2018, and the zoo's MuJoCo."""
    dpg = ApeXDPG.Config(**ApeXDPG.preset("paper", SPACES))
    assert (dpg.hidden_sizes, dpg.critic_sizes, dpg.activation) == ((300, 200), (400, 300), "tanh")
    assert (dpg.learning_rate, dpg.n_step, dpg.target_interval_updates, dpg.slope_clip) == (1e-4, 5, 100, 1.0)
    assert (dpg.priority_exponent, dpg.importance_exponent, dpg.noises) == (0.6, 0.4, (0.3, 0.3))
    for name, warm_up in (("paper", 1_000), ("zoo", 10_000)):
        sac = SAC.Config(**SAC.preset(name, SPACES), preset=name)
        assert (sac.hidden_sizes, sac.learning_rate, sac.minibatch, sac.memory_steps) == ((256, 256), 3e-4, 256, 10**6)
        assert (sac.target_rate, sac.replay_ratio, sac.gamma, sac.warmup_steps) == (0.005, 1.0, 0.99, warm_up)
