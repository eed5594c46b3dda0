"""The settings that every algorithm takes, grouped as in the help.

A group is a frozen dataclass that checks its own fields. A field's name is also the flag and the key in config.json;
the text below it is its help. `RunConfig` joins all groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from asyncrl.core.devices import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.core.named import is_name
from asyncrl.core.user_code import HANG_SECONDS

MOST_WORKERS = 10_000
AUTO_HOSTS = 16
"""Room for hosts of --hosts auto."""
NETWORKS = ("auto", "small", "board", "paper", "nature", "mlp")
BACKENDS = {
    "schedule": ("serial",),
    "delays": ("serial",),
    "reduce": ("collective",),
    "init_method": ("collective",),
    "collective_timeout_seconds": ("collective",),
    "check_replicas": ("collective",),
    "hosts": ("ray",),
    "address": ("ray",),
    "parameter_shards": ("ray",),
    "learner_resource": ("ray",),
    "push": ("ray",),
    "exchange_updates": ("ray",),
    "replay_hosts": ("ray",),
    "update": ("local", "serial"),
    "statistics": ("local", "serial"),
    "on_worker_error": ("local", "ray"),
    "worker_restarts": ("local", "ray"),
    "learner_threads": ("local", "ray"),
    "learner_device": ("local", "serial", "ray"),
}
"""Settings that do something on some backends only; help shows them there."""
HARMLESS = ("check_replicas", "collective_timeout_seconds", "exchange_updates", "init_method", "worker_restarts")
"""Of these, those that may be given on all backends; presets have some."""
RARE = ("record_interval_seconds", "checkpoints_kept", "evaluation_cpu_share", "check_replicas")
"""Settings for measurements and tests, which help does not show."""


def listed(names: Sequence[str], last: str = "and") -> str:
    """The names in a sentence: a, b and c."""
    *most, end = names
    return f"{', '.join(most)} {last} {end}" if most else end


def flag(field: str) -> str:
    """The command-line flag of a field: `t_max` is `--t-max`."""
    return "--" + field.replace("_", "-")


def default_workers() -> int:
    """Two per usable core: more of them only make updates staler (docs/performance.md)."""
    return min(2 * len(usable_cores()), MOST_WORKERS)


@dataclass(frozen=True)
class Settings:
    """Base of all groups: settings that are checked when they are created, each group by its own `check`."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""

    def _require(self, field: str, condition: bool, demand: str) -> None:
        if not condition:
            raise UsageError(f"{flag(field)} {demand}, got {getattr(self, field)}")

    def _require_count(self, field: str, most: int) -> None:
        """At least 1. More than `most` can only be a typing error, and would exhaust the memory much later."""
        self._require(field, getattr(self, field) >= 1, "must be at least 1")
        self._require(field, getattr(self, field) <= most, f"must be at most {most:_}")

    def _require_choice(self, field: str, choices: Sequence[str]) -> None:
        """One of the choices, or something of the user's own."""
        given = getattr(self, field)
        if given not in choices and not is_name(given):
            raise UsageError(f"{flag(field)} takes {', '.join(choices)} or module:factory, got {given!r}")

    def _require_not_negative(self, field: str, most: float = math.inf) -> None:
        self._require(field, getattr(self, field) >= 0, "must not be negative")
        self._require(field, getattr(self, field) <= most, f"must be at most {most:_}")


@dataclass(frozen=True)
class RunSettings(Settings):
    """How long it trains, and where it is kept."""

    preset: Literal["default", "paper"] = "default"
    """Where the other settings start from: what trains best here, or exactly the paper's."""
    total_steps: int = 10_000_000
    """T_max: the run is finished after this many steps of all workers together."""
    max_seconds: float = 0.0
    """Finish when this command has trained for this many seconds, not counting those before --resume; 0: no limit."""
    seed: int = 1
    """Seed of everything random. The serial backend repeats a run bit for bit on one kind of processor."""
    runs_dir: str = "runs"
    """Folder for runs: each gets RUNS_DIR/algorithm/environment/name."""
    run_name: str = ""
    """Name of the run's folder; empty: made from workers, seed and time."""
    resume: str = ""
    """Folder of a run to resume from its newest checkpoint; auto: the newest run of the same name, if there is one."""
    quiet: bool = False
    """Print only the run folder, the outcome and errors."""
    track: tuple[str, ...] = ()
    """Tell Weights & Biases (wandb; --track alone as well), MLflow (mlflow) or both of the run, by their packages."""
    track_project: str = "asyncrl"
    """Project of Weights & Biases, experiment of MLflow."""
    checkpoint_interval_steps: int = 500_000
    """Steps between checkpoints. One is also written at every end and stop; 0: only then."""
    checkpoints_kept: int = 3
    """How many checkpoints are kept, besides the best one."""
    record_interval_seconds: float = 2.0
    """Seconds between two rows of a worker's records."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_count("total_steps", most=2**53)
        self._require_not_negative("max_seconds")
        self._require("seed", 0 <= self.seed < 2**63, "must lie between 0 and 2^63")
        self._require("track_project", bool(self.track_project), "must not be empty")
        self._require_not_negative("checkpoint_interval_steps")
        self._require_count("checkpoints_kept", most=1_000_000)
        self._require_not_negative("record_interval_seconds")


@dataclass(frozen=True)
class EnvironmentSettings(Settings):
    """What is played, and how it is shown to the network."""

    env_id: str = "ALE/Pong-v5"
    """Environment: an Atari id (ALE/Pong-v5), any Gymnasium id, Chain, Catch, or module:factory."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the environment, as key=value."""
    max_episode_steps: int = 0
    """Truncate episodes after this many steps; 0: Atari 108 000 frames (30 minutes), others as registered."""
    frame_skip: int = 0
    """Frames per step: the action is repeated and rewards are added up; 0: Atari 4, others 1."""
    frame_stack: int = 0
    """How many of the newest images or vectors make an observation; 0: Atari 4, others 1."""
    image_size: int = 0
    """Convert images to grey and shrink them to this height and width in pixels; 0: Atari 42, others unchanged."""
    sticky_actions: float = 0.0
    """Probability, at each frame, that the last action is repeated, whatever the id's default."""
    noop_max: int = 30
    """Atari: an episode begins with 1 to this many no-ops; 0: none."""
    life_loss: bool = False
    """Atari: in training, a lost life ends the return (the game goes on)."""
    full_action_space: bool = False
    """Atari: all 18 actions."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_not_negative("max_episode_steps")
        self._require_not_negative("frame_skip", most=1_000)
        self._require_not_negative("frame_stack", most=100)
        self._require("image_size", self.image_size == 0 or self.image_size >= 16, "must be 0 or at least 16")
        self._require("image_size", self.image_size <= 1_000, "must be at most 1_000")
        self._require("sticky_actions", 0 <= self.sticky_actions <= 1, "must lie between 0 and 1")
        self._require_not_negative("noop_max", most=10_000)


@dataclass(frozen=True)
class ParallelismSettings(Settings):
    """Who does the work, and how their results are combined."""

    workers: int = field(default_factory=default_workers)
    """Number of workers, each with its own environments and exploration. By default two per usable core."""
    # Four environments per worker: a batch of 4 costs half of 4 single observations in the network.
    envs_per_worker: int = 4
    """Environments of each worker (E), acted on as one batch. 1 is the paper."""
    # 20 steps instead of 5: a quarter of the pulls and pushes, and returns that look further.
    t_max: int = 20
    """Steps of each environment between two updates (I_AsyncUpdate; --async-update-interval is the same)."""
    backend: Literal["local", "serial", "collective", "ray"] = "local"
    """local: a process per worker. serial: one process, in turns, repeatable. collective: ranks in step. ray: hosts."""
    schedule: Literal["round-robin", "random"] = "round-robin"
    """Serial backend: whose turn is next."""
    delays: tuple[float, ...] = ()
    """Serial backend: duration of a turn of worker 0, 1, ... in any unit, instead of a schedule; the list repeats."""
    update: Literal["hogwild", "locked"] = "hogwild"
    """Whether pushes to the shared parameters take a lock. In the paper they do not."""
    statistics: Literal["auto", "shared", "per-worker"] = "auto"
    """Who owns the optimiser's statistics: all workers, or each its own. auto: each its own for momentum-sgd only."""
    overlap: bool = False
    """Make rollouts, one update older, while the last ones are learnt (A2C, PPO; not as ranks) or reduced (ranks)."""
    reduce: Literal["experience", "gradients"] = "experience"
    """Collective backend, A2C and PPO: gather rollouts at rank 0, or let each rank learn from its own and average."""
    init_method: str = ""
    """Collective backend: where ranks meet, tcp://HOST:PORT or file://PATH; empty: as the launcher says, or here."""
    collective_timeout_seconds: float = 60.0
    """Collective backend: if the others wait this long for a rank, it counts as lost and the run ends."""
    check_replicas: int = 1_000
    """Collective backend: updates between comparisons of all ranks' parameters; 0: never."""

    hosts: int | Literal["auto"] = 1
    """Ray backend: machines, each with --workers workers; some may join later. auto: all there are, at most 16."""
    address: str = ""
    """Ray backend: the cluster to join, HOST:PORT or auto; empty: RAY_ADDRESS, or a new cluster on this machine."""
    parameter_shards: int = 1
    """Ray backend: number of processes that hold the parameters between hosts."""
    learner_resource: str = ""
    """Ray backend, methods with a learner: place it on a machine that has this resource; empty: beside the driver."""
    push: Literal["exchange", "every-update"] = "exchange"
    """Ray backend: hosts send changes of parameters now and then, or each gradient as it comes (Gorila's default)."""
    exchange_updates: int = 1
    """Ray backend: updates per worker between two exchanges of its host with the others; at least one per second."""

    @property
    def most_hosts(self) -> int:
        """The number of hosts for which there is room."""
        return min(AUTO_HOSTS, MOST_WORKERS // self.workers) if self.hosts == "auto" else self.hosts

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_count("workers", most=MOST_WORKERS)
        if self.hosts != "auto":
            self._require_count("hosts", most=MOST_WORKERS // self.workers)
        self._require_count("parameter_shards", most=1_000)
        self._require_count("exchange_updates", most=1_000_000)
        if not getattr(self, "resume", ""):  # a run that is resumed on another backend may keep them
            for name, backends in BACKENDS.items():
                given = getattr(self, name, None) != getattr(type(self), name, None)
                if given and self.backend not in backends and name not in HARMLESS:
                    raise UsageError(f"{flag(name)} is for --backend {listed(backends)}")
        self._require_count("envs_per_worker", most=10_000)
        self._require_count("t_max", most=1_000_000)
        self._require("delays", all(0 < delay < math.inf for delay in self.delays), "must be positive")
        if self.delays and self.schedule != "round-robin":
            raise UsageError(f"--delays and --schedule {self.schedule} both say whose turn is next: give only one")
        self._require("collective_timeout_seconds", 1 <= self.collective_timeout_seconds < 1e6, "must be at least 1")
        self._require_not_negative("check_replicas")
        fits = not self.init_method or self.init_method.startswith(("tcp://", "file://"))
        self._require("init_method", fits, "takes tcp://HOST:PORT or file://PATH")


@dataclass(frozen=True)
class LearnerSettings(Settings):
    """Further settings of algorithms with a learner, for its process."""

    learner_threads: int = 1
    """Local and ray backend: threads of the learner. Useful if cores are idle while it learns."""
    learner_device: str = "cpu"
    """Where the learner computes losses and gradients: cpu, cuda, cuda:1, ... Updates are made in host memory."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_count("learner_threads", most=1_000)


@dataclass(frozen=True)
class OptimiserSettings(Settings):
    """Rewards and gradients: how they are scaled, and how a gradient changes the parameters."""

    # Adam's epsilon needs no tuning to the scale of rewards, and its fused update takes half the time of RMSProp's.
    optimizer: Literal["rmsprop", "centred-rmsprop", "adam", "momentum-sgd", "adagrad"] = "adam"
    """Update rule. momentum-sgd with a decay of 0 is plain SGD."""
    learning_rate: float = 6e-4
    """eta at the first step."""
    anneal_learning_rate: bool = True
    """Reduce the learning rate linearly to 0 over total_steps."""
    gamma: float = 0.99
    """Discount per step."""
    max_gradient_norm: float = 40.0
    """A gradient with a larger L2 norm is scaled down to it; 0: never."""
    optimizer_decay: float = 0.999
    """alpha of rmsprop (centred or not) and momentum-sgd, beta_2 of adam."""
    optimizer_epsilon: float = 1e-8
    """rmsprop, centred or not: added inside the root. adam, adagrad: added to the root."""
    optimizer_momentum: float = 0.9
    """beta_1 of adam."""
    reward_clip: float = 0.0
    """Clip rewards to [-x, x] in the loss, after any scaling; 0: do not clip (Atari 1). Scores stay raw."""
    normalize_returns: bool = False
    """Divide rewards in the loss by the standard deviation of discounted returns, over all workers."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        for name in ("learning_rate", "optimizer_epsilon"):
            self._require(name, 0 < getattr(self, name) < math.inf, "must be a positive number")
        self._require("gamma", 0 <= self.gamma <= 1, "must lie between 0 and 1")
        for name in ("optimizer_decay", "optimizer_momentum"):
            self._require(name, 0 <= getattr(self, name) < 1, "must be at least 0 and less than 1")
        self._require_not_negative("max_gradient_norm")
        self._require_not_negative("reward_clip")


@dataclass(frozen=True)
class NetworkSettings(Settings):
    """What computes policies and values."""

    network: str = "auto"
    """Body: auto (small for screens, board, mlp for vectors), small, board, mlp, paper, nature or module:factory."""
    hidden_sizes: tuple[int, ...] = ()
    """Widths of the fully connected layers; empty: the body's own (256, nature 512, mlp 64 64)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of products in the large layers. bfloat16 halves their time if the processor supports it."""
    # Most of a game's screen does not move. Per-pixel moments remove that and leave what moves: Pong began to improve
    # after a third of the steps it took without them.
    normalize_observations: bool = True
    """Scale each component (pixel) of observations to mean 0 and deviation 1, over all workers."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_choice("network", NETWORKS)
        self._require("hidden_sizes", all(1 <= size <= 100_000 for size in self.hidden_sizes), "must be 1 to 100_000")
        if self.hidden_sizes and is_name(self.network) and not getattr(self, "dueling", False):
            raise UsageError(f"--hidden-sizes is not for --network {self.network}, which makes its own layers")


@dataclass(frozen=True)
class EvaluationSettings(Settings):
    """When and how the policy is evaluated."""

    evaluation_interval_steps: int = 100_000
    """Steps between evaluations; 0: only one at the end."""
    evaluation_episodes: int = 10
    """Whole episodes per evaluation."""
    evaluation_policy: Literal["greedy", "sampled"] = "greedy"
    """Whether the evaluator takes the best action or explores like the workers."""
    evaluation_cpu_share: float | None = None
    """Most of all CPU time for evaluations, which are delayed for it. none: 0.04; 0.1 with --stop-at-score."""
    stop_at_score: float | None = None
    """Finish when the mean of an evaluation's episodes reaches this score."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_not_negative("evaluation_interval_steps")
        self._require_count("evaluation_episodes", most=1_000_000)
        self._require("evaluation_cpu_share", 0 < self.evaluator_share <= 1, "must lie in (0, 1]")
        if self.stop_at_score is not None:
            self._require("stop_at_score", math.isfinite(self.stop_at_score), "must be a number")
            if not self.evaluation_interval_steps:
                raise UsageError("--stop-at-score needs evaluations: give --evaluation-interval-steps")

    @property
    def evaluator_share(self) -> float:
        """The share of all CPU time that evaluations may take. Who waits for a score wants to know of it soon."""
        if self.evaluation_cpu_share is not None:
            return self.evaluation_cpu_share
        return 0.04 if self.stop_at_score is None else 0.1


@dataclass(frozen=True)
class FaultSettings(Settings):
    """What happens when something breaks."""

    on_worker_error: Literal["stop", "restart"] = "stop"
    """After an exception in a worker: end the run with its traceback, or replace the worker (local backend only)."""
    on_env_error: Literal["stop", "rebuild"] = "stop"
    """If an environment raises or returns nonsense: treat it as an error of its worker, or make a new environment."""
    worker_restarts: int = 3
    """How often within 10 minutes a worker, or the evaluator, is replaced after a kill, a crash or a hang."""
    hang_seconds: float = HANG_SECONDS
    """Replace a worker or evaluator that makes no step, or a learner that makes no update, for this long; 0: never."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_not_negative("worker_restarts")
        self._require("hang_seconds", self.hang_seconds == 0 or self.hang_seconds >= 1, "must be 0 or at least 1")
