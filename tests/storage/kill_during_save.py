"""Save checkpoints in processes that kill themselves at every single system call of a save. Run by test_checkpoints.

    python kill_during_save.py FOLDER KIND

For n = 1, 2, ... a forked child begins to save and sends itself SIGKILL in place of its n-th call that touches the
disk; the parent then looks at what lies there. It ends when a child gets through, and prints how many it killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from asyncrl.storage import checkpoints
from asyncrl.storage.checkpoints import Checkpoint

CALLS = ("open", "mkdir", "fsync", "rename", "unlink", "rmdir")


def die_at(last: int) -> None:
    """Replace the calls so that the one number `last` kills this process before it happens."""
    calls = 0

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return run

    for name in CALLS:
        setattr(os, name, guarded(getattr(os, name)))


def save(folder: Path, kind: str, steps: int) -> None:
    parameters = {"w": torch.full((3,), float(steps))}
    checkpoint = Checkpoint(steps, 0, 0.0, parameters, {"s": torch.ones(2)}, {})
    checkpoints.save(folder, checkpoint, keep=1, kind=kind)


def main(root: Path, kind: str) -> None:
    for again in (False, True):  # saving further steps, saving the same step again
        killed = 0
        while True:
            folder = root / f"{again}-{killed}"
            folder.mkdir()
            save(folder, kind, 100)
            child = os.fork()
            if child == 0:
                die_at(killed + 1)
                save(folder, kind, 100 if again else 200)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            found, skipped = checkpoints.load_newest(folder, kind)
            assert skipped == [], skipped
            assert found.steps in (100, 200)
            assert found.parameters["w"].tolist() == [found.steps] * 3
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
            killed += 1
            # The next one of this kind takes the litter away, and so does `clean`.
            save(folder, kind, 300)
            assert checkpoints.load_newest(folder, kind)[0].steps == 300
            checkpoints.clean(folder)
            assert os.listdir(folder) == [f"{kind}_000000000300"], os.listdir(folder)
            shutil.rmtree(folder)
        print(killed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2])
