"""Asynchronous reinforcement learning on all cores of a machine (Mnih et al. 2016).

`asyncrl.train`, `asyncrl.training` and `asyncrl.load` are the Python API (docs/python.md); what they need is imported
when they are used.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrl import (  # isort: skip
        a2c, a3c, apex, apex_dpg, gorila, impala, n_step_q, one_step_q, one_step_sarsa, ppo, reinforce, sac,
    )  # fmt: skip
    from asyncrl.algorithm import Algorithm
    from asyncrl.api import train
    from asyncrl.api.background import Training, training
    from asyncrl.api.callbacks import Callback, Episode, Running
    from asyncrl.api.playing import Result
    from asyncrl.api.policy import Policy, load
    from asyncrl.api.runs import Run, RunFailed
    from asyncrl.core.errors import UsageError
    from asyncrl.runtime.evaluator import Evaluation
    from asyncrl.runtime.monitor import Summary as Progress

__all__ = [
    "Algorithm", "Callback", "Episode", "Evaluation", "Policy", "Progress", "Result", "Run", "RunFailed", "Running",
    "Training", "UsageError", "a2c", "a3c", "apex", "apex_dpg", "gorila", "impala", "load", "n_step_q", "one_step_q",
    "one_step_sarsa", "ppo", "reinforce", "sac", "train", "training",
]  # fmt: skip


def _is_the_command() -> bool:
    """Whether this is `python -m asyncrl.a3c` or the like, about to import the module that it names.

    While the packages above that module are imported, argv is "-m" and the words that follow its name.
    """
    return sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m").split(".")[0] == __name__


if _is_the_command():
    # Before numpy and torch are loaded, which read it then; whatever a launcher has set.
    import_module("asyncrl.runtime.threads").request_one_thread()
    # Nor is every rank to say in C++ that a host has no name, or who has hung up: one line of ours says who is lost.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
if _is_the_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # It still has torch to import: a Ctrl-C now should end it without a traceback from in there. The command itself
    # takes over the signal when it begins. A program that only imports this package keeps its own handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

__version__ = "0.1.0"


_MODULES = {
    "Algorithm": "algorithm", "Callback": "api.callbacks", "Episode": "api.callbacks",
    "Evaluation": "runtime.evaluator", "Policy": "api.policy", "Progress": "runtime.monitor",
    "Result": "api.playing", "Run": "api.runs", "RunFailed": "api.runs", "Running": "api.callbacks",
    "Training": "api.background", "UsageError": "core.errors", "load": "api.policy", "train": "api",
    "training": "api.background",
}  # fmt: skip
"""Where the public names are, other than those of the algorithms' modules."""


def __getattr__(name: str) -> Any:
    """Import what is public when it is asked for first: torch takes a second."""
    if name not in __all__:
        raise AttributeError(f"module 'asyncrl' has no attribute {name!r}")
    if name not in _MODULES:
        return import_module(f"asyncrl.{name}")
    return getattr(import_module(f"asyncrl.{_MODULES[name]}"), "Summary" if name == "Progress" else name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
