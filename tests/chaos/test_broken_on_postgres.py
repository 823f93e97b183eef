"""The same on PostgreSQL: each guard of its statements is taken away once, and the checker or the state of the store must show it."""

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from duetime.clock import Instant
from duetime.duties import Reaper
from duetime.model.outcome import Ended
from duetime.model.task import State
from duetime.store.postgres import workers
from duetime.store.postgres.address import Address
from duetime.store.postgres.lanes import BEHIND, Lane, Lanes
from duetime.store.postgres.store import PostgresStore
from duetime.store.values import WorkerRecord
from duetime.targets.python import threads
from duetime.worker.reconciler import Reconciler
from tests.chaos.fleet import until
from tests.chaos.scenes import (
    Scene,
    a_later_task,
    lost_reply,
    release,
    scene_in,
    settle_of_another,
    thread_left_behind,
    timeout_of_a_thread,
)
from tests.chaos.stepping import half_way, hire, look, reap
from tests.conformance.build import ended, needs, new_task

LEASE = 5.0


class Broken:
    """Takes guards away: from Python for a while, from the functions of a schema that is dropped after the test."""

    def __init__(self, patch: pytest.MonkeyPatch, url: str) -> None:
        self.patch = patch
        self._address = Address.from_url(url)

    def function(self, name: str, *changes: tuple[str, str]) -> None:
        """Replace parts of a function in the database."""
        schema = self._address.schema
        with psycopg.connect(self._address.dsn, autocommit=True) as connection:
            found = connection.execute(f"select pg_get_functiondef('{schema}.{name}'::regproc)".encode()).fetchone()
            assert found is not None
            text: str = found[0]
            for guard, instead in changes:
                guard, instead = guard.replace("%s", f'"{schema}"'), instead.replace("%s", f'"{schema}"')
                assert guard in text, f"{name} has no {guard!r} any more"
                text = text.replace(guard, instead)
            connection.execute(text.encode())

    def view(self, name: str, guard: str, instead: str) -> None:
        """Replace a part of a view in the database, told by a pattern: the server writes views in its own way."""
        schema = self._address.schema
        with psycopg.connect(self._address.dsn, autocommit=True) as connection:
            found = connection.execute(f"select pg_get_viewdef('{schema}.{name}'::regclass)".encode()).fetchone()
            assert found is not None
            text, changed = re.subn(guard, instead, found[0])
            assert changed, f"{name} has no {guard!r} any more"
            connection.execute(f'create or replace view "{schema}".{name} as {text}'.encode())


Play = Callable[[Scene], Awaitable[None]]
Breaker = Callable[[Broken], None]


def store_of(scene: Scene) -> PostgresStore:
    store = scene.app.store
    assert isinstance(store, PostgresStore)
    return store


def url_of(scene: Scene) -> str:
    return scene.app.config.url


async def run_all(scene: Scene) -> None:
    """Let a worker do what it can; what it never finds is for the checker to see."""
    scene.ends.set()
    async with scene.app.worker():
        try:
            async with asyncio.timeout(scene.patience):
                await scene.finish()
        except TimeoutError:
            pass


# ---- reaping and settling ----


async def reap_beside_a_settle(scene: Scene) -> None:
    """A reaper waits for a settle that is about to be committed."""
    store = store_of(scene)
    await store.tidy()
    await scene.submit("brief", 2)
    worker = await hire(store)
    first, _ = await worker.take("brief")
    note(scene, first.id)
    async with half_way(url_of(scene)) as settling:
        await settling.settle(worker.id, [ended(first, State.SUCCEEDED, at=store.now())])
        reaping = asyncio.create_task(reap(store, worker))
        await settling.someone_waits()
        await settling.commit()
    await reaping
    await scene.inspect()
    await run_all(scene)


def note(scene: Scene, task: str, fence: int = 1) -> None:
    """Write down that an attempt ran, where the scenario itself plays the worker."""
    for kind, how in (("start", ""), ("end", "returned")):
        scene.journal.write(kind, task=task, fence=fence, worker=1, pid=1, how=how)  # type: ignore[arg-type]
    scene.journal.write("died", pid=1)


def one_statement_reaper(broken: Broken) -> None:
    """Judge in one statement, by the snapshot that it began with, what a settle has ended meanwhile."""
    text = """
        with gone as (delete from %s.claim where worker = $1::text returning *),
        open as (
            select a.id, coalesce(a.lane, c.lanes[1]) as lane, a.due_at, null::bigint as expires_at,
                coalesce(a.attempt, c.attempts[1]) as attempt, coalesce(a.tries, c.tries[1]) as tries,
                coalesce(a.crashes, c.crashes[1]) as crashes
            from gone as c cross join lateral unnest(c.tasks, c.lanes, c.dues, c.attempts, c.tries, c.crashes)
                as a (id, lane, due_at, attempt, tries, crashes)
        )
        insert into %s.due (lane, pos, id, due_at, expires_at, attempt, tries, crashes)
        select o.lane, greatest(o.due_at, $2::bigint), o.id, o.due_at, o.expires_at, o.attempt, o.tries, o.crashes
        from open as o where not exists (select from %s.history as h where h.id = o.id) returning 1
    """.replace("%s", broken._address.schema)

    async def take_from(run: Any, sql: Any, worker: str, said: Ended, now: Instant) -> int:
        return len(await run.rows(text, [worker, now]))

    broken.patch.setattr(workers, "take_from", take_from)


async def repeated_settle(scene: Scene) -> None:
    """A worker repeats how an attempt ended, because the reply was lost, while the next attempt runs."""
    store = store_of(scene)
    await store.tidy()
    await scene.submit("brief", 2)
    worker, other = await hire(store), await hire(store)
    first, second = await worker.take("brief")
    again = ended(first, State.PENDING, at=store.now())
    await store.settle(worker.id, [again])
    [claimed] = await other.take("brief")
    await store.settle(worker.id, [again])
    note(scene, claimed.id, 2)
    note(scene, second.id)
    await other.end(claimed, State.SUCCEEDED)
    await worker.end(second, State.SUCCEEDED)
    for each in (worker, other):
        await store.unregister(each.id)
    await run_all(scene)


async def early_reaper(scene: Scene) -> None:
    """A worker's renewals are late by half a lease, which it has time for; another one is there to take what it runs."""
    async with scene.app.worker() as first:
        [task] = await scene.submit("waits")
        await scene.started(task)
        lease, held_up = first._keeper._lease, threading.Event()
        renew = lease.renew

        def late() -> Any:
            held_up.wait(LEASE * 0.55)
            return renew()

        lease.renew = late  # type: ignore[method-assign]
        async with scene.app.worker():
            await asyncio.sleep(LEASE * 0.6)
            held_up.set()
            await asyncio.sleep(0.3)
            scene.ends.set()
            await scene.finish()


def reap_at_a_third(broken: Broken) -> None:
    is_dead = Reaper._is_dead

    def hasty(self: Reaper, worker: WorkerRecord) -> bool:
        beat, since = self._seen.get(worker.id, (-1, 0.0))
        return is_dead(self, worker) or (beat == worker.beat and self._watched - since >= 0.3 * worker.lease)

    broken.patch.setattr(Reaper, "_is_dead", hasty)


# ---- hint and floor ----


async def late_commit(scene: Scene) -> None:
    """A task is added by a transaction that commits when others, added later, have been claimed already."""
    connection = await asyncpg.connect(Address.from_url(url_of(scene)).dsn)
    transaction = connection.transaction()
    await scene.submit("brief")
    await transaction.start()
    [late] = await scene.app.submit_many([scene.app.handler("brief").new()], connection=connection)
    scene.journal.write("submitted", task=late.id)
    async with scene.app.worker() as worker:
        for _ in range(3):
            await asyncio.sleep(BEHIND / 1e6)
            done = worker.executor.finished
            await scene.submit("brief", 3)
            await until("they have run", lambda done=done: worker.executor.finished >= done + 3)  # type: ignore[misc]
    await transaction.commit()
    await connection.close()
    await run_all(scene)


def hint_without_floor(broken: Broken) -> None:
    def taken(self: Lanes, lane: Lane, last: Instant, *, full: bool) -> None:
        lane.floor = lane.hint = max(lane.hint, last - BEHIND)

    broken.patch.setattr(Lanes, "taken", taken)


async def aborted_claim(scene: Scene) -> None:
    """A claim takes a task, does not commit, and is rolled back, while somebody proves how far the lane is empty."""
    store = store_of(scene)
    [task] = await scene.submit("brief")
    await asyncio.sleep(0.1)
    [lane] = store._lanes.by_handler["brief"]
    for _ in range(2):  # the first moves the horizon, up to which the second one's time counts
        await look(store, lane)
    async with half_way(url_of(scene)) as claiming:
        await claiming.rows('delete from "%s".due where id = $1', task)
        await look(store, lane)
        await claiming.rollback()
    await run_all(scene)


def floor_without_oldest(broken: Broken) -> None:
    broken.function("look", ("select d.pos from", "select null::bigint from"))


# ---- the rest ----


async def fan_in(scene: Scene) -> None:
    """Both parents of a child end at the same moment, in two transactions."""
    store = store_of(scene)
    await store.tidy()
    parents = [new_task("brief"), new_task("brief")]
    child = new_task("brief", edges=tuple(needs(parent) for parent in parents))
    for added in await store.add([*parents, child]):
        scene.journal.write("submitted", task=added.record.id)
    worker, other = await hire(store), await hire(store)
    [first], [second] = await worker.take(wants={"brief": 1}, total=1), await other.take(wants={"brief": 1}, total=1)
    async with half_way(url_of(scene)) as one, half_way(url_of(scene)) as two:
        await one.settle(worker.id, [ended(first, State.SUCCEEDED, at=store.now())])
        ending = asyncio.create_task(two.settle(other.id, [ended(second, State.SUCCEEDED, at=store.now())]))
        await one.someone_waits()
        await one.commit()
        await ending
        await two.commit()
    note(scene, first.id)
    note(scene, second.id)
    for each in (worker, other):
        await store.unregister(each.id)
    await run_all(scene)


def fan_in_by_snapshot(broken: Broken) -> None:
    """Count what is missing by what one sees, without having locked the child first."""
    broken.function(
        "follow",
        ("order by h.id for update;", "order by h.id;"),
        ("set waiting = h.waiting - m.n", "set waiting = (select count(*) from %s.edge as x where x.child = h.id)"),
    )


def fence_used_twice(broken: Broken) -> None:
    broken.function(
        "settle",
        (
            "e.id, e.due_at, e.expires_at, e.attempt, e.tries, e.crashes",
            "e.id, e.due_at, e.expires_at, e.attempt - (e.outcome = 'released')::integer, e.tries, e.crashes",
        ),
    )


def anybody_settles(broken: Broken) -> None:
    broken.function("match", ("p.worker = p_worker", "true"))
    broken.function("settle", ("c.worker = p_worker", "true"))


def method(owner: type, name: str, instead: Callable[..., object]) -> Breaker:
    return lambda broken: broken.patch.setattr(owner, name, instead)


CASES: dict[str, tuple[Play, Breaker, str]] = {
    "a reaper in one statement": (reap_beside_a_settle, one_statement_reaper, "state"),
    "settle without looking at the bitmap": (
        repeated_settle,
        lambda broken: broken.view("open_attempt", r"WHERE .*get_bit\(.*done.* <> 1\)", ""),
        "state",
    ),
    "settle without looking at the owner": (settle_of_another, anybody_settles, "lost"),
    "reaping at 0.3 of the lease": (early_reaper, reap_at_a_third, "overlap"),
    "a hint without a floor": (late_commit, hint_without_floor, "lost"),
    "a floor without the oldest entry": (aborted_claim, floor_without_oldest, "lost"),
    "no reconciliation": (lost_reply, method(Reconciler, "compare", lambda self, *facts: ([], [])), "lost"),
    "fan-in by snapshot": (fan_in, fan_in_by_snapshot, "lost"),
    "a fence used again after a release": (release, fence_used_twice, "fence"),
    "a retry while the thread still runs": (
        timeout_of_a_thread,
        lambda broken: thread_left_behind(broken.patch),
        "overlap",
    ),
    "a claim ahead of the due time": (
        a_later_task,
        lambda broken: broken.function("claim", ("coalesce(p_now, %s.clock())", "coalesce(p_now, %s.clock()) + 5000000")),
        "early",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_guard_taken_away_is_noticed(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(threads, "THROW_AFTER", 5.0)
    play, take_away, rule = CASES[case]
    lease = LEASE if play is early_reaper else 2.0
    async with scene_in(tmp_path / "sound", postgres_url, lease=lease) as scene:
        await play(scene)
        assert await scene.rules() == set()
    with monkeypatch.context() as patch:
        take_away(Broken(patch, postgres_url))
        async with scene_in(tmp_path / "broken", postgres_url, lease=lease) as scene:
            scene.patience = 2.0
            await play(scene)
            assert rule in await scene.rules()
