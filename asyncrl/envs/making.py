"""Make a Gymnasium environment, by its id or with a user's factory. Whatever goes wrong is told with its remedy."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium import spaces

from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.named import find, is_name
from asyncrl.core.output import clean
from asyncrl.core.user_code import Own, user_code
from asyncrl.envs.encoders import refuse_old_gym
from asyncrl.envs.environment import did_you_mean
from asyncrl.envs.gymnasium_env import GymnasiumEnvironment


def make_gymnasium(env_id: str, seed: int, arguments: dict[str, Any], limit: int) -> GymnasiumEnvironment:
    """Make an environment whose episodes are truncated after `limit` frames (0: never), by its id or factory.

    Raises `UsageError` if it cannot be made.
    """
    notices: tuple[str, ...] = ()
    own: Own = {}
    if is_name(env_id):
        environment = _from_factory(env_id, arguments, own)
    else:
        environment, notices = _from_registry(env_id, arguments, own)
    with user_code(f"{env_id}'s spaces", own=own):
        return GymnasiumEnvironment(environment, env_id, seed, limit, notices, own)


def _from_factory(env_id: str, arguments: dict[str, Any], own: Own) -> gymnasium.Env[Any, Any]:
    attribute = env_id.partition(":")[2]
    with user_code(f"the import of {env_id}"):
        factory = find(env_id)
    with user_code(
        f"{env_id}: {attribute}()", lambda error: UsageError(f"{env_id}: {attribute}() failed: {one_line(error)}"), own
    ):
        environment = factory(**arguments)
    if not isinstance(environment, gymnasium.Env):
        refuse_old_gym(environment, env_id, "environment")
        raise UsageError(f"{env_id}: {attribute}() returned a {type(environment).__name__}, not a gymnasium.Env")
    return environment


def _from_registry(env_id: str, arguments: dict[str, Any], own: Own) -> tuple[gymnasium.Env[Any, Any], tuple[str, ...]]:
    _register_package_of(env_id)
    _refuse_raw_atari(env_id)
    with warnings.catch_warnings(record=True) as caught, _mujoco_silenced(env_id):
        warnings.simplefilter("always")
        with user_code(f"the making of {env_id}", lambda error: _not_made(env_id, error), own):
            environment = gymnasium.make(env_id, disable_env_checker=True, **arguments)
    said = [str(warning.message) for warning in caught if _is_for_users(warning)]
    notices = tuple(dict.fromkeys(_plain(text) for text in said))
    if env_id.startswith(("MiniGrid-", "BabyAI-")) and isinstance(environment.observation_space, spaces.Dict):
        environment = importlib.import_module("minigrid.wrappers").ImgObsWrapper(environment)
    return environment, notices


@contextlib.contextmanager
def _mujoco_silenced(env_id: str) -> Iterator[None]:
    """MuJoCo says on stderr, for each environment, what is deprecated in the models that Gymnasium brings."""
    if _extra_of(env_id) != "mujoco" or importlib.util.find_spec("mujoco") is None:
        yield
        return
    mujoco = importlib.import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None if "deprecated" in text else warnings.warn(text, stacklevel=2))
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _is_for_users(warning: warnings.WarningMessage) -> bool:
    """Whether it is not for the authors of a library, as Python sees it; Gymnasium's own deprecations are of ids."""
    return not issubclass(warning.category, DeprecationWarning) or "WARN: " in str(warning.message)


def _not_made(env_id: str, error: BaseException) -> UsageError:
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        extra = _extra_of(env_id)
        remedy = f'pip install "asyncrl[{extra}]"' if extra else one_line(error)
        return UsageError(f"{env_id} needs an extra: {remedy}")
    if isinstance(error, gymnasium.error.NameNotFound | gymnasium.error.NamespaceNotFound):
        known = {known_id.lower(): known_id for known_id in [*gymnasium.registry, "Chain", "Catch"]}
        remedy = did_you_mean(env_id, known) or "is the package that registers it installed?"
        return UsageError(f"no environment has the id {env_id}: {remedy}")
    return UsageError(f"{env_id} could not be made: {one_line(error)}")


def _register_package_of(env_id: str) -> None:
    """Import the package that registers an id, if Gymnasium does not do so itself."""
    try:
        if env_id.startswith("MinAtar/"):
            _register_minatar(env_id)
        elif env_id.startswith(("MiniGrid-", "BabyAI-")):
            importlib.import_module("minigrid")
    except ImportError as error:
        extra = "minatar" if env_id.startswith("MinAtar/") else "minigrid"
        raise UsageError(f'{env_id} needs an extra: pip install "asyncrl[{extra}]"') from error


def _register_minatar(env_id: str) -> None:
    if env_id in gymnasium.registry:
        return
    # It warns on the root logger that seaborn is missing, which only drawing needs.
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        minatar = importlib.import_module("minatar.gym")
    finally:
        logging.disable(level)
    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        minatar.register_envs()


def _refuse_raw_atari(env_id: str) -> None:
    """Refuse ids like Pong-v4, which would give colour screens with a random frame skip, and name the right id."""
    form = re.fullmatch(r"(\w+)-v[04]", env_id)
    registered = gymnasium.registry.get(env_id)
    if form is None or (registered is not None and not str(registered.entry_point).startswith("ale_py")):
        return
    from asyncrl.envs.atari import games

    if form[1] in games():
        raise UsageError(f"{env_id} skips a random number of frames, which is not supported: use ALE/{form[1]}-v5")


def _extra_of(env_id: str) -> str | None:
    """The extra of this package with the dependencies of one of Gymnasium's own environments."""
    registered = gymnasium.registry.get(env_id)
    form = re.match(r"gymnasium\.envs\.(box2d|mujoco)", str(registered.entry_point if registered else ""))
    return form[1] if form else None


def _plain(text: str) -> str:
    """A warning of Gymnasium without colours and prefix."""
    return clean(text).removeprefix("WARN: ")
