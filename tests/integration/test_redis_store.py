"""What only the store on Valkey or Redis can suffer: its server dies, forgets scripts, runs out of memory, loses replies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from duetime import App
from duetime.clock import SECOND, ManualClock
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.ids import new_id
from duetime.model.gate import Gate, GateAction
from duetime.model.merging import Pace
from duetime.model.outcome import SettleVerdict
from duetime.model.task import State
from duetime.store import Store
from duetime.store.open import store_from_url
from duetime.store.redis.store import RedisStore
from duetime.store.values import AddVerdict, NewWorker
from tests.conformance.build import PLENTY, Worker, add, ended, get, new_task, state_of
from tests.servers.brokers import ValkeyServer
from tests.servers.proxy import Proxy, Side


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def admin(server: ValkeyServer) -> Iterator[Redis]:
    with Redis(port=server.port) as client:
        yield client


def url_of(port: int, folder: Path, control: str = "control") -> str:
    return f"redis://127.0.0.1:{port}/0?control=sqlite:///{folder / control}.db&timeout=5"


@asynccontextmanager
async def opened(url: str, clock: ManualClock | None = None) -> AsyncIterator[RedisStore]:
    store = store_from_url(url, clock=clock)
    assert isinstance(store, RedisStore)
    await store.open()
    yield store
    await store.close()


@asynccontextmanager
async def hired(store: Store) -> AsyncIterator[Worker]:
    id = f"worker-{new_id()}"
    lease = await store.register(NewWorker(id=id, host="here", pid=os.getpid(), slots={"work": 100}))
    yield Worker(store, id, lease)
    lease.close()
    await store.unregister(id)


@pytest.fixture
async def store(server: ValkeyServer, tmp_path: Path) -> AsyncIterator[RedisStore]:
    async with opened(url_of(server.port, tmp_path)) as store:
        yield store


@pytest.fixture
async def worker(store: RedisStore) -> AsyncIterator[Worker]:
    async with hired(store) as worker:
        yield worker


# ---- a server that dies ----


async def repeated(store: RedisStore) -> None:
    """Use the store until it has noticed that the server is another one: what was under way fails once."""
    with contextlib.suppress(StoreUnavailable):
        await store.ping()
    await store.ping()


async def test_a_killed_server_forgets_nothing_and_hands_nothing_out_until_the_leases_of_before_are_over(
    server: ValkeyServer, tmp_path: Path
) -> None:
    clock = ManualClock()
    async with opened(url_of(server.port, tmp_path), clock) as store, hired(store) as worker:
        tasks = [await add(store) for _ in range(3)]
        await worker.run(State.SUCCEEDED)
        running = (await worker.take(wants={"work": 1}))[0]
        server.kill()
        server.start()
        await repeated(store)
        states = sorted([(await get(store, task)).state for task in tasks])
        assert states == [State.PENDING, State.RUNNING, State.SUCCEEDED]
        # the server may have lost its last claims, and those who have them run on until their leases are over
        claim = await worker.claim()
        assert claim.tasks == []
        assert claim.next_at is not None
        assert claim.next_at > clock.now() + 15 * SECOND
        assert await worker.end(running, State.SUCCEEDED) is SettleVerdict.ACCEPTED  # who knows what runs may say how it ended
        clock.set(claim.next_at)
        [later] = await worker.take()
        assert later.fence > running.fence
        assert later.epoch > 0


async def test_a_server_that_flushes_each_write_goes_on_at_once(tmp_path: Path) -> None:
    with ValkeyServer("--appendfsync", "always") as server:
        async with opened(url_of(server.port, tmp_path)) as store, hired(store) as worker:
            record = await add(store)
            server.kill()
            server.start()
            await repeated(store)
            assert (await worker.take_one()).id == record.id


async def test_a_server_that_is_away_is_unavailable_and_back_when_it_is_back(
    store: RedisStore, worker: Worker, server: ValkeyServer
) -> None:
    record = await add(store, delay=3_600 * SECOND)
    server.kill()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await store.get([record.id])
    with pytest.raises(StoreUnavailable):
        worker.lease.renew()
    server.start()
    assert (await get(store, record)).id == record.id
    assert worker.lease.renew().known


async def test_scripts_that_the_server_has_forgotten_are_sent_again(store: RedisStore, worker: Worker, admin: Redis) -> None:
    record = await add(store)
    admin.script_flush()
    [claimed] = await worker.take()
    admin.script_flush()
    assert [attempt.id for attempt in worker.lease.renew().attempts] == [record.id]
    admin.script_flush()
    assert await worker.end(claimed, State.SUCCEEDED) is SettleVerdict.ACCEPTED
    admin.script_flush()
    assert await state_of(store, record) is State.SUCCEEDED


# ---- memory ----


async def test_without_memory_tasks_are_refused_and_ends_are_not(store: RedisStore, worker: Worker, admin: Redis) -> None:
    for _ in range(20):
        await add(store)
    claimed = await worker.take()
    admin.config_set("maxmemory", 1)
    task = new_task()
    with pytest.raises(StoreUnavailable, match="no memory left"):
        await store.add([task])
    assert await store.get([task.id]) == [None]
    assert await worker.end(claimed[0], State.SUCCEEDED) is SettleVerdict.ACCEPTED
    assert await worker.end(claimed[1], State.PENDING) is SettleVerdict.ACCEPTED
    assert await store.cancel([claimed[1].id, claimed[2].id]) == ["cancelled", "cancelling"]
    assert worker.lease.renew().known
    admin.config_set("maxmemory", 0)
    assert (await store.add([task]))[0].verdict is AddVerdict.ADDED


async def test_a_server_that_would_remove_tasks_is_refused(server: ValkeyServer, admin: Redis, tmp_path: Path) -> None:
    admin.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreUnavailable, match="noeviction"):
        await store_from_url(url_of(server.port, tmp_path)).open()


async def test_nothing_is_left_of_what_was_deleted(store: RedisStore, worker: Worker, admin: Redis) -> None:
    parent = await add(store, key="k", expires_in=3_600 * SECOND)
    await add(store, "child", edges=(), key="other")
    await worker.run(State.PENDING)
    await worker.run(State.FAILED)
    await store.delete([parent.id, *[task.id for task in (await store.upcoming("child", 10))]])
    kept = {b"{duetime}:lanes", b"{duetime}:tallies", b"{duetime}:workers", b"{duetime}:meta"}
    assert set(admin.scan_iter()) == kept
    assert set(admin.hvals("{duetime}:tallies")) == {b"0"}


# ---- lost replies ----


@pytest.mark.covers("RDB.1")
async def test_a_lost_reply_changes_nothing_when_the_call_is_repeated(server: ValkeyServer, tmp_path: Path) -> None:
    with Proxy(server.port) as proxy:
        async with opened(url_of(proxy.port, tmp_path)) as store, hired(store) as worker:
            await store.add([new_task("other")])  # from here on the server knows the scripts
            await worker.run(State.SUCCEEDED, "other")
            task = new_task()
            proxy.cut_after(0, Side.SERVER)
            with pytest.raises(StoreUnavailable):
                await store.add([task])
            assert (await store.add([task]))[0].verdict is AddVerdict.REPEATED

            assert await worker.take("nothing") == []
            proxy.cut_after(0, Side.SERVER)
            with pytest.raises(StoreUnavailable):
                await worker.claim()
            assert await worker.take() == []
            [attempt] = await store.attempts_of(worker.id)  # so a worker learns what it was given
            assert (attempt.id, attempt.attempt) == (task.id, 1)

            [running] = await store.running_tasks(worker.id)
            proxy.cut_after(0, Side.SERVER)
            with pytest.raises(StoreUnavailable):
                await worker.end(running, State.SUCCEEDED)
            assert await worker.end(running, State.SUCCEEDED) is SettleVerdict.ALREADY


# ---- round trips ----


async def test_a_claim_of_several_lanes_is_one_round_trip_if_all_that_is_due_fits(store: RedisStore, worker: Worker, admin: Redis) -> None:
    def scripts() -> int:
        calls: int = admin.info("commandstats")["cmdstat_evalsha"]["calls"]
        return calls

    async def claimed(total: int) -> tuple[int, list[int]]:
        before = scripts()
        tasks = await worker.take(wants={"work": 10, "other": 10}, total=total)
        return scripts() - before, [task.priority for task in tasks]

    for priority in (3, 9, 5):
        await add(store, priority=priority)
    await add(store, "other", priority=9)
    await claimed(total=1)  # from here on the server knows the script
    assert await claimed(total=10) == (1, [9, 5, 3])
    for priority in (3, 9, 5):
        await add(store, priority=priority)
    assert await claimed(total=2) == (2, [9, 5])
    assert await claimed(total=2) == (1, [3])


# ---- control ----


async def test_a_second_control_is_refused(store: RedisStore, server: ValkeyServer, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="belongs to another control"):
        await store_from_url(url_of(server.port, tmp_path, "other")).open()
    async with opened(url_of(server.port, tmp_path)) as other:
        await other.ping()


async def test_tasks_of_a_callers_transaction_come_with_its_commit(store: RedisStore, worker: Worker, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "control.db", isolation_level=None)
    connection.execute("begin")
    task = new_task(due_at=store.now() + 3_600 * SECOND)
    await store.add_on(connection, [task])
    assert await store.get([task.id]) == [None]
    connection.execute("commit")
    connection.close()
    assert await state_of(store, task.id) is State.PENDING  # wherever it is by now
    assert await store.expire(PLENTY) == 0  # the sweeper's round moves it
    assert await store.move_ledger() == 0
    assert [record.id for record in await store.upcoming("work", 10)] == [task.id]
    assert await store.cancel([task.id]) == ["cancelled"]


async def test_a_move_that_broke_off_is_repeated_without_a_second_task(store: RedisStore, worker: Worker, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "control.db", isolation_level=None)
    connection.execute("begin")
    task = new_task()
    await store.add_on(connection, [task])
    connection.execute("commit")
    connection.close()
    await store.add([task])  # a mover got so far
    await worker.run(State.SUCCEEDED)
    assert await store.move_ledger() == 1
    assert await worker.take() == []
    assert await state_of(store, task.id) is State.SUCCEEDED


async def test_a_task_of_the_ledger_can_be_cancelled_before_it_is_moved(store: RedisStore, worker: Worker, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "control.db", isolation_level=None)
    connection.execute("begin")
    task = new_task()
    await store.add_on(connection, [task])
    connection.execute("commit")
    connection.close()
    assert await store.cancel([task.id, "01a1f21c-0000-7000-8000-000000000000"]) == ["cancelled", "unknown"]
    assert await worker.take() == []


async def test_a_gate_whose_copy_is_missing_is_copied_by_the_next_tidying(store: RedisStore, worker: Worker, admin: Redis) -> None:
    await add(store)
    await store.put_gate(Gate(handler="work", action=GateAction.PAUSE))
    admin.hset("{duetime}:meta", "gates", 0)  # as if its process had died before it could copy it
    admin.hdel("{duetime}:meta", "mirror")
    await store.tidy()
    assert await worker.take() == []


# ---- damage ----


async def test_a_task_that_stands_nowhere_is_found_and_put_back(store: RedisStore, worker: Worker, admin: Redis) -> None:
    lost, doubled, keyed = await add(store), await add(store), await add(store, key="k")
    admin.zrem("{duetime}:due:5work\0", lost.id)
    admin.zadd("{duetime}:due:5other\0", {doubled.id: 1})
    admin.hset("{duetime}:lanes", "5other\0", 1)
    admin.zadd("{duetime}:ended:failed", {doubled.id: 1})
    admin.hdel("{duetime}:holders", "work\0k")
    found = await store.inspect(repair=True)
    assert {problem.subject for problem in found} == {lost.id, doubled.id, keyed.id}
    assert all(problem.repaired for problem in found)
    assert await store.inspect(repair=False) == []
    assert {task.id for task in await worker.take()} == {lost.id, doubled.id, keyed.id}


async def test_an_entry_without_a_task_keeps_no_other_one_waiting(store: RedisStore, worker: Worker, admin: Redis) -> None:
    admin.zadd("{duetime}:due:5work\0", {"01a1f21c-0000-7000-8000-000000000000": 1})
    record = await add(store)
    assert [task.id for task in await worker.take()] == [record.id]
    assert await store.inspect(repair=False) == []


async def test_one_end_that_is_told_twice_in_a_call_counts_once(store: RedisStore, worker: Worker) -> None:
    records = [await add(store), await add(store, key="k")]
    ends = [ended(task, State.SUCCEEDED, at=store.now()) for task in await worker.take() for _ in range(2)]
    assert await store.settle(worker.id, ends) == [SettleVerdict.ACCEPTED, SettleVerdict.ALREADY] * 2
    assert [(await get(store, record)).state for record in records] == [State.SUCCEEDED] * 2
    assert await store.inspect(repair=False) == []


async def test_one_task_that_is_named_twice_in_a_call_is_stored_once(store: RedisStore) -> None:
    task = new_task()
    assert [added.verdict for added in await store.add([task, new_task(), task])] == [
        AddVerdict.ADDED,
        AddVerdict.ADDED,
        AddVerdict.REPEATED,
    ]
    assert await store.inspect(repair=False) == []


# ---- what it cannot do ----


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"key": "k", "if_exists": "queue_one"}, "queue_one"),
        ({"key": "k", "pace": Pace(throttle=SECOND)}, "throttle"),
    ],
)
async def test_what_it_cannot_do_is_refused_before_anything_is_stored(store: RedisStore, options: dict[str, Any], what: str) -> None:
    plain = new_task()
    with pytest.raises(InvalidValue, match=what):
        await store.add([plain, new_task(**options)])
    assert await store.get([plain.id]) == [None]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://h/0?eviction=no", "takes the options control, durable, prefix, timeout, got eviction"),
        ("redis://h/first", "number of a database"),
        ("redis://h/0?prefix=a{b}", "letters, digits"),
        ("redis://h/0?timeout=0", "number of seconds"),
        ("redis://h/0?control=redis://h/1", "control in a redis URL is a SQL store"),
        ("redis://h/0?durable=yes", "durable in a redis URL is memory, disk, replica, both, got 'yes'"),
        ("redis://h/0?durable=sql", "durable=sql is not built: .* connection="),
        ("redis://h:70000/0", "'h:70000' is no host with a port"),
        ("redis://h,i/0", "it names one server; for several write redis[+]sentinel://.* or redis[+]cluster://"),
        ("redis+sentinel://h,i", "it names no service"),
        ("redis+sentinel://h,,i/main", "'' is no host with a port"),
        ("redis+sentinels://h/main", "redis://…, redis[+]sentinel://… or redis[+]cluster://…, got redis[+]sentinels://…"),
        ("redis+cluster://h/1", "a cluster has only the database 0; use prefix="),
        ("redis+cluster://h?sentinel_user=u", "takes the options control, durable, prefix, timeout, got sentinel_user"),
    ],
)
def test_a_wrong_url_says_what_is_wrong(url: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        store_from_url(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rediss://ann:sesame@h:7000/2", "rediss://ann:…@h:7000/2"),
        ("redis+sentinel://:a%40b@h,[::1]:7/main?prefix=x", "redis+sentinel://:…@h:26379,[::1]:7/main/0?prefix=x"),
        ("rediss+cluster://h,i:7000,h?", "rediss+cluster://h:6379,i:7000"),
    ],
)
def test_a_url_is_shown_whole_and_without_its_password(url: str, shown: str) -> None:
    assert store_from_url(f"{url}{'&' if '?' in url else '?'}control=sqlite:///:memory:").url == shown


# ---- all together ----


async def test_an_app_runs_tasks_and_schedules_on_it(server: ValkeyServer, tmp_path: Path) -> None:
    app = App(url_of(server.port, tmp_path))
    ran: list[int] = []
    often = asyncio.Event()

    @app.task
    async def double(number: int) -> int:
        ran.append(number)
        return 2 * number

    @app.schedule(every=1)
    async def beat() -> None:
        often.set()

    async with app, app.worker():
        task = await double.options(key="k", priority=9).after(timedelta(milliseconds=20), number=21)
        assert await app.result(task, timeout=30) == 42
        await asyncio.wait_for(often.wait(), 30)
        assert (await app.get(task.id)).state is State.SUCCEEDED
    assert ran == [21]
