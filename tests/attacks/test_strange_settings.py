"""A database whose settings are strange but legal: Duetime works as everywhere, or says at once which setting it refuses, and why."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest

from duetime.clock import DAY, SECOND, ManualClock
from duetime.duties.firing import Firing
from duetime.duties.pruner import Pruner
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.model.query import Query
from duetime.model.task import State
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.output import OutputChunk, OutputSearch
from duetime.store.postgres.address import Address
from duetime.store.postgres.connection import connect
from duetime.store.postgres.settings import NEEDED
from duetime.store.values import AddVerdict, CancelVerdict, ChangeVerdict, Declaration, NewWorker
from tests.conformance.build import Worker, add, error, get, new_task, state_of
from tests.conformance.schedules import new, put
from tests.servers.running import newest_postgres, postgres_names, postgres_url

ROOT = Path(__file__).resolve().parents[2]
START = 1_800_000_000 * SECOND
KEPT, REMOVED = 12, 7  # tasks of a state: more than one batch of the pruner here, so that whole tables go
BATCH = 5

# Each is set for a whole database. Those of one line cannot disturb each other.
STRANGE: Mapping[str, Mapping[str, str]] = {
    "backslashes in strings": {"standard_conforming_strings": "off", "escape_string_warning": "off", "backslash_quote": "on"},
    "backslashes that are warned of": {"standard_conforming_strings": "off", "client_min_messages": "debug1"},
    "no nulls in arrays": {"array_nulls": "off"},
    "= null": {"transform_null_equals": "on"},
    "serializable": {"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on"},
    "repeatable read": {"default_transaction_isolation": "repeatable read"},
    "statement timeout": {"statement_timeout": "1"},
    "short timeouts": {"lock_timeout": "1", "idle_in_transaction_session_timeout": "1", "idle_session_timeout": "1"},
    "search path": {"search_path": "strange, pg_catalog"},
    "row security": {"row_security": "off"},
    "client encoding": {"client_encoding": "LATIN1"},
    "styles": {
        "DateStyle": "SQL, DMY",
        "IntervalStyle": "sql_standard",
        "TimeZone": "<+13:37>-13:37",
        "bytea_output": "escape",
        "extra_float_digits": "-15",
        "xmlbinary": "hex",
        "xmloption": "document",
        "quote_all_identifiers": "on",
        "timezone_abbreviations": "India",
    },
    "commits": {"synchronous_commit": "off", "commit_delay": "0"},
    "nested loops only": {"enable_hashjoin": "off", "enable_mergejoin": "off", "enable_hashagg": "off", "enable_sort": "off"},
    "merges only": {"enable_nestloop": "off", "enable_hashjoin": "off", "enable_material": "off", "enable_memoize": "off"},
    "no indexes": {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "off", "enable_tidscan": "off"},
    "no partition pruning": {"enable_partition_pruning": "off", "constraint_exclusion": "on", "enable_partitionwise_join": "on"},
    "generic plans": {
        "plan_cache_mode": "force_generic_plan",
        "join_collapse_limit": "1",
        "from_collapse_limit": "1",
        "geqo_threshold": "2",
    },
    "custom plans": {"plan_cache_mode": "force_custom_plan", "cursor_tuple_fraction": "1"},
    "jit and parallel": {"jit": "on", "jit_above_cost": "0", "parallel_setup_cost": "0", "min_parallel_table_scan_size": "0"},
    "little memory": {"work_mem": "64", "temp_buffers": "100", "maintenance_work_mem": "1024"},
    "bodies of functions": {"check_function_bodies": "off", "plpgsql.variable_conflict": "use_variable", "plpgsql.extra_errors": "all"},
    "errors end the session": {"exit_on_error": "on"},
    "fuzzy search": {"gin_fuzzy_search_limit": "1"},
    "triggers": {"session_replication_role": "replica"},
    "text search": {"default_text_search_config": "pg_catalog.turkish"},
    "vacuum": {"vacuum_truncate": "off", "default_toast_compression": "pglz", "default_statistics_target": "1"},
}
# Behind a pooler these are the role's alone: nothing would be wrong, but little would ever be done in time.
TIMEOUTS = {"statement timeout", "short timeouts"}
REFUSED = {name for name, settings in STRANGE.items() if settings.keys() & (NEEDED.keys() | {"search_path"})}

MakeDatabase: TypeAlias = Callable[..., str]


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[MakeDatabase]:
    """Makes a database with strange settings; gives its address. It is gone after the test."""
    made: list[tuple[str, str]] = []

    def database(settings: Mapping[str, str], *, options: str = "", server: str | None = None) -> str:
        server = server or newest_postgres()
        name = f"t_{hashlib.sha256(f'{request.node.nodeid} {len(made)}'.encode()).hexdigest()[:16]}"
        with psycopg.connect(postgres_url(server), autocommit=True) as connection:
            connection.execute(f"create database {name} {options}".encode())
            made.append((server, name))
            for setting, value in settings.items():
                written = value if setting == "search_path" else f"'{value}'"  # the only one that is a list of names
                connection.execute(f"alter database {name} set {setting} = {written}".encode())
        return postgres_url(server, database=name)

    yield database
    for server, name in made:
        with psycopg.connect(postgres_url(server), autocommit=True) as connection:
            connection.execute(f"drop database {name} with (force)".encode())


@asynccontextmanager
async def opened(url: str, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_from_url(url, clock=clock)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def use(store: Store, clock: ManualClock) -> None:
    """Do with a store what programs, workers, duties and operators do, and see that each does what it should."""
    lease = await store.register(NewWorker(id="worker", host="here", pid=1, slots={"work": 100}))
    worker = Worker(store, "worker", lease)
    alarms = Alarms()
    try:
        await _run_tasks(store, worker, clock)
        await _fire_and_cancel(store, worker, clock, alarms)
        await _print(store, worker)
        await _prune(store, worker, clock, alarms)
    finally:
        alarms.close()
        lease.close()
    assert await store.inspect(repair=False) == []


async def _run_tasks(store: Store, worker: Worker, clock: ManualClock) -> None:
    await store.declare([Declaration(name=name) for name in ("work", "Istanbul", "i", "I")])
    assert [each.name for each in await store.declarations()] == ["I", "Istanbul", "i", "work"]
    odd = '{"text": "back\\\\slash \\"quoted\\" \\u0000 şİI \N{LATIN SMALL LETTER DOTLESS I}"}'.encode()
    keyed = await add(store, "work", odd, key="NULL", collection="it's", timeout=0.1234567890123, meta={"a": "\\b'"})
    plain = await add(store, "work", odd)
    assert (await get(store, keyed)).payload == odd
    assert [(await get(store, each)).key for each in (keyed, plain)] == ["NULL", None]
    assert (await get(store, keyed)).timeout == 0.1234567890123
    [again] = await store.add([new_task(key="NULL", if_exists="keep")])
    assert (again.verdict, again.record.id) == (AddVerdict.KEPT, keyed.id)
    assert {task.id for task in await worker.take()} == {keyed.id, plain.id}
    assert await store.cancel([plain.id]) == [CancelVerdict.CANCELLING]
    for task in await worker.store.running_tasks("worker", [keyed.id, plain.id]):
        await worker.end(task, State.PENDING if task.id == keyed.id else State.CANCELLED, error=error("Wrong", "it's \\ a Title İ"))
    assert await state_of(store, plain) is State.CANCELLED
    await worker.run(State.FAILED, error=error("Wrong", "it's \\ a \0 Title İ"))
    found = await store.page(Query(state=State.FAILED, error="\\ A"))
    assert [record.id for record in found.items] == [keyed.id]
    assert [attempt.error for attempt in await store.attempts(keyed.id)][-1] == error("Wrong", "it's \\ a \0 Title İ")
    assert await store.retry([keyed.id]) == [ChangeVerdict.CHANGED]
    await worker.run(State.SUCCEEDED, result=b'"\\\\"')
    assert (await get(store, keyed)).result == b'"\\\\"'
    assert await worker.take() == []


async def _fire_and_cancel(store: Store, worker: Worker, clock: ManualClock, alarms: Alarms) -> None:
    await put(store, new("every minute \\ it's", clock.now() + 60 * SECOND))
    clock.advance(61)
    assert await Firing(store, alarms).fire_due() == 1
    [task] = await worker.take()
    assert task.schedule == "every minute \\ it's"
    await worker.end(task, State.SUCCEEDED)
    waiting = await add(store, delay=3_600 * SECOND)
    assert await store.cancel([waiting.id]) == [CancelVerdict.CANCELLED]
    found = await store.find("work", "NULL")
    assert found is not None
    assert found.state is State.SUCCEEDED


async def _print(store: Store, worker: Worker) -> None:
    records = [await add(store) for _ in range(10)]
    await store.keep_output([OutputChunk(record.id, 1, 0, f"it's \\ line {record.id}", last=True) for record in records])
    assert len((await store.search_output(OutputSearch(words="line"))).items) == 10
    for task in await worker.take():
        await worker.end(task, State.SUCCEEDED)


async def _prune(store: Store, worker: Worker, clock: ManualClock, alarms: Alarms) -> None:
    """Successes of the first day go, by whole tables; what failed, the dead letters, and what ended lately is kept."""
    await store.add([new_task("old") for _ in range(REMOVED)])
    for task in await worker.take("old"):
        await worker.end(task, State.SUCCEEDED)
    clock.advance(20 * 86_400)
    await store.tidy()
    for state in (State.FAILED, State.SUCCEEDED):
        await store.add([new_task("kept") for _ in range(KEPT)])
        for task in await worker.take("kept"):
            await worker.end(task, state)
    before = clock.now() - clock.now() % DAY
    while await store.prune(State.SUCCEEDED, before, BATCH):
        pass
    for state in (State.FAILED, State.CANCELLED, State.DROPPED, State.EXPIRED):
        assert await store.prune(state, START, BATCH) == []
    assert (await store.page(Query(handler="old"))).items == []
    for state in (State.FAILED, State.SUCCEEDED):
        assert len((await store.page(Query(state=state, handler="kept"))).items) == KEPT, f"{state} tasks that are to be kept"
    await Pruner(store, alarms, {}).prune()


def _strange(database: MakeDatabase, name: str) -> str:
    url = database(STRANGE[name])
    if name == "search path":
        with psycopg.connect(url, autocommit=True, options="-c search_path=pg_catalog") as connection:
            # a schema of the user's that comes before the server's own
            connection.execute("create schema strange; create function strange.lower(text) returns text language sql as $$ select 'x' $$")
            connection.execute(
                "create function strange.statement_timestamp() returns timestamptz language sql as 'select null::timestamptz'"
            )
    return url


@pytest.mark.slow
@pytest.mark.parametrize("name", STRANGE)
async def test_strange_settings_of_a_database_change_nothing(database: MakeDatabase, name: str) -> None:
    clock = ManualClock(START)
    async with opened(_strange(database, name), clock) as store:
        await use(store, clock)


@pytest.mark.slow
async def test_strange_settings_of_a_role_change_nothing(database: MakeDatabase) -> None:
    url, clock = database({}), ManualClock(START)
    role = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create role {role} superuser login; alter role {role} set standard_conforming_strings = off".encode())
        connection.execute(f"alter role {role} set array_nulls = off; alter role {role} set statement_timeout = 1".encode())
    try:
        async with opened(re.sub(r"//[^@/]+@", f"//{role}@", url), clock) as store:
            await use(store, clock)
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"reassign owned by {role} to current_user; drop role {role}".encode())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(STRANGE.keys() - REFUSED - TIMEOUTS))
async def test_behind_a_pooler_strange_settings_change_nothing(database: MakeDatabase, name: str) -> None:
    clock = ManualClock(START)
    async with opened(_strange(database, name) + "?pooled=on", clock) as store:
        await use(store, clock)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_behind_a_pooler_a_setting_that_statements_rely_on_is_refused_by_name(database: MakeDatabase, name: str) -> None:
    url = _strange(database, name)
    async with opened(url, ManualClock(START)):
        pass  # with tables and everything, by sessions that have settings of their own
    [setting] = STRANGE[name].keys() & (NEEDED.keys() | {"search_path"})
    with pytest.raises(
        StoreUnavailable, match=rf"cannot be used with {setting} = .*pooled=on.*alter role … set {setting} = '.*docs/postgres"
    ):
        async with opened(f"{url}?pooled=on", ManualClock(START)):
            pass


async def test_settings_that_only_newer_servers_have_are_set_too(database: MakeDatabase) -> None:
    url = database({})
    with psycopg.connect(url) as connection:
        version = connection.info.server_version
    newer = {"transaction_timeout": "1h"} if version >= 170_000 else {}
    with psycopg.connect(url, autocommit=True) as connection:
        for setting, value in newer.items():
            connection.execute(f"alter database {url.rpartition('/')[2]} set {setting} = '{value}'".encode())
    link = await connect(Address.from_url(url))
    try:
        assert {setting: (await link.rows(f"show {setting}"))[0][0] for setting in newer} == dict.fromkeys(newer, "0")
    finally:
        link.drop()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_hold_every_text_is_refused(database: MakeDatabase, encoding: str) -> None:
    url = database({}, options=f"encoding '{encoding}' locale 'C' template template0")
    with pytest.raises(
        StoreUnavailable, match=rf"needs a database with encoding UTF8, and .* has {encoding}; make one with create database"
    ):
        async with opened(url, ManualClock(START)):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("server", postgres_names())
async def test_another_language_changes_nothing(database: MakeDatabase, server: str) -> None:
    """Turkish, where I and i are other letters, if the server knows languages, or else whatever it has besides plain bytes."""
    with psycopg.connect(postgres_url(server)) as connection:
        turkish = connection.execute("select count(*) from pg_collation where collname = 'tr-TR-x-icu'").fetchone()
        builtin = connection.info.server_version >= 170_000
    options = "locale_provider builtin builtin_locale 'C.UTF-8'" if builtin else "lc_ctype 'C.UTF-8'"
    if turkish == (1,):
        options = "locale_provider icu icu_locale 'tr-TR'"
    clock = ManualClock(START)
    async with opened(database({}, server=server, options=f"{options} template template0"), clock) as store:
        await use(store, clock)


@pytest.mark.parametrize("setting", ["standard_conforming_strings", "transform_null_equals", "extra_float_digits", "array_nulls"])
async def test_a_callers_transaction_may_have_strange_settings_too(database: MakeDatabase, setting: str) -> None:
    url = database({})
    strange = {"standard_conforming_strings": "off", "transform_null_equals": "on", "extra_float_digits": "-15", "array_nulls": "off"}
    payload = rb'{"text": "back\\\\slash"}'
    async with opened(url, ManualClock(START)) as store:
        with psycopg.connect(url, options=f"-c {setting}={strange[setting]}") as connection, connection.transaction():
            new = [new_task("work", payload, key="NULL", timeout=0.1234567890123), new_task("work", payload)]
            if setting == "array_nulls":
                with pytest.raises(InvalidValue, match=r"array_nulls = off.*set local array_nulls = on"):
                    await store.add_on(connection, new)
                connection.execute("set local array_nulls = on")
            await store.add_on(connection, new)
        found = [await get(store, task) for task in new]
        assert [(task.key, task.payload, task.timeout) for task in found] == [("NULL", payload, 0.1234567890123), (None, payload, None)]


async def test_a_schema_may_have_a_backslash_in_its_name(database: MakeDatabase) -> None:
    clock = ManualClock(START)
    async with opened(database({"standard_conforming_strings": "off"}) + "?schema=back%5Cslash%27s", clock) as store:
        await use(store, clock)


def test_no_statement_has_a_backslash_that_a_setting_could_change() -> None:
    """In e'…' it means the same everywhere; in '…' it depends on standard_conforming_strings."""
    texts = [path.read_text() for path in (ROOT / "src" / "duetime" / "store" / "postgres").rglob("*.sql")]
    strings = [found for text in texts for found in re.findall(r"(\w?)('(?:[^']|'')*')", re.sub(r"--[^\n]*", "", text))]
    assert len(strings) > 100
    assert [text for prefix, text in strings if "\\" in text and prefix != "e"] == []
