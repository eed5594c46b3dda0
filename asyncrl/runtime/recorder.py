"""Where a run's numbers go: supervisor.jsonl, status.json, TensorBoard and trackers. None of them ends a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncrl.storage.files import Backlog, write_json
from asyncrl.storage.records import RecordWriter
from asyncrl.storage.run_folder import STATUS, RunFolder

if TYPE_CHECKING:
    from asyncrl.storage.tensorboard import TensorBoardWriter
    from asyncrl.storage.tracking import Tracker

SCORES = ("eval/mean_reward", "rollout/ep_rew_mean")
BOOKKEEPING = ("runs_dir", "run_name", "resume", "quiet", "track", "track_project")
"""Settings that say nothing of what is learnt and how."""


class Recorder:
    """Writes what a run reports. What cannot be written now is tried again, counted, and reported once."""

    def __init__(
        self, folder: RunFolder, resumed_at: int | None, trackers: Mapping[str, Tracker], say: Callable[[str], None]
    ) -> None:
        """`resumed_at` are the steps of a resumed run; `say` shows a line to people."""
        from asyncrl.storage.tensorboard import TensorBoardWriter  # a slow import, which not every command needs

        self.rows = RecordWriter(folder.supervisor_file)
        self._board = TensorBoardWriter(folder.tensorboard, resumed_at)
        self._trackers: list[TensorBoardWriter | Tracker] = [self._board, *trackers.values()]
        self.status = Backlog[dict[str, Any]](partial(write_json, folder.status_file), most=1)
        self._backlogs: dict[str, Backlog[Any]] = {
            "records": self.rows, "TensorBoard": self._board, STATUS: self.status, **trackers
        }  # fmt: skip
        self._say = say
        self._told: set[str] = set()
        """Those of whose trouble a line was said."""

    def settings(self, algorithm: str, settings: Mapping[str, Any], exploration: Mapping[int, str], steps: int) -> None:
        """Tell what was chosen, and how each worker explores."""
        self._board.text("config", _table("setting", settings), steps)
        self._board.text("async/exploration", _table("exploration", exploration), steps)
        learnt = {name: value for name, value in settings.items() if name not in BOOKKEEPING}
        for tracker in self._trackers:
            tracker.hparams({"algorithm": algorithm} | learnt, SCORES)

    def scalars(self, values: Mapping[str, float], steps: int) -> None:
        """Tell one number for each tag."""
        for tracker in self._trackers:
            tracker.scalars(values, steps)

    def tell_trouble(self) -> None:
        """Say, once of each, what cannot be written."""
        new = [name for name, backlog in self._backlogs.items() if backlog.trouble and name not in self._told]
        if new:
            self._told.update(new)
            self._say(
                f"{' and '.join(new)} cannot be written now ({self._backlogs[new[0]].trouble}); the run continues "
                "and tries again"
            )

    def unwritten(self, by_others: int = 0) -> dict[str, int]:
        """How many rows, events and calls are missing so far; `by_others`: rows of other processes."""
        missing = {name: backlog.missing for name, backlog in self._backlogs.items()}
        missing["records"] += by_others
        del missing[STATUS]  # the newest one says all that the ones before it said
        return missing

    def trouble(self, unwritten: Mapping[str, int]) -> str:
        """Why something is missing, as far as this process knows."""
        causes = [self._backlogs[name].trouble for name, count in unwritten.items() if count]
        return next(filter(None, causes), "")

    def close(self) -> None:
        """Write what is left, but for the status, and close the files."""
        self.rows.close()
        for tracker in self._trackers:
            tracker.close()


def _table(what: str, rows: Mapping[Any, object]) -> str:
    """Names, or numbers of workers, and what is said of each, in Markdown."""
    return f"| | {what} |\n|---|---|\n" + "\n".join(f"| {name} | {text} |" for name, text in rows.items())
