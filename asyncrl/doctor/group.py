"""Ranks that run in step: do they agree, has each a core and one thread, and how long do their exchanges take?

Every rank runs the doctor's command. Rank 0 judges and prints; the others report to it and take part in exchanges.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from asyncrl.backends.collective.board import Board, RanksLost, board_of, disagreement
from asyncrl.backends.collective.exchanges import Exchanges
from asyncrl.backends.collective.launch import LOOPBACK, Launch
from asyncrl.backends.outcome import Signals
from asyncrl.core.devices import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.doctor import Finding, advise, judge
from asyncrl.runtime.threads import before_start

TIMEOUT_SECONDS = 60.0
REPEATS = 30
"""Exchanges that are timed, after a few that are not."""
SLOW_LINK_SECONDS = 0.005
"""A round trip above which `--overlap` is recommended."""


def greet(board: Board, words: Sequence[str]) -> None:
    """Publish who this rank is, and in which surroundings."""
    board.greet(words, threads=torch.get_num_threads(), left=before_start.get("OMP_NUM_THREADS"), cores=usable_cores())


def attend(launch: Launch, words: Sequence[str]) -> int:
    """Run a rank other than 0; returns the exit code."""
    try:
        board = board_of(launch)
        greet(board, words)
        if parameters := board.wait_for("measure"):
            time_exchanges(board, parameters)
        board.put(f"ended/{board.rank}", True)
    except (RanksLost, RuntimeError) as error:
        print_line(f"asyncrl doctor: rank {launch.rank} on {socket.gethostname()}: {error}", error=True)
        return 1
    return 0


def started(ranks: int, words: Sequence[str]) -> Launch:
    """A group on this machine: the other ranks are threads of this process, which communicate as processes do."""
    with socket.socket() as probe:  # another program may take the port first; rank 0 reports that
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
    launch = Launch("asyncrl", 0, ranks, f"tcp://{LOOPBACK}:{port}", given=secrets.token_bytes(32))
    for rank in range(1, ranks):
        threading.Thread(target=attend, args=(replace(launch, rank=rank), words), daemon=True).start()
    return launch


def examine(launch: Launch, words: Sequence[str], parameters: int) -> list[Finding]:
    """Rank 0: all checks of a group, with exchanges of `parameters` numbers. Raises UsageError, RanksLost."""
    board = board_of(launch)
    try:
        return _examined(board, launch.by, words, parameters)
    finally:
        _dismiss(board)


def turn_away(launch: Launch, words: Sequence[str]) -> None:
    """Rank 0 has nothing to examine: the other ranks leave once they have come, instead of waiting for it."""
    with contextlib.suppress(UsageError, RanksLost):
        board = board_of(launch)
        greet(board, words)
        board.await_hellos()
        _dismiss(board)


def _dismiss(board: Board) -> None:
    """The other ranks leave."""
    with contextlib.suppress(RuntimeError):
        if board.get("measure") is None:
            board.put("measure", 0)
        board.await_ended()


def _examined(board: Board, by: str, words: Sequence[str], parameters: int) -> list[Finding]:
    greet(board, words)
    hellos = board.await_hellos()
    hosts = Counter(hello["host"] for hello in hellos.values())
    where = ", ".join(f"{count} on {host}" for host, count in hosts.items())
    complaints = [said for rank, hello in hellos.items() if (said := disagreement(rank, hello, hellos[0]))]
    figure = complaints[0] if complaints else "all ranks match rank 0"
    remedy = "start all ranks with the same command, from the same installation"
    findings = [
        Finding("ranks", "ok", f"{board.size}, started by {by}: {where}"),
        judge("settings and versions are the same", not complaints, figure, remedy),
        check_threads(hellos),
        check_cores(hellos),
    ]
    if complaints:
        return findings
    board.put("measure", parameters)
    return [*findings, *judge_exchanges(parameters, *time_exchanges(board, parameters))]


def check_threads(hellos: Mapping[int, Mapping[str, Any]]) -> Finding:
    """Whether each rank computes in one thread, whatever the launcher has set."""
    many = [rank for rank, told in hellos.items() if told["threads"] != 1]
    left = sorted({str(told["left"] or "unset") for told in hellos.values()})
    figure = f"OMP_NUM_THREADS was {' or '.join(left)} when ranks were started; torch computes in one thread on "
    figure += f"all but rank {', '.join(map(str, many))}" if many else "each"
    remedy = "the number of threads was changed after asyncrl was imported: check the environment's code"
    return judge("one thread per rank", not many, figure, remedy)


def check_cores(hellos: Mapping[int, Mapping[str, Any]]) -> Finding:
    """Whether each host has a core for each of its ranks."""
    crowded = []
    for host in dict.fromkeys(hello["host"] for hello in hellos.values()):
        ranks = [rank for rank, hello in hellos.items() if hello["host"] == host]
        cores = {core for rank in ranks for core in hellos[rank]["cores"]}
        if len(cores) < len(ranks):
            crowded.append(f"{len(ranks)} ranks on {host} share {len(cores)} cores")
    figure = "; ".join(crowded) or "each host has at least one core per rank"
    remedy = "start fewer ranks per host; if the launcher binds them to cores, turn that off: mpirun --bind-to none"
    return advise("a core for each rank", not crowded, figure, remedy)


def time_exchanges(board: Board, parameters: int) -> list[list[float]]:
    """Seconds of each Allreduce of one number, and of `parameters` numbers. All ranks call this together."""
    seconds: list[list[float]] = []
    with contextlib.closing(Exchanges(board, TIMEOUT_SECONDS, Signals())) as exchanges:
        for vector in (torch.zeros(1), torch.zeros(parameters)):
            times = [time.perf_counter()]
            for _ in range(REPEATS + 5):
                exchanges.reduce(vector)()
                times.append(time.perf_counter())
            seconds.append([end - begin for begin, end in pairwise(times)][5:])
    return seconds


def judge_exchanges(parameters: int, one: Sequence[float], all_of_them: Sequence[float]) -> list[Finding]:
    """How long exchanges took."""
    figures = [f"{1e3 * statistics.median(took):.2f} ms, at most {1e3 * max(took):.2f}" for took in (one, all_of_them)]
    remedy = "the link is slow: use a larger --t-max or --envs-per-worker, or --overlap"
    return [
        advise("Allreduce of one number", statistics.median(one) < SLOW_LINK_SECONDS, figures[0], remedy),
        Finding(f"Allreduce of {parameters:,} numbers", "ok", f"{figures[1]}: a gradient of this network"),
    ]
