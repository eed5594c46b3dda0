"""Weights & Biases and MLflow, where a run's numbers go as well when asked to, through their own packages.

Their own environment variables configure them (WANDB_ENTITY, WANDB_MODE, MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from asyncrl.core.errors import UsageError
from asyncrl.core.extras import to_install
from asyncrl.storage.files import TRIES, Backlog, read_facts, write_json

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 600.0
"""Pause after the first failure of a call, doubled after each further one, and the longest pause."""
FILE = "tracking.json"
"""In the run's folder: each tracker's id of the run, for when it is resumed."""


class Tracker(Backlog[Callable[[], None]]):
    """A run at a tracker. Its failures stop no run: failed calls are repeated later, in their order.

    It is reached over a network, through code of others: every Exception is a failure, and a call that failed TRIES
    times is given up, since it may be that call which is refused.
    """

    failures = Exception
    key: str
    """The tracker's own id of the run."""

    def __init__(self, project: str, title: str, folder: Path, key: str | None) -> None:
        """Begin a run there, or go on with that of the `key`; `title` is what people see."""
        super().__init__(lambda call: call())
        self._due = 0.0
        self._tries = 0
        """Of the call that is next."""

    def hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Send the settings of the run, once, and which tags are its scores."""
        self.put(partial(self._hparams, settings, metrics))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Send one number for each tag at a step."""
        self.put(partial(self._scalars, values, step))

    def close(self) -> None:
        """Say that the run is over, after a last try of what is left; closing twice is harmless."""
        self._due = 0.0
        self._retry()
        with contextlib.suppress(Exception):
            self._close()

    def _retry(self) -> None:
        if time.monotonic() >= self._due:
            super()._retry()

    def _fail(self, error: Exception) -> None:
        super()._fail(error)
        self._due = time.monotonic() + min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2 ** (self._failed - 1))
        self._tries = 1 if self._failed == 1 else self._tries + 1  # the first failure after a success, or a further one
        if self._tries >= TRIES:
            self._give_up()

    def _give_up(self) -> None:
        super()._give_up()
        self._tries = 0

    def _hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        raise NotImplementedError

    def _scalars(self, values: Mapping[str, float], step: int) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class Wandb(Tracker):
    """Weights & Biases. Its files lie in the run's folder."""

    def __init__(self, project: str, title: str, folder: Path, key: str | None) -> None:
        import wandb

        super().__init__(project, title, folder, key)
        self._run = wandb.init(
            project=project, name=title, dir=str(folder), id=key, resume="allow" if key else None, reinit="create_new"
        )
        self.key = self._run.id
        # Evaluations arrive later than the steps that they belong to, and wandb's own step only grows.
        self._run.define_metric("steps", hidden=True)
        self._run.define_metric("*", step_metric="steps")

    def _hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        self._run.config.update(dict(settings), allow_val_change=True)
        for tag in metrics:
            self._run.define_metric(tag, step_metric="steps", summary="max")

    def _scalars(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "steps": step})

    def _close(self) -> None:
        self._run.finish()


class Mlflow(Tracker):
    """MLflow, by its client: nothing of the program's own use of it is touched."""

    def __init__(self, project: str, title: str, folder: Path, key: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        super().__init__(project, title, folder, key)
        self._metric, self._param = Metric, Param
        self._client = MlflowClient()
        if key is None:
            found = self._client.get_experiment_by_name(project)
            experiment = found.experiment_id if found else self._client.create_experiment(project)
            key = self._client.create_run(experiment, run_name=title).info.run_id
        self.key = key
        self._closed = False

    def _hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """The run's parameters. They cannot be changed: a resumed run keeps the first ones."""
        known = self._client.get_run(self.key).data.params
        new = [self._param(name, str(value)) for name, value in settings.items() if name not in known]
        self._client.log_batch(self.key, params=new)

    def _scalars(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self.key, metrics=[self._metric(tag, value, now, step) for tag, value in values.items()])

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._client.set_terminated(self.key)


TRACKERS: dict[str, type[Tracker]] = {"wandb": Wandb, "mlflow": Mlflow}


def require(names: Sequence[str]) -> None:
    """Raise UsageError for an unknown tracker, or one whose package is missing."""
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"--track takes {' or '.join(TRACKERS)}, got {name!r}")
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"--track {name} needs its package: {to_install(name)}")


def make_trackers(names: Sequence[str], project: str, title: str, folder: Path) -> dict[str, Tracker]:
    """The trackers of those names, for the run in `folder`; `title` is what people see.

    Raises UsageError if one of them cannot begin, by then before anything has been trained.
    """
    known = read_facts(folder / FILE)
    made: dict[str, Tracker] = {}
    for name in names:
        try:
            made[name] = TRACKERS[name](project, title, folder, known.get(name))
        except Exception as error:
            for one in made.values():
                one.close()
            raise UsageError(f"--track {name} failed: {type(error).__name__}: {error}") from error
    if made:
        write_json(folder / FILE, known | {name: tracker.key for name, tracker in made.items()})
    return made
