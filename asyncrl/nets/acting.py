"""Acting by compiled code: what a network computes before every step, in one call instead of several for each layer.

`core/acting.c` says how. It knows the package's own networks without a memory. Others act as without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Array, Structure, c_float, c_int, c_int32, c_void_p
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from asyncrl.core.distributions import Categorical
from asyncrl.core.kernels import LANES, compiled
from asyncrl.core.rollout import State
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.nets.bodies import Body, VectorBody
from asyncrl.nets.convolutions import ConvolutionalBody
from asyncrl.nets.q_network import QNetwork
from asyncrl.nets.trunk import Trunk

NONE, RELU, TANH = range(3)
CHANNELS = 16
"""Packed layers have a multiple of so many outputs."""
SIZES = 4
"""Most batch sizes that have memory at a time, the newest ones."""
Memory: TypeAlias = tuple[Array[c_void_p], list[Tensor], Tensor]
"""Where a call writes, as `acting_forward` takes it and as tensors, and the outputs among them."""


class Layer(Structure):
    """`struct layer` of acting.c."""

    _fields_ = (
        *((name, c_int32) for name in ("activation", "inputs", "outputs", "kernel", "stride", "padding")),
        *((name, c_int32) for name in ("height", "width", "out_height", "out_width")),
        ("scale", c_float),
        *((name, c_void_p) for name in ("weight", "bias", "packed")),
    )


_PACK = compiled("acting_pack", c_void_p, c_int)
_FORWARD = compiled("acting_forward", c_void_p, c_int, c_int, c_void_p, c_int, c_int, c_void_p)


def act_compiled(network: nn.Module, changing: bool) -> list[Callable[[], None]]:
    """Let `network` act by compiled code as far as there is any for it.

    Call what is returned whenever the weights are others. If they are `changing` all the time, that is not needed.
    """
    trunks = [part for part in network.modules() if isinstance(part, Trunk) and is_known(part)] if LANES else []
    head = head_of(network) if trunks else None
    bodies = [Compiled(trunk.body, head, changing) for trunk in trunks]
    for trunk, compiled_body in zip(trunks, bodies, strict=True):
        Instead(trunk.body, "step", compiled_body.step)
    if head is None:
        return [compiled_body.renew for compiled_body in bodies]
    (outputs,) = bodies

    def policy_at(observations: Tensor, state: State = None) -> tuple[Categorical, State]:
        return Categorical(outputs(observations).clone()), None

    def policy_and_value_at(observations: Tensor, state: State = None) -> tuple[Categorical, Tensor, State]:
        policy, _ = policy_at(observations)
        return policy, network.get_submodule("value")(outputs.features).squeeze(-1), None

    def values_at(observations: Tensor, state: State = None) -> tuple[Tensor, State]:
        return outputs(observations).clone(), None

    for method in (policy_at, policy_and_value_at) if isinstance(network, ActorCritic) else (values_at,):
        Instead(network, method.__name__, method)
    return [outputs.renew]


class Instead:
    """What acts in place of a network's method; the method itself where there are gradients, and in copies."""

    def __init__(self, owner: nn.Module, name: str, function: Callable[..., Any]) -> None:
        self._owner, self._name, self._function = owner, name, function
        setattr(owner, name, self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the method returns."""
        if torch.is_grad_enabled():
            return getattr(type(self._owner), self._name)(self._owner, *arguments, **named)
        return self._function(*arguments, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner, self._name)


def act_by_torch(network: nn.Module) -> None:
    """Undo `act_compiled`, for whoever must see each operation."""
    for part in network.modules():
        for name in ("step", "policy_at", "policy_and_value_at", "values_at"):
            vars(part).pop(name, None)


def is_known(trunk: Trunk) -> bool:
    """Whether there is compiled code for a trunk: it has a body of the package's own, in float32 on the CPU.

    It has room for a border of zeros around observations, and around no other images.
    """
    layers = [layer for layer in trunk.body.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    weights = [weight for name, weight in trunk.body.named_parameters() if name.endswith("weight")]
    packed = [weight for weight in weights if weight.dim() == 4 or isinstance(trunk.body, VectorBody)]
    return (
        type(trunk.body) in (VectorBody, ConvolutionalBody)
        and trunk.memory is None
        and all(map(is_plain, layers))
        and not any(layer.padding[0] for layer in layers[1:] if isinstance(layer, nn.Conv2d))
        and bool(packed)
        and all(len(weight) % CHANNELS == 0 for weight in packed)
        and all(weight.is_cpu and weight.dtype == torch.float32 for weight in weights)
    )


def head_of(network: nn.Module) -> nn.Linear | None:
    """The layer whose outputs are all that acting needs, if nothing else is between it and the body."""
    head = {ActorCritic: "policy", QNetwork: "head"}.get(type(network), "")
    layer, trunk = getattr(network, head, None), getattr(network, "trunk", None)
    alone = type(trunk) is Trunk and all(part is trunk for part in network.modules() if isinstance(part, Trunk))
    return layer if isinstance(layer, nn.Linear) and is_plain(layer) and alone else None


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer is torch's own, with a weight and a bias that nothing is done to."""
    return type(layer) in (nn.Linear, nn.Conv2d) and [*layer.state_dict()] == ["weight", "bias"]


class Compiled:
    """A body, and the head on it if one is given: outputs `[E, n]` of observations `[E, ...]`, without a gradient.

    They equal torch's but for rounding, and lie in memory that the next call overwrites. A tape gets the activations.
    """

    def __init__(self, body: Body, head: nn.Linear | None, changing: bool) -> None:
        """The body is that of a trunk that `is_known`, and has its tape already.

        `changing`: the weights may be others at each call; if not, `renew` says when.
        """
        assert isinstance(body, VectorBody | ConvolutionalBody)
        self._changing, self._stale = changing, True
        self._tape = None if isinstance(body, VectorBody) else body.tape
        self._packed: list[Tensor] = []
        self._with_head = head is not None
        layers = self._layers_of(body) + ([] if head is None else [connected(head, NONE)])
        self._layers = (Layer * len(layers))(*layers)
        modules = [*getattr(body, "convolutions", ()), *body.linear, *([] if head is None else [head])]
        self._parameters = [module._parameters for module in modules]
        self._found: list[tuple[int, int]] = []
        """Address and version of each layer's weight and bias."""
        self._shape = torch.Size(body.shapes[0] if isinstance(body, ConvolutionalBody) else [layers[0].inputs])
        """Of an observation."""
        self._memory: dict[int, Memory] = {}
        """By batch size."""
        self._taped: dict[int, Memory] = {}
        """By the place of a tape's row."""
        self._newest: list[Tensor] = []
        """The memory of the newest call."""

    @property
    def features(self) -> Tensor:
        """`[E, n]` what the last layer has read in the newest call: with a head, the body's outputs."""
        return self._newest[len(self._layers) - 1].flatten(1)

    def step(self, observations: Tensor) -> Tensor:
        """The body's features `[E, F]`, in memory of their own."""
        outputs = self(observations)
        return (self.features if self._with_head else outputs).clone()

    def renew(self) -> None:
        """The weights are others from now on."""
        self._stale = True

    def __call__(self, observations: Tensor) -> Tensor:
        """Outputs `[E, n]` of observations `[E, ...]`. Raises ValueError for those, or weights, of another kind."""
        layers, count, batch = self._layers, len(self._layers), len(observations)
        if observations.shape[1:] != self._shape or not observations.is_cpu:
            raise ValueError(f"observations of shape {tuple(observations.shape)} do not fit this network")
        parts = [part for own in self._parameters for part in own.values() if part is not None]
        found = [(part.data_ptr(), part._version) for part in parts]
        if found != self._found:  # somebody has changed the parameters, or bound them to other memory
            self._read_from(parts, found)
        if self._stale:
            _PACK(layers, count)
            self._stale = self._changing
        row = None if self._tape is None else self._tape.row_for(observations)
        pointers, memory, outputs = self._memory_for(batch, row)
        self._newest = memory
        if row is not None and memory[0] is not row[0]:
            row[0].copy_(observations)
        pixels = observations.dtype == torch.uint8
        source = observations.contiguous() if pixels else observations.float().contiguous()
        _FORWARD(layers, count, LANES, source.data_ptr(), pixels, batch, pointers)
        return outputs

    def _read_from(self, parts: list[Tensor], found: list[tuple[int, int]]) -> None:
        """Take weights and biases from there from now on."""
        if not all(part.is_cpu and part.dtype == torch.float32 and part.is_contiguous() for part in parts):
            raise ValueError("the network's weights are not contiguous float32 tensors on the CPU any more")
        for layer, weight, bias in zip(self._layers, found[::2], found[1::2], strict=True):
            layer.weight, layer.bias = weight[0], bias[0]
        self._found, self._stale = found, True

    def _layers_of(self, body: VectorBody | ConvolutionalBody) -> list[Layer]:
        """All layers of a body. Those of vectors are faster packed, as convolutions of images of one pixel."""
        if isinstance(body, VectorBody):
            return [self._convolution(layer, TANH) for layer in body.linear]
        sides = [shape[1:] for shape in body.shapes[: len(body.convolutions) + 1]]
        convolutions = [
            self._convolution(layer, RELU, before + after, 1.0 if number else body.scale)
            for number, (layer, before, after) in enumerate(zip(body.convolutions, sides, sides[1:], strict=False))
        ]
        return convolutions + [connected(layer, RELU) for layer in body.linear]

    def _convolution(
        self, layer: nn.Module, activation: int, sides: tuple[int, ...] = (1, 1, 1, 1), scale: float = 1.0
    ) -> Layer:
        """A packed layer; `sides` are heights and widths of the images before and after it."""
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        form = (1, 1, 0)
        if isinstance(layer, nn.Conv2d):
            form = layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
        weight, packed = layer.weight, torch.empty(layer.weight.numel())
        self._packed.append(packed)
        return Layer(activation, weight.shape[1], len(weight), *form, *sides, scale, packed=packed.data_ptr())

    def _memory_for(self, batch: int, row: tuple[Tensor, ...] | None = None) -> Memory:
        """Memory for `batch` observations and all that is computed from them; a tape's `row` has some of its own."""
        known, place = (self._memory, batch) if row is None else (self._taped, row[0].data_ptr())
        if place not in known:
            parts = self._allocate(batch) if row is None else self._with_row(batch, row)
            pointers = (c_void_p * len(parts))(*(part.data_ptr() for part in parts))
            known[place] = pointers, parts, parts[len(self._layers)].flatten(1)
            if len(self._memory) > SIZES:
                del self._memory[next(iter(self._memory))]
        return known[place]

    def _allocate(self, batch: int) -> list[Tensor]:
        """Observations, the outputs of all layers, and room for a copy of the last convolution's."""
        first, convolutions = self._layers[0], sum(layer.kernel > 0 for layer in self._layers)
        sides = [side + 2 * first.padding for side in (first.height, first.width)]
        outputs = [torch.empty(batch, layer.outputs * layer.out_height * layer.out_width) for layer in self._layers]
        # What is inside a border of zeros is overwritten, the border is not.
        return [torch.zeros(batch, *sides, first.inputs), *outputs, torch.empty_like(outputs[convolutions - 1])]

    def _with_row(self, batch: int, row: tuple[Tensor, ...]) -> list[Tensor]:
        """The same, with the activations in a tape's row, and there the observations if they have this layout."""
        parts = list(self._memory_for(batch)[1])
        parts[1 : len(row)] = row[1:]
        if not self._layers[0].padding and row[0].is_contiguous(memory_format=torch.channels_last):
            parts[0] = row[0]
        return parts


def connected(layer: nn.Module, activation: int) -> Layer:
    """A fully connected layer that reads its weights where they are."""
    assert isinstance(layer, nn.Linear)
    return Layer(activation, layer.in_features, layer.out_features, 0, 0, 0, 0, 0, 1, 1, 1.0)
