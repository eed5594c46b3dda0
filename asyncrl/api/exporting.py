"""What a run has learnt as one file for other programs: ONNX, torch.export, or weights alone.

All three include the moments that normalise the agent's observations.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asyncrl.api.episode import outputs_of
from asyncrl.api.playing import Loaded
from asyncrl.core.errors import UsageError
from asyncrl.core.moments import LARGEST, standardize
from asyncrl.core.rollout import State
from asyncrl.envs.spec import BadEnvironment, EpisodeLost, close_all
from asyncrl.runtime.collect import for_environments, reset_state
from asyncrl.runtime.normalize import make_normalizer
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.run import build_agent, build_environments
from asyncrl.storage.files import disk_is_full, plain, replace_file
from asyncrl.storage.stored import read_stored

CHECKED = 1000
"""Observations on which an exported file is compared with the agent."""
TOLERANCE = 1e-3
"""Largest accepted difference from the agent's numbers, relative to 1 or to their size, due to the order of sums."""
_SIDE_BY_SIDE = 8


class Deciding(nn.Module):
    """From raw observations `[B, *shape]` and the recurrent state to what `outputs_of` returns and the next state.

    The result is one tuple of tensors, with their names in `outputs`. The run must have been loaded with `greedy`.
    """

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        run = loaded.run
        self.spaces = run.spec.spaces
        self.agent, replica = build_agent(run, EVALUATOR)
        replica.pull(run.handles.store)
        self.network = self.agent.network
        for parameter in self.network.parameters():
            parameter.data = parameter.data.clone()  # they are views of one vector, which a file would repeat for each
        self.normalizer = make_normalizer(run.handles.moments, EVALUATOR, run.spec)
        self.moments = None if self.normalizer is None else self.normalizer.used
        """Mean and reciprocal deviation; None: observations are not normalised."""
        state = self.initial_state(2)
        with torch.inference_mode():
            outputs, after = self.decide(self.example(2), state)
        self.inputs = ["observation", *(f"state_{i}" for i in range(len(state)))]
        self.outputs = [*outputs, *(f"next_state_{i}" for i in range(len(after or ())))]

    def example(self, count: int) -> Tensor:
        """Observations `[count, *shape]` of zeros."""
        shape, dtype = self.spaces.observation_shape, getattr(torch, self.spaces.observation_dtype)
        return torch.zeros((count, *shape), dtype=dtype)

    def initial_state(self, count: int) -> tuple[Tensor, ...]:
        """The state in which episodes begin, `[count, ...]` each; empty for a feed-forward network."""
        return self.agent.initial_state(count) or ()

    def decide(self, observation: Tensor, state: Sequence[Tensor]) -> tuple[dict[str, Tensor], State]:
        """What `outputs_of` returns, by name, and the next state."""
        seen = observation if self.moments is None else standardize(observation, *self.moments)
        return outputs_of(self.network, self.spaces, seen, tuple(state) or None)

    def forward(self, observation: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """The same as one tuple, in the order of `outputs`."""
        outputs, after = self.decide(observation, state)
        return (*outputs.values(), *(after or ()))


def describe(loaded: Loaded) -> dict[str, str]:
    """A file's metadata, as text."""
    spec, checkpoint = loaded.run.spec, loaded.checkpoint
    return {
        "format": "asyncrl agent 1",
        "algorithm": spec.algorithm,
        "env_id": spec.environment.env_id,
        "steps": str(checkpoint.steps),
        "spaces": json.dumps(plain(dataclasses.asdict(spec.spaces))),
        "config": json.dumps(read_stored(spec.folder.config_file).config),
    }


def export_program(model: Deciding) -> torch.export.ExportedProgram:
    """The model exported by torch.export, for any number of observations. Raises UsageError if it cannot be traced."""
    batch = torch.export.Dim("batch", min=1)
    state = model.initial_state(2)
    shapes = ({0: batch}, *([tuple({0: batch} for _ in state)] if state else []))
    try:
        with torch.no_grad():
            return torch.export.export(model.eval(), (model.example(2), *state), dynamic_shapes=shapes)
    except Exception as error:  # torch's own have no common base
        raise UsageError(f"the network cannot be exported: {str(error).splitlines()[0]}") from error


def write_torch(loaded: Loaded, model: Deciding, file: Path) -> None:
    """Write a program for `torch.export.load`, with its metadata in the extra file agent.json."""
    content = io.BytesIO()
    about = json.dumps(describe(loaded) | {"inputs": model.inputs, "outputs": model.outputs})
    with _calm():
        torch.export.save(export_program(model), content, extra_files={"agent.json": about})
    _write(file, content.getvalue())


def write_onnx(loaded: Loaded, model: Deciding, file: Path) -> None:
    """Write an ONNX model. Raises UsageError if onnx or onnxscript is missing."""
    _import("onnxscript")
    onnx = _import("onnx")
    program = export_program(model)
    with _calm():
        made = torch.onnx.export(
            program, input_names=model.inputs, output_names=model.outputs, dynamo=True, verbose=False
        )
    assert made is not None
    proto = made.model_proto
    onnx.helper.set_model_props(proto, describe(loaded))
    _write(file, proto.SerializeToString())


def write_safetensors(loaded: Loaded, model: Deciding, file: Path) -> None:
    """Write weights by name, and the moments they need; docs/export.md describes the file."""
    tensors = {f"weights.{name}": tensor.detach().clone() for name, tensor in model.network.named_parameters()}
    about = describe(loaded)
    if model.moments is not None:
        mean, scale = model.moments
        tensors |= {"observation.mean": mean.contiguous(), "observation.scale": scale.contiguous()}
        about["observation_clip"] = str(LARGEST)
    _write(file, safetensors.torch.save(tensors, metadata=about))


def _write(file: Path, content: bytes) -> None:
    try:
        replace_file(file, content)
    except OSError as error:
        if disk_is_full(error):
            raise
        raise UsageError(f"cannot write {file}: {error.strerror}") from error


Decide = Callable[[list[NDArray[Any]]], list[NDArray[Any]]]
"""From the inputs of a model to its outputs, both in the order of their names."""


def read_torch(file: Path) -> Decide:
    """Read a program that `write_torch` wrote."""
    program = torch.export.load(file).module()

    def decide(inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
        with torch.no_grad():
            return [output.numpy() for output in program(*map(torch.from_numpy, inputs))]

    return decide


def read_onnx(file: Path) -> Decide:
    """Read a model that `write_onnx` wrote, for onnxruntime. Raises UsageError if that is missing."""
    runtime = _import("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def decide(inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
        outputs: list[NDArray[Any]] = session.run(None, dict(zip(names, inputs, strict=True)))
        return outputs

    return decide


@dataclass(frozen=True)
class Agreement:
    """How a file compares with the agent it was made from."""

    observations: int
    """Number of observations, from episodes that the agent played."""
    actions: int
    """Number of equal best actions."""
    difference: float
    """The largest difference of all other numbers, relative to 1 or to the number's size."""

    def __str__(self) -> str:
        return (
            f"{self.actions:,} of {self.observations:,} actions the same as the agent's, "
            f"numbers within {self.difference:.0e}"
        )

    @property
    def good(self) -> bool:
        """Whether the two agree up to rounding."""
        return self.actions == self.observations and self.difference <= TOLERANCE


def compare(loaded: Loaded, model: Deciding, decide: Decide, observations: int = CHECKED) -> Agreement:
    """Let the agent play, and compare both on each observation. Raises UsageError for a broken environment.

    Each keeps its own recurrent state, so a difference in it grows and shows.
    """
    spaces = loaded.run.spec.spaces
    environments = build_environments(loaded.run, EVALUATOR, _SIDE_BY_SIDE, evaluation=True)
    seen = model.example(_SIDE_BY_SIDE)
    own = model.agent.initial_state(_SIDE_BY_SIDE)
    other = [part.numpy() for part in own or ()]
    same = asked = 0
    difference = 0.0
    try:
        for e, environment in enumerate(environments):
            seen[e] = torch.from_numpy(np.array(environment.reset()))
        while asked < observations:
            with torch.inference_mode():
                outputs, _ = model.decide(seen, own or ())
                looked_at = seen if model.normalizer is None else model.normalizer.observe(seen)
                chosen, after, _ = model.agent.act(looked_at, own, loaded.checkpoint.steps)
            found = decide([seen.numpy(), *other])
            expected = [*outputs.values(), *(after or ())]
            difference = max(difference, *map(_difference, expected, found))
            acted = list(for_environments(chosen, spaces))
            actions = np.abs(np.array(acted) - found[0]).reshape(_SIDE_BY_SIDE, -1).max(-1)
            same += int((actions <= (TOLERANCE if spaces.is_continuous else 0)).sum())
            asked += _SIDE_BY_SIDE
            ended = np.zeros(_SIDE_BY_SIDE, np.bool_)
            for e, action in enumerate(acted):
                observation, _, terminated, truncated, _ = environments[e].step(action)
                ended[e] = terminated or truncated
                seen[e] = torch.from_numpy(np.array(environments[e].reset() if ended[e] else observation))
            own = reset_state(model.agent, after, ended)
            left = tuple(torch.from_numpy(part) for part in found[len(outputs) :]) or None
            other = [part.numpy() for part in reset_state(model.agent, left, ended) or ()]
    except (BadEnvironment, EpisodeLost) as error:
        raise UsageError(str(error.__cause__ or error)) from error
    finally:
        close_all(environments)
    return Agreement(asked, same, difference)


def _difference(expected: Tensor, found: NDArray[Any]) -> float:
    """The largest difference, relative to 1 or to the expected number's size; actions by number are left out."""
    if not expected.is_floating_point():
        return 0.0
    wanted = expected.numpy()
    return float((np.abs(wanted - found) / np.maximum(1.0, np.abs(wanted))).max(initial=0.0))


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UsageError(f'{name} is not installed: pip install "asyncrl[export]"') from None


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """Silence the exporter's warnings about optional packages and deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
