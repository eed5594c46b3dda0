"""The words of a command line as our settings have them: names that other libraries use, and words from files."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.config.arguments import write_argument
from asyncrl.config.groups import default_workers
from asyncrl.core.errors import UsageError
from asyncrl.storage.stored import TRAINED, Permission, read_stored

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
TRUST = "--trust"
"""The flag that allows everything that a run's folder names."""
NOT_TAKEN = ("resume", "run_name", "runs_dir", "quiet")
"""Of a run's settings, those that another run does not take from its config.json."""


def understood(words: Sequence[str], algorithm: str = "") -> list[str]:
    """The words with our own names, and those of `--config FILE` before all others, which therefore count more.

    `algorithm` is the module whose settings they are; a file of another algorithm's is refused. Raises UsageError.
    """
    words = list(spelled_out(words))
    from_files: list[str] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        name, equals, attached = word.partition("=")
        if name != "--config":
            rest.append(word)
            continue
        file = attached if equals else next(left, "")
        if not file or file.startswith("--"):
            raise UsageError("--config needs a value")
        from_files += spelled_out(words_in(Path(file), algorithm, permission_in(words, algorithm)))
    return spread_environments([*from_files, *rest])


def spelled_out(words: Sequence[str]) -> Iterator[str]:
    """The words with a setting's own name where another one was used; `--track` alone is CleanRL's."""
    for word, following in zip(words, [*words[1:], "--"], strict=False):
        name, equals, attached = word.partition("=")
        plain = name.removeprefix("--").replace("-", "_")
        if name.startswith("--") and plain in ALIASES:
            yield "--" + ALIASES[plain].replace("_", "-") + equals + attached
        else:
            yield word
        if word == "--track" and following.startswith("--"):
            yield "wandb"


def spread_environments(words: list[str]) -> list[str]:
    """`--n-envs N`, all environments together, as workers and environments of each. Raises UsageError."""
    kept, total = [], ""
    left = iter(words)
    for word in left:
        name, equals, attached = word.partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") in ENVIRONMENTS:
            total = attached if equals else next(left, "")
            if not total or total.startswith("--"):
                raise UsageError(f"{name} needs a value")
        else:
            kept.append(word)
    if not total:
        return kept
    given = {
        name: read_count(flag, text)
        for name, flag in (("workers", "--workers"), ("envs_per_worker", "--envs-per-worker"))
        if (text := value_of(flag, kept))
    }
    shares = share_environments(read_count("--n-envs", total), given)
    return [*kept, *(word for name in shares for word in ("--" + name.replace("_", "-"), str(shares[name])))]


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


def value_of(flag: str, words: Sequence[str]) -> str:
    """What `words` say after one flag, before the others can be judged; "" if nothing."""
    value = ""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, attached = word.partition("=")
        if name.replace("_", "-") == flag:
            value = attached if equals else following
    return value


def permission_in(words: Sequence[str], algorithm: str = "") -> Permission:
    """What a command line says itself about the code that it needs; `algorithm` is the module that it names."""
    words = list(spelled_out(words))
    given = {name: value_of("--" + name.replace("_", "-"), words) for name in (*TRAINED, "env_kwargs")}
    return Permission({name: text for name, text in (given | {"algorithm": algorithm}).items() if text}, TRUST in words)


def settings_in(path: Path, algorithm: str, permission: Permission) -> dict[str, Any]:
    """The settings in a file for the algorithm of module `algorithm` ("": any). Raises UsageError."""
    own, settings = read_file(path, permission)
    if algorithm and own and algorithm not in (own, f"asyncrl.{own}"):
        raise UsageError(
            f"{path} has settings of {own.removeprefix('asyncrl.')}, not of {algorithm.removeprefix('asyncrl.')}"
        )
    return settings


def words_in(path: Path, algorithm: str, permission: Permission) -> list[str]:
    """The settings in a file as words of a command line. Raises UsageError."""
    words: list[str] = []
    for name, value in settings_in(path, algorithm, permission).items():
        if (name, value) == ("track", []):
            continue  # the flag alone says something else
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag.removeprefix("--"))
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        elif isinstance(value, dict):
            words += [flag, *(write_argument(key, item) for key, item in value.items())]
        else:
            words += [flag, "none" if value is None else str(value)]
    return words


def read_file(path: Path, permission: Permission) -> tuple[str, dict[str, Any]]:
    """The algorithm that a file names ("" if none) and its settings: a run's config.json, or TOML. Raises UsageError.

    In TOML settings stand by themselves or in tables, whose names say nothing; `env_kwargs` may be a table. It is
    written by hand and may name any code; what a config.json names must be allowed.
    """
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json":
        try:
            stored = read_stored(path, flat=True)
            settings = stored.usable_config(permission, trains=True)
            algorithm = stored.algorithm and stored.usable_algorithm(permission)
        except UsageError as error:
            raise UsageError(f"--config {error}") from None
        return algorithm, {name: value for name, value in settings.items() if name not in NOT_TAKEN}
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--config {path} cannot be read: {type(error).__name__}: {error}") from None
    algorithm = str(data.pop("algorithm", ""))
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= value if isinstance(value, dict) and name.replace("-", "_") != "env_kwargs" else {name: value}
    return algorithm, {name.replace("-", "_"): value for name, value in flat.items()}
