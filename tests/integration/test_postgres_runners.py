"""Duetime's statements on callers' connections: every driver answers the same, and nothing of the caller's is disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import psycopg
import psycopg.rows
import psycopg2.extras  # type: ignore[import-untyped]
import pytest
import sqlalchemy
from sqlalchemy.pool import NullPool

from duetime.errors import InvalidValue
from duetime.store.postgres.runner import as_texts, failure, percent_style, runner_for
from tests.integration.callers import ASYNCHRONOUS, CALLERS, SYNCHRONOUS, Caller, bare

every_caller = pytest.mark.parametrize("kind", CALLERS)
synchronous_callers = pytest.mark.parametrize("kind", SYNCHRONOUS)
asynchronous_callers = pytest.mark.parametrize("kind", ASYNCHRONOUS)


@pytest.fixture
async def caller(kind: str, postgres_url: str) -> AsyncIterator[Caller]:
    async with CALLERS[kind](postgres_url) as caller:
        yield caller


@pytest.fixture
def notes(postgres_url: str) -> Iterator[Callable[[], list[str]]]:
    """A table of the caller's, and what of it is committed."""
    with psycopg.connect(bare(postgres_url), autocommit=True) as connection:
        connection.execute("drop table if exists notes")
        connection.execute("create table notes (text text primary key)")
        yield lambda: [text for (text,) in connection.execute("select text from notes order by text")]
        connection.execute("drop table notes")


# ---- statements ----


@every_caller
async def test_parameters_arrive_as_their_casts_say(caller: Caller) -> None:
    await caller.begin()
    sql = "select $2::text, $1::bigint, $2::text, $3::boolean, $4::double precision, $5::text is null, '100 %', $1::bigint % 7, $$ $1 % $$"
    rows = await runner_for(caller.connection).rows(sql, [2**62, "Grüße, 100 % 'so' \"so\" \\ 日本", True, 0.1, None])
    text = "Grüße, 100 % 'so' \"so\" \\ 日本"
    assert rows == [(text, 2**62, text, True, 0.1, True, "100 %", 2**62 % 7, " $1 % ")]
    assert [type(row) for row in rows] == [tuple]
    await caller.rollback()


LISTS: list[tuple[str, list[Any]]] = [
    ("bigint[]", [1, None, 2**62]),
    ("integer[]", []),
    ("text[]", ["", "a,b", '"quoted"', "back\\slash", "{brace}", "NULL", "null", " edge ", "new\nline", "100 %", "%(p1)s", "日本 🚀"]),
    ("text[]", [None, None]),
    ("double precision[]", [1, 2.5, None, 1e300]),
    ("boolean[]", [True, None, False]),
]


@every_caller
async def test_lists_arrive_whole(caller: Caller) -> None:
    await caller.begin()
    for cast, values in LISTS:
        assert await runner_for(caller.connection).rows(f"select $1::{cast}", [values]) == [(values,)]
    ids = ["0197f7a0-0000-7000-8000-000000000001", "0197f7a0-0000-7000-8000-000000000002"]
    assert await runner_for(caller.connection).rows("select id::text from unnest($1::uuid[]) as u (id)", [ids]) == [(id,) for id in ids]
    await caller.rollback()


@every_caller
async def test_statements_without_an_answer_give_no_rows(caller: Caller) -> None:
    await caller.begin()
    runner = runner_for(caller.connection)
    assert await runner.rows("savepoint ours") == []
    assert await runner.rows("select 1 where false") == []
    assert await runner.rows("release savepoint ours") == []
    await caller.commit()


@every_caller
async def test_committing_is_left_to_the_caller(caller: Caller, notes: Callable[[], list[str]]) -> None:
    runner = runner_for(caller.connection)
    await caller.begin()
    await runner.rows("insert into notes (text) values ($1::text)", ["rolled back"])
    assert notes() == []
    await caller.rollback()
    await caller.begin()
    await runner.rows("insert into notes (text) values ($1::text) returning text", ["committed"])
    await caller.execute("insert into notes (text) values ('by the caller')")
    assert notes() == []
    await caller.commit()
    assert notes() == ["by the caller", "committed"]


@every_caller
async def test_after_a_savepoint_was_rolled_back_the_transaction_goes_on(caller: Caller, notes: Callable[[], list[str]]) -> None:
    runner = runner_for(caller.connection)
    await caller.begin()
    await caller.execute("insert into notes (text) values ('by the caller')")
    await runner.rows("savepoint ours")
    with pytest.raises(Exception, match="duplicate key") as caught:
        await runner.rows("insert into notes (text) values ($1::text)", ["by the caller"])
    failed = failure(caught.value)
    assert failed is not None
    assert failed.state == "23505"
    assert "duplicate key value violates unique constraint" in failed.message
    await runner.rows("rollback to savepoint ours")
    await caller.commit()
    assert notes() == ["by the caller"]


@synchronous_callers
async def test_on_a_synchronous_connection_nothing_suspends(caller: Caller) -> None:
    await caller.begin()
    call: Coroutine[Any, Any, Any] = runner_for(caller.connection).rows("select $1::bigint", [7])
    with pytest.raises(StopIteration) as stop:
        call.send(None)
    assert stop.value.value == [(7,)]
    await caller.rollback()


# ---- connections that cannot be used ----


@every_caller
async def test_a_connection_without_a_transaction_is_known(caller: Caller) -> None:
    runner = runner_for(caller.connection)
    with pytest.raises(InvalidValue, match="no open transaction to be part of"):
        runner.look()
    await caller.begin()
    runner.look()
    await caller.rollback()
    with pytest.raises(InvalidValue, match="no open transaction to be part of"):
        runner.look()


@asynchronous_callers
def test_an_asynchronous_connection_is_refused_outside_of_an_event_loop(kind: str, postgres_url: str) -> None:
    """Before anything is sent: another thread's event loop would be touched otherwise."""
    with asyncio.Runner() as loop:
        stack = AsyncExitStack()
        caller = loop.run(stack.enter_async_context(CALLERS[kind](postgres_url)))
        loop.run(caller.begin())
        with pytest.raises(InvalidValue, match="await the call in its event loop instead"):
            runner_for(caller.connection).look()
        loop.run(caller.rollback())
        loop.run(stack.aclose())


@pytest.mark.parametrize("thing", [None, "postgresql://x", 7, object(), psycopg, psycopg.Connection])
def test_something_that_is_no_connection_is_refused(thing: object) -> None:
    with pytest.raises(InvalidValue, match=r"connection= takes connections of asyncpg, .* got "):
        runner_for(thing)


async def test_another_database_of_sqlalchemy_is_refused() -> None:
    connection = sqlalchemy.create_engine("sqlite://").connect()
    with connection.begin(), pytest.raises(InvalidValue, match="SQLAlchemy connection to sqlite by pysqlite"):
        await runner_for(connection).rows("select 1")
    connection.close()


async def test_a_closed_connection_is_known(postgres_url: str) -> None:
    plain, older, own = psycopg.connect(bare(postgres_url)), psycopg2.connect(bare(postgres_url)), await asyncpg.connect(bare(postgres_url))
    plain.close()
    older.close()
    await own.close()
    for connection in (plain, older, own):
        with pytest.raises(InvalidValue, match="connection= is closed"):
            runner_for(connection).look()


def test_a_connection_that_is_busy_or_in_a_pipeline_is_refused(postgres_url: str) -> None:
    with psycopg.connect(bare(postgres_url)) as connection:
        connection.execute("select 1")
        with connection.cursor().copy("copy (select 1) to stdout") as copy:
            with pytest.raises(InvalidValue, match="busy"):
                runner_for(connection).look()
            assert list(copy)
        with connection.pipeline(), pytest.raises(InvalidValue, match="pipeline"):
            runner_for(connection).look()
        runner_for(connection).look()


# ---- what callers have set for themselves ----


async def test_shapes_of_rows_and_kinds_of_cursors_of_the_caller_do_not_disturb(postgres_url: str) -> None:
    with psycopg.connect(bare(postgres_url), row_factory=psycopg.rows.dict_row) as connection:
        kinds: list[type[psycopg.Cursor[Any]]] = [psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor]
        for cursors in kinds:
            connection.cursor_factory = cursors
            assert await runner_for(connection).rows("select $1::int as a, '%' as a", [1]) == [(1, "%")]
        assert connection.row_factory is psycopg.rows.dict_row
        assert connection.cursor_factory is psycopg.RawCursor
    older = psycopg2.connect(bare(postgres_url), connection_factory=psycopg2.extras.RealDictConnection)
    assert await runner_for(older).rows("select $1::int as a, '%' as a", [1]) == [(1, "%")]
    older.close()


async def test_records_of_the_callers_own_do_not_disturb(postgres_url: str) -> None:
    class Own(asyncpg.Record):  # type: ignore[misc]
        def __getitem__(self, name: object) -> str:
            return "the caller's"

    connection = await asyncpg.connect(bare(postgres_url), record_class=Own)
    assert await runner_for(connection).rows("select 1, 2") == [(1, 2)]
    await connection.close()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
async def test_options_of_execution_do_not_disturb(postgres_url: str, driver: str) -> None:
    engine = sqlalchemy.create_engine(bare(postgres_url, f"postgresql+{driver}"), poolclass=NullPool)
    with engine.connect().execution_options(stream_results=True, yield_per=2, no_parameters=True) as connection, connection.begin():
        runner = runner_for(connection)
        await runner.rows("savepoint ours")
        assert await runner.rows("select g, '%' from generate_series(1, 5) as g") == [(g, "%") for g in range(1, 6)]
        assert connection.get_execution_options()["stream_results"] is True


async def test_a_connection_of_the_callers_own_class_is_known_by_what_it_is_made_of(postgres_url: str) -> None:
    class Own(psycopg.Connection[Any]):
        pass

    with Own.connect(bare(postgres_url)) as connection:
        assert await runner_for(connection).rows("select 1") == [(1,)]


# ---- how statements are rewritten ----


@pytest.mark.parametrize(
    ("numbered", "named"),
    [
        ("select $1, $12, $1", "select %(p1)s, %(p12)s, %(p1)s"),
        ("select 5 % 3, '%', \"%\"", "select 5 %% 3, '%%', \"%%\""),
        ("select '$1 it''s $2', $3", "select '$1 it''s $2', %(p3)s"),
        ("select $$ $1 % $$, $body$ $$ $2 $body$, $3", "select $$ $1 %% $$, $body$ $$ $2 $body$, %(p3)s"),
        ('select "a$1", a$1, $1', 'select "a$1", a$1, %(p1)s'),
        ("select 1 -- $1 'it\n, $2 /* $3\n */", "select 1 -- $1 'it\n, %(p2)s /* $3\n */"),
    ],
)
def test_numbered_parameters_become_named_ones(numbered: str, named: str) -> None:
    assert percent_style(numbered) == named


def test_a_parameter_that_not_every_driver_can_send_is_refused() -> None:
    with pytest.raises(TypeError, match="not bytes"):
        as_texts([b"raw"])


def test_what_no_driver_has_raised_is_not_a_failure_of_one() -> None:
    assert failure(ValueError("x")) is None
    assert failure(psycopg.OperationalError("the connection is lost\nfor good")) == (None, "the connection is lost")
    assert failure(sqlalchemy.exc.InvalidRequestError("first roll back")) == (None, "first roll back")
