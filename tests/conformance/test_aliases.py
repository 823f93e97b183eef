"""A handler that was renamed: its former names and the present one are names of one handler, for every verb that takes a name."""

from __future__ import annotations

import asyncio

import pytest

from duetime.clock import SECOND
from duetime.model.gate import Gate, GateAction
from duetime.model.query import Query
from duetime.model.task import State
from duetime.store import Store
from duetime.store.schedules import ScheduleFilter
from duetime.store.values import AddVerdict, ChangeVerdict, Declaration
from tests.conformance import schedules
from tests.conformance.build import Worker, add, put, state_of

NAMES = ("old", "new")


@pytest.fixture(autouse=True)
async def renamed(store: Store) -> None:
    await store.declare([Declaration(name="old")])
    await store.declare([Declaration(name="new", aliases=("old",))])


@pytest.fixture(params=[("old", "new"), ("new", "old"), ("old", "old")])
def both(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The name that a task was submitted by, and the one that an operator says."""
    names: tuple[str, str] = request.param
    return names


async def test_a_task_is_found_by_its_key_under_every_name(store: Store, worker: Worker, both: tuple[str, str]) -> None:
    submitted, said = both
    task = await add(store, submitted, key="k")
    assert (found := await store.find(said, "k")) is not None
    assert (found.id, found.handler) == (task.id, submitted)
    await worker.run(State.SUCCEEDED, submitted)
    assert (found := await store.find(said, "k")) is not None
    assert (found.id, found.state) == (task.id, State.SUCCEEDED)


async def test_a_key_is_held_under_every_name(store: Store, both: tuple[str, str]) -> None:
    submitted, said = both
    task = await add(store, submitted, key="k")
    assert ((await put(store, said, key="k")).verdict, (await put(store, said, key="k", if_exists="keep")).record.id) == (
        AddVerdict.DUPLICATE,
        task.id,
    )
    replaced = await put(store, said, key="k", if_exists="replace", payload=b'{"n": 1}')
    assert (replaced.verdict, replaced.record.id, replaced.record.handler) == (AddVerdict.REPLACED, task.id, said)
    assert (await put(store, submitted, key="k")).verdict is AddVerdict.DUPLICATE
    assert await store.inspect(repair=False) == []
    await store.cancel([task.id])
    assert (await put(store, submitted, key="k")).verdict is AddVerdict.ADDED


async def test_of_many_who_submit_a_key_at_once_by_different_names_one_succeeds(store: Store) -> None:
    verdicts = [added.verdict for added in await asyncio.gather(*(put(store, NAMES[number % 2], key="k") for number in range(10)))]
    assert verdicts.count(AddVerdict.ADDED) == 1
    assert verdicts.count(AddVerdict.DUPLICATE) == 9


async def test_an_operators_retry_meets_the_key_under_another_name(store: Store, both: tuple[str, str]) -> None:
    submitted, said = both
    task = await add(store, submitted, key="k")
    await store.cancel([task.id])
    await add(store, said, key="k")
    assert await store.retry([task.id]) == [ChangeVerdict.DUPLICATE]


@pytest.mark.parametrize("collection", [None, "eu"])
async def test_a_gate_on_one_name_holds_the_tasks_of_all_and_is_opened_by_any(
    store: Store, worker: Worker, both: tuple[str, str], collection: str | None
) -> None:
    submitted, said = both
    await add(store, submitted, collection="eu")
    await store.put_gate(Gate(handler=said, collection=collection, action=GateAction.PAUSE))
    assert await worker.take(*NAMES) == []
    gates = await store.gates()
    assert [gate.handler for gate in gates.as_set] == ["new"]
    assert gates.holding(submitted, "eu", store.now()) is not None
    assert await store.remove_gate(submitted, collection) is not None
    assert len(await worker.take(*NAMES)) == 1


async def test_a_gate_under_one_name_replaces_that_under_another(store: Store) -> None:
    for name, action in (("old", GateAction.PAUSE), ("new", GateAction.DROP)):
        await store.put_gate(Gate(handler=name, action=action))
    assert [(gate.handler, gate.action) for gate in (await store.gates()).as_set] == [("new", GateAction.DROP)]


async def test_a_drop_gate_on_one_name_ends_the_tasks_of_all(store: Store) -> None:
    tasks = [await add(store, name) for name in NAMES]
    await store.put_gate(Gate(handler="new", action=GateAction.DROP))
    assert await store.drop(10) == 2
    assert [await state_of(store, task) for task in tasks] == [State.DROPPED] * 2


async def test_a_gate_that_was_set_before_the_handler_was_renamed_holds_its_new_name_too(store: Store, worker: Worker) -> None:
    await store.put_gate(Gate(handler="first", action=GateAction.PAUSE))
    before = (await store.gates()).version
    await add(store, "second")
    await store.declare([Declaration(name="second", aliases=("first",))])
    gates = await store.gates()
    assert gates.version > before, "or workers would not notice"
    assert [gate.handler for gate in gates.as_set] == ["second"]
    assert await worker.take("first", "second") == []


async def test_lists_and_loads_take_all_names_for_one(store: Store, both: tuple[str, str]) -> None:
    submitted, said = both
    task = await add(store, submitted, key="k")
    other = await add(store, "other", key="k")
    for query in (Query(handler=said), Query(handler=said, state=State.PENDING), Query(handler=said, key="k")):
        assert [record.id for record in (await store.page(query)).items] == [task.id]
    assert (await store.handler_load(said)).due == 1
    await store.cancel([task.id, other.id])
    finished = Query(handler=said, state=State.CANCELLED)
    assert [record.id for record in (await store.page(finished)).items] == [task.id]


async def test_a_handler_that_was_renamed_twice_has_three_names(store: Store) -> None:
    await store.declare([Declaration(name="newest", aliases=("new",))])
    task = await add(store, "old", key="k")
    for name in ("old", "new", "newest"):
        assert (found := await store.find(name, "k")) is not None
        assert found.id == task.id


async def test_an_alias_that_a_later_declaration_leaves_out_is_a_name_of_its_own_again(store: Store) -> None:
    await store.declare([Declaration(name="new", doc="without it")])
    await add(store, "old", key="k")
    assert await store.find("new", "k") is None


async def test_old_code_that_declares_itself_again_takes_no_alias_back(store: Store) -> None:
    await store.declare([Declaration(name="old")])
    await store.declare([Declaration(name="old", doc="the same, as another process had it")])
    await add(store, "old", key="k")
    assert await store.find("new", "k") is not None


async def test_schedules_of_a_former_name_are_held_by_a_gate_and_listed_by_the_present_one(store: Store) -> None:
    await schedules.put(store, schedules.new("nightly", next_at=store.now() - SECOND, handler="old"))
    await store.put_gate(Gate(handler="new", action=GateAction.PAUSE))
    closed = [(gate.handler, gate.collection) for gate in await store.gates()]
    assert await schedules.due_names(store, *closed) == []
    assert [record.name for record in await store.list_schedules(ScheduleFilter(handler="new"))] == ["nightly"]
