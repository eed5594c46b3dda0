"""Commands run in the process of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """The command sets what holds for its process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
