"""A store behind a pooler in transaction mode: PgBouncer where it is installed, otherwise a store that does without what that lacks."""

import asyncio
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.chaos.processes import until
from tests.servers.fixtures import NEWEST
from tests.servers.installations import installations
from tests.servers.ports import free_port
from tests.servers.postgres import DATABASE, ENVIRONMENT, USER, Postgres
from tests.servers.processes import give_away, start
from tests.servers.scratch import scratch
from tests.servers.waiting import PATIENCE

_SETTINGS = """
[databases]
{database} = host=127.0.0.1 port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 10
max_client_conn = 200
"""


class Pooling:
    """A server of its own, and perhaps PgBouncer before it. `how` says which."""

    def __init__(self, schema: str = "pooled") -> None:
        self._server = Postgres(installations()[NEWEST])
        self._schema = schema
        self._program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None

    @property
    def how(self) -> str:
        if self._program is None:
            return "without PgBouncer, which is not installed: no LISTEN, no statement prepared beyond its transaction"
        return f"through {self._program} in transaction mode"

    @property
    def url(self) -> str:
        return self._server.url(port=self._port, schema=self._schema, pooled="on", notify="off")

    @property
    def look_url(self) -> str:
        return self._server.url(schema=self._schema)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._server.start)
        if self._program is not None:
            await asyncio.to_thread(self._start, Path(self._program))
            await until("PgBouncer accepts connections", self._accepts)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=PATIENCE)
        await asyncio.to_thread(self._server.remove)

    def _start(self, program: Path) -> None:
        self._port = free_port()
        folder = Path(tempfile.mkdtemp(prefix="pgbouncer-", dir=scratch()))
        folder.chmod(0o755)
        (folder / "users").write_text(f'"{USER}" ""\n')
        settings = folder / "settings.ini"
        settings.write_text(_SETTINGS.format(database=DATABASE, server_port=self._server.port, port=self._port, folder=folder))
        give_away(folder)
        with (folder / "log").open("wb") as log:
            self._process = start([program, settings], log=log, folder=folder, environment=ENVIRONMENT)

    def _accepts(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "PgBouncer did not start"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0
