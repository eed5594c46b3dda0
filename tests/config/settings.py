"""The settings that each algorithm ends up with, by preset and kind of environment, as kept in settings.json.

`python -m tests.config.settings` writes the file anew: do that on purpose only, when a setting is meant to change.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from asyncrl.algorithm import algorithm_of
from asyncrl.config.run_config import RunConfig
from asyncrl.core.spaces import Spaces

FILE = Path(__file__).parent / "settings.json"
ALGORITHMS = (
    "a3c", "one_step_q", "one_step_sarsa", "n_step_q", "a2c", "ppo", "impala", "reinforce", "gorila", "apex",
    "apex_dpg", "sac",
)  # fmt: skip
PRESETS = ("default", "paper")
KINDS = {
    "atari": Spaces((4, 42, 42), "uint8", 6, kind="atari"),
    "screen": Spaces((3, 64, 64), "uint8", 15, kind="screen"),
    "board": Spaces((4, 10, 10), "uint8", 6, kind="board"),
    "vector": Spaces((4,), "float32", 2),
    "continuous": Spaces((3,), "float32", 0, (-2.0,), (2.0,)),
}


def settings_of(algorithm: str, preset: str, spaces: Spaces) -> dict[str, Any]:
    """All settings of an algorithm but the number of workers where that is the machine's, as config.json has them."""
    module = algorithm_of(f"asyncrl.{algorithm}")
    chosen = module.preset(preset, spaces) | {"preset": preset}
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(module.Config(**chosen))))
    if "workers" not in chosen:
        del plain["workers"]
    return plain


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What `after` has that `before` has not."""
    return {name: value for name, value in after.items() if name not in before or before[name] != value}


def table() -> dict[str, Any]:
    """The plain defaults of all algorithms, what each changes in them, and what its presets change in those."""
    shared = json.loads(json.dumps(dataclasses.asdict(RunConfig(workers=1))))
    del shared["workers"]
    kept: dict[str, Any] = {"all": shared}
    for algorithm in ALGORITHMS:
        own = json.loads(json.dumps(dataclasses.asdict(algorithm_of(f"asyncrl.{algorithm}").Config())))
        del own["workers"]
        kept[algorithm] = {"defaults": changes(shared, own)} | {
            f"{preset} {kind}": changes(own, settings_of(algorithm, preset, spaces))
            for preset in PRESETS
            for kind, spaces in KINDS.items()
        }
    return kept


if __name__ == "__main__":
    FILE.write_text(json.dumps(table(), indent=1) + "\n")
