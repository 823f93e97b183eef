"""Servers in rows, as SQL stores keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duetime.clock import SECOND
from duetime.store.servers import NewServer, ServerRecord

FORGOTTEN_AFTER = 86_400 * SECOND


def server_row(server: NewServer) -> list[Any]:
    """Return the columns of a server in the order of the statements."""
    return [server.id, server.host, server.pid, server.url, server.version, server.python]


def read_server_row(row: Sequence[Any]) -> ServerRecord:
    return ServerRecord(**dict(zip(ServerRecord.__struct_fields__, row, strict=True)))
