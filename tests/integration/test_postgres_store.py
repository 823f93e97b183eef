"""What only the PostgreSQL store has: migrations of many at once, privileges, wake-ups by the server, connections that die."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import psycopg
import pytest
from click.testing import CliRunner

from duetime import App
from duetime.cli.main import cli
from duetime.errors import StoreUnavailable
from duetime.ids import new_id
from duetime.model.gate import Gate, GateAction
from duetime.model.limit import CountedLimit
from duetime.model.task import State
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.postgres.requests import note
from duetime.store.postgres.runner import Runner
from duetime.store.postgres.store import PostgresStore
from duetime.store.postgres.submit import CAREFUL_CALLS
from duetime.store.requests import NamedRequest
from duetime.store.values import Added, AddVerdict, ClaimedTask, Declaration, Hint, HintKind, NewWorker
from duetime.worker import worker as working
from tests.conformance.build import Worker, add, needs, new_task, state_of, wait_until
from tests.integration.postgres import admin, opened, schema_of
from tests.servers.fixtures import NewPostgres
from tests.servers.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def postgres_url(bare_postgres_url: str) -> str:
    """These tests make the tables themselves, or change more than rows."""
    return bare_postgres_url


async def hired(store: Store, id: str = "w") -> Worker:
    return Worker(store, id, await store.register(NewWorker(id=id, host="here", pid=1, slots={"work": 10})))


async def test_fifty_that_start_at_once_make_the_tables_once(postgres_url: str) -> None:
    stores = [store_from_url(f"{postgres_url}&connections=1") for _ in range(50)]
    try:
        await asyncio.gather(*(store.open() for store in stores))
        tasks = await asyncio.gather(*(add(store) for store in stores))
        assert {await state_of(stores[0], task) for task in tasks} == {State.PENDING}
    finally:
        await asyncio.gather(*(store.close() for store in stores))
    with admin(postgres_url) as connection:
        versions = connection.execute(f"select version from {schema_of(postgres_url)}.version order by 1".encode()).fetchall()
    assert [version for (version,) in versions] == list(range(1, len(versions) + 1))


async def test_a_lane_whose_random_number_is_taken_gets_another(postgres_url: str) -> None:
    store = await opened(postgres_url)
    try:
        schema = schema_of(postgres_url)
        with admin(postgres_url) as connection:  # numbers that come twice, in one statement and in the next
            connection.execute(f"create sequence {schema}.twice".encode())
            connection.execute(f"alter table {schema}.lane alter id set default 1 + nextval('{schema}.twice') / 2".encode())
        added = await store.add([new_task(collection=f"c{number}") for number in range(6)])
        assert [each.verdict for each in added] == [AddVerdict.ADDED] * 6
    finally:
        await store.close()


async def test_tables_are_made_only_by_those_who_may(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_MIGRATE", "off")
    app = App(postgres_url)
    with pytest.raises(StoreUnavailable, match="duetime migrate"):
        await app.open()
    done = await asyncio.to_thread(CliRunner().invoke, cli, ["migrate", "--url", postgres_url])
    assert done.exit_code == 0, done.output
    async with app:
        assert (await app.insight.stats()).workers == 0


async def test_the_printed_statements_make_the_same_tables(postgres_url: str) -> None:
    printed = await asyncio.to_thread(CliRunner().invoke, cli, ["migrate", "--sql", "--url", postgres_url])
    with admin(postgres_url) as connection:
        connection.execute(printed.output.encode())
    store = store_from_url(postgres_url)
    await store.open(migrate=False)
    worker = await hired(store)
    task = await add(store)
    await worker.run(State.SUCCEEDED)
    assert await state_of(store, task) is State.SUCCEEDED
    worker.lease.close()
    await store.close()


async def test_the_documented_privileges_suffice_for_a_worker(postgres_url: str) -> None:
    await (await opened(postgres_url)).close()
    statements = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "postgres.md").read_text(), re.DOTALL)
    schema, role = schema_of(postgres_url), f"r_{schema_of(postgres_url)}"
    with admin(postgres_url) as connection:
        connection.execute(statements[0].replace("schema duetime", f"schema {schema}").replace("duetime_app", role).encode())
    store = await opened(re.sub(r"//[^@/]+@", f"//{role}@", postgres_url))
    try:
        worker = await hired(store)
        await add(store, key="k")
        await worker.run(State.SUCCEEDED)
        await store.tidy()
        await store.cancel([(await add(store)).id])
        await asyncio.to_thread(worker.lease.renew)
        worker.lease.close()
        await store.unregister("w")
    finally:
        await store.close()
        with admin(postgres_url) as connection:
            connection.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_workers_claim_whether_or_not_their_role_may_ask_for_the_timeline(new_postgres: NewPostgres) -> None:
    """One that may not cannot notice a fail-over; it must not look like one to the others either."""
    url = new_postgres().url()
    told = await opened(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("revoke execute on function pg_walfile_name(pg_lsn) from public")
        connection.execute("create role other login")
        for what in ("usage on schema duetime", "all on all tables in schema duetime", "all on all sequences in schema duetime"):
            connection.execute(f"grant {what} to other".encode())
    untold = await opened(re.sub(r"//[^@/]+@", "//other@", url))
    try:
        workers = [await hired(told), await hired(untold, "v")]
        for worker in workers * 2:
            task = await add(worker.store)
            assert (await worker.take_one()).id == task.id
    finally:
        await untold.close()
        await told.close()


async def test_a_worker_that_gets_no_connection_for_its_lease_does_not_begin(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would claim, and be ended by the kernel when its lease is over."""
    role = f"f_{schema_of(postgres_url)}"
    with admin(postgres_url) as connection:
        connection.execute(f"create role {role} superuser login".encode())
    monkeypatch.setattr(working, "FIRST_PROOF", 0.0)
    app = App(f"{re.sub(r'//[^@/]+@', f'//{role}@', postgres_url)}&connections=1&notify=off", lease=1.0)
    try:
        async with app:
            with admin(postgres_url) as connection:
                connection.execute(
                    f"alter role {role} nosuperuser connection limit 1; grant all on schema {schema_of(postgres_url)} to {role}".encode()
                )
            with pytest.raises(StoreUnavailable, match="too many connections"):
                await app.worker().__aenter__()
        with admin(postgres_url) as connection:
            assert connection.execute(f"select id from {schema_of(postgres_url)}.worker".encode()).fetchall() == []
    finally:
        with admin(postgres_url) as connection:
            connection.execute(f"reassign owned by {role} to current_user; drop owned by {role}; drop role {role}".encode())


async def test_who_may_only_submit_cannot_run_code_with_the_owners_rights(postgres_url: str) -> None:
    """A temporary view stands before the server's own tables, unless the path says otherwise."""
    await (await opened(postgres_url)).close()
    schema, role = schema_of(postgres_url), f"c_{schema_of(postgres_url)}"
    make = f"select {schema}.make_partition('history_succeeded_recent', 0, 86400000000)".encode()
    with admin(postgres_url) as connection:
        connection.execute(f"create role {role} login; grant usage on schema {schema} to {role}".encode())
        connection.execute(f"grant execute on all routines in schema {schema} to {role}".encode())
        connection.execute(make)
    try:
        with psycopg.connect(re.sub(r"//[^@/]+@", f"//{role}@", postgres_url).partition("?")[0], autocommit=True) as caller:
            caller.execute("create temporary table seen (who text); grant all on seen to public")
            body = "insert into pg_temp.seen values (current_user) returning 0::oid"
            caller.execute(f"create function pg_temp.note() returns oid language sql as $$ {body} $$".encode())
            caller.execute("create temporary view pg_inherits as select pg_temp.note() as inhrelid; grant all on pg_inherits to public")
            caller.execute(make)
            assert caller.execute("select who from pg_temp.seen").fetchall() == []
    finally:
        with admin(postgres_url) as connection:
            connection.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_a_name_of_many_bytes_can_be_a_schemas(new_postgres: NewPostgres) -> None:
    store = await opened(f"{new_postgres().url()}?schema={quote('ü' * 31)}")
    try:
        await add(store)
    finally:
        await store.close()


async def test_our_own_sessions_are_read_committed_whatever_the_users_default_is(postgres_url: str) -> None:
    """With an older view an add could not see that the task which it repeats has moved on."""
    role = f"s_{schema_of(postgres_url)}"
    with admin(postgres_url) as connection:
        connection.execute(
            f"create role {role} superuser login; alter role {role} set default_transaction_isolation = 'serializable'".encode()
        )
    store = await opened(re.sub(r"//[^@/]+@", f"//{role}@", postgres_url))
    assert isinstance(store, PostgresStore)
    try:
        async with store._opened.link() as link:
            assert await link.connection.fetchval("select current_user::text") == role
            assert await link.connection.fetchval("show transaction_isolation") == "read committed"
    finally:
        await store.close()
        with admin(postgres_url) as connection:
            connection.execute(f"drop owned by {role}; drop role {role}".encode())


async def add_until_heard(store: Store, heard: list[Hint]) -> None:
    """Submit until another one has heard of it; what is sent before it listens is missed."""
    async with asyncio.timeout(PATIENCE):
        while not heard:
            await add(store)
            await asyncio.sleep(0.02)


async def test_a_wake_up_reaches_other_processes_and_there_is_not_one_per_task(postgres_url: str) -> None:
    one, other = await opened(postgres_url), await opened(postgres_url)
    heard: list[Hint] = []
    listener = other.listen(heard.append)
    try:
        await add_until_heard(one, heard)
        heard.clear()
        for _ in range(300):
            await add(one)
        await wait_until(lambda: any(hint.kind is HintKind.DUE for hint in heard), "a wake-up", 30)
        assert len(heard) < 150
    finally:
        listener.close()
        await one.close()
        await other.close()


async def test_a_program_that_submits_and_ends_at_once_has_woken_the_others(postgres_url: str) -> None:
    other = await opened(postgres_url)
    heard: list[Hint] = []
    listener = other.listen(heard.append)
    try:
        one = await opened(postgres_url)
        await add_until_heard(one, heard)
        await one.close()
        for _ in range(3):
            heard.clear()
            brief = await opened(postgres_url)
            await add(brief)
            await brief.close()
            await wait_until(lambda: any(hint.kind is HintKind.DUE for hint in heard), "a wake-up from one that is gone", 30)
    finally:
        listener.close()
        await other.close()


@pytest.mark.parametrize("options", ["notify=off", "pooled=on"])
async def test_all_works_without_wake_ups_and_without_sessions(postgres_url: str, options: str) -> None:
    """T16, as far as our own options go: nothing listens, nothing is prepared across transactions."""
    app = App(f"{postgres_url}&{options}")
    ran: list[int] = []

    @app.task
    async def work(number: int) -> None:
        ran.append(number)

    async with app, app.worker():
        for number in range(20):
            await work.now(number=number)
        last = await work.after(0.3, number=20)
        await app.result(last, timeout=PATIENCE)
        with admin(postgres_url) as connection:
            listening = "select count(*) from pg_stat_activity where query ilike 'listen%%' and query like '%%' || %s || '%%'"
            assert connection.execute(listening, [schema_of(postgres_url)]).fetchone() == (0,)
    assert sorted(ran) == list(range(21))


async def test_a_verb_that_meets_a_connection_which_died_while_idle_is_not_disturbed(postgres_url: str) -> None:
    store = await opened(postgres_url)
    await add(store)
    with admin(postgres_url) as connection:
        ended = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'duetime' and pid <> pg_backend_pid()"
        connection.execute(ended)
    task = await add(store)
    assert await state_of(store, task) is State.PENDING
    await store.close()


async def test_a_worker_goes_on_after_the_server_was_killed_and_nothing_is_lost(new_postgres: NewPostgres) -> None:
    server = new_postgres()
    app = App(server.url())
    ran: set[int] = set()

    @app.task
    async def work(number: int) -> None:
        ran.add(number)

    async with app, app.worker():
        first = await app.submit_many([work.new(number=number).after(number / 50) for number in range(100)])
        await wait_until(lambda: len(ran) > 10, "some tasks to have run", 30)
        await asyncio.to_thread(server.kill)
        with pytest.raises(StoreUnavailable):
            await work.now(number=-1)
        await asyncio.to_thread(server.start)
        await wait_until(lambda: len(ran) >= 100, "all tasks to have run", 45)
        for task in first:
            await app.result(task, timeout=PATIENCE)


async def test_a_lane_that_another_process_made_is_found_at_once(postgres_url: str) -> None:
    one, other = await opened(postgres_url), await opened(postgres_url)
    worker = await hired(one)
    assert await worker.take("work") == []
    await add(other, collection="new")
    assert len(await worker.take("work")) == 1
    worker.lease.close()
    await one.close()
    await other.close()


async def test_a_store_whose_clock_is_set_back_hands_out_all_the_same(postgres_url: str) -> None:
    store = await opened(postgres_url)
    worker = await hired(store)
    for _ in range(3):  # so that floors are proved
        await add(store)
        assert len(await worker.take("work")) == 1
        await asyncio.sleep(0.3)
    schema = schema_of(postgres_url)
    with admin(postgres_url) as connection:
        for name, source in (("clock", "statement_timestamp()"), ("moment", "clock_timestamp()")):
            body = f"select (extract(epoch from {source} - interval '1 hour') * 1000000)::bigint"
            kind = "stable" if name == "clock" else "volatile"
            connection.execute(f"create or replace function {schema}.{name}() returns bigint language sql {kind} as $${body}$$".encode())
    await add(store)
    assert len(await worker.take("work")) == 1
    await add(store)
    assert len(await worker.take("work")) == 1
    worker.lease.close()
    await store.close()


async def test_a_worker_that_stops_tells_how_far_its_lanes_are_empty(postgres_url: str) -> None:
    """Otherwise the next one walks over all that it took, as long as an old snapshot keeps that from being removed."""
    store = await opened(postgres_url)
    worker = await hired(store)
    for _ in range(3):  # so that floors are proved
        await add(store)
        await worker.run(State.SUCCEEDED)
        await asyncio.sleep(0.3)
    before = store.now() - 5_000_000
    await store.unregister(worker.id)
    with admin(postgres_url) as connection:
        [(floor,)] = connection.execute(f"select floor from {schema_of(postgres_url)}.lane".encode()).fetchall()
    assert isinstance(floor, int)
    assert floor > before
    worker.lease.close()
    await store.close()


async def test_counts_do_not_depend_on_counting(postgres_url: str) -> None:
    """Folding what batches have added leaves the sums as they are."""
    store = await opened(postgres_url)
    worker = await hired(store)
    for _ in range(30):
        await store.add([new_task(), new_task("other", delay=3_600_000_000)])
    for _ in range(10):
        await worker.run(State.SUCCEEDED)
    before = msgspec.structs.replace(await store.counts(), now=0)
    await store.tidy()
    assert msgspec.structs.replace(await store.counts(), now=0) == before
    assert [(count.handler, count.state, count.count) for count in before.finals] == [("work", State.SUCCEEDED, 10)]
    worker.lease.close()
    await store.close()


async def test_a_claim_of_very_long_payloads_takes_what_fits_and_leaves_the_rest(postgres_url: str) -> None:
    """A thousand payloads of a megabyte are more than the server can send at once; claims of so many must not fail for ever."""
    store = await opened(postgres_url)
    worker = await hired(store)
    new_tasks = [new_task(payload=b'"' + b"x" * 900_000 + b'"', key=f"key-{number}") for number in range(45)]
    await store.add(new_tasks)
    first = await worker.claim()
    assert 0 < sum(len(task.payload) for task in first.tasks) <= 32 * 1024 * 1024
    assert len(first.tasks) < 45
    assert first.next_at is not None
    assert first.next_at <= first.now  # the worker looks again at once
    assert await store.inspect(repair=False) == []
    for task in first.tasks[:2]:  # the due entry of a task that goes back does not know the length of its payload
        await worker.end(task, State.PENDING)
    rest: list[str] = []
    for _ in range(5):
        claimed = await worker.take()
        rest += [task.id for task in claimed]
        assert {task.attempt for task in claimed} <= {1, 2}
    assert sorted(rest) == sorted({task.id for task in new_tasks} - {task.id for task in first.tasks[2:]})
    assert await store.inspect(repair=False) == []
    worker.lease.close()
    await store.close()


async def test_the_documented_privileges_suffice_for_a_connection_on_which_one_only_submits(postgres_url: str) -> None:
    store = await opened(postgres_url)
    worker = await hired(store)
    grants = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "postgres.md").read_text(), re.DOTALL)[1]
    schema, role = schema_of(postgres_url), f"c_{schema_of(postgres_url)}"
    with admin(postgres_url) as connection:
        text = grants.replace("schema duetime", f"schema {schema}").replace("duetime.", f"{schema}.").replace("duetime_caller", role)
        connection.execute(text.encode())
        connection.execute(f"select setval('{schema}.horizon', 4102444800000000)".encode())  # so that the clock was set back
    plain, keyed, rich = new_task(), new_task(key="k"), new_task("rich", timeout=3.0)
    running, failed = await add(store, "running"), await add(store, "failing")
    await worker.take_one("running")
    await worker.run(State.FAILED, "failing")
    ahead = new_task(id=new_id().replace("0", "f", 1))  # made by a clock that is wrong
    late = new_task("child", edges=(needs(plain), needs(keyed), needs(running)))
    vain = new_task("child", edges=(needs(failed),))
    after_vain = new_task("child", edges=(needs(vain),))
    try:
        with psycopg.connect(re.sub(r"//[^@/]+@", f"//{role}@", postgres_url).partition("?")[0]) as caller:
            for tasks, verdict in (
                ([plain, keyed, rich], AddVerdict.ADDED),
                ([plain, keyed, rich], AddVerdict.REPEATED),
                ([new_task(key="k", if_exists="keep")], AddVerdict.KEPT),
                ([new_task(key="k", if_exists="replace")], AddVerdict.REPLACED),
                ([late, vain, after_vain, ahead], AddVerdict.ADDED),
            ):
                with caller.transaction():
                    assert {added.verdict for added in await store.add_on(caller, tasks)} == {verdict}
        assert [await state_of(store, task) for task in (late, vain, after_vain)] == [State.BLOCKED, State.CANCELLED, State.CANCELLED]
        assert await store.inspect(repair=False) == []
    finally:
        await store.close()
        with admin(postgres_url) as connection:
            connection.execute(f"drop owned by {role}; drop role {role}".encode())


# ---- requests ----


async def test_a_task_with_its_request_takes_one_statement(postgres_url: str) -> None:
    store = await opened(postgres_url)
    assert isinstance(store, PostgresStore)
    try:
        await add(store)  # its lane is known then
        statements: list[str] = []
        async with store._opened.link() as link:
            link.connection.add_query_logger(lambda query: statements.append(query.query))
        for due_at in (None, store.now() + 60_000_000):
            task = new_task(due_at=due_at)
            [added] = await store.add_requested([(task, NamedRequest("ann", task.id, "digest", task.id))])
            assert isinstance(added, Added)
            assert added.verdict is AddVerdict.ADDED
        await asyncio.sleep(0.01)  # the driver reports statements a moment later
        assert len(statements) == 2, statements
    finally:
        await store.close()


# ---- keys ----


async def test_tasks_whose_keys_are_free_take_one_statement(postgres_url: str) -> None:
    store = await opened(postgres_url)
    assert isinstance(store, PostgresStore)
    try:
        await add(store)
        statements: list[str] = []
        async with store._opened.link() as link:
            link.connection.add_query_logger(lambda query: statements.append(query.query))
        tasks = [new_task(key=f"k{number}", if_exists=how) for number, how in enumerate(("error", "keep", "replace", "queue_one", "error"))]
        assert [(each.verdict, each.record.id) for each in await store.add(tasks[::-1])] == [(AddVerdict.ADDED, t.id) for t in tasks[::-1]]
        await asyncio.sleep(0.01)  # the driver reports statements a moment later
        assert len(statements) == 1, statements
    finally:
        await store.close()


async def test_a_process_that_meets_keys_does_not_store_what_follows_in_vain(postgres_url: str) -> None:
    store = await opened(postgres_url)
    assert isinstance(store, PostgresStore)
    try:
        holder = new_task(key="k")
        await store.add([holder])
        rejected: list[Any] = []
        async with store._opened.link() as link:
            link.connection.add_query_logger(lambda query: rejected.append(query.exception) if query.exception else None)
        for number in range(4):
            one, other = await store.add([new_task(key=f"free {number}"), new_task(key="k")])
            assert (one.verdict, other.verdict, other.record.id) == (AddVerdict.ADDED, AddVerdict.DUPLICATE, holder.id)
        await asyncio.sleep(0.01)  # the driver reports statements a moment later
        assert len(rejected) == 1, rejected
        for number in range(CAREFUL_CALLS):
            await store.add([new_task(key=f"others {number}")])
        assert store._keys.are_probably_free([new_task(key="k")])
    finally:
        await store.close()


async def test_a_key_by_another_name_of_its_handler_is_met_by_a_process_that_does_not_know_the_name(postgres_url: str) -> None:
    store = await opened(postgres_url)
    try:
        await store.declare([Declaration(name="work", aliases=("old",))])
        [first] = await store.add([new_task(handler="old", key="k")])
        [second] = await store.add([new_task(handler="work", key="k")])
        assert (second.verdict, second.record.id) == (AddVerdict.DUPLICATE, first.record.id)
    finally:
        await store.close()


async def test_a_request_that_is_pruned_while_it_is_repeated_is_stored_anew(postgres_url: str) -> None:
    class Pruning:
        """Prunes after the insert has met the request and before it is read."""

        def __init__(self, run: Runner) -> None:
            self._run = run
            self.pruned = 0

        async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Sequence[Any]]:
            assert isinstance(store, PostgresStore)
            if sql == store._sql.requests_by_key and not self.pruned:
                self.pruned = await store.prune_requests(store.now() + 60_000_000, 10)
            return await self._run.rows(sql, parameters)

    store = await opened(postgres_url)
    assert isinstance(store, PostgresStore)
    try:
        first, again = new_task(), new_task()
        await store.add_requested([(first, NamedRequest("ann", "k", "digest", first.id))])
        run, request = Pruning(store._opened), NamedRequest("ann", "k", "digest", again.id)
        assert await note(run, store._sql, [request], None) == [request]
        assert run.pruned == 1
    finally:
        await store.close()


@pytest.mark.parametrize("closing", [True, False])
async def test_a_claim_goes_by_what_it_knew_when_it_chose(postgres_url: str, monkeypatch: pytest.MonkeyPatch, closing: bool) -> None:
    """While it waits for the server, a gate is closed, or a limit declared, and another claim of the process learns of it."""
    store = await opened(postgres_url)
    try:
        assert isinstance(store, PostgresStore)
        one, other = await hired(store, "one"), await hired(store, "other")
        await store.add([new_task(payload=b'{"user": 7}') for _ in range(4)])
        await other.end(await other.take_one(), State.SUCCEEDED)
        database = store._claims._database
        once = database.once

        async def meanwhile(job: Any) -> Any:
            monkeypatch.undo()
            if closing:
                await store.put_gate(Gate(handler="work", action=GateAction.PAUSE))
            else:
                await store.declare_counted(["work"], [CountedLimit(name="per-user", running=1, uses={"work": 1}, by="user")])
            learnt.extend(await other.take(total=1))
            return await once(job)

        learnt: list[ClaimedTask] = []
        monkeypatch.setattr(database, "once", meanwhile)
        taken = await one.take(total=3)
        assert (len(learnt), len(taken)) == ((0, 0) if closing else (1, 0))
    finally:
        await store.close()
