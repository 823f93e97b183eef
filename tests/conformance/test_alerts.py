"""Documents of alerts: written all or none, each only in the version that was seen."""

from __future__ import annotations

import asyncio

from duetime.store import Store
from duetime.store.alerts import DocumentChange, DocumentKind
from tests.conformance.conftest import Another

RULE, ALERT = DocumentKind.RULE, DocumentKind.ALERT


async def test_documents_are_read_as_they_were_written_by_kind_and_name(store: Store) -> None:
    new = [DocumentChange(RULE, "b", "", b'{"n":1}'), DocumentChange(RULE, "a ünï", "", b"[]"), DocumentChange(ALERT, "b", "", b"{}")]
    assert await store.change_alert_documents(new)
    rules = await store.alert_documents(RULE)
    assert [(each.kind, each.name, each.body) for each in rules] == [(RULE, "a ünï", b"[]"), (RULE, "b", b'{"n":1}')]
    assert [each.name for each in await store.alert_documents(RULE, ["b", "unknown"])] == ["b"]
    assert await store.alert_documents(RULE, []) == []
    assert await store.alert_documents(DocumentKind.CHANNEL) == []


async def test_a_change_needs_the_version_that_was_seen(store: Store) -> None:
    assert await store.change_alert_documents([DocumentChange(RULE, "a", "", b"1")])
    [first] = await store.alert_documents(RULE)
    assert not await store.change_alert_documents([DocumentChange(RULE, "a", "", b"2")])
    assert await store.change_alert_documents([DocumentChange(RULE, "a", first.version, b"2")])
    assert not await store.change_alert_documents([DocumentChange(RULE, "a", first.version, b"3")])
    [second] = await store.alert_documents(RULE)
    assert (second.body, second.version != first.version) == (b"2", True)
    assert await store.change_alert_documents([DocumentChange(RULE, "a", second.version, None)])
    assert await store.alert_documents(RULE) == []
    assert not await store.change_alert_documents([DocumentChange(RULE, "a", second.version, None)])


async def test_one_document_that_has_changed_keeps_all_of_them_as_they_are(store: Store) -> None:
    assert await store.change_alert_documents([DocumentChange(RULE, "a", "", b"1")])
    [seen] = await store.alert_documents(RULE)
    changes = [DocumentChange(ALERT, "x", "", b"1"), DocumentChange(RULE, "a", seen.version, None), DocumentChange(RULE, "b", "old", b"1")]
    assert not await store.change_alert_documents(changes)
    assert (await store.alert_documents(RULE), await store.alert_documents(ALERT)) == ([seen], [])


async def test_a_document_that_was_removed_and_made_again_is_another_one(store: Store) -> None:
    assert await store.change_alert_documents([DocumentChange(RULE, "a", "", b"1")])
    [first] = await store.alert_documents(RULE)
    assert await store.change_alert_documents([DocumentChange(RULE, "a", first.version, None)])
    assert await store.change_alert_documents([DocumentChange(RULE, "a", "", b"1")])
    assert not await store.change_alert_documents([DocumentChange(RULE, "a", first.version, b"2")])


async def test_of_many_that_have_seen_the_same_one_writes(store: Store, another: Another) -> None:
    other = await another()
    answers = await asyncio.gather(
        *((store, other)[n % 2].change_alert_documents([DocumentChange(ALERT, "a", "", b"%d" % n)]) for n in range(8))
    )
    assert sum(answers) == 1
    [written] = await store.alert_documents(ALERT)
    assert written.body == b"%d" % answers.index(True)
