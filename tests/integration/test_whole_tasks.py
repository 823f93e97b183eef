"""Short plain tasks on PostgreSQL, which have no row of their own: where they are stored, and that nothing moves them unseen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest

from duetime.model.outcome import Outcome, SettleVerdict
from duetime.model.task import NewTask, State
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.postgres.store import PostgresStore
from duetime.store.postgres.submit import is_plain
from duetime.store.values import AddVerdict, NewWorker
from tests.conformance.build import Worker, add, ended, get, needs, new_task, state_of
from tests.servers.waiting import PATIENCE

CLAIM = """
select ids from {schema}.claim(null, 'w', 1000, (select array_agg(id) from {schema}.lane), '{{0}}', '{{0}}', '{{100}}', 100, '{{}}', null,
    (select gates_version from {schema}.control),
    (select c.lanes_version + s.last_value from {schema}.control as c, {schema}.set_backs as s),
    (select incarnation from {schema}.control), 0)
"""
SETTLE = """
select accepted from {schema}.settle(null, 'w', null, %s::uuid[], '{{1}}', null, array[{schema}.clock()], %s::text[], %s::text[], '{{0}}',
    '{{0}}', array[{schema}.clock()], null, null, null, null, null, null)
"""
BLOCKED = "select 1 from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
TABLES = ("due", "claim", "task", "history")


class Server:
    """A connection beside the store's own, to see rows and to hold transactions open."""

    def __init__(self, url: str) -> None:
        address, _, self.schema = url.partition("?schema=")
        self.connection = psycopg.connect(address, autocommit=True)
        self._watcher = psycopg.connect(address, autocommit=True)

    def rows(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(text.format(schema=self.schema).encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def tables(self) -> dict[str, int]:
        """Count tasks by table; in a claim those that have a payload there."""
        counts = ["(select count(*) from {schema}.due)", "(select count(*) from {schema}.open_attempt where payload is not null)"]
        counts += [f"(select count(*) from {{schema}}.{table})" for table in ("task", "history")]
        [row] = self.rows(f"select {', '.join(counts)}")
        return {table: count for table, count in zip(TABLES, row, strict=True) if count}

    def settle(self, task: str, outcome: Outcome) -> None:
        """Settle the worker's first attempt."""
        state = State.PENDING if outcome is Outcome.RELEASED else State.SUCCEEDED
        assert self.rows(SETTLE, [task], [state.value], [outcome.value]) == [(None,)]

    async def waits(self) -> None:
        """Return as soon as somebody waits for a lock of this connection's."""
        pid = self.connection.info.backend_pid
        async with asyncio.timeout(PATIENCE):
            while self._watcher.execute(BLOCKED, [pid]).fetchone() is None:  # noqa: ASYNC110  only the server knows
                await asyncio.sleep(0.005)

    def close(self) -> None:
        self.connection.close()
        self._watcher.close()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    store = store_from_url(postgres_url)
    await store.open()
    await store.tidy()
    yield store
    await store.close()


@pytest.fixture
async def worker(store: Store) -> Worker:
    return Worker(store, "w", await store.register(NewWorker(id="w", host="here", pid=1, slots={"work": 10})))


@pytest.fixture
def server(store: Store, postgres_url: str) -> Iterator[Server]:
    server = Server(postgres_url)
    yield server
    server.close()


async def test_a_short_plain_task_stands_in_one_table_at_a_time(store: Store, worker: Worker, server: Server) -> None:
    await add(store)
    assert server.tables() == {"due": 1}
    task = await worker.take_one()
    assert server.tables() == {"claim": 1}
    await worker.end(task, State.SUCCEEDED)
    assert server.tables() == {"history": 1}


@pytest.mark.parametrize(
    "more", [{"payload": b'"' + b"x" * 1_000 + b'"'}, {"key": "k"}, {"meta": {"a": "b"}}, {"timeout": 1.0}, {"expires_at": 1 << 52}]
)
async def test_a_task_with_more_to_tell_has_a_row(store: Store, worker: Worker, server: Server, more: dict[str, Any]) -> None:
    await add(store, **more)
    assert server.tables() == {"due": 1, "task": 1}
    task = await worker.take_one()
    assert server.tables() == {"task": 1}
    await worker.end(task, State.SUCCEEDED)
    assert server.tables() == {"history": 1}


async def test_a_task_that_goes_back_gets_a_row(store: Store, worker: Worker, server: Server) -> None:
    """Its own due time and that of its next try differ then."""
    await add(store)
    await worker.run(State.PENDING)
    assert server.tables() == {"due": 1, "task": 1}
    assert await store.inspect(repair=False) == []


async def test_what_is_said_again_waits_for_the_claim_that_takes_it(store: Store, worker: Worker, server: Server) -> None:
    """The due entry is gone then and the claim is there; nothing lies between the two."""
    submitted = [new_task(), new_task()]
    await store.add(submitted)
    for end in ("rollback", "commit"):
        server.rows("begin")
        assert len(server.rows(CLAIM)[0][0]) == 2
        saying = asyncio.create_task(store.add(submitted))
        await server.waits()
        server.rows(end)
        assert [added.verdict for added in await saying] == [AddVerdict.REPEATED] * 2
    assert server.tables() == {"claim": 2}
    assert await worker.take() == []
    assert await store.inspect(repair=False) == []


@pytest.mark.parametrize("carefully", [False, True])
@pytest.mark.parametrize(
    "others", [[], [new_task("other", key="k")], [new_task("other", timeout=2.0)]], ids=["alone", "with a key", "with more"]
)
async def test_what_is_said_again_is_known_while_it_is_put_back(
    store: PostgresStore, worker: Worker, server: Server, others: list[NewTask[object]], carefully: bool
) -> None:
    submitted = new_task()
    if carefully:
        store._keys.were_met()
    await store.add([submitted])
    await worker.take_one()
    server.rows("begin")
    server.settle(submitted.id, Outcome.RELEASED)
    saying = asyncio.create_task(store.add([submitted, *others]))
    if is_plain([submitted, *others]) or not carefully:  # its due entry is in the way; others are looked up before
        await server.waits()
    else:
        await saying
    server.rows("commit")
    assert [added.verdict for added in await saying] == [AddVerdict.REPEATED, *[AddVerdict.ADDED] * len(others)]
    assert server.tables() == {"due": 1 + len(others), "task": 1 + len(others)}
    assert await store.inspect(repair=False) == []


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("more", [{}, {"timeout": 2.0}], ids=["plain", "rich"])
async def test_a_transaction_with_an_old_view_knows_what_was_claimed_since(
    store: Store, worker: Worker, server: Server, level: str, more: dict[str, Any]
) -> None:
    submitted = new_task(**more)
    await store.add([submitted])
    server.rows(f"begin isolation level {level}")
    server.rows("select 1 from {schema}.due")
    await worker.take_one()
    [added] = await store.add_on(server.connection, [submitted])
    assert added.verdict is AddVerdict.REPEATED
    server.rows("commit")
    assert await store.inspect(repair=False) == []
    assert [task.id for task in await store.attempts_of(worker.id)] == [submitted.id]
    assert sum(lane.due + lane.running for lane in (await store.counts()).lanes) == 1


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("then", ["runs", "ended", "released"])
async def test_what_an_old_view_adds_again_does_not_run_again(store: Store, worker: Worker, server: Server, level: str, then: str) -> None:
    """The first time was committed after the view was taken: the transaction cannot know it, but whoever claims the task does."""
    server.rows(f"begin isolation level {level}")
    server.rows("select 1 from {schema}.due")
    submitted, beside = new_task(), new_task()
    await store.add([submitted])
    task = await worker.take_one()
    answers = await store.add_on(server.connection, [submitted, beside])
    assert [added.verdict for added in answers] == [AddVerdict.ADDED] * 2
    server.rows("commit")
    if then == "ended":
        await worker.end(task, State.SUCCEEDED)
    elif then == "released":
        await worker.end(task, State.PENDING, outcome=Outcome.RELEASED)
    again = await worker.take()
    assert {task.id for task in again} == {beside.id} | ({submitted.id} if then == "released" else set())
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=store.now()) for task in again])
    if then == "runs":
        await worker.end(task, State.SUCCEEDED)
    assert {await state_of(store, each) for each in (submitted, beside)} == {State.SUCCEEDED}
    assert server.tables() == {"history": 2}
    assert await store.inspect(repair=False) == []


async def test_a_parent_that_a_claim_puts_back_is_not_taken_for_ended(store: Store, worker: Worker, server: Server) -> None:
    """Its due entry is deleted and inserted again in one transaction; whoever waits for the first does not see the second."""
    parent = await add(store)
    server.rows("begin")
    server.rows("create temp table kept as select * from {schema}.due")
    server.rows("delete from {schema}.due")
    server.rows("insert into {schema}.due select * from kept")
    adding = asyncio.create_task(add(store, "child", edges=(needs(parent),)))
    await server.waits()
    server.rows("commit")
    assert await state_of(store, await adding) is State.BLOCKED
    await worker.run(State.SUCCEEDED)
    assert await state_of(store, adding.result()) is State.PENDING


async def test_a_parent_that_is_missed_while_it_moves_is_looked_for_again(store: Store, worker: Worker, server: Server) -> None:
    parent = await add(store)
    server.rows("create sequence {schema}.looks")
    server.rows("alter function {schema}.lock_parents(uuid[]) rename to lock_those_that_stand")
    server.rows(
        "create function {schema}.lock_parents(p_ids uuid[]) returns uuid[] language plpgsql as $$ begin"
        " return case when nextval('{schema}.looks') > 3 then {schema}.lock_those_that_stand(p_ids) else '{{}}'::uuid[] end; end $$"
    )
    child = await add(store, "child", edges=(needs(parent),))
    assert await state_of(store, child) is State.BLOCKED
    await worker.run(State.SUCCEEDED)
    assert await state_of(store, child) is State.PENDING


async def test_who_only_repeats_what_is_there_locks_nothing(store: Store, worker: Worker, server: Server) -> None:
    """A caller's transaction may stay open for long."""
    waiting, running = new_task("other"), new_task()
    await store.add([waiting, running])
    task = await worker.take_one()
    server.rows("begin")
    assert {added.verdict for added in await store.add_on(server.connection, [waiting, running])} == {AddVerdict.REPEATED}
    async with asyncio.timeout(PATIENCE):
        assert await worker.end(task, State.PENDING, outcome=Outcome.RELEASED) is SettleVerdict.ACCEPTED
        await store.cancel([waiting.id, running.id])
    server.rows("commit")
    assert {await state_of(store, each) for each in (waiting, running)} == {State.CANCELLED}


async def test_a_parent_does_not_end_unseen_while_its_child_is_added(store: Store, worker: Worker, server: Server) -> None:
    """The end waits for the child, which is freed by it then."""
    parent = await add(store)
    task = await worker.take_one()
    server.rows("begin")
    server.rows("select {schema}.lock_parents(%s::uuid[])", [parent.id])
    ending = asyncio.create_task(worker.end(task, State.SUCCEEDED))
    await server.waits()
    assert not ending.done()
    server.rows("commit")
    assert await ending is SettleVerdict.ACCEPTED


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.RELEASED])
async def test_a_child_waits_for_the_end_that_is_just_being_told(store: Store, worker: Worker, server: Server, outcome: Outcome) -> None:
    parent = await add(store)
    task = await worker.take_one()
    server.rows("begin")
    server.settle(task.id, outcome)
    adding = asyncio.create_task(add(store, "child", edges=(needs(parent),)))
    await server.waits()
    server.rows("commit")
    child = await adding
    assert await state_of(store, child) is (State.PENDING if outcome is Outcome.SUCCEEDED else State.BLOCKED)
    assert await store.inspect(repair=False) == []


async def test_a_parent_that_is_about_to_be_claimed_is_left_until_its_child_is_there(store: Store, worker: Worker, server: Server) -> None:
    parent = await add(store)
    server.rows("begin")
    server.rows("select {schema}.lock_parents(%s::uuid[])", [parent.id])
    assert await worker.take() == []
    server.rows("commit")
    assert (await worker.take_one()).id == parent.id


async def test_what_a_claim_puts_back_for_its_size_stays_whole(store: Store, worker: Worker, server: Server) -> None:
    """Forty payloads of a megabyte are more than a claim hands out; plain tasks behind them go back with the rest."""
    long = b'"' + b"x" * 999_990 + b'"'
    await store.add([new_task(payload=long) for _ in range(40)])
    plain = [(await add(store, payload=b'{"n": %d}' % number)).id for number in range(3)]
    first = await worker.take()
    assert 0 < len(first) < 40
    assert not {task.id for task in first} & set(plain)
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=store.now()) for task in first])
    rest = await worker.take()
    payloads = {task.id: task.payload for task in rest}
    assert [payloads[id] for id in plain] == [f'{{"n": {number}}}' for number in range(3)]
    assert len(first) + len(rest) == 43
    assert await store.inspect(repair=False) == []


def _entry_lost(server: Server) -> None:
    server.rows("delete from {schema}.due")


def _row_besides(server: Server) -> None:
    server.rows(
        "insert into {schema}.task (id, lane, handler, payload, due_at, submitted_at, submitted_by)"
        " select id, lane, 'work', payload, due_at, submitted_at, submitted_by from {schema}.due"
    )


def _ended_besides(server: Server) -> None:
    server.rows(
        "insert into {schema}.history (id, lane, handler, payload, due_at, submitted_at, submitted_by, state, attempt, tries, crashes,"
        " finished_at)"
        " select id, lane, 'work', payload, due_at, submitted_at, submitted_by, 'failed', 1, 0, 0, submitted_at from {schema}.due"
    )


def _held_besides(server: Server) -> None:
    server.rows(
        "insert into {schema}.held (id, lane, reason, waiting, due_at, attempt, tries, crashes)"
        " select id, lane, 'blocked', 1, due_at, 0, 0, 0 from {schema}.due"
    )


@pytest.mark.parametrize(
    ("damage", "kinds", "left"),
    [
        (_entry_lost, ["wrong tally"], 0),
        (_row_besides, ["task stored twice"], 1),
        (_ended_besides, ["task live and finished"], 1),
        (_held_besides, ["orphaned entry"], 1),
    ],
)
async def test_the_doctor_finds_and_heals(
    store: Store, worker: Worker, server: Server, damage: Callable[[Server], None], kinds: list[str], left: int
) -> None:
    record = await add(store, payload=b'{"kept": true}')
    damage(server)
    found = await store.inspect(repair=True)
    assert [problem.kind for problem in found][: len(kinds)] == kinds
    assert await store.inspect(repair=False) == []
    tasks = await worker.take()
    assert [(task.id, task.payload) for task in tasks] == [(record.id, '{"kept": true}')] * left
    if left:
        await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=store.now()) for task in tasks])
        assert (await get(store, record)).state is State.SUCCEEDED
    assert await store.inspect(repair=False) == []


async def test_the_doctor_finds_and_heals_what_is_wrong_with_a_claim(store: Store, worker: Worker, server: Server) -> None:
    records = [await add(store) for _ in range(40)]
    tasks = await worker.take()
    _row_besides_running(server)
    server.rows("update {schema}.claim set last_id = first_id")
    assert [problem.kind for problem in await store.inspect(repair=True)] == ["task stored twice", "wrong claim bounds"]
    assert await store.inspect(repair=False) == []
    await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=store.now()) for task in tasks])
    assert {await state_of(store, record) for record in records} == {State.SUCCEEDED}
    assert server.tables() == {"history": 40}
    assert await store.inspect(repair=False) == []


def _row_besides_running(server: Server) -> None:
    server.rows(
        "insert into {schema}.task (id, lane, handler, payload, due_at, submitted_at, submitted_by)"
        " select id, lane, 'work', payload, due_at, submitted_at, submitted_by from {schema}.open_attempt order by index limit 1"
    )
