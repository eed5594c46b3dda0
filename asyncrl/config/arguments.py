"""Arguments of environments as words, `key=value`: on a command line, in config.json, and for values of a program."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from asyncrl.core.errors import UsageError
from asyncrl.core.named import Handed, hand_over
from asyncrl.core.user_code import is_name

_NO_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
"""What reading and writing literals raises."""


def parse_argument(word: str) -> tuple[str, Any]:
    """Key and value of a word: a Python literal if it is one (also inf and nan), else text. Raises UsageError.

    A value that the program has handed over is a `Handed`.
    """
    key, equals, text = word.partition("=")
    if not equals or not key.isidentifier():
        raise UsageError(f"--env-kwargs takes key=value, got {word!r}")
    if text.startswith("@__main__:") and is_name(text):
        return key, Handed(text[1:])
    try:
        return key, _read(text)
    except _NO_LITERAL:
        return key, text


def write_argument(key: Any, value: Any, hands_over: bool = False) -> str:
    """The word that `parse_argument` reads back as this value; scalars of numpy become Python's.

    What is no literal is handed over to the run's processes, or else raises UsageError.
    """
    if not isinstance(key, str) or not key.isidentifier():
        raise UsageError(f"env_kwargs takes argument names as keys, got {key!r}")
    try:
        text = repr(_plain(value))
        _read(text)  # too deep for the parser?
        return f"{key}={text}"
    except _NO_LITERAL:
        if not hands_over:
            raise UsageError(f"env_kwargs {key} is a {type(value).__name__}, which is not a Python literal") from None
    try:
        return f"{key}={hand_over(value)}"
    except UsageError as error:
        raise UsageError(f"env_kwargs {key}: {error}") from error


def _read(text: str) -> Any:
    """A literal. Raises one of _NO_LITERAL if it is none."""
    tree = ast.parse(text.lstrip(" \t"), mode="eval")
    return ast.literal_eval(_NotFinite().visit(tree))


class _NotFinite(ast.NodeTransformer):
    """Python has no literals for these two."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace their names by numbers."""
        return ast.copy_location(ast.Constant(float(node.id)), node) if node.id in ("inf", "nan") else node


def _plain(value: Any) -> Any:
    """The value without numpy's scalars. Raises TypeError for what is no literal."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if type(value) in (list, tuple, set):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {_plain(key): _plain(item) for key, item in value.items()}
    raise TypeError(type(value).__name__)
