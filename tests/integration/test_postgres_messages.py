"""What the PostgreSQL store says when it cannot do its work: the cause, and what to do about it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner, Result

from duetime import App
from duetime.cli.main import cli
from duetime.cli.tasks import logs
from duetime.cli.tasks.logs import print_as_they_come
from duetime.client import local
from duetime.client.client import AnyTask
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.model.task import TaskRecord
from duetime.runtime.outage import outage_of
from duetime.store.open import store_from_url
from duetime.store.postgres import connection, wakeups
from duetime.store.postgres.address import Address
from duetime.store.postgres.lease import PostgresLease
from duetime.store.values import AddVerdict, NewWorker
from tests.conformance.build import new_task
from tests.integration.postgres import admin, opened, schema_of
from tests.servers.fixtures import NewPostgres
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy
from tests.servers.waiting import PATIENCE
from tests.servers.wire import PostgresConversation

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def postgres_url(bare_postgres_url: str) -> str:
    """These tests make the tables themselves, or change more than rows."""
    return bare_postgres_url


async def refusal(url: str) -> str:
    """Try to open a store that cannot be opened; return the message of the error."""
    store = store_from_url(url)
    try:
        with pytest.raises((StoreUnavailable, InvalidValue)) as refused:
            await store.open()
    finally:
        await store.close()
    assert refused.value.__cause__ is not refused.value
    return str(refused.value)


def duetime(*args: str) -> Result:
    return CliRunner().invoke(cli, args)


# ---- the URL ----


@pytest.mark.parametrize(
    "option", ["bogus=1", "connect_timeout=3", "max_connections=7", "statement_timeout=soon", "options=-c%20bogus%3D1"]
)
def test_an_option_that_nobody_takes_is_refused_as_one_of_the_urls(postgres_url: str, option: str) -> None:
    done = duetime("migrate", "--url", f"{postgres_url}&{option}")
    assert done.exit_code == 2, done.output
    name = option.partition("=")[0]
    assert f"the option {name} in the URL of the store postgresql://" in done.output
    assert "(schema, notify, pooled, connections, timeout)" in done.output


async def test_settings_of_the_server_and_options_of_the_driver_are_passed_on(postgres_url: str) -> None:
    url = f"{postgres_url}&search_path=pg_catalog&statement_timeout=7s&sslmode=disable&target_session_attrs=primary"
    await (await opened(url)).close()
    database = connection.Database(Address.from_url(url))
    assert [tuple(row) for row in await database.rows("select current_setting('statement_timeout'), current_setting('search_path')")] == [
        ("7s", "pg_catalog")
    ]
    await database.close()


async def test_an_option_refused_after_it_was_taken_is_the_servers_trouble(postgres_url: str) -> None:
    """A worker would otherwise take the outcome that it writes for the one at fault, and give it up."""
    database = connection.Database(Address.from_url(postgres_url))
    await database.rows("select 1")
    database._address = Address.from_url(f"{postgres_url}&bogus=1")
    database._idle.pop().drop()
    with pytest.raises(connection.Gone, match="the option bogus"):
        await database.rows("select 1")
    await database.close()


async def test_a_wrong_mode_of_encryption_is_named_with_where_it_stands(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = await refusal(f"{postgres_url}&sslmode=foo")
    assert re.search(r"does not take sslmode in its URL: .*must be one of: disable", said), said
    monkeypatch.setenv("PGSSLMODE", "foo")
    said = await refusal(postgres_url)
    assert re.search(r"does not take the variable PGSSLMODE: .*must be one of: disable", said), said
    assert "gone" not in said


async def test_a_port_from_the_environment_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    for port in ("abc", "99999"):
        monkeypatch.setenv("PGPORT", port)
        with pytest.raises(InvalidValue, match=r"PGPORT|variable PG"):
            await store_from_url("postgresql://127.0.0.1/shop").open()


async def test_a_file_that_cannot_be_read_is_named(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = await refusal(f"{postgres_url}&sslmode=verify-full&sslrootcert=/nope/root.crt")
    assert "sslrootcert in its URL names the file '/nope/root.crt', which cannot be read (No such file or directory)" in said
    monkeypatch.setenv("PGSSLCERT", "/nope/client.crt")
    said = await refusal(f"{postgres_url}&sslmode=require")
    assert "PGSSLCERT names the file '/nope/client.crt'" in said


def test_an_unencoded_password_ends_a_command_as_wrong_usage() -> None:
    done = duetime("stats", "--url", "postgresql://admin:pa/ss@127.0.0.1:5432/shop")
    assert done.exit_code == 2, done.output
    assert "the port in a postgresql URL must be a number from 1 to 65535" in done.output
    assert "'pa'" not in done.output


@pytest.mark.parametrize("timeout", [1, 2])
async def test_connecting_takes_no_longer_than_a_statement_may(silent_port: int, timeout: int) -> None:
    began = time.monotonic()
    said = await refusal(f"postgresql://duetime@127.0.0.1:{silent_port}/shop?timeout={timeout}")
    assert timeout - 0.1 <= time.monotonic() - began < 8
    assert "did not answer in time" in said


@pytest.fixture
async def silent_port() -> AsyncIterator[int]:
    """The port of a server that accepts connections and never answers."""
    port = free_port()
    held: list[asyncio.StreamWriter] = []

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    server = await asyncio.start_server(hold, "127.0.0.1", port)
    yield port
    server.close()
    for writer in held:
        writer.close()


# ---- the database ----


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_all_text_is_refused(postgres_url: str, encoding: str) -> None:
    name = f"e_{schema_of(postgres_url)}_{encoding}".lower()
    with admin(postgres_url) as plain:
        plain.execute(f"create database {name} encoding '{encoding}' locale 'C' template template0".encode())
    try:
        done = duetime("migrate", "--url", re.sub(r"/postgres\?", f"/{name}?", postgres_url))
    finally:
        with admin(postgres_url) as plain:
            plain.execute(f"drop database {name} with (force)".encode())
    assert done.exit_code == 5, done.output
    assert f"needs a database with encoding UTF8, and {name} has {encoding}; make one with create database" in done.output


async def test_tables_that_are_missing_are_told_from_older_ones(postgres_url: str) -> None:
    schema = schema_of(postgres_url)
    store = store_from_url(postgres_url)
    with pytest.raises(
        StoreUnavailable, match=rf"the store postgresql://.*\?schema={schema} has no tables of Duetime in its schema {schema}; run"
    ):
        await store.open(migrate=False)
    await (await opened(postgres_url)).close()
    with admin(postgres_url) as plain:  # only one version exists so far; before it there was none
        plain.execute(f"delete from {schema}.version".encode())
    with pytest.raises(
        StoreUnavailable, match=rf"schema {schema} of the store postgresql://.* have version 0, older than the \d+ that .* run `duetime"
    ):
        await store.open(migrate=False)
    with admin(postgres_url) as plain:
        plain.execute(f"insert into {schema}.version values (999, 'later', 0)".encode())
    with pytest.raises(StoreUnavailable, match=rf"schema {schema} of the store postgresql://.* have version 999, but"):
        await store.open(migrate=False)


@pytest.mark.parametrize("table", ["task (id int)", "version (number int)"])
def test_tables_of_others_are_told_as_such(postgres_url: str, table: str) -> None:
    schema = schema_of(postgres_url)
    with admin(postgres_url) as plain:
        plain.execute(f"create schema {schema}; create table {schema}.{table}".encode())
    done = duetime("migrate", "--url", postgres_url)
    assert done.exit_code == 5, done.output
    assert f"the schema {schema} of the store postgresql://" in done.output
    assert "already holds tables that are not Duetime's" in done.output
    assert f'?schema=…), or remove this one with all that is in it: drop schema "{schema}" cascade' in done.output


def test_the_documented_privilege_lets_a_role_migrate(postgres_url: str) -> None:
    [grant] = re.findall(r"`(grant create on database shop to duetime_owner)`", (ROOT / "docs" / "postgres.md").read_text())
    role = f"o_{schema_of(postgres_url)}"
    url = re.sub(r"//[^@/]+@", f"//{role}@", postgres_url)
    with admin(postgres_url) as plain:
        plain.execute(f"create role {role} login".encode())
        try:
            refused = duetime("migrate", "--url", url)
            assert refused.exit_code == 5, refused.output
            assert "docs/postgres.md, Least privilege, lists what to grant" in refused.output
            plain.execute(grant.replace("shop", "postgres").replace("duetime_owner", role).encode())
            done = duetime("migrate", "--url", url)
            assert done.exit_code == 0, done.output
        finally:
            plain.execute(f"drop owned by {role} cascade; drop role {role}".encode())


# ---- locks ----


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait 1 s for a lock, not 10."""
    settings = {"application_name": "duetime", "lock_timeout": "1s"}
    monkeypatch.setattr(Address, "session_settings", property(lambda self: settings))


LOCKED = (
    r"the store postgresql://.* did nothing of this: another transaction holds a lock on Duetime's tables for longer than 1 s; "
    r"find it in pg_stat_activity \(.*pg_blocking_pids.* try again"
)


@pytest.mark.usefixtures("impatient")
async def test_a_lock_that_others_hold_is_told_with_how_to_find_them(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_RETRIES", 2)
    schema = schema_of(postgres_url)
    store = await opened(postgres_url)
    try:
        with admin(postgres_url) as plain, plain.transaction():
            plain.execute(f"lock table {schema}.due in access exclusive mode".encode())
            with pytest.raises(StoreUnavailable, match=LOCKED + r" \(refused 2 times\)"):
                await store.add([new_task()])
    finally:
        await store.close()
    with admin(postgres_url) as plain, plain.transaction():
        plain.execute(f"delete from {schema}.version where version = (select max(version) from {schema}.version)".encode())
        migrating = store_from_url(postgres_url)
        plain.execute(f"lock table {schema}.version in access exclusive mode".encode())
        with pytest.raises(StoreUnavailable, match=LOCKED):
            await migrating.open()
        await migrating.close()


@pytest.mark.parametrize(("query", "patience"), [("", "10 s"), ("?pooled=on", "the lock_timeout of its role")])
def test_the_wait_for_a_lock_is_ten_seconds_unless_a_pooler_decides(query: str, patience: str) -> None:
    error = asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
    assert f"longer than {patience};" in str(connection.translated(error, Address.from_url(f"postgresql://db/shop{query}")))


# ---- answers that are lost ----


async def test_a_submission_whose_answer_is_lost_says_so_and_its_repeat_is_stored_once(new_postgres: NewPostgres) -> None:
    server = new_postgres()
    assert server.port is not None
    with Proxy(server.port, PostgresConversation) as proxy:
        app = App(server.url(port=proxy.port))

        @app.task
        async def greet() -> None: ...

        async with app:
            new = greet.new()
            proxy.lose_reply(new.id.encode())
            await asyncio.to_thread(proxy.refuse)
            with pytest.raises(StoreUnavailable, match="if a change was asked for, whether it was done is unknown") as lost:
                await app.submit(new)
            assert not re.search("cannot switch|connection_lost|in the middle of operation", str(lost.value))
            proxy.accept()
            task = await app.submit(new)
            assert task.id == new.id
            assert [each.id async for each in app.tasks()] == [new.id]
            assert server.query("select count(*) from duetime.due") == [(1,)]


async def test_a_submission_whose_answer_is_lost_is_repeated_by_itself_on_a_new_connection(new_postgres: NewPostgres) -> None:
    server = new_postgres()
    assert server.port is not None
    with Proxy(server.port, PostgresConversation) as proxy:
        store = await opened(server.url(port=proxy.port))
        new = new_task()
        done = proxy.lose_reply(new.id.encode())
        [added] = await store.add([new])
        assert done.is_set()
        assert added.verdict is AddVerdict.REPEATED
        await store.close()


# ---- a wait that lasts longer than the connection ----


@pytest.mark.slow
async def test_a_wait_goes_on_when_the_server_is_back(new_postgres: NewPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    server = new_postgres()
    monkeypatch.setattr(local, "LOOK_AGAIN", 0.05)
    app = App(server.url())

    @app.task
    async def greet() -> str:
        return "hello"

    async with app:
        task = await greet.now()
        look, met = app.client.record, asyncio.Event()

        async def noticing(task: AnyTask) -> TaskRecord:
            try:
                return await look(task)
            except StoreUnavailable:
                met.set()
                raise

        monkeypatch.setattr(app.client, "record", noticing)
        waiting = asyncio.create_task(app.result(task))
        await asyncio.to_thread(server.stop)
        noticed = asyncio.create_task(met.wait())
        await asyncio.wait([waiting, noticed], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(server.start)
        async with app.worker():
            assert await asyncio.wait_for(waiting, PATIENCE) == "hello"
        assert await noticed


@pytest.mark.slow
async def test_following_a_task_that_has_not_begun_goes_on_when_the_server_is_back(
    new_postgres: NewPostgres, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = new_postgres()
    monkeypatch.setattr(logs, "AGAIN_AFTER", 0.05)
    notes = ""
    app = App(server.url())

    @app.task
    async def greet() -> None:
        print("hello")

    async with app:
        task = await greet.now()
        following = asyncio.create_task(print_as_they_come(app, task.id, None))
        await asyncio.to_thread(server.stop)
        async with asyncio.timeout(PATIENCE):
            while "trying again" not in notes and not following.done():
                await asyncio.sleep(0.05)
                notes += capsys.readouterr().err
        await asyncio.to_thread(server.start)
        async with app.worker():
            await asyncio.wait_for(following, PATIENCE)
    printed = capsys.readouterr()
    assert "hello\n" in printed.out
    assert (notes + printed.err).count("trying again") == 1


@pytest.mark.slow
async def test_a_wait_does_not_go_on_for_ever(new_postgres: NewPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    server = new_postgres()
    assert server.port is not None
    monkeypatch.setattr(local, "LOOK_AGAIN", 0.05)
    app = App(server.url())

    @app.task
    async def greet() -> None: ...

    async with app:
        task = await greet.after(3_600)
        await asyncio.to_thread(server.stop)
        with pytest.raises(StoreUnavailable):
            await app.result(task, timeout=0.2)
        monkeypatch.setattr(local, "WAIT_THROUGH", 0.2)
        with pytest.raises(StoreUnavailable):
            await app.result(task)


# ---- wake-ups ----


@pytest.mark.slow
@pytest.mark.parametrize("told_by_others", [True, False])
async def test_an_outage_is_told_by_wake_ups_only_if_nobody_else_tells_it(
    new_postgres: NewPostgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, told_by_others: bool
) -> None:
    caplog.set_level(logging.INFO, "duetime.store")
    monkeypatch.setattr(wakeups, "TELL_AFTER", 0.0)
    monkeypatch.setattr(wakeups, "PROBE_EVERY", 0.05)
    failures, failed, heard = 0, asyncio.Event(), asyncio.Event()

    async def noticing(*args: Any, **options: Any) -> Any:
        nonlocal failures
        try:
            return await connection.connect(*args, **options)
        except BaseException:
            failures += 1
            if failures == 2:
                failed.set()
            raise

    monkeypatch.setattr(wakeups, "connect", noticing)
    server = new_postgres()
    store = await opened(server.url())
    outage = outage_of(asyncio.get_running_loop())
    listener = store.listen(lambda hint: heard.set())
    try:
        if told_by_others:
            outage.join(store, "feeder", "no answer", 0.0, 0.0)
        await asyncio.to_thread(server.stop)
        await asyncio.wait_for(failed.wait(), PATIENCE)
        heard.clear()
        await asyncio.to_thread(server.start)
        await asyncio.wait_for(heard.wait(), PATIENCE)  # whoever listens is woken, for something may have been missed
    finally:
        outage.leave(store)
        listener.close()
        await store.close()
    said = [record.getMessage() for record in caplog.records if record.name == "duetime.store"]
    if told_by_others:
        assert said == []
    else:
        assert len(said) == 2
        assert said[0].endswith("polling goes on meanwhile")
        assert said[1].startswith("wake-ups: the connection is back after ")


# ---- a server that hangs ----


@contextmanager
def hanging(server: Postgres) -> Iterator[None]:
    """Stop a server with all its backends for as long as the block lasts."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split("\n")
    pairs = [tuple(map(int, line.split())) for line in listed if line.strip()]
    family = [server.pid, *(pid for pid, parent in pairs if parent == server.pid)]
    try:
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def test_a_renewal_that_a_hanging_server_does_not_answer_leaves_no_error_behind(
    new_postgres: NewPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    server = new_postgres()
    store = await opened(server.url())
    lease = await store.register(NewWorker(id="w", host="here", pid=1, slots={"work": 1}, lease=3.0))
    assert isinstance(lease, PostgresLease)
    await asyncio.to_thread(lease.renew)
    with hanging(server):
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await asyncio.to_thread(lease.renew)
    assert (await asyncio.to_thread(lease.renew)).known
    lease.close()
    await store.close()
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio" and record.levelno >= logging.ERROR] == []
