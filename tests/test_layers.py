"""Imports point down only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import asyncrl
from asyncrl.catalog import ALGORITHMS

ROOT = Path(asyncrl.__file__).parent
MODULES = {".".join(["asyncrl", *file.relative_to(ROOT).with_suffix("").parts]): file for file in ROOT.rglob("*.py")}
RUNTIME = {"runtime", "base", "nets", "envs", "storage", "catalog", "config", "core"}
MAY_IMPORT = {
    "core": {"core"},
    "config": {"config", "storage", "core"},
    "nets": {"nets", "core"},
    "envs": {"envs", "config", "core"},
    "storage": {"storage", "catalog", "core"},
    "runtime": RUNTIME,
    "parameters": {"parameters", "runtime", "core"},
    "experience": {"experience", "runtime", "envs", "core"},
    "backends": RUNTIME | {"backends", "parameters", "experience"},
    "doctor": RUNTIME | {"doctor", "backends", "parameters"},
    "plots": {"plots", "storage", "catalog", "core"},
    "studies": {"studies", "plots", "storage", "catalog", "core"},
    "catalog": set(),
    "api": RUNTIME | {"api", "doctor", "backends", "experience"},
    "base": {"base", "nets", "config", "catalog", "core"},
    "algorithm": {"algorithm", "base", "nets", "envs", "config", "core"},
}
TOP = {"commands", "__init__", "__main__"}
"""They may import everything."""


def layer_of(module: str) -> str:
    part = module.split(".")[1] if "." in module else ""
    if part in ("algorithm", "actor_critic", "action_value"):
        return "base"
    return "algorithm" if part in ALGORITHMS else part


def imports_of(file: Path) -> list[str]:
    """The modules of this package that a file imports, the guard at the bottom of an algorithm left out."""
    tree = ast.parse(file.read_text())
    guards = [top for top in tree.body if isinstance(top, ast.If) and "__main__" in ast.dump(top.test)]
    guarded = {id(node) for guard in guards for node in ast.walk(guard)}
    nodes = [node for node in ast.walk(tree) if id(node) not in guarded]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{one.name}" for one in node.names]
            names += [node.module, *(name for name in inside if name in MODULES)]
    return [name for name in names if name.startswith("asyncrl.")]


@pytest.mark.parametrize("module", sorted(module for module in MODULES if layer_of(module) not in TOP))
def test_a_layer_imports_only_what_is_below_it(module: str) -> None:
    """Algorithms and runtime never see each other."""
    allowed = MAY_IMPORT[layer_of(module)]
    assert [name for name in imports_of(MODULES[module]) if layer_of(name) not in allowed] == []


UNPICKLING = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
HANDS_OVER = {"core/named.py": {"cloudpickle"}}
"""What a program hands over reaches the processes that it has started through multiprocessing's own pipe."""


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_is_unpickled(file: Path) -> None:
    """Neither by such a module, nor by torch.load, numpy.load or torch.distributed's exchanges of objects."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    calls = [ast.unparse(node) for node in nodes if isinstance(node, ast.Call)]
    unsafe = re.compile(r"(torch\.load\((?!.*weights_only=True)|(np|numpy)\.load\(|dist\.\w+_object)")

    allowed = HANDS_OVER.get(file.relative_to(ROOT).as_posix(), set())
    assert {name.partition(".")[0] for name in names} & UNPICKLING <= allowed
    assert not [call for call in calls if unsafe.match(call)]


MOST_MODULES, MOST_LINES = 75, 9_500
"""Of this package, in the command's own process during a local run of A3C."""
USED = {
    "backends": {"handles", "local", "outcome", "probing", "process_trees", "processes", "sockets", "supervisor"},
    "parameters": {"shared"},
    "api": {"request", "runs", "training"},
    "nets": {"actor_critic", "bodies", "trunk"},
    "envs": {"environment", "spec"},
}
"""What such a run may load of these packages."""
UNUSED = {"commands", "experience", "plots", "studies"}
"""The packages of which it may load nothing."""


def test_a_local_run_loads_only_what_it_uses(tmp_path: Path) -> None:
    """Nothing of ranks, hosts, shards, replay, playing, resuming, tracking, or of what a program hands over."""
    code = "import asyncrl\nif __name__ == '__main__':\n    "
    code += f"asyncrl.train('a3c', env_id='CartPole-v1', workers=1, total_steps=50, runs_dir={str(tmp_path)!r})\n    "
    code += "import sys; print(*(name for name in sys.modules if name.startswith('asyncrl')))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ended.stdout.split())
    files = [MODULES.get(name) or ROOT.joinpath(*name.split(".")[1:], "__init__.py") for name in loaded]
    parts = {name.split(".")[1]: set[str]() for name in loaded if "." in name}
    for name in loaded:
        _, package, module = (*name.split(".", 2), "", "")[:3]
        if module:
            parts[package].add(module)

    assert not parts.keys() & UNUSED
    assert {package: parts[package] - allowed for package, allowed in USED.items()} == {name: set() for name in USED}
    assert not loaded & {"asyncrl.core.named", "asyncrl.core.exploration", "asyncrl.storage.tracking"}
    assert len(loaded) <= MOST_MODULES
    assert sum(len(file.read_text().splitlines()) for file in files) <= MOST_LINES


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not for types either: what both need is in a module below them."""
    below = {module: set(imports_of(file)) & MODULES.keys() for module, file in MODULES.items()}
    while leaves := {module for module, imported in below.items() if not imported & below.keys()}:
        for module in leaves:
            del below[module]

    while tops := below.keys() - {name for imported in below.values() for name in imported}:
        for module in tops:
            del below[module]
    assert sorted(below) == []
