"""One step of every `paper` preset against the paper's own, written down here a second time.

Both compute in float64, on the same linear network and the same random experience, with the preset's number of steps in
an update and after a quarter of its run. docs/algorithms/paper-settings.md has the source of each number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn

from asyncrl.algorithm import algorithm_of
from asyncrl.core.distributions import Categorical
from asyncrl.core.flat import gradient_of
from asyncrl.core.rollout import Rollout, State, Transitions
from asyncrl.core.spaces import Spaces
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.protocols import LEARNER, Update
from tests.config.settings import KINDS

ACTIONS, FEATURES = 4, 3
ATARI = KINDS["atari"]
GAMMA = 0.99
AT = 0.25
"""Share of the run that is over, so that a learning rate that falls to 0 is at 0.75 of the first."""

Step: TypeAlias = Callable[[Tensor], Tensor]
"""From a gradient `[P]` to the change of theta `[P]`."""


class Policy(nn.Module):
    """Logits and a value, each linear in the observation."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Parameter(torch.randn(ACTIONS, FEATURES) / 2)
        self.value = nn.Parameter(torch.randn(1, FEATURES) / 2)

    def forward(
        self, observations: Tensor, state: State = None, last: Tensor | None = None
    ) -> tuple[Any, Tensor, State]:
        return Categorical(observations @ self.policy.T), (observations @ self.value.T)[..., 0], None


class Baseline(Policy):
    """The same with one number for a value."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(1))

    def forward(
        self, observations: Tensor, state: State = None, last: Tensor | None = None
    ) -> tuple[Any, Tensor, State]:
        return Categorical(observations @ self.policy.T), self.value.expand(observations.shape[:-1]), None


class Values(nn.Module):
    """Action values, linear in the observation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ACTIONS, FEATURES))

    def forward(self, observations: Tensor, state: State = None, last: Tensor | None = None) -> tuple[Tensor, State]:
        return observations @ self.weight.T, None


@pytest.fixture(autouse=True)
def float64() -> Any:
    """Everything, and the same random numbers for every test."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(7)
    yield
    torch.set_default_dtype(torch.float32)


def rollout_of(steps: int, environments: int, acted_at: int, size: float, gamma: float = GAMMA) -> Rollout:
    """Random experience of another policy, with an episode that ends after the third step of the first environment."""
    discounts = torch.full((steps, environments), gamma)
    discounts[2, 0] = 0.0
    actions = torch.randint(ACTIONS, (steps, environments))
    acted = torch.log_softmax(torch.randn(steps, environments, ACTIONS) / 4, -1)
    nowhere = torch.tensor([], dtype=torch.int64)
    return Rollout(
        observations=size * torch.randn(steps + 1, environments, FEATURES),
        actions=actions,
        rewards=2 * torch.randn(steps, environments),  # some of them beyond the clip
        discounts=discounts,
        last=discounts == 0,
        truncated=(nowhere, nowhere),
        final_observations=None,
        next_actions=torch.randint(ACTIONS, (steps, environments)),
        acted_at=acted_at,
        extras={
            "log_probability": acted.gather(-1, actions[..., None])[..., 0],
            "place": torch.arange(steps * environments).reshape(steps, environments),
        },
    )


class Setting:
    """An algorithm with its `paper` preset, a network, and a store, all in float64."""

    def __init__(
        self, algorithm: str, network: nn.Module, spaces: Spaces = ATARI, target: nn.Module | None = None
    ) -> None:
        module = algorithm_of(f"asyncrl.{algorithm}")
        self.config = module.Config(**module.preset("paper", spaces) | {"preset": "paper"})
        self.steps = int(AT * self.config.total_steps)
        self.network, self.target = network, target
        self.agent = module(self.config, network, target, "worker", 0, torch.Generator())
        self.parameters = list(network.parameters())
        self.before = nn.utils.parameters_to_vector(self.parameters).detach().clone()

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype)

        clock = Clock(self.config.workers, self.config.total_steps, base_steps=self.steps)
        self.store = SharedStore(self.before, self.config.descent, self.config.workers, clock, zeros=zeros)

    def learn(self, part: Any, worker: int = LEARNER) -> Tensor:
        """Make an update; the change of theta so far."""
        gradient = gradient_of(self.agent.loss(part)[0], self.parameters, torch.empty_like(self.before))
        self.store.push(Update(worker, gradient, 0, 0))
        nn.utils.vector_to_parameters(self.store.theta, self.parameters)
        return self.store.theta - self.before

    def gradient(self, loss: Tensor) -> Tensor:
        """Of a loss written here, `[P]`."""
        return torch.cat([one.reshape(-1) for one in torch.autograd.grad(loss, self.parameters)])


def clipped(gradient: Tensor, norm: float, acts: bool) -> Tensor:
    """With at most this norm; `acts` says whether that must make a difference here."""
    size = float((gradient**2).sum() ** 0.5)
    assert (size > norm) is acts, size
    return gradient * min(1.0, norm / size)


def rmsprop(gradient: Tensor, g: Tensor, eta: float, alpha: float, epsilon: float) -> Tensor:
    """g <- alpha g + (1 - alpha) d^2; the step is - eta d / sqrt(g + epsilon)."""
    return -eta * gradient / (alpha * g + (1 - alpha) * gradient**2 + epsilon) ** 0.5


def same(seen: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(seen, expected, rtol=1e-6, atol=1e-12)


def log_pi(network: Any, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """log pi(a_t | s_t) and H(pi(s_t)), `[T, E]`."""
    logs = torch.log_softmax(rollout.observations[:-1] @ network.policy.T, -1)
    return logs.gather(-1, rollout.actions[..., None])[..., 0], -(logs.exp() * logs).sum(-1)


def n_step_returns(rollout: Rollout, bootstrap: Tensor) -> Tensor:
    """r_t + gamma r_{t+1} + ..., to the episode's end or the value `[E]` of the last observation; rewards clipped."""
    rewards, returns = rollout.rewards.clip(-1, 1), torch.zeros_like(rollout.rewards)
    for e in range(rewards.shape[1]):
        for t in range(len(rewards)):
            weight = 1.0
            for i in range(t, len(rewards)):
                returns[t, e] += weight * rewards[i, e]
                weight *= float(rollout.discounts[i, e])
            returns[t, e] += weight * bootstrap[e]
    return returns


@pytest.mark.parametrize(("size", "clips"), [(1.0, False), (40.0, True)])
def test_a3c(size: float, clips: bool) -> None:
    """Algorithm S3, equations S2 and S3: sums over 5 steps, half of the value's gradient, beta 0.01."""
    network = Policy()
    setting = Setting("a3c", network)
    rollout, g = rollout_of(5, 1, setting.steps, size), torch.rand_like(setting.before)
    setting.store.statistics[0, 0] = g
    values = (rollout.observations @ network.value.T)[..., 0]
    returns = n_step_returns(rollout, values[-1].detach())
    log, entropy = log_pi(network, rollout)
    policy = (log * (returns - values[:-1].detach()) + 0.01 * entropy).sum()
    loss = 0.5 * ((returns - values[:-1]) ** 2).sum() - policy
    step = rmsprop(clipped(setting.gradient(loss), 40, clips), g, 7e-4 * (1 - AT), 0.99, 0.1)

    same(setting.learn(rollout, worker=0), step)


@pytest.mark.parametrize(("size", "clips"), [(0.5, False), (20.0, True)])
@pytest.mark.parametrize("algorithm", ["one_step_q", "one_step_sarsa", "n_step_q"])
def test_asynchronous_value_methods(algorithm: str, size: float, clips: bool) -> None:
    """Algorithms 1 and S2, section 4 for Sarsa: the gradient of a sum of squares over 5 steps, with its factor 2."""
    network, target = Values(), Values()
    setting = Setting(algorithm, network, target=target)
    rollout, g = rollout_of(5, 1, setting.steps, size), torch.rand_like(setting.before)
    setting.store.statistics[0, 0] = g
    following = (rollout.observations[1:] @ target.weight.T).detach()
    best = following.amax(-1)
    if algorithm == "one_step_sarsa":
        assert rollout.next_actions is not None
        best = following.gather(-1, rollout.next_actions[..., None])[..., 0]
    targets = rollout.rewards.clip(-1, 1) + rollout.discounts * best
    if algorithm == "n_step_q":
        targets = n_step_returns(rollout, best[-1])
    q = (rollout.observations[:-1] @ network.weight.T).gather(-1, rollout.actions[..., None])[..., 0]
    gradient = setting.gradient(((targets - q) ** 2).sum())

    same(setting.learn(rollout, worker=0), rmsprop(clipped(gradient, 40, clips), g, 7e-4 * (1 - AT), 0.99, 0.1))


@pytest.mark.parametrize(("size", "clips"), [(0.1, False), (1.0, True)])
def test_a2c(size: float, clips: bool) -> None:
    """OpenAI Baselines' a2c: means over 5 steps of 16 environments, 0.5 of the mean squared error, norm 0.5."""
    network = Policy()
    setting = Setting("a2c", network)
    rollout, g = rollout_of(5, 16, setting.steps, size), torch.rand_like(setting.before)
    setting.store.statistics[0, 0] = g
    values = (rollout.observations @ network.value.T)[..., 0]
    returns = n_step_returns(rollout, values[-1].detach())
    log, entropy = log_pi(network, rollout)
    policy = -(log * (returns - values[:-1].detach())).mean()
    loss = policy - 0.01 * entropy.mean() + 0.5 * ((values[:-1] - returns) ** 2).mean()
    step = rmsprop(clipped(setting.gradient(loss), 0.5, clips), g, 7e-4 * (1 - AT), 0.99, 1e-5)

    same(setting.learn(rollout), step)


@pytest.mark.parametrize(("size", "clips"), [(0.1, False), (1.0, True)])
def test_impala(size: float, clips: bool) -> None:
    """Section 4 and the appendix: sums over 20 steps of 32 rollouts, half of half the squared error, epsilon 0.01.

    The preset's mean is a 32nd of that sum, so its statistics are a 32nd of the paper's, squared.
    """
    network = Policy()
    setting = Setting("impala", network)
    rollout, g = rollout_of(20, 32, setting.steps, size), torch.rand_like(setting.before)
    setting.store.statistics[0, 0] = g / 32**2
    values = (rollout.observations @ network.value.T)[..., 0]
    log, entropy = log_pi(network, rollout)
    targets, advantages = vtrace_by_its_sum(rollout, log.detach(), values.detach())
    policy, baseline = -(log * advantages).sum(), 0.5 * ((targets - values[:-1]) ** 2).sum()
    gradient = setting.gradient(policy + 0.5 * baseline - 0.01 * entropy.sum())

    same(setting.learn(rollout), rmsprop(clipped(gradient, 40, clips), g, 6e-4 * (1 - AT), 0.99, 0.01))


def vtrace_by_its_sum(rollout: Rollout, log: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """v_s by equation 1, and rho_s (r_s + gamma v_{s+1} - V(x_s)), `[T, E]` each; rho_bar = c_bar = 1."""
    rho = (log - rollout.extras["log_probability"]).exp().clip(max=1)
    rewards, last = rollout.rewards.clip(-1, 1), len(rollout.rewards)
    delta = rho * (rewards + rollout.discounts * values[1:] - values[:-1])
    targets = values.clone()
    for e in range(rewards.shape[1]):
        for s in range(last):
            product = 1.0
            for t in range(s, last):
                targets[s, e] += product * delta[t, e]
                product *= float(rollout.discounts[t, e] * rho[t, e])
    return targets[:-1], rho * (rewards + rollout.discounts * targets[1:] - values[:-1])


@pytest.mark.parametrize(
    ("kind", "actors", "steps", "epochs", "minibatch", "eta", "clip", "beta"),
    [
        ("atari", 8, 128, 3, 32 * 8, 2.5e-4 * (1 - AT), 0.1 * (1 - AT), 0.01),
        ("vector", 1, 2048, 10, 64, 3e-4, 0.2, 0.0),
    ],
)
def test_ppo(
    kind: str, actors: int, steps: int, epochs: int, minibatch: int, eta: float, clip: float, beta: float
) -> None:
    """Tables 5 and 3: equation 9 with c_1 = 1, by Adam, whose epsilon is 1e-5, as in its authors' code.

    So are the advantages scaled, there in each batch, here in each minibatch.
    """
    network = Policy()
    setting = Setting("ppo", network, KINDS[kind])
    rollout = rollout_of(steps, actors, setting.steps, 1.0)
    rewards = rollout.rewards.clip(-1, 1) if kind == "atari" else rollout.rewards
    values = (rollout.observations @ network.value.T)[..., 0].detach()
    rollout.extras["value"] = values[:-1]  # as actors send them
    delta = rewards + rollout.discounts * values[1:] - values[:-1]
    advantages = delta.clone()
    for t in reversed(range(steps - 1)):  # equation 11
        advantages[t] += 0.95 * rollout.discounts[t] * advantages[t + 1]
    returns = advantages + values[:-1]
    old, reference = rollout.extras["log_probability"].flatten(), Policy()
    reference.load_state_dict(network.state_dict())
    m, v, changed, updates = 0.0, 0.0, torch.zeros_like(setting.before), 0

    for part in setting.agent.passes(rollout):
        chosen = part.extras["place"].flatten().long()
        assert len(chosen) == minibatch
        logs = torch.log_softmax(rollout.observations[:-1].flatten(0, 1)[chosen] @ reference.policy.T, -1)
        ratio = (logs.gather(-1, rollout.actions.flatten()[chosen, None])[:, 0] - old[chosen]).exp()
        a = advantages.flatten()[chosen]
        a = (a - a.mean()) / a.std(correction=0)
        surrogate = torch.min(ratio * a, ratio.clip(1 - clip, 1 + clip) * a).mean()
        value = (rollout.observations[:-1].flatten(0, 1)[chosen] @ reference.value.T)[:, 0]
        error = ((value - returns.flatten()[chosen]) ** 2).mean()
        loss = -(surrogate - 1.0 * error - beta * (logs.exp() * logs).sum(-1).mean())
        d = torch.cat([one.reshape(-1) for one in torch.autograd.grad(loss, list(reference.parameters()))])
        updates += 1
        m, v = 0.9 * m + 0.1 * d, 0.999 * v + 0.001 * d**2  # Kingma & Ba, Algorithm 1
        changed -= eta * (m / (1 - 0.9**updates)) / ((v / (1 - 0.999**updates)) ** 0.5 + 1e-5)
        nn.utils.vector_to_parameters(setting.before + changed, reference.parameters())
        seen = setting.learn(part)

    assert updates == epochs * actors * steps // minibatch
    same(seen, changed)


def test_reinforce() -> None:
    """Williams 1992: theta + eta sum over the episode of grad log pi (r - b), r being all that is still earned."""
    network = Baseline()
    setting = Setting("reinforce", network, KINDS["vector"])
    rollout = rollout_of(40, 1, setting.steps, 1.0, gamma=1.0)
    rollout.discounts.fill_(1.0)
    rollout.last.fill_(False)
    rollout.discounts[-1], rollout.last[-1] = 0.0, True
    earned = torch.stack([rollout.rewards[t:, 0].sum() for t in range(40)])
    log, _ = log_pi(network, rollout)
    gradient = torch.autograd.grad((log[:, 0] * (earned - 50 * network.value.detach())).sum(), network.policy)[0]

    same(setting.learn(rollout, worker=0)[: gradient.numel()], 1e-2 * gradient.flatten())


def transitions_of(steps: int, count: int, size: float) -> Transitions:
    """Random ones; the first is cut after its first step by an end."""
    discounts, last = torch.full((steps, count), GAMMA), torch.zeros(steps, count, dtype=torch.bool)
    discounts[0, 0], last[0, 0] = 0.0, True
    observations = size * torch.randn(2, count, FEATURES)
    actions, rewards = torch.randint(ACTIONS, (count,)), 2 * torch.randn(steps, count)
    return Transitions(observations[0], actions, rewards, discounts, last, observations[1], torch.rand(count))


def n_step_target(part: Transitions, values: Tensor) -> Tensor:
    """r + gamma r' + ... + gamma^n V, nothing after an end."""
    weight, total = torch.ones(len(part.actions)), torch.zeros(len(part.actions))
    for rewards, discounts in zip(part.rewards.clip(-1, 1), part.discounts, strict=True):
        total, weight = total + weight * rewards, weight * discounts
    return total + weight * values


def test_gorila() -> None:
    """DQN's gradient summed over 32 transitions, errors clipped to [-1, 1], by AdaGrad.

    Neither sum nor factor matter to AdaGrad: the preset's gradient is 2 / 32 of this one, and so are its roots.
    """
    network, target = Values(), Values()
    setting = Setting("gorila", network, target=target)
    part, g = transitions_of(1, 32, 1.0), 10 + torch.rand_like(setting.before)
    setting.store.statistics[0, 0] = g * (2 / 32) ** 2
    best = (part.following @ target.weight.T).amax(-1).detach()
    q = (part.observations @ network.weight.T).gather(-1, part.actions[:, None])[:, 0]
    errors = (n_step_target(part, best) - q).detach().clip(-1, 1)
    assert 0 < int((errors.abs() < 1).sum()) < 32
    d = setting.gradient(-(errors * q).sum())

    same(setting.learn(part), -3e-4 * d / (g + d**2) ** 0.5)


@pytest.mark.parametrize(("size", "clips"), [(1.0, False), (20.0, True)])
def test_apex(size: float, clips: bool) -> None:
    """The mean of w (G - q)^2 / 2 over 512, double Q, three steps, by centred RMSProp, epsilon 1.5e-7, norm 40.

    The preset's gradient is twice this one.
    """
    network, target = Values(), Values()
    setting = Setting("apex", network, target=target)
    part, m = transitions_of(3, 512, size), torch.randn_like(setting.before)
    g = m**2 + torch.rand_like(m)
    setting.store.statistics[0] = torch.stack([4 * g, 2 * m])
    chosen = (part.following @ network.weight.T).argmax(-1, keepdim=True)
    values = (part.following @ target.weight.T).gather(-1, chosen)[:, 0].detach()
    q = (part.observations @ network.weight.T).gather(-1, part.actions[:, None])[:, 0]
    loss = (part.weights * (n_step_target(part, values) - q) ** 2 / 2).mean()
    d = clipped(setting.gradient(loss), 40, clips)
    g, m = 0.95 * g + 0.05 * d**2, 0.95 * m + 0.05 * d

    same(setting.learn(part), -0.00025 / 4 * d / (g - m**2 + 1.5e-7) ** 0.5)


def test_apex_learns_from_a_step_as_often_as_the_paper() -> None:
    """19 batches of 512 transitions beside 50,000 frames, each action being 4 of them: 0.78 times."""
    config = Setting("apex", Values(), target=Values()).config

    assert config.replay_ratio * config.minibatch == pytest.approx(19 * 512 / (50_000 / 4))
