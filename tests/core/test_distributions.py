"""Distributions against torch's own and against their own samples."""

from __future__ import annotations

import torch

from asyncrl.core.distributions import Categorical, Gaussian


def test_a_categorical_is_torchs() -> None:
    """Log-probabilities and entropy of random logits."""
    logits = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))
    reference = torch.distributions.Categorical(logits=logits)
    actions = torch.tensor([[0, 1], [2, 3], [1, 1]])

    torch.testing.assert_close(Categorical(logits).log_probability(actions), reference.log_prob(actions))
    torch.testing.assert_close(Categorical(logits).entropy(), reference.entropy())
    assert Categorical(logits).sample(torch.Generator()).shape == (3, 2)


def test_a_gaussian_is_torchs() -> None:
    """With a deviation per component, and with one for all of them."""
    generator = torch.Generator().manual_seed(0)
    mean, actions = torch.randn(2, 3, 4, 2, generator=generator)
    for deviation in (torch.tensor([0.5, 2.0]), torch.rand(3, 4, 1, generator=generator) + 0.1):
        reference = torch.distributions.Independent(torch.distributions.Normal(mean, deviation.expand_as(mean)), 1)
        ours = Gaussian(mean, deviation)

        torch.testing.assert_close(ours.log_probability(actions), reference.log_prob(actions))
        torch.testing.assert_close(ours.entropy(), reference.entropy())


def test_samples_have_the_mean_and_the_deviation() -> None:
    """20 000 draws of N(1, 0.5^2), within 0.02; the mode is the mean."""
    policy = Gaussian(torch.ones(1, 20_000, 1), torch.full((1,), 0.5))

    samples = policy.sample(torch.Generator().manual_seed(0))

    assert abs(samples.mean().item() - 1.0) < 0.02
    assert abs(samples.std().item() - 0.5) < 0.02
    assert policy.mode() is policy.mean


def test_actions_are_drawn_as_often_as_they_are_likely() -> None:
    """40 000 draws of three actions, one of them impossible, within four standard deviations."""
    probabilities = torch.tensor([0.7, 0.3, 0.0])
    generator = torch.Generator().manual_seed(0)

    drawn = Categorical(probabilities.log().expand(1, 40_000, 3)).sample(generator)

    shares = torch.bincount(drawn.flatten(), minlength=3) / 40_000
    torch.testing.assert_close(shares, probabilities, rtol=0, atol=4 * (0.21 / 40_000) ** 0.5)
    assert int((drawn == 2).sum()) == 0
