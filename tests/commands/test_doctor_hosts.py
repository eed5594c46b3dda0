"""What the doctor says of the machines of a Ray cluster."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import replace
from typing import Any

import pytest

from asyncrl.commands.doctor import main
from asyncrl.core.extras import to_install
from asyncrl.doctor import Finding
from asyncrl.doctor.hosts import Machine, judge_machines, on_all_interfaces

PARAMETERS = 1_000_000
GOOD = Machine(
    name="first", versions={"python": "3.11.7", "torch": "2.13.0", "asyncrl": "0.1", "ray": "2.60"},
    cores=8, threads=1, shared_bytes=2**33, token=True, exposed=(), unreachable=(), ahead_seconds=0.0,
    uncertain_seconds=0.001, call_seconds=(0.001, 0.002, 0.001), exchange_seconds=(0.02, 0.04, 0.02),
)  # fmt: skip


def findings(**other: Any) -> dict[str, Finding]:
    """What is said of the good machine and of one that differs, by check."""
    second = replace(GOOD, **({"name": "second"} | other))
    return {found.check: found for found in judge_machines([GOOD, second], 4, 2**20, PARAMETERS)}


def test_two_machines_that_are_alike_pass_every_check() -> None:
    """With figures: an exchange sends all parameters there and back."""
    found = findings()

    assert {one.verdict for one in found.values()} == {"ok"}
    assert not any(one.remedy for one in found.values())
    assert found["the cluster"].figure == "first (8 cores), second (8 cores)"
    assert found["an exchange of 1,000,000 numbers"].figure == "20.00 ms, at most 40.00, from first: 400 MB/s"


@pytest.mark.parametrize(
    ("check", "verdict", "other", "figure"),
    [
        ("Ray requires a token", "note", {"token": False}, "not on second"),
        ("ports", "FAIL", {"unreachable": ("10.0.0.1:6380",)}, "second cannot reach 10.0.0.1:6380"),
        ("versions are the same", "FAIL", {"versions": GOOD.versions | {"torch": "2.6.0"}}, "second has torch 2.6.0"),
        ("versions are the same", "FAIL", {"versions": {}}, "second has python None, first has 3.11.7"),
        ("clocks", "note", {"ahead_seconds": -3.0}, "second: -3000.0 ms"),
        ("threads per worker", "FAIL", {"threads": 8}, "8 on second"),
        ("shared memory of hosts", "FAIL", {"shared_bytes": 2**16}, "64 KiB free on second"),
        ("shared memory of hosts", "ok", {"shared_bytes": None}, "free on first"),
        ("a call to a shard", "note", {"call_seconds": (0.1,)}, "100.00 ms, at most 100.00, from second"),
        ("an exchange of 1,000,000 numbers", "note", {"exchange_seconds": (0.8,)}, "10 MB/s"),
    ],
)
def test_a_machine_that_differs_is_named_with_what_to_do(
    check: str, verdict: str, other: dict[str, Any], figure: str
) -> None:
    """And nothing else is said of it."""
    found = findings(**other)

    assert (found[check].verdict, figure in found[check].figure) == (verdict, True), found[check]
    assert bool(found[check].remedy) == (verdict != "ok")
    assert all(one.verdict == "ok" for name, one in found.items() if name != check)


def test_ports_that_listen_on_all_interfaces_are_found() -> None:
    """Not those on one address, nor those at which nobody listens."""
    with socket.create_server(("0.0.0.0", 0)) as wide, socket.create_server(("127.0.0.1", 0)) as own:
        with socket.create_connection(own.getsockname()):
            found = on_all_interfaces()
        assert wide.getsockname()[1] in found
        assert own.getsockname()[1] not in found


def test_the_doctor_without_ray_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one line, with exit code 2."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))

    assert main(["--backend", "ray", "--env-id", "Catch"]) == 2
    assert to_install("ray") in capfd.readouterr().err
    assert main(["--address", "auto", "--env-id", "Catch"]) == 2
    assert "--address is for --backend ray" in capfd.readouterr().err
