"""The part of the configuration that every algorithm shares. Each page adds its own fields to it, once."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from asyncrl.core.errors import UsageError
from asyncrl.core.updates import Descent, UpdateRule

ConfigT = TypeVar("ConfigT", bound="RunConfig")


@dataclass(frozen=True)
class RunConfig:
    """What every page takes. The field is the flag is the key in config.json; the text below it is its help.

    *Steps* are agent steps, summed over all workers. A *frame* is one of the environment's: 4 per step on
    Atari and 1 elsewhere, unless `frame_skip` says otherwise.
    Constructing one checks it and raises UsageError with one line for the first impossible value.
    """

    env_id: str = "ALE/Pong-v5"
    """Environment: an Atari id (ALE/Pong-v5), any Gymnasium id, Chain, Catch, or module:factory."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the environment, as key=value."""
    workers: int = 16
    """Actor-learners, each with its own environments and exploration. May exceed the cores."""
    # The defaults below are what trained Atari best on few cores; each page's `preset` has those for vectors.
    # Four environments per worker: a batch of 4 costs half of 4 single observations in the network.
    envs_per_worker: int = 4
    """Environments of each worker (E), acted on as one batch. 1 is the paper."""
    # 20 steps instead of 5: a quarter of the pulls and pushes, and returns that look further.
    t_max: int = 20
    """Steps of each environment between two updates (I_AsyncUpdate; --async-update-interval is the same)."""
    total_steps: int = 10_000_000
    """T_max: steps of all workers together after which the run is finished."""
    seed: int = 1
    """Seed of everything random. The serial backend repeats a run bit by bit on one kind of processor."""
    preset: Literal["default", "paper"] = "default"
    """Where the other settings start from: what trains best here, or exactly the paper's."""

    backend: Literal["local", "serial"] = "local"
    """local: a process per worker. serial: all workers in turn in one process, repeatable (see --seed)."""
    schedule: Literal["round-robin", "random", "delays"] = "round-robin"
    """Serial backend: whose turn is next."""
    delays: tuple[float, ...] = ()
    """Serial backend, schedule delays: duration of a turn of worker 0, 1, ... in any unit; the list repeats."""
    update: Literal["hogwild", "locked"] = "hogwild"
    """Whether pushes to the shared parameters take a lock. The paper's do not."""
    statistics: Literal["shared", "per-worker"] = "shared"
    """Who owns the optimiser's statistics: all workers together or each its own (the paper compares both)."""

    runs_dir: str = "runs"
    """Folder under which RUNS_DIR/page/environment/name is made."""
    run_name: str = ""
    """Name of the run's folder; empty: made from workers, seed and time."""
    resume: str = ""
    """Folder of a run to go on with, from its newest checkpoint; auto: the newest of the same name, if there is one."""
    quiet: bool = False
    """Print only the run folder, the outcome and errors."""
    max_seconds: float = 0.0
    """Finish after so many seconds of training by this command, not counting those before --resume; 0: no limit."""
    stop_at_score: float | None = None
    """Finish when the mean of an evaluation's episodes reaches this score."""

    on_worker_error: Literal["stop", "restart"] = "stop"
    """What an exception in a worker does: end the run with its traceback, or count as a loss (local backend only)."""
    on_env_error: Literal["stop", "rebuild"] = "stop"
    """What an environment that raises or returns nonsense does: count as its worker's error, or just be made anew."""
    worker_restarts: int = 3
    """How often in 10 minutes each worker, and the evaluator, is replaced after a kill, a crash or a hang."""
    hang_seconds: float = 120.0
    """A worker that makes no update, an evaluator that makes no step for so long is replaced; 0: never."""

    evaluation_interval_steps: int = 100_000
    """Steps between two evaluations; 0: none by steps."""
    evaluation_interval_seconds: float = 0.0
    """Seconds between two evaluations; 0: none by time. Local backend only."""
    evaluation_episodes: int = 10
    """Whole episodes per evaluation."""
    evaluation_policy: Literal["greedy", "sampled"] = "greedy"
    """Whether the evaluator takes the best action or explores as the workers do."""
    evaluation_cpu_share: float = 0.04
    """The evaluator waits rather than use more than this share of all CPU time."""
    checkpoint_interval_steps: int = 500_000
    """Steps between two checkpoints; there is one at the end and at a stop as well. 0: only those."""
    checkpoints_kept: int = 3
    """How many checkpoints stay, beside the best one."""
    record_interval_seconds: float = 2.0
    """Seconds between two rows of a worker's records."""

    gamma: float = 0.99
    """Discount of a step's future."""
    # Adam needs no tuning of epsilon to the scale of rewards, and its fused update takes half of RMSProp's time.
    optimizer: Literal["rmsprop", "adam", "momentum-sgd"] = "adam"
    """Update rule."""
    learning_rate: float = 6e-4
    """eta at the first step."""
    anneal_learning_rate: bool = True
    """Take eta linearly to 0 over total_steps."""
    optimizer_decay: float = 0.999
    """alpha of rmsprop and momentum-sgd, beta_2 of adam."""
    optimizer_epsilon: float = 1e-8
    """rmsprop: inside the root. adam: beside the root."""
    optimizer_momentum: float = 0.9
    """beta_1 of adam."""
    max_gradient_norm: float = 40.0
    """A gradient with a larger L2 norm is scaled down to it; 0: never."""
    reward_clip: float = 0.0
    """Rewards are clipped to [-x, x] inside the loss, after any scaling; 0: not (Atari 1). Scores stay raw."""

    # Of a game's screen nearly all stands still. Per-pixel moments take that away and leave what moves: Pong began to
    # improve after a third of the steps it took without them.
    normalize_observations: bool = True
    """Bring each component (pixel) of observations to mean 0 and deviation 1, by statistics of all workers."""
    normalize_returns: bool = False
    """Scale rewards in the loss by the spread of discounted returns, by statistics of all workers."""

    network: Literal["auto", "small", "board", "paper", "nature", "mlp"] = "auto"
    """Body of the network. auto: small for screens, board for boards, mlp for vectors; paper is 16-32-256."""
    hidden_sizes: tuple[int, ...] = ()
    """Widths of the fully connected layers; empty: the body's own (256, nature 512, mlp 64 64)."""

    frame_skip: int = 0
    """Frames per step, for which the action is held and rewards are added up; 0: Atari 4, others 1."""
    frame_stack: int = 0
    """The newest so many images or vectors make an observation; 0: Atari 4, others 1."""
    image_size: int = 0
    """Height and width in pixels to which images are shrunk, in grey; 0: Atari 42, others as they are."""
    noop_max: int = 30
    """Atari: up to so many no-ops begin an episode."""
    sticky_actions: float = 0.0
    """Probability, at each frame, that the last action is repeated, whatever the id's default."""
    life_loss: bool = False
    """Atari: in training, a lost life ends the return (the game goes on)."""
    full_action_space: bool = False
    """Atari: all 18 actions."""
    max_episode_steps: int = 0
    """Truncate episodes at so many steps; 0: Atari 108 000 frames (30 minutes), others as registered."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        for name in _AT_LEAST_ONE:
            self._require(name, getattr(self, name) >= 1, "must be at least 1")
        for name, most in _AT_MOST.items():
            self._require(name, getattr(self, name) <= most, f"must be at most {most:_}")
        for name in _NOT_NEGATIVE:
            self._require(name, getattr(self, name) >= 0, "must not be negative")
        for name in ("gamma", "sticky_actions"):
            self._require(name, 0 <= getattr(self, name) <= 1, "must lie between 0 and 1")
        for name in ("optimizer_decay", "optimizer_momentum"):
            self._require(name, 0 <= getattr(self, name) < 1, "must be at least 0 and less than 1")
        self._require("learning_rate", 0 < self.learning_rate < math.inf, "must be a positive number")
        self._require("optimizer_epsilon", 0 < self.optimizer_epsilon < math.inf, "must be a positive number")
        self._require("evaluation_cpu_share", 0 < self.evaluation_cpu_share <= 1, "must lie in (0, 1]")
        self._require("hang_seconds", self.hang_seconds == 0 or self.hang_seconds >= 1, "must be 0 or at least 1")
        self._require("seed", 0 <= self.seed < 2**63, "must lie between 0 and 2^63")
        self._require("image_size", self.image_size == 0 or self.image_size >= 16, "must be 0 or at least 16")
        self._require("hidden_sizes", all(1 <= size <= 100_000 for size in self.hidden_sizes), "must be 1 to 100_000")
        self._require("delays", all(0 < delay < math.inf for delay in self.delays), "must be positive")
        if self.stop_at_score is not None:
            self._require("stop_at_score", math.isfinite(self.stop_at_score), "must be a number")
            if not (self.evaluation_interval_steps or self.evaluation_interval_seconds):
                raise UsageError("--stop-at-score needs evaluations: give --evaluation-interval-steps")
        if (self.schedule == "delays") != bool(self.delays):
            raise UsageError("--delays and --schedule delays belong together: give both or neither")
        if self.backend != "serial" and self.schedule != "round-robin":
            raise UsageError("--schedule is for --backend serial; processes are scheduled by the system")

    def _require(self, field: str, condition: bool, demand: str) -> None:
        if not condition:
            raise UsageError(f"{flag(field)} {demand}, got {getattr(self, field)}")

    @property
    def update_rule(self) -> UpdateRule:
        """The optimiser these settings describe."""
        return UpdateRule(self.optimizer, self.optimizer_decay, self.optimizer_epsilon, self.optimizer_momentum)

    @property
    def descent(self) -> Descent:
        """What a gradient does to theta under these settings."""
        return Descent(
            self.update_rule,
            self.learning_rate,
            self.total_steps if self.anneal_learning_rate else 0,
            self.max_gradient_norm,
            self.statistics == "per-worker",
            getattr(self, "target_interval_steps", 0),
        )


PAPER: dict[str, Any] = {
    # Section 8 of the paper; what it leaves out is from its author's published answers (epsilon, learning rate,
    # reward clipping, length) and from the re-implementations that reproduce it (norm of 40).
    "workers": 16,
    "envs_per_worker": 1,
    "t_max": 5,
    "total_steps": 80_000_000,
    "gamma": 0.99,
    "optimizer": "rmsprop",
    "optimizer_decay": 0.99,
    "optimizer_epsilon": 0.1,
    "learning_rate": 7e-4,
    "anneal_learning_rate": True,
    "max_gradient_norm": 40.0,
    "update": "hogwild",
    "statistics": "shared",
    "network": "paper",
    "hidden_sizes": (),
    "normalize_observations": False,
    "normalize_returns": False,
}
"""What all methods of Mnih et al. 2016 share; the preset "paper" of each page begins with it."""

PAPER_ATARI: dict[str, Any] = {
    "reward_clip": 1.0,
    "life_loss": False,
    "frame_skip": 4,
    "frame_stack": 4,
    "image_size": 84,
    "noop_max": 30,
    "sticky_actions": 0.0,
}
"""What the preset "paper" has for Atari beside it."""

ATARI: dict[str, Any] = {"reward_clip": 1.0}
"""What all pages have for Atari by default: its games differ by orders of magnitude in what they pay."""

_AT_LEAST_ONE = (
    "workers", "envs_per_worker", "t_max", "total_steps", "evaluation_episodes", "checkpoints_kept",
)  # fmt: skip
_AT_MOST = {
    "workers": 10_000, "envs_per_worker": 10_000, "t_max": 1_000_000, "total_steps": 2**53, "frame_skip": 1_000,
    "frame_stack": 100, "image_size": 1_000, "noop_max": 10_000, "checkpoints_kept": 1_000_000,
    "evaluation_episodes": 1_000_000,
}  # fmt: skip
"""More can only be a slip of the finger; it would end in a lack of memory long after it was typed."""
_NOT_NEGATIVE = (
    "max_seconds", "evaluation_interval_steps", "evaluation_interval_seconds", "checkpoint_interval_steps",
    "record_interval_seconds", "worker_restarts",
    "max_gradient_norm", "reward_clip", "frame_skip", "frame_stack", "noop_max", "max_episode_steps",
)  # fmt: skip


def flag(field: str) -> str:
    """The command-line flag of a field: `t_max` is `--t-max`."""
    return "--" + field.replace("_", "-")


def to_plain(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain data for config.json."""
    return dataclasses.asdict(config)


def from_plain(cls: type[ConfigT], data: dict[str, Any]) -> ConfigT:
    """A configuration from what config.json holds. Raises UsageError for a field this version does not know."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise UsageError(f"the stored configuration has fields this version does not know: {', '.join(unknown)}")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return cls(**values)
