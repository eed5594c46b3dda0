"""Scores beside those of people, and over seeds and games."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from asyncrl.core.statistics import interquartile_mean, mean_of, over_games
from asyncrl.envs.atari import games
from asyncrl.studies.scores import Reference, Score, human_normalized, reference_scores, totals


def test_a_random_player_has_0_percent_and_a_human_one_100() -> None:
    """By the reference that was asked for; Breakout's are 1.7 and 30.5 with no-ops, 1.6 and 27.9 with human starts."""
    assert human_normalized("ALE/Breakout-v5", 1.7) == pytest.approx(0)
    assert human_normalized("BreakoutNoFrameskip-v4", 30.5) == pytest.approx(100)
    assert human_normalized("ALE/Breakout-v5", 27.9, "human-starts") == pytest.approx(100)
    assert human_normalized("ALE/Breakout-v5", 16.1) == pytest.approx(50)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Catch", "ALE/Adventure-v5", "lamps:Lamps", "MinAtar/Breakout-v1"])
def test_what_is_none_of_the_57_games_has_no_such_score(env_id: str) -> None:
    """Nor has another environment of a game's name."""
    assert human_normalized(env_id, 1.0) is None


@pytest.mark.parametrize("reference", get_args(Reference))
def test_there_are_57_games_all_of_which_can_be_played_here(reference: Reference) -> None:
    """Under the names that ids use; a human plays better than chance, Video Pinball's being taken as 0."""
    scores = reference_scores(reference)

    assert len(scores) == 57
    assert set(scores) <= {name.lower() for name in games()}
    assert all(random < person for random, person in scores.values())
    assert scores["videopinball"][0] == 0


def test_with_a_random_score_of_0_in_video_pinball_the_papers_figures_come_out() -> None:
    """A3C feed-forward, one day and four days, and with an LSTM: table 1 of Mnih et al. 2016, scores of table S3."""
    published = {"A3C_FF_1d_HS": (344.1, 68.2), "A3C_FF_HS": (496.8, 116.6), "A3C_LSTM_HS": (623.0, 112.6)}
    with (Path(__file__).parent / "a3c_table_s3.csv").open() as file:
        rows = list(csv.DictReader(file))
    for column, (mean, median) in published.items():
        percents = [
            human_normalized(f"ALE/{row['game'].title().replace('-', '')}-v5", float(row[column]), "human-starts")
            for row in rows
        ]
        assert None not in percents
        assert statistics.fmean(percents) == pytest.approx(mean, abs=0.15)  # type: ignore[type-var]
        assert statistics.median(percents) == pytest.approx(median, abs=0.15)  # type: ignore[type-var]


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    """Of 8 values two, of 3 none; row by row."""
    assert interquartile_mean(np.array([[9.0, 1, 2, 3, 4, 5, 100, -50]])) == pytest.approx([(2 + 3 + 4 + 5) / 4])
    assert interquartile_mean(np.array([[1.0, 2, 6], [3, 3, 3]])) == pytest.approx([3, 3])


def test_seeds_are_resampled_game_by_game() -> None:
    """Games differ by far, their seeds by nothing: then nothing is uncertain, which it would be if games were drawn."""
    estimate = over_games([[0.0, 0.0, 0.0], [100.0, 100.0, 100.0]])

    assert (estimate.value, estimate.low, estimate.high) == (50, 50, 50)
    assert over_games([[0.0, 10.0, 5.0], [100.0, 110.0, 105.0]]).low < 55


def test_too_few_runs_or_a_game_with_one_run_have_no_interval() -> None:
    """Four runs, or one run of a game: nobody knows how much its seeds vary."""
    assert not over_games([[1.0, 2.0], [3.0, 4.0]]).has_interval
    assert not over_games([[1.0, 2.0, 3.0, 4.0, 5.0], [3.0]]).has_interval


def test_the_interval_of_a_mean_is_that_of_normal_values() -> None:
    """Mean of n, plus and minus 1.96 s / sqrt(n), within a tenth of its width; one value has none."""
    values = np.random.default_rng(1).normal(10, 2, 400)
    estimate = mean_of(list(values))
    half = 1.96 * values.std() / 20

    assert estimate.value == pytest.approx(values.mean())
    assert (estimate.low, estimate.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.2 * half)
    assert str(mean_of([3.0])) == "3.00"
    assert (mean_of([3.0] * 5).low, mean_of([3.0] * 5).high) == (3, 3)


def test_games_count_alike_however_many_seeds_they_have() -> None:
    """Three seeds of one game and one of another: medians and means are over two games."""
    scores = [Score("a3c", "ALE/Breakout-v5", score) for score in (1.7, 16.1)]
    scores += [Score("a3c", "BreakoutNoFrameskip-v4", 30.5)]  # the same game
    scores += [Score("a3c", "ALE/Boxing-v5", 24.1), Score("a3c", "CartPole-v1", 500.0)]
    (total,) = totals(scores, "no-op")

    assert (total.runs, total.games, total.normalized) == (4, 2, True)
    assert total.mean == pytest.approx((50 + 200) / 2)
    assert total.median == pytest.approx(125)
    assert total.interquartile.value == pytest.approx((50 + 100) / 2)  # of 0, 50, 100, 200


def test_methods_are_not_mixed_nor_environments_that_cannot_be_compared() -> None:
    """Raw scores of one environment have a total over seeds; of two they have none, nor has a single run."""
    cart = [Score("a3c", "CartPole-v1", 100.0), Score("a3c", "CartPole-v1", 200.0)]
    (total,) = totals([*cart, Score("ppo", "CartPole-v1", 500.0)], "no-op")

    assert (total.algorithm, total.normalized, total.median) == ("a3c", False, 150)
    assert totals([*cart, Score("a3c", "Catch", 1.0)], "no-op") == []
