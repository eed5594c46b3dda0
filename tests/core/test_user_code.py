"""What user code may do without harm: raise anything, change the process, take its time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncrl.core import user_code as module
from asyncrl.core.errors import UsageError
from asyncrl.core.user_code import Own, changed, user_code, watched


class Complaint(Exception):
    """What a caller makes of the exceptions of user code."""


class Strange(BaseException):
    """An exception that derives from nothing that `except Exception` knows."""


@pytest.mark.parametrize(
    "raised", [SystemExit(0), SystemExit("gone"), GeneratorExit(), asyncio.CancelledError(), Strange(), ValueError("3")]
)
def test_whatever_user_code_raises_becomes_the_complaint(raised: BaseException) -> None:
    """Those too that end a program or a coroutine."""
    with pytest.raises(Complaint, match=type(raised).__name__), user_code("it", lambda e: Complaint(type(e).__name__)):
        raise raised


def test_without_a_complaint_exceptions_keep_their_traceback_and_the_end_of_the_program_is_an_error() -> None:
    """One line names the code."""
    with pytest.raises(ZeroDivisionError), user_code("its preset"):
        raise ZeroDivisionError
    with pytest.raises(UsageError, match=r"^its preset: SystemExit: 7$"), user_code("its preset"):
        sys.exit(7)


def test_a_ctrl_c_is_not_the_codes_own() -> None:
    """It stops the command."""
    with pytest.raises(KeyboardInterrupt), user_code("it", lambda e: Complaint(str(e))):
        raise KeyboardInterrupt


def stdout() -> object:
    return sys.stdout


def errors() -> int:
    return sum(kind[0] == "error" for kind in warnings.filters)


def umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


SWITCHES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "half": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.bfloat16)),
    "device": (torch.get_default_device, lambda: torch.set_default_device("meta")),
    "gradients": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "no_grad": (torch.is_grad_enabled, lambda: torch.no_grad().__enter__()),
    "anomaly": (torch.is_anomaly_enabled, lambda: torch.autograd.set_detect_anomaly(True)),
    "numpy": (np.geterr, lambda: np.seterr(all="raise")),
    "recursion": (sys.getrecursionlimit, lambda: sys.setrecursionlimit(333)),
    "folder": (os.getcwd, lambda: os.chdir("/")),
    "umask": (umask, lambda: os.umask(0o777)),
    "stdout": (stdout, lambda: setattr(sys, "stdout", sys.stderr)),
    "warnings": (errors, lambda: warnings.filterwarnings("error", message="of its own")),
    "variables": (lambda: os.environ.get("PATH"), os.environ.clear),
    "one variable": (lambda: os.environ.get("HOME"), lambda: os.environ.pop("HOME", None)),
    "SIGTERM": (lambda: signal.getsignal(signal.SIGTERM), lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)),
    "SIGINT": (lambda: signal.getsignal(signal.SIGINT), lambda: signal.signal(signal.SIGINT, lambda *_: None)),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_what_user_code_changes_for_the_whole_process_is_put_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it returns or raises."""
    get, change = SWITCHES[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = get()

    with user_code("it"):
        change()
        assert get() != before
    assert get() == before

    def break_off() -> None:
        change()
        raise ValueError

    with pytest.raises(Complaint), user_code("it", lambda e: Complaint(str(e))):
        break_off()
    assert get() == before


def test_its_own_switches_hold_again_in_its_next_call(tmp_path: Path) -> None:
    """A simulator may have gone to its files, and a model of its own may compute in float64."""
    own: Own = {}
    here = os.getcwd()
    with user_code("it", own=own):
        os.chdir(tmp_path)
        torch.set_default_dtype(torch.float64)
    with user_code("another"):
        assert (os.getcwd(), torch.zeros(1).dtype) == (here, torch.float32)
    with user_code("it", own=own):
        assert (os.getcwd(), torch.zeros(1).dtype) == (str(tmp_path), torch.float64)
    assert (os.getcwd(), torch.zeros(1).dtype) == (here, torch.float32)
    assert {"the working folder", "torch's default dtype"} <= changed()


def test_who_removes_variables_is_known_to_do_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has to be looked after in its next calls too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    own: Own = {}
    for _ in range(2):
        with user_code("it", own=own):
            os.environ.pop("HOME", None)
        assert own
        assert "HOME" in os.environ


def test_variables_that_it_sets_stay() -> None:
    """Libraries read them later: SDL_VIDEODRIVER, MUJOCO_GL."""
    try:
        with user_code("it"):
            os.environ["ASYNCRL_TEST_DRIVER"] = "dummy"
        assert os.environ["ASYNCRL_TEST_DRIVER"] == "dummy"
    finally:
        os.environ.pop("ASYNCRL_TEST_DRIVER", None)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "SAY_SECONDS", 0.2)
    handler = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) == handler


def busy() -> None:
    while True:
        pass


HANGS: dict[str, Callable[[], object]] = {
    "sleep": lambda: time.sleep(600),
    "event": lambda: threading.Event().wait(600),
    "lock": lambda: [lock := threading.Lock(), lock.acquire(), lock.acquire()],
    "pipe": lambda: os.read(os.pipe()[0], 1),
    "busy": busy,
}


@pytest.mark.parametrize("name", HANGS)
def test_user_code_that_does_not_return_is_left(name: str) -> None:
    """From within whatever it waits for."""
    expected = r"^its reset\(\) did not return within 0.6 seconds$"
    with (
        pytest.raises(UsageError, match=expected),
        watched(0.6),
        user_code("its reset()", lambda e: Complaint(str(e))),
    ):
        HANGS[name]()


def test_several_calls_may_take_longer_together() -> None:
    """The limit is of one."""
    with watched(3.0):
        for _ in range(7):
            with user_code("it"):
                time.sleep(0.5)
        time.sleep(3.2)  # our own code, which nobody waits for


def test_a_ctrl_c_while_user_code_is_watched_is_a_ctrl_c() -> None:
    """It is not taken for the end of patience."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background
    with pytest.raises(KeyboardInterrupt), watched(60), user_code("it", lambda e: Complaint(str(e))):
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_the_number_of_threads_is_put_back() -> None:
    """Of torch, and of OpenCV, which environments draw with."""
    import cv2

    before, own = (torch.get_num_threads(), cv2.getNumThreads()), Own()
    with user_code("its reset()", own=own):
        torch.set_num_threads(before[0] + 1)
        cv2.setNumThreads(before[1] + 1)

    assert (torch.get_num_threads(), cv2.getNumThreads()) == before
    assert not own
