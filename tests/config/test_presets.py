"""Presets: every setting of every algorithm, by kind of environment."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncrl.a3c import A3C
from asyncrl.algorithm import algorithm_of
from asyncrl.core.exploration import EpsilonGreedy
from asyncrl.gorila import Gorila
from tests.config.settings import ALGORITHMS, FILE, KINDS, PRESETS, changes, settings_of

KEPT: dict[str, Any] = json.loads(FILE.read_text())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_settings_are_the_ones_that_were_kept(algorithm: str, preset: str, kind: str) -> None:
    """Not only those the preset names: whoever moves a default moves what it was tuned with."""
    expected = KEPT["all"] | KEPT[algorithm]["defaults"] | KEPT[algorithm][f"{preset} {kind}"]

    assert changes(expected, settings_of(algorithm, preset, KINDS[kind])) == {}
    assert changes(settings_of(algorithm, preset, KINDS[kind]), expected) == {}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_a_table_for_every_preset_and_kind(algorithm: str) -> None:
    """Of its own or another's, whose tables are found by name."""
    method = algorithm_of(f"asyncrl.{algorithm}")
    for preset in PRESETS:
        for kind, spaces in KINDS.items():
            assert method.preset(preset, spaces) or (preset, kind) == ("default", "screen")


def test_gorilas_paper_is_evaluated_with_its_epsilon() -> None:
    """0.05, by an evaluator that does not act greedily."""
    config = Gorila.Config(**Gorila.preset("paper", KINDS["atari"]))

    assert config.exploration_of(None) == EpsilonGreedy(0.05)


def test_a_preset_is_a_copy() -> None:
    """Who changes what was handed out changes no table."""
    A3C.preset("default", KINDS["atari"])["reward_clip"] = 7.0

    assert A3C.preset("default", KINDS["atari"])["reward_clip"] == 1.0
