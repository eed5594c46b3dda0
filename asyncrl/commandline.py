"""From the words of a command line to a configuration, and from a mistake to one line."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import tyro

from asyncrl.core.errors import UsageError

T = TypeVar("T")


def parse_integer(text: str) -> int:
    """A whole number as people write them: 10000000, 10_000_000 or 1e7. Raises ValueError otherwise."""
    with contextlib.suppress(ValueError):
        return int(text)
    try:
        number = float(text)
        whole = int(number)
    except (ValueError, OverflowError):
        raise ValueError(f"{text} is not a whole number") from None
    if whole != number:
        raise ValueError(f"{text} is not a whole number")
    return whole


def _integer_rule(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: parse_integer(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


_registry = tyro.constructors.ConstructorRegistry()
_registry.primitive_rule(_integer_rule)


def parse(cls: type[T], words: Sequence[str], program: str, default: T | None = None) -> T:
    """The configuration that `words` describe, other fields as in `default`.

    Raises UsageError with one line for words it does not understand, and SystemExit(0) after --help.
    """
    errors = io.StringIO()
    options: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(errors), _wide_output(words):
            return cast(T, tyro.cli(cls, args=list(words), prog=program, registry=_registry, **options))
    except SystemExit as end:
        if end.code in (0, None):
            raise
        raise UsageError(_one_line(errors.getvalue())) from None


@contextlib.contextmanager
def _wide_output(words: Sequence[str]) -> Any:
    """Let an error message stand on one line however narrow the terminal is; help keeps the terminal's width."""
    if {"-h", "--help"} & set(words):
        yield
        return
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "1000"
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


def _one_line(box: str) -> str:
    """The message in tyro's box, without the box; a suggestion is kept, the pointer to the help is not."""
    sections: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip("│╭╰╮╯─ \t")
        if "│" not in line:
            continue
        if text:
            sections[-1].append(text)
        else:
            sections.append([])
    message = " ".join(sections[0]) or box.strip()
    for section in sections[1:]:
        if section and section[0].startswith("Perhaps you meant"):
            flags = [line.split()[0] for line in section[1:] if line.startswith("--")]
            message += f"; perhaps you meant {' or '.join(flags)}"
    return message


def run_command(program: str, command: Callable[[], int]) -> int:
    """Run a command; a mistake of the user becomes one line on stderr and exit code 2, Ctrl-C exit code 130."""
    try:
        return command()
    except UsageError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
