"""How workers explore, and how they differ."""

from __future__ import annotations

import pytest
import torch

from asyncrl.config.value import ValueConfig
from asyncrl.core.errors import UsageError
from asyncrl.core.exploration import Boltzmann, EpsilonGreedy, draw_epsilon, ladder_epsilon, spread_temperature

VALUES = torch.tensor([[1.0, 3.0, 2.0]])


def frequencies(policy: EpsilonGreedy | Boltzmann, steps: int = 0, draws: int = 20_000) -> torch.Tensor:
    actions = policy.choose(VALUES.expand(draws, 3), steps, torch.Generator().manual_seed(0))
    return torch.bincount(actions, minlength=3) / draws


@pytest.mark.parametrize("policy", [EpsilonGreedy(0.3), EpsilonGreedy(0.1, over=100), Boltzmann(1.5)])
@pytest.mark.parametrize("steps", [0, 50, 1000])
def test_actions_are_drawn_from_the_stated_probabilities(policy: EpsilonGreedy | Boltzmann, steps: int) -> None:
    """20 000 draws against `probabilities`, within 0.02."""
    torch.testing.assert_close(frequencies(policy, steps), policy.probabilities(VALUES, steps)[0], atol=0.02, rtol=0)


def test_epsilon_greedy_gives_every_action_its_share() -> None:
    """epsilon 0.3 over 3 actions: 0.1, 0.8, 0.1."""
    torch.testing.assert_close(EpsilonGreedy(0.3).probabilities(VALUES, 0), torch.tensor([[0.1, 0.8, 0.1]]))


def test_epsilon_falls_from_one_to_its_final_value() -> None:
    """1 at T = 0, 0.55 half-way, 0.1 at the end and after."""
    policy = EpsilonGreedy(0.1, over=100)

    assert [policy.epsilon(steps) for steps in (0, 50, 100, 500)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_final_epsilons_are_drawn_with_the_papers_probabilities() -> None:
    """{0.1: 0.4, 0.01: 0.3, 0.5: 0.3} over 4000 workers, within 0.03."""
    drawn = [draw_epsilon((0.1, 0.01, 0.5), (0.4, 0.3, 0.3), (1, worker)) for worker in range(4000)]

    assert [drawn.count(e) / 4000 for e in (0.1, 0.01, 0.5)] == pytest.approx([0.4, 0.3, 0.3], abs=0.03)


def test_a_worker_keeps_its_epsilon_over_a_resume() -> None:
    """It depends on seed and worker only; workers differ."""
    config = ValueConfig(seed=3)

    assert [config.exploration_of(w).facts() for w in range(16)] == [
        config.exploration_of(w).facts() for w in range(16)
    ]
    assert len({config.exploration_of(w).facts()["final_epsilon"] for w in range(16)}) == 3


def test_the_ladder_goes_from_its_base_to_nearly_nothing() -> None:
    """0.4^(1 + 7 i / 7) for 8 workers: 0.4, 0.16, ..., 0.4^8."""
    rungs = [ladder_epsilon(worker, 8) for worker in range(8)]

    assert rungs[:2] == pytest.approx([0.4, 0.16])
    assert rungs[7] == pytest.approx(0.4**8)


@pytest.mark.parametrize("exploration", ["ladder", "boltzmann"])
def test_each_host_has_the_whole_ladder(exploration: str) -> None:
    """Workers count through all hosts, `workers` are those of one."""
    config = ValueConfig(exploration=exploration, workers=3)

    first, second = ([config.exploration_of(worker) for worker in host] for host in (range(3), range(3, 6)))
    assert first == second
    assert len({str(one) for one in first}) == 3


def test_temperatures_are_spread_evenly_in_the_logarithm() -> None:
    """0.01, 0.1, 1 for three workers."""
    assert [spread_temperature(worker, 3, 0.01, 1.0) for worker in range(3)] == pytest.approx([0.01, 0.1, 1.0])


def test_equal_exploration_is_equal() -> None:
    """So that one can measure what diversity buys."""
    config = ValueConfig(exploration="equal", epsilons=(0.2,))

    assert {config.exploration_of(worker).facts()["final_epsilon"] for worker in range(16)} == {0.2}


def test_the_evaluator_does_not_explore_unless_asked() -> None:
    """Greedy by default; --evaluation-policy sampled keeps a little epsilon."""
    assert ValueConfig().exploration_of(None) == EpsilonGreedy(0.0)
    assert ValueConfig(evaluation_policy="sampled").exploration_of(None) == EpsilonGreedy(0.01)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epsilons": (2.0,)}, "--epsilons must be at least 0 and at most 1"),
        ({"evaluation_epsilon": 1.5}, "--evaluation-epsilon must be at least 0 and at most 1"),
        ({"epsilon_probabilities": (0.5, 0.5)}, "must have the same length"),
        ({"epsilon_probabilities": (0.0, 0.0, 0.0)}, "--epsilon-probabilities must not all be 0"),
        ({"target_interval_steps": 0}, "--target-interval-steps must be at least 1"),
        ({"exploration_steps": -1}, "--exploration-steps must be at least 0"),
        ({"temperatures": (0.0, 1.0)}, "--temperatures must be more than 0"),
    ],
)
def test_impossible_exploration_is_refused(fields: dict[str, object], message: str) -> None:
    """One line with the flag."""
    with pytest.raises(UsageError, match=message):
        ValueConfig(**fields)  # type: ignore[arg-type]
