"""The package's own pages, and how a page is found by its name. There is no other list and no registry.

A user's own page is a module like any other; `asyncrl.runtime.protocols.Page` says what it needs.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.user_code import HANG_SECONDS, user_code, watched

PAGES = {
    "a3c": "asynchronous advantage actor-critic (Mnih et al. 2016, Algorithm S3)",
    "one_step_q": "asynchronous one-step Q-learning (Algorithm 1)",
    "one_step_sarsa": "asynchronous one-step Sarsa",
    "n_step_q": "asynchronous n-step Q-learning (Algorithm S2)",
    "a2c": "synchronous advantage actor-critic (OpenAI Baselines 2017)",
    "ppo": "proximal policy optimisation (Schulman et al. 2017)",
    "impala": "free-running actors, one learner, V-trace (Espeholt et al. 2018)",
    "reinforce": "policy gradient of whole episodes (Williams 1992)",
    "gorila": "DQN with many actors, learners and a replay memory (Nair et al. 2015)",
    "apex": "one learner, a replay memory sampled by priority (Horgan et al. 2018)",
}
GRADIENT_PAGES = ("a3c", "one_step_q", "one_step_sarsa", "n_step_q")
"""The methods that the paper compares: their workers learn themselves."""

PARTS = (
    "Config", "preset", "make_network", "make_agent", "HAS_TARGET", "TAKES_CONTINUOUS", "PRIVATE_COPY", "LOOKS_AHEAD",
    "EXPERIENCE", "EXTRAS",
)  # fmt: skip
"""What every page has."""
EXPERIENCE = ("gradient", "in step", "queue", "replay")
"""Where its rollouts may go."""


def module_of(name: str) -> str:
    """The module of a page: "a3c" is asyncrl.a3c, any other name is itself a module, such as my_package.my_page."""
    return f"asyncrl.{name}" if name in PAGES else name


def name_of(module: str) -> str:
    """The name by which commands find a page: for the package's own pages without the package."""
    name = module.removeprefix("asyncrl.")
    return name if name in PAGES else module


def short(module: str) -> str:
    """The page's name in folders and titles: the last part of its module."""
    return module.rpartition(".")[2]


def command_of(module: str) -> str:
    """How its command calls itself: `asyncrl a3c`, `asyncrl train my_package.my_page`."""
    return f"asyncrl {name_of(module)}" if name_of(module) in PAGES else f"asyncrl train {module}"


def load(module: str) -> ModuleType:
    """Import a page by its module's name. Raises UsageError, which says what is missing, if there is no such page.

    A module whose source does not mention this package cannot be a page: neither it nor its parents are imported.
    """
    if name_of(module) not in PAGES:
        _require_plausible(module)
    # Nobody can have given a limit of his own before his page is there, which reads the settings.
    with (
        watched(HANG_SECONDS),
        user_code(
            f"the import of {module}", lambda error: UsageError(f"{module}: importing it failed: {one_line(error)}")
        ),
    ):
        page = importlib.import_module(module)
    missing = [part for part in PARTS if not hasattr(page, part)]
    if missing:
        raise UsageError(f"{module} is no page: it lacks {', '.join(missing)}")
    if page.EXPERIENCE not in EXPERIENCE:
        raise UsageError(f"{module}: EXPERIENCE is {', '.join(map(repr, EXPERIENCE))}, not {page.EXPERIENCE!r}")
    return page


def _require_plausible(module: str) -> None:
    """Raise UsageError unless there is a module of that name which might be a page."""
    spec = _find(module)
    if spec is None:
        raise UsageError(
            f"there is no page {module!r}: the package's own are {', '.join(PAGES)}; your own is given by its module, "
            "which must be installed or on PYTHONPATH"
        )
    source = getattr(spec.loader, "get_source", lambda _: None)(module)
    if module not in sys.modules and "asyncrl" not in (source or ""):
        raise UsageError(f"{module} is no page: it uses nothing of asyncrl")


def _find(module: str) -> ModuleSpec | None:
    """Like importlib.util.find_spec, but without importing the module's parents."""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    loaded = sys.modules.get(module)
    if loaded is not None and loaded.__spec__ is not None:
        return loaded.__spec__
    spec, places = None, None
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        found = (finder.find_spec(name, places) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is None or (depth < len(parts) and spec.submodule_search_locations is None):
            return None
        places = spec.submodule_search_locations
    return spec
