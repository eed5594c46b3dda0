"""`python -m tests.golden.make [COMMIT]`: make the set of traces for this kind of processor.

Without a commit the traces are those of the working tree: do that on purpose only, when a change is meant to alter
learning. With one they are made from its own code, so that a refactoring can be checked on a machine for which no set
is kept yet: make the set from the commit before it, then run the tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from tests.golden.traces import CASES, SETS, make_trace, processor

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Make all traces, or those that are named, and write the set."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.make", description=__doc__)
    parser.add_argument("commit", nargs="?", help="make them from the code of this commit")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), help="leave the others as kept")
    arguments = parser.parse_args()
    file = SETS / f"{processor()}.json"
    traces = json.loads(file.read_text()) if file.is_file() else {}
    with tempfile.TemporaryDirectory() as place:
        source = ROOT
        if arguments.commit:
            source = Path(place) / "source"
            source.mkdir()
            archive = subprocess.run(["git", "archive", arguments.commit], cwd=ROOT, check=True, capture_output=True)
            subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
        for case in arguments.only:
            runs = Path(place) / case
            runs.mkdir()
            traces[case] = make_trace(case, runs, source)
            print(
                f"{case}: {len(traces[case]['theta'])} checkpoints, {sum(map(len, traces[case]['episodes']))} episodes"
            )
    SETS.mkdir(exist_ok=True)
    lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(traces[case])}" for case in sorted(traces))
    file.write_text("{\n" + lines + "\n}\n")
    print(file)


if __name__ == "__main__":
    main()
