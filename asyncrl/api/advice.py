"""What to do next with a run: commands for a shell, calls for a program. A test runs each of them as it is printed.

And what a run says of itself in a program.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from typing import Literal

from asyncrl.api.resume import is_finished
from asyncrl.catalog import name_of
from asyncrl.core.errors import UsageError
from asyncrl.core.output import Typed
from asyncrl.storage import checkpoints
from asyncrl.storage.files import read_facts
from asyncrl.storage.run_folder import GOING, RunFolder, read_status
from asyncrl.storage.stored import read_stored

Language = Literal["shell", "python"]


def at_first(path: Path, language: Language) -> list[Typed]:
    """The lines that show the curves of a run which begins; none in a program."""
    return [Typed(f"watch its curves: tensorboard --logdir {as_typed(path, language)}")] if language == "shell" else []


def what_next(path: Path, language: Language) -> list[Typed]:
    """The lines that resume a run, evaluate it and show its agent; none if it has no checkpoint."""
    resume, run = to_resume(path, language), as_typed(path, language)
    if not resume:
        return []
    scored = checkpoints.find(RunFolder(path).checkpoints, "best")
    if language == "python":
        which = "" if scored else 'checkpoint="newest"'
        return [
            Typed(f"resume it:   {resume}"),
            Typed(f"evaluate it: asyncrl.Run.open({run}).evaluate({which})"),
            Typed(f"its policy:  asyncrl.load({', '.join(filter(None, (run, which)))})"),
        ]
    which = "" if scored else " --checkpoint newest"
    return [
        Typed(f"resume it:   {resume}"),
        Typed(f"evaluate it: python -m asyncrl evaluate {run}{which}"),
        Typed(f"watch it:    python -m asyncrl watch {run}{which}"),
    ]


def to_resume(path: Path, language: Language) -> str:
    """What continues a run; "" if it has no checkpoint."""
    folder, run = RunFolder(path), as_typed(path, language)
    if not checkpoints.find(folder.checkpoints):
        return ""
    stored = read_stored(folder.config_file)
    total = stored.config["total_steps"]
    # A run that has made all its steps needs more of them.
    more = is_finished(path) and read_status(path)["steps"] >= total
    if language == "python":
        return f"asyncrl.train(resume={run}{f', total_steps={2 * total:_}' if more else ''})"
    name = shlex.quote(name_of(stored.algorithm))
    return f"python -m asyncrl train {name} --resume {run}{f' --total-steps {2 * total}' if more else ''}"


def run_exists(path: Path) -> UsageError:
    """The mistake of giving a new run the name of one that is there."""

    def told(language: Language, auto: str, name: str) -> str:
        if read_status(path).get("state") in GOING:
            remedy = "it is in progress:"
        elif resume := to_resume(path, language):
            remedy = f"continue it with {resume}, or"
        else:
            remedy = f"it has no checkpoint: begin it again with {auto}, or"
        return f"{path} exists already; {remedy} choose another {name}"

    return UsageError(told("python", 'resume="auto"', "run_name"), told("shell", "--resume auto", "--run-name"))


def as_typed(path: Path, language: Language) -> str:
    """A path as one would type it: relative to the current folder if it is in there, and quoted where necessary."""
    near = os.path.relpath(path)
    typed = str(path) if near.startswith("..") else near
    if language == "python":
        return repr(typed) if {'"', "\\"} & {*typed} else f'"{typed}"'
    return shlex.quote(typed)


def describe_run(path: Path, state: str, steps: int, best_score: float | None) -> str:
    """Algorithm, environment, steps, best score and folder, as far as the folder still exists."""
    what = "a folder that cannot be read"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, UsageError):  # a repr never raises
        stored = read_facts(RunFolder(path).config_file)
        what = f"{name_of(stored['algorithm'])} on {stored['config']['env_id']}"
    told = f"{state} after {steps:,} steps, {best_in_words(best_score)}"
    return f"<Run of {what}: {told}, in {as_typed(path, 'shell')}>"


def best_in_words(score: float | None) -> str:
    """The mean of a best evaluation, if there was one."""
    return "not evaluated" if score is None else f"best score {score:.1f}"
