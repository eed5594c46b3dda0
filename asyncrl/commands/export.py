"""`python -m asyncrl export RUN`: what a run has learnt as one file for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from asyncrl.commands.checkpoint import CheckpointSettings
from asyncrl.commands.program import run_with
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line


@dataclass(frozen=True)
class Config(CheckpointSettings):
    """Export the agent of a run, including the normalisation of its observations, to files for other programs."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    onnx: str = ""
    """File (.onnx) for an ONNX model; needs the extra [export]."""
    torch: str = ""
    """File (.pt2) for a torch.export program."""
    safetensors: str = ""
    """File (.safetensors) for the named weights and the observation moments."""
    check: bool = True
    """Play 1,000 steps with the agent and compare the outputs of the exported models for every observation."""

    def __post_init__(self) -> None:
        files = [file for file in (self.onnx, self.torch, self.safetensors) if file]
        if not files:
            raise UsageError("name a file to write: --onnx FILE, --torch FILE or --safetensors FILE")
        if len({Path(file).absolute() for file in files}) < len(files):
            raise UsageError("--onnx, --torch and --safetensors must name different files")
        for file in files:
            if not Path(file).absolute().parent.is_dir():
                raise UsageError(f"{file}: there is no such folder")


def main(words: Sequence[str]) -> int:
    """Export what the command line says; returns the exit code."""
    return run_with(Config, words, "asyncrl export", write)


def write(config: Config) -> int:
    """Write the files and compare them; returns the exit code: 1 if one of them disagrees with the agent."""
    loaded = config.load(config.run, greedy=True)
    from asyncrl.api import exporting

    model = exporting.ExportedAgent(loaded)
    if config.safetensors:
        exporting.write_safetensors(loaded, model, Path(config.safetensors))
        print_line(config.safetensors)
    good = True
    for name, write_file, read_file in (
        (config.torch, exporting.write_torch, exporting.read_torch),
        (config.onnx, exporting.write_onnx, exporting.read_onnx),
    ):
        if not name:
            continue
        write_file(loaded, model, Path(name))
        agreement = exporting.compare(loaded, model, read_file(Path(name))) if config.check else None
        print_line(name if agreement is None else f"{name}: {agreement}")
        good &= agreement is None or agreement.good
    return 0 if good else 1
