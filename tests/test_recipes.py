"""The recipes of docs/extending.md: their files are written, and their commands run, with a tenth of all steps."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
TEXT = re.sub(r"(--total-steps \d+)0_000", r"\1_000", TEXT)
FILES = ("heavy.py", "my_package/wide.py", "bodies.py", "lagging.py", "threads.py")
"""Of the page's Python blocks, in their order."""


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_recipe_works(tmp_path: Path) -> None:
    """Each command ends with exit code 0."""
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.S | re.M)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    for name, block in zip(FILES, blocks, strict=True):
        (tmp_path / name).write_text(block)
    commands = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.S) for line in block.strip().splitlines()]
    assert len(commands) >= 5

    for command in commands:
        _, *words = shlex.split(command, comments=True)
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr[-500:]}"
