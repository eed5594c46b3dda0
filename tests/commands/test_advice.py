"""Whatever is printed as advice works as it is printed, however a run has ended."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import asyncrl
from asyncrl.__main__ import main
from asyncrl.runtime.monitor import Monitor
from asyncrl.storage.run_folder import RunFolder

TINY: dict[str, Any] = {
    "env_id": f"{__name__}:Troubled", "backend": "serial", "workers": 2, "total_steps": 400,
    "evaluation_interval_steps": 200, "evaluation_episodes": 2, "run_name": "mine", "runs_dir": "my runs",
}  # fmt: skip
PATH = f"my runs/a3c/{TINY['env_id'].replace(':', '_')}/mine"
troubles: list[Callable[[], object]] = []
"""What happens in the next steps of environments, once each."""


def interrupt() -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def break_down() -> None:
    raise ValueError("the lamp went out")


class Troubled(gymnasium.Env[Any, Any]):
    """One of two lamps shines, ten times: press its button."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.lamp, self.at = int(self.np_random.integers(2)), 0
        return np.eye(2, dtype=np.float32)[self.lamp], {}

    def step(self, action: Any) -> Any:
        self.at += 1
        if troubles and self.at == 5:  # not in the one step in which it is looked at first
            troubles.pop(0)()
        reward, self.lamp = float(action == self.lamp), int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.lamp], reward, self.at == 10, False, {}


def on_the_command_line(**settings: Any) -> None:
    """Train, by words."""
    flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in (TINY | settings).items()]
    main(["a3c", *(word for flag in flags for word in flag)])


def in_a_program(**settings: Any) -> None:
    """Train, by a call."""
    with contextlib.suppress(KeyboardInterrupt, asyncrl.RunFailed):
        asyncrl.train("a3c", quiet=False, **(TINY | settings))


def advice_in(text: str) -> list[str]:
    """All commands and calls in what was printed."""
    return re.findall(r"(?:python -m asyncrl|asyncrl\.(?:train|load|Run)\b).*?(?=, or choose|\n|$)", text)


def follow(advice: str) -> None:
    """Do what a line says, in a shell or in Python."""
    if advice.startswith("python -m asyncrl "):
        assert main(shlex.split(advice)[3:]) == 0, advice
    else:
        eval(advice, {"asyncrl": asyncrl})


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What has been printed in an empty folder, in which runs are."""
    monkeypatch.chdir(tmp_path)
    troubles.clear()
    return lambda: "".join(capsys.readouterr())


ENDS: dict[str, tuple[dict[str, Any], list[Callable[[], object]], str]] = {
    "all steps": ({}, [], "finished: total_steps reached"),
    "only the last evaluation": ({"evaluation_interval_steps": 0}, [], "finished: total_steps reached"),
    "a score": ({"stop_at_score": 0.0}, [], "finished: an evaluation reached 0.0"),
    "the time": ({"total_steps": 10**9, "max_seconds": 0.3}, [], "finished: max_seconds"),
    "Ctrl-C before an evaluation": ({}, [interrupt], "stopped: received SIGINT; best evaluation -"),
    "Ctrl-C after an evaluation": ({"total_steps": 4000}, [*[lambda: None] * 150, interrupt], "stopped: received SI"),
    "an error before an evaluation": ({}, [break_down], "ValueError: the lamp went out; best evaluation -"),
    "an error after an evaluation": (
        {"total_steps": 4000},
        [*[lambda: None] * 150, break_down],
        "ValueError: the lamp went out; best evaluation",
    ),
}
"""Settings and troubles of a run, and how it ends."""


@pytest.mark.parametrize("train", [on_the_command_line, in_a_program])
@pytest.mark.parametrize(("settings", "trouble", "end"), ENDS.values(), ids=ENDS.keys())
def test_the_advice_at_the_end_of_a_run_works(
    told: Callable[[], str], train: Callable[..., None], settings: dict[str, Any], trouble: list[Any], end: str
) -> None:
    """Resuming, evaluating and showing it; that of the resumed run as well."""
    troubles[:] = trouble
    train(**settings)
    text = told()
    assert end in text
    assert not troubles
    if train is on_the_command_line:
        assert f"watch its curves: tensorboard --logdir {shlex.quote(PATH)}\n" in text
        assert list(RunFolder(Path(PATH)).tensorboard.iterdir())
    else:
        assert "python -m" not in text
        assert "--" not in text

    resume, *others = advice_in(text)
    assert len(others) == 2
    for advice in (*others, resume):
        follow(advice)
    after = told()
    if train is on_the_command_line:
        for advice in advice_in(after):
            follow(advice)


@pytest.mark.parametrize("train", [on_the_command_line, in_a_program])
def test_a_run_without_a_checkpoint_gives_no_advice_but_to_begin_again(
    told: Callable[[], str], train: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it broke before it could be saved."""

    def full(monitor: Monitor) -> bool:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Monitor, "save_checkpoint", full)
        train(total_steps=100, evaluation_interval_steps=0)
    assert advice_in(told()) == []

    remedy = "it has no checkpoint: begin it again with "
    if train is in_a_program:
        with pytest.raises(asyncrl.UsageError, match=f'{remedy}resume="auto", or choose another run_name$'):
            in_a_program()
    else:
        on_the_command_line()
        assert f"{remedy}--resume auto, or choose another --run-name\n" in told()
    train(resume="auto")
    assert "finished: total_steps reached" in told()
    train(resume="auto")  # by now there is one


def test_a_name_that_is_taken_is_followed_by_what_works(told: Callable[[], str]) -> None:
    """In the language in which it was asked, for a run that has ended and for one that is in progress."""
    for ended in ([], [interrupt]):
        troubles[:] = ended
        on_the_command_line(run_name="taken" + str(len(ended)))
        told()
        with pytest.raises(asyncrl.UsageError, match=r"exists already; continue it with .* choose another") as refused:
            in_a_program(run_name="taken" + str(len(ended)))
        on_the_command_line(run_name="taken" + str(len(ended)))
        (typed,), (called,) = advice_in(told()), advice_in(str(refused.value))
        assert typed.startswith("python -m asyncrl train a3c --resume ")
        assert called.startswith("asyncrl.train(resume=")
        assert ("--total-steps 800" in typed, "total_steps=800" in called) == (not ended, not ended)
        follow(typed)
    with asyncrl.training("a3c", **(TINY | {"total_steps": 10**9, "run_name": "going"})):
        on_the_command_line(run_name="going")
    assert "exists already; it is in progress: choose another --run-name\n" in told()


def test_what_a_finished_run_and_one_without_an_evaluation_are_told_to_give(told: Callable[[], str]) -> None:
    """More steps; the newest checkpoint instead of the best one."""
    on_the_command_line()
    on_the_command_line(resume=PATH)
    assert "give a larger --total-steps to continue" in told()
    with pytest.raises(asyncrl.UsageError, match="give a larger total_steps to continue"):
        asyncrl.train(resume=asyncrl.Run.open(PATH))

    troubles[:] = [interrupt]
    on_the_command_line(run_name="early")
    early = str(Path(PATH).with_name("early"))
    assert main(["evaluate", early]) == 2
    assert "has no best checkpoint because no evaluation has finished; use --checkpoint newest\n" in told()
    with pytest.raises(asyncrl.UsageError, match=r'no evaluation has finished; use checkpoint="newest"$'):
        asyncrl.load(early)
    with pytest.raises(asyncrl.UsageError, match=r'use checkpoint="newest"$'):
        asyncrl.Run.open(early).evaluate()
