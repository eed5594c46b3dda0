"""The axes of a sweep: what `--flag value value ...` and `--flag N log-uniform LOW HIGH` mean."""

from __future__ import annotations

import difflib
import itertools
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asyncrl.core.errors import UsageError

DISTRIBUTIONS = ("log-uniform", "uniform")
MOST_DRAWS = 100_000


@dataclass(frozen=True)
class Axis:
    """One setting and the values it takes."""

    field: str
    """Name of the setting, such as "learning_rate"."""
    values: tuple[str, ...]
    """As on a command line; a value of several words is one text with spaces."""
    drawn: str = ""
    """The distribution the values were drawn from, if any; all drawn axes vary together."""
    bounds: tuple[float, float] | None = None
    """The range of a search. Such an axis has no values of its own."""

    @property
    def varies(self) -> bool:
        """Whether it takes more than one value."""
        return len(self.values) > 1 or self.bounds is not None

    @property
    def flag(self) -> str:
        """As on a command line."""
        return f"--{self.field.replace('_', '-')}"

    def ends(self, whole: bool) -> tuple[str, ...]:
        """Its values, or both bounds, `whole` numbers if need be."""
        if self.bounds is None:
            return self.values
        return tuple(str(round(bound)) if whole else f"{bound:.6g}" for bound in self.bounds)


Point = Mapping[str, str]
"""One value of each axis, by field."""


def is_numeric(values: Sequence[str]) -> bool:
    """Whether all are numbers."""
    try:
        return bool([float(value) for value in values])
    except ValueError:
        return False


def group_words(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Flags with the words that follow them. Raises UsageError for a word before the first flag."""
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            groups.append((flag, [value] if equals else []))
        elif groups:
            groups[-1][1].append(word)
        else:
            raise UsageError(f"unexpected word {word!r}")
    return groups


def make_axis(flag: str, words: Sequence[str], fields: Mapping[str, bool], seed: int) -> Axis:
    """The axis that a flag and its words describe; a flag may be in the plural. Raises UsageError if there is none.

    `fields` says of each setting whether it is only on or off; `seed` is for random draws. The first values drawn are
    the same however many are asked for.
    """
    name = flag.removeprefix("--").replace("-", "_")
    negated = name.removeprefix("no_")
    if not words and name not in fields and negated in fields:
        return Axis(negated, ("False",))
    field = next((candidate for candidate in (name, name.removesuffix("s")) if candidate in fields), None)
    if field is None:
        near = difflib.get_close_matches(name, [*fields, *(f"{field}s" for field in fields)], n=1)
        raise UsageError(
            f"there is no {flag}" + "".join(f"; perhaps you meant --{other.replace('_', '-')}" for other in near)
        )
    if not words and not fields[field]:
        raise UsageError(f"{flag} needs a value")
    if len(words) == 4 and words[1] in DISTRIBUTIONS:
        return Axis(field, draw(flag, words, (seed, *field.encode())), drawn=words[1])
    if len(words) == 3 and words[0] in DISTRIBUTIONS:
        draw(flag, ["1", *words], (seed,))  # checks the bounds
        return Axis(field, (), words[0], (float(words[1]), float(words[2])))
    if len(set(words)) < len(words):
        raise UsageError(f"{flag} has a value twice")
    return Axis(field, tuple(words) or ("True",))


def draw(flag: str, words: Sequence[str], seed: Sequence[int]) -> tuple[str, ...]:
    """Values for `N log-uniform LOW HIGH` or `N uniform LOW HIGH`."""
    try:
        count, low, high = int(words[0]), float(words[2]), float(words[3])
    except ValueError:
        raise UsageError(f"{flag} takes N {words[1]} LOW HIGH, got {' '.join(words)}") from None
    least = 0.0 if words[1] == "log-uniform" else -np.inf
    if not (1 <= count <= MOST_DRAWS and least < low < high < np.inf):
        raise UsageError(f"{flag} needs at least one draw and LOW below HIGH, above 0 if log-uniform")
    uniform = np.random.default_rng(list(seed)).random(count)
    values = low * (high / low) ** uniform if words[1] == "log-uniform" else low + (high - low) * uniform
    return tuple(f"{value:.6g}" for value in values)


def combine(axes: Sequence[Axis]) -> list[Point]:
    """All combinations of the listed axes; drawn axes are zipped instead, as in a random search.

    Raises UsageError if drawn axes have different numbers of values, or none because they are for a search.
    """
    for axis in axes:
        if axis.bounds is not None:
            raise UsageError(f"{axis.flag} has bounds and no number of draws: give it, or --trials for a search")
    drawn = [axis for axis in axes if axis.drawn]
    if len({len(axis.values) for axis in drawn}) > 1:
        flags = " and ".join(axis.flag for axis in drawn)
        raise UsageError(f"drawn settings vary together: draw the same number of {flags}")
    listed = [axis for axis in axes if not axis.drawn]
    names = [axis.field for axis in (*listed, *drawn)]
    together = list(zip(*(axis.values for axis in drawn), strict=True)) or [()]
    return [
        dict(zip(names, (*values, *draws), strict=True))
        for values in itertools.product(*(axis.values for axis in listed))
        for draws in together
    ]


def words_of(point: Point, switches: Collection[str]) -> list[str]:
    """The point as flags; `switches` are settings that are on or off."""
    words = []
    for field, value in point.items():
        name = field.replace("_", "-")
        if field in switches:
            if value.lower() not in ("true", "false"):
                raise UsageError(f"--{name} takes True or False, got {value!r}")
            words.append(f"--{name}" if value.lower() == "true" else f"--no-{name}")
        else:
            try:
                words += [f"--{name}", *shlex.split(value)]
            except ValueError as error:
                raise UsageError(f"--{name} cannot be split into words at {value!r}: {error}") from None
    return words
