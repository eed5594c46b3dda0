"""The settings that every algorithm takes, grouped as in the help.

A group is a frozen dataclass that checks its own fields. A field's name is also the flag and the key in config.json;
the text below it is its help. `RunConfig` joins all groups.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal

from asyncrl.core.devices import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.core.user_code import HANG_SECONDS, is_name

MOST_WORKERS = 10_000
AUTO = "auto"
"""--resume auto: the newest run of the same name, or a new one."""
AUTO_HOSTS = 16
"""Room for hosts of --hosts auto."""
LONG_STEPS = 5_000_000
"""A run with at least this many --total-steps, without a limit by score or time and without --preset, uses the preset
"long" if there is one."""
NETWORKS = ("auto", "small", "board", "paper", "nature", "mlp")
_ON_SOME = {
    "schedule delays": ("serial",),
    "reduce init_method collective_timeout_seconds check_replicas": ("collective",),
    "hosts address parameter_shards learner_resource push exchange_updates replay_hosts": ("ray",),
    "update": ("local", "serial", "ray"),
    "statistics": ("local", "serial"),
    "on_worker_error worker_restarts learner_threads": ("local", "ray"),
    "learner_device": ("local", "serial", "ray"),
}
BACKENDS = {name: backends for names, backends in _ON_SOME.items() for name in names.split()}
"""Settings that do something on some backends only; help shows them there."""
HARMLESS = ("check_replicas", "collective_timeout_seconds", "exchange_updates", "init_method", "worker_restarts")
"""Of these, those that may be given on all backends; presets have some."""


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
class Limits:
    """The range allowed for a setting; if it has several numbers, for each of them."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    or_zero: bool = False

    def allow(self, value: float) -> bool:
        """Whether a number is within these limits."""
        within = self.least <= value <= self.most and self.above < value < self.below
        return within or (self.or_zero and value == 0)

    def __str__(self) -> str:
        limits = {"at least": self.least, "more than": self.above, "at most": self.most, "less than": self.below}
        given = [f"{words} {limit:_}" for words, limit in limits.items() if math.isfinite(limit)]
        return "must be " + "0 or " * self.or_zero + " and ".join(given)


def limited(default: Any, least: float = -math.inf, most: float = math.inf, **more: Any) -> Any:
    """A field with `Limits`, for classes derived from its own too; `default` may be a function that makes it.

    A number that is far too large is a typing error, and would exhaust the memory much later.
    """
    given: dict[str, Any] = {"default_factory": default} if callable(default) else {"default": default}
    return field(**given, metadata={"limits": Limits(least, most, **more)})


@functools.cache
def _limits_of(cls: type[Any]) -> dict[str, Limits | None]:
    """The limits of each field, which a derived class keeps when it changes a default."""
    found: dict[str, Limits | None] = {}
    for base in reversed(cls.__mro__):
        for one in fields(base) if is_dataclass(base) else ():
            found[one.name] = one.metadata.get("limits", found.get(one.name))
    return found


@dataclass(frozen=True)
class Settings:
    """Base of all groups: settings that are checked when they are created, each group by its own `check`."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise UsageError for the first impossible value. Here: for numbers outside their limits or not finite."""
        cls: Any = type(self)
        for name, limits in _limits_of(cls).items():
            given = getattr(self, name)
            numbers = [one for one in (given if isinstance(given, tuple) else (given,)) if isinstance(one, int | float)]
            self._require(name, all(abs(number) < math.inf for number in numbers), "must be a number")
            self._require(name, limits is None or all(map(limits.allow, numbers)), str(limits))

    def _require(self, field: str, condition: bool, demand: str) -> None:
        if not condition:
            raise UsageError(f"{flag(field)} {demand}, got {getattr(self, field)}")

    def _require_choice(self, field: str, choices: Sequence[str]) -> None:
        """One of the choices, or something of the user's own."""
        given = getattr(self, field)
        if given not in choices and not is_name(given):
            raise UsageError(f"{flag(field)} takes {', '.join(choices)} or module:factory, got {given!r}")

    def _require_schedule(self, field: str, most: float = math.inf) -> None:
        """A name, or points with values of at most `most`."""
        if getattr(self, field) not in ("linear", "constant"):
            from asyncrl.core.points import is_schedule

            fits = is_schedule(getattr(self, field), most)
            self._require(field, fits, "takes linear, cosine, constant or points such as 0:1,0.5:0.1,1:0")


@dataclass(frozen=True)
class RunSettings(Settings):
    """Length of the run, and where it is stored."""

    preset: Literal["default", "long", "paper"] = "default"
    """Starting point of the other settings: the tuned defaults, those for long runs, or the paper's exact settings."""
    total_steps: int = limited(10_000_000, 1, 2**53)
    """T_max: the run finishes after this many steps, summed over all workers."""
    max_seconds: float = limited(0.0, 0)
    """Finish after this many seconds of training, not counting those before --resume; 0: no limit."""
    seed: int = limited(1, 0, 2**63 - 1)
    """Random seed. The serial backend repeats a run bit for bit on the same kind of processor."""
    runs_dir: str = "runs"
    """Folder for runs: each gets RUNS_DIR/algorithm/environment/name."""
    run_name: str = ""
    """Name of the run's folder; empty: built from workers, seed and time."""
    resume: str = ""
    """Folder of a run to resume from its newest checkpoint; auto: the newest run of the same name, or a new run."""
    load: str = ""
    """Start with another run's weights, layer by layer where they fit; the folder of that run or of one checkpoint."""
    quiet: bool = False
    """Print only the run folder, the outcome and errors."""
    track: tuple[str, ...] = ()
    """Log the run to Weights & Biases (wandb, also the meaning of --track alone), MLflow (mlflow) or both."""
    track_project: str = "asyncrl"
    """Project of Weights & Biases, experiment of MLflow."""
    checkpoint_interval_steps: int = limited(500_000, 0)
    """Steps between checkpoints; 0: only when the run ends or is stopped, which always writes one."""
    checkpoints_kept: int = limited(3, 1, 1_000_000)
    """How many checkpoints are kept, besides the best one."""
    record_interval_seconds: float = limited(2.0, 0)
    """Seconds between two rows of a worker's records."""

    @property
    def is_resumed(self) -> bool:
        """Whether a run is resumed; otherwise a new one begins."""
        return self.resume not in ("", AUTO)

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require("track_project", bool(self.track_project), "must not be empty")


@dataclass(frozen=True)
class EnvironmentSettings(Settings):
    """The environment, and how observations reach the network."""

    env_id: str = "ALE/Pong-v5"
    """Environment: an Atari id (ALE/Pong-v5), any Gymnasium id, Chain, Catch, or module:factory."""
    env_kwargs: tuple[str, ...] = ()
    """Keyword arguments of the environment, as key=value."""
    max_episode_steps: int = limited(0, 0)
    """Truncate episodes after this many steps; 0: 108 000 frames (30 minutes) on Atari, otherwise as registered."""
    frame_skip: int = limited(0, 0, 1_000)
    """Frames per step: the action is repeated and rewards are summed; 0: 4 on Atari, otherwise 1."""
    frame_stack: int = limited(0, 0, 100)
    """Number of recent images or vectors stacked into an observation; 0: 4 on Atari, otherwise 1."""
    image_size: int = limited(0, 16, 1_000, or_zero=True)
    """Convert images to grey and resize them to this height and width in pixels; 0: 42 on Atari, else unchanged."""
    action_masks: bool = False
    """Choose only valid actions: those marked 1 in the environment's info["action_mask"], an array of 0 and 1."""
    sticky_actions: float = limited(0.0, 0, 1)
    """Probability, at each frame, of repeating the previous action; overrides the default of the id."""
    noop_max: int = limited(30, 0, 10_000)
    """Atari: an episode begins with 1 to this many no-op actions; 0: none."""
    life_loss: bool = False
    """Atari: in training, a lost life ends the return (the game continues)."""
    full_action_space: bool = False
    """Atari: all 18 actions."""


@dataclass(frozen=True)
class ParallelismSettings(Settings):
    """Number of workers, and how their results are combined."""

    workers: int = limited(default_workers, 1, MOST_WORKERS)
    """Number of workers, each with its own environments and exploration. By default two per usable core."""
    # Four environments per worker: a batch of 4 costs half of 4 single observations in the network.
    envs_per_worker: int = limited(4, 1, 10_000)
    """Environments of each worker (E), evaluated as one batch. The paper uses 1."""
    # 20 steps instead of 5: a quarter of the pulls and pushes, and returns that look further.
    t_max: int = limited(20, 1, 1_000_000)
    """Steps of each environment between two updates (I_AsyncUpdate; --async-update-interval is the same)."""
    backend: Literal["local", "serial", "collective", "ray"] = "local"
    """local: a process per worker. serial: one process, reproducible. collective: ranks in step. ray: several hosts."""
    schedule: Literal["round-robin", "random"] = "round-robin"
    """Serial backend: the order in which workers take turns."""
    delays: tuple[float, ...] = limited((), above=0)
    """Serial backend: duration of a turn of worker 0, 1, ... in any unit, instead of a schedule; the list repeats."""
    update: Literal["hogwild", "locked"] = "hogwild"
    """hogwild: push to the shared parameters without a lock, as in the paper. locked: a lock for push and exchange."""
    statistics: Literal["auto", "shared", "per-worker"] = "auto"
    """Optimiser statistics: shared by all workers, or one set per worker. auto: per worker for momentum-sgd only."""
    overlap: bool = False
    """Collect the next rollouts, one update behind, while learning (A2C, PPO; not with ranks) or reducing (ranks)."""
    reduce: Literal["experience", "gradients"] = "experience"
    """Collective backend, A2C and PPO: gather rollouts at rank 0, or average the gradients that ranks compute."""
    init_method: str = ""
    """Collective backend: rendezvous of the ranks, tcp://HOST:PORT or file://PATH; empty: the launcher's, or local."""
    collective_timeout_seconds: float = limited(60.0, 1, 1e6)
    """Collective backend: seconds to wait for a rank before it counts as lost and the run ends."""
    check_replicas: int = limited(1_000, 0)
    """Collective backend: updates between comparisons of all ranks' parameters; 0: never."""

    hosts: int | Literal["auto"] = limited(1, 1, MOST_WORKERS)
    """Ray backend: machines, each with --workers workers; some may join later. auto: all available, at most 16."""
    address: str = ""
    """Ray backend: the cluster to join, HOST:PORT or auto; empty: RAY_ADDRESS, or a new cluster on this machine."""
    parameter_shards: int = limited(1, 1, 1_000)
    """Ray backend: number of parameter-server processes, each holding a part of the parameters."""
    learner_resource: str = ""
    """Ray backend, methods with a learner: place it on a machine with this resource; empty: the driver's machine."""
    push: Literal["exchange", "every-update"] = "exchange"
    """Ray backend: hosts exchange parameter changes now and then, or send each gradient at once (Gorila's default)."""
    exchange_updates: int = limited(1, 1, 1_000_000)
    """Ray backend: updates per worker between two exchanges with other hosts, which are at most a second apart."""

    @property
    def most_hosts(self) -> int:
        """The number of hosts for which there is room."""
        return min(AUTO_HOSTS, MOST_WORKERS // self.workers) if self.hosts == "auto" else self.hosts

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        if self.hosts != "auto":
            most = MOST_WORKERS // self.workers
            self._require("hosts", self.hosts <= most, f"must be at most {most:_}")
        if not getattr(self, "resume", ""):  # a run that is resumed on another backend may keep them
            for name, backends in BACKENDS.items():
                given = getattr(self, name, None) != getattr(type(self), name, None)
                if given and self.backend not in backends and name not in HARMLESS:
                    raise UsageError(f"{flag(name)} is for --backend {listed(backends)}")
        if self.delays and self.schedule != "round-robin":
            raise UsageError(f"--delays and --schedule {self.schedule} both set the order of turns: give only one")
        fits = not self.init_method or self.init_method.startswith(("tcp://", "file://"))
        self._require("init_method", fits, "takes tcp://HOST:PORT or file://PATH")


@dataclass(frozen=True)
class LearnerSettings(Settings):
    """Further settings of algorithms with a learner, for its process."""

    learner_threads: int = limited(1, 1, 1_000)
    """Local and ray backends: threads of the learner. Useful if cores are idle while it learns."""
    learner_device: str = "cpu"
    """Device for the learner's losses and gradients: cpu, cuda, cuda:1, ... Parameters are updated in host memory."""


@dataclass(frozen=True)
class OptimiserSettings(Settings):
    """Scaling of rewards and gradients, and the update rule."""

    # Adam's epsilon needs no tuning to the scale of rewards, and its fused update takes half the time of RMSProp's.
    optimizer: Literal["rmsprop", "centred-rmsprop", "adam", "momentum-sgd", "adagrad"] = "adam"
    """Update rule. momentum-sgd with a decay of 0 is plain SGD."""
    learning_rate: float = limited(6e-4, above=0)
    """Learning rate (eta) at the first step."""
    learning_rate_schedule: str = "linear"
    """Factor of the learning rate over total_steps: linear, cosine, constant, or points (0:1,0.5:0.1,1:0)."""
    gamma: float = limited(0.99, 0, 1)
    """Discount per step."""
    max_gradient_norm: float = limited(40.0, 0)
    """Scale gradients with a larger L2 norm down to this norm; 0: never."""
    optimizer_decay: float = limited(0.999, 0, below=1)
    """alpha of rmsprop (centred or not) and momentum-sgd, beta_2 of adam."""
    optimizer_epsilon: float = limited(1e-8, above=0)
    """rmsprop, centred or not: added inside the square root. adam, adagrad: added to the square root."""
    optimizer_momentum: float = limited(0.9, 0, below=1)
    """beta_1 of adam."""
    reward_clip: float = limited(0.0, 0)
    """Clip rewards to [-x, x] in the loss, after any scaling; 0: do not clip (Atari 1). Scores stay raw."""
    normalize_returns: bool = False
    """Divide rewards in the loss by the standard deviation of discounted returns over all workers."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_schedule("learning_rate_schedule")


@dataclass(frozen=True)
class NetworkSettings(Settings):
    """The network that computes policies and values."""

    layers_after_network: ClassVar[bool] = False
    """Whether there are fully connected layers after a network of the user's own."""
    network: str = "auto"
    """Body: auto (small for screens, board, mlp for vectors), small, board, mlp, paper, nature or module:factory."""
    hidden_sizes: tuple[int, ...] = limited((), 1, 100_000)
    """Widths of the fully connected layers; empty: the network's own (256; nature 512; mlp 64 64)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products in large layers. bfloat16 saves time in large networks; refused if slower here."""
    # Most of a game's screen does not move. Per-pixel moments remove that and leave what moves: Pong began to improve
    # after a third of the steps it took without them.
    normalize_observations: bool = True
    """Normalise each component (pixel) of observations to mean 0 and standard deviation 1 over all workers."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_choice("network", NETWORKS)
        whole = is_name(self.network) and not (self.layers_after_network or getattr(self, "dueling", False))
        if self.hidden_sizes and whole:
            raise UsageError(f"--hidden-sizes is not for --network {self.network}, which defines its own layers")


@dataclass(frozen=True)
class EvaluationSettings(Settings):
    """When and how the policy is evaluated."""

    evaluation_interval_steps: int | Literal["auto"] = limited(AUTO, 0)
    """Steps between evaluations; 0: one at the end. auto: a twentieth of the run, but at most 100 000 steps."""
    evaluation_episodes: int = limited(10, 1, 1_000_000)
    """Episodes per evaluation."""
    evaluation_policy: Literal["greedy", "sampled"] = "greedy"
    """greedy: evaluate with the best action. sampled: explore like the workers."""
    evaluation_cpu_share: float | None = limited(None, most=1, above=0)
    """Largest share of CPU time for evaluations, which are delayed to keep it. none: 0.04; 0.1 with --stop-at-score."""
    stop_at_score: float | None = None
    """Finish when the mean score of an evaluation reaches this value."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        if self.stop_at_score is not None and not self.evaluation_interval_steps:
            raise UsageError("--stop-at-score needs evaluations: give --evaluation-interval-steps")

    @property
    def evaluator_share(self) -> float:
        """The share of all CPU time that evaluations may take. A run that waits for a score needs them soon."""
        if self.evaluation_cpu_share is not None:
            return self.evaluation_cpu_share
        return 0.04 if self.stop_at_score is None else 0.1


@dataclass(frozen=True)
class FaultSettings(Settings):
    """What happens when something breaks."""

    on_worker_error: Literal["stop", "restart"] = "stop"
    """After an exception in a worker: end the run with its traceback, or replace it (local and Ray backends)."""
    on_env_error: Literal["stop", "rebuild"] = "stop"
    """If an environment raises or returns invalid values: treat it as the worker's error, or rebuild it."""
    worker_restarts: int = limited(3, 0)
    """How often a worker or the evaluator may be replaced within 10 minutes, after a kill, a crash or a hang."""
    hang_seconds: float = limited(HANG_SECONDS, 1, or_zero=True)
    """Seconds without a step (worker, evaluator) or an update (learner) after which a process is replaced; 0: never."""
