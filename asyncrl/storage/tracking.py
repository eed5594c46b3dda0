"""Where a run's numbers go beside its own records: TensorBoard always, Weights & Biases and MLflow when asked to.

Weights & Biases and MLflow are used through their own packages, imported only when asked for. Their
own environment variables configure them (WANDB_ENTITY, WANDB_MODE, MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from asyncrl.core.errors import UsageError
from asyncrl.storage.backlog import Backlog
from asyncrl.storage.files import read_json, write_json

TRACKERS = ("wandb", "mlflow")
FILE = "tracking.json"
"""In the run's folder: each tracker's id of the run, for when it is resumed."""


class Tracker(Protocol):
    """Takes the numbers of a run while it trains."""

    def hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """The settings of the run, once, and which tags are its scores."""
        ...

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """One number for each tag at a step."""
        ...

    def text(self, tag: str, text: str, step: int = 0) -> None:
        """A text in Markdown."""
        ...

    def close(self) -> None:
        """The run is over; closing twice is harmless."""
        ...


def require(names: Sequence[str]) -> None:
    """Raise UsageError for an unknown tracker, or one whose package is missing."""
    for name in names:
        if name not in TRACKERS:
            raise UsageError(f"--track takes {' or '.join(TRACKERS)}, got {name!r}")
        if importlib.util.find_spec(name) is None:
            raise UsageError(f'--track {name} needs its package: pip install "asyncrl[{name}]"')


def make_trackers(names: Sequence[str], project: str, title: str, folder: Path) -> list[Careful]:
    """The trackers of those names, for the run in `folder`; `title` is what people see.

    Raises UsageError if one of them cannot begin, by then before anything has been trained.
    """
    known = _known(folder)
    made: list[Careful] = []
    for name in names:
        try:
            tracker = (Wandb if name == "wandb" else Mlflow)(project, title, folder, known.get(name))
        except Exception as error:
            for one in made:
                one.close()
            raise UsageError(f"--track {name} failed: {type(error).__name__}: {error}") from error
        known[name] = tracker.key
        made.append(Careful(name, tracker))
    if made:
        write_json(folder / FILE, known)
    return made


def _known(folder: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        return dict(read_json(folder / FILE))
    return {}


class Wandb:
    """Weights & Biases. Its files lie in the run's folder."""

    def __init__(self, project: str, title: str, folder: Path, key: str | None) -> None:
        import wandb

        self._run = wandb.init(
            project=project, name=title, dir=str(folder), id=key, resume="allow" if key else None, reinit="create_new"
        )
        self.key: str = self._run.id
        # Evaluations arrive later than the steps that they belong to, and wandb's own step only grows.
        self._run.define_metric("steps", hidden=True)
        self._run.define_metric("*", step_metric="steps")

    def hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """The run's config; its summary has the best of each metric."""
        self._run.config.update(dict(settings), allow_val_change=True)
        for tag in metrics:
            self._run.define_metric(tag, step_metric="steps", summary="max")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """A row of its history."""
        self._run.log({**values, "steps": step})

    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Nothing: what the texts say is in the config."""

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


class Mlflow:
    """MLflow, by its client: nothing of the program's own use of it is touched."""

    def __init__(self, project: str, title: str, folder: Path, key: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric, self._param = Metric, Param
        self._client = MlflowClient()
        if key is None:
            found = self._client.get_experiment_by_name(project)
            experiment = found.experiment_id if found else self._client.create_experiment(project)
            key = self._client.create_run(experiment, run_name=title).info.run_id
        self.key: str = key
        self._closed = False

    def hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """The run's parameters. They cannot be changed: a resumed run keeps the first ones."""
        known = self._client.get_run(self.key).data.params
        new = [self._param(name, str(value)) for name, value in settings.items() if name not in known]
        self._client.log_batch(self.key, params=new)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Its metrics."""
        now = int(1000 * time.time())
        self._client.log_batch(self.key, metrics=[self._metric(tag, value, now, step) for tag, value in values.items()])

    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Nothing: what the texts say is in the parameters."""

    def close(self) -> None:
        """Say that it has ended."""
        if not self._closed:
            self._closed = True
            self._client.set_terminated(self.key)


class Careful:
    """A tracker whose failures stop no run: failed calls are repeated later, in their order."""

    def __init__(self, name: str, inner: Tracker) -> None:
        self.name = name
        self.backlog = Backlog[Callable[[], None]](lambda call: call(), remote=True)
        self._inner = inner

    def hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """As the tracker's."""
        self.backlog.put(partial(self._inner.hparams, settings, metrics))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """As the tracker's."""
        self.backlog.put(partial(self._inner.scalars, values, step))

    def text(self, tag: str, text: str, step: int = 0) -> None:
        """As the tracker's."""
        self.backlog.put(partial(self._inner.text, tag, text, step))

    def close(self) -> None:
        """As the tracker's, after a last try of what is left."""
        self.backlog.insist()
        with contextlib.suppress(Exception):
            self._inner.close()
