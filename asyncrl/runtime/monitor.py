"""The supervisor's bookkeeping: reads what others wrote, decides when a run is over, writes what people read."""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from asyncrl.core.schedules import crossed
from asyncrl.runtime.protocols import EVALUATOR, LEARNER, Counts, in_records, in_theta, name_of
from asyncrl.runtime.recorder import Recorder
from asyncrl.runtime.run import Run
from asyncrl.runtime.snapshots import beside_theta, take_checkpoint
from asyncrl.runtime.telemetry import summed_up, time_shares
from asyncrl.storage import checkpoints
from asyncrl.storage.holding import FolderLost
from asyncrl.storage.records import RecordReader, is_score
from asyncrl.storage.run_folder import STATUS, started_at

if TYPE_CHECKING:
    from asyncrl.runtime.evaluator import Evaluation
    from asyncrl.storage.tracking import Tracker

TIME_IS_OVER = "max_seconds reached"
"""Reason of an end of the command, not of the run: the next command may go on."""
INTERVAL_SECONDS = 2.0
"""Time between two rows of supervisor.jsonl, TensorBoard and status.json."""
EPISODES_AVERAGED = 100
COUNTED = {"steps": "worker_steps", **{name: name for name in Counts._fields}}
"""Counters of a worker in shared memory: their names in `unrecorded`, and their keys in the worker's rows."""


@dataclass
class Summary:
    """What is known about a run right now: for the terminal, and under the same names in status.json."""

    steps: int = 0
    total_steps: int = 0
    frames_per_step: int = 1
    seconds: float = 0.0
    steps_per_second: float = 0.0
    seconds_to_limit: float | None = None
    """To --max-seconds; None without one."""
    updates: int = 0
    updates_lost: int = 0
    dropped_gradients: int = 0
    stale_gradients: int = 0
    outlier_gradients: int = 0
    score_mean: float | None = None
    """Mean raw return of the last training episodes."""
    length_mean: float | None = None
    evaluation: float | None = None
    best_score: float | None = None
    remark: str = ""
    """A remark about the newest evaluation."""
    staleness_mean: float | None = 0.0
    """None for ranks whose gradients are all of the newest theta."""
    learning_rate: float = 0.0
    worker_silence: list[float] = field(default_factory=list)
    """Seconds since each worker last pushed an update."""
    worker_restarts: list[int] = field(default_factory=list)
    """How often each worker was replaced since the run began or was resumed."""
    workers_gone: list[int] = field(default_factory=list)
    """Workers that are lost for good."""
    evaluator_restarts: int = 0
    learner_restarts: int = 0
    unrecorded: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    """What lost workers had counted since the run began or was resumed, but not recorded."""
    unwritten: dict[str, int] = field(default_factory=dict)
    """What could not be written so far, by file or tracker: rows, events or calls."""
    trouble: str = ""
    """Why, as far as this process knows."""
    ended: bool = False
    """The run is over; `steps_per_second` is then its mean."""

    @property
    def seconds_left(self) -> float | None:
        """Expected time to total_steps at the current speed, or to the time limit if that comes first."""
        if self.steps_per_second <= 0:
            return self.seconds_to_limit
        left = max(0, self.total_steps - self.steps) / self.steps_per_second
        return left if self.seconds_to_limit is None else min(left, self.seconds_to_limit)


class Rate:
    """How fast a count grows: from its last growth to this one, so that what is known late does not count as fast."""

    def __init__(self, count: int) -> None:
        self._count, self._grew = count, time.monotonic()

    def of(self, count: int) -> float:
        """Its growth per second; 0 if it has not grown since the last call."""
        now, growth = time.monotonic(), count - self._count
        if growth == 0:
            return 0.0
        elapsed, self._count, self._grew = max(1e-9, now - self._grew), count, now
        return max(0, growth) / elapsed


@dataclass(frozen=True)
class Listener:
    """What is called while a run goes on; by default nothing happens."""

    begun: Callable[[Monitor], object] = lambda monitor: None
    """When the workers are at work."""
    evaluated: Callable[[Evaluation], object] = lambda evaluation: None
    """With each evaluation."""
    looked: Callable[[Summary], object] = lambda summary: None
    """With a copy of the summary, each time that it has been renewed."""
    played: Callable[[int, float, int], object] = lambda worker, score, length: None
    """With each training episode."""


NOBODY = Listener()


class View:
    """Shows a run to people; this one shows nothing."""

    def say(self, line: str) -> None:
        """Print a line that stays."""

    def count(self, ready: int, workers: int) -> None:
        """Show how many workers are ready, before the run begins."""

    def show(self, summary: Summary) -> None:
        """Show the present state."""

    def close(self, summary: Summary) -> None:
        """Show the last state, and leave the terminal as it was."""


class Monitor:
    """Follows one run. `look` is called often and does little; every two seconds it writes.

    Only a checkpoint that cannot be written ends the run: the rest is bookkeeping, which is tried again, counted and
    reported once.
    """

    def __init__(
        self,
        run: Run,
        listener: Listener = NOBODY,
        trackers: Mapping[str, Tracker] = MappingProxyType({}),
        lost: Callable[[], str | None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`lost` tells why the run's folder is not this process's any more; `say` shows a line to people."""
        spec, clock, folder = run.spec, run.handles.clock, run.spec.folder
        config = spec.config
        self.run = run
        self.lost = lost
        self.exact: Callable[[], tuple[Any, dict[str, Tensor]]] = no_state
        """Returns the state of all workers for a checkpoint, as data and tensors, if the backend can."""
        self._listener = listener
        self._in_step = run.handles.agreement is not None
        self.summary = Summary(
            total_steps=config.total_steps,
            frames_per_step=spec.environment.frames_per_step,
            staleness_mean=None if self._in_step else 0.0,
            worker_restarts=[0] * config.all_workers,
        )
        self._count()
        everyone = [*range(config.all_workers), *clock.learners]
        self._readers = {who: RecordReader(folder.records_file(name_of(who))) for who in everyone}
        hosts = config.most_hosts if config.backend == "ray" else 0
        self._exchanges = [RecordReader(folder.exchange_file(host)) for host in range(hosts)]
        self._evaluator = RecordReader(folder.evaluator_file)
        # What earlier parts of the run wrote has been reported then; only their best score still counts.
        for reader in (*self._readers.values(), *self._exchanges):
            reader.new()
        means = [row["mean"] for row in self._evaluator.new() if is_score(row.get("mean"))]
        self.summary.best_score = max(means, default=None)
        self._recorded = {who: dict.fromkeys(COUNTED, 0) for who in self._readers}
        """What the rows of each add up to in this part of the run, with what was found to be missing in them."""
        self._rows: list[dict[str, Any]] = []
        """Rows of workers and learner that have been read, for the supervisor's next one."""
        self._scores: deque[float] = deque(maxlen=EPISODES_AVERAGED)
        self._lengths: deque[float] = deque(maxlen=EPISODES_AVERAGED)
        self._episodes: list[tuple[float, float, float]] = []
        """Of the newest rows: when in them each ended, its score and its length."""
        self._recorder = Recorder(folder, clock.steps if spec.part else None, trackers, say)
        self._started = (started_at(folder.path) if folder.status_file.exists() else datetime.now(UTC)).isoformat()
        self._looked_at = time.monotonic()
        self._step_rate, self._update_rate = Rate(clock.steps), Rate(self.summary.updates)
        self._saved = (clock.steps, self.summary.updates) if spec.part else None
        """Steps and updates of the newest checkpoint."""
        self._checkpoint_checked = clock.steps
        self._save_due = self._score_reached = False

    def begin(self) -> list[str]:
        """The workers are ready: write down what was chosen, and return lines: how they explore, what is amiss."""
        ready = [row for row in self._read_all() if row.get("event") == "ready" and "exploration" in row]
        exploration = {row["worker"]: in_words(row["exploration"]) for row in ready}
        spec, steps = self.run.spec, self.run.handles.clock.steps
        self._recorder.settings(spec.algorithm, vars(spec.config), exploration, steps)
        explores = {row["worker"]: row["exploration"] for row in ready}
        self._recorder.rows.write(
            {"event": "resumed" if spec.part else "started", "steps": steps, "exploration": explores}
        )
        self._save_due = True  # a run that is killed before its first interval can be resumed too
        self._save_if_due()
        self.write_status("running")
        self._recorder.tell_trouble()
        self._looked_at = time.monotonic()
        # Speeds are of the training, not of the start before it.
        self._step_rate, self._update_rate = Rate(self.summary.steps), Rate(self.summary.updates)
        self._listener.begun(self)
        counts = Counter(exploration.values())
        lines = ["exploration: " + ", ".join(f"{count} x {words}" for words, count in counts.most_common())]
        if threads := max((row["threads"] for row in ready), default=0):
            lines.append(
                f"the environments of a worker have started {threads} threads besides its own: if those compute, "
                "workers compete for cores; limit the environment's package to one thread"
            )
        return lines

    def look(self, now: bool = False) -> bool:
        """Read, save and decide; True when a new summary has been written. Raises FolderLost and NotSaved."""
        self._save_if_due()
        if not now and time.monotonic() - self._looked_at < INTERVAL_SECONDS:
            return False
        self._see_that_folder_is_there()
        self.look_at_evaluations()
        self._read_all()
        self._write_row()
        self.write_status("running")
        self._recorder.tell_trouble()
        return True

    def _see_that_folder_is_there(self) -> None:
        """Raise FolderLost rather than write into what somebody has deleted or taken over."""
        if (reason := self.lost()) is not None:
            raise FolderLost(reason)

    def note_loss(self, event: str, worker: int, cause: str) -> None:
        """A worker, LEARNER or EVALUATOR died: it is "restarted", "gone" for good, or "lost" at the end of the run.

        Its process must have ended: its counters are compared with its rows, the last of which it never wrote.
        """
        if event == "restarted" and worker == EVALUATOR:
            self.summary.evaluator_restarts += 1
        elif event == "restarted" and worker <= LEARNER:
            self.summary.learner_restarts += 1
        elif event == "restarted":
            self.summary.worker_restarts[worker] += 1
        elif event == "gone" and worker >= 0:
            self.summary.workers_gone.append(worker)
        unrecorded = {} if worker == EVALUATOR else {"unrecorded": self._settle(worker)}
        self.note_event(event, who=in_records(worker), cause=cause, **unrecorded)

    def note_event(self, event: str, **facts: Any) -> None:
        """Write down what happened."""
        clock = self.run.handles.clock
        self._recorder.rows.write({"event": event, **facts, "steps": clock.steps, "seconds": round(clock.seconds, 3)})

    def record(self, values: Mapping[str, float]) -> None:
        """Write down numbers of the program that trains."""
        self._recorder.scalars(values, self.run.handles.clock.steps)
        self.note_event("recorded", values=values)

    def verdict(self) -> str | None:
        """Why the run is over, or None."""
        config, clock = self.run.spec.config, self.run.handles.clock
        if self._score_reached:
            return f"an evaluation reached {config.stop_at_score}"
        if clock.steps >= config.total_steps:
            return "total_steps reached"
        if config.max_seconds and clock.seconds_of_this_part >= config.max_seconds:
            return TIME_IS_OVER
        return None

    def look_at_evaluations(self) -> None:
        """Read new evaluations; remember the best, and whether it was good enough to stop."""
        target = self.run.spec.config.stop_at_score
        for row in self._evaluator.new():
            mean = row.get("mean")
            if mean is None:
                continue
            summary = self.summary
            summary.evaluation = mean
            summary.remark = ""
            if row.get("cut"):
                from asyncrl.runtime.evaluator import cut_in_words

                summary.remark = cut_in_words(row["cut"], row["lengths"])
            summary.best_score = mean if summary.best_score is None else max(summary.best_score, mean)
            if target is not None and mean >= target:
                self._score_reached = True
            self._recorder.scalars(
                {
                    "eval/mean_reward": mean,
                    "eval/mean_ep_length": statistics.fmean(row["lengths"]),
                    "time/evaluator_cpu_share": row["cpu_share"],
                },
                row["steps"],
            )
            self._listener.evaluated(cast("Evaluation", row))

    def _read_all(self) -> list[dict[str, Any]]:
        rows = [row for who in self._readers for row in self._read(who)]
        self._take_episodes()
        return rows

    def _take_episodes(self) -> None:
        """Add new episodes to the means, those of all workers in turn, as far as their order is known."""
        for _, score, length in sorted(self._episodes, key=itemgetter(0)):
            self._scores.append(score)
            self._lengths.append(length)
        self._episodes.clear()

    def _read(self, who: int) -> list[dict[str, Any]]:
        """New rows of a worker or the learner; those that sum something up are kept for the supervisor's next row."""
        rows = self._readers[who].new()
        recorded = self._recorded[who]
        for number, row in enumerate(rows):
            if "time" not in row:
                continue
            self._rows.append(row)
            for name, key in COUNTED.items():
                recorded[name] += row.get(key, 0)
            episodes = row.get("episodes", ())
            for place, (score, length) in enumerate(episodes, 1):
                self._episodes.append((number + place / len(episodes), score, length))
                self._listener.played(who, score, length)
        return rows

    def _settle(self, worker: int) -> dict[str, int]:
        """What a worker whose process has ended counted since the last call, but did not record."""
        self._read(worker)
        clock, store = self.run.handles.clock, self.run.handles.store
        steps = clock.worker_steps()[worker] if worker >= 0 else 0
        counted = {"steps": steps, **store.counts(worker)._asdict()}
        missing = {name: count - self._recorded[worker][name] for name, count in counted.items()}
        self._recorded[worker] = counted
        for name, count in missing.items():
            self.summary.unrecorded[name] += count
        return missing

    def _count(self) -> None:
        """Bring steps, seconds and counts of the summary up to date."""
        clock, store, summary = self.run.handles.clock, self.run.handles.store, self.summary
        summary.steps, summary.seconds, summary.updates_lost = clock.steps, clock.seconds, store.lost
        for name, count in in_theta(store)._asdict().items():
            setattr(summary, name, count)

    def _write_row(self) -> None:
        """Everything since the last look as one row, in supervisor.jsonl and in TensorBoard."""
        rows, self._rows = self._rows, []
        clock, summary, in_step = self.run.handles.clock, self.summary, self._in_step
        self._count()
        self._looked_at = time.monotonic()
        summary.steps_per_second = self._step_rate.of(summary.steps)
        if limit := self.run.spec.config.max_seconds:
            summary.seconds_to_limit = max(0.0, limit - clock.seconds_of_this_part)
        summary.worker_silence = [clock.heartbeat_age(worker) for worker in range(clock.workers)]
        if self._scores:
            summary.score_mean, summary.length_mean = statistics.fmean(self._scores), statistics.fmean(self._lengths)
        sums = summed_up([*rows, *(row for reader in self._exchanges for row in reader.new())])
        if in_step and not sums.get("async/staleness_max"):  # every gradient was of the newest theta
            sums = {tag: value for tag, value in sums.items() if not tag.startswith("async/staleness")}
        if "train/learning_rate" in sums:
            summary.staleness_mean = sums.get("async/staleness_mean")
            summary.learning_rate = sums["train/learning_rate"]
        scalars: dict[str, float | None] = {
            "rollout/ep_rew_mean": summary.score_mean,
            "rollout/ep_len_mean": summary.length_mean,
            "time/fps": summary.steps_per_second,
            "time/frames_per_second": summary.steps_per_second * summary.frames_per_step,
            "time/time_elapsed": summary.seconds,
            "async/updates_per_second": self._update_rate.of(summary.updates),
            **{f"async/{name}": getattr(summary, name) for name in ("updates_lost", *Counts._fields[1:])},
            "async/worker_restarts": None if in_step else sum(summary.worker_restarts),
            "async/workers_gone": None if in_step else len(summary.workers_gone),
            "async/evaluator_restarts": summary.evaluator_restarts,
            "async/learner_restarts": summary.learner_restarts if clock.learners else None,
            **sums,
            **time_shares([row for row in rows if "worker_steps" in row], "async/time_share"),
            **time_shares([row for row in rows if "worker_steps" not in row], "learner/time_share"),
        }
        present = {tag: value for tag, value in scalars.items() if value is not None}
        self._recorder.scalars(present, summary.steps)
        counted = {"steps": summary.steps, "seconds": round(summary.seconds, 3), "updates": summary.updates}
        self._recorder.rows.write(counted | present)
        self._listener.looked(replace(summary))

    def _save_if_due(self) -> None:
        steps = self.run.handles.clock.steps
        self._save_due |= crossed(self._checkpoint_checked, steps, self.run.spec.config.checkpoint_interval_steps)
        self._checkpoint_checked = steps
        if self._save_due:
            self._save_due = not self.save_checkpoint()

    def save_checkpoint(self) -> bool:
        """Save the run as it is, unless just that has been saved. A NaN in theta is reported, never saved.

        Raises NotSaved if the disk refuses it in several tries, and FolderLost.
        False, and nothing is saved, during an update of the learner: it may be dead, and half an update in theta.
        """
        steps, seconds = self.run.handles.clock.steps, self.run.handles.clock.seconds
        updates = in_theta(self.run.handles.store).updates
        if (steps, updates) == self._saved:
            return True
        if self.run.handles.store.torn:
            return False
        exact = self.exact()
        theta = self.run.handles.store.snapshot()
        checkpoint = take_checkpoint(
            self.run, theta, beside_theta(self.run, replay=exact[0] is None),
            steps=steps, seconds=seconds, updates=updates, best_score=self.summary.best_score, exact=exact,
        )  # fmt: skip
        if self.run.handles.store.torn:
            return False
        self._see_that_folder_is_there()
        checkpoints.save(self.run.spec.folder.checkpoints, checkpoint, keep=self.run.spec.config.checkpoints_kept)
        self._saved = (steps, updates)
        self._recorder.rows.write({"event": "checkpoint", "steps": steps, "seconds": round(seconds, 3)})
        return True

    def write_status(
        self, state: str, reason: str = "", exit_code: int | None = None, traceback: str | None = None
    ) -> None:
        """status.json: which state the run is in, and why. If it cannot be written, that is tried with the next."""
        self._count()
        clock, summary = self.run.handles.clock, self.summary
        summary.unwritten = self._recorder.unwritten(by_others=clock.unwritten())
        summary.trouble = self._recorder.trouble(summary.unwritten)
        status = {
            "state": state,
            "reason": reason,
            "exit_code": exit_code,
            **vars(summary),
            "frames": summary.steps * summary.frames_per_step,
            "seconds": round(summary.seconds, 3),
            "steps_per_second": round(summary.steps_per_second, 1),
            "last_evaluation": summary.evaluation,
            "worker_steps": clock.worker_steps(),
            "started": self._started,
            "part": self.run.spec.part,
        }
        self._recorder.status.put(status | ({"traceback": traceback} if traceback else {}))

    def write_last_status(self, state: str, reason: str, exit_code: int, traceback: str | None) -> None:
        """status.json at the end of the run, in several tries; the summary says what is missing."""
        self.write_status(state, reason, exit_code, traceback)
        if not self._recorder.status.insist():
            self.summary.unwritten = self.summary.unwritten | {STATUS: 1}
            self.summary.trouble = self._recorder.trouble(self.summary.unwritten)

    def close(self) -> None:
        """Close the files."""
        self._recorder.close()

    def end(self) -> None:
        """Write the last row and close the files. All workers have ended."""
        try:
            self.look_at_evaluations()
            for worker in self._readers:
                # A worker that did not exit in time was killed, but not noted as a loss.
                if any((missing := self._settle(worker)).values()):
                    self.note_event("unrecorded", who=in_records(worker), unrecorded=missing)
            self._take_episodes()
            self._write_row()
            self._recorder.tell_trouble()
            self.summary.ended = True
            self.summary.steps_per_second = self.summary.steps / max(1e-9, self.summary.seconds)
        finally:
            self.close()


def no_state() -> tuple[None, dict[str, Tensor]]:
    """The state of all workers, of a backend that cannot tell it."""
    return None, {}


def in_words(facts: Mapping[str, float]) -> str:
    """What distinguishes a worker's exploration, as text."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in facts.items())
