"""Steps per second compared with Stable-Baselines3's A2C and PPO: same network, screens, environments and epochs.

Both learn Pong from 84 x 84 screens with the network of Mnih et al. 2015 and the settings that RL Baselines3 Zoo has
for Atari: A2C with 16 environments, 5 steps and RMSProp; PPO with 8 environments, 128 steps, 4 epochs and minibatches
of 256. A3C, which Stable-Baselines3 lacks, is compared with A2C. Runs alternate; compare the ratio within a repetition.
Stable-Baselines3 runs its environments in one process and in a process each; the faster one counts for steps per
second, the cheaper one for CPU time per step, with the threads that it takes by itself (`cost.py` compares programs of
one thread). A3C with rollouts of 20 steps (`a3c-20`) learns from longer rollouts than A2C; only `a3c` is compared on
equal terms. It needs its own Python environment:

    pip install torch==2.13.0 && pip install -c constraints.txt -e ".[test]" stable-baselines3
    python benchmarks/peers.py --repeats 3 --seconds 30
    python benchmarks/peers.py --rows a3c a3c-20 --precisions bfloat16
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cost import stable_baselines3
from throughput import BARE, WARM_UP, Usage, training_rate

SCREENS = ("--image-size", "84", "--network", "nature", "--no-normalize-observations")
TOGETHER = ("--no-overlap", "--learner-threads", "2")
"""No actor acts while the learner learns, so the learner has both cores: best where it has most of the work."""
OURS = {
    "a3c": ("a3c", (2, 8, 5), ("--optimizer", "rmsprop")),
    "a3c-20": ("a3c", (2, 8, 20), ("--optimizer", "rmsprop")),
    "a2c": ("a2c", (2, 8, 5), ("--optimizer", "rmsprop", "--overlap")),
    "ppo": ("ppo", (2, 4, 128), ("--epochs", "4", "--minibatches", "4", *TOGETHER)),
}
"""Row, and its algorithm, (workers, environments per worker, t_max) and flags."""
PEER_OF = {"a2c": "a2c", "ppo": "ppo", "a3c": "a2c", "a3c-20": "a2c"}


def learn_as_stable_baselines3(algorithm: str, vectorized: str, seconds: float) -> float:
    """Steps per second of Stable-Baselines3 after the warm-up, in this process."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Clock(BaseCallback):
        """Ends learning when the time is over."""

        def __init__(self) -> None:
            super().__init__()
            self.began, self.first = time.perf_counter(), 0
            self.rate = 0.0

        def _on_step(self) -> bool:
            now = time.perf_counter() - self.began
            if not self.first and now > WARM_UP:
                self.first, self.since = self.num_timesteps, now
            elif self.first:
                self.rate = (self.num_timesteps - self.first) / (now - self.since)
            return now < WARM_UP + seconds

    clock = Clock()
    model = stable_baselines3(algorithm, vectorized)
    model.learn(10**9, callback=clock)
    model.env.close()
    return clock.rate


@dataclass(frozen=True)
class Speed:
    """How fast one way of training is."""

    rate: float
    """Steps per second."""
    cost: float
    """Microseconds of CPU time per step, of all its processes."""


def speed(rate: float, usage: Usage, seconds: float) -> Speed:
    """The speed of a run of `seconds` after the warm-up; starting takes a few seconds more."""
    return Speed(rate, 1e6 * usage.cores(WARM_UP + 4, WARM_UP + seconds) / rate)


def peer_speed(algorithm: str, vectorized: str, seconds: float) -> Speed:
    """Stable-Baselines3's, in a process of its own with the threads that it takes by itself."""
    command = [sys.executable, __file__, "--peer", algorithm, "--vectorized", vectorized, "--seconds", str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    usage = Usage(process.pid)
    printed, _ = process.communicate()
    usage.stop()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return speed(float(printed.split()[-1]), usage, seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=OURS, default=list(OURS))
    parser.add_argument("--precisions", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--peer", choices=("a2c", "ppo"), help="only Stable-Baselines3's, in this process")
    parser.add_argument("--vectorized", choices=("dummy", "subproc"), default="dummy")
    arguments = parser.parse_args()
    if arguments.peer:
        print(learn_as_stable_baselines3(arguments.peer, arguments.vectorized, arguments.seconds))
        return
    compare(arguments.rows, arguments.precisions, arguments.repeats, arguments.seconds)


def compare(names: Sequence[str], precisions: Sequence[str], repeats: int, seconds: float) -> None:
    """Print every repetition as it comes, and the medians at the end."""
    rows: dict[tuple[str, str], list[tuple[Speed, list[Speed]]]] = {}
    for repeat in range(repeats):
        peers = {
            peer: [peer_speed(peer, way, seconds) for way in ("dummy", "subproc")]
            for peer in sorted({PEER_OF[name] for name in names})
        }
        for peer, (one, many) in peers.items():
            print(f"{repeat + 1}: SB3 {peer} in one process {one}, in many {many}", flush=True)
        for name in names:
            algorithm, setting, flags = OURS[name]
            for precision in precisions:
                words = (*BARE, "--record-interval-seconds", "1", *SCREENS, *flags, "--precision", precision)
                rate, _, usage = training_rate(algorithm, "ALE/Pong-v5", setting, seconds, words, WARM_UP)
                ours = speed(rate, usage, seconds)
                rows.setdefault((name, precision), []).append((ours, peers[PEER_OF[name]]))
                print(f"{repeat + 1}: {name} {precision} {ours}", flush=True)
    print("| row | workers | E | t_max | precision | steps/s | SB3 | times | CPU us per step | SB3 | times |")
    print("|---|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|")
    for (name, precision), seen in rows.items():
        workers, environments, t_max = OURS[name][1]
        cells = [name, str(workers), str(environments), str(t_max), precision]
        rates = [(own.rate, max(peer.rate for peer in peers)) for own, peers in seen]
        costs = [(min(peer.cost for peer in peers), own.cost) for own, peers in seen]
        for pairs, mine in ((rates, 0), (costs, 1)):
            times = [above / below for above, below in pairs]
            middles = [statistics.median(column) for column in zip(*pairs, strict=True)]
            cells += [f"{middles[mine]:,.0f}", f"{middles[1 - mine]:,.0f}"]
            cells += [f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
