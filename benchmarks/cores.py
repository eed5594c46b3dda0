"""When memory saturates as cores are added: measured on one and two, predicted beyond.

Measured first, in processes of one thread each, the best of several rounds, because other programs only slow it down:

    copy      GB/s read and written by `copy_` between arrays that no cache holds, with one process and with two
    push      microseconds of one update of theta in shared memory, with one process and with two at once
    pull      the same for a copy of theta

Then the model, `traffic`: bytes that one update of one worker moves, and so by how many workers, with a core each, the
machine's bandwidth is used up. What a push would take by the copy's bandwidth and its bytes is printed beside what it
took: the check of the model that one and two cores allow.

    python benchmarks/cores.py
    python benchmarks/cores.py --bandwidths 200 460 --cores 1 2 8 16 32 64
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.core.updates import UpdateRule
from asyncrl.runtime.clock import shared_zeros
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread

MEGABYTES = 256
"""Of each array that is copied: more than a cache holds."""


class Case(NamedTuple):
    """A network and how it is trained."""

    name: str
    parameters: int
    rule: str
    """The optimiser."""
    environments: int
    t_max: int
    microseconds: float
    """CPU time of a step of one environment, memory that is not shared included."""
    private_cached: bool
    """Whether a core's own cache holds theta' and the gradient, so that only the shared arrays are moved."""

    @property
    def seconds(self) -> float:
        """From one push of a worker to its next."""
        return self.environments * self.t_max * self.microseconds * 1e-6


class Traffic(NamedTuple):
    """Bytes of one update."""

    pull: float
    act: float
    learn: float
    push: float


def traffic(case: Case, statistics_bytes: int = 4) -> Traffic:
    """Bytes that one update moves between caches and memory, reads and writes.

    Another core has just written theta and the statistics, so no core finds them in its own cache. A line is read
    before it is written. The rule reads and writes theta and its statistics once, as the compiled rules do. Where no
    cache holds theta' and the gradient, each acting pass reads theta', and so do the passes forward and backward of the
    loss; the gradient is written once, and read by its norm and by the rule.
    """
    p, own = case.parameters, 0 if case.private_cached else 1
    statistics = UpdateRule(case.rule, 0.99).statistics
    return Traffic(
        pull=p * (4 + own * 8),
        act=own * p * 4 * case.t_max,
        learn=own * p * (2 * 4 + 8),
        push=p * (2 * 4 + 2 * statistics_bytes * statistics + own * 8),
    )


def in_processes(work: Callable[[int, float], float], processes: int, seconds: float) -> list[float]:
    """What `work` returns in so many processes at once."""
    found = shared_zeros(processes, dtype=torch.float64)
    context = multiprocessing.get_context("fork")

    def run(number: int) -> None:
        enforce_one_thread()
        found[number] = work(number, seconds)

    started = [context.Process(target=run, args=(number,)) for number in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    return [float(each) for each in found]


def per_second(work: Callable[[], object], seconds: float) -> float:
    """How often it is done in a second."""
    work()
    times, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        work()
        times += 1
    return times / spent


def copy(number: int, seconds: float) -> float:
    """GB/s, reads and writes: what is written is not read before, because `copy_` streams large arrays."""
    source, to = torch.ones(MEGABYTES << 18), torch.ones(MEGABYTES << 18)
    return per_second(lambda: to.copy_(source), seconds) * 2 * source.numel() * 4 / 1e9


def updating(case: Case) -> tuple[Callable[[int, float], float], Callable[[int, float], float]]:
    """Pushes and pulls per second, of a theta that all processes share."""
    parameters, rule = case.parameters, UpdateRule(case.rule, 0.99)
    shared = shared_zeros(1 + rule.statistics, parameters)
    shared += 1.0

    def push(number: int, seconds: float) -> float:
        gradient = torch.full((parameters,), 1e-3)
        return per_second(lambda: rule.apply(shared[0], gradient, shared[1:], 1e-9, 1), seconds)

    def pull(number: int, seconds: float) -> float:
        into: Tensor = torch.empty(parameters)
        return per_second(lambda: into.copy_(shared[0]), seconds)

    return push, pull


def best(work: Callable[[int, float], float], processes: int, seconds: float, repeats: int) -> float:
    """The largest sum over the processes."""
    return max(sum(in_processes(work, processes, seconds)) for _ in range(repeats))


def measure(cases: Sequence[Case], seconds: float, repeats: int) -> None:
    """Print what one and two processes reach."""
    rates = {n: best(copy, n, seconds, repeats) for n in (1, 2)}
    print(f"copy: {rates[1]:.1f} GB/s with one process, {rates[2]:.1f} with two\n")
    print("| network | processes | push, us | by bytes and copy, us | pull, us |\n|---|--:|--:|--:|--:|")
    for case in cases:
        push, pull = updating(case)
        moved = traffic(case._replace(private_cached=True)).push + 4 * case.parameters  # and the gradient
        for n in (1, 2):
            pushes, pulls = best(push, n, seconds, repeats), best(pull, n, seconds, repeats)
            predicted = moved / (rates[n] / n * 1e3)
            print(f"| {case.name} | {n} | {n / pushes * 1e6:,.0f} | {predicted:,.0f} | {n / pulls * 1e6:,.0f} |")


def predict(cases: Sequence[Case], cores: Sequence[int], bandwidths: Sequence[float]) -> None:
    """Print the model's tables."""
    print(
        "\n| network | MB per update: pull, act, learn, push | pushes/s, a core | GB/s, a core | of that shared |",
        end="",
    )
    print("".join(f" cores that use up {bandwidth:g} GB/s |" for bandwidth in bandwidths))
    print("|---|---|--:|--:|--:|" + "--:|" * len(bandwidths))
    for case in cases:
        for variant, size in (("", 4), (", statistics in bfloat16", 2)):
            moved, shared = traffic(case, size), traffic(case._replace(private_cached=True), size)
            each = sum(moved) / case.seconds / 1e9
            print(
                f"| {case.name}{variant} | {', '.join(f'{part / 1e6:.1f}' for part in moved)} | {1 / case.seconds:.1f} "
                f"| {each:.2f} | {sum(shared) / case.seconds / 1e9:.2f} |"
                + "".join(f" {bandwidth / each:,.0f} |" for bandwidth in bandwidths)
            )
    print("\n| network | " + " | ".join(f"{n} cores: pushes/s, GB/s" for n in cores) + " |")
    print("|---|" + "---|" * len(cores))
    for case in cases:
        each = sum(traffic(case)) / case.seconds / 1e9
        print(f"| {case.name} | " + " | ".join(f"{n / case.seconds:,.0f}, {n * each:,.1f}" for n in cores) + " |")


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", nargs="+", type=int, default=[1, 2, 8, 16, 32, 64])
    parser.add_argument("--bandwidths", nargs="+", type=float, default=[200.0, 460.0], help="GB/s of whole machines")
    parser.add_argument("--default-microseconds", type=float, default=513.0, help="CPU time of a step, default network")
    parser.add_argument("--nature-microseconds", type=float, default=1289.0, help="the same, Nature network")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args(words)
    request_one_thread()
    enforce_one_thread()
    small, nature = options.default_microseconds, options.nature_microseconds
    cases = (
        Case("default, 4 x 20", 83_575, "adam", 4, 20, small, private_cached=True),
        Case("Nature, 8 x 5", 1_687_719, "rmsprop", 8, 5, nature, private_cached=False),
        Case("Nature, 8 x 20", 1_687_719, "rmsprop", 8, 20, nature, private_cached=False),
        Case("Nature, 16 x 20", 1_687_719, "rmsprop", 16, 20, nature, private_cached=False),
    )
    measure(cases[:2], options.seconds, options.repeats)
    predict(cases, options.cores, options.bandwidths)


if __name__ == "__main__":
    main()
