"""A Ray cluster on this machine, for tests that need one. Skips them where Ray is missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture
def needs_ray() -> None:
    """Skips the test where Ray is missing; it is not imported here, where it would start threads."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")


@pytest.fixture
def cluster(needs_ray: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster that has only its head."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "10")  # instead of 60: for those that lose the head
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def two_nodes(cluster: Any) -> Any:
    """A cluster of the head and one node more."""
    cluster.add_node(num_cpus=1)
    return cluster
