"""Names of an environment's actions and of the components of its observations, as far as it says what they are.

Gymnasium's own environments say so in their documentation, the docstring of their class: a table or a list of numbered
rows below the headings "Action Space" and "Observation Space". Others do in their attributes or in their spaces.
"""

from __future__ import annotations

import contextlib
import enum
import math
import re
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_ROW = re.compile(r"^\s*(?:\|\s*(\d+)\s*\|\s*(.+?)\s*\||-\s*(\d+):\s*(.+?)\s*$)", re.MULTILINE)
"""A row of a table (| 0 | Cart Position | ...), or of a list (- 0: Push cart to the left)."""
_MINATAR = {"n": "no-op", "l": "left", "u": "up", "r": "right", "d": "down", "f": "fire"}
"""What the letters in MinAtar's `action_map` stand for."""


def names_of_actions(environment: gymnasium.Env[Any, Any], choices: list[Any]) -> tuple[str, ...]:
    """A name for each discrete action, of which `choices` has the values, or for each component of a continuous one.

    Those that the environment does not name are called by their Gymnasium values: "action 0".
    """
    space: Any = environment.action_space
    count = len(choices) or math.prod(space.shape)
    inner: Any = environment.unwrapped
    if space == inner.action_space:
        for found in (_meanings(inner), _documented(inner, "Action", count), _members(inner), _minatar(inner)):
            if len(found) == count:
                return found
    if not choices:
        return tuple(f"action {i}" for i in range(count))
    return tuple(
        " ".join(map(str, choice.ravel())) if isinstance(choice, np.ndarray) else f"action {choice}"
        for choice in choices
    )


def names_of_components(environment: gymnasium.Env[Any, Any]) -> tuple[str, ...]:
    """A name for each number of an observation that is a vector: its place, if nothing says more."""
    space: Any = environment.observation_space
    names = _in_space(space)
    inner = environment.unwrapped
    found = _documented(inner, "Observation", len(names)) if space == inner.observation_space else ()
    return found or tuple(names)


def _meanings(environment: Any) -> tuple[str, ...]:
    """Atari's convention, which many follow."""
    with contextlib.suppress(Exception):  # names are only shown
        return tuple(str(meaning).lower() for meaning in environment.get_action_meanings())
    return ()


def _members(environment: Any) -> tuple[str, ...]:
    """MiniGrid's: an enumeration `actions`, whose members are the numbers from 0 on."""
    actions = getattr(environment, "actions", None)
    if not (isinstance(actions, type) and issubclass(actions, enum.IntEnum)):
        return ()
    named = {int(member): member.name.replace("_", " ") for member in actions}
    return tuple(named[i] for i in sorted(named)) if sorted(named) == list(range(len(named))) else ()


def _minatar(environment: Any) -> tuple[str, ...]:
    """MinAtar's: a letter for each action of the game, and the actions that can be taken."""
    letters = getattr(getattr(getattr(environment, "game", None), "env", None), "action_map", ())
    taken = getattr(environment, "action_set", ())
    return tuple(_MINATAR[letters[i]] for i in taken) if set(letters) == set(_MINATAR) else ()


def _documented(environment: Any, what: str, count: int) -> tuple[str, ...]:
    """The rows below the heading of a space, without the words that begin or end all of them; () unless `count`."""
    heading = re.compile(rf"^\s*#+ *{what} Space\s*$(.*?)(?=^\s*#+ |\Z)", re.MULTILINE | re.DOTALL)
    section = heading.search(type(environment).__doc__ or "")
    rows = _ROW.findall(section[1]) if section else []
    if [int(place or listed) for place, _, listed, _ in rows] != list(range(count)):
        return ()
    return _without_common_words([(name or told).replace("`", "") for _, name, _, told in rows])


def _without_common_words(names: list[str]) -> tuple[str, ...]:
    """Names that differ in a few words, reduced to these; a number keeps what stands behind it."""
    words = [name.split() for name in names]
    if len(words) == 1:
        return tuple(names)
    first = _common(words)
    last = _common([own[: first - 1 if first else None : -1] for own in words])
    short = [" ".join(own[first : len(own) - last]) for own in words]
    if any(not name or re.fullmatch(r"[-+\d.]+", name) for name in short):
        short = [" ".join(own[first:]) for own in words]
    return tuple(short) if all(short) else tuple(names)


def _common(words: list[list[str]]) -> int:
    """How many words begin all of them, short of a whole one."""
    count = 0
    while all(len(own) > count + 1 and own[count] == words[0][count] for own in words):
        count += 1
    return count


def _in_space(space: spaces.Space[Any]) -> list[str]:
    """A name for each number that the space's vector has, by the parts of the space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        within: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [f"{key} {name}".strip() for key, part in within for name in _in_space(part)]
    if isinstance(space, spaces.Discrete):
        return [f"= {space.start + i}" for i in range(int(space.n))]
    if isinstance(space, spaces.MultiDiscrete):
        parts = zip(space.nvec.ravel().tolist(), space.start.ravel().tolist(), strict=True)
        return [f"{part} = {start + i}" for part, (size, start) in enumerate(parts) for i in range(size)]
    size = math.prod(space.shape or ())
    return [""] if size == 1 else [str(i) for i in range(size)]
