"""Stored targets: put, seen, removed and shadowed, each change with a version of its own and the declaration of its handler."""

from __future__ import annotations

import asyncio
import os

import msgspec

from duetime.clock import ManualClock
from duetime.ids import new_id
from duetime.model.targets import MAX_DEFINITION, NewTarget, StoredTarget
from duetime.store import Store
from duetime.store.values import Declaration, Hint, HintKind, NewWorker
from tests.conformance.conftest import Another, Hire

HOSTILE = "'); drop table duetime_target; -- \" \\ {} %s $1 / \N{SNOWMAN}\U0001f600"


def target(name: str = "ping", definition: str = "{}", kind: str = "http") -> NewTarget:
    return NewTarget(name=name, kind=kind, definition=definition.encode(), changed_by="anna")


def declared(name: str = "ping", doc: str = "") -> Declaration:
    return Declaration(name=name, doc=doc, isolation="http")


async def put(store: Store, new: NewTarget, *, doc: str = "", seen: int | None = None) -> StoredTarget:
    stored = await store.put_target(new, declared(new.name, doc), seen)
    assert stored is not None
    return stored


async def present(store: Store, name: str = "ping") -> list[str]:
    return [each.doc for each in await store.declarations() if each.name == name]


async def test_a_target_is_given_back_as_it_was_stored(store: Store, clock: ManualClock) -> None:
    full = await put(store, NewTarget(name=HOSTILE, kind=HOSTILE, definition=HOSTILE.encode(), changed_by=HOSTILE))
    large = await put(store, target("large", "x" * MAX_DEFINITION))
    assert await store.targets() == [full, large]
    assert await store.targets(["nobody", "large", "large"]) == [large]
    assert await store.targets([]) == []
    assert (full.definition, full.changed_at, full.shadowed) == (HOSTILE.encode(), clock.now(), False)


async def test_targets_are_listed_by_name_in_the_order_of_code_points(store: Store) -> None:
    names = ["b", "a", "Z", "ä", "a-1", "a_1"]
    for name in names:
        await put(store, target(name))
    assert [each.name for each in await store.targets()] == sorted(names)


async def test_every_change_has_a_version_that_no_other_has_also_after_a_removal(store: Store) -> None:
    first, other = await put(store, target()), await put(store, target("other"))
    changed = await put(store, target(definition='{"a": 1}'))
    await store.remove_target("ping")
    again = await put(store, target())
    assert first.version < other.version < changed.version < again.version
    found = await store.target_versions()
    assert found.targets == {"ping": again.version, "other": other.version}
    assert found.version == again.version
    await store.remove_target("other")
    assert (await store.target_versions()).version > found.version


async def test_a_repeated_put_changes_nothing_whatever_was_seen(store: Store) -> None:
    first = await put(store, target())
    version = (await store.target_versions()).version
    for seen in (None, 0, first.version, first.version + 7):
        assert await put(store, target(), seen=seen) == first
    assert (await store.target_versions()).version == version


async def test_a_put_is_refused_unless_the_target_is_as_it_was_seen(store: Store) -> None:
    assert await store.put_target(target(), declared(), 3) is None
    first = await put(store, target(), seen=0)
    assert await store.put_target(target(definition="1"), declared(), 0) is None
    assert await store.put_target(target(definition="1"), declared(), first.version + 1) is None
    assert await store.targets() == [first]
    second = await put(store, target(definition="1"), seen=first.version)
    assert second.version > first.version


async def test_of_several_puts_that_have_seen_the_same_one_succeeds(store: Store, another: Another) -> None:
    first, other = await put(store, target()), await another()
    answers = await asyncio.gather(
        *(each.put_target(target(definition=str(number)), declared(), first.version) for number, each in enumerate([store, other] * 4))
    )
    assert len([answer for answer in answers if answer is not None]) == 1


async def test_a_removal_is_refused_unless_the_target_is_as_it_was_seen(store: Store) -> None:
    first = await put(store, target())
    assert await store.remove_target("ping", first.version + 1) is None
    assert await store.targets() == [first]
    assert await store.remove_target("ping", first.version) is True
    assert await store.remove_target("ping") is False
    assert await store.remove_target("ping", first.version) is None
    assert await store.targets() == []


async def test_the_declaration_of_the_last_put_is_the_present_one_also_one_that_was_put_before(store: Store) -> None:
    for number, doc in enumerate(["first", "second", "first"]):
        await put(store, target(definition=str(number)), doc=doc)
        assert await present(store) == [doc]
    await store.remove_target("ping")
    assert await present(store) == []


async def test_a_removed_target_leaves_what_code_declared_under_its_name(store: Store) -> None:
    await store.declare([declared(doc="code")])
    await put(store, target(), doc="stored")
    assert await present(store) == ["stored"]
    await store.remove_target("ping")
    assert await present(store) == ["code"]


async def test_shadowed_targets_are_kept_but_not_served_until_they_are_put_again(store: Store) -> None:
    await store.declare([declared(doc="code")])
    first = await put(store, target(), doc="stored")
    await put(store, target("other"))
    version = (await store.target_versions()).version
    assert await store.shadow_targets([]) == []
    assert [await store.shadow_targets(["ping", "nobody"]) for _ in range(2)] == [["ping"], []]
    assert await store.targets(["ping"]) == [msgspec.structs.replace(first, shadowed=True)]
    found = await store.target_versions()
    assert list(found.targets) == ["other"]
    assert found.version > version
    assert await present(store) == ["code"], "the handler is the code's again"
    again = await put(store, target(), doc="stored")
    assert not again.shadowed
    assert again.version > first.version
    assert await present(store) == ["stored"]


async def test_a_shadowed_target_is_removed_without_what_the_code_declared(store: Store) -> None:
    await put(store, target(), doc="same")
    await store.shadow_targets(["ping"])
    await store.declare([declared(doc="same")])
    assert await store.remove_target("ping") is True
    assert await present(store) == ["same"]


async def test_a_renewal_tells_the_version_of_the_targets(store: Store, hire: Hire) -> None:
    worker = await hire()
    before = (await asyncio.to_thread(worker.lease.renew)).targets_version
    stored = await put(store, target())
    assert before < stored.version == (await asyncio.to_thread(worker.lease.renew)).targets_version


async def test_listeners_are_woken_by_every_change(store: Store) -> None:
    heard: list[Hint] = []
    listener = store.listen(heard.append)
    try:
        await put(store, target())
        await store.shadow_targets(["ping"])
        await store.remove_target("ping")
        await asyncio.sleep(0)
    finally:
        listener.close()
    assert [hint.kind for hint in heard if hint.kind is HintKind.TARGETS] == [HintKind.TARGETS] * 3


async def test_a_worker_changes_what_it_runs_and_keeps_the_rest(store: Store) -> None:
    new = NewWorker(id=f"worker-{new_id()}", host="here", pid=os.getpid(), slots={"work": 2}, concurrency=2)
    assert await store.change_slots(new) is False
    (await store.register(new)).close()
    [before] = await store.workers()
    changed = msgspec.structs.replace(new, slots={"work": 2, "ping": 5}, concurrency=7, declared={"ping": declared().digest})
    assert await store.change_slots(changed) is True
    [after] = await store.workers()
    assert after == msgspec.structs.replace(before, slots={"work": 2, "ping": 5}, concurrency=7)
    await store.declare([declared()])
    await store.declare([declared(doc="newer")])
    held = [each.doc for each in await store.declarations(former=True)]
    assert held == ["", "newer"], "what it has declared counts as held"
    await store.unregister(new.id)
