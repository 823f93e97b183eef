"""The servers that tests run on do what tests will ask of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.servers import running
from tests.servers.fixtures import NewPostgres
from tests.servers.installations import Installation, installations
from tests.servers.postgres import DURABLE, Postgres
from tests.servers.processes import children
from tests.servers.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=installations())
def server(request: pytest.FixtureRequest, new_postgres: NewPostgres) -> Postgres:
    return new_postgres(request.param, DURABLE)


def alive(pid: int) -> bool:
    """Tell whether a process still runs; one that nobody has reaped does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_versions_16_and_18_are_always_among_the_servers() -> None:
    assert {"postgres-16", "postgres-18"} <= installations().keys()


def test_what_was_committed_survives_stops_and_kills_on_the_same_port(server: Postgres) -> None:
    [(version,)] = server.query("show server_version_num")
    assert server.name == f"postgres-{int(version) // 10_000}"
    assert server.query("show fsync") == [("on",)]
    server.query("create table numbers (number int)")
    port, pid = server.port, server.pid
    for number, end in enumerate([server.stop, server.kill, server.kill]):
        server.query(f"insert into numbers values ({number})")
        end()
        assert not server.running
        server.start()
    server.restart()
    assert server.query("select * from numbers order by 1") == [(0,), (1,), (2,)]
    assert server.port == port
    assert server.pid != pid


def test_a_kill_ends_backends_in_the_middle_of_their_work_and_leaves_no_process(server: Postgres) -> None:
    busy = psycopg.connect(server.url())
    busy.execute("create table numbers (number int)")
    family = children(server.pid)
    assert busy.info.backend_pid in family
    server.kill()
    assert not any(Path(f"/proc/{pid}").exists() for pid in family)
    with pytest.raises(psycopg.OperationalError):
        busy.execute("select 1")
    busy.close()
    server.start()
    assert server.query("select to_regclass('numbers')") == [(None,)], "it was not committed"


def test_a_replica_follows_and_takes_over(server: Postgres) -> None:
    server.query("create table numbers (number int)")
    replica = server.replica()
    try:
        server.query("insert into numbers values (1)")
        replica.catch_up(server)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            replica.query("insert into numbers values (2)")
        server.kill()
        replica.promote()
        replica.query("insert into numbers values (3)")
        assert replica.query("select * from numbers order by 1") == [(1,), (3,)]
        assert replica.port != server.port
    finally:
        replica.remove()


def test_a_server_ends_with_a_test_process_that_is_killed() -> None:
    program = """
import threading
from tests.servers.installations import installations
from tests.servers.postgres import Postgres
server = Postgres(installations()["postgres-18"])
starter = threading.Thread(target=server.start)  # a thread that ends must not take the server with it
starter.start()
starter.join()
server.query("select 1")
print(server.pid, server.folder.parent, flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        pid, folder = session.stdout.readline().split()
        family = [int(pid), *children(int(pid))]
        assert len(family) > 3
        os.kill(session.pid, signal.SIGKILL)
        wait_until("the server and its processes have ended", lambda: not any(alive(pid) for pid in family))
    # what it left behind is removed by whoever comes next
    code = "from tests.servers.scratch import scratch; scratch()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=PATIENCE)
    assert not Path(folder).exists()


def test_a_server_that_cannot_start_says_why(new_postgres: NewPostgres) -> None:
    with pytest.raises(AssertionError, match="unrecognized configuration parameter"):
        new_postgres(settings={"no_such_setting": "1"})


def test_programs_that_are_missing_fail_the_test(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make clean test"):
        Postgres(Installation(17, tmp_path / "nowhere", portable=True)).start()


def test_a_given_address_replaces_all_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(running.GIVEN, "postgresql://me:secret@db.example:5433/mine?ssl=require")
    assert running.postgres_names() == ["postgres-given"]
    told = running.postgres_url("postgres-given", schema="s")
    assert told == "postgresql://me:secret@db.example:5433/mine?ssl=require&schema=s"
    assert running.postgres_url("postgres-given", database="other").startswith("postgresql://me:secret@db.example:5433/other?")


def test_a_schema_of_its_own_is_there_for_a_test(bare_postgres_url: str) -> None:
    address, _, schema = bare_postgres_url.partition("?schema=")
    with psycopg.connect(address) as connection:
        assert connection.execute("select to_regnamespace(%s)", (schema,)).fetchone() == (None,)
        connection.execute(f"create schema {schema}".encode())
