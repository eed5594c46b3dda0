"""CPU time of one forward pass for acting: compiled code, and torch's own ways of doing the same.

The ways alternate. Before each timed call something else uses the caches, as the emulator does during training. Each is
compared with torch's layers, as a network without compiled code has them, in the same round.

    python benchmarks/acting.py
    python benchmarks/acting.py --networks nature:8 nature:1 --rounds 100
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from asyncrl.a3c import A3C
from asyncrl.core.spaces import Spaces
from asyncrl.nets.acting import act_compiled
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.runtime.threads import enforce_one_thread

SIZES = {"small": 42, "paper": 84, "nature": 84}
"""Side of the screens of each network."""
USED_MEANWHILE = torch.zeros(3_000_000)
"""More than the second level of any cache holds."""
LAYERS = "torch's layers"
Way = Callable[[Tensor], Tensor]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["small:4", "nature:8"], help="name:environments")
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    enforce_one_thread()
    print("| network | E | forward pass | us per call | ratio |\n|---|--:|---|--:|--:|")
    for name, _, environments in (which.partition(":") for which in arguments.networks):
        network, side = network_of(name), SIZES[name]
        observations = torch.randn(int(environments), 4, side, side)
        for way, (microseconds, ratio) in measured(ways_of(network), observations, arguments.rounds).items():
            print(f"| {name} | {environments} | {way} | {microseconds:,.0f} | {ratio:.2f} |")


def network_of(name: str) -> ActorCritic:
    """A policy for normalised screens."""
    network = A3C.make_network(
        A3C.Config(network=name), Spaces((4, SIZES[name], SIZES[name]), "uint8", 6, kind="atari")
    )
    assert isinstance(network, ActorCritic)
    return network


def measured(ways: dict[str, Way], observations: Tensor, rounds: int) -> dict[str, tuple[float, float]]:
    """Median microseconds of CPU time per call, and the median ratio to torch's layers."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with torch.inference_mode():
        expected = ways[LAYERS](observations).clone()
        for _ in range(rounds):
            for way, forward in ways.items():
                USED_MEANWHILE.add_(1.0)
                began = time.thread_time()
                logits = forward(observations)
                seconds[way].append(time.thread_time() - began)
                torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    usual = seconds[LAYERS]
    return {
        way: (1e6 * statistics.median(taken), statistics.median(a / b for a, b in zip(taken, usual, strict=True)))
        for way, taken in seconds.items()
    }


def ways_of(network: ActorCritic) -> dict[str, Way]:
    """The ways by name."""
    compiled = copy.deepcopy(network)
    act_compiled(compiled, changing=False)

    def without_onednn(observations: Tensor) -> Tensor:
        with torch.backends.mkldnn.flags(enabled=False):
            return network.policy_at(observations)[0].logits

    return {
        LAYERS: lambda observations: network.policy_at(observations)[0].logits,
        "channels-last": lambda observations: (
            network.policy_at(observations.contiguous(memory_format=torch.channels_last))[0].logits
        ),
        "oneDNN turned off": without_onednn,
        "patches by as_strided, addmm(out=)": patches(network),
        "oneDNN on packed weights, with fused ReLU": packed(network),
        "compiled acting": lambda observations: compiled.policy_at(observations)[0].logits,
    }


def patches(network: ActorCritic) -> Way:
    """Convolutions as matrix products of channels-last patches, everything written to memory that is kept."""
    convolutions = list(network.trunk.body.convolutions)  # type: ignore[arg-type]
    kernels = [layer.weight.permute(2, 3, 1, 0).reshape(-1, layer.out_channels).contiguous() for layer in convolutions]
    linear = [*network.trunk.body.linear, network.policy]  # type: ignore[misc]
    kept: dict[int, Tensor] = {}

    def product(number: int, rows: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        if number not in kept:
            kept[number] = torch.empty(len(rows), weights.shape[1])
        return torch.addmm(bias, rows, weights, out=kept[number])

    def forward(observations: Tensor) -> Tensor:
        hidden = observations.permute(0, 2, 3, 1).contiguous()
        for number, (layer, weights) in enumerate(zip(convolutions, kernels, strict=True)):
            k, stride, padding = layer.kernel_size[0], layer.stride[0], layer.padding[0]
            hidden = F.pad(hidden, (0, 0, padding, padding, padding, padding)) if padding else hidden
            batch, height, width, channels = hidden.shape
            high, wide = (height - k) // stride + 1, (width - k) // stride + 1
            image, line, pixel, _ = hidden.stride()
            places = hidden.as_strided(
                (batch, high, wide, k, k * channels), (image, line * stride, pixel * stride, line, 1)
            )
            rows = product(number, places.reshape(batch * high * wide, -1), weights, layer.bias)
            hidden = rows.relu_().view(batch, high, wide, -1)
        hidden = hidden.permute(0, 3, 1, 2).flatten(1)
        for number, layer in enumerate(linear, len(convolutions)):
            hidden = product(number, hidden, layer.weight.T, layer.bias)
            hidden = hidden if layer is network.policy else hidden.relu_()
        return hidden

    return forward


def packed(network: ActorCritic) -> Way:
    """oneDNN's operations of a whole layer, on weights in the layout that it prefers, packed at the first call."""
    convolutions = list(network.trunk.body.convolutions)  # type: ignore[arg-type]
    linear = [*network.trunk.body.linear, network.policy]  # type: ignore[misc]
    weights: dict[int, Tensor] = {}
    library = torch.ops.mkldnn

    def forward(observations: Tensor) -> Tensor:
        hidden = observations
        for number, layer in enumerate(convolutions):
            form = layer.padding, layer.stride, layer.dilation, 1
            if number not in weights:
                weights[number] = torch._C._nn.mkldnn_reorder_conv2d_weight(  # type: ignore[call-arg]
                    layer.weight.detach().to_mkldnn(), *form, hidden.shape
                )
            hidden = library._convolution_pointwise(hidden, weights[number], layer.bias, *form, "relu", [], "")
        hidden = hidden.flatten(1)
        for number, layer in enumerate(linear, len(convolutions)):
            if number not in weights:
                weights[number] = library._reorder_linear_weight(layer.weight.detach(), len(hidden))
            after = "none" if layer is network.policy else "relu"
            hidden = library._linear_pointwise(hidden, weights[number], layer.bias, after, [], "")
        return hidden

    return forward


if __name__ == "__main__":
    main()
