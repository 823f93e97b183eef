"""An operation on thousands of tasks whose performers are killed again and again: what it counts is what it has done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from duetime import App
from duetime.duties.operations import step
from duetime.ids import new_id
from duetime.model.task import NewTask
from duetime.store import Store

NUMBER = 3_000
PERFORM = """
import asyncio, sys
from duetime.duties.operations import step
from duetime.store.open import store_from_url

async def main():
    store = store_from_url(sys.argv[1])
    await store.open()
    operation = await store.operation(sys.argv[2])
    while operation.ended_at is None:
        operation = (await step(store, operation)).operation
        print(operation.version, flush=True)

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


async def _add(store: Store, number: int) -> list[str]:
    tasks = [NewTask[object](id=new_id(), handler="work", payload=b"{}", delay=3_600_000_000) for _ in range(number)]
    return [added.record.id for added in await store.add(tasks)]


async def _states(store: Store, ids: list[str]) -> Counter[str]:
    return Counter("gone" if record is None else record.state.value for record in await store.get(ids))


@pytest.mark.slow
async def test_its_counts_are_what_it_did_although_every_performer_is_killed(url: str) -> None:
    late: list[str] = []
    async with App(url) as app:
        early = await _add(app.store, NUMBER)
        started = await app.operations.start("cancel", handler="work", rate=100_000)
        for kills in range(5):
            command = [sys.executable, "-c", PERFORM, url, started.id]
            performer = subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ))  # noqa: ASYNC220
            assert performer.stdout is not None
            for _ in range(1 + kills % 2):  # it has just planned a batch, or just acted on one, and goes on
                performer.stdout.readline()
            late += await _add(app.store, 20)
            performer.kill()
            performer.wait()
            performer.stdout.close()
            so_far = await app.operations.get(started)
            assert (await _states(app.store, early))["cancelled"] == so_far.answers.get("cancelled", 0)
        done = await app.operations.wait(started)
        assert (done.state, done.answers) == ("done", {"cancelled": NUMBER})
        assert await _states(app.store, early) == {"cancelled": NUMBER}
        assert await _states(app.store, late) == {"pending": len(late)}


async def test_one_that_is_stopped_in_the_middle_has_done_what_it_counts(url: str) -> None:
    async with App(url) as app:
        ids = await _add(app.store, 1_200)
        started = await app.operations.start("cancel", handler="work", rate=500)
        for _ in range(2):  # it plans a batch, and acts on it
            operation = await app.store.operation(started.id)
            assert operation is not None
            await step(app.store, operation)
        stopped = await app.operations.stop(started)
        acted = (await _states(app.store, ids))["cancelled"]
        assert acted == 500
        assert stopped.answers == {"cancelled": acted}
        assert await app.store.act(started.id) is not None
        assert (await _states(app.store, ids))["cancelled"] == acted
