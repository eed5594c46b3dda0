"""What the commands that use a run's checkpoint have in common: their flags, and how they load it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.core.errors import UsageError
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread
from asyncrl.storage.stored import Permission

if TYPE_CHECKING:
    from asyncrl.api.playing import Loaded


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """Which checkpoint is loaded, and what its folder may import."""

    checkpoint: str = "best"
    """best, newest, or the name of one, such as step_000000500000."""
    env_id: str = ""
    """Id of the run's environment, if it has a different name on this machine."""
    trust: bool = False
    """Import the code that the folder names, even if somebody else wrote the folder."""

    def load(
        self,
        run: Path,
        checkpoint: str = "",
        seed: int = 0,
        greedy: bool | None = None,
        change: Callable[[EnvSpec], EnvSpec] = lambda spec: spec,
    ) -> Loaded:
        """The checkpoint of a run, as `load_run` loads it; this process then computes with one thread."""
        request_one_thread()
        from asyncrl.api.playing import load_run

        enforce_one_thread()
        permission = Permission({"env_id": self.env_id} if self.env_id else {}, self.trust)
        return load_run(run, checkpoint or self.checkpoint, seed, greedy, change, permission)


@dataclass(frozen=True, kw_only=True)
class PlaySettings(CheckpointSettings):
    """How a checkpoint is played."""

    greedy: bool = False
    """Take the best action. Without --greedy or --sampled, act as in the run's evaluations."""
    sampled: bool = False
    """Sample actions like the run's workers, as far as the evaluator can."""
    seed: int = 0
    """Seed of environments and actions. Equal seeds give equal episodes; a run's own evaluations never use them."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed must lie between 0 and 2^63, got {self.seed}")
        if self.greedy and self.sampled:
            raise UsageError("--greedy and --sampled are mutually exclusive: give only one")

    def play(self, run: Path, checkpoint: str = "", change: Callable[[EnvSpec], EnvSpec] = lambda spec: spec) -> Loaded:
        """The checkpoint, loaded to be played as these settings say; `change` may replace the environment."""
        greedy = self.greedy if self.greedy or self.sampled else None
        return self.load(run, checkpoint, self.seed, greedy, change)
