"""Two ranks of one process that meet at a board."""

from __future__ import annotations

import threading
from collections.abc import Callable

from asyncrl.backends.collective.board import Board


def boards_of(secret: bytes) -> tuple[Board, Board]:
    """Rank 0's and rank 1's."""
    first = Board("127.0.0.1", 0, 0, 2, secret, serve=True)
    return first, joined(first, secret)


def joined(first: Board, secret: bytes, meanwhile: Callable[[], None] = lambda: None) -> Board:
    """Rank 1's, which rank 0 answers."""
    found: list[Board] = []
    joining = threading.Thread(target=lambda: found.append(Board("127.0.0.1", first.port, 1, 2, secret)))
    joining.start()
    while joining.is_alive():
        first.announce()
        meanwhile()
        joining.join(0.001)
    return found[0]
