"""The supervisor's bookkeeping: reads what the others wrote, decides when a run is over, writes what people read."""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl.core.schedules import crossed
from asyncrl.runtime.evaluator import cut_in_words
from asyncrl.runtime.plan import RunPlan
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.snapshots import take_checkpoint
from asyncrl.storage import checkpoints
from asyncrl.storage.files import write_json
from asyncrl.storage.records import RecordReader, RecordWriter
from asyncrl.storage.tensorboard import TensorBoardWriter

TIME_IS_OVER = "max_seconds reached"
"""The reason of an end that is the command's and not the run's: the next command may go on."""
INTERVAL_SECONDS = 2.0
"""Time between two rows of supervisor.jsonl, TensorBoard and status.json."""
EPISODES_AVERAGED = 100
COUNTED = {"steps": "worker_steps", "updates": "updates", "dropped_gradients": "dropped_gradients"}
"""What each worker counts in shared memory: its name in `unrecorded`, and the key in the worker's rows."""


@dataclass
class Summary:
    """What is known about a run right now, for the terminal and status.json."""

    steps: int = 0
    total_steps: int = 0
    frames_per_step: int = 1
    seconds: float = 0.0
    steps_per_second: float = 0.0
    seconds_to_limit: float | None = None
    """To --max-seconds; None without one."""
    updates: int = 0
    dropped_gradients: int = 0
    score_mean: float | None = None
    """Mean raw return of the last training episodes."""
    length_mean: float | None = None
    evaluation: float | None = None
    best_score: float | None = None
    remark: str = ""
    """What else there is to say of the newest evaluation."""
    staleness_mean: float = 0.0
    learning_rate: float = 0.0
    worker_silence: list[float] = field(default_factory=list)
    """Seconds since each worker last pushed an update."""
    worker_restarts: list[int] = field(default_factory=list)
    """How often each worker's place was filled again in this part of the run."""
    workers_gone: list[int] = field(default_factory=list)
    """Workers that are lost for good."""
    evaluator_restarts: int = 0
    environments_rebuilt: int = 0
    unrecorded: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    """What workers that were lost had counted in this part of the run, and no row of theirs tells."""
    ended: bool = False
    """The run is over; `steps_per_second` is then its mean."""

    @property
    def seconds_left(self) -> float | None:
        """Expected time to total_steps at the present speed, or to the limit of time if that comes first."""
        if self.steps_per_second <= 0:
            return self.seconds_to_limit
        left = max(0, self.total_steps - self.steps) / self.steps_per_second
        return left if self.seconds_to_limit is None else min(left, self.seconds_to_limit)


class Monitor:
    """Follows one run. `look` is called often and does little; every two seconds it writes."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.summary = Summary(
            total_steps=plan.config.total_steps,
            frames_per_step=plan.spec.frames_per_step,
            steps=plan.progress.steps,
            seconds=plan.progress.seconds,
            updates=plan.store.updates,
            worker_restarts=[0] * plan.config.workers,
        )
        self._writer = RecordWriter(plan.folder.supervisor_file)
        self._workers = [RecordReader(plan.folder.worker_file(k)) for k in range(plan.config.workers)]
        self._evaluator = RecordReader(plan.folder.evaluator_file)
        # What earlier parts of the run wrote has been reported then; only their best score still counts.
        for reader in self._workers:
            reader.new()
        self._recorded: list[dict[str, int]] = [dict.fromkeys(COUNTED, 0) for _ in self._workers]
        """What the rows of each worker add up to in this part of the run, with what was found to be missing in them."""
        self._rows: list[dict[str, Any]] = []
        """Workers' rows that have been read, for the supervisor's next one."""
        means = [row["mean"] for row in self._evaluator.new() if row.get("mean") is not None]
        self.summary.best_score = max(means, default=None)
        self._tensorboard = TensorBoardWriter(plan.folder.tensorboard, plan.progress.steps if plan.part else None)
        self._scores: deque[float] = deque(maxlen=EPISODES_AVERAGED)
        self._lengths: deque[float] = deque(maxlen=EPISODES_AVERAGED)
        self._looked_at = time.monotonic()
        self._looked_steps = plan.progress.steps
        self._saved = (plan.progress.steps, plan.store.updates) if plan.part else None
        """Steps and updates of the newest checkpoint."""
        self._checkpoint_checked = plan.progress.steps
        self._score_reached = False
        self.exact: Callable[[], dict[str, Any] | None] | None = None
        """Tells the state of all workers for a checkpoint, where the backend can."""

    def begin(self) -> list[str]:
        """The workers are ready: write down what was chosen, and return lines: how they explore, what is amiss."""
        ready = [row for row in self._read_workers() if row.get("event") == "ready"]
        exploration = {row["worker"]: row["exploration"] for row in ready}
        config = "\n".join(f"| {key} | {value} |" for key, value in vars(self.plan.config).items())
        self._tensorboard.text("config", f"| setting | value |\n|---|---|\n{config}", self.plan.progress.steps)
        event = "resumed" if self.plan.part else "started"
        self._writer.write({"event": event, "steps": self.plan.progress.steps, "exploration": exploration})
        table = "\n".join(f"| {worker} | {in_words(facts)} |" for worker, facts in exploration.items())
        text = f"| worker | exploration |\n|---|---|\n{table}"
        self._tensorboard.text("async/exploration", text, self.plan.progress.steps)
        if not self.plan.part:
            self.save_checkpoint()  # a run that is killed before its first interval can be resumed too
        self.write_status("running")
        self._looked_at = time.monotonic()  # speeds are of the training, not of the start before it
        counts = Counter(in_words(facts) for facts in exploration.values())
        lines = ["exploration: " + ", ".join(f"{count} x {words}" for words, count in counts.most_common())]
        if threads := max((row["threads"] for row in ready), default=0):
            lines.append(
                f"the environments of a worker have started {threads} threads beside its own: if those compute, "
                "workers fight for cores; ask the environment's package for one thread"
            )
        return lines

    def look(self, now: bool = False) -> bool:
        """Read, save and decide what is due; True when a new summary has been written."""
        self._save_if_due()
        if not now and time.monotonic() - self._looked_at < INTERVAL_SECONDS:
            return False
        self.look_at_evaluations()
        self._read_workers()
        self._write_row()
        self.write_status("running")
        return True

    def note_loss(self, event: str, worker: int, cause: str) -> None:
        """A worker or EVALUATOR died: it is "restarted", "gone" for good, or only "lost", at the end of the run.

        Its process must have ended: what it counted is compared with its rows, the last of which it never wrote.
        """
        if event == "restarted" and worker == EVALUATOR:
            self.summary.evaluator_restarts += 1
        elif event == "restarted":
            self.summary.worker_restarts[worker] += 1
        elif event == "gone" and worker != EVALUATOR:
            self.summary.workers_gone.append(worker)
        if worker == EVALUATOR:
            self._write_event(event, who="evaluator", cause=cause)
        else:
            self._write_event(event, who=worker, cause=cause, unrecorded=self._settle(worker))

    def _write_event(self, event: str, **facts: Any) -> None:
        progress = self.plan.progress
        self._writer.write({"event": event, **facts, "steps": progress.steps, "seconds": round(progress.seconds, 3)})

    def verdict(self) -> str | None:
        """Why the run is over, or None."""
        config, progress = self.plan.config, self.plan.progress
        if self._score_reached:
            return f"an evaluation reached {config.stop_at_score}"
        if progress.steps >= config.total_steps:
            return "total_steps reached"
        if config.max_seconds and progress.seconds_of_this_part >= config.max_seconds:
            return TIME_IS_OVER
        return None

    def look_at_evaluations(self) -> None:
        """Read new evaluations; remember the best, and whether it was good enough to stop."""
        target = self.plan.config.stop_at_score
        for row in self._evaluator.new():
            mean = row.get("mean")
            if mean is None:
                continue
            summary = self.summary
            summary.evaluation = mean
            summary.remark = cut_in_words(row["cut"], row["lengths"]) if row.get("cut") else ""
            summary.best_score = mean if summary.best_score is None else max(summary.best_score, mean)
            if target is not None and mean >= target:
                self._score_reached = True
            self._tensorboard.scalars(
                {
                    "eval/mean_reward": mean,
                    "eval/mean_ep_length": statistics.fmean(row["lengths"]),
                    "eval/cpu_share": row["cpu_share"],
                },
                row["steps"],
            )

    def _read_workers(self) -> list[dict[str, Any]]:
        return [row for worker in range(len(self._workers)) for row in self._read_worker(worker)]

    def _read_worker(self, worker: int) -> list[dict[str, Any]]:
        """New rows of a worker; those that sum up updates are kept for the supervisor's next row."""
        rows = self._workers[worker].new()
        recorded = self._recorded[worker]
        for row in rows:
            if "updates" not in row:
                continue
            self._rows.append(row)
            for name, key in COUNTED.items():
                recorded[name] += row[key]
            for score, length in row["episodes"]:
                self._scores.append(score)
                self._lengths.append(length)
        return rows

    def _settle(self, worker: int) -> dict[str, int]:
        """What a worker whose process has ended has counted since this was last asked, and no row of it tells."""
        self._read_worker(worker)
        updates, dropped = self.plan.store.counts(worker)
        counted = {"steps": self.plan.progress.worker_steps()[worker], "updates": updates, "dropped_gradients": dropped}
        missing = {name: count - self._recorded[worker][name] for name, count in counted.items()}
        self._recorded[worker] = counted
        for name, count in missing.items():
            self.summary.unrecorded[name] += count
        return missing

    def _write_row(self) -> None:
        """Everything since the last look as one row, in supervisor.jsonl and in TensorBoard."""
        rows, self._rows = self._rows, []
        progress, store, summary = self.plan.progress, self.plan.store, self.summary
        now, steps = time.monotonic(), progress.steps
        elapsed = max(1e-9, now - self._looked_at)
        updates = store.updates
        updates_per_second = (updates - summary.updates) / elapsed
        summary.steps, summary.seconds, summary.updates = steps, progress.seconds, updates
        summary.steps_per_second = (steps - self._looked_steps) / elapsed
        if limit := self.plan.config.max_seconds:
            summary.seconds_to_limit = max(0.0, limit - progress.seconds_of_this_part)
        summary.worker_silence = [progress.heartbeat_age(worker) for worker in range(progress.workers)]
        summary.dropped_gradients = store.dropped
        summary.environments_rebuilt = progress.rebuilt
        if self._scores:
            summary.score_mean, summary.length_mean = statistics.fmean(self._scores), statistics.fmean(self._lengths)
        self._looked_at, self._looked_steps = now, steps
        scalars: dict[str, float | None] = {
            "rollout/ep_rew_mean": summary.score_mean,
            "rollout/ep_len_mean": summary.length_mean,
            "time/fps": summary.steps_per_second,
            "time/frames_per_second": summary.steps_per_second * summary.frames_per_step,
            "time/time_elapsed": summary.seconds,
            "async/updates_per_second": updates_per_second,
            "async/dropped_gradients": summary.dropped_gradients,
            "async/worker_restarts": sum(summary.worker_restarts),
            "async/workers_gone": len(summary.workers_gone),
            "async/evaluator_restarts": summary.evaluator_restarts,
            "async/environments_rebuilt": summary.environments_rebuilt,
        }
        if rows:
            summary.staleness_mean = weighted_mean(rows, "staleness_mean")
            summary.learning_rate = rows[-1]["learning_rate"]
            scalars["async/staleness_mean"] = summary.staleness_mean
            scalars["async/staleness_max"] = max(row["staleness_max"] for row in rows)
            if "pull_age_mean" in rows[-1]:
                scalars["async/pull_age_mean"] = weighted_mean(rows, "pull_age_mean")
            scalars["train/learning_rate"] = summary.learning_rate
            scalars["train/gradient_norm"] = weighted_mean(rows, "gradient_norm")
            for name in rows[-1]["metrics"]:
                values = [row["metrics"][name] for row in rows if row["metrics"].get(name) is not None]
                scalars[f"train/{name}"] = statistics.fmean(values) if values else None
            scalars.update(time_shares(rows))
        present = {tag: value for tag, value in scalars.items() if value is not None}
        self._tensorboard.scalars(present, steps)
        self._writer.write({"steps": steps, "seconds": round(summary.seconds, 3), "updates": updates, **present})

    def _save_if_due(self) -> None:
        steps = self.plan.progress.steps
        if crossed(self._checkpoint_checked, steps, self.plan.config.checkpoint_interval_steps):
            self.save_checkpoint()
        self._checkpoint_checked = steps

    def save_checkpoint(self) -> None:
        """Save the run as it is, unless just that has been saved. A NaN in theta is reported, never saved."""
        steps, seconds, updates = self.plan.progress.steps, self.plan.progress.seconds, self.plan.store.updates
        if (steps, updates) == self._saved:
            return
        facts = {"best_score": self.summary.best_score}
        exact = None if self.exact is None else self.exact()
        checkpoint = take_checkpoint(self.plan, None, steps, seconds, facts, exact, updates)
        checkpoints.save(self.plan.folder.checkpoints, checkpoint, keep=self.plan.config.checkpoints_kept)
        self._saved = (steps, updates)
        self._writer.write({"event": "checkpoint", "steps": steps, "seconds": round(seconds, 3)})

    def write_status(
        self, state: str, reason: str = "", exit_code: int | None = None, traceback: str | None = None
    ) -> None:
        """status.json: which state the run is in, and why."""
        progress, store = self.plan.progress, self.plan.store
        steps = progress.steps  # once: workers go on
        status = {
            "state": state,
            "reason": reason,
            "exit_code": exit_code,
            "steps": steps,
            "frames": steps * self.summary.frames_per_step,
            "total_steps": self.plan.config.total_steps,
            "updates": store.updates,
            "seconds": round(progress.seconds, 3),
            "steps_per_second": round(self.summary.steps_per_second, 1),
            "best_score": self.summary.best_score,
            "last_evaluation": self.summary.evaluation,
            "dropped_gradients": store.dropped,
            "worker_steps": progress.worker_steps(),
            "worker_restarts": self.summary.worker_restarts,
            "workers_gone": self.summary.workers_gone,
            "evaluator_restarts": self.summary.evaluator_restarts,
            "environments_rebuilt": progress.rebuilt,
            "unrecorded": self.summary.unrecorded,
            "part": self.plan.part,
        }
        write_json(self.plan.folder.status_file, status | ({"traceback": traceback} if traceback else {}))

    def end(self) -> None:
        """Write the last row and close the files. All workers have ended."""
        try:
            self.look_at_evaluations()
            for worker in range(len(self._workers)):
                # One that did not leave in time was killed, and nobody noted that as a loss.
                if any((missing := self._settle(worker)).values()):
                    self._write_event("unrecorded", who=worker, unrecorded=missing)
            self._write_row()
            self.summary.ended = True
            self.summary.steps_per_second = self.summary.steps / max(1e-9, self.summary.seconds)
        finally:
            self._writer.close()
            self._tensorboard.close()


def in_words(facts: Mapping[str, float]) -> str:
    """What distinguishes a worker's exploration, as text."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in facts.items())


def weighted_mean(rows: Iterable[Mapping[str, Any]], key: str) -> float:
    """Mean over updates of a quantity that each row gives as its own mean."""
    pairs = [(row[key], row["updates"]) for row in rows if row[key] is not None]
    return float(sum(value * weight for value, weight in pairs) / max(1, sum(weight for _, weight in pairs)))


def time_shares(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Where the workers' time went, as shares that add up to 1, by phase."""
    sums: dict[str, float] = {}
    for row in rows:
        for phase, seconds in row["time"].items():
            sums[phase] = sums.get(phase, 0.0) + seconds
    total = sum(sums.values())
    return {f"async/time_share_{phase}": seconds / total for phase, seconds in sums.items()} if total > 0 else {}
