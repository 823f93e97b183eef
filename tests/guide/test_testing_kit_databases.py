"""The testing kit on a database: what a program submits in its own transaction (`connection=`) can be tested, on PostgreSQL and SQLite."""

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duetime import App, InvalidValue, StoredHttp
from duetime.store.postgres.address import Address
from duetime.store.postgres.temporary import PREFIX, TemporarySchema
from duetime.testing import using
from tests.guide.shop import app, expire_order, note, orders, place_order, seen
from tests.integration.callers import CALLERS

pytestmark = pytest.mark.usefixtures("fresh_shop")
Schemas = Callable[[], list[str]]


@pytest.fixture
def schemas(postgres_database: str) -> Iterator[Schemas]:
    """Return a function that lists the schemas of the kit in the test's database."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:

        def schemas() -> list[str]:
            rows = connection.execute("select nspname from pg_namespace where starts_with(nspname::text, %s)", [PREFIX])
            return [row[0] for row in rows]

        yield schemas


# ---- PostgreSQL ----


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "psycopg-async", "session", "async-session"])
async def test_committed_means_a_task_and_rolled_back_none(postgres_database: str, kind: str) -> None:
    async with using(app, url=postgres_database) as t, CALLERS[kind](postgres_database) as caller:
        await caller.begin()
        await note.options(connection=caller.connection).after(60, what="rolled back")
        await caller.rollback()
        await caller.begin()
        await note.options(connection=caller.connection).after(60, what="committed")
        t.assert_not_submitted(note)
        assert await t.advance(minutes=5) == []
        await caller.commit()
        assert t.assert_submitted(note, what="committed").state == "pending"
        assert [ran.task.result for ran in await t.drain()] == ["committed"]
        assert [task.state for task in t.tasks()] == ["succeeded"]


async def test_stored_targets_are_served_without_network(postgres_database: str) -> None:
    async with using(App(postgres_database, user="ada"), url=postgres_database) as t:
        await t.app.targets.put("ping", StoredHttp(url="https://shop.example/health", method="GET"))
        t.answer_next("ping", status=204)
        await t.app.handler("ping").now()
        assert [ran.task.state for ran in await t.drain()] == ["succeeded"]
        assert [request.url for request in t.requests("ping")] == ["https://shop.example/health"]
        await t.app.targets.delete("ping")
        await t.app.handler("ping").options(allow_unknown=True).now()
        assert await t.drain() == []


async def test_time_moves_only_when_the_test_says_so(postgres_database: str) -> None:
    async with using(app, url=postgres_database, now=datetime(2020, 1, 1, tzinfo=UTC)) as t:
        await place_order(7)
        await t.advance(minutes=29)
        assert orders == {7: "unpaid"}
        [ran] = await t.advance(minutes=1)
        assert ran.at == datetime(2020, 1, 1, 0, 30, tzinfo=UTC)
        assert t.task(ran.task).result == t.assert_submitted(expire_order).result == "order 7 expired"


async def test_without_wake_ups_the_clock_makes_no_steps_of_its_own(postgres_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with using(app, url=f"{postgres_database}?notify=off") as t:
        await note.after(86_400, what="tomorrow")
        moves: list[int] = []
        move = t.clock.set

        def counted(now: int) -> None:
            moves.append(now)
            move(now)

        monkeypatch.setattr(t.clock, "set", counted)
        await t.advance(days=1)
        assert (len(moves), seen) == (1, ["tomorrow"])


def test_a_plain_test_uses_its_synchronous_connection(postgres_database: str) -> None:
    with using(app, url=postgres_database) as t, psycopg.connect(postgres_database) as own:
        own.execute("select 1")
        app.sync(note.options(connection=own).now(what="inside"))
        t.assert_not_submitted(note)
        own.commit()
        t.assert_submitted(note, what="inside")
        assert len(app.sync(t.drain())) == 1


# ---- the schema of a test ----


async def test_each_block_has_a_schema_of_its_own_and_drops_it(postgres_database: str, schemas: Schemas) -> None:
    url = f"{postgres_database}?schema=production"
    async with using(app, url=url) as outer:
        await note.now(what="outer")
        async with using(app, url=url) as inner:
            assert len(schemas()) == 2
            inner.assert_not_submitted(note)
        assert len(schemas()) == 1
        outer.assert_submitted(note, what="outer")
    assert schemas() == []


async def test_a_test_that_fails_leaves_no_schema(postgres_database: str, schemas: Schemas) -> None:
    async def fail() -> None:
        async with using(app, url=postgres_database):
            assert len(schemas()) == 1
            raise KeyError("the test")

    with pytest.raises(KeyError, match="the test"):
        await fail()
    assert schemas() == []


async def test_what_a_killed_run_left_is_dropped_by_the_next_test_and_nothing_else(postgres_database: str, schemas: Schemas) -> None:
    live = TemporarySchema(Address.from_url(postgres_database))
    await live.hold()
    with psycopg.connect(postgres_database, autocommit=True) as other:
        for name in (f"{PREFIX}left", live.name, "duetime_tests"):
            other.execute(f"create schema {name}".encode())
        async with using(app, url=postgres_database):
            assert f"{PREFIX}left" not in schemas()
        assert schemas() == [live.name]
        assert other.execute("select from pg_namespace where nspname = 'duetime_tests'").fetchall() == [()]
    await live.remove()
    assert schemas() == []


async def test_a_transaction_left_open_does_not_hang_the_test_and_is_named(
    postgres_database: str, schemas: Schemas, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(postgres_database) as own:
        async with using(app, url=postgres_database):
            own.execute("select 1")
            await note.options(connection=own).now(what="never committed")
        [left] = schemas()
        assert f"drop schema {left} cascade" in caplog.text
        own.rollback()
    async with using(app, url=postgres_database):
        assert left not in schemas()


# ---- SQLite ----


@pytest.mark.parametrize("way", ["url", "file"])
async def test_a_sqlite_file_is_named_by_url_or_path(tmp_path: Path, way: str) -> None:
    file = tmp_path / "shop.db"
    where: dict[str, Any] = {"url": f"sqlite:///{file}"} if way == "url" else {"file": file}
    async with using(app, **where) as t:
        own = sqlite3.connect(file, isolation_level=None)
        own.execute("begin immediate")
        await note.options(connection=own).now(what="committed")
        own.execute("commit")
        own.close()
        assert [ran.task.result for ran in await t.drain()] == ["committed"]


# ---- what is refused ----


async def test_a_connection_is_refused_in_memory_with_what_to_do(postgres_database: str) -> None:
    async with using(app) as t:
        with psycopg.connect(postgres_database) as own, pytest.raises(InvalidValue, match=r"using\(app, url='postgresql://"):
            await note.options(connection=own).now(what="x")
        t.assert_not_submitted(note)


async def test_urls_that_cannot_serve_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="either url or file"):
        using(app, url="sqlite:///:memory:", file=tmp_path / "shop.db")
    with pytest.raises(InvalidValue, match="expected a URL such as"):
        await using(app, url="https://duetime.example").__aenter__()
    with pytest.raises(InvalidValue, match="name the server itself"):
        await using(app, url="postgresql://127.0.0.1:1/shop?pooled=on").__aenter__()
