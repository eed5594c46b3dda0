"""Action masks in all algorithms: probabilities, gradients and targets by hand, and whole runs."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.algorithm import Algorithm, algorithm_of
from asyncrl.commands.train import main
from asyncrl.core.action_masks import INVALID, among_valid
from asyncrl.core.exploration import Boltzmann, EpsilonGreedy
from asyncrl.core.flat import flatten_parameters, gradient_of
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Minibatch, Rollout, Transitions
from asyncrl.core.spaces import Spaces
from asyncrl.envs.doors import Doors
from asyncrl.envs.spec import EnvSpec
from asyncrl.gorila import Gorila
from tests.support import evaluations_of, the_run

DOORS = "asyncrl.envs.doors:Doors"
SPACES = Spaces((4,), "float32", 3, parts=(Spaces((1,), "float32", 0),), masked=True)
"""A number, and a mask of three actions."""
PLAIN = {"normalize_advantages": False, "normalize_observations": False, "reward_clip": 0.0, "lstm_cells": 0}
LOGITS = [math.log(1), math.log(2), math.log(3)]
FIRST, SECOND = (1, 0, 1), (1, 1, 0)
"""Masks that leave probabilities of (1/4, 0, 3/4) and (1/3, 2/3, 0)."""
FROM_POLICY, FROM_ENTROPY = [-5 / 12, 2 / 3, -1 / 4], [-0.3600232, 0.1540327, 0.2059898]
LEARN_FROM_POLICY = ["a3c", "a2c", "ppo", "impala", "reinforce"]


def observations(*masks: tuple[int, ...]) -> Tensor:
    """`[T, 1, 4]`."""
    return torch.tensor([[7.0, *mask] for mask in masks])[:, None]


def make(name: str, bias: list[float], target_bias: list[float] | None = None, **settings: Any) -> Any:
    """An algorithm whose network has an output of `bias` everywhere."""
    algorithm: type[Algorithm] = algorithm_of(f"asyncrl.{name}")
    known = {key: value for key, value in (PLAIN | settings).items() if hasattr(algorithm.Config, key)}
    config = algorithm.Config(action_masks=True, **known)
    networks = [algorithm.make_network(config, SPACES) for _ in range(2)]
    for network, given in zip(networks, (bias, target_bias or bias), strict=True):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()
            head: Any = network.policy if hasattr(network, "policy") else network.head
            head.bias[:] = torch.tensor(given)
    return algorithm(config, networks[0], networks[1], "worker", 0, torch.Generator().manual_seed(1))


def gradient(agent: Any, part: Any) -> list[float]:
    """d loss / d bias of the head."""
    head = agent.network.policy if hasattr(agent.network, "policy") else agent.network.head
    parameters = list(agent.network.parameters())
    flat = gradient_of(agent.loss(part)[0], parameters, torch.empty_like(flatten_parameters(agent.network)))
    place = next(i for i, parameter in enumerate(parameters) if parameter is head.bias)
    return [float(number) for number in flat.split([one.numel() for one in parameters])[place]]


def rollout(masks: list[tuple[int, ...]], actions: list[int], reward: float, discount: float, **more: Any) -> Rollout:
    """A rollout of one environment, of a step fewer than there are masks."""
    steps = len(actions)
    empty = torch.zeros(0, dtype=torch.int64)
    fields = {"truncated": (empty, empty), "final_observations": None, "last": torch.full((steps, 1), discount == 0)}
    return Rollout(
        observations=observations(*masks), actions=torch.tensor(actions)[:, None],
        rewards=torch.full((steps, 1), reward), discounts=torch.full((steps, 1), discount), **(fields | more),
    )  # fmt: skip


def test_probabilities_and_entropy_are_of_the_valid_actions() -> None:
    """As in sb3-contrib's MaskablePPO: softmax and entropy of the valid actions, the others exactly impossible."""
    policy, _, _ = make("ppo", LOGITS).network(observations(FIRST, SECOND))

    torch.testing.assert_close(
        policy.log_probabilities.exp()[:, 0], torch.tensor([[1 / 4, 0, 3 / 4], [1 / 3, 2 / 3, 0]])
    )
    assert policy.log_probabilities.exp()[0, 0, 1] == policy.log_probabilities.exp()[1, 0, 2] == 0
    quarters = -(math.log(1 / 4) / 4 + 3 * math.log(3 / 4) / 4)
    thirds = -(math.log(1 / 3) / 3 + 2 * math.log(2 / 3) / 3)
    torch.testing.assert_close(policy.entropy()[:, 0], torch.tensor([quarters, thirds]))
    assert policy.mode()[:, 0].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("reward", "beta", "expected"), [(1.0, 0.0, FROM_POLICY), (0.0, 1.0, FROM_ENTROPY)], ids=["policy", "entropy"]
)
@pytest.mark.parametrize("name", LEARN_FROM_POLICY)
def test_a_policy_s_gradient_by_hand(name: str, reward: float, beta: float, expected: list[float]) -> None:
    """Advantages are 1: -(a - pi) of both steps, (1/4, 0, -1/4) + (-2/3, 2/3, 0). Nothing from invalid actions.

    The entropy's is -pi (log pi + H) of the valid ones.
    """
    agent = make(name, LOGITS, entropy_weights=(beta,), value_cost=0.0)
    taken = torch.tensor([[3 / 4], [1 / 3]]).log()
    part: Any = rollout([FIRST, SECOND, (1, 1, 1)], [2, 0], reward, 0.0, extras={"log_probability": taken})
    if name == "ppo":
        extras = {"log_probability": taken, "advantage": torch.full((2, 1), reward)}
        part = Minibatch(part.observations[:-1], part.actions, extras | dict.fromkeys(("return", "value"), taken), 0)
    scale = 0.5 if name in ("a2c", "ppo") else 1.0  # means, where others have sums

    assert gradient(agent, part) == pytest.approx([scale * number for number in expected], abs=1e-6)


Q, TARGET = [3.0, 2.0, 5.0], [10.0, 20.0, 50.0]
"""The best action of all is the last: theta^- says 50, if it were valid."""
MASKS: list[tuple[int, ...]] = [(1, 1, 1), (1, 1, 0), (1, 0, 0)]


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("one_step_q", {}, [-16.0, -8.0, 0.0]),  # y = 1 + 20/2 = 11 and 1 + 10/2 = 6; -2 (11 - 3), -2 (6 - 2)
        ("one_step_q", {"double_q": True}, [-6.0, -8.0, 0.0]),  # theta chooses the first: 10 instead of 20
        ("one_step_sarsa", {}, [-16.0, -8.0, 0.0]),  # the second action is next, then the first
        ("n_step_q", {}, [-2.0, -8.0, 0.0]),  # R_1 = 1 + 10/2 = 6, R_0 = 1 + 6/2 = 4
    ],
)
def test_a_target_is_of_the_valid_actions_only(name: str, settings: dict[str, Any], expected: list[float]) -> None:
    agent = make(name, Q, TARGET, **settings)

    assert gradient(agent, rollout(MASKS, [0, 1], 1.0, 0.5, next_actions=torch.tensor([[1], [0]]))) == expected


def test_sarsa_s_expected_action_at_a_time_limit_is_valid() -> None:
    """With epsilon 1/2: 3/4 of 10 and 1/4 of 20 make 12.5, so y = 7.25 and -2 (7.25 - 2) = -10.5."""
    agent = make("one_step_sarsa", Q, TARGET, exploration="equal", epsilons=(0.5,), exploration_steps=0)
    cut = {
        "truncated": (torch.tensor([1]), torch.tensor([0])), "final_observations": observations((1, 1, 0))[0],
        "last": torch.tensor([[False], [True]]), "next_actions": torch.tensor([[1], [0]]),
    }  # fmt: skip

    assert gradient(agent, rollout(MASKS, [0, 1], 1.0, 0.5, **cut)) == [-16.0, -10.5, 0.0]


@pytest.mark.parametrize(("name", "expected"), [("gorila", -16.0), ("apex", -6.0)])
def test_a_replayed_step_bootstraps_from_valid_actions(name: str, expected: float) -> None:
    """max over two of three is 20; with double Q, which Ape-X has, theta chooses the first of them: 10."""
    one = torch.ones(1, 1)
    part = Transitions(
        observations((1, 1, 1))[0], torch.tensor([0]), one, 0.5 * one, one > 2, observations((1, 1, 0))[0], one[0]
    )

    assert gradient(make(name, Q, TARGET, error_clip=0.0, dueling=False), part) == [expected, 0.0, 0.0]


def test_exploration_is_among_valid_actions() -> None:
    """With epsilon 1/2 and two of three valid: 3/4 and 1/4. Boltzmann's are softmax of the valid values."""
    values = torch.tensor([[3.0, INVALID, 2.0], [INVALID, INVALID, 1.0]])
    epsilon, softmax = among_valid(EpsilonGreedy(0.5)), among_valid(Boltzmann(0.5))

    assert epsilon.facts() == {"final_epsilon": 0.5}
    torch.testing.assert_close(epsilon.probabilities(values, 0), torch.tensor([[0.75, 0.0, 0.25], [0.0, 0.0, 1.0]]))
    likely = 1 / (1 + math.exp(-2))
    torch.testing.assert_close(
        softmax.probabilities(values, 0), torch.tensor([[likely, 0.0, 1 - likely], [0.0, 0.0, 1.0]])
    )
    generator = torch.Generator().manual_seed(3)
    for policy, share in ((epsilon, 0.75), (softmax, likely)):
        first = Counter(policy.choose(values[:1].expand(20_000, 3), 0, generator).tolist())
        assert set(first) == {0, 2}
        assert first[0] / 20_000 == pytest.approx(share, abs=0.02)


class Half(EpsilonGreedy):
    """A user's own, in part."""

    def epsilon(self, steps: int) -> float:
        return 0.5


class Last(EpsilonGreedy):
    """A user's own choice."""

    def choose(self, values: Tensor, steps: int, generator: torch.Generator) -> Tensor:
        return torch.tensor([values.shape[-1] - 1])


def test_masks_leave_epsilon_as_it_is() -> None:
    """Its schedule too, and what a user's own class says; whoever chooses by himself sees INVALID."""
    values = torch.tensor([[3.0, INVALID, 2.0]])
    by_schedule = EpsilonGreedy(0.1, 1000, "0:1,0.5:0.2,1:0.1")

    for exploration, epsilon in ((by_schedule, 0.2), (Half(0.1), 0.5)):
        chances = among_valid(exploration).probabilities(values, 500)
        torch.testing.assert_close(chances, torch.tensor([[1 - epsilon / 2, 0.0, epsilon / 2]]))
    own = Last(0.1)
    assert among_valid(own) is own


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, []) for name in ("a3c", "a2c", "ppo", "impala", "reinforce", "one_step_q", "one_step_sarsa")),
        ("a3c", ["--lstm-cells", "4", "--evaluation-policy", "sampled", "--frame-stack", "3"]),
        ("n_step_q", ["--exploration", "boltzmann", "--lstm-cells", "4"]),
        ("one_step_q", ["--exploration", "ladder", "--evaluation-policy", "sampled", "--evaluation-epsilon", "1"]),
        ("gorila", ["--warmup-steps", "100", "--memory-steps", "5000", "--frame-stack", "2", "--checkpoint-replay"]),
        ("apex", ["--warmup-steps", "100", "--memory-steps", "5000"]),
    ],
)
def test_no_algorithm_ever_takes_an_invalid_action(tmp_path: Path, name: str, words: list[str]) -> None:
    """In training and evaluation: a locked door would end the run."""
    always = ["--env-id", DOORS, "--env-kwargs", "strict=True", "--action-masks", "--backend", "serial", "--quiet"]
    short = ["--workers", "2", "--total-steps", "400", "--evaluation-episodes", "10", "--runs-dir", str(tmp_path)]

    assert main(f"asyncrl.{name}", [*always, *short, *words]) == 0

    assert evaluations_of(the_run(tmp_path))[-1]["mean"] >= 0


class Watching(Gorila):
    """Looks at what it replays: the rooms are normalised, the masks are not."""

    seen = 0

    def loss(self, part: Transitions) -> tuple[Tensor, Metrics]:
        for observations in (part.observations, part.following):
            assert observations[:, -4:].sum(1).tolist() == [2.0] * len(observations)
            assert set(observations[:, -4:].unique().tolist()) == {0.0, 1.0}
            assert observations[:, :5].min() < 0  # raw rooms are 0 and 1
        assert part.observations[:, -4:].gather(1, part.actions[:, None]).tolist() == [[1.0]] * len(part.actions)
        rooms, next_rooms = part.observations[:, :5].argmax(1), part.following[:, :5].argmax(1)
        assert torch.where(part.last.any(0), 0, rooms + 2).tolist() == next_rooms.tolist()
        Watching.seen += 1
        return super().loss(part)


def test_a_replay_memory_has_the_masks_of_both_states(tmp_path: Path) -> None:
    """Of the state in which the action was chosen, and of the one from which the return bootstraps, two steps later."""
    words = ["--env-id", DOORS, "--action-masks", "--backend", "serial", "--workers", "2", "--n-step", "2", "--quiet"]
    words += ["--warmup-steps", "200", "--memory-steps", "5000", "--normalize-observations", "--total-steps", "600"]

    assert main("tests.algorithms.test_masks:Watching", [*words, "--runs-dir", str(tmp_path)]) == 0
    assert Watching.seen > 50


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["a3c", "ppo", "n_step_q", "apex"])
def test_doors_are_solved_with_masks_and_not_without(tmp_path: Path, name: str) -> None:
    """Far above a random agent that knows them, and for who does not see them there is nothing but losses."""
    words = ["--env-id", DOORS, "--backend", "serial", "--workers", "2", "--total-steps", "20000", "--quiet"]
    words += ["--evaluation-episodes", "100", "--evaluation-policy", "greedy", "--evaluation-interval-steps", "0"]
    words += ["--exploration-steps", "5000"] if name == "n_step_q" else []
    words += ["--warmup-steps", "500", "--memory-steps", "20000"] if name == "apex" else []
    for masks, folder in (["--action-masks"], tmp_path / "with"), ([], tmp_path / "without"):
        assert main(f"asyncrl.{name}", [*words, *masks, "--runs-dir", str(folder)]) == 0

    assert evaluations_of(the_run(tmp_path / "with"))[-1]["mean"] > 0.72 > Doors.RANDOM
    assert evaluations_of(the_run(tmp_path / "without"))[-1]["mean"] < 0


def test_the_toy_is_what_it_says() -> None:
    """The best valid door of each room pays 7/9 of its share on average, a random valid door half of it."""
    environment = EnvSpec(DOORS, action_masks=True).make(seed=1, evaluation=True)
    returns = {"best": 0.0, "first": 0.0}
    for how in returns:
        for _ in range(2000):
            observation, over = environment.reset(), False
            while not over:
                room, doors = int(observation[:5].argmax()), [d for d in range(4) if observation[5 + d]]
                assert len(doors) == 2
                best = max(doors, key=lambda door: (door + room) % 4)
                observation, reward, over, _, _ = environment.step(best if how == "best" else doors[0])
                returns[how] += reward / 2000
    assert returns["best"] == pytest.approx(Doors.OPTIMUM, abs=0.02)
    assert 0.3 < returns["first"] < 0.6
