"""Reads a configuration from a command line, and turns mistakes into one line."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import math
import os
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

from asyncrl.config.aliases import ALIASES, ENVIRONMENTS, parse_integer, read_count, share_environments
from asyncrl.config.files import words_in
from asyncrl.config.groups import (
    EnvironmentSettings,
    EvaluationSettings,
    FaultSettings,
    NetworkSettings,
    OptimiserSettings,
    ParallelismSettings,
    RunSettings,
    Settings,
    listed,
)
from asyncrl.core.errors import UsageError
from asyncrl.storage.stored import TRAINED, Permission

T = TypeVar("T")
Reader = Callable[[str], Any]
"""Turns a word into a value; raises ValueError with the text that follows the flag's name in the message."""
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
CONFIG_HELP = "Take settings from a run's config.json, or from TOML; those on the command line override them."
TRUST_HELP = "Import whatever the folder behind --resume or --config names, whoever made it."
TEXTS = {
    COMMON: "The settings used most often. What is shown fits the --backend and --env-id beside --help.",
    METHOD: "Settings of this method.",
}


def parse_number(text: str) -> float:
    """A finite number: JSON cannot hold others, and no setting needs them. Raises ValueError otherwise."""
    with contextlib.suppress(ValueError):
        number = float(text)
        if math.isfinite(number):
            return number
    raise ValueError(f"takes a number, got {text!r}")


def parse_number_or_none(text: str) -> float | None:
    """A finite number, or "none". Raises ValueError otherwise."""
    return None if text.lower() == "none" else parse_number(text)


def parse_integer_or_auto(text: str) -> int | str:
    """A whole number, or "auto". Raises ValueError otherwise."""
    if text.lower() == "auto":
        return "auto"
    try:
        return parse_integer(text)
    except ValueError:
        raise ValueError(f"takes a whole number or auto, got {text!r}") from None


def parse_choice(choices: Sequence[str], text: str) -> str:
    """One of the choices. Raises ValueError otherwise."""
    if text not in choices:
        raise ValueError(f"takes {listed(choices, 'or')}, got {text!r}")
    return text


_READERS: dict[Any, tuple[Reader, str]] = {
    int: (parse_integer, "INT"),
    float: (parse_number, "FLOAT"),
    float | None: (parse_number_or_none, "FLOAT"),
    int | Literal["auto"]: (parse_integer_or_auto, "INT|auto"),
    str: (str, "TEXT"),
    Path: (Path, "PATH"),
}
"""The reader for each type, and its name in the help."""


def read_text(kind: Any, text: str) -> Any:
    """The value of a field of that type as a word of the command line gives it. Raises ValueError."""
    return _READERS[kind][0](text) if kind in _READERS else text


def _rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """How tyro reads a field of this type: with our readers, so that error messages are ours."""
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
    """A default as the help shows it, with large numbers in groups of digits."""
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value)


_registry = tyro.constructors.ConstructorRegistry()
_registry.primitive_rule(_rule)


def parse(
    cls: type[T], words: Sequence[str], program: str, default: T | None = None, hidden: Collection[str] = ()
) -> T:
    """The configuration that `words` describe, other fields as in `default`. Help leaves `hidden` fields out.

    Raises UsageError with one line for words it does not understand, and SystemExit(0) after --help.
    """
    words = understood(words)
    options: dict[str, Any] = {"prog": program, "registry": _registry}
    if default is not None:
        options["default"] = default
    if any(word in ("-h", "--help") or word.startswith("--tyro-") for word in words):
        _help(cls, words, options, hidden)
    complaint = io.StringIO()
    try:
        # If stdout is redirected as well, tyro writes its message without frames and colours.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(complaint), _wide_terminal():
            return cast(T, tyro.cli(cls, args=list(words), **options))
    except SystemExit:
        raise UsageError(_shortened(complaint.getvalue(), words)) from None


def _help(cls: type[Any], words: Sequence[str], options: dict[str, Any], hidden: Collection[str]) -> None:
    """Print the help of `cls`, with the settings of a run in groups, and exit."""
    if not issubclass(cls, Settings):
        tyro.cli(cls, args=list(words), **options)
    default = options.pop("default", None) or cls()
    tyro.cli(_grouped(cls, default, hidden), args=list(words), config=(tyro.conf.OmitArgPrefixes,), **options)


def _grouped(cls: type[Any], default: Settings, hidden: Collection[str]) -> type[Any]:
    """The same settings nested in groups, so that tyro draws boxes around them; for the help only."""
    texts, kinds = texts_of(cls), get_type_hints(cls)
    home = {field.name: title for title, group in GROUPS.items() if group for field in dataclasses.fields(group)}
    home |= dict.fromkeys(MOST_USED, COMMON)
    annotated: Any = Annotated  # the types are known to the program, not to a reader of it
    members: dict[str, list[Any]] = {title: [] for title in GROUPS}
    for field in dataclasses.fields(cls):
        if field.name in hidden:
            continue
        told = tyro.conf.arg(help=texts.get(field.name))
        value = dataclasses.field(default=getattr(default, field.name))
        own = members[home.get(field.name, METHOD)]
        own.append((field.name, annotated[kinds[field.name], told], value))
    members[COMMON].sort(key=lambda member: MOST_USED.index(member[0]))
    config = annotated[Path | None, tyro.conf.arg(help=CONFIG_HELP, metavar="FILE")]
    members[COMMON].append(("config", config, dataclasses.field(default=None)))
    trust = annotated[bool, tyro.conf.arg(help=TRUST_HELP), tyro.conf.FlagCreatePairsOff]
    members[COMMON].append(("trust", trust, dataclasses.field(default=False)))
    parts = []
    for title, own in members.items():
        text = group.__doc__ if (group := GROUPS[title]) else TEXTS[title]
        part = dataclasses.make_dataclass(title, own, frozen=True, namespace={"__doc__": text})
        parts.append((title, part, dataclasses.field(default=part())))
    return dataclasses.make_dataclass(cls.__name__, parts, frozen=True, namespace={"__doc__": cls.__doc__})


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


def _shortened(complaint: str, words: Sequence[str]) -> str:
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
            flags = [flag for text in more for flag in re.findall(r"^\s*(--[\w-]+)", text, re.MULTILINE)]
            return f"there is no {match[1]}" + (f"; perhaps you meant {' or '.join(flags)}" if flags else "")
        return _misplaced(match[1], words)
    return message


def _misplaced(word: str, words: Sequence[str]) -> str:
    """The message for a word that belongs to no flag; most often it follows a switch."""
    for before, after in zip(["", *words], words, strict=False):
        flag, _, value = after.partition("=")
        holder = before if after == word else flag if value == word else ""
        if holder.startswith("--"):
            return f"{holder} takes no value, got {word!r}"
    return f"unexpected word {word!r}"


def understood(words: Sequence[str], algorithm: str = "") -> list[str]:
    """The words with our own names, and those of `--config FILE` before all others, which therefore count more.

    `algorithm` is the module whose settings they are; a file of another algorithm's is refused. Raises UsageError.
    """
    words = list(spelled_out(words))
    from_files: list[str] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        name, equals, attached = word.partition("=")
        if name != "--config":
            rest.append(word)
            continue
        file = attached if equals else next(left, "")
        if not file or file.startswith("--"):
            raise UsageError("--config needs a value")
        from_files += spelled_out(words_in(Path(file), algorithm, permission_in(words, algorithm)))
    return spread_environments([*from_files, *rest])


def spelled_out(words: Sequence[str]) -> Iterator[str]:
    """The words with a setting's own name where another one was used; `--track` alone is CleanRL's."""
    for word, following in zip(words, [*words[1:], "--"], strict=False):
        name, equals, attached = word.partition("=")
        plain = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and plain in ALIASES:
            yield "--" + ALIASES[plain].replace("_", "-") + equals + attached
        else:
            yield word
        if word == "--track" and following.startswith("--"):
            yield "wandb"


def spread_environments(words: list[str]) -> list[str]:
    """`--n-envs N`, all environments together, as workers and environments of each. Raises UsageError."""
    kept, total = [], ""
    left = iter(words)
    for word in left:
        name, equals, attached = word.partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") in ENVIRONMENTS:
            total = attached if equals else next(left, "")
            if not total or total.startswith("--"):
                raise UsageError(f"{name} needs a value")
        else:
            kept.append(word)
    if not total:
        return kept
    given = {
        name: read_count(flag, text)
        for name, flag in (("workers", "--workers"), ("envs_per_worker", "--envs-per-worker"))
        if (text := value_of(flag, kept))
    }
    shares = share_environments(read_count("--n-envs", total), given)
    return [*kept, *(word for name in shares for word in ("--" + name.replace("_", "-"), str(shares[name])))]


def value_of(flag: str, words: Sequence[str]) -> str:
    """What `words` say after one flag, before the others can be judged; "" if nothing."""
    value = ""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, attached = word.partition("=")
        if name.replace("_", "-") == flag:
            value = attached if equals else following
    return value


def permission_in(words: Sequence[str], algorithm: str = "") -> Permission:
    """What a command line says itself about the code that it needs; `algorithm` is the module that it names."""
    words = list(spelled_out(words))
    given = {name: value_of("--" + name.replace("_", "-"), words) for name in (*TRAINED, "env_kwargs")}
    return Permission({name: text for name, text in (given | {"algorithm": algorithm}).items() if text}, TRUST in words)
