"""Everything that becomes HTML goes through these templates, which escape what they are given.

What a template returns is `Markup`, which other templates take as it is. Any other text is escaped, where it is put
into a template as well as where it is added to `Markup`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["Markup", "Parts"]

_environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent.parent), autoescape=True, undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip


class Parts:
    """The macros of a file of templates in this package, as functions. They may use `names`."""

    def __init__(self, file: str, **names: Any) -> None:
        self._macros = _environment.get_template(file, globals=names).module

    def __getattr__(self, macro: str) -> Callable[..., Markup]:
        return cast(Callable[..., Markup], getattr(self._macros, macro))
