"""Other people's text on a terminal."""

from __future__ import annotations

import ast
import itertools
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import asyncrl
from asyncrl.__main__ import main
from asyncrl.commands.program import run_command
from asyncrl.commands.watch import Reader
from asyncrl.core.errors import UsageError
from asyncrl.core.output import clean
from asyncrl.runtime.terminal import TerminalView, panel
from asyncrl.storage.run_folder import RunFolder
from tests.faults.running import SECONDS
from tests.support import the_run

ATTACK = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m\r\u202eevil\x00\x7f[bold]\x1bP1\x1b\\"
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain\n\ttext äöü ✓ 日本", "plain\n\ttext äöü ✓ 日本"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "]0;titlex"),  # nothing visible is lost
        ("a\rb\x08c\x9b2J\u2066d", "abc2Jd"),
    ],
)
def test_what_a_terminal_would_obey_is_left_out(text: str, left: str) -> None:
    """And nothing else."""
    assert clean(text) == left


def test_the_package_prints_in_one_place() -> None:
    """No other call of print, nor a text that rich gets as it is."""
    root = Path(asyncrl.__file__).parent
    for file in root.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        prints = [call.lineno for call in calls if isinstance(call, ast.Name) and call.id == "print"]
        assert (file.relative_to(root).as_posix() == "core/output.py") == bool(prints), f"{file} {prints}"


def test_a_line_and_its_end_are_one_write() -> None:
    """Without a buffer, too, as under PYTHONUNBUFFERED: lines of several processes would otherwise run together."""
    program = "from asyncrl.core.output import print_line; [print_line(f'{n} {n}') for n in range(3)]"
    reading, writing = socket.socketpair(type=socket.SOCK_DGRAM)  # a packet for each write
    with reading, writing:
        subprocess.run([sys.executable, "-u", "-c", program], stdout=writing, check=True, timeout=SECONDS)
        reading.settimeout(SECONDS)
        written = filter(None, (reading.recv(100) for _ in itertools.count()))  # print writes its empty end, too
        assert list(itertools.islice(written, 3)) == [b"0 0\n", b"1 1\n", b"2 2\n"]


def test_an_error_is_one_clean_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever its text holds."""

    def fail() -> int:
        raise UsageError(f"{ATTACK}\nfinished: all is well")

    assert run_command("asyncrl test", fail) == 2
    assert main([ATTACK]) == 2
    assert main(["a3c", "--env-id", ATTACK]) == 2
    error = capfd.readouterr().err
    assert UNSAFE.sub("", error) == error
    assert error.count("\n") == 3


CATCH = ["--env-id", "Catch", "--backend", "serial", "--workers", "1", "--total-steps", "200", "--seed", "1"]


def test_what_a_strangers_folder_says_is_clean(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In lines, tables and the live view."""
    assert main(["a3c", *CATCH, "--runs-dir", str(tmp_path), "--quiet"]) == 0
    run = the_run(tmp_path)
    stored = json.loads((run / "config.json").read_text())
    stored["config"]["env_id"] = stored["environment"]["description"] = ATTACK
    (run / "config.json").write_text(json.dumps(stored))
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"reason": ATTACK, "state": ATTACK}))
    capfd.readouterr()

    for words in (
        ["evaluate", str(run)],
        ["evaluate", str(run), str(run)],
        ["watch", str(run)],
        ["export", str(run), "--onnx", "a.onnx"],
    ):
        assert main(words) == 2
    console = Console(force_terminal=True, color_system=None)
    reader = Reader(RunFolder(run))
    console.print(panel(reader.read(), reader.title, reader.curves))
    TerminalView(ATTACK).say(ATTACK)
    said = "".join(capfd.readouterr())
    assert UNSAFE.sub("", said) == said
    assert "]0;owned" in said
    assert "[bold]" in said


def test_what_an_environment_says_is_clean_in_our_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its exceptions, for example, and its traceback."""
    module = Path(__file__).stem
    words = ["--runs-dir", str(tmp_path), "--backend", "serial", "--workers", "1"]
    assert main(["a3c", "--env-id", f"tests.core.{module}:rude", *words]) == 2
    assert main(["a3c", "--env-id", f"tests.core.{module}:later", *words]) == 1

    said = "".join(capfd.readouterr())
    assert UNSAFE.sub("", said) == said
    assert said.count("]0;owned") >= 2


def rude() -> None:
    """Cannot be made."""
    raise RuntimeError(ATTACK)


def later() -> object:
    """Breaks after a while."""
    import gymnasium

    class Later(gymnasium.Wrapper):  # type: ignore[type-arg]
        count = 0

        def step(self, action: object) -> object:  # type: ignore[override]
            self.count += 1
            if self.count > 50:
                raise RuntimeError(ATTACK)
            return self.env.step(action)

    return Later(gymnasium.make("CartPole-v1"))
