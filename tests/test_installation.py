"""What the installed package does wherever one stands, and what importing it does to a program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import asyncrl


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder, with the words given."""
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=200)


def test_the_folder_above_a_clone_named_asyncrl_hides_nothing(tmp_path: Path) -> None:
    """The clone is no package, though Python could take it for one: modules and scripts find the real one."""
    (tmp_path / "asyncrl" / "asyncrl").mkdir(parents=True)
    (tmp_path / "script.py").write_text("import asyncrl\nprint(asyncrl.__file__)\n")

    script = python(tmp_path, "script.py")
    module = python(tmp_path, "-m", "asyncrl", "--help")

    assert (script.stdout, script.stderr) == (f"{asyncrl.__file__}\n", "")
    assert (module.returncode, module.stderr) == (0, "")


def test_importing_the_package_leaves_signals_alone(tmp_path: Path) -> None:
    """A program of somebody else's that is started with -m and imports it keeps its Ctrl-C."""
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__init__.py").write_text("import asyncrl\n")
    (tmp_path / "program" / "train.py").write_text(
        "import signal\nprint(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"
    )
    start = "import signal, os, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "  # even if it is ignored here
    start += f"os.execv(sys.executable, [{sys.executable!r}, '-m', 'program.train', '-m', 'asyncrl.a3c'])"

    assert python(tmp_path, "-c", start).stdout == "True\n"
