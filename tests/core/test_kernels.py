"""What is compiled does what Python does, to the bit; and all works without it."""

from __future__ import annotations

import _multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from asyncrl.core import kernels
from asyncrl.core.updates import UpdateRule

ROOT = Path(__file__).parents[2]
RULES = ("rmsprop", "centred-rmsprop", "momentum-sgd")
compiled = pytest.mark.skipif(kernels.LIBRARY is None, reason=f"the kernels are not used: {kernels.MISSING}")


def gradients(size: int, random: torch.Generator) -> torch.Tensor:
    """Of all magnitudes, among them zero, numbers that are too small to be normal, and squares that overflow."""
    magnitudes = torch.rand(size, generator=random) * 70 - 45
    values = torch.randn(size, generator=random) * 10**magnitudes
    values[::11] = 0.0
    return values


def after_updates(rule: UpdateRule, size: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """theta and the statistics, after five updates, as integers: a NaN equals itself."""
    theta, statistics = torch.randn(size, generator=random), torch.zeros(rule.statistics, size)
    for step in range(5):
        rule.apply(theta, gradients(size, random), statistics, 0.007, step)
    return theta.view(torch.int32), statistics.view(torch.int32)


@compiled
@pytest.mark.parametrize("size", [0, 1, 7, 16, 31, 47, 1000, 70_003])
@pytest.mark.parametrize("decay", [0.0, 0.99])
@pytest.mark.parametrize("name", RULES)
def test_a_compiled_rule_is_the_formula_to_the_bit(
    name: str, decay: float, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the vector's length, and with numbers at both ends of the range."""
    rule, results = UpdateRule(name, decay, epsilon=0.01), []
    for rules in (kernels.RULES, {}):
        monkeypatch.setattr(kernels, "RULES", rules)
        results.append(after_updates(rule, size, torch.Generator().manual_seed(3)))

    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@compiled
@pytest.mark.parametrize("name", RULES)
def test_a_compiled_rule_writes_only_its_part(name: str) -> None:
    """Theta, gradient and statistics inside larger memory, as a shard's or a worker's are."""
    rule = UpdateRule(name)
    theta, statistics = torch.zeros(30), torch.zeros(3, rule.statistics, 10)

    rule.apply(theta[10:20], torch.ones(30)[10:20], statistics[1], 0.1, 0)

    assert theta.nonzero().flatten().tolist() == list(range(10, 20))
    assert statistics.count_nonzero((1, 2)).tolist() == [0, 10 * rule.statistics, 0]


@compiled
@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_they_round_as_torch_does_on_other_processors(capability: str) -> None:
    """Torch multiplies and adds in one rounding where the processor can; it can be told to do without."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "formula_to_the_bit"],
        env=os.environ | {"ATEN_CPU_CAPABILITY": capability}, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip

    assert run.returncode == 0, run.stdout
    assert "passed" in run.stdout


def loaded(**variables: str) -> str:
    """Why a new process does without them; "" if it does not."""
    code = "from asyncrl.core import kernels; print(kernels.MISSING)"
    run = subprocess.run([sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True)
    return run.stdout.strip() or run.stderr


def test_a_variable_switches_them_off() -> None:
    """For comparisons."""
    assert loaded(ASYNCRL_KERNELS="0") == "ASYNCRL_KERNELS is 0"


def test_only_a_library_of_these_sources_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None where there was no compiler, and not one from before an update of the sources."""
    monkeypatch.delenv("ASYNCRL_KERNELS", raising=False)
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "kernels.py"))
    assert kernels.load() == (None, "not compiled")
    if kernels.LIBRARY is None:
        return
    (tmp_path / "_kernels.abi3.so").symlink_to(kernels.LIBRARY._name)
    (tmp_path / "kernels.c").write_text("/* newer */")
    assert kernels.load() == (None, "compiled from other sources")
    for source in Path(kernels.LIBRARY._name).parent.glob("[a-z]*.c"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / ".#kernels.c").symlink_to("an editor's lock of nothing")
    assert kernels.load()[1] == ""


@pytest.mark.skipif(kernels.LIBRARY is None, reason="there is no library here")
def test_another_library_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built from something else, without the functions that a call needs."""
    monkeypatch.delenv("ASYNCRL_KERNELS", raising=False)
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "kernels.py"))
    (tmp_path / "_kernels.abi3.so").symlink_to(_multiprocessing.__file__)
    assert kernels.load() == (None, "not compiled")
