"""An environment that breaks is replaced, and who steps it sees an episode that was cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from asyncrl.api.films import Filmed
from asyncrl.core.errors import UsageError
from asyncrl.envs.environment import BadEnvironment, EpisodeLost
from asyncrl.envs.rebuilding import MOST_BREAKS, Rebuilding
from asyncrl.runtime.seeding import ENVIRONMENT, derive
from tests.support import Counting, make_run


class Brittle(Counting):
    """Breaks in its step number `at`, in every episode."""

    def __init__(self, at: int) -> None:
        super().__init__(length=100, truncates=False)
        self.breaks_at, self.closed = at, False

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, bool]:
        if self.at + 1 == self.breaks_at:
            raise BadEnvironment(f"step {self.breaks_at} is too much")
        return super().step(action)

    def close(self) -> None:
        self.closed = True


def test_the_episode_is_cut_where_it_was_last_seen() -> None:
    """Observation 2 again, nothing paid, truncated; the next episode begins in another environment."""
    made: list[Brittle] = []
    said: list[str] = []

    def make(number: int) -> Brittle:
        made.append(Brittle(at=3 if number == 0 else 50))
        return made[-1]

    environment = Rebuilding(make, False, said.append)
    environment.reset()
    for _ in range(2):
        environment.step(0)

    observation, reward, terminated, truncated, _ = environment.step(0)

    assert (observation.tolist(), reward, terminated, truncated) == ([2.0], 0.0, False, True)
    assert said == ["rebuilt: step 3 is too much"]
    assert [one.closed for one in made] == [True, False]
    assert environment.reset().tolist() == [0.0]
    assert environment.step(0)[0].tolist() == [1.0]


def test_an_evaluation_is_told_that_the_episode_is_lost() -> None:
    """Its score is not known."""
    environment = Rebuilding(lambda number: Brittle(at=2), True, lambda line: None)
    environment.reset()
    environment.step(0)

    with pytest.raises(EpisodeLost):
        environment.step(0)

    assert environment.reset().tolist() == [0.0]


def test_one_that_only_breaks_is_given_up() -> None:
    """After MOST_BREAKS without the end of an episode in between."""
    environment = Rebuilding(lambda number: Brittle(at=1), False, lambda line: None)
    environment.reset()
    for _ in range(MOST_BREAKS):
        environment.step(0)
        environment.reset()

    with pytest.raises(BadEnvironment, match="too much"):
        environment.step(0)


def test_its_state_goes_with_it() -> None:
    """Chain tells its state; another Rebuilding goes on from there."""
    from asyncrl.envs.spec import EnvSpec

    first, second = (Rebuilding(lambda number: EnvSpec("Chain").make(3, False), False, print) for _ in "ab")
    first.reset()
    first.step(1)
    state = first.state()
    assert state is not None

    second.reset()
    second.restore(state)

    for action in (1, 0, 1):
        left, right = first.step(action), second.step(action)
        assert left[0].tolist() == right[0].tolist()
        assert left[1:] == right[1:]


def test_it_can_be_filmed_if_what_it_wraps_can() -> None:
    """The picture is that of the environment that is there now."""

    class Drawn(Brittle):
        def picture(self) -> np.ndarray:
            return np.full((2, 2, 3), self.breaks_at, np.uint8)

    environment = Rebuilding(lambda number: Drawn(at=1 if number == 0 else 9), False, lambda line: None)
    environment.reset()
    assert environment.picture().max() == 1
    environment.step(0)
    assert environment.picture().max() == 9


def test_each_environment_that_is_rebuilt_has_a_seed_of_its_own(tmp_path: Path) -> None:
    """Also in a worker that follows one that has died. Those that are not rebuilt have the seeds they always had."""
    from asyncrl.envs.spec import EnvSpec
    from asyncrl.runtime.roles import build_environments

    seeds: list[int] = []
    run = make_run(tmp_path, on_env_error="rebuild")
    make = lambda seed, evaluation: seeds.append(seed) or EnvSpec("Catch").make(seed, evaluation)  # type: ignore[func-returns-value]  # noqa: E731
    for incarnation in range(3):
        spec = replace(run.spec, environment=cast(Any, SimpleNamespace(make=make)), incarnation=incarnation)
        (environment,) = build_environments(replace(run, spec=spec), 0, 1, False)
        for number in range(1, 4):
            cast(Any, environment)._make(number)

    assert len(set(seeds)) == 12
    places = (0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2)
    assert seeds[::4] == [derive(run.spec.config.seed, ENVIRONMENT, *place) for place in places]


def test_a_film_shows_a_lost_episode_and_the_one_that_takes_its_place() -> None:
    """Two steps are looked on before the environment breaks, then a whole episode of five."""

    class Seen(Brittle):
        def picture(self) -> np.ndarray:
            return np.zeros((2, 2, 3), np.uint8)

    def make(number: int) -> Seen:
        environment = Seen(at=3 if number == 0 else 50)
        environment.length = 5
        return environment

    looked_on: list[int] = []
    filmed = Filmed(Rebuilding(make, True, lambda line: None), lambda step: looked_on.append(step.number))
    filmed.reset()
    for _ in range(2):
        filmed.step(0)
    with pytest.raises(EpisodeLost):
        filmed.step(0)
    filmed.reset()
    for _ in range(5):
        filmed.step(0)

    assert looked_on == [0, 1, 0, 1, 2, 3, 4, 5]


def test_a_replacement_that_cannot_be_made_at_once_is_one_more_break() -> None:
    """The second and third environment find their port in use."""
    made: list[int] = []

    def make(number: int) -> Brittle:
        made.append(number)
        if number in (1, 2):
            raise UsageError(f"number {number}: the port is in use")
        return Brittle(at=2)

    environment = Rebuilding(make, False, lambda line: None)
    environment.reset()
    environment.step(0)

    assert environment.step(0)[2:] == (False, True, False)
    assert made == [0, 1, 2, 3]
    assert environment.reset().tolist() == [0.0]


def test_a_replacement_that_can_never_be_made_ends_the_run() -> None:
    """After ten tries, with what the last one said."""

    def make(number: int) -> Brittle:
        if number:
            raise UsageError(f"number {number}: the port is in use")
        return Brittle(at=1)

    environment = Rebuilding(make, False, lambda line: None)
    environment.reset()

    with pytest.raises(UsageError, match=f"number {MOST_BREAKS}: the port is in use"):
        environment.step(0)
