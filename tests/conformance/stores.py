"""The kinds of store that the suite runs on, and which of its files run on which.

A new store adds its kinds to KINDS. A capability that a kind lacks is left out of its `can`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import psycopg
from redis import Redis

from duetime.clock import Clock, Instant
from duetime.model.sharding import ShardEntry, new_map
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.sharded.store import ShardedStore
from duetime.store.values import Inconsistency
from tests.conformance.connections import Connection, PsycopgConnection, SqliteConnection
from tests.servers.running import newest_postgres, postgres_names, postgres_url, valkey
from tests.servers.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
SECOND_DATABASE = "elsewhere"
MANY = 5_000  # rows that leave enough behind for later tests to notice

# `make test` runs the whole suite on the kinds that are `whole`. On the others it runs the files in which engines and versions differ:
# tables and locks of their own, plans of the hot statements, notifications, and what happens at the same time.
# `make test-all` (`--scope everything`) runs all files on all kinds, `make quick` all of them on SQLite.
WHERE_ENGINES_DIFFER = frozenset(
    {
        "test_add_on",
        "test_claim",
        "test_concurrency",
        "test_opening",
        "test_reap",
        "test_settle",
        "test_state_machine",
        "test_wakeups",
    }
)

SHARDS = ("a", "b", "c")
# What is not there over shards, or not so (docs/design/scale.md): whole files, or tests whose names begin so.
NOT_OVER_SHARDS = {
    "test_pulled_limits": ("test_",),  # the service refuses pull workers such handlers there
    "test_claim": (  # order holds within a shard
        "test_equal_priorities_go",
        "test_higher_priority_goes_first",
        "test_one_start_in_sixteen",
        "test_starts_are_counted",
        "test_a_small_total_is_shared",
        "test_what_many_handlers_leave",
        "test_a_task_that_came_due_waits",
        "test_the_next_look_is_told",
    ),
    "test_claim_ahead": ("test_a_task_that_comes_later", "test_a_claim_in_full_flow", "test_what_is_due_within"),
    "test_edit": ("test_a_task_runs_at_its_new_time",),
    "test_filters": ("test_a_range_of_priorities", "test_of_a_flood"),
    "test_gates": ("test_paused_tasks_run_in_order",),
    "test_roads": ("test_priority_and_age_count",),
    "test_disabling": ("test_the_most_urgent_task",),
    "test_handler_load": ("",),  # bounds count per shard
    "test_collections": ("",),
    "test_pull_workers": ("test_a_claim_leaves_what_would_be",),
    "test_retention": ("test_walks_pass_many",),
    "test_plain_and_rich": ("test_a_child_may_wait_for_both_wherever_they_are",),
    "test_settle_slices": ("test_children_of_a_whole_claim_are_freed_and_its_progress_is_forgotten",),
    "test_fairness": ("",),  # shares hold within a shard
    "test_sub_flows": ("",),  # they wait in steps
    "test_failures": ("test_failing_attempts", "test_a_group_is_found", "test_of_too_many_groups", "test_old_counts_are_kept"),
    "test_output": ("test_hits_are_filtered_and_paged",),
    "test_submitted": ("test_the_stores_clock_is_set", "test_any_history", "test_a_clock_that_is_set"),
    "test_edges": ("",),  # edges between shards
    "test_revival": ("",),
    "test_queue_one": ("test_what_it_needs", "test_it_waits_for"),
    "test_locations": ("",),
    "test_moves": ("",),
    "test_page": ("test_a_page_holds_whole",),
    "test_keys": ("test_keep_answers", "test_error_answers"),
    "test_cancel": ("test_a_waiting_task_ends",),
    "test_delete": ("test_a_task_that_does_not_run",),
    "test_retry": ("test_a_retry_is_a_duplicate",),
    "test_upkeep": ("test_a_healthy_store",),
    "test_schedules": ("test_tasks_with_keys_meet", "test_tasks_wait_for_earlier"),
    "test_schedule_listing": ("test_tasks_that_wait_for_nothing",),
    "test_steps": ("",),  # signals and children
    "test_events": ("",),
    "test_limits": ("test_accepted_work",),
    "test_flows": ("test_damaged_flows", "test_the_duty"),  # they reach into one database
    "test_opening": ("",),
    "test_counted_limits": ("",),  # limits by key and rate
    "test_state_machine": ("",),
}


class Databases(Protocol):
    """Makes the databases of one kind of store. A folder of the test's stands for a store; the same folder means the same one."""

    def url(self, folder: Path, *, one_connection: bool = False) -> str:
        """Return the address of the folder's store; nothing is created yet."""
        ...

    def prepare(self, folder: Path) -> None:
        """Let the folder's store have its tables already, if that saves time; it is empty all the same."""
        ...

    async def inspect(self, folder: Path, store: Store) -> list[Inconsistency]:
        """Look for impossible states in the folder's store, which `store` has open."""
        ...

    def connect(self, folder: Path) -> Connection:
        """Connect to the database of the folder's store as a caller would."""
        ...

    def second(self, folder: Path) -> tuple[str, Connection]:
        """Return the address of a store in another database, and a connection to that database."""
        ...

    def make_newer(self, folder: Path) -> None:
        """Let the folder's store look as if a later version had opened it."""
        ...

    def clear(self) -> None:
        """Remove what was made since the last time, except perhaps what `prepare` can use."""
        ...

    def close(self) -> None:
        """Remove that too."""
        ...


class SqliteFiles:
    """Files in the folder. The fixture that made the folder removes it."""

    def url(self, folder: Path, *, one_connection: bool = False) -> str:
        return f"sqlite:///{folder / 'duetime.db'}"

    def prepare(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)

    async def inspect(self, folder: Path, store: Store) -> list[Inconsistency]:
        return await store.inspect(repair=False)

    def connect(self, folder: Path) -> Connection:
        return SqliteConnection(folder / "duetime.db")

    def second(self, folder: Path) -> tuple[str, Connection]:
        return f"sqlite:///{folder / 'second.db'}", SqliteConnection(folder / "second.db")

    def make_newer(self, folder: Path) -> None:
        connection = self.connect(folder)
        connection.execute("insert into duetime_version values (9999, 'from the future', 0)")
        connection.close()

    def clear(self) -> None:
        pass

    def close(self) -> None:
        pass


class SqliteMemory(SqliteFiles):
    """Every store object has a database to itself, so nobody else can do anything to it."""

    def url(self, folder: Path, *, one_connection: bool = False) -> str:
        return "sqlite:///:memory:"


class PostgresSchemas:
    """Schemas on the session's server.

    To create one with all its tables and to drop it takes ten times as long as to empty it, so most tests get one that an earlier
    test has left. A schema in which a test changed more than rows, or very many rows, is dropped.

    A new connection reads the catalogue before it answers, which takes longer than emptying or inspecting the tables does. So the
    connections for both stay open between tests.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._schemas: dict[Path, str] = {}
        self._reusable: set[str] = set()
        self._spare: list[str] = []
        self._others: set[tuple[str | None, str]] = set()  # schemas of callers and of second stores, with their database
        self._connections: dict[str | None, psycopg.Connection[tuple[Any, ...]]] = {}
        self._emptying: dict[str, str] = {}  # statements, by schema
        self._inspectors: dict[str, Store] = {}  # by schema
        self._loop: asyncio.AbstractEventLoop | None = None  # of the inspectors

    def url(self, folder: Path, *, one_connection: bool = False) -> str:
        return self._url(self._schema(folder), **({"connections": "1"} if one_connection else {}))

    def _url(self, schema: str, **options: str) -> str:
        return postgres_url(self._server, schema=schema, **options)

    def prepare(self, folder: Path) -> None:
        if self._spare:
            self._schemas[folder] = self._spare.pop()
        self._reusable.add(self._schema(folder))

    async def inspect(self, folder: Path, store: Store) -> list[Inconsistency]:
        if self._schema(folder) not in self._reusable:
            return await store.inspect(repair=False)
        # in a thread: the inspectors' connections belong to an event loop that outlasts the test's
        return await asyncio.to_thread(self._inspect, self._schema(folder))

    def _inspect(self, schema: str) -> list[Inconsistency]:
        async def inspect() -> list[Inconsistency]:
            if schema not in self._inspectors:
                self._inspectors[schema] = store_from_url(self._url(schema))
            await self._inspectors[schema].open(migrate=False)
            return await self._inspectors[schema].inspect(repair=False)

        self._loop = self._loop or asyncio.new_event_loop()
        return self._loop.run_until_complete(inspect())

    def connect(self, folder: Path) -> Connection:
        return self._connect(None, self._schema(folder))

    def second(self, folder: Path) -> tuple[str, Connection]:
        connection = self._administer()
        if connection.execute("select from pg_database where datname = %s", (SECOND_DATABASE,)).fetchone() is None:
            connection.execute(f"create database {SECOND_DATABASE}".encode())
        schema = _new_name()
        self._others.add((SECOND_DATABASE, schema))
        return postgres_url(self._server, database=SECOND_DATABASE, schema=schema), self._connect(SECOND_DATABASE, schema)

    def make_newer(self, folder: Path) -> None:
        schema = self._schema(folder)
        self._reusable.discard(schema)
        self._administer().execute(f"insert into {schema}.version values (9999, 'from the future', 0)".encode())

    def clear(self) -> None:
        # forgotten first: if one of them cannot be removed, only one test shall suffer
        schemas, others = set(self._schemas.values()), self._others
        reusable, self._reusable = schemas & self._reusable, set()
        self._schemas, self._others = {}, set()
        spare = {schema for schema in reusable if self._empty(schema)}
        self._drop({(None, schema) for schema in schemas - spare} | others)
        self._spare += spare

    def close(self) -> None:
        self._drop({(None, schema) for schema in self._spare})
        self._spare.clear()
        while self._connections:
            self._connections.popitem()[1].close()
        if self._loop is not None:
            self._loop.close()

    def _schema(self, folder: Path) -> str:
        return self._schemas.setdefault(folder, _new_name())

    def _connect(self, database: str | None, schema: str) -> Connection:
        self._others.add((database, f"{schema}_caller"))
        return PsycopgConnection(postgres_url(self._server, database=database), f"{schema}_caller")

    def _empty(self, schema: str) -> bool:
        """Delete all rows but the single facts of the store; return whether they were few and the tables are there at all."""
        connection = self._administer()
        if schema not in self._emptying:
            tables = connection.execute(
                "select c.oid::regclass::text from pg_class as c join pg_namespace as n on n.oid = c.relnamespace where n.nspname = %s "
                "and c.relkind in ('r', 'p') and not c.relispartition and c.relname not in ('version', 'functions', 'control')",
                (schema,),
            )
            self._emptying[schema] = "; ".join(f"delete from {table}" for (table,) in tables)
        if not self._emptying[schema] or self._tells(schema):
            return False
        cursor = connection.execute(self._emptying[schema].encode())  # one message, so one transaction
        return sum(_row_counts(cursor)) < MANY

    def _tells(self, schema: str) -> bool:
        """Return whether somebody has followed events there: triggers are left."""
        triggers = self._administer().execute(
            "select from pg_trigger as t join pg_class as c on c.oid = t.tgrelid join pg_namespace as n on n.oid = c.relnamespace "
            "where n.nspname = %s and not t.tgisinternal",
            (schema,),
        )
        return triggers.fetchone() is not None

    def _drop(self, schemas: set[tuple[str | None, str]]) -> None:
        for database, schema in schemas:
            if (inspector := self._inspectors.pop(schema, None)) and self._loop is not None:
                self._loop.run_until_complete(inspector.close())
            self._emptying.pop(schema, None)
            self._administer(database).execute(f"drop schema if exists {schema} cascade".encode())

    def _administer(self, database: str | None = None) -> psycopg.Connection[tuple[Any, ...]]:
        if database not in self._connections:
            # a lock that is still held here belongs to something that a test forgot to close
            self._connections[database] = psycopg.connect(
                postgres_url(self._server, database=database), autocommit=True, connect_timeout=30, options="-c lock_timeout=20s"
            )
        return self._connections[database]


class ValkeyPrefixes:
    """Prefixes on the session's server, each with a control of its own in the folder."""

    _template: bytes | None = None

    def url(self, folder: Path, *, one_connection: bool = False) -> str:
        return f"{valkey().url}?{urlencode({'prefix': self._prefix(folder), 'control': self._control(folder)})}"

    def _prefix(self, folder: Path) -> str:
        return hashlib.sha256(str(folder).encode()).hexdigest()[:16]

    def _control(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'control.db'}?synchronous=normal"

    def prepare(self, folder: Path) -> None:
        """Copy a control that has its tables: making them takes most of a test's time."""
        if self._template is None:
            store = store_from_url(f"sqlite:///{folder / 'control.db'}?synchronous=normal")

            async def make() -> None:
                await store.open()
                await store.close()

            thread = threading.Thread(target=lambda: asyncio.run(make()))  # a test's loop may run in this one
            thread.start()
            thread.join()
            with sqlite3.connect(folder / "control.db") as connection:
                connection.execute("pragma wal_checkpoint(truncate)")
            connection.close()
            self._template = (folder / "control.db").read_bytes()
        else:
            (folder / "control.db").write_bytes(self._template)

    async def inspect(self, folder: Path, store: Store) -> list[Inconsistency]:
        return await store.inspect(repair=False)

    def connect(self, folder: Path) -> Connection:
        return SqliteConnection(folder / "control.db")

    def second(self, folder: Path) -> tuple[str, Connection]:
        other = folder / "second"
        other.mkdir(exist_ok=True)
        return self.url(other), SqliteConnection(other / "control.db")

    def make_newer(self, folder: Path) -> None:
        with Redis(port=valkey().port) as client:
            client.hset(f"{{{self._prefix(folder)}}}:meta", "format", "9999")

    def clear(self) -> None:
        with Redis(port=valkey().port) as client:
            client.flushdb()

    def close(self) -> None:
        pass


def _new_name() -> str:
    return f"t_{uuid.uuid4().hex[:20]}"


def _row_counts(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Iterator[int]:
    """Yield how many rows each statement of a message has changed."""
    yield cursor.rowcount
    while cursor.nextset():
        yield cursor.rowcount


def die_in_another_process(url: str, now: Instant, worker: str, wants: Mapping[str, int]) -> int:
    """Run a worker that claims and is killed with all that it holds; return how many tasks it claimed."""
    order = json.dumps({"url": url, "now": now, "worker": worker, "wants": wants})
    doomed = subprocess.run(
        [sys.executable, "-m", "tests.conformance.doomed", order], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if doomed.returncode != -9:
        raise AssertionError(f"the doomed worker should have been killed, but ended with {doomed.returncode}: {doomed.stderr}")
    return int(doomed.stdout)


@dataclass(frozen=True)
class StoreKind:
    """One kind of store.

    `can` names capabilities, which are names of fixtures: a test that asks for one runs only where it is given.
    `another`: a second store object may open the same data. `dead_worker`: a worker can really die.
    `connection`: tasks can be added on a connection of the caller's own.
    `newer_tables`: its schema can be made to look like that of a later version.
    `lacks` names files and tests of what the store refuses.
    `whole`: `make test` runs all of the suite on it. `examples`: how often the state machine runs, by scope.
    """

    name: str
    databases: Databases
    can: frozenset[str] = field(default_factory=frozenset)
    lacks: frozenset[str] = frozenset()
    whole: bool = False
    shards: tuple[str, ...] = ()
    examples: Mapping[str, int] = field(default_factory=lambda: {"usual": 20, "everything": 500})
    die: Callable[[str, Instant, str, Mapping[str, int]], int] = die_in_another_process

    def url(self, folder: Path, *, one_connection: bool = False) -> str:
        return self.databases.url(folder, one_connection=one_connection)

    def store(self, folder: Path, clock: Clock, *, one_connection: bool = False) -> Store:
        """Make a store object for the folder's data; nothing is opened yet."""
        control = store_from_url(self.url(folder, one_connection=one_connection), clock=clock)
        if not self.shards:
            return control
        urls = {name: self.databases.url(folder / name, one_connection=one_connection) for name in self.shards}
        entries = [ShardEntry(name=name, url=url) for name, url in urls.items()]
        return ShardedStore(control, lambda url: store_from_url(url, clock=clock), new_map("conformance", entries))

    def prepare(self, folder: Path) -> None:
        """Let the folder's store have its tables already, if that saves time; it is empty all the same."""
        for each in (folder, *(folder / name for name in self.shards)):
            self.databases.prepare(each)

    async def inspect(self, folder: Path, store: Store) -> list[Inconsistency]:
        """Look for impossible states in the folder's store, which `store` has open."""
        return await (store.inspect(repair=False) if self.shards else self.databases.inspect(folder, store))

    def runs(self, module: str, test: str, asked: frozenset[str], scope: str) -> bool:
        """Return whether a test of a module that asks for capabilities runs on this kind."""
        if not asked <= self.can or module in self.lacks or test in self.lacks:
            return False
        if self.shards and not self.whole and scope != "everything":
            return False
        # memory can do none of it, so the file stands for SQLite in all that needs a second process or connection
        if self.shards and test.startswith(NOT_OVER_SHARDS.get(module, ("nothing",))):
            return False
        for_sqlite = self.name in ("sqlite-memory", "sharded-memory") or (bool(asked) and self.name == "sqlite-file")
        if scope == "quick":
            return for_sqlite
        return scope == "everything" or self.whole or for_sqlite or module in WHERE_ENGINES_DIFFER


# What a Redis store refuses; tests/integration/test_redis_store.py tries the refusals.
REFUSED_BY_REDIS = frozenset(
    {
        "test_pulled_limits",
        "test_accepted",
        "test_add_on",
        "test_counted_limits",
        "test_deadlines",
        "test_events",
        "test_failures",
        "test_fairness",
        "test_flows",
        "test_intents",
        "test_locations",
        "test_pace",
        "test_queue_one",
        "test_steps",
        "test_streams",
        "test_sub_flows",
        "test_a_task_moves_only_as_the_table_says",  # to where suspended attempts wait
        "test_a_process_that_is_killed_while_it_folds_changes_nothing",  # it reaches into the SQL store
        # searching in output
        "test_a_hit_shows_a_passage_around_the_first_word",
        "test_case_and_diacritics_make_no_difference",
        "test_hits_are_filtered_and_paged_the_latest_first",
        "test_nothing_is_found_before_there_is_any_output",
        "test_nothing_that_somebody_types_is_an_error_of_the_engine",
        "test_output_can_come_whatever_the_state_of_its_task",
        "test_output_goes_with_its_task",
        "test_output_goes_with_many_tasks_that_are_removed_at_once",
        "test_output_is_found_by_all_of_its_words",
        "test_tasks_are_listed_by_words_of_their_output_and_other_filters",
        "test_what_cannot_be_searched_for_is_refused",
        "test_what_left_out_attempts_printed_is_gone_too",
        # attempts that were accepted count for limits
        "test_accepted_work_counts_by_what_its_handler_takes",
        # schedules whose runs wait for one another
        "test_a_new_schedule_stands_at_version_one_as_it_was_written",
        "test_a_write_replaces_all_parts_of_a_record",
        "test_tasks_wait_for_earlier_ones_of_the_same_write_and_for_stored_ones",
        "test_what_was_written_is_there_after_closing_and_opening_again",
    }
)
ALL = frozenset({"another", "dead_worker", "connection", "newer_tables"})
KINDS = [
    StoreKind("sqlite-memory", SqliteMemory(), whole=True, examples={"quick": 30, "usual": 510, "everything": 5_000}),
    StoreKind("sqlite-file", SqliteFiles(), can=ALL),
    StoreKind("sharded-memory", SqliteMemory(), shards=SHARDS, whole=True, examples={"quick": 10, "usual": 60, "everything": 1_000}),
    *(StoreKind(name, PostgresSchemas(name), can=ALL) for name in postgres_names() if name != newest_postgres()),
    StoreKind("valkey", ValkeyPrefixes(), can=ALL, lacks=REFUSED_BY_REDIS, examples={"usual": 6, "everything": 200}),
    StoreKind(newest_postgres(), PostgresSchemas(newest_postgres()), can=ALL, whole=True, examples={"usual": 102, "everything": 500}),
    StoreKind(f"sharded-{newest_postgres()}", PostgresSchemas(newest_postgres()), shards=SHARDS),
]
CAPABILITIES = frozenset[str]().union(*(kind.can for kind in KINDS))
