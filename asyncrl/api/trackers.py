"""Trackers of a run (--track)."""

from __future__ import annotations

import shutil

from asyncrl.catalog import short
from asyncrl.core.errors import UsageError
from asyncrl.runtime.run import Run
from asyncrl.storage.tracking import Tracker, make_trackers


def trackers_of(run: Run) -> dict[str, Tracker]:
    """Those of --track. Raises UsageError if one cannot begin, and leaves no folder of a new run."""
    config, path = run.spec.config, run.spec.folder.path
    try:
        title = f"{short(run.spec.algorithm)} {config.env_id} {path.name}"
        return make_trackers(config.track, config.track_project, title, path)
    except UsageError:
        if not config.is_resumed:
            shutil.rmtree(path)
        raise
