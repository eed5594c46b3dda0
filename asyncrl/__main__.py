"""`asyncrl` and `python -m asyncrl`: lists the commands and hands over to the one that is named."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence

PAGES = {
    "a3c": "asynchronous advantage actor-critic (Mnih et al. 2016, Algorithm S3)",
    "one_step_q": "asynchronous one-step Q-learning (Algorithm 1)",
    "one_step_sarsa": "asynchronous one-step Sarsa",
    "n_step_q": "asynchronous n-step Q-learning (Algorithm S2)",
    "a2c": "synchronous advantage actor-critic (OpenAI Baselines 2017)",
    "ppo": "proximal policy optimisation (Schulman et al. 2017)",
    "impala": "actors that run free, one learner, V-trace (Espeholt et al. 2018)",
}


COMMANDS = {
    "plot": "learning curves of any runs in one figure",
    "evaluate": "play episodes with what a run has learnt",
    "doctor": "does learning work on this machine, and with your environment?",
    "speedup": "what more workers buy: throughput, data, time",
    "sweep": "any settings over lists, grids or random draws",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run `asyncrl <command> ...`; returns the exit code."""
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help"):
        print("usage: asyncrl COMMAND [OPTIONS]\n\ncommands:")
        for name, text in (PAGES | COMMANDS).items():
            print(f"  {name:16}{text}")
        print("\n`asyncrl COMMAND --help` lists the options; `python -m asyncrl COMMAND` is the same command.")
        return 0
    if words[0] not in PAGES | COMMANDS:
        print(f"asyncrl: error: no command {words[0]!r}; there are {', '.join(PAGES | COMMANDS)}", file=sys.stderr)
        return 2
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while the command is imported, as in asyncrl/__init__.py
    if words[0] in COMMANDS:
        return int(importlib.import_module(f"asyncrl.commands.{words[0]}").main(words[1:]))
    from asyncrl.commands.train import main as train

    return train(f"asyncrl.{words[0]}", words[1:])


if __name__ == "__main__":
    raise SystemExit(main())
