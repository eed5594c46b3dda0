"""Short serial runs give what they gave before, to the bit: a change that is not about learning leaves them alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.traces import CASES, SETS, make_trace, processor


@pytest.mark.filterwarnings("ignore::asyncrl.envs.spec.EnvironmentNotice")
@pytest.mark.parametrize("case", list(CASES))
def test_a_short_serial_run_gives_what_it_gave_before(case: str, tmp_path: Path) -> None:
    file = SETS / f"{processor()}.json"
    kept = json.loads(file.read_text()) if file.is_file() else {}
    if case not in kept:
        pytest.skip(f"no such trace is kept for {processor()}: make it with python -m tests.golden.make COMMIT")
    assert make_trace(case, tmp_path) == kept[case]
