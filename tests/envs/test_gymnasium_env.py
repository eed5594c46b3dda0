"""Gymnasium environments: conversions, checks, and one line for every mistake."""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

from asyncrl.config.arguments import write_argument
from asyncrl.core.errors import UsageError
from asyncrl.core.extras import to_install
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import watched
from asyncrl.envs import spec as spec_module
from asyncrl.envs.environment import BadEnvironment
from asyncrl.envs.gymnasium_env import GymnasiumEnvironment
from asyncrl.envs.spec import EnvironmentNotice, EnvSpec

UNIT = spaces.Box(-1.0, 1.0, (3,), np.float32)


class Scripted(gymnasium.Env[Any, Any]):
    """Returns whatever a test wants; records what it was given."""

    def __init__(self, space: Any = UNIT, actions: Any = None, step: Any = None, reset: Any = None) -> None:
        self.observation_space = space
        self.action_space = spaces.Discrete(2) if actions is None else actions
        self.first = space.sample()
        self.step_result = (self.first, 0.0, False, False, {}) if step is None else step
        self.reset_result = (self.first, {}) if reset is None else reset
        self.given: list[Any] = []
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        return self.reset_result

    def step(self, action: Any) -> Any:
        self.given.append(action)
        if isinstance(self.step_result, Exception):
            raise self.step_result
        return self.step_result


def adapt(scripted: Scripted) -> GymnasiumEnvironment:
    return GymnasiumEnvironment(scripted, "Scripted-v0", seed=5)


def observe(space: spaces.Space[Any], observation: Any) -> tuple[GymnasiumEnvironment, Any]:
    adapter = adapt(Scripted(space, reset=(observation, {})))
    return adapter, adapter.reset()


# --- Observations ------------------------------------------------------------------------------------------------


def test_a_colour_image_has_its_channels_first() -> None:
    """Pixel (row, column) of channel c is at [c, row, column]; bytes stay bytes."""
    image = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    adapter, observation = observe(spaces.Box(0, 255, (4, 5, 3), np.uint8), image)
    assert adapter.spaces.observation_shape == (3, 4, 5)
    assert observation.dtype == np.uint8
    assert observation[2, 1, 3] == image[1, 3, 2]


def test_an_image_whose_channels_are_first_stays_as_it_is() -> None:
    """As wrappers that stack frames make it."""
    image = np.arange(4 * 8 * 8, dtype=np.uint8).reshape(4, 8, 8)
    adapter, observation = observe(spaces.Box(0, 255, (4, 8, 8), np.uint8), image)
    assert adapter.spaces.observation_shape == (4, 8, 8)
    assert np.array_equal(observation, image)


def test_as_many_planes_as_rows_are_still_last() -> None:
    """MinAtar's Seaquest observes [10, 10, 10]."""
    planes = np.zeros((10, 10, 10), bool)
    planes[1, 2, 3] = True
    adapter, observation = observe(spaces.Box(0.0, 1.0, (10, 10, 10), bool), planes)
    assert adapter.spaces.observation_dtype == "float32"
    assert np.argwhere(observation).tolist() == [[3, 1, 2]]


def test_a_grey_image_gets_one_channel() -> None:
    """[H, W] becomes [1, H, W]."""
    _, observation = observe(spaces.Box(0, 255, (4, 5), np.uint8), np.full((4, 5), 7, np.uint8))
    assert observation.shape == (1, 4, 5)
    assert observation.dtype == np.uint8


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.Box(0, 255, (36, 80, 3), np.uint8), "screen"),
        (spaces.Box(0, 255, (35, 80, 3), np.uint8), "board"),
        (spaces.Box(0.0, 1.0, (10, 10), np.float32), "board"),
        (UNIT, "vector"),
        (spaces.Discrete(3), "vector"),
    ],
)
def test_images_below_36_rows_are_boards(space: Any, kind: str) -> None:
    """The environment's own size decides, once, for presets and networks."""
    assert adapt(Scripted(space)).spaces.kind == kind


def test_symbols_of_a_board_are_scaled_by_their_range() -> None:
    """Divided by 255, those from 0 to 4 would all look like 0."""
    board = np.arange(5, dtype=np.uint8) * np.ones((6, 1), np.uint8)
    adapter, observation = observe(spaces.Box(0, 4, (6, 5), np.uint8), board)
    assert adapter.spaces.observation_dtype == "float32"
    assert observation[0, 3].tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_minigrids_symbols_are_one_hot() -> None:
    """A plane per kind of object (11), colour (6) and state (4), by id and from a factory."""
    pytest.importorskip("minigrid")
    one = EnvSpec("MiniGrid-Empty-5x5-v0").make(3, evaluation=False)
    other = EnvSpec(f"{HERE}:make_grid").make(3, evaluation=False)
    assert isinstance(one, GymnasiumEnvironment)
    planes = one.reset()
    image = one.native.unwrapped.gen_obs()["image"]  # type: ignore[attr-defined]
    for first, last, values in ((0, 11, image[..., 0]), (11, 17, image[..., 1]), (17, 21, image[..., 2])):
        assert planes[first:last].sum(0).tolist() == np.ones((7, 7)).tolist()
        assert planes[first:last].argmax(0).tolist() == values.tolist()
    assert np.array_equal(planes, other.reset())


def test_pictures_of_a_grid_stay_pictures() -> None:
    """Only symbols have categories."""
    pytest.importorskip("minigrid")
    assert EnvSpec(f"{HERE}:make_pictures").probe() == Spaces((3, 56, 56), "uint8", 7, kind="screen")


@pytest.mark.parametrize(
    ("space", "observation", "expected"),
    [
        (spaces.Box(-9.0, 9.0, (2,), np.float64), np.array([1.5, 2.5]), [1.5, 2.5]),
        (spaces.Box(0, 9, (2,), np.int64), np.array([3, 4]), [3.0, 4.0]),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([3, 255], np.uint8), [3.0, 255.0]),
        (spaces.Box(0.0, 9.0, (), np.float32), np.float32(2.0), [2.0]),
        (spaces.Discrete(3), 1, [0.0, 1.0, 0.0]),
        (spaces.Discrete(3, start=5), np.int64(7), [0.0, 0.0, 1.0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1.0, 0.0, 1.0]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0.0, 1.0, 1.0, 0.0, 0.0]),
        (
            spaces.Dict(b=spaces.Discrete(2), a=spaces.Box(-9.0, 9.0, (2,)), c=spaces.Tuple([spaces.MultiBinary(2)])),
            {"c": (np.array([1, 0], np.int8),), "b": 1, "a": np.array([5.0, 6.0], np.float32)},
            [0.0, 1.0, 5.0, 6.0, 1.0, 0.0],
        ),
        (
            spaces.Tuple([spaces.Box(0.0, 9.0, (1,)), spaces.Box(0, 9, (2, 2), np.int64)]),
            (np.array([7.0]), np.array([[1, 2], [3, 4]])),
            [7.0, 1.0, 2.0, 3.0, 4.0],
        ),
    ],
)
def test_everything_else_becomes_a_float_vector(space: Any, observation: Any, expected: list[float]) -> None:
    """Numbers as they are, categories as one-hot vectors side by side, parts in the order of their space."""
    adapter, result = observe(space, observation)
    assert result.dtype == np.float32
    assert result.tolist() == expected
    assert adapter.spaces.observation_shape == (len(expected),)


# --- Actions and episodes ----------------------------------------------------------------------------------------


def test_discrete_actions_count_from_zero() -> None:
    """Whatever the space's own first action is."""
    scripted = Scripted(actions=spaces.Discrete(3, start=-1))
    adapter = adapt(scripted)
    adapter.reset()
    for action in range(3):
        adapter.step(action)
    assert scripted.given == [-1, 0, 1]


def test_parts_that_are_missing_or_broken_are_noticed() -> None:
    """As in a space of one part: with the reason."""
    space = spaces.Dict(a=UNIT, b=UNIT)
    half = {"a": np.zeros(3, np.float32)}
    for observation, said in (
        (half, "the observation lacks some of the parts a, b"),
        (3, "the observation lacks some of the parts a, b"),
        (half | {"b": np.full(3, np.nan, np.float32)}, "contains NaN"),
    ):
        with pytest.raises(BadEnvironment, match=said):
            observe(space, observation)


@pytest.mark.parametrize(
    ("space", "given"),
    [
        (spaces.MultiDiscrete([2, 3]), [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]),
        (spaces.MultiDiscrete([2, 2], start=[5, -1]), [[5, -1], [5, 0], [6, -1], [6, 0]]),
        (spaces.MultiBinary(2), [[0, 0], [0, 1], [1, 0], [1, 1]]),
        (spaces.MultiBinary((1, 2)), [[[0, 0]], [[0, 1]], [[1, 0]], [[1, 1]]]),
    ],
)
def test_each_combination_of_the_parts_of_an_action_is_an_action(space: Any, given: list[Any]) -> None:
    """All that the space has, once, each in the shape and type of the space; an environment may keep what it gets."""
    scripted = Scripted(actions=space)
    adapter = adapt(scripted)
    adapter.reset()
    for action in range(adapter.spaces.actions):
        adapter.step(action)

    assert [action.tolist() for action in scripted.given] == given
    assert all(space.contains(action) for action in scripted.given)
    scripted.given[0] += 1
    adapter.step(0)
    assert scripted.given[-1].tolist() == given[0]


def test_an_environment_may_name_its_actions() -> None:
    """Else they are called by what the environment is given."""
    assert adapt(Scripted(actions=spaces.MultiDiscrete([1, 2]))).action_names == ("0 0", "0 1")
    assert adapt(Scripted(actions=spaces.Discrete(2, start=3))).action_names == ("action 3", "action 4")
    named = Scripted()
    named.get_action_meanings = lambda: ["LEFT", "RIGHT"]  # type: ignore[attr-defined]
    assert adapt(named).action_names == ("left", "right")


def test_an_episode_of_training_has_a_limit_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """In frames as many times more; an evaluation counts what it cuts, and another limit counts instead."""
    monkeypatch.setattr(spec_module, "LONGEST_EPISODE", 5)

    def length(evaluation: bool, **settings: Any) -> int:
        environment = EnvSpec(f"{HERE}:make_scripted", **settings).make(1, evaluation)
        environment.reset()
        return next((i for i in range(1, 13) if environment.step(0)[3]), 0)

    assert length(evaluation=False) == 5
    assert length(evaluation=False, frame_skip=2) == 5
    assert length(evaluation=True) == 0
    assert length(evaluation=False, max_episode_steps=8) == length(evaluation=True, max_episode_steps=8) == 8


def test_a_continuous_action_is_a_vector_within_bounds_that_spaces_tell() -> None:
    """It reaches the environment in the shape and type of its space."""
    scripted = Scripted(actions=spaces.Box(np.array([[-1.0], [0.0]]), np.array([[1.0], [2.0]]), dtype=np.float64))
    adapter = adapt(scripted)
    assert adapter.spaces.is_continuous
    assert (adapter.spaces.action_low, adapter.spaces.action_high) == ((-1.0, 0.0), (1.0, 2.0))
    adapter.reset()
    adapter.step(np.array([0.5, 1.5], np.float32))
    assert scripted.given[0].tolist() == [[0.5], [1.5]]
    assert scripted.given[0].dtype == np.float64
    with pytest.raises(ValueError, match="not finite"):
        adapter.step(np.array([0.5, np.nan]))


def test_an_action_lies_in_its_box_whatever_its_type() -> None:
    """0.1 as a float32 is more than 0.1; whole numbers are the nearest ones."""
    fine = spaces.Box(-0.7, 0.1, (1,), np.float64)
    whole = spaces.Box(0, 3, (2,), np.int64)
    for box, action, expected in ((fine, [0.1], [0.1]), (fine, [-0.7], [-0.7]), (whole, [0.99, 2.4], [1, 2])):
        scripted = Scripted(actions=box)
        adapter = adapt(scripted)
        adapter.reset()
        adapter.step(np.array(action, np.float32))
        assert box.contains(scripted.given[0])
        assert scripted.given[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_continuous_environment_of_gymnasium_can_be_probed() -> None:
    """Pendulum takes a torque from -2 to 2."""
    found = EnvSpec("Pendulum-v1").probe()
    assert (found.observation_shape, found.actions, found.action_low, found.action_high) == ((3,), 0, (-2.0,), (2.0,))


def test_only_the_first_reset_is_seeded() -> None:
    """Otherwise every episode would be the same."""
    scripted = Scripted()
    adapter = adapt(scripted)
    adapter.reset()
    adapter.reset()
    assert scripted.seeds == [5, None]


def test_a_time_limit_shows_the_last_real_observation() -> None:
    """The 200th state of MountainCar, not the first of the next episode."""
    adapter = EnvSpec("MountainCar-v0").make(0, evaluation=False)
    assert isinstance(adapter, GymnasiumEnvironment)
    start = adapter.reset().copy()
    for _ in range(200):
        observation, _, terminated, truncated, _ = adapter.step(2)
    assert (terminated, truncated) == (False, True)
    assert observation.tolist() == np.asarray(adapter.native.unwrapped.state, np.float32).tolist()  # type: ignore[attr-defined]
    assert not np.array_equal(observation, start)


def test_a_picture_in_real_numbers_becomes_one_in_bytes() -> None:
    """MinAtar draws from 0 to 1."""
    scripted = Scripted()
    scripted.render = lambda: np.full((10, 10, 3), 0.4)  # type: ignore[method-assign]
    picture = adapt(scripted).picture()
    assert (picture.shape, picture.dtype, picture[0, 0].tolist()) == ((10, 10, 3), np.uint8, [102] * 3)


# --- Broken promises ---------------------------------------------------------------------------------------------

GOOD = np.zeros(3, np.float32)
IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
FLOAT_IMAGE = spaces.Box(0.0, 1.0, (8, 8, 3), np.float32)


@pytest.mark.parametrize(
    ("space", "result", "line"),
    [
        (UNIT, (np.zeros(4, np.float32), 0.0, False, False, {}), r"the shape \[4\], not \[3\]"),
        (UNIT, (np.array([0.0, np.nan, 0.0]), 0.0, False, False, {}), "contains NaN or infinity"),
        (UNIT, (np.array([0.0, np.inf, 0.0]), 0.0, False, False, {}), "contains NaN or infinity"),
        (UNIT, ("text", 0.0, False, False, {}), r"the shape \[\], not \[3\]"),
        (UNIT, (["1", "2", "3"], 0.0, False, False, {}), "the observation is <U1, not numbers"),
        (
            UNIT,
            ([1, None, 3], 0.0, False, False, {}),
            "contains NaN or infinity|contains something that is not a number",
        ),
        (UNIT, ([1, 10**400, 3], 0.0, False, False, {}), "contains something that is not a number"),
        (UNIT, (GOOD, float("nan"), False, False, {}), "the reward is nan"),
        (UNIT, (GOOD, None, False, False, {}), "the reward is NoneType, not a number"),
        (UNIT, (GOOD, 1e39, False, False, {}), r"the reward is 1e\+39"),
        (UNIT, (GOOD, 10**400, False, False, {}), "the reward is int, not a number"),
        (UNIT, (GOOD, "1.0", False, False, {}), "the reward is str, not a number"),
        (UNIT, (GOOD, 1j, False, False, {}), "the reward is complex, not a number"),
        (UNIT, (GOOD, np.ones(2), False, False, {}), "the reward is ndarray, not a number"),
        (UNIT, (GOOD, 0.0, np.ones(2), False, {}), "must be single truth values"),
        (UNIT, (GOOD, 0.0, False, torch.zeros(2, dtype=torch.bool), {}), "must be single truth values"),
        (FLOAT_IMAGE, (np.full((8, 8, 3), np.nan), 0.0, False, False, {}), "contains NaN or infinity"),
        (UNIT, (GOOD, 0.0, False, {}), r"step\(\) must return \(observation, reward, terminated, truncated, info\)"),
        (spaces.Discrete(3), (3, 0.0, False, False, {}), "the observation 3 is not in its space"),
        (spaces.Discrete(3), (1.0, 0.0, False, False, {}), "the observation 1.0 is float64, not integers"),
        (IMAGE, (np.zeros((8, 8, 4), np.uint8), 0.0, False, False, {}), r"the shape \[8, 8, 4\], not \[8, 8, 3\]"),
        (IMAGE, (np.zeros((8, 8, 3)), 0.0, False, False, {}), "the observation is float64, not uint8"),
    ],
)
def test_a_broken_promise_names_the_environment_and_the_step(space: Any, result: Any, line: str) -> None:
    """Nothing of it reaches a network."""
    adapter = adapt(Scripted(space, step=result))
    adapter.reset()
    with pytest.raises(BadEnvironment, match=rf"^Scripted-v0 broke its contract in step \d of an episode: .*{line}"):
        adapter.step(0)


def test_a_reset_of_the_old_interface_is_a_broken_promise() -> None:
    """It returned the observation alone."""
    with pytest.raises(BadEnvironment, match=r"reset\(\) must return \(observation, info\)"):
        adapt(Scripted(reset=GOOD)).reset()


# --- Mistakes of the user ----------------------------------------------------------------------------------------

HERE = __name__
not_callable = 3


def make_scripted(**arguments: Any) -> Scripted:
    return Scripted(**arguments)


def make_nothing() -> None:
    return None


def make_trouble() -> Scripted:
    raise OSError("no\nmotor")


def make_nan() -> Scripted:
    return Scripted(step=(np.full(3, np.nan), 0.0, False, False, {}))


def make_crash() -> Scripted:
    return Scripted(step=KeyError("left"))


def with_space(space: Any) -> Callable[[], Scripted]:
    return lambda: Scripted(space)


def make_grid() -> Any:
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0"))


def make_pictures() -> Any:
    from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

    return ImgObsWrapper(RGBImgPartialObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0")))


make_tuple = with_space(spaces.Tuple([UNIT, spaces.Text(5)]))
make_empty = with_space(spaces.Dict())
make_text = with_space(spaces.Text(5))
make_video = with_space(spaces.Box(0, 255, (4, 8, 8, 3), np.uint8))


def make_two_sticks() -> Scripted:
    return Scripted(actions=spaces.MultiDiscrete([100, 100]))


def make_many_levers() -> Scripted:
    return Scripted(actions=spaces.Dict(a=spaces.Discrete(2)))


def test_a_factory_s_environment_takes_its_arguments() -> None:
    """They are the spec's env_kwargs."""
    word = write_argument("actions", spaces.Discrete(9), hands_over=True)
    spec = EnvSpec(f"{HERE}:make_scripted", env_kwargs=(word,))
    assert spec.probe().actions == 9


@pytest.mark.parametrize(
    ("env_id", "line"),
    [
        ("CartPol-v1", r"no environment has the id CartPol-v1: did you mean CartPole-v1"),
        ("chain", r"no environment has the id chain: did you mean Chain\?"),
        ("NoSuchThing-v1", "no environment has the id NoSuchThing-v1: is the package that registers it installed"),
        ("nowhere/Thing-v1", "no environment has the id nowhere/Thing-v1"),
        ("CartPole-v7", "CartPole-v7 could not be made: VersionNotFound"),
        ("Taxi-v1", "Taxi-v1 could not be made: DeprecatedEnv: .*Taxi-v"),
        ("not an id", "not an id could not be made: Error: Malformed environment ID"),
        ("Pong", r"no environment has the id Pong: did you mean ALE/Pong-v5\?"),
        ("breakout", r"no environment has the id breakout: did you mean ALE/Breakout-v5\?"),
        ("Pong-v5", r"no environment has the id Pong-v5: did you mean ALE/Pong-v5\?"),
        ("PongNoFrameskip", r"no environment has the id PongNoFrameskip: did you mean ALE/Pong-v5\?"),
        ("Pong-v4", "Pong-v4 skips a random number of frames, which is not supported: use ALE/Pong-v5"),
        ("no.such.module:make", "no.such.module:make: there is no module no.such.module here; install it or set PYTH"),
        ("no_such_module:Thing-v0", "no_such_module:Thing-v0 could not be made: ModuleNotFoundError"),
        (f"{HERE}:missing", f"the module {HERE} has no missing"),
        (f"{HERE}:not_callable", "not_callable is a int, not a function"),
        (f"{HERE}:make_nothing", r"make_nothing\(\) returned a NoneType, not a gymnasium.Env"),
        (f"{HERE}:make_trouble", r"make_trouble\(\) failed: OSError: no motor"),
        (f"{HERE}:make_nan", "broke its contract in step 1 of an episode: the observation contains NaN"),
        (f"{HERE}:make_crash", r"failed in step\(\) after 0 steps of an episode: KeyError: 'left'"),
        (f"{HERE}:make_tuple", "observes a Text, which is not supported"),
        (f"{HERE}:make_empty", "observes a Dict without parts"),
        (f"{HERE}:make_text", "observes a Text, which is not supported"),
        (f"{HERE}:make_video", r"observes an array \[4, 8, 8, 3\]"),
        (f"{HERE}:make_two_sticks", "has more combinations of actions .* than the 4_096 supported"),
        (
            f"{HERE}:make_many_levers",
            r"has actions in Dict\(.*wrap it to take Discrete, MultiDiscrete, MultiBinary or B",
        ),
    ],
)
def test_a_mistake_gets_one_line(env_id: str, line: str) -> None:
    """That says what is wrong, and what to do where we know."""
    with pytest.raises(UsageError, match=line) as caught:
        EnvSpec(env_id).probe()
    assert "\n" not in str(caught.value)


def test_a_module_that_fails_to_import_is_told_from_a_missing_one(tmp_path: Any, monkeypatch: Any) -> None:
    """The user's own bug is shown, not "no such module"."""
    (tmp_path / "half_installed.py").write_text("import package_that_is_missing\n")
    (tmp_path / "misspelt.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"importing half_installed failed: ModuleNotFoundError: .*package_that_is"):
        EnvSpec("half_installed:make").probe()
    with pytest.raises(UsageError, match="importing misspelt failed: ZeroDivisionError"):
        EnvSpec("misspelt:make").probe()


def test_wrong_arguments_get_one_line() -> None:
    """With the name of the argument that does not exist."""
    with pytest.raises(UsageError, match=r"CartPole-v1 could not be made: TypeError: .*'colour'"):
        EnvSpec("CartPole-v1", env_kwargs=("colour=1",)).probe()


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("MinAtar/Breakout-v1", "minatar", "minatar"),
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("LunarLander-v3", "Box2D", "box2d"),
        ("Ant-v5", "mujoco", "mujoco"),
    ],
)
def test_a_missing_package_names_the_extra(env_id: str, package: str, extra: str, monkeypatch: Any) -> None:
    """With the command that installs it."""
    for name in list(sys.modules):
        if name.split(".")[0] == package or name.startswith(f"gymnasium.envs.{extra}"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    for registered in [name for name in gymnasium.registry if name.startswith("MinAtar/")]:
        monkeypatch.delitem(gymnasium.registry, registered)
    with pytest.raises(UsageError, match=rf"^{env_id} needs an extra: {re.escape(to_install(extra))}$"):
        EnvSpec(env_id).probe()


def test_an_outdated_id_is_mentioned_by_the_probe_only() -> None:
    """Once in the parent, not once per worker."""
    spec = EnvSpec("CartPole-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec.make(0, evaluation=False).close()
    with pytest.warns(EnvironmentNotice, match=r"^The environment CartPole-v0 is out of date.*`v1`"):
        spec.probe()


@pytest.mark.parametrize(("env_id", "package"), [("LunarLander-v3", "Box2D"), ("HalfCheetah-v5", "mujoco")])
def test_what_a_library_tells_its_authors_is_not_shown(
    env_id: str, package: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Deprecations within Box2D's bindings, and in the models of MuJoCo that Gymnasium brings."""
    pytest.importorskip(package)
    EnvSpec(env_id).probe()

    assert capfd.readouterr().err == ""


def test_making_a_minatar_game_leaves_logging_as_it_was() -> None:
    """The package logs a complaint about a library that only drawing needs."""
    pytest.importorskip("minatar")
    EnvSpec("MinAtar/Seaquest-v1").probe()
    assert logging.root.manager.disable == logging.NOTSET


def test_a_state_sets_nothing_but_what_an_environment_saves() -> None:
    """A checkpoint may be a stranger's."""
    environment = EnvSpec("CartPole-v1").make(3, evaluation=False)
    assert isinstance(environment, GymnasiumEnvironment)
    environment.reset()
    state = environment.state()
    assert state is not None
    state["numbers"] |= {"gravity": 0.0, "step": None, "state": [0.0, 0.5, 0.0, 0.0]}

    environment.restore(state)

    native: Any = environment.native.unwrapped
    assert native.gravity == 9.8
    assert native.step is not None
    assert native.state.tolist() == [0.0, 0.5, 0.0, 0.0]


class Walk(CartPoleEnv):
    """Of somebody else's package, which has a module of Gymnasium's name."""

    __module__ = "own.envs.classic_control.walk"


def test_only_gymnasiums_own_classic_control_says_its_state() -> None:
    """What else an environment of another package holds is not known."""
    limited = gymnasium.wrappers.TimeLimit(gymnasium.wrappers.OrderEnforcing(Walk()), 100)
    environment = GymnasiumEnvironment(limited, "own:Walk", seed=1)
    environment.reset()

    assert environment.state() is None


class Pausing(Scripted):
    """Its later steps wait for good, as far as a test is concerned."""

    def step(self, action: Any) -> Any:
        if self.given:
            time.sleep(100)
        return super().step(action)


def test_a_later_step_that_hangs_is_called_back() -> None:
    """One that has behaved in its first step is no longer looked after so closely, but still watched."""
    adapter = adapt(Pausing())
    adapter.reset()
    adapter.step(0)

    with pytest.raises(UsageError, match=r"Scripted-v0's step\(\) did not return within 0.3 seconds"), watched(0.3):
        adapter.step(0)


_one: list[Scripted] = []


def always_the_same() -> Scripted:
    """What somebody writes who has one environment."""
    if not _one:
        _one.append(Scripted())
    return _one[0]


def test_a_factory_must_make_a_new_environment_at_each_call() -> None:
    """Episodes of several would be mixed; after it has been closed there is no harm."""
    spec = EnvSpec(f"{__name__}:always_the_same")
    first = spec.make(1, False)
    with pytest.raises(UsageError, match="always_the_same must make a new environment at each call: a run has several"):
        spec.make(2, False)
    first.close()

    spec.make(3, False).close()


class Unusable(Scripted):
    """Its space is none of those that can be converted, or raises."""

    closed = 0

    def __init__(self, raises: bool) -> None:
        super().__init__()
        if not raises:
            self.action_space = spaces.Text(3)
        else:
            self.__class__ = Raising

    def close(self) -> None:
        Unusable.closed += 1


class Raising(Unusable):
    """Its subclass forgot to say what it observes."""

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        raise NotImplementedError("no space here")


@pytest.mark.parametrize(("raises", "line"), [(False, "Text"), (True, "has no usable spaces: .*no space here")])
def test_an_environment_whose_spaces_cannot_be_used_is_closed(raises: bool, line: str) -> None:
    """Its simulator would stay in the program."""
    before = Unusable.closed
    with pytest.raises(UsageError, match=line):
        EnvSpec(f"{__name__}:Unusable", env_kwargs=(write_argument("raises", raises),)).make(1, False)

    assert Unusable.closed == before + 1


@pytest.mark.parametrize("env_id", [":Maze", ".maze:Maze", " :Maze"])
def test_a_factory_without_a_module_is_one_line(env_id: str) -> None:
    """It says what to write."""
    with pytest.raises(UsageError, match=r"names no module: write module:Maze, such as my_package\.my_module:Maze"):
        EnvSpec(env_id).make(1, False)
