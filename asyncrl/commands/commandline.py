"""From the words of a command line to a configuration, and from a mistake to one line."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

import tyro
from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

from asyncrl.core.errors import UsageError
from asyncrl.envs.spec import EnvironmentNotice
from asyncrl.storage.files import disk_is_full

T = TypeVar("T")
ALIASES = {"--async-update-interval": "--t-max"}
"""Other names of flags: the pseudo-code of the one-step methods calls t_max I_AsyncUpdate."""
Reader = Callable[[str], Any]
"""One word to a value; raises ValueError with what follows the flag's name in the message."""
Shape = tuple[int | Literal["*"], str]
"""How many words a flag takes, and how help calls them."""


def parse_integer(text: str) -> int:
    """A whole number as people write them: 10000000, 10_000_000 or 1e7. Raises ValueError otherwise."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError, OverflowError):
        number = float(text)
        if number == int(number):
            return int(number)
    raise ValueError(f"takes a whole number, got {text!r}")


def parse_number(text: str) -> float:
    """A finite number: JSON has no word for another, and no setting a use. Raises ValueError otherwise."""
    with contextlib.suppress(ValueError):
        number = float(text)
        if math.isfinite(number):
            return number
    raise ValueError(f"takes a number, got {text!r}")


def parse_number_or_none(text: str) -> float | None:
    """A finite number, or "none". Raises ValueError otherwise."""
    return None if text.lower() == "none" else parse_number(text)


def parse_choice(choices: Sequence[str], text: str) -> str:
    """One of the choices. Raises ValueError otherwise."""
    if text not in choices:
        *most, last = choices
        raise ValueError(f"takes {', '.join(most)} or {last}, got {text!r}")
    return text


_READERS: dict[Any, tuple[Reader, str]] = {
    int: (parse_integer, "INT"),
    float: (parse_number, "FLOAT"),
    float | None: (parse_number_or_none, "FLOAT"),
    str: (str, "TEXT"),
    Path: (Path, "PATH"),
}
"""How a word becomes a value of a type, and how help calls it."""


def _rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """How tyro reads a field of this type: our readers instead of its own, so that mistakes are told in our words."""
    reader: Reader
    kind, arguments = get_origin(info.type), get_args(info.type)
    if kind is Literal:
        reader, metavar = partial(parse_choice, arguments), "{" + ",".join(arguments) + "}"
    elif kind is tuple:
        item, name = _READERS[arguments[0]]
        several: Shape = (len(arguments), " ".join([name] * len(arguments)))
        if arguments[1:] == (Ellipsis,):
            several = ("*", f"[{name} ...]")
        return _spec(several, lambda words: tuple(map(item, words)), lambda values: list(map(_written, values)))
    elif info.type in _READERS:
        reader, metavar = _READERS[info.type]
    else:
        return None
    return _spec((1, metavar), lambda words: reader(words[0]), lambda value: [_written(value)])


def _spec(
    shape: Shape, read: Callable[[list[str]], Any], write: Callable[[Any], list[str]]
) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(*shape, read, is_instance=lambda value: True, str_from_instance=write)


def _written(value: object) -> str:
    """A default as help shows it: large numbers can be counted at a glance."""
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value)


_registry = tyro.constructors.ConstructorRegistry()
_registry.primitive_rule(_rule)


def spelled_out(word: str) -> str:
    """The word with the flag's own name where another one was used."""
    name, equals, attached = word.partition("=")
    return ALIASES.get(name, name) + equals + attached


def value_of(flag: str, words: Sequence[str]) -> str:
    """What `words` say after one flag, before the others can be judged; "" if nothing."""
    value = ""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, attached = word.partition("=")
        if name == flag:
            value = attached if equals else following
    return value


def parse(cls: type[T], words: Sequence[str], program: str, default: T | None = None) -> T:
    """The configuration that `words` describe, other fields as in `default`.

    Raises UsageError with one line for words it does not understand, and SystemExit(0) after --help.
    """
    words = [spelled_out(word) for word in words]
    options: dict[str, Any] = {"prog": program, "registry": _registry}
    if default is not None:
        options["default"] = default
    if any(word in ("-h", "--help") or word.startswith("--tyro-") for word in words):
        tyro.cli(cls, args=list(words), **options)
    complaint = io.StringIO()
    try:
        # With stdout put aside as well, tyro draws its message without frames and colours.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(complaint), _wide_terminal():
            return cast(T, tyro.cli(cls, args=list(words), **options))
    except SystemExit:
        raise UsageError(_one_line(complaint.getvalue(), words)) from None


@contextlib.contextmanager
def _wide_terminal() -> Iterator[None]:
    """Let a message stand on one line however narrow the terminal is."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "10000"
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


def _one_line(complaint: str, words: Sequence[str]) -> str:
    """tyro's message in one line: title, message and more stand between rules of dashes.

    A suggestion is kept, the pointer to the help is not. A message in words that are new to us stays as it is.
    """
    _, message, *more = re.split(r"\n\s*-{3,}\s*\n", complaint) if "---" in complaint else ("", complaint)
    message = " ".join(message.split())
    if match := re.fullmatch(r"Error parsing (\S+): (.*)", message):
        return f"{match[1]} {match[2]}"
    if match := re.fullmatch(r"Missing value for argument '(.*)'\. Expected (\d+) values\.", message):
        return f"{match[1]} needs {'a value' if match[2] == '1' else f'{match[2]} values'}"
    if match := re.fullmatch(r"Unrecognized options:\s*(.*?)(, .*)?", message):
        if match[1].startswith("-"):
            flags = [flag for text in more for flag in re.findall(r"^\s*(--[\w-]+)", text, re.MULTILINE)]
            return f"there is no {match[1]}" + (f"; perhaps you meant {' or '.join(flags)}" if flags else "")
        return _misplaced(match[1], words)
    return message


def _misplaced(word: str, words: Sequence[str]) -> str:
    """What to say of a word that belongs to no flag; most often it follows one that is only switched on."""
    for before, after in zip(["", *words], words, strict=False):
        flag, _, value = after.partition("=")
        holder = before if after == word else flag if value == word else ""
        if holder.startswith("--"):
            return f"{holder} takes no value, got {word!r}"
    return f"nothing takes the word {word!r}"


@contextlib.contextmanager
def _notices_in_one_line(program: str) -> Iterator[None]:
    """Show what there is to say about an environment's id as a line, without the place in our code that says it."""
    show = warnings.showwarning

    def in_one_line(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, EnvironmentNotice):
            print(f"{program}: {message}", file=sys.stderr)
        else:
            show(message, category, *place, **more)

    warnings.showwarning = in_one_line
    try:
        yield
    finally:
        warnings.showwarning = show


def run_command(program: str, command: Callable[[], int]) -> int:
    """Run a command; a mistake of the user becomes one line on stderr and exit code 2, Ctrl-C exit code 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # it is None in a program without output
            stream.reconfigure(errors="backslashreplace")  # a path may hold letters that the terminal has not
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # see asyncrl/__init__.py
    try:
        with _notices_in_one_line(program):
            return command()
    except UsageError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if not disk_is_full(error):
            raise
        print(f"{program}: error: the disk is full: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
