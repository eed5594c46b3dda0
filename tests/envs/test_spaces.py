"""Every space that is said to be supported can be observed and acted in; every other one is refused in one line."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.config.arguments import write_argument
from asyncrl.core.errors import UsageError
from asyncrl.core.spaces import Spaces
from asyncrl.envs.encoders import actions_of, rows_of
from asyncrl.envs.environment import BadEnvironment
from asyncrl.envs.gymnasium_env import GymnasiumEnvironment
from asyncrl.envs.preprocessed import Preprocessed
from asyncrl.envs.rebuilding import Rebuilding
from asyncrl.envs.spec import EnvSpec

HERE = __name__
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


class Shown(gymnasium.Env[Any, Any]):
    """Shows samples of a space, or what a test wants, and accepts only actions of its own space."""

    def __init__(self, space: Any = None, actions: Any = None, shown: Any = None, reward: float = 0.0) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,)) if space is None else space
        self.action_space = spaces.Discrete(2) if actions is None else actions
        self.shown, self.reward = shown, reward

    def _see(self) -> Any:
        return self.observation_space.sample() if self.shown is None else self.shown

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self._see(), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space, f"{action!r} is not in {self.action_space}"
        return self._see(), self.reward, False, False, {}


def adapt(**shown: Any) -> GymnasiumEnvironment:
    return GymnasiumEnvironment(Shown(**shown), "Shown-v0", seed=3)


# --- Spaces of all kinds -----------------------------------------------------------------------------------------

DTYPES = st.sampled_from(
    ["float16", "float32", "float64", ">f4", "uint8", "int8", "int16", "int32", "int64", "uint64", "bool"]
)
SHAPES = st.lists(st.integers(1, 40), min_size=0, max_size=3).map(tuple).filter(lambda shape: math.prod(shape) < 5000)


@st.composite
def boxes(draw: st.DrawFn, shapes: st.SearchStrategy[Any] = SHAPES, integers: bool = True) -> spaces.Box:
    dtype = np.dtype(draw(DTYPES)).newbyteorder("=")
    low, high = (0, draw(st.integers(1, 255))) if dtype.kind == "u" else (0, 1) if dtype.kind == "b" else (-5, 7)
    if dtype.kind == "f" and draw(st.booleans()):
        low, high = -np.inf, np.inf  # type: ignore[assignment]
    return spaces.Box(low, high, draw(shapes), dtype.type)


DISCRETE = st.builds(spaces.Discrete, st.integers(1, 30), start=st.integers(-(2**40), 2**40))
MULTI = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(
    lambda sizes: spaces.MultiDiscrete(sizes, start=[3 - size for size in sizes])
)
GRID = st.just(spaces.MultiDiscrete(np.full((2, 2), 3)))
BINARY = st.one_of(st.integers(1, 6), st.just((2, 3))).map(spaces.MultiBinary)
LEAVES = st.one_of(DISCRETE, MULTI, GRID, BINARY, boxes(st.sampled_from([(), (4,), (2, 3), (5, 6, 2)])))
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)
ACTIONS = st.one_of(DISCRETE, MULTI, GRID, BINARY, boxes(st.sampled_from([(), (1,), (4,), (2, 3)])))


@QUICK
@given(space=st.one_of(boxes(), NESTED), actions=ACTIONS, stack=st.sampled_from([1, 3]), data=st.data())
def test_every_supported_space_can_be_observed_and_acted_in(space: Any, actions: Any, stack: int, data: Any) -> None:
    """Also stacked, and rebuilt; and what a saved policy is shown is what a worker saw."""

    def make(_: int) -> Any:
        environment = adapt(space=space, actions=actions)
        return environment if stack == 1 else Preprocessed(environment, 3, frame_stack=stack)

    environment: Any = Rebuilding(make, False, print)
    told: Spaces = environment.spaces
    seen = np.zeros(told.observation_shape, told.observation_dtype)
    native: Shown = environment.environment.native
    for step in range(3):
        native.shown = shown = space.sample()
        if step == 0:
            observed = environment.reset()
        elif told.is_continuous:
            low, high = np.maximum(told.action_low, -1e3), np.minimum(told.action_high, 1e3)
            observed = environment.step(np.random.default_rng(step).uniform(low, high).astype(np.float32))[0]
        else:
            observed = environment.step(data.draw(st.integers(0, told.actions - 1)))[0]
        assert (observed.shape, observed.dtype.name) == (told.observation_shape, told.observation_dtype)
        assert np.isfinite(observed).all()
        (row,), single = rows_of(environment.native_space, shown)
        environment.see(seen, row)
        assert single
        np.testing.assert_array_equal(seen, observed)
    assert told.is_image == (len(told.observation_shape) == 3 or bool(told.parts))
    if not told.is_continuous:
        assert all(environment.native_action(action) in actions for action in range(told.actions))


@pytest.mark.parametrize("algorithm", ["actor_critic", "q_network"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (5, 1), (1, 7, 3), (3, 3), (2, 40, 40), (36, 11), (36, 10), (40, 2, 2), (4, 60)]
)
def test_small_images_fit_the_network_that_auto_chooses(algorithm: str, shape: tuple[int, ...]) -> None:
    """As images, boards or vectors."""
    import asyncrl

    told = adapt(space=spaces.Box(-1, 1, shape)).spaces
    if algorithm == "actor_critic":
        asyncrl.a3c.A3C.make_network(asyncrl.a3c.A3C.Config(), told)
    else:
        asyncrl.n_step_q.NStepQ.make_network(asyncrl.n_step_q.NStepQ.Config(), told)


def test_a_narrow_image_is_a_vector_of_all_its_numbers() -> None:
    """Bytes are scaled, as those of images are."""
    environment = adapt(space=spaces.Box(0, 255, (2, 2, 3), np.uint8), shown=np.full((2, 2, 3), 51, np.uint8))
    assert environment.spaces == Spaces((12,), "float32", 2)
    assert environment.reset() == pytest.approx(np.full(12, 0.2))


# --- What does not become a finite number ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1e39, -1e39, np.inf, np.nan, 1e300])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (4,), np.float64),
        spaces.Box(-np.inf, np.inf, (8, 8), np.float64),
        spaces.Box(-np.inf, np.inf, (8, 8, 3), np.float64),
        spaces.Box(-np.inf, np.inf, (3, 8, 8), np.float64),
        spaces.Box(-np.inf, np.inf, (5, 1), np.float64),
        spaces.Box(-np.inf, np.inf, (), np.float64),
        spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Box(-np.inf, np.inf, (4, 4), np.float64)])),
    ],
    ids=str,
)
@pytest.mark.parametrize("stack", [1, 2])
def test_a_number_that_float32_cannot_hold_is_a_broken_promise(space: Any, value: float, stack: int) -> None:
    """Named with the step, for every kind of observation; without a warning of numpy's."""

    def filled(one: spaces.Space[Any]) -> Any:
        if isinstance(one, spaces.Dict):
            return {key: filled(part) for key, part in one.items()}
        if isinstance(one, spaces.Tuple):
            return tuple(map(filled, one))
        return np.full(one.shape, value) if isinstance(one, spaces.Box) else 1

    inner = adapt(space=space)
    environment = inner if stack == 1 else Preprocessed(inner, 3, frame_stack=stack)
    space.seed(1)
    environment.reset()
    inner.native.shown = filled(space)  # type: ignore[attr-defined]
    with pytest.raises(BadEnvironment, match=r"Shown-v0 broke its contract in step 1 of an episode: .*too large for"):
        environment.step(0)


def test_rewards_that_add_up_to_more_than_float32_holds_are_noticed() -> None:
    """Each of them alone is not too large."""
    environment = Preprocessed(adapt(reward=3e38), 3, frame_skip=4)
    environment.reset()
    with pytest.raises(BadEnvironment, match=r"Shown-v0: the rewards of one step add up to 1\.2e\+39"):
        environment.step(0)


@pytest.mark.parametrize(
    ("shown", "place"),
    [
        *((np.dtype(kind).type(2), 2) for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")),
        (np.array(2, ">u8"), 2), (np.array([2], ">i2"), 2), (np.array([[2]]), 2), ([2], 2), (2, 2), (True, 1),
        (np.False_, 0),
    ],
)  # fmt: skip
def test_every_type_of_integer_is_one_of_a_discrete(shown: Any, place: int) -> None:
    """Also of one that counts from elsewhere, and of several."""
    assert adapt(space=spaces.Discrete(4), shown=shown).reset().argmax() == place
    assert adapt(space=spaces.Discrete(4, start=-1), shown=shown).reset().argmax() == place + 1
    several = spaces.MultiDiscrete([4, 4], dtype=np.uint64)
    assert adapt(space=several, shown=np.ravel([shown, shown])).reset().argmax() == place


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (np.uint64(2**64 - 1), "is not in its space"),
        (np.int64(-2), "is not in its space"),
        (2**70, "is object, not integers"),
        (2.0, "is float64, not integers"),
        ("2", "is <U1, not integers"),
        ([1, 2], r"has the shape \[2\], not 1 numbers"),
    ],
)
def test_what_is_no_value_of_a_discrete_is_a_broken_promise(shown: Any, line: str) -> None:
    """Nothing wraps around or is rounded."""
    with pytest.raises(BadEnvironment, match=line):
        adapt(space=spaces.Discrete(4, start=-1), shown=shown).reset()


def test_integers_of_any_type_are_bytes_if_they_fit() -> None:
    """Real numbers are not: an image scaled to 0..1 would be black."""
    image = spaces.Box(0, 255, (8, 8), np.uint8)
    for kind in ("int64", "uint16", "int8", ">i4", "bool"):
        observed = adapt(space=image, shown=np.ones((8, 8), kind)).reset()
        assert (observed.dtype, observed.max()) == (np.uint8, 1)
    for wrong, line in ((np.full((8, 8), -1), "holds -1 to -1"), (np.full((8, 8), 256), "holds 256 to 256")):
        with pytest.raises(BadEnvironment, match=line):
            adapt(space=image, shown=wrong).reset()


# --- Actions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint64, np.float16, np.float64, bool])
def test_an_action_at_or_beyond_its_bounds_is_in_its_box(dtype: Any) -> None:
    """Also where a bound has no exact float64."""
    info = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype) if dtype is not bool else None
    low, high = (info.min, info.max) if info else (0, 1)
    box = spaces.Box(low, high, (2,), dtype)
    environment = adapt(actions=box)
    for action in ([-np.float32(3e38), np.float32(3e38)], [float(low), float(high)], [0.4, 0.6]):
        assert environment.native_action(np.array(action)) in box


def test_infinite_bounds_of_whole_numbers_are_infinite() -> None:
    """Gymnasium has the type's own least and greatest number there."""
    assert actions_of(spaces.Box(-np.inf, np.inf, (2,), np.int64), "Own") == (0, 2 * (-math.inf,), 2 * (math.inf,))
    assert actions_of(spaces.Box(0, np.inf, (1,), np.int32), "Own") == (0, (0.0,), (math.inf,))


def test_a_box_without_dimensions_is_one_action() -> None:
    """An array, as its space demands."""
    box = spaces.Box(-1, 1, ())
    assert adapt(actions=box).native_action(np.array([0.5], np.float32)) in box


def test_many_parts_of_one_value_are_few_actions() -> None:
    """Numpy has no arrays of 80 dimensions."""
    environment = adapt(actions=spaces.MultiDiscrete([1] * 80 + [3]))
    assert environment.spaces.actions == 3
    assert environment.native_action(2)[-1] == 2


# --- What is refused ---------------------------------------------------------------------------------------------


class OldBox:
    """A space of the package gym."""

    shape = (3,)


OldBox.__module__, OldBox.__name__ = "gym.spaces.box", "Box"


def changed(space: Any, part: Any) -> Any:
    """A Dict or Tuple with a part that its constructor would not take."""
    space.spaces = {"a": part} if isinstance(space, spaces.Dict) else (part,)
    return space


HUGE = [
    spaces.Discrete(10**10), spaces.Discrete(2**62), spaces.MultiDiscrete([2**62, 2**62]), spaces.MultiBinary(10**10),
    spaces.Dict(a=spaces.Discrete(800_000), b=spaces.Discrete(800_000)), spaces.Tuple([spaces.Discrete(2**62)] * 3),
    spaces.Box(-1, 1, (1_000_001,)), spaces.Box(-1, 1, (1_000_001, 1)),
]  # fmt: skip
OLD = [
    OldBox(), changed(spaces.Dict(a=spaces.Text(2)), OldBox()), changed(spaces.Tuple([spaces.Text(2)]), OldBox())
]  # fmt: skip


@pytest.mark.parametrize(
    ("space", "line"),
    [
        *((space, r"observes [\d_]+ numbers .*, 1 to 1_000_000 are supported") for space in HUGE),
        *((space, "has an observation_space of the old package gym: make it with gymnasium, ") for space in OLD),
        (spaces.Box(0, 1, (6000, 6000), bool), "observes 36_000_000 pixels, 1 to 33_554_432 are supported"),
        (spaces.MultiDiscrete([]), "observes 0 numbers"),
        (spaces.Graph(spaces.Discrete(2), None), "observes a Graph, which is not supported"),
        (spaces.Sequence(spaces.Discrete(2)), "observes a Sequence, which is not supported"),
        (spaces.OneOf([spaces.Discrete(2)]), "observes a OneOf, which is not supported"),
    ],
)
def test_an_observation_that_no_network_can_use_is_refused_in_one_line(space: Any, line: str) -> None:
    """Before anything of its size is allocated."""
    with pytest.raises(UsageError, match=line) as caught:
        adapt(space=space, shown=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("actions", "line"),
    [
        (spaces.Discrete(2**62), "has more actions in Discrete.* than the 100_000 supported: wrap it to take fewer"),
        (spaces.Box(-1, 1, (400, 400)), "has more actions in Box"),
        (
            spaces.MultiDiscrete([2**31] * 4),
            "has more combinations of actions in MultiDiscrete.* than the 4_096 supported: wrap it",
        ),
        (spaces.MultiDiscrete([7] * 5000), "has more combinations of actions"),
        (spaces.MultiBinary(10**10), "has more combinations of actions in MultiBinary"),
        (OldBox(), "has an action_space of the old package gym"),
        (spaces.Text(3), "has actions in Text.*, which is not supported"),
        (spaces.Tuple([spaces.Discrete(2)]), "has actions in Tuple.*, which is not supported"),
    ],
)
def test_an_action_that_no_network_can_take_is_refused_in_one_line(actions: Any, line: str) -> None:
    """Its space is shown shortened."""
    with pytest.raises(UsageError, match=line) as caught:
        adapt(actions=actions)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_an_environment_without_spaces_is_refused_in_one_line() -> None:
    """It has forgotten to set them."""
    bare: Any = Shown()
    del bare.action_space
    with pytest.raises(UsageError, match=r"Bare has no action_space: set it to one of gymnasium.spaces"):
        GymnasiumEnvironment(bare, "Bare", 1)


def test_an_environment_of_the_old_package_is_called_that() -> None:
    """Its class is called Env, too."""
    with pytest.raises(UsageError, match="old_env has an environment of the old package gym: make it with gymnasium, "):
        EnvSpec(f"{HERE}:old_env").probe()


def test_a_stack_that_is_too_large_is_refused() -> None:
    """Before it is allocated."""
    with pytest.raises(UsageError, match="observes 90_000_000 numbers"):
        Preprocessed(adapt(space=spaces.Box(-1, 1, (900_000,))), 1, frame_stack=100)


# --- Wrappers of others ------------------------------------------------------------------------------------------


def grid(*names: str) -> Any:
    """An empty room under wrappers of MiniGrid's, from the innermost to the outermost."""
    wrappers = pytest.importorskip("minigrid.wrappers")
    environment = gymnasium.make("MiniGrid-Empty-5x5-v0")
    for name in names:
        arguments = {"tile_size": 4} if name.startswith("RGB") else {}
        environment = getattr(wrappers, name)(environment, **arguments)
    return environment


def picked(environment: Any) -> Any:
    """The image alone, by a wrapper of a user's own."""
    return gymnasium.wrappers.TransformObservation(
        environment, lambda seen: seen["image"], environment.observation_space["image"]
    )


def as_floats(environment: Any, by: float = 1.0) -> Any:
    space = spaces.Box(0.0, 255.0, environment.observation_space.shape)
    return gymnasium.wrappers.TransformObservation(environment, lambda seen: seen.astype(np.float32) * by, space)


IMAGE = "ImgObsWrapper"


@pytest.mark.parametrize(
    ("make", "told", "largest"),
    [
        (lambda: grid(IMAGE), ((21, 7, 7), "float32"), 1.0),
        (lambda: picked(grid()), ((21, 7, 7), "float32"), 1.0),
        (lambda: picked(grid("FullyObsWrapper")), ((21, 5, 5), "float32"), 1.0),
        (lambda: grid("ViewSizeWrapper", IMAGE), ((21, 7, 7), "float32"), 1.0),
        (lambda: grid("OneHotPartialObsWrapper", IMAGE), ((20, 7, 7), "float32"), 1.0),
        (lambda: picked(grid("OneHotPartialObsWrapper")), ((20, 7, 7), "float32"), 1.0),
        (lambda: grid("SymbolicObsWrapper", IMAGE), ((3, 5, 5), "float32"), 10.0),
        (lambda: grid("RGBImgPartialObsWrapper", IMAGE), ((3, 28, 28), "uint8"), 255.0),
        (lambda: picked(grid("RGBImgObsWrapper")), ((3, 20, 20), "uint8"), 255.0),
        (lambda: as_floats(grid(IMAGE)), ((3, 7, 7), "float32"), 10.0),
        (lambda: as_floats(grid("FullyObsWrapper", IMAGE), 20.0), ((3, 5, 5), "float32"), 200.0),
        (lambda: grid("DictObservationSpaceWrapper"), ((147 + 4 + 50 * 52,), "float32"), 255.0),
        (lambda: grid("FlatObsWrapper"), ((147 + 28 * 96,), "float32"), 255.0),
    ],
)
def test_only_minigrids_symbols_become_planes(make: Any, told: Any, largest: float) -> None:
    """What its wrappers make of them is observed as any other image."""
    environment = GymnasiumEnvironment(make(), "Grid", 1)
    assert (environment.spaces.observation_shape, environment.spaces.observation_dtype) == told
    observations = [environment.reset(), *(environment.step(action)[0].copy() for action in (0, 1, 2, 2))]
    assert 0 < max(observation.max() for observation in observations) <= largest


@pytest.mark.parametrize(
    ("wrapper", "line"),
    [
        (gymnasium.wrappers.NormalizeObservation, "uses gymnasium.wrappers.NormalizeObservation, .*--normalize-obs"),
        (gymnasium.wrappers.NormalizeReward, "uses gymnasium.wrappers.NormalizeReward, .*use --normalize-returns"),
    ],
)
def test_a_wrapper_that_normalises_is_pointed_out_once(wrapper: Any, line: str) -> None:
    """Wherever it is in the chain; its statistics are in no checkpoint."""
    wrapped = gymnasium.wrappers.TimeLimit(wrapper(Shown()), 5)
    (notice,) = GymnasiumEnvironment(wrapped, "Wrapped", 1).notices
    assert notice.startswith("Wrapped ")
    with pytest.warns(match=line):
        EnvSpec(f"{HERE}:normalized", (write_argument("wrapper", wrapper, hands_over=True),), frame_stack=2).probe()
    assert adapt().notices == ()


def old_env() -> Any:
    return OldBox()


def normalized(wrapper: Any) -> Any:
    return wrapper(Shown())


@pytest.mark.parametrize("env_id", ["Chain", "Catch", "ALE/Pong-v5"])
@pytest.mark.parametrize("shown", [np.nan, np.inf, 1e300, 1j, "1"])
def test_the_toys_and_atari_take_no_impossible_observation_either(env_id: str, shown: Any) -> None:
    """A policy may be given any array; those environments have no encoder of their own."""
    environment: Any = EnvSpec(env_id).make(0, evaluation=True)
    like = environment.reset()
    seen = np.zeros_like(like)

    environment.see(seen, np.ones_like(like))
    assert (seen == 1).all()
    with pytest.raises(ValueError, match="the observation"):
        environment.see(seen, np.full(like.shape, shown))


@pytest.mark.parametrize(("shown", "line"), [(0.9, "is float64, not uint8"), (256, "0 to 255"), (-1, "0 to 255")])
def test_ataris_observations_are_bytes(shown: Any, line: str) -> None:
    """A screen scaled to 0 to 1 would be black."""
    environment: Any = EnvSpec("ALE/Pong-v5").make(0, evaluation=True)
    seen = np.zeros(environment.spaces.observation_shape, np.uint8)
    with pytest.raises(ValueError, match=line):
        environment.see(seen, np.full(seen.shape, shown))
