"""`python -m asyncrl export RUN`: what a run has learnt as one file for other programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from asyncrl.commands.program import permission_of, run_command
from asyncrl.config.commandline import parse
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread


@dataclass(frozen=True)
class Config:
    """Write what a run has learnt, with the normalisation of its observations, into files for other programs."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    onnx: str = ""
    """File (.onnx) for an ONNX model; needs the extra [export]."""
    torch: str = ""
    """File (.pt2) for a program of torch.export."""
    safetensors: str = ""
    """File (.safetensors) for the weights by name and the moments of observations."""
    checkpoint: str = "best"
    """best, newest, or the name of one, such as step_000000500000."""
    check: bool = True
    """Let the agent play for 1,000 observations, and compare what the ONNX model and the program say to each."""
    env_id: str = ""
    """The run's environment, where it has another name here."""
    trust: bool = False
    """Import whatever the folder names, whoever made it."""


def main(words: Sequence[str] | None = None) -> int:
    """Export what the command line says; returns the exit code."""
    words = sys.argv[1:] if words is None else words
    request_one_thread()
    enforce_one_thread()
    program = "asyncrl export"

    def export() -> int:
        config = parse(Config, words, program)
        files = [config.onnx, config.torch, config.safetensors]
        if not any(files):
            raise UsageError("say what to write: --onnx FILE, --torch FILE or --safetensors FILE")
        for file in filter(None, files):
            if not Path(file).absolute().parent.is_dir():
                raise UsageError(f"{file}: there is no such folder")
        return write(config)

    return run_command(program, export)


def write(config: Config) -> int:
    """Write the files and compare them; returns the exit code: 1 if one of them says something else than the agent."""
    from asyncrl.api import exporting
    from asyncrl.api.playing import load_run

    permission = permission_of(config.env_id, config.trust)
    loaded = load_run(config.run, config.checkpoint, greedy=True, permission=permission)
    model = exporting.Deciding(loaded)
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


if __name__ == "__main__":
    raise SystemExit(main())
