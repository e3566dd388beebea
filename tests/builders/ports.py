"""Ports of this computer for programs that a test starts, or where nothing is to answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """Keep a port at which nothing listens until a program of the test does: no other program is given it meanwhile."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, which may then listen there
        kept.bind(("127.0.0.1", 0))
        port: int = kept.getsockname()[1]
        yield port
