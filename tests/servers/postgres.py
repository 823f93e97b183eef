"""A PostgreSQL server of a test's own: started, stopped, killed, restarted, copied and promoted at the test's word."""

from __future__ import annotations

import functools
import itertools
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from urllib.parse import urlencode

import psycopg

from tests.servers.installations import Installation
from tests.servers.ports import free_port
from tests.servers.processes import forget_shared_memory, give_away, kill_family, start
from tests.servers.scratch import scratch
from tests.servers.waiting import PATIENCE, wait_until

USER = "duetime"
DATABASE = "postgres"
ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}  # no PG… variable of the caller's may have a say

# Not durable, which only a crash of the machine would show; a test that kills the machine's part too asks for fsync. An unusual
# time zone, so that a statement that depends on the session's zone is found out. Sized for a small machine.
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "fsync": "off",
    "full_page_writes": "off",
    "timezone": "Asia/Kathmandu",
    "log_line_prefix": "%m [%p] ",
}
DURABLE: Mapping[str, str] = {"fsync": "on", "full_page_writes": "on"}

started: list[Postgres] = []  # by this process, and not removed yet; their logs are shown with a failure


class Postgres:
    """A server on loopback with a folder of its own. It ends with the test process, also when that is killed.

    `settings` are options of the server and win over SETTINGS. Port and data stay the same over stops, kills and starts.
    """

    def __init__(self, installation: Installation, settings: Mapping[str, str] | None = None) -> None:
        self.installation = installation
        self.settings = {**SETTINGS, **(settings or {})}
        self.folder = Path(tempfile.mkdtemp(prefix=f"{installation.name}-", dir=scratch()))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()

    @property
    def name(self) -> str:
        return self.installation.name

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def url(self, *, database: str = DATABASE, port: int | None = None, **options: str) -> str:
        """Give the address, or with `port` that of a proxy before it; options become its query, as `schema`."""
        assert self.port is not None, f"{self.name} was never started"
        query = f"?{urlencode(options)}" if options else ""
        return f"postgresql://{USER}@127.0.0.1:{port or self.port}/{database}{query}"

    def log(self, since: int = 0) -> str:
        """Read what the server and its tools have written, or only what they wrote after the log had a size."""
        try:
            with (self.folder / "log").open("rb") as file:
                file.seek(since)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def log_size(self) -> int:
        file = self.folder / "log"
        return file.stat().st_size if file.exists() else 0

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own, outside of a transaction."""
        with psycopg.connect(self.url(), autocommit=True, connect_timeout=30) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start, with empty data the first time, and return when connections are accepted."""
        assert not self.running, f"{self.name} runs already"
        if self not in started:
            started.append(self)
        if not self.data.exists():
            self._fill("/bin/cp", "-R", f"{_empty_data(self.installation)}/.", self.data)
        for _ in range(5):
            size = self.log_size()
            if self._started(self.port or free_port()):
                return
            # someone may have been faster with a port that was free a moment ago; one that clients know already cannot be exchanged
            if self.port is not None or "Address already in use" not in self.log(since=size):
                break
        raise AssertionError(f"{self.name} did not start; it says:\n{self.log()[-4_000:]}")

    def _started(self, port: int) -> bool:
        options = itertools.chain.from_iterable(("-c", f"{key}={value}") for key, value in self.settings.items())
        command: list[str | Path] = [self.installation.program("postgres"), "-D", self.data, "-p", str(port), *options]
        with self._open_log() as log:
            process = self._process = start(command, log=log, folder=self.folder, environment=ENVIRONMENT)
        wait_until(f"{self.name} accepts connections or ends", lambda: process.poll() is not None or self._ready(process.pid))
        if process.poll() is None:
            self.port = port
        return self.running

    def _ready(self, pid: int) -> bool:
        """Tell whether connections are accepted; a killed server may have left an older word behind."""
        lines = self._status()
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def _status(self) -> list[str]:
        """Read what the server says of itself as long as it has not ended in order."""
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def stop(self) -> None:
        """End in order: transactions are rolled back, connections closed, everything is written."""
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(timeout=PATIENCE)

    def kill(self) -> None:
        """End the server and all its backends at once, like a power failure; the next start recovers."""
        if self._process is not None and self.running:
            kill_family(self._process)

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        """End the server and forget its data."""
        if self in started:
            started.remove(self)
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(timeout=PATIENCE)
        if (lines := self._status())[6:]:  # it was killed, so what it shares with the next one on its data is still there
            forget_shared_memory(int(lines[6].split()[1]))
        shutil.rmtree(self.folder, ignore_errors=True)

    def replica(self) -> Postgres:
        """Start a copy that follows this server asynchronously and can be read; whoever asked for it removes it."""
        copy = Postgres(self.installation, self.settings)
        options = ("--checkpoint=fast", "--write-recovery-conf", "--no-sync", "--no-manifest")
        copy._fill(self.installation.program("pg_basebackup"), "-D", copy.data, f"--dbname={self.url()}", *options)
        copy.start()
        return copy

    def catch_up(self, primary: Postgres) -> None:
        """Wait until this replica shows all that was committed on its primary before the call."""
        [(position,)] = primary.query("select pg_current_wal_flush_lsn()")
        behind = f"select pg_last_wal_replay_lsn() >= '{position}'"
        wait_until(f"the replica of {primary.name} has replayed {position}", lambda: self.query(behind) == [(True,)])

    def promote(self) -> None:
        """Make a replica a server of its own, which accepts writes when this returns."""
        assert self.query("select pg_promote(true, 60)") == [(True,)], f"{self.name} was not promoted; it says:\n{self.log()[-4_000:]}"

    def _fill(self, *command: str | Path) -> None:
        """Let a tool fill the new data folder."""
        self.data.mkdir(mode=0o700)
        give_away(self.data)
        with self._open_log() as log:
            code = start(command, log=log, folder=self.folder, environment=ENVIRONMENT).wait(timeout=PATIENCE)
        assert code == 0, f"{command[0]} ended with {code}; it says:\n{self.log()[-4_000:]}"

    def _open_log(self) -> IO[bytes]:
        return (self.folder / "log").open("ab")


@functools.cache
def _empty_data(installation: Installation) -> Path:
    """Make the data of an empty server, once per session: to copy it takes a third of the time."""
    template = Postgres(installation)
    options = (f"--username={USER}", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
    template._fill(installation.program("initdb"), "-D", template.data, *options)
    return template.data
