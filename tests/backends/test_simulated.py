"""Simulated hosts: the exchange is the real one, the wire is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from asyncrl.commands import train as command
from asyncrl.parameters.shards import Change, Shard, beginning
from asyncrl.runtime.link import NEVER, Call
from asyncrl.storage.checkpoints import Checkpoint, load_newest
from asyncrl.storage.records import read_records
from benchmarks.simulated_hosts import SimulatedWire, main
from tests.support import status_of, the_run

CHAIN = (
    "--env-id", "Chain", "--envs-per-worker", "1", "--t-max", "5", "--quiet",
    "--evaluation-interval-steps", "0", "--evaluation-episodes", "1", "--record-interval-seconds", "1e6",
)  # fmt: skip


def train(runs_dir: Path, *words: str, hosts: int = 0) -> Path:
    """A run in this process; returns its folder."""
    words = (*CHAIN, "--runs-dir", str(runs_dir), *words)
    if hosts:
        assert main(["a3c", "--hosts", str(hosts), *words]) == 0
    else:
        assert command.main("asyncrl.a3c", [*words, "--backend", "serial"]) == 0
    return the_run(runs_dir)


def end_of(run: Path) -> Checkpoint:
    """Its last checkpoint."""
    return load_newest(run / "checkpoints")[0]


def test_a_call_takes_half_of_the_delay_to_the_shard_and_the_answer_the_other_half() -> None:
    """With 4 turns: the shard has it at the second, the host the answer at the fourth."""
    shard = Shard(1)
    shard.begin(shard.who()[0], 1, beginning(np.zeros(2, np.float32)))
    wire = SimulatedWire([shard], delay=4)
    letter = wire.send(0, Call(0, 1, shard.callee.epoch, 1, 1, Change(np.ones(2, np.float32), updates=1)))
    seen = []
    for wire.turn in range(1, 5):
        wire.deliver()
        seen.append((shard.updates, len(wire.receive([letter], 0.0))))
    assert seen == [(0, 0), (1, 0), (1, 0), (1, 1)]


def test_without_a_delay_the_answer_is_there_at_once() -> None:
    """In the very turn."""
    shard = Shard(1)
    shard.begin(shard.who()[0], 1, beginning(np.zeros(2, np.float32)))
    wire = SimulatedWire([shard], delay=0)
    ((_, answer),) = wire.receive([wire.send(0, Call(0, 1, NEVER, 1, 1, Change()))], 0.0)
    assert answer.epoch == shard.callee.epoch


def test_a_single_simulated_host_learns_as_without_simulation(tmp_path: Path) -> None:
    """Statistics and moments are the same to the bit; theta went through the shard, whose sums round differently."""
    words = ("--workers", "2", "--total-steps", "600")
    plain = end_of(train(tmp_path / "plain", *words))
    alone = end_of(train(tmp_path / "alone", *words, "--exchange-updates", "4", hosts=1))
    assert (plain.steps, plain.updates) == (alone.steps, alone.updates)
    for name in ("statistics", "observation_moments", "losses"):
        assert torch.equal(plain.tensors[name], alone.tensors[name]), name
    for name, parameter in plain.parameters.items():
        assert torch.allclose(parameter, alone.parameters[name], rtol=0, atol=1e-5), name


def test_a_simulation_repeats_itself_to_the_bit_and_accounts_for_every_step(tmp_path: Path) -> None:
    """Four hosts with two workers each, two shards: the last exchange brings every update into theta."""
    words = ("--workers", "8", "--total-steps", "2000", "--exchange-updates", "3")
    words += ("--parameter-shards", "2", "--exchange-delay", "1.5", "--schedule", "random")
    first, again = (train(tmp_path / name, *words, hosts=4) for name in ("first", "again"))
    one, other = end_of(first), end_of(again)
    assert one.updates == other.updates
    for name, parameter in one.parameters.items():
        assert torch.equal(parameter, other.parameters[name]), name

    rows = [read_records(first / f"worker-{worker:02d}.jsonl") for worker in range(8)]
    assert [{row["worker"] for row in own} for own in rows] == [{worker} for worker in range(8)]
    assert [sum(row.get("worker_steps", 0) for row in own) for own in rows] == status_of(first)["worker_steps"]
    assert sum(row.get("worker_steps", 0) for own in rows for row in own) == one.steps
    assert sum(row.get("updates", 0) for own in rows for row in own) == one.updates
    assert all(read_records(first / f"host-{host}.jsonl")[-1]["exchange_turns_mean"] >= 1.5 for host in range(4))


def test_staleness_between_hosts_is_what_the_others_made_between_two_exchanges(tmp_path: Path) -> None:
    """Three hosts with a worker each, no delay: four updates of two others whenever a host has made two itself."""
    words = ("--workers", "3", "--total-steps", "900", "--exchange-updates", "2")
    run = train(tmp_path, *words, "--exchange-delay", "0", hosts=3)
    for host in range(3):
        (row,) = read_records(run / f"host-{host}.jsonl")
        assert row["exchange_staleness_max"] == 4
        assert row["exchange_turns_max"] == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("a3c --hosts 2 --workers 3", "give --workers as a multiple of --hosts 2"),
        ("impala --hosts 2 --workers 2", "for methods whose workers learn"),
        ("gorila --hosts 2 --workers 2 --layout bundled", "for methods whose workers learn"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(
    tmp_path: Path, words: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before anything is learnt."""
    algorithm, *rest = words.split()
    code = main([algorithm, "--env-id", "CartPole-v1", "--runs-dir", str(tmp_path), "--quiet", *rest])
    assert code != 0
    assert told in "".join(capfd.readouterr())
