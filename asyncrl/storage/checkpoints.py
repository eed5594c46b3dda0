"""Checkpoints: a folder each, published by one rename, checked by content, free of pickles.

    checkpoints/
        step_000001200000/            the run after 1,200,000 steps
            weights.safetensors       the network's parameters only: safe to share
            state.safetensors         every other tensor: optimiser statistics, target network, random states
            manifest.json             counters and facts, and the size and SHA-256 of the two files and of itself
        step_000001200000.1/          the same step saved again; takes the place of the one above
        best_000000900000/            the best evaluation so far

A checkpoint is written under a hidden name, synced, read back, and renamed once. A kill at any moment, a full disk or a
power cut therefore leaves the earlier checkpoints as they were, and no name that looks like a checkpoint but is none.
Nothing is ever renamed over an existing checkpoint: a folder cannot be replaced in one step, so a new one gets a new
name, and the old one goes when the new one is safe. Loading believes a folder only after its sums agree.

A disk that is full or fails for a moment costs nothing: a save is tried several times, some seconds in all.

Each kind ("step", "best") has one writer at a time. It may be another process for each kind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from asyncrl.core.errors import NotFinite
from asyncrl.storage.files import TRIES, plain, sync_folder, with_patience, write_synced
from asyncrl.storage.run_folder import versions

FORMAT = "asyncrl checkpoint"
SCHEMA = 1
WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.safetensors", "manifest.json"

MOST = 2**53
"""No counter gets there; with a number that does, sums and milliseconds would not fit into shared memory."""
_ENTRIES: dict[str, type | tuple[type, ...]] = {
    "steps": int, "updates": int, "seconds": (int, float), "files": dict, "facts": dict,
}  # fmt: skip
"""What a manifest must have besides format, schema and sum."""

# Hidden names: nothing that looks for checkpoints can take one of these for a checkpoint.
_SAVING, _DELETING = ".saving-", ".deleting-"


class BadCheckpoint(Exception):
    """A checkpoint that cannot be used; the message is one line that names the file and the reason."""


class NotRead(BadCheckpoint):
    """The disk fails now: the checkpoint may be valid."""


class NotSaved(OSError):
    """A checkpoint that could not be written in several tries; `errno` is that of the last one."""

    def __init__(self, steps: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self._steps, self._cause = steps, error.strerror or str(error)

    def __str__(self) -> str:
        return f"the checkpoint of step {self._steps:,} could not be written in {TRIES} tries: {self._cause}"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a run needs to go on."""

    steps: int
    """Agent steps made."""
    updates: int
    """Updates applied to the parameters."""
    seconds: float
    """Seconds trained, over all parts of the run."""
    parameters: dict[str, Tensor]
    """The network's parameters by name."""
    tensors: dict[str, Tensor]
    """Every other tensor by name; a random state is a uint8 tensor."""
    facts: dict[str, Any]
    """Plain JSON data. It comes back as JSON gives it: tuples as lists, keys as strings, nan and infinity as None."""


def save(folder: Path, checkpoint: Checkpoint, keep: int = 3, kind: str = "step") -> Path:
    """Write a checkpoint into `folder`, and return its path.

    Of the kind "step" the newest `keep` up to this one stay; those further on do too, which are what an earlier part of
    the run left. Of the kind "best" only this one stays. `folder` must be there. Raises NotFinite, before anything is
    written, when a number is not finite, and NotSaved when the disk is full or fails, after several tries; the earlier
    checkpoints are valid then, and nothing unfinished is left.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    if (name := _not_finite(checkpoint.parameters | checkpoint.tensors)) is not None:
        raise NotFinite(f"{name} holds a number that is not finite; such a checkpoint is not saved")
    try:
        path = with_patience(lambda: _publish(folder, kind, checkpoint))
    except OSError as error:
        raise NotSaved(checkpoint.steps, error) from error
    with contextlib.suppress(OSError):  # the next save tries again
        for older in _superfluous(find(folder, kind), path, keep, kind):
            _delete(older)
    return path


def load(path: Path) -> Checkpoint:
    """Return the checkpoint in the folder `path`.

    Raises BadCheckpoint when it is missing, damaged or foreign, or when a number in it is not finite.
    """
    manifest = _read_manifest(path)
    counters = manifest["steps"], manifest["updates"], manifest["seconds"]
    parameters, tensors = (_read_tensors(path / name, manifest["files"][name]) for name in (WEIGHTS, STATE))
    return Checkpoint(*counters, parameters, tensors, manifest["facts"])


def load_newest(folder: Path, kind: str = "step", set_aside: bool = False) -> tuple[Checkpoint, list[str]]:
    """Return the newest valid checkpoint of a kind, "step" or "best", and a line for each newer one that was skipped.

    `set_aside`: the run goes on from it, so the skipped ones get other names: if they could be read again later, they
    would take the place of what follows. Raises BadCheckpoint when there is none, or if one to be set aside cannot be
    read now.
    """
    skipped: list[str] = []
    paths = find(folder, kind)
    for number, path in reversed(list(enumerate(paths))):
        try:
            checkpoint = load(path)
        except BadCheckpoint as error:
            if set_aside and isinstance(error, NotRead):
                raise BadCheckpoint(f"{error}: try again later, or delete it to go on from the one before") from None
            skipped.append(f"skipped a checkpoint: {error}")
            continue
        for newer in paths[number + 1 :] if set_aside else ():
            with contextlib.suppress(OSError):
                newer.rename(newer.with_name(f"skipped_{newer.name}"))
        return checkpoint, skipped
    raise BadCheckpoint("; ".join([f"{folder}: no valid checkpoint", *skipped]))


def find(folder: Path, kind: str = "step") -> list[Path]:
    """The paths of all checkpoints of a kind, "step" or "best", oldest first, valid or not."""
    names = [path.name for path in (folder.iterdir() if folder.is_dir() else ())]
    return [folder / name for name in sorted(filter(re.compile(rf"{kind}_\d+(\.\d+)?").fullmatch, names), key=_place)]


def _place(name: str) -> tuple[int, int]:
    """Steps and revision of a checkpoint: step_000000000100.2 is the third that was saved at step 100."""
    steps, _, revision = name.partition("_")[2].partition(".")
    return int(steps), int(revision or 0)


def clean(folder: Path) -> None:
    """Remove what a killed save left. Call it before the writers start, never while one may be saving."""
    for pattern in (_SAVING, _DELETING):
        for path in folder.glob(f"{pattern}*"):
            if path.is_symlink():  # somebody else's folder may hold anything
                path.unlink()
            else:
                shutil.rmtree(path)


def _publish(folder: Path, kind: str, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint and give it its name."""
    temporary = folder / f"{_SAVING}{kind}"
    if temporary.exists():  # left by a writer of this kind that was killed
        shutil.rmtree(temporary)
    try:
        _write(temporary, checkpoint)
        path = _free_name(folder, kind, checkpoint.steps)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder)
    return path


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the three files, wait for the disk, and read them back."""
    folder.mkdir()  # without its parents: those of a run that somebody has deleted must not come back
    files = {}
    for name, tensors in ((WEIGHTS, checkpoint.parameters), (STATE, checkpoint.tensors)):
        content = safetensors.torch.save(_own(tensors), metadata={"format": "pt"})
        write_synced(folder / name, content)
        files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = plain(
        {
            "format": FORMAT,
            "schema": SCHEMA,
            "steps": checkpoint.steps,
            "updates": checkpoint.updates,
            "seconds": checkpoint.seconds,
            "versions": versions(),
            "files": files,
            "facts": checkpoint.facts,
        }
    )
    manifest["sha256"] = _sum_of(manifest)
    write_synced(folder / MANIFEST, (json.dumps(manifest, indent=2, allow_nan=False) + "\n").encode())
    sync_folder(folder)
    try:
        load(folder)
    except BadCheckpoint as error:
        raise OSError(f"a checkpoint was written but cannot be read back: {error}") from error


def _own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies: the sums must be of what is written, also while others go on writing to the originals.

    Copies also separate views of one tensor, which safetensors refuses.
    """
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a NaN or an infinity, or None."""
    return next((name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())), None)


def _free_name(folder: Path, kind: str, steps: int) -> Path:
    """Return the next unused path for these steps: step_000000000100, then step_000000000100.1 and so on."""
    revisions = [revision for found, revision in (_place(path.name) for path in find(folder, kind)) if found == steps]
    suffix = f".{max(revisions) + 1}" if revisions else ""
    return folder / f"{kind}_{steps:012d}{suffix}"


def _superfluous(paths: list[Path], saved: Path, keep: int, kind: str) -> list[Path]:
    """Which of all checkpoints of a kind, oldest first, the one just saved makes superfluous."""
    if kind == "best":
        return [path for path in paths if path != saved]
    older = paths[: paths.index(saved)]
    others = [path for path in older if _place(path.name)[0] != _place(saved.name)[0]]
    kept = others[max(0, len(others) - (keep - 1)) :]
    return [path for path in older if path not in kept]


def _delete(path: Path) -> None:
    """Delete a checkpoint; it vanishes as a whole before its files go."""
    hidden = path.with_name(f"{_DELETING}{path.name}")
    if hidden.exists():
        shutil.rmtree(hidden)
    os.rename(path, hidden)
    shutil.rmtree(hidden)


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint once its own sum agrees."""
    file = path / MANIFEST
    try:
        if not path.is_dir():
            raise BadCheckpoint(f"{path}: no such checkpoint")
    except OSError as error:
        raise NotRead(f"{path}: cannot be read ({error.strerror})") from error
    try:
        manifest = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{file}: damaged, not valid JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadCheckpoint(f"{file}: not a checkpoint of asyncrl")
    if manifest.get("schema") != SCHEMA:
        raise BadCheckpoint(f"{file}: has schema {manifest.get('schema')}, this version of asyncrl reads {SCHEMA}")
    if manifest.pop("sha256", None) != _sum_of(manifest):
        raise BadCheckpoint(f"{file}: damaged, its SHA-256 differs")
    if (name := _misfit(manifest)) is not None:
        raise BadCheckpoint(f"{file}: {name} is missing or invalid")
    return manifest


def _misfit(manifest: Mapping[str, Any]) -> str | None:
    """Return the name of the first entry that is missing or of the wrong type or size, or None."""
    for name, kind in _ENTRIES.items():
        value = manifest.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            return name
        if isinstance(value, int | float) and not 0 <= value < MOST:
            return name
    return next((name for name in (WEIGHTS, STATE) if not isinstance(manifest["files"].get(name), dict)), None)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise BadCheckpoint(f"{file}: missing") from None
    except OSError as error:
        raise NotRead(f"{file}: cannot be read ({error.strerror})") from error


def _read_tensors(file: Path, expected: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a file once its size and sum agree with the manifest."""
    content = _read(file)
    if len(content) != expected.get("bytes"):
        raise BadCheckpoint(f"{file}: damaged, {len(content)} bytes instead of {expected.get('bytes')}")
    if hashlib.sha256(content).hexdigest() != expected.get("sha256"):
        raise BadCheckpoint(f"{file}: damaged, its SHA-256 differs")
    try:
        tensors = dict(safetensors.torch.load(content))
        name = _not_finite(tensors)
    except (safetensors.SafetensorError, KeyError, RuntimeError):  # of a dtype, too, that torch cannot compute with
        raise BadCheckpoint(f"{file}: not a safetensors file") from None
    if name is not None:
        raise BadCheckpoint(f"{file}: {name} holds a number that is not finite")
    return tensors


def _sum_of(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest's content, whatever its layout on disk."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
