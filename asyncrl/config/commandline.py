"""Reads a configuration from a command line, and turns mistakes into one line."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import io
import itertools
import os
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

from asyncrl.config.groups import (
    EnvironmentSettings,
    EvaluationSettings,
    FaultSettings,
    NetworkSettings,
    OptimiserSettings,
    ParallelismSettings,
    RunSettings,
    Settings,
    flag,
)
from asyncrl.config.settings import ALIASES, ALL_ENVIRONMENTS, reader_of, share_environments
from asyncrl.core.errors import UsageError

T = TypeVar("T")
Shape = tuple[int | Literal["*"], str]
"""How many words a flag takes, and how help calls them."""
TRUST = "--trust"
"""The flag that allows everything that a run's folder names."""
COMMON, METHOD = "common", "method"
GROUPS: dict[str, type[Settings] | None] = {
    COMMON: None,
    "run": RunSettings,
    "environment": EnvironmentSettings,
    "parallelism": ParallelismSettings,
    "optimiser": OptimiserSettings,
    "network": NetworkSettings,
    METHOD: None,
    "evaluation": EvaluationSettings,
    "faults": FaultSettings,
}
"""The groups of settings in the order of help; the method's own are those that no other group has."""
MOST_USED = (
    "env_id", "total_steps", "workers", "seed", "preset", "backend", "learning_rate", "network",
    "evaluation_interval_steps", "stop_at_score", "resume", "track",
)  # fmt: skip
"""Those that help shows first, in the order of their use."""
CONFIG_HELP = "Read settings from a run's config.json or a TOML file; flags on the command line take precedence."
TRUST_HELP = "Import the code that the folder of --resume or --config names, even if somebody else wrote the folder."
SWITCH: Any = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""A flag without --no-."""
TEXTS = {
    COMMON: "The most common settings, as they apply to the given environment and backend.",
    METHOD: "Settings of this method.",
}


def _rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """How tyro reads a field of this type: with our readers, so that error messages are ours."""
    arguments = get_args(info.type)
    if get_origin(info.type) is tuple:
        readers = [found for kind in arguments if (found := reader_of(kind)) is not None]
        if len(readers) != len(arguments) - arguments.count(Ellipsis):
            return None
        several: Shape = (len(readers), " ".join(name for _, name in readers))
        if arguments[1:] == (Ellipsis,):
            several = ("*", f"[{several[1]} ...]")
        return _spec(
            several,
            lambda words: tuple(read(word) for (read, _), word in zip(itertools.cycle(readers), words, strict=False)),
            lambda values: list(map(_written, values)),
        )
    if (found := reader_of(info.type)) is None:
        return None
    read, metavar = found
    return _spec((1, metavar), lambda words: read(words[0]), lambda value: [_written(value)])


def _spec(
    shape: Shape, read: Callable[[list[str]], Any], write: Callable[[Any], list[str]]
) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(*shape, read, is_instance=lambda value: True, str_from_instance=write)


def _written(value: object) -> str:
    """A default as the help shows it, with large numbers in groups of digits."""
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value)


_registry = tyro.constructors.ConstructorRegistry()
_registry.primitive_rule(_rule)


def parse(cls: type[T], words: Sequence[str], program: str) -> T:
    """The object of a dataclass that `words` describe.

    Raises UsageError with one line for words it does not understand, and SystemExit(0) after --help.
    """
    if issubclass(cls, Settings):
        return cls(**share_environments(read_line(cls, words, program).settings))
    if asks_for_help(words):
        tyro.cli(_explained(cls), prog=program, args=list(words), registry=_registry)
    return cast(T, _understand(cls, words, program))


@dataclass(frozen=True)
class Line:
    """What a command line says of a run."""

    settings: dict[str, Any]
    """Those that it gives, under our own names."""
    config: Path | None
    """A file with more."""
    trust: bool
    """Whether everything may be imported that a run's folder names."""


def read_line(cls: type[Settings], words: Sequence[str], program: str) -> Line:
    """The settings of `cls` that a command line gives. Raises UsageError, and SystemExit(0) after --help."""
    if asks_for_help(words):
        show_help(cls, program, cls())
    words = understood(words)
    values = vars(_understand(_unchecked(cast(Any, cls)), words, program))
    flags = {word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    named = flags | {flag.removeprefix("no_") for flag in flags}
    given = {name: value for name, value in values.items() if name in named}
    if given.get("track") == ():
        given["track"] = ("wandb",)  # --track alone is CleanRL's
    return Line(given, given.pop("config", None), given.pop("trust", False))


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether to show the help instead of doing anything."""
    return any(word in ("-h", "--help") for word in words)


def show_help(cls: type[Settings], program: str, default: Settings, hidden: Collection[str] = ()) -> NoReturn:
    """Print the help of `cls` with these defaults but without `hidden` fields, and end the program."""
    tyro.cli(
        _grouped(cls, default, hidden), prog=program, args=["--help"], registry=_registry,
        config=(tyro.conf.OmitArgPrefixes,),
    )  # fmt: skip
    raise SystemExit(0)


def _understand(cls: Any, words: Sequence[str], program: str, **options: Any) -> Any:
    """What tyro makes of the words. Raises UsageError."""
    complaint = io.StringIO()
    try:
        # If stdout is redirected as well, tyro writes its message without frames and colours.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(complaint), _wide_terminal():
            return tyro.cli(cls, prog=program, args=list(words), registry=_registry, **options)
    except SystemExit:
        raise UsageError(_shortened(complaint.getvalue(), words, cls)) from None


@functools.cache
def _unchecked(cls: Any) -> type[Any]:
    """The settings of `cls` without its checks, and what else a command line may say of a run."""
    default, kinds = cls(), get_type_hints(cls)
    members: list[Any] = [(one.name, kinds[one.name], getattr(default, one.name)) for one in fields(cls)]
    members += [(ALL_ENVIRONMENTS, int, 0), ("config", Path | None, None), ("trust", SWITCH, False)]
    return make_dataclass(cls.__name__, [(name, kind, field(default=value)) for name, kind, value in members])


def _grouped(cls: type[Any], default: Settings, hidden: Collection[str]) -> type[Any]:
    """The settings of `cls` nested in groups, so that tyro draws boxes around them; for the help only."""
    texts, kinds = texts_of(cls), get_type_hints(cls)
    home = {one.name: title for title, group in GROUPS.items() if group for one in fields(group)}
    home |= dict.fromkeys(MOST_USED, COMMON)
    annotated: Any = Annotated  # the types are known to the program, not to a reader of it
    members: dict[str, list[Any]] = {title: [] for title in GROUPS}
    for name in [one.name for one in fields(cls) if one.name not in hidden]:
        told = tyro.conf.arg(help=texts.get(name), help_behavior_hint=_shown_default)
        own = members[home.get(name, METHOD)]
        own.append((name, annotated[kinds[name], told], field(default=getattr(default, name))))
    members[COMMON].sort(key=lambda member: MOST_USED.index(member[0]))
    config = annotated[Path | None, tyro.conf.arg(help=CONFIG_HELP, metavar="FILE")]
    members[COMMON].append(("config", config, field(default=None)))
    trust = annotated[SWITCH, tyro.conf.arg(help=TRUST_HELP)]
    members[COMMON].append(("trust", trust, field(default=False)))
    parts = []
    for title, own in members.items():
        text = group.__doc__ if (group := GROUPS[title]) else TEXTS[title]
        part = make_dataclass(title, own, frozen=True, namespace={"__doc__": text})
        parts.append((title, part, field(default=part())))
    return make_dataclass(cls.__name__, parts, frozen=True, namespace={"__doc__": cls.__doc__})


def _explained(cls: type[Any]) -> type[Any]:
    """A command's flags for its help only, where a default that is empty is not shown."""
    texts, kinds = texts_of(cls), get_type_hints(cls, include_extras=True)
    annotated: Any = Annotated
    members: list[Any] = []
    for one in fields(cls):
        told = tyro.conf.arg(help=texts.get(one.name), help_behavior_hint=_shown_default)
        default: Any = field(default=one.default, default_factory=one.default_factory, kw_only=one.kw_only)
        members.append((one.name, annotated[kinds[one.name], told], default))
    return make_dataclass(cls.__name__, members, frozen=True, namespace={"__doc__": cls.__doc__})


def _shown_default(text: str) -> str:
    return "" if text in ("", "''") else f"(default: {text})"


def texts_of(cls: type[Any]) -> dict[str, str]:
    """The text below each field of a dataclass; the most derived class wins."""
    texts = {}
    for base in reversed(cls.__mro__[:-1]):
        with contextlib.suppress(OSError):  # a class defined at a prompt has no source
            (definition,) = cast(list[ast.ClassDef], ast.parse(textwrap.dedent(inspect.getsource(base))).body)
            for field, text in itertools.pairwise(definition.body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    texts[cast(ast.Name, field.target).id] = str(ast.literal_eval(text.value))
    return texts


@contextlib.contextmanager
def _wide_terminal() -> Iterator[None]:
    """Keep messages on one line however narrow the terminal is."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "10000"
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


def _shortened(complaint: str, words: Sequence[str], cls: Any) -> str:
    """tyro's message in one line. Rules of dashes separate title, message and more.

    A suggestion is kept, the pointer to the help is not. An unknown message is not changed.
    """
    _, message, *more = re.split(r"\n\s*-{3,}\s*\n", complaint) if "---" in complaint else ("", complaint)
    message = " ".join(message.split())
    if match := re.fullmatch(r"Error parsing (\S+): (.*)", message):
        return f"{match[1]} {match[2]}"
    if match := re.fullmatch(r"Missing from .*?: [A-Z]+ (.*?)\.? \(required\)", message):
        return f"give the {match[1][:1].lower()}{match[1][1:]}"
    if match := re.fullmatch(r"Missing value for argument '(.*)'\. Expected (\d+) values\.", message):
        return f"{match[1]} needs {'a value' if match[2] == '1' else f'{match[2]} values'}"
    if match := re.fullmatch(r"Unrecognized options:\s*(.*?)(, .*)?", message):
        if match[1].startswith("-"):
            names = [one.name for one in fields(cls)]
            if "learning_rate" in names and (meant := _foreign(match[1], names)):  # of a run
                return meant
            flags = [flag for text in more for flag in re.findall(r"^\s*(--[\w-]+)", text, re.MULTILINE)]
            return f"there is no {match[1]}" + (f"; perhaps you meant {' or '.join(flags)}" if flags else "")
        return _misplaced(match[1], words)
    return message


def _foreign(option: str, names: Sequence[str]) -> str:
    """The message for an option that other libraries have; "" if none does."""
    from asyncrl.config.foreign import OURS, suggestion

    given = option.partition("=")[0]
    name = given.lstrip("-").replace("-", "_")
    if name not in OURS:
        return ""
    told, _, own = suggestion(name, names).rpartition(" ")
    return f"there is no {given}{told} {flag(own)}"


def _misplaced(word: str, words: Sequence[str]) -> str:
    """The message for a word that belongs to no flag; most often it follows a switch."""
    for before, after in zip(["", *words], words, strict=False):
        flag, _, value = after.partition("=")
        holder = before if after == word else flag if value == word else ""
        if holder.startswith("--"):
            return f"{holder} takes no value, got {word!r}"
    return f"unexpected word {word!r}"


def understood(words: Sequence[str]) -> list[str]:
    """The words with our own names of settings where others' were used."""
    ours = []
    for word in words:
        name, equals, attached = word.partition("=")
        own = ALIASES.get(name.removeprefix("--").replace("-", "_")) if name.startswith("--") else None
        ours.append(flag(own) + equals + attached if own else word)
    return ours


def value_of(flag: str, words: Sequence[str]) -> str:
    """What `words` say after one flag, before the others can be judged; "" if nothing."""
    value = ""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, attached = word.partition("=")
        if name.replace("_", "-") == flag:
            value = attached if equals else following
    return value
