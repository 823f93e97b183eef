"""Nothing at all, very much at once, and text that tries to be something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from duetime.clock import LATEST, ManualClock
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import SettleVerdict
from duetime.model.query import Query
from duetime.model.task import ErrorInfo, State
from duetime.store import Store
from duetime.store.values import AddVerdict, CancelVerdict, ChangeVerdict, Declaration, Edit, NewWorker, Progress
from tests.conformance.build import PLENTY, Worker, add, ended, get, new_task, put, task_in

MANY = 20_000
HOSTILE = [
    "'; drop table task; --",
    '" or "1"="1',
    "%s %d {0} {name} $1 ?1 :name @name",
    "a'b\"c`d\\e",
    "🦉 Ünïcödé 日本語 שלום",
    "caf\u00e9",  # the same to the eye as the next one, but not the same text
    "cafe\u0301",
    "\u202eright to left",
    "x" * 200,
    "null",
    "%",
    "_",
]


async def test_empty_batches_are_answered_with_empty_lists_and_touch_nothing(store: Store, worker: Worker) -> None:
    record = await task_in(store, worker, State.RUNNING)
    before = await store.counts()
    answers: list[Sequence[Any]] = [
        await store.add([]),
        await store.settle(worker.id, []),
        await store.cancel([]),
        await store.retry([]),
        await store.edit([]),
        await store.get([]),
    ]
    assert answers == [[]] * 6
    await store.progress(worker.id, [])
    await store.declare([])
    assert await store.counts() == before
    assert await get(store, record) == record
    assert await store.declarations() == []


async def test_an_upkeep_that_may_touch_nothing_touches_nothing(store: Store, worker: Worker, clock: ManualClock) -> None:
    await task_in(store, worker, State.SUCCEEDED)
    await add(store, expires_at=clock.now() - 1)
    await add(store, "gated")
    await store.put_gate(Gate(handler="gated", action=GateAction.DROP))
    before = await store.counts()
    assert (await store.drop(0), await store.expire(0), await store.prune(State.SUCCEEDED, clock.now() + 1, 0)) == (0, 0, [])
    assert await store.counts() == before


@pytest.mark.slow
async def test_a_huge_batch_lives_its_whole_life(store: Store, worker: Worker, clock: ManualClock) -> None:
    new_tasks = [new_task(key=str(number), priority=number % 10, collection=str(number % 5)) for number in range(MANY)]
    answers = await store.add(new_tasks)
    assert [added.record.id for added in answers] == [submitted.id for submitted in new_tasks]
    assert {added.verdict for added in answers} == {AddVerdict.ADDED}
    assert sum(lane.due for lane in (await store.counts()).lanes) == MANY
    claimed = await worker.take(wants={"work": PLENTY}, total=PLENTY)
    assert {task.id for task in claimed} == {submitted.id for submitted in new_tasks}
    assert len(claimed) == len(await store.attempts_of(worker.id)) == MANY
    settlements = [ended(task, State.SUCCEEDED, at=clock.now()) for task in claimed]
    assert set(await store.settle(worker.id, settlements)) == {SettleVerdict.ACCEPTED}
    assert set(await store.settle(worker.id, settlements)) == {SettleVerdict.ALREADY}
    assert len(await store.prune(State.SUCCEEDED, clock.now() + 1, PLENTY)) == MANY


@pytest.mark.slow
async def test_huge_batches_of_control(store: Store, clock: ManualClock) -> None:
    new_tasks = [new_task(key=str(number)) for number in range(MANY)]
    ids = [submitted.id for submitted in new_tasks]
    await store.add(new_tasks)
    assert {added.verdict for added in await store.add(new_tasks)} == {AddVerdict.REPEATED}
    assert set(await store.edit([Edit(id=id, priority=9, collection="eu") for id in ids])) == {ChangeVerdict.CHANGED}
    assert set(await store.cancel(ids)) == {CancelVerdict.CANCELLED}
    assert set(await store.cancel(ids)) == {CancelVerdict.FINISHED}
    assert set(await store.retry(ids)) == {ChangeVerdict.CHANGED}
    records = await store.get(ids)
    assert [record.id for record in records if record] == ids
    assert {(record.state, record.priority, record.collection) for record in records if record} == {(State.PENDING, 9, "eu")}
    await store.put_gate(Gate(handler="work", action=GateAction.DROP))
    assert await store.drop(PLENTY) == MANY


async def test_a_large_payload_and_result_are_kept_byte_for_byte(store: Store, worker: Worker) -> None:
    payload = ('{"text": "' + "ü日🦉x" * 90_000 + '"}').encode()
    assert len(payload) > 900_000
    record = await add(store, payload=payload)
    assert record.payload == payload
    task = await worker.take_one()
    assert task.payload.encode() == payload
    await worker.end(task, State.SUCCEEDED, result=payload)
    after = await get(store, record)
    assert (after.payload, after.result) == (payload, payload)


async def test_many_large_payloads_go_through_one_batch(store: Store, worker: Worker) -> None:
    answers = await store.add([new_task(payload=b'"' + bytes([65 + number]) * 900_000 + b'"') for number in range(10)])
    claimed = await worker.take()
    assert {task.id: task.payload.encode() for task in claimed} == {added.record.id: added.record.payload for added in answers}


async def test_a_long_traceback_is_kept(store: Store, worker: Worker) -> None:
    record = await add(store)
    info = ErrorInfo("ValueError", "m" * 10_000, "line\n" * 20_000)
    await worker.run(State.FAILED, error=info)
    assert (await get(store, record)).error == info
    assert (await store.attempts(record.id))[0].error == info


@pytest.mark.parametrize("text", HOSTILE)
async def test_text_is_only_text_in_every_field(store: Store, worker: Worker, clock: ManualClock, text: str) -> None:
    await store.declare([Declaration(name=text, doc=text, isolation=text)])
    assert [(declaration.name, declaration.doc) for declaration in await store.declarations()] == [(text, text)]
    fields: dict[str, Any] = {"key": text, "collection": text, "submitted_by": text, "schedule": text, "meta": {text: text}}
    record = await add(store, text, b"{}", planned_at=1, **fields)
    assert {name: getattr(record, name) for name in fields} == fields
    assert record.handler == text
    assert await get(store, record) == record
    assert await store.find(text, text) == record
    assert (await put(store, text, key=text)).verdict is AddVerdict.DUPLICATE
    query = Query(handler=text, collection=text, key=text, schedule=text, state=State.PENDING)
    assert (await store.page(query)).items == [record]

    await store.put_gate(Gate(handler=text, collection=text, action=GateAction.PAUSE, note=text, set_by=text))
    assert [(gate.handler, gate.collection, gate.note, gate.set_by) for gate in await store.gates()] == [(text, text, text, text)]
    assert await worker.take(text) == []
    assert await store.remove_gate(text, text) is not None

    [task] = await worker.take(text)
    await store.progress(worker.id, [Progress(task.id, 1, 0.5, text)])
    assert (await get(store, task)).progress_text == text
    info = ErrorInfo(text, text, text)
    await worker.end(task, State.FAILED, error=info, result=text.encode())
    after = await get(store, task)
    assert (after.error, after.result) == (info, text.encode())
    assert [attempt.error for attempt in await store.attempts(task.id)] == [info]
    assert (await store.page(Query(error=text))).items == [after]
    assert (await store.page(Query(error=text, state=State.FAILED, handler=text))).items == [after]
    assert [final.handler for final in (await store.counts()).finals if final.count] == [text]


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_names_of_workers_and_tasks_do_no_harm(store: Store, worker: Worker, text: str) -> None:
    record = await task_in(store, worker, State.PENDING)
    lease = await store.register(NewWorker(id="plain", host=text, pid=1, slots={text: 1}))
    assert {listed.host: dict(listed.slots) for listed in await store.workers()}[text] == {text: 1}
    lease.close()
    await store.unregister("plain")
    await store.unregister(text)
    assert (await store.claim(text, 1, {"work": 1, text: 1}, 5)).tasks == []
    assert await store.attempts_of(text) == []
    assert await store.reap(text, 0) is None
    await store.confirm_gates(text, 1)
    assert await store.get([text]) == [None]
    assert await store.cancel([text]) == [CancelVerdict.UNKNOWN]
    assert await store.retry([text]) == [ChangeVerdict.UNKNOWN]
    assert await store.edit([Edit(id=text, priority=1)]) == [ChangeVerdict.UNKNOWN]
    assert await store.attempts(text) == []
    assert await store.find(text, text) is None
    assert await store.remove_gate(text, text) is None
    assert await store.page(Query(handler=text)) == await store.page(Query(key=text))
    assert await get(store, record) == record


async def test_many_handlers_collections_and_priorities_live_side_by_side(store: Store, worker: Worker) -> None:
    new_tasks = [new_task(f"h{number % 40}", collection=f"c{number % 7}", priority=number % 10) for number in range(2_000)]
    await store.add(new_tasks)
    claimed = await worker.take(*{submitted.handler for submitted in new_tasks})
    assert len({task.id for task in claimed}) == 2_000


async def test_instants_at_the_edges_of_the_calendar_are_kept(store: Store, worker: Worker, clock: ManualClock) -> None:
    record = await add(store, due_at=0, expires_at=LATEST, schedule="s", planned_at=LATEST)
    after = await get(store, record)
    assert (after.due_at, after.expires_at, after.planned_at) == (0, LATEST, LATEST)
    far = await add(store, due_at=LATEST)
    assert [task.id for task in await worker.take()] == [record.id]
    clock.set(LATEST)
    assert [task.id for task in await worker.take()] == [far.id]
