"""What a run and a policy print about themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.api.advice import as_typed
from asyncrl.catalog import name_of
from asyncrl.core.errors import UsageError
from asyncrl.storage.run_folder import RunFolder, read_status

if TYPE_CHECKING:
    from asyncrl.api.playing import Loaded


def describe_run(path: Path, state: str, best_score: float | None) -> str:
    """Algorithm, environment, steps, best score and folder, as far as the folder still exists."""
    what, steps = "a folder that cannot be read", ""
    try:
        stored: Any = json.loads(RunFolder(path).config_file.read_bytes())
        what = f"{name_of(stored['algorithm'])} on {stored['config']['env_id']}"
        steps = f" after {read_status(path)['steps']:,} steps"
    except (OSError, ValueError, LookupError, TypeError, UsageError):
        pass  # a repr never raises
    return f"<Run of {what}: {state}{steps}, {_score(best_score)}, in {as_typed(path, 'shell')}>"


def describe_policy(loaded: Loaded) -> str:
    """Algorithm, environment, how it acts, checkpoint, best score and folder."""
    spec, checkpoint = loaded.run.spec, loaded.checkpoint
    policy = spec.config.evaluation_policy
    named = f"{loaded.name} checkpoint" if loaded.name in ("best", "newest") else loaded.name
    known = f"{checkpoint.steps:,} steps, {_score(checkpoint.facts.get('best_score'))}"
    what = f"{name_of(spec.algorithm)} on {spec.environment.env_id}"
    return f"<Policy of {what}: {policy}, {named} after {known}, in {as_typed(loaded.path, 'shell')}>"


def _score(best: float | None) -> str:
    return "not evaluated" if best is None else f"best score {best:.1f}"
