"""The doctor over HTTP, for admins: the same findings as where the store is, and repairs."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from duetime import App
from duetime.client.doctor import Diagnosis
from duetime.clock import SECOND, ManualClock, SystemClock
from duetime.errors import NotAllowed
from duetime.ids import new_id
from duetime.model.access import Scope
from duetime.model.task import State
from duetime.store.open import store_from_url
from duetime.store.pull_workers import PullWorker
from tests.api.conftest import Client, served
from tests.conformance.build import new_task
from tests.servers.waiting import PATIENCE


class Admin(NamedTuple):
    """Somebody who may do everything on a server, by requests and from a program."""

    http: Client
    remote: App


@pytest.fixture
async def admin(app: App) -> AsyncIterator[Admin]:
    async with app:
        token = (await app.tokens.create("boss", scopes=["admin"])).token
        async with served(app) as http, App(http.url, token=token) as remote:
            yield Admin(http.bearing(token), remote)


def damage(path: Path) -> None:
    """Let live tasks wait nowhere, which cannot be."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("delete from duetime_due")
        connection.commit()


async def test_a_healthy_store_is_told_with_what_was_examined(admin: Admin, app: App) -> None:
    found = (await admin.http("GET", "/v1/doctor")).json
    assert (found["healthy"], found["findings"], found["store"], found["sqlite"]) == (True, [], app.url, sqlite3.sqlite_version)
    assert "survives" in found["durability"]
    assert await admin.remote.doctor.examine() == await app.doctor.examine()


async def test_what_is_wrong_is_found_and_repaired_and_both_are_told(admin: Admin, app: App, tmp_path: Path) -> None:
    task = await app.handler("greet").after(3600, name="Ada")
    damage(tmp_path / "store.db")
    found = await admin.remote.doctor.examine()
    assert [(each.level, each.kind, each.subject, each.repaired) for each in found.findings] == [
        ("problem", "task without a location", task.id, False)
    ]
    assert (found.healthy, str(found)) == (False, "1 problem left of 1")
    assert found == await app.doctor.examine(), "looking changes nothing"
    repaired = await admin.remote.doctor.examine(repair=True)
    assert (repaired.healthy, str(repaired)) == (True, "1 problem, repaired")
    assert await admin.remote.doctor.examine() == await app.doctor.examine()
    [entry] = (await app.tokens.audit.list(action="doctor.repair")).items
    assert (entry.by, entry.subject, entry.outcome.value, entry.detail) == ("boss", "store", "done", "1 problem, repaired")
    assert str(await app.doctor.examine()) == "no problems"


@pytest.mark.parametrize("scope", [scope.value for scope in Scope if scope is not Scope.ADMIN])
@pytest.mark.parametrize("handlers", [[], ["gre*"]])
async def test_every_scope_below_admin_is_refused(admin: Admin, app: App, tmp_path: Path, scope: str, handlers: list[str]) -> None:
    await app.handler("greet").after(3600, name="Ada")
    damage(tmp_path / "store.db")
    token = (await app.tokens.create("shop", scopes=[scope], handlers=handlers)).token
    async with App(admin.http.url, token=token) as shop:
        for repair in (False, True):
            with pytest.raises(NotAllowed, match="the token shop lacks the scope admin; use one that has it"):
                await shop.doctor.examine(repair=repair)
    assert not (await app.doctor.examine()).healthy, "nothing was repaired"


async def silent_pull_worker(url: str) -> tuple[str, str]:
    """Leave a pull worker that holds a task and has been silent for two hours, its lease being one; return its id and the task's."""
    store = store_from_url(url, clock=ManualClock(SystemClock().now() - 7_200 * SECOND))
    await store.open()
    try:
        worker = new_id()
        await store.register_pull_worker(PullWorker(id=worker, name="resizer", slots={"greet": 1}, lease=3_600.0))
        await store.add([new_task("greet", b'{"name": "Ada"}')])
        [task] = (await store.claim_for(worker, 1, {"greet": 1}, 1)).tasks
        return worker, task.id
    finally:
        await store.close()


async def test_a_repair_does_not_wait_for_a_silent_worker_because_the_server_watches_it(admin: Admin, app: App, url: str) -> None:
    worker, task = await silent_pull_worker(url)
    async with asyncio.timeout(PATIENCE):  # much less than the lease
        for repair in (False, True):
            found = await admin.remote.doctor.examine(repair=repair)
            [finding] = [each for each in found.findings if each.kind == "silent worker"]
            assert (finding.level, finding.subject, finding.repaired) == ("note", worker, False)
            assert "pull worker resizer has not beaten for 2 h 0 min, its lease is 3600 s; this server watches it" in finding.detail
            assert found.healthy
    assert (await app.get(task)).state is State.RUNNING


WORKER_THAT_DIES = """
import asyncio, os, sys
from duetime.store.open import store_from_url
from duetime.store.values import NewWorker

async def live_and_die() -> None:
    store = store_from_url(sys.argv[1])
    await store.open()
    await store.register(NewWorker(id="w", host="here", pid=os.getpid(), slots={"greet": 1}))
    os._exit(0)

asyncio.run(live_and_die())
"""


@pytest.mark.slow
async def test_who_takes_back_what_a_dead_worker_holds_depends_on_who_looks(app: App, url: str) -> None:
    async with app:
        died = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER_THAT_DIES, url)
        assert await died.wait() == 0
        for reaping, level, said in ((False, "problem", "or with --repair"), (True, "note", "this server takes back what it holds")):
            app.doctor.reaping = reaping
            [finding] = (await app.doctor.examine()).findings
            assert (finding.kind, finding.level) == ("dead worker", level)
            assert said in finding.detail
        assert (await app.doctor.examine(repair=True)).findings[0].repaired
        assert await app.workers() == []


async def test_one_examination_is_made_at_a_time(admin: Admin, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    examine, at_once, most = app.doctor.examine, 0, 0

    async def counted(**options: Any) -> Diagnosis:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return await examine(**options)
        finally:
            at_once -= 1

    monkeypatch.setattr(app.doctor, "examine", counted)
    asked = [("GET", "/v1/doctor"), ("POST", "/v1/doctor/repair")] * 4
    await asyncio.gather(*(admin.http(method, path) for method, path in asked))
    assert most == 1
