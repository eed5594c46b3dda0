"""What a run has learnt as one file for other programs: ONNX, torch.export, or weights alone.

All three include the moments that normalise the agent's observations.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asyncrl.api.playing import Loaded, outputs_of, play_episodes
from asyncrl.core.errors import UsageError
from asyncrl.core.extras import imported
from asyncrl.core.moments import LARGEST, standardize
from asyncrl.core.rollout import State
from asyncrl.nets.acting import act_by_torch
from asyncrl.runtime.collect import for_environments
from asyncrl.storage.files import disk_is_full, plain, replace_file
from asyncrl.storage.stored import read_stored

CHECKED = 1000
"""Observations on which an exported file is compared with the agent."""
TOLERANCE = 1e-3
"""Largest accepted difference from the agent's numbers, relative to 1 or to their size, due to the order of sums."""


class ExportedAgent(nn.Module):
    """From raw observations `[B, *shape]` and the recurrent state to what `outputs_of` returns and the next state.

    An observation of several parts is as many inputs, and the action mask is another. The result is one tuple of
    tensors, with their names in `outputs`, those of the arguments in `inputs`. The run must have been loaded with
    `greedy`.
    """

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        self.spaces, self.agent = loaded.run.spec.spaces, loaded.agent
        self.network: Any = loaded.agent.network
        act_by_torch(self.network)
        for parameter in self.network.parameters():
            parameter.data = parameter.data.clone()  # they are views of one vector, which a file would repeat for each
        self.moments = None if loaded.normalizer is None else loaded.normalizer.used
        """Mean and reciprocal deviation; None: observations are not normalised."""
        state = self.initial_state(2)
        with torch.inference_mode():
            outputs, after = self.decide(self.example(2), state)
        self.inputs = [*self._names(), *(f"state_{i}" for i in range(len(state)))]
        self.outputs = [*outputs, *(f"next_state_{i}" for i in range(len(after or ())))]

    def example(self, count: int) -> Tensor:
        """Observations `[count, *shape]` of zeros; where there is an action mask, all are valid."""
        shape, dtype = self.spaces.observation_shape, getattr(torch, self.spaces.observation_dtype)
        zeros = torch.zeros((count, *shape), dtype=dtype)
        if self.spaces.masked:
            zeros[:, -self.spaces.actions :] = 1
        return zeros

    def _names(self) -> list[str]:
        """Of the inputs that are observed: `numbers` and `image`, or `image_0` and so on, if there are several."""
        parts = self.spaces.parts
        images = [f"image_{i}" for i in range(sum(part.is_image for part in parts))]
        images = images if len(images) > 1 else ["image"] * len(images)
        numbers = ["numbers"] * (len(parts) > len(images))
        return ([*numbers, *images] if len(parts) > 1 else ["observation"]) + ["action_mask"] * self.spaces.masked

    def observed(self, observations: Tensor) -> list[Tensor]:
        """Observations `[B, *shape]` as the inputs that are observed, in the order of `inputs`; a mask is bool."""
        if not self.spaces.parts:
            return [observations]
        from asyncrl.nets.parts import stacked_parts, taken_apart

        parts, mask = taken_apart(self.spaces, observations)
        types = [getattr(torch, part.observation_dtype) for part in stacked_parts(self.spaces)]
        whole = [part.to(dtype) for part, dtype in zip(parts, types, strict=True)]
        return whole if mask is None else [*whole, mask != 0]

    def _together(self, observed: Sequence[Tensor]) -> Tensor:
        """The reverse of `observed`."""
        if not self.spaces.parts:
            return observed[0]
        from asyncrl.nets.parts import put_together

        parts = len(self.spaces.parts)
        return put_together(self.spaces, observed[:parts], observed[parts] if self.spaces.masked else None)

    def initial_state(self, count: int) -> tuple[Tensor, ...]:
        """The state in which episodes begin, `[count, ...]` each; empty for a feed-forward network."""
        return self.agent.initial_state(count) or ()

    def decide(self, observation: Tensor, state: Sequence[Tensor]) -> tuple[dict[str, Tensor], State]:
        """What `outputs_of` returns, by name, and the next state."""
        seen = observation if self.moments is None else standardize(observation, *self.moments)
        return outputs_of(self.network, self.spaces, seen, tuple(state) or None)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The same as one tuple, in the order of `outputs`, from tensors in the order of `inputs`."""
        seen = len(self._names())
        outputs, after = self.decide(self._together(inputs[:seen]), inputs[seen:])
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


def export_program(model: ExportedAgent) -> torch.export.ExportedProgram:
    """The model exported by torch.export, for any number of observations. Raises UsageError if it cannot be traced."""
    batch = torch.export.Dim("batch", min=1)
    inputs = (*model.observed(model.example(2)), *model.initial_state(2))
    shapes = (tuple({0: batch} for _ in inputs),)
    try:
        with torch.no_grad():
            return torch.export.export(model.eval(), inputs, dynamic_shapes=shapes)
    except Exception as error:  # torch's own have no common base
        raise UsageError(f"the network cannot be exported: {str(error).splitlines()[0]}") from error


def write_torch(loaded: Loaded, model: ExportedAgent, file: Path) -> None:
    """Write a program for `torch.export.load`, with its metadata in the extra file agent.json."""
    content = io.BytesIO()
    about = json.dumps(describe(loaded) | {"inputs": model.inputs, "outputs": model.outputs})
    with _calm():
        torch.export.save(export_program(model), content, extra_files={"agent.json": about})
    _write(file, content.getvalue())


def write_onnx(loaded: Loaded, model: ExportedAgent, file: Path) -> None:
    """Write an ONNX model. Raises UsageError if onnx or onnxscript is missing."""
    imported("onnxscript", "onnxscript is not installed", "export")
    onnx = imported("onnx", "onnx is not installed", "export")
    program = export_program(model)
    with _calm():
        made = torch.onnx.export(
            program, input_names=model.inputs, output_names=model.outputs, dynamo=True, verbose=False
        )
    assert made is not None
    proto = made.model_proto
    onnx.helper.set_model_props(proto, describe(loaded))
    _write(file, proto.SerializeToString())


def write_safetensors(loaded: Loaded, model: ExportedAgent, file: Path) -> None:
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
    return torch.no_grad()(lambda inputs: [output.numpy() for output in program(*map(torch.from_numpy, inputs))])


def read_onnx(file: Path) -> Decide:
    """Read a model that `write_onnx` wrote, for onnxruntime. Raises UsageError if that is missing."""
    runtime = imported("onnxruntime", "onnxruntime is not installed", "export")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


class ComparedAgent:
    """An agent whose every step is compared with its exported file, given the same observations and state."""

    def __init__(self, loaded: Loaded, model: ExportedAgent, decide: Decide) -> None:
        self._loaded, self._model, self._decide = loaded, model, decide
        self.initial_state = loaded.agent.initial_state
        self.observations = self.actions = 0
        """Number of observations, and of equal best actions."""
        self.difference = 0.0
        """The largest difference of all other numbers, relative to 1 or to the number's size."""

    def __str__(self) -> str:
        return (
            f"{self.actions:,} of {self.observations:,} actions match the agent's, "
            f"other outputs differ by at most {self.difference:.0e}"
        )

    @property
    def good(self) -> bool:
        """Whether the two agree up to rounding."""
        return self.actions == self.observations and self.difference <= TOLERANCE

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Any]:
        """As the agent does."""
        spaces, normalizer = self._model.spaces, self._loaded.normalizer
        outputs, _ = self._model.decide(observations, state or ())
        seen = observations if normalizer is None else normalizer.observe(observations)
        chosen, after, extras = self._loaded.agent.act(seen, state, steps)
        found = self._decide([one.numpy() for one in (*self._model.observed(observations), *(state or ()))])
        for expected, number in zip((*outputs.values(), *(after or ())), found, strict=True):
            if expected.is_floating_point():  # actions by number are counted
                wanted = expected.numpy()
                error = np.abs(wanted - number) / np.maximum(1.0, np.abs(wanted))
                self.difference = max(self.difference, float(error.max(initial=0.0)))
        apart = np.abs(np.array(for_environments(chosen, spaces)) - found[0]).reshape(len(chosen), -1).max(-1)
        self.actions += int((apart <= (TOLERANCE if spaces.is_continuous else 0)).sum())
        self.observations += len(chosen)
        return chosen, after, extras


def compare(loaded: Loaded, model: ExportedAgent, decide: Decide, observations: int = CHECKED) -> ComparedAgent:
    """Let the agent play, and compare both on each observation. Raises UsageError for a broken environment."""
    compared = ComparedAgent(loaded, model, decide)
    play_episodes(loaded, observations, agent=compared, interrupted=lambda: compared.observations >= observations)
    return compared


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
