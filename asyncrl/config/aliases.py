"""Settings by names that other libraries use, and numbers as people write them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from asyncrl.config.groups import default_workers
from asyncrl.core.errors import UsageError

ALIASES = {
    "lr": "learning_rate",
    "env": "env_id",
    "total_timesteps": "total_steps",
    "timesteps": "total_steps",
    "max_steps": "total_steps",
    "num_workers": "workers",
    "async_update_interval": "t_max",
    "wandb_project_name": "track_project",
}
"""Other names of settings: those of Stable-Baselines3, CleanRL and RLlib; the pseudo-code of the one-step methods calls
t_max I_AsyncUpdate."""
ENVIRONMENTS = ("n_envs", "num_envs")
"""What others call all environments together; the first is the name that stays."""


def share_environments(total: int, given: Mapping[str, int]) -> dict[str, int]:
    """Workers and environments of each for `total` environments; `given` is what was said of either.

    Where nothing was: as many workers as divide them, up to two per core. Raises UsageError.
    """
    if len(given) == 2 or total < 1:
        raise UsageError("--n-envs is --workers times --envs-per-worker: give one or two of the three, of at least 1")
    if not given:
        workers = max(count for count in range(1, min(total, default_workers()) + 1) if total % count == 0)
        return {"workers": workers, "envs_per_worker": total // workers}
    ((name, count),) = given.items()
    if count < 1 or total % count:
        raise UsageError(f"--n-envs {total} cannot be divided by --{name.replace('_', '-')} {count}")
    return {"workers" if name == "envs_per_worker" else "envs_per_worker": total // count}


def parse_integer(text: str) -> int:
    """A whole number as people write them: 10000000, 10_000_000 or 1e7. Raises ValueError otherwise."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError, OverflowError):
        number = float(text)
        if number == int(number):
            return int(number)
    raise ValueError(f"takes a whole number, got {text!r}")


def read_count(flag: str, text: str) -> int:
    """A whole number. Raises UsageError."""
    try:
        return parse_integer(text)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from None
