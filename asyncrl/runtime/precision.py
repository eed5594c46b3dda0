"""Whether bfloat16 pays on this processor, which its instructions alone do not say.

Some processors with avx512_bf16 take longer in bfloat16 than in float32, because they convert and reorder more than
they save by multiplying; others take half the time.
"""

from __future__ import annotations

import functools
import statistics
import time

import torch

from asyncrl.core.devices import CPU
from asyncrl.core.errors import UsageError
from asyncrl.nets.convolutions import CONVOLUTIONS, ConvolutionalBody
from asyncrl.storage.run_folder import cpu_instructions

TILES = "amx_bf16"
"""The CPU flag, in Linux's words, of units that multiply whole tiles in bfloat16: with them it pays."""
BFLOAT16 = frozenset({"avx512_bf16", TILES, "bf16"})
"""CPU flags of Linux: a processor with any of these multiplies in bfloat16 in hardware, and may gain by it."""
ROUNDS, BATCH = 12, 16


def require_bfloat16(learner_device: str) -> None:
    """Raise UsageError where bfloat16 is slower than float32, or is not to be had."""
    if learner_device != CPU:
        raise UsageError("--precision bfloat16 is for the CPU: with --learner-device use --precision float32")
    instructions = cpu_instructions()
    if instructions is not None and BFLOAT16.isdisjoint(instructions):
        raise UsageError(
            "--precision bfloat16 needs a processor that has it (avx512_bf16 or amx_bf16; bf16 on ARM), and this one "
            "would be slower with it: use --precision float32"
        )
    if instructions is not None and TILES in instructions:
        return
    if (gain := gain_of_bfloat16()) < 1:
        raise UsageError(
            f"--precision bfloat16 takes {1 / gain:.2f} times as long as float32 on this processor, as just measured: "
            "use --precision float32"
        )


@functools.cache
def gain_of_bfloat16() -> float:
    """CPU time in float32 by that in bfloat16: above 1, bfloat16 pays. Takes less than a second, once per process.

    Measured is what learning does with the network of Mnih et al. 2015: forward and backward passes, in turns.
    """
    with torch.random.fork_rng(devices=[]):
        body = ConvolutionalBody((4, 84, 84), CONVOLUTIONS["nature"], (512,), raw_pixels=True)
    screens = torch.zeros(BATCH, 4, 84, 84, dtype=torch.uint8)
    spent: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    for _ in range(ROUNDS):
        for dtype, times in spent.items():
            body.to(dtype)
            began = time.process_time()
            torch.autograd.grad(body(screens).float().sum(), list(body.parameters()))
            times.append(time.process_time() - began)
    usual, reduced = (statistics.median(times) for times in spent.values())
    return usual / reduced
