"""Tokens and the audit: versions, names, last uses, and pages that go on whatever is added."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from duetime.clock import SECOND, ManualClock
from duetime.errors import InvalidValue
from duetime.ids import new_id
from duetime.model.access import AuditEntry, AuditOutcome, Scope, SessionRecord, TokenRecord, digest
from duetime.store import Store
from duetime.store.access import AuditFilter, TokenVerdict
from tests.conformance.conftest import Another

STORED, CONFLICT, DUPLICATE = TokenVerdict.STORED, TokenVerdict.CONFLICT, TokenVerdict.DUPLICATE
HOSTILE = "'); drop table duetime_token; -- \" \\ {} %s $1 \N{SNOWMAN}\U0001f600"


def token(name: str = "shop", id: str = "0000000000000001", **facts: Any) -> TokenRecord:
    facts.setdefault("scopes", (Scope.SUBMIT,))
    facts.setdefault("digest", digest(id))
    return TokenRecord(**{"id": id, "name": name, "created_at": 5, "created_by": "anna", **facts})


def changed(record: TokenRecord, **facts: Any) -> TokenRecord:
    return msgspec.structs.replace(record, version=record.version + 1, **facts)


def entry(at: int = 0, **facts: Any) -> AuditEntry:
    return AuditEntry(**{"id": new_id(), "at": at, "by": "anna", "action": "gates.pause", "subject": "work", **facts})


# ---- tokens ----


async def test_a_token_is_given_back_as_it_was_stored(store: Store) -> None:
    full = token(
        HOSTILE,
        scopes=(Scope.READ, Scope.WORK),
        handlers=("shop.*", HOSTILE),
        old_digest=digest("old"),
        old_until_at=7,
        rate=0.5,
        note=HOSTILE,
        rotated_at=6,
        expires_at=2**53,
    )
    plain = token("a", "0000000000000002")
    assert [await store.put_token(each) for each in (full, plain)] == [STORED, STORED]
    assert await store.tokens() == sorted([full, plain], key=lambda each: each.name)
    assert await store.find_tokens([plain.id, "nobody", full.id, HOSTILE]) == [plain, None, full, None]
    assert await store.find_tokens([]) == []


async def test_tokens_are_listed_by_name_in_the_order_of_code_points(store: Store) -> None:
    names = ["b", "a", "Z", "ä", "a-1", "a_1"]
    for index, name in enumerate(names):
        await store.put_token(token(name, f"{index:016x}"))
    assert [each.name for each in await store.tokens()] == sorted(names)


async def test_a_change_replaces_exactly_the_version_before_it(store: Store) -> None:
    first = token()
    second = changed(first, digest=digest("second"), note="rotated")
    assert await store.put_token(second) is CONFLICT
    assert await store.put_token(first) is STORED
    assert await store.put_token(changed(second)) is CONFLICT
    assert await store.put_token(second) is STORED
    assert await store.put_token(changed(first, digest=digest("another"))) is CONFLICT
    assert await store.put_token(token(digest=digest("another"))) is CONFLICT
    assert await store.tokens() == [second]


async def test_a_repeated_write_is_answered_as_the_first(store: Store) -> None:
    first = token()
    assert [await store.put_token(first) for _ in range(2)] == [STORED, STORED]
    second = changed(first, digest=digest("second"))
    assert [await store.put_token(second) for _ in range(2)] == [STORED, STORED]
    assert await store.tokens() == [second]


async def test_a_live_tokens_name_is_not_given_again(store: Store) -> None:
    await store.put_token(token())
    assert await store.put_token(token(id="0000000000000002")) is DUPLICATE
    other = token("other", "0000000000000003")
    await store.put_token(other)
    assert await store.put_token(changed(other, name="shop")) is DUPLICATE
    assert {each.name: each.id for each in await store.tokens()} == {"shop": "0000000000000001", "other": other.id}


async def test_an_expired_token_frees_its_name(store: Store, clock: ManualClock) -> None:
    await store.put_token(token(expires_at=store.now() + 10 * SECOND))
    following = token(id="0000000000000002")
    clock.advance(9)
    assert await store.put_token(following) is DUPLICATE
    clock.advance(1)
    assert [each.id for each in await store.tokens()] == ["0000000000000001"], "expired ones are listed"
    assert await store.put_token(following) is STORED
    assert await store.tokens() == [following]


async def test_a_removed_token_is_gone_and_frees_its_name(store: Store) -> None:
    first = token()
    await store.put_token(first)
    await store.add_audit([entry(token=first.id, action="tokens.create", subject="shop")])
    assert await store.remove_token(first.id) is True
    assert await store.remove_token(first.id) is False
    assert await store.put_token(changed(first)) is CONFLICT
    assert await store.put_token(token(id="0000000000000002")) is STORED
    assert [each.token for each in (await store.audit(AuditFilter())).items] == [first.id]


async def test_the_latest_use_is_kept_and_survives_a_change(store: Store) -> None:
    first, other = token(), token("other", "0000000000000002")
    await store.put_token(first)
    await store.put_token(other)
    await store.note_use({first.id: 50, "unknown": 60, other.id: 7})
    await store.note_use({first.id: 40})
    await store.note_use({})
    await store.put_token(changed(first, note="more"))
    assert {each.name: each.last_used_at for each in await store.tokens()} == {"shop": 50, "other": 7}
    await store.note_use({first.id: 51})
    assert [each and each.last_used_at for each in await store.find_tokens([first.id])] == [51]


async def test_of_many_that_want_a_name_at_once_one_gets_it(store: Store, another: Another) -> None:
    stores = [store, await another()]
    answers = await asyncio.gather(*(stores[n % 2].put_token(token(id=f"{n:016x}")) for n in range(1, 9)))
    assert sorted(answers) == [DUPLICATE] * 7 + [STORED]
    [kept] = await store.tokens()
    changes = [changed(kept, digest=digest(str(n))) for n in range(8)]
    answers = await asyncio.gather(*(stores[n % 2].put_token(change) for n, change in enumerate(changes)))
    assert sorted(answers) == [CONFLICT] * 7 + [STORED]
    assert await store.tokens() == [changes[answers.index(STORED)]]


async def test_uses_noted_at_once_by_many_do_not_stand_in_each_others_way(store: Store, another: Another) -> None:
    ids = [f"{n:016x}" for n in range(20)]
    for id in ids:
        await store.put_token(token(id, id))
    stores = [store, await another()]
    orders = [ids, ids[::-1]]
    await asyncio.gather(*(stores[n % 2].note_use(dict.fromkeys(orders[n % 2], n)) for n in range(10)))
    assert {each.last_used_at for each in await store.tokens()} == {9}


# ---- the audit ----


async def test_an_entry_is_given_back_as_it_was_kept(store: Store) -> None:
    full = entry(
        5, by=HOSTILE, token="0000000000000001", subject=HOSTILE, origin="10.0.0.1", outcome=AuditOutcome.REFUSED, detail=HOSTILE + "\n"
    )
    await store.add_audit([full])
    await store.add_audit([])
    page = await store.audit(AuditFilter())
    assert (page.items, page.next) == ([full], None)


async def test_a_repeated_entry_is_kept_once(store: Store) -> None:
    first, second = entry(1), entry(2)
    await store.add_audit([first])
    await store.add_audit([second, msgspec.structs.replace(first, by="somebody else")])
    assert (await store.audit(AuditFilter())).items == [second, first]


async def test_every_part_of_the_filter_must_hold(store: Store) -> None:
    entries = [
        entry(at, by=by, action=action, subject=subject)
        for at, (by, action, subject) in enumerate(
            (by, action, subject) for by in ("anna", "bert") for action in ("gates.pause", "gates.open") for subject in ("a", "b")
        )
    ]
    await store.add_audit(entries)
    filters: tuple[dict[str, Any], ...] = (
        {},
        {"by": "anna"},
        {"action": "gates.open"},
        {"subject": "b"},
        {"by": "bert", "action": "gates.pause", "subject": "a"},
        {"by": "nobody"},
    )
    for facts in filters:
        for after, before in ((None, None), (3, None), (None, 3), (2, 6)):
            page = await store.audit(AuditFilter(**facts, after=after, before=before))
            expected = [
                each
                for each in reversed(entries)
                if all(getattr(each, name) == value for name, value in facts.items())
                and (after is None or each.at >= after)
                and (before is None or each.at < before)
            ]
            assert (page.items, page.next) == (expected, None), (facts, after, before)


async def test_pages_visit_every_entry_once_although_more_are_added(store: Store) -> None:
    entries = [entry(at // 3) for at in range(20)]  # several at one instant
    await store.add_audit(entries)
    seen: list[AuditEntry] = []
    cursor = None
    for _ in range(5):
        page = await store.audit(AuditFilter(by="anna", limit=4, cursor=cursor))
        seen += page.items
        cursor = page.next
        await store.add_audit([entry(100)])
    assert cursor is None
    assert seen == sorted(entries, key=lambda each: (each.at, each.id), reverse=True)


@pytest.mark.parametrize("cursor", ["", "nonsense", "W10", "WzEsMl0"])
async def test_a_foreign_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidValue, match="cursor"):
        await store.audit(AuditFilter(cursor=cursor))


@pytest.mark.parametrize("limit", [0, 1_001])
def test_a_page_has_a_sensible_size(limit: int) -> None:
    with pytest.raises(InvalidValue, match="limit must lie between 1 and 1000"):
        AuditFilter(limit=limit)


async def test_pruning_takes_the_oldest_entries_first(store: Store) -> None:
    entries = [entry(at) for at in range(6)]
    await store.add_audit(entries)
    assert await store.prune_audit(4, 3) == 3
    assert (await store.audit(AuditFilter())).items == entries[:2:-1]
    assert await store.prune_audit(4, 100) == 1
    assert await store.prune_audit(4, 100) == 0
    assert (await store.audit(AuditFilter())).items == entries[:3:-1]


# ---- sessions ----


def session(digest: str = "d1", **facts: Any) -> SessionRecord:
    usual: dict[str, Any] = {"token": "t", "token_digest": "x", "origin": HOSTILE, "created_at": 1, "idle_at": 2**52, "expires_at": 2**53}
    return SessionRecord(digest=digest, **(usual | facts))


async def test_a_session_is_given_back_as_it_was_stored_and_a_repeat_changes_nothing(store: Store) -> None:
    await store.put_session(session())
    await store.put_session(session(token="another"))
    assert await store.find_sessions(["d2", "d1", HOSTILE]) == [None, session(), None]
    assert await store.find_sessions([]) == []


async def test_a_removed_session_is_gone(store: Store) -> None:
    await store.put_session(session())
    assert [await store.remove_session("d1") for _ in range(2)] == [True, False]
    assert await store.find_sessions(["d1"]) == [None]


async def test_a_session_is_renewed_and_never_shortened(store: Store) -> None:
    await store.put_session(session())
    await store.renew_session("d1", 2**52 + 7)
    await store.renew_session("d1", 5)
    await store.renew_session("unknown", 5)
    assert await store.find_sessions(["d1"]) == [session(idle_at=2**52 + 7)]


async def test_sessions_that_are_over_go_when_the_next_one_is_stored(store: Store, clock: ManualClock) -> None:
    soon = store.now() + 10 * SECOND
    for each in (session("idle", idle_at=soon), session("ended", expires_at=soon), session("good")):
        await store.put_session(each)
    clock.advance(10)
    assert [each is not None for each in await store.find_sessions(["idle", "ended", "good"])] == [True, True, True]
    await store.put_session(session("next"))
    assert [each is not None for each in await store.find_sessions(["idle", "ended", "good", "next"])] == [False, False, True, True]
