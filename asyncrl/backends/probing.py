"""Probes an environment in a process of its own: whatever it does there is over with that process."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from asyncrl.backends import process_trees
from asyncrl.backends.processes import begin, end, how_it_died, start, start_context
from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import SAY_SECONDS, handed_over, say_waiting, told, too_long, watched
from asyncrl.envs.spec import EnvironmentNotice, EnvSpec, notices_told

if TYPE_CHECKING:
    from asyncrl.core.named import Parcel

POLL_SECONDS = 0.2


def probe(spec: EnvSpec, algorithm: str, seconds: float, here: bool, steps: bool = True) -> Spaces:
    """What `spec.probe(steps)` returns. Raises UsageError if the environment cannot be used.

    `here`: in this process, where the run is going to have it. `seconds`: the longest that one call of it may take; 0:
    any time. Otherwise this shares the fork server with the processes of the run, which therefore start no later.
    """
    if here or sys.platform != "linux":  # where a process would have to import everything first
        with watched(seconds):
            return spec.probe(steps)
    context = start_context(algorithm)
    receiver, sender = context.Pipe(duplex=False)
    arguments = (sender, spec, handed_over(spec.own_names), steps, process_trees.TOKEN)
    process: BaseProcess = context.Process(target=_main, args=arguments, name="probe")  # type: ignore[attr-defined]
    with receiver, sender:
        try:
            start(process)
        except (OSError, EOFError) as error:
            raise UsageError(f"no process could be started: {one_line(error)}") from error
        try:
            return _answer(receiver, process, spec, seconds)
        finally:
            end(process)


def _answer(receiver: Connection, process: BaseProcess, spec: EnvSpec, seconds: float) -> Spaces:
    """What the process has found. Raises UsageError for what it complains of, and for a call without end."""
    what, since, said = "", time.monotonic(), False
    while True:
        wait([receiver, process.sentinel], timeout=POLL_SECONDS)
        ended = process.exitcode is not None  # asked first, so that what it has said is heard
        waited = time.monotonic() - since
        if receiver.poll():
            match receiver.recv():
                case Spaces() as spaces:
                    return spaces
                case UsageError() as error:
                    raise error
                case EnvironmentNotice() as notice:
                    warnings.warn(notice, stacklevel=3)
                case str(now):
                    what, since, said = now, time.monotonic(), False
        elif ended:
            raise UsageError(f"{what or spec.env_id}: its process {how_it_died(process)}")
        elif what and seconds and waited > seconds:
            raise UsageError(too_long(what, seconds))
        elif what and waited > SAY_SECONDS and not said:
            said = True
            say_waiting(what)


def _main(sender: Connection, spec: EnvSpec, own: tuple[Parcel, ...], steps: bool, token: str) -> None:
    """The main function of the process, which sends what it is calling and what there is to say about it, then Spaces
    or UsageError. Its Ctrl-C is for the process that waits."""
    begin(token)
    os.dup2(2, 1)
    answer: Spaces | UsageError
    try:
        with told(sender.send), notices_told(lambda text: sender.send(EnvironmentNotice(text))):
            answer = spec.probe(steps)
    except UsageError as error:
        answer = UsageError(str(error))
    except BaseException as error:
        answer = UsageError(f"{spec.env_id}: {one_line(error)}")
    with contextlib.suppress(OSError):
        sender.send(answer)
    os._exit(0)  # whatever it has left running
