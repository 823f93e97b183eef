"""The server and the way to it: cut connections, an old snapshot, a clock that is set, a fail-over."""

import asyncio
import contextlib
import json
import random
from typing import Any

import psycopg
import pytest

from duetime.clock import SECOND
from duetime.errors import StoreUnavailable
from duetime.model.outcome import SettleVerdict
from duetime.model.task import State
from duetime.store import Store
from duetime.store.postgres.store import PostgresStore
from duetime.store.values import Hint
from tests.chaos.fleet import Fleet, until
from tests.chaos.ground import HOUR, Ground
from tests.chaos.stepping import HalfWay, half_way, hire, look, opened
from tests.conformance.build import Worker, add, ended, get, needs, new_task
from tests.servers.fixtures import NewPostgres
from tests.servers.proxy import Cut, Side

CUTS = 100


async def test_t9_a_hundred_connections_cut_anywhere_lose_nothing(stormy: Fleet, ground: Ground) -> None:
    """T9: at random bytes of the protocol, from either side, by FIN and RST; every tenth time all vanish without a word."""
    fleet, chance = stormy, random.Random(random.randrange(1 << 32))
    await fleet.start("--lease", "5s")
    cut = 0
    while cut < CUTS:
        await fleet.submit(fleet.new(chance.choice(["quick", "threaded", "stumbles", "bulk"])) for _ in range(4))
        if cut % 10 == 9:
            ground.proxy.swallow(chance.choice([(Side.CLIENT,), (Side.SERVER,), (Side.CLIENT, Side.SERVER)]))
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            ground.proxy.heal()
        else:
            done = ground.proxy.cut_after(chance.randrange(3_000), chance.choice(list(Side)), chance.choice(list(Cut)))
            while not done.is_set():
                await fleet.submit([fleet.new("bulk")])
        cut += 1
    assert fleet.alive, fleet.workers[0].log()
    await fleet.finish()
    assert set((await fleet.states()).values()) == {"succeeded"}
    await fleet.check()


async def test_an_outage_longer_than_the_lease_is_no_crash_of_what_ran(stormy: Fleet, ground: Ground) -> None:
    """A task that was alone in its worker, three times: counted as deaths of its process they would quarantine it."""
    fleet = stormy
    workers = await fleet.start_some(2, "--lease", "3s")
    fleet.hold()
    task = await fleet.one("quick", held=True)
    for _ in range(3):
        await until("it runs", lambda: any(attempt.end is None for attempt in fleet.attempts(task)))
        await ground.crash(fleet.journal, down=3.5)
    fleet.let_go()
    assert fleet.alive == workers, "they have outlived their leases"
    await fleet.finish()
    record = await get(fleet.store, task.id)
    assert (record.state, record.crashes, record.tries) == (State.SUCCEEDED, 0, 0)
    await fleet.check()


# ---- an old snapshot ----

TASKS = 15_000
BATCH = 500


async def pages(store: PostgresStore, transaction: HalfWay, worker: str, start: int) -> int:
    """Count the pages that a claim touches which begins to look at a position; nothing of it stays."""
    [lane] = store._lanes.by_handler["work"]
    parameters = [
        None,
        worker,
        999_999,
        [lane.id],
        [start],
        [start],
        [10],
        10,
        [],
        None,
        store._claims._gates.version,
        store._lanes.version,
    ]
    await transaction.begin()
    [[plan]] = await transaction.rows(f"explain (analyze, buffers, format json) {store._sql.claim}", *parameters, "00000001", 0)
    await transaction.rollback()
    node: dict[str, Any] = json.loads(plan)[0]["Plan"]
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


@pytest.mark.parametrize("who", ["one who only reads", "one who has written"])
async def test_t15_a_snapshot_held_open_makes_claims_no_slower(postgres_url: str, who: str) -> None:
    """T15: nothing that the drain deletes can be removed meanwhile; claims pass by all of it, because they know where to begin."""
    async with opened(postgres_url) as store, half_way(postgres_url, begun=False) as old, half_way(postgres_url, begun=False) as trial:
        worker = await hire(store, lease=60.0)
        for _ in range(TASKS // 1_000 - 1):
            await store.add([new_task() for _ in range(1_000)])
        # a floor stays 20 ms behind what is left; a quick machine adds thousands in that time, and a claim would pass none of them by
        added_at = store.now()
        await until("the last ones stand far behind the others", lambda: store.now() > added_at + SECOND // 10)
        await store.add([new_task() for _ in range(1_000)])
        await worker.claim(total=1)
        [lane] = store._lanes.by_handler["work"]
        for _ in range(2):  # the first time a connection also reads what it needs to know of the tables
            before = await pages(store, trial, worker.id, lane.floor)
        await old.rows("begin isolation level repeatable read")
        [[seen]] = await old.rows('select count(*) from "%s".due')
        if who == "one who has written":
            await old.rows("create temporary table orders (id integer) on commit drop")
        drained = 0
        while drained < TASKS - BATCH:
            claimed = await worker.take(total=BATCH)
            await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=store.now()) for task in claimed])
            drained += len(claimed)

        async def passes_by() -> bool:
            await look(store, lane)
            return await pages(store, trial, worker.id, lane.floor) < before + 60  # of the last thousand a half is gone

        await pass_numbers(trial)
        await until("a claim passes by what is gone", passes_by)
        assert await pages(store, trial, worker.id, 0) > before + 150, "what it would be if it began at the beginning"
        assert await old.rows('select count(*) from "%s".due') == [(seen,)], "the snapshot is still held"


# ---- wake-ups ----


async def test_a_full_queue_of_wake_ups_keeps_nothing_from_being_added(stormy: Fleet, ground: Ground) -> None:
    """Somebody listens and leaves a transaction open for very long: the server keeps all that it has not heard, until there is no room."""
    await ground.query("alter system set max_notify_queue_pages = 64")
    await ground.crash(stormy.journal)
    async with half_way(ground.look_url, begun=False) as listener, opened(ground.look_url) as store:
        await listener.rows("listen elsewhere")
        await listener.begin()
        await listener.rows("select 1")

        async def full() -> bool:
            try:
                await ground.query("select count(pg_notify('elsewhere', n || repeat('x', 7000))) from generate_series(1, 5) as n")
            except psycopg.errors.ProgramLimitExceeded:
                return True
            return False

        await until("there is no room", full)
        heard: list[Hint] = []
        subscription = store.listen(heard.append)
        for number in range(1, 4):
            await store.add([new_task()])
            await until("this process hears of it", lambda number=number: len(heard) >= number)  # type: ignore[misc]
        subscription.close()
        assert [lane.due for lane in (await store.counts()).lanes] == [3]


# ---- the server's clock ----


async def prove_floors(store: Store, worker: Worker, handler: str = "work") -> None:
    """Claim until it is proved how far the lane is empty, and publish that."""
    for _ in range(4):
        await add(store, handler)
        await worker.run(State.SUCCEEDED, handler)
        await asyncio.sleep(0.3)  # three looks prove a floor
        await worker.claim(handler)
    await store.tidy()


async def test_the_stores_clock_is_set_forward_and_back_and_claims_go_on(stormy: Fleet, ground: Ground) -> None:
    """Positions and floors of the hour ahead must neither start anything early nor hide what is added after the step back."""
    async with opened(ground.look_url) as store:
        worker = await hire(store, lease=60.0)
        await ground.step_clock(HOUR, stormy.journal)
        await prove_floors(store, worker)
        assert (await ground.query("select floor > (extract(epoch from now()) * 1000000)::bigint from chaos.lane")) == [(True,)]
        later = await add(store)  # due an hour later once the clock is right again
        await ground.step_clock(0, stormy.journal)
        task = await add(store)
        taken: list[str] = []

        async def took_it() -> bool:
            taken.extend(each.id for each in await worker.take())  # the first claim may only hear that the clock was set back
            return taken == [task.id]

        await until("it was claimed", took_it)
        async with opened(ground.look_url) as newcomer:
            other = await hire(newcomer, lease=60.0)
            task = await add(newcomer)
            assert [each.id for each in await other.take()] == [task.id], "a process that starts now knows only what was published"
        assert (await get(store, later)).state is State.PENDING
        await ground.step_clock(HOUR, stormy.journal)
        assert (await worker.take_one()).id == later.id


@pytest.mark.parametrize("who", ["one who remembers floors", "one who reads what was published"])
async def test_a_clock_that_goes_back_and_forth_between_two_claims_hides_nothing(stormy: Fleet, ground: Ground, who: str) -> None:
    """Nobody who claims sees that the clock was back; only who adds does, and must tell."""
    async with opened(ground.look_url) as store, opened(ground.look_url) as client:
        worker = await hire(store, lease=60.0)
        await ground.step_clock(HOUR, stormy.journal)
        await prove_floors(store, worker)
        await ground.step_clock(0, stormy.journal)
        task = await add(client)
        await ground.step_clock(HOUR + 5, stormy.journal)
        if who == "one who remembers floors":
            assert [each.id for each in await worker.take()] == [task.id]
            return
        async with opened(ground.look_url) as newcomer:
            assert [lane.due for lane in (await newcomer.counts()).lanes] == [1]
            assert await newcomer.inspect(repair=False) == []
            assert [each.id for each in await (await hire(newcomer, lease=60.0)).take()] == [task.id]


async def test_a_child_that_an_expired_parent_frees_while_the_clock_is_back_is_found(stormy: Fleet, ground: Ground) -> None:
    """The claim that ends the parent writes the child's due entry: it must report the set-back too."""
    async with opened(ground.look_url) as store, opened(ground.look_url) as other:
        worker, second = await hire(store, lease=60.0), await hire(other, lease=60.0)
        parent = await add(store, expires_in=1)
        child = await add(store, "other", edges=(needs(parent, end=True),))
        await ground.step_clock(HOUR, stormy.journal)
        await prove_floors(store, worker, "other")
        await ground.step_clock(1, stormy.journal)
        assert await second.take("work") == []
        assert (await get(store, parent)).state is State.EXPIRED
        await ground.step_clock(HOUR + 5, stormy.journal)
        assert [each.id for each in await worker.take("other")] == [child.id]


async def test_a_look_whose_reply_comes_after_the_clock_was_set_back_proves_nothing(
    stormy: Fleet, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another call of the same process hears of it first; what the look saw would hide tasks until the old time is reached again."""
    async with opened(ground.look_url) as store:
        worker = await hire(store, lease=60.0)
        await ground.step_clock(HOUR, stormy.journal)
        await prove_floors(store, worker)
        send, here, go_on = store._claims._database.once, asyncio.Event(), asyncio.Event()

        async def slowly(call: Any) -> Any:
            reply = await send(call)
            here.set()
            await go_on.wait()
            return reply

        await asyncio.sleep(0.3)  # the next claim looks
        with monkeypatch.context() as patched:
            patched.setattr(store._claims._database, "once", slowly)
            claim = asyncio.create_task(worker.claim())
            await here.wait()
        await ground.step_clock(0, stormy.journal)
        await add(store, "another")  # tells of the set-back
        await add(store, "third")  # makes its lane, and so hears of it
        go_on.set()
        assert (await claim).tasks == []
        for _ in range(3):
            await asyncio.sleep(0.3)
            assert await worker.take() == []
        task = await add(store)
        assert [each.id for each in await worker.take()] == [task.id]


# ---- transactions that take their time ----


async def test_a_late_commit_on_a_quiet_server_is_found(postgres_url: str) -> None:
    """Nothing else ends meanwhile, so to the server's snapshots the number of the open transaction looks as if nobody had it."""
    async with opened(postgres_url) as store, half_way(postgres_url, begun=False) as caller:
        worker = await hire(store, lease=60.0)
        await prove_floors(store, worker)
        await caller.begin()
        [added] = await store.add_on(caller._connection, [new_task()])
        await looks_find_nothing(worker)
        await caller.commit()
        assert [each.id for each in await worker.take()] == [added.record.id]


async def test_a_late_commit_is_found_although_there_is_always_more_to_do(postgres_url: str) -> None:
    """Claims that come back full begin where the last one ended; what stands before that must not wait until they come back short."""
    async with opened(postgres_url) as store, half_way(postgres_url, begun=False) as caller:
        worker = await hire(store, lease=60.0)
        await prove_floors(store, worker)
        await caller.begin()
        [late] = await store.add_on(caller._connection, [new_task()])
        await store.add([new_task() for _ in range(10_000)])
        while not (lane := store._lanes.by_handler["work"][0]).flowing or lane.hint < late.record.due_at:
            assert len(await worker.take(total=10)) == 10
        await caller.commit()

        async def comes() -> bool:
            claimed = await worker.take(total=10)
            assert len(claimed) == 10, "there is more to do"
            await asyncio.sleep(0.02)
            return late.record.id in {each.id for each in claimed}

        await until("the late one is claimed", comes)


async def pass_numbers(other: HalfWay) -> None:
    """Let so many transactions pass that looks no longer wait for one that is older and holds no entry."""
    for _ in range(150):
        await other.rows("select pg_current_xact_id()")


async def looks_find_nothing(worker: Worker) -> None:
    for _ in range(4):
        await asyncio.sleep(0.3)
        assert await worker.take() == []


@pytest.mark.parametrize("when", ["before the others", "after the others"])
async def test_a_late_commit_is_found_although_looks_do_not_wait_for_strangers(postgres_url: str, when: str) -> None:
    """The transaction is old either way; it holds floors back from the moment at which it adds something, and until its end."""
    async with (
        opened(postgres_url) as store,
        half_way(postgres_url, begun=False) as caller,
        half_way(postgres_url, begun=False) as other,
    ):
        worker = await hire(store, lease=60.0)
        await prove_floors(store, worker)
        [lane] = store._lanes.by_handler["work"]
        await caller.begin()
        await pass_numbers(caller)  # one, as they are all of the same transaction
        if when == "before the others":
            [added] = await store.add_on(caller._connection, [new_task()])
        await pass_numbers(other)
        before = lane.floor
        await looks_find_nothing(worker)
        assert (lane.floor > before + SECOND // 2) is (when == "after the others")
        if when == "after the others":
            [added] = await store.add_on(caller._connection, [new_task()])
            await looks_find_nothing(worker)
        await caller.commit()
        assert [each.id for each in await worker.take()] == [added.record.id]


async def test_a_prepared_transaction_is_found_when_it_commits(new_postgres: NewPostgres) -> None:
    """It belongs to no connection, and looks must wait for it all the same."""
    url = f"{new_postgres(settings={'max_prepared_transactions': '1'}).url()}?notify=off"  # the server prepares none that notifies
    async with opened(url) as store, half_way(url, begun=False) as caller:
        worker = await hire(store, lease=60.0)
        await prove_floors(store, worker)
        await caller.rows("begin")
        [added] = await store.add_on(caller._connection, [new_task()])
        await caller.rows("prepare transaction 'later'")
        await pass_numbers(caller)
        await looks_find_nothing(worker)
        await caller.rows("commit prepared 'later'")
        assert [each.id for each in await worker.take()] == [added.record.id]


async def test_what_goes_back_is_found_although_it_waited_between_reading_the_clock_and_its_position(postgres_url: str) -> None:
    """A settle that waits for its claim has no entry yet that anybody could see; its position will be from before the wait."""
    async with (
        opened(postgres_url) as store,
        opened(postgres_url) as elsewhere,
        half_way(postgres_url, begun=False) as holder,
        half_way(postgres_url, begun=False) as other,
    ):
        worker, second = await hire(store, lease=60.0), await hire(elsewhere, lease=60.0)
        await prove_floors(elsewhere, second)
        task = await add(store)
        claimed = await worker.take_one()
        await holder.begin()
        await holder.lock_claims(worker.id)
        settling = asyncio.create_task(worker.end(claimed, State.PENDING))
        await holder.someone_waits()
        await pass_numbers(other)
        await looks_find_nothing(second)
        await holder.commit()
        assert await settling is SettleVerdict.ACCEPTED
        assert [each.id for each in await second.take()] == [task.id]


# ---- fail-over ----


async def test_after_a_fail_over_nothing_overlaps_although_claims_are_gone(stormy: Fleet, ground: Ground) -> None:
    """Claims, tasks and outcomes that the replica never heard of are gone; what ran without a claim is stopped before it runs again."""
    fleet = stormy
    workers = await fleet.start_some(2, "--lease", "2s", chaos_slots=4)
    await fleet.submit(fleet.new("bulk") for _ in range(200))
    replica = await ground.follow()
    fleet.hold()
    waiting = await fleet.submit(fleet.new(handler, held=True).after(HOUR) for handler in ["quick"] * 4 + ["threaded", "boxed"])
    await ground.sever(replica, fleet.journal)
    await fleet.make_due(*waiting)
    await until("they run by claims that the replica does not know", lambda: fleet.started(*waiting))
    fresh = await fleet.submit(fleet.new("quick") for _ in range(3))
    await ground.switch(replica, fleet.journal)
    await fleet.look_at(ground.look_url)
    await fleet.make_due(*waiting)  # the replica has not heard of that either
    fleet.let_go()
    await fleet.submit(fleet.new("quick") for _ in range(10))
    await fleet.finish()
    history = await fleet.check()
    assert all(len(history.attempts[task.id]) > 1 for task in waiting), "they had to run again"
    assert history.gone(await fleet.states()) <= {task.id for task in fresh}
    assert any(worker.running for worker in workers)


@pytest.mark.parametrize("pooled", ["off", "on"], ids=["directly", "behind a pooler"])
@pytest.mark.parametrize("rival", [False, True], ids=["alone", "after somebody else has made it again"])
async def test_a_lane_that_the_replica_never_heard_of_gets_tasks_all_the_same(
    stormy: Fleet, ground: Ground, rival: bool, pooled: str
) -> None:
    """Who adds to a lane knows only its number, which means nothing on the server that has taken over, or something else."""
    submitted = new_task(collection="late")
    async with opened(f"{ground.url}&pooled={pooled}") as store:
        await add(store)
        replica = await ground.follow()
        await ground.sever(replica, stormy.journal)
        await add(store, collection="late")
        await ground.switch(replica, stormy.journal)
        assert await ground.query("select count(*) from chaos.lane") == [(1,)], "or this shows nothing"
        async with opened(ground.look_url) as other:
            expected: dict[str, str | None] = {submitted.id: "late"}
            if rival:
                for collection in ("early", "late"):
                    expected[(await add(other, collection=collection)).id] = collection

            async def stored() -> bool:
                with contextlib.suppress(StoreUnavailable):
                    await store.add([submitted])
                    return True
                return False

            await until("it was added", stored)
            worker = await hire(other, lease=1.0)
            taken: dict[str, str | None] = {}

            async def took_them() -> bool:
                taken.update({each.id: each.collection for each in await worker.take()})
                return expected.keys() <= taken.keys()

            await until("all are claimed", took_them)
            assert expected.items() <= taken.items()
            assert await other.inspect(repair=False) == []


async def test_behind_a_pooler_a_fail_over_is_noticed_although_connections_live_on(
    stormy: Fleet, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler keeps its clients when it turns to another server; here connections to both tell the same, as that would."""
    async with opened(f"{ground.url}&pooled=on") as store:
        worker = await hire(store, lease=2.0)
        await prove_floors(store, worker)
        replica = await ground.follow()
        [[first]] = await ground.query("select incarnation from chaos.control")
        monkeypatch.setattr("duetime.store.postgres.connection._INCARNATION", f"'{first}'")
        task = await add(store)
        await ground.fail_over(replica, stormy.journal)
        with contextlib.suppress(StoreUnavailable):  # the old connections are gone
            await store.counts()
        assert await worker.take() == [], "closed"
        assert await ground.query(f"select incarnation <> '{first}', open_at > 0 from chaos.control") == [(True, True)]
        taken: list[str] = []

        async def took_it() -> bool:
            taken.extend(each.id for each in await worker.take())
            return taken == [task.id]

        await until("it was claimed", took_it)


async def test_a_clock_set_back_after_a_fail_over_does_not_close_claims_for_as_long(stormy: Fleet, ground: Ground) -> None:
    async with opened(ground.url) as store:
        worker = await hire(store, lease=1.0)
        await add(store)
        await worker.run(State.SUCCEEDED)
        await add(store)
        replica = await ground.follow()
        await ground.fail_over(replica, stormy.journal)
        assert await worker.take() == [], "closed"
        await ground.step_clock(-HOUR, stormy.journal)
        await add(store)
        await until("claims are open", lambda: worker.take())
