"""Two versions of a program on one store, as in every deploy: what one submits, the other may have to run."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duetime import App, Conflict, InvalidHandler, InvalidPayload
from duetime.ids import new_id
from duetime.model.outcome import Outcome
from duetime.model.task import NewTask, State, Task
from tests.servers.waiting import PATIENCE


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/duetime.db"
    address: str = request.getfixturevalue("postgres_url")
    return address


def old_program(url: str) -> App:
    app = App(url)

    @app.task
    async def expire_order(order_id: int) -> str:
        return f"old {order_id}"

    return app


def new_program(url: str) -> App:
    """It has one more parameter, which may be left out: the ordinary additive change."""
    app = App(url)

    @app.task
    async def expire_order(order_id: int, note: str = "") -> str:
        return f"new {order_id} {note}".strip()

    return app


async def until(app: App, task: Task[Any], holds: Callable[[Task[Any]], bool]) -> Task[Any]:
    async with asyncio.timeout(PATIENCE):
        while not holds(found := await app.get(task)):  # noqa: ASYNC110  another process may change it
            await asyncio.sleep(0.01)
    return found


async def test_a_task_of_new_code_waits_parked_beside_an_old_worker_until_a_new_one_comes(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = old_program(url), new_program(url)
    async with new, old.worker() as worker:
        task = await new.handler("expire_order").now(order_id=1, note="x")
        parked = await until(new, task, lambda found: found.parked)
        assert (parked.state, parked.attempt, parked.tries) == (State.PENDING, 1, 0)
        [record] = [each for each in caplog.records if each.levelno == logging.WARNING and "is parked" in each.message]
        assert task.id in record.message
        assert "expire_order: note: unknown" in record.message
        # what still fits the old code runs there, although it was accepted against the new declaration
        assert await new.result(await new.handler("expire_order").now(order_id=2), timeout=PATIENCE) == "old 2"
        finished = worker.executor.finished
        for _ in range(3):
            worker.feeder.look_for_parked()
            worker.feeder.wake()
            await new.result(await new.handler("expire_order").now(order_id=3), timeout=PATIENCE)
        assert worker.executor.finished == finished + 3, "the parked task is not tried again"
        async with new.worker():
            assert await new.result(task, timeout=PATIENCE) == "new 1 x"
        attempts = await new.attempts(task)
        assert [attempt.outcome for attempt in attempts] == [Outcome.PARKED, Outcome.SUCCEEDED]


async def test_with_old_and_new_workers_every_task_runs_with_at_most_one_attempt_in_vain(url: str) -> None:
    old, new = old_program(url), new_program(url)
    async with old.worker(), new.worker():
        tasks = [await new.handler("expire_order").now(order_id=number, note="x") for number in range(40)]
        assert [await new.result(task, timeout=PATIENCE) for task in tasks] == [f"new {number} x" for number in range(40)]
        for task in tasks:
            found = await new.get(task)
            assert (found.attempt <= 2, found.tries) == (True, 0)


async def test_a_task_that_fits_nobody_is_met_once_by_each_code_and_waits_for_an_operator(url: str) -> None:
    old, new = old_program(url), new_program(url)
    async with old.worker() as first, new.worker() as second:
        [added] = await new.store.add([NewTask(id=new_id(), handler="expire_order", payload=b'{"order": 1}', submitted_by="x")])
        stuck = await until(new, await new.get(added.record.id), lambda found: found.parked and found.attempt == 2)
        for worker in (first, second):
            worker.feeder.look_for_parked()
        await new.result(await new.handler("expire_order").now(order_id=2), timeout=PATIENCE)
        again = await new.get(stuck)
        assert (again.attempt, again.parked) == (2, True)
        assert await new.cancel(again) == "cancelled"


async def test_an_old_worker_that_restarts_does_not_take_back_the_newer_declaration(url: str) -> None:
    old, new = old_program(url), new_program(url)
    async with old.worker():
        pass
    async with new:
        async with old.worker():
            [handler] = await new.handlers()
            assert "note" in handler.schema["properties"]
        third = App(url)
        async with third:  # one that has no code of it submits by what is declared: both forms are good, nothing else is
            await third.handler("expire_order").now(order_id=1, note="x")
            await third.handler("expire_order").now(order_id=1)
            with pytest.raises(InvalidPayload, match="order_id is missing"):
                await third.handler("expire_order").now(order=1)


async def test_a_process_handler_parks_what_does_not_fit(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""
from duetime import App
app = App({url!r})

@app.task(isolation="process")
def expire_order(order_id: int) -> str:
    return f"old {{order_id}}"
"""
    (tmp_path / "deployed_shop.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deployed_shop", raising=False)
    old, new = importlib.import_module("deployed_shop").app, new_program(url)
    async with new, old.worker():
        task = await new.handler("expire_order").now(order_id=1, note="x")
        await until(new, task, lambda found: found.parked)
        async with new.worker():
            assert await new.result(task, timeout=PATIENCE) == "new 1 x"


async def test_a_parked_task_says_why_and_lists_and_counts_have_it(url: str) -> None:
    old, new = old_program(url), new_program(url)
    async with new, old.worker():
        task = await new.handler("expire_order").now(order_id=1, note="x")
        await until(new, task, lambda found: found.parked)
        [reason] = [each for each in await new.why(task) if each.kind == "parked"]
        assert "note: unknown" in reason.text
        assert [each.id async for each in new.tasks(parked=True)] == [task.id]
        assert [each.id async for each in new.tasks(state="pending")] == [task.id]
        [counts] = (await new.stats()).handlers
        assert (counts.parked, counts.due, counts.later) == (1, 0, 0)
        assert (await new.stats()).states[State.PENDING] == 1


# ---- changes that do not fit ----


def renamed_parameter(url: str) -> App:
    """Its parameter has another name: what was submitted before does not fit."""
    app = App(url)

    @app.task
    async def expire_order(number: int) -> str:
        return f"changed {number}"

    return app


async def test_a_worker_says_at_its_start_which_waiting_tasks_do_not_fit_it(url: str, caplog: pytest.LogCaptureFixture) -> None:
    old, changed = old_program(url), renamed_parameter(url)
    async with old:
        for number in range(3):
            await old.handler("expire_order").after(3600, order_id=number)
    caplog.set_level(logging.WARNING, "duetime.worker")
    async with changed.worker():
        async with asyncio.timeout(PATIENCE):
            while not caplog.records:  # noqa: ASYNC110  the log has no event
                await asyncio.sleep(0.01)
    [record] = caplog.records
    assert "3 pending tasks of expire_order do not fit its parameters (order_id: unknown)" in record.message


async def test_an_upgrade_in_code_lets_former_payloads_run_and_nothing_is_parked(url: str) -> None:
    old, changed = old_program(url), renamed_parameter(url)
    handler = changed.handler("expire_order")

    @handler.upgrade
    def from_order_id(payload: dict[str, Any]) -> dict[str, Any]:
        return {"number": payload["order_id"]}

    async with old:
        task = await old.handler("expire_order").now(order_id=7)
    async with changed.worker():
        assert await changed.result(task.id, timeout=PATIENCE) == "changed 7"
        found = await changed.get(task.id)
        assert (found.attempt, found.payload) == (1, {"order_id": 7})


async def test_code_with_an_upgrade_is_another_declaration_so_it_meets_what_was_parked_before(url: str) -> None:
    old, changed, repaired = old_program(url), renamed_parameter(url), renamed_parameter(url)
    repaired.handler("expire_order").upgrade(lambda payload: {"number": payload["order_id"]})
    async with old:
        task = await old.handler("expire_order").now(order_id=7)
    async with changed.worker():
        await until(changed, task, lambda found: found.parked)
    async with repaired.worker():
        assert await repaired.result(task.id, timeout=PATIENCE) == "changed 7"


async def test_an_operator_repairs_a_parked_task_and_a_failed_one_by_another_payload(url: str) -> None:
    old, changed = old_program(url), renamed_parameter(url)
    async with old:
        task = await old.handler("expire_order").now(order_id=7)
    async with changed.worker():
        await until(changed, task, lambda found: found.parked)
        with pytest.raises(InvalidPayload, match="nummer is not a parameter; did you mean number"):
            await changed.edit(task.id, payload={"nummer": 7})
        await changed.edit(task.id, payload={"number": 7})
        assert await changed.result(task.id, timeout=PATIENCE) == "changed 7"
        with pytest.raises(Conflict, match="have ended without success"):
            await changed.edit(task.id, payload={"number": 8})
    async with changed:
        waiting = await changed.handler("expire_order").after(3600, number=1)
        await changed.cancel(waiting)
        assert (await changed.edit(waiting, payload={"number": 9})).state is State.CANCELLED
        await changed.retry(waiting)
        async with changed.worker():
            assert await changed.result(waiting, timeout=PATIENCE) == "changed 9"


def test_an_upgrade_is_a_plain_function_of_a_handler_whose_code_is_here(url: str) -> None:
    app = renamed_parameter(url)
    with pytest.raises(InvalidHandler, match="by name only"):
        app.handler("elsewhere").upgrade(lambda payload: payload)

    async def awaited(payload: dict[str, Any]) -> dict[str, Any]:
        return payload

    with pytest.raises(InvalidHandler, match="a function from the former payload"):
        app.handler("expire_order").upgrade(awaited)  # type: ignore[arg-type]


def test_upgrades_are_tried_in_their_order_and_one_that_raises_does_not_apply() -> None:
    app = renamed_parameter("sqlite:///:memory:")
    handler = app.handler("expire_order")
    handler.upgrade(lambda payload: {"number": payload["order_id"]})
    handler.upgrade(lambda payload: {"number": payload["order"] + 100})
    assert handler.spec is not None
    payloads = handler.spec.payloads
    assert payloads.decode(b'{"order_id": 1}') == {"number": 1}
    assert payloads.decode(b'{"order": 1}') == {"number": 101}
    assert payloads.decode(b'{"number": 1}') == {"number": 1}
    decode = payloads.positional_decoder()
    assert decode is not None
    assert decode('{"order": 1}') == (101,)
    with pytest.raises(InvalidPayload, match=r"expire_order: bill: unknown; <lambda> raised KeyError: 'order_id'"):
        payloads.decode(b'{"bill": 1}')


async def test_after_a_fail_over_parked_tasks_wait_too_until_the_store_opens(postgres_url: str) -> None:
    old, new = old_program(postgres_url), new_program(postgres_url)
    async with new, old.worker():
        task = await new.handler("expire_order").now(order_id=1, note="x")
        await until(new, task, lambda found: found.parked)
        store, declared, wants = new.store, {"expire_order": "another"}, {"expire_order": 1}
        [worker] = await store.workers()
        schema = postgres_url.partition("schema=")[2]
        with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as admin:
            for change, handed_out in (("open_at = 4e18", 0), ("open_at = 0, incarnation = 'former'", 0), ("incarnation = ''", 1)):
                admin.execute(f'update "{schema}".control set {change}')
                claim = await store.claim_parked(worker.id, 1 << 40, declared, wants)
                assert len(claim.tasks) == handed_out, change
