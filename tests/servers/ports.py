"""Ports on loopback that stay free while nothing listens on them."""

from __future__ import annotations

import random
import socket

# Below those that the kernel gives to outgoing connections: while a server is down, a client that dials such a port of its own
# machine may get it as its own number, and so be connected to itself and keep the server from coming back.
PORTS = range(10_000, 32_000)

_random = random.SystemRandom()  # tests that run side by side are seeded alike, and would all choose the same
_chosen: set[int] = set()


def free_port() -> int:
    """Choose a port at random that nobody uses at this moment, and that was not chosen before: its server may not listen yet."""
    while True:
        port = _random.choice(PORTS)
        if port in _chosen:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _chosen.add(port)
        return port
