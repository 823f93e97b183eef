"""Sealed secrets: versions follow one another, former ones end, and a value is replaced only where it is still the stored one."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from duetime.clock import SECOND, ManualClock
from duetime.model.secrets import MAX_SECRET, MOST_VERSIONS, SealedSecret, SecretVersion
from duetime.store import Store
from tests.conformance.conftest import Another

HOSTILE = "'); drop table duetime_secret; -- \" \\ {} %s $1 / \N{SNOWMAN}\U0001f600"
LATER = 2**53


def secret(name: str = "billing", version: int = 1, **facts: Any) -> SealedSecret:
    facts.setdefault("sealed", f"sealed {name} {version}")
    return SealedSecret(**{"name": name, "version": version, "key": "a", "created_at": 5, "created_by": "anna", **facts})


def until(version: SealedSecret, at: int) -> SealedSecret:
    return msgspec.structs.replace(version, until_at=at)


def shown(version: SealedSecret) -> SecretVersion:
    facts = msgspec.structs.asdict(version)
    del facts["sealed"]
    return SecretVersion(**facts)


async def test_a_secret_is_given_back_as_it_was_stored(store: Store) -> None:
    full = secret(HOSTILE, key=HOSTILE, sealed=HOSTILE, created_by=HOSTILE, created_at=2**53)
    large = secret("large", sealed="x" * 2 * MAX_SECRET)
    assert [await store.put_secret(each, LATER) for each in (full, large)] == [True, True]
    assert await store.sealed_secrets(["large", "nobody", HOSTILE, "large"]) == [[large], [], [full], [large]]
    assert await store.secrets() == [shown(full), shown(large)]


async def test_secrets_are_listed_by_name_in_the_order_of_code_points_and_the_newest_version_first(store: Store) -> None:
    names = ["b", "a", "Z", "ä", "a-1", "a_1"]
    for name in names:
        await store.put_secret(secret(name), LATER)
    await store.put_secret(secret("a", 2), LATER)
    listed = [(each.name, each.version) for each in await store.secrets()]
    assert listed == [(name, version) for name in sorted(names) for version in ((2, 1) if name == "a" else (1,))]


async def test_only_the_version_after_the_newest_is_stored(store: Store) -> None:
    assert not await store.put_secret(secret(version=2), LATER)
    assert await store.put_secret(secret(), LATER)
    assert not await store.put_secret(secret(sealed="another"), LATER)
    assert not await store.put_secret(secret(version=3), LATER)
    assert await store.put_secret(secret(version=2), LATER)
    assert await store.sealed_secrets(["billing"]) == [[secret(version=2), until(secret(), LATER)]]


async def test_a_repeated_put_is_answered_as_the_first_and_changes_nothing(store: Store) -> None:
    assert [await store.put_secret(secret(), LATER) for _ in range(2)] == [True, True]
    assert [await store.put_secret(secret(version=2), LATER) for _ in range(2)] == [True, True]
    assert await store.put_secret(secret(), LATER), "also when a newer version was put meanwhile"
    assert await store.sealed_secrets(["billing"]) == [[secret(version=2), until(secret(), LATER)]]


async def test_former_versions_are_returned_until_they_end(store: Store, clock: ManualClock) -> None:
    await store.put_secret(secret(), LATER)
    end = clock.now() + 10 * SECOND
    await store.put_secret(secret(version=2), end)
    clock.advance(9)
    assert await store.sealed_secrets(["billing"]) == [[secret(version=2), until(secret(), end)]]
    clock.advance(1)
    assert await store.sealed_secrets(["billing"]) == [[secret(version=2)]]
    assert await store.secrets() == [shown(secret(version=2))]
    assert [await store.prune_secrets() for _ in range(2)] == [1, 0]
    assert await store.sealed_secrets(["billing"]) == [[secret(version=2)]]


async def test_a_put_ends_former_versions_no_later_than_they_were_to_end(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    await store.put_secret(secret(), LATER)
    await store.put_secret(secret(version=2), now + 5 * SECOND)
    await store.put_secret(secret(version=3), now + 9 * SECOND)
    [versions] = await store.sealed_secrets(["billing"])
    assert [each.until_at for each in versions] == [None, now + 9 * SECOND, now + 5 * SECOND]
    await store.put_secret(secret(version=4), now)
    assert await store.sealed_secrets(["billing"]) == [[secret(version=4)]]
    assert await store.prune_secrets() == 0, "a put removes what it ends"


async def test_of_too_many_versions_the_oldest_are_removed(store: Store) -> None:
    for version in range(1, MOST_VERSIONS + 4):
        assert await store.put_secret(secret(version=version), LATER)
    [versions] = await store.sealed_secrets(["billing"])
    assert [each.version for each in versions] == list(range(MOST_VERSIONS + 3, 3, -1))


async def test_a_removed_secret_is_gone_with_all_versions_and_may_be_put_again(store: Store) -> None:
    await store.put_secret(secret(), LATER)
    await store.put_secret(secret(version=2), LATER)
    await store.put_secret(secret("other"), LATER)
    assert [await store.remove_secret("billing") for _ in range(2)] == [True, False]
    assert await store.sealed_secrets(["billing", "other"]) == [[], [secret("other")]]
    assert not await store.put_secret(secret(version=3), LATER)
    assert await store.put_secret(secret(sealed="new"), LATER)
    assert [await store.remove_secret(name) for name in ("billing", "other", "billing")] == [True, True, False]


async def test_a_value_is_resealed_only_where_it_is_still_the_stored_one(store: Store) -> None:
    await store.put_secret(secret(), LATER)
    await store.put_secret(secret(version=2), LATER)
    await store.put_secret(secret("other"), LATER)
    old, new, other = until(secret(), LATER), secret(version=2), secret("other")
    changes = [(before, msgspec.structs.replace(before, key="b", sealed=f"again {before.sealed}")) for before in (old, new, other)]
    await store.remove_secret("other")
    await store.put_secret(secret("other", sealed="put meanwhile"), LATER)
    assert await store.reseal_secrets(changes) == [True, True, False]
    assert await store.reseal_secrets(changes) == [False, False, False]
    assert await store.sealed_secrets(["billing", "other"]) == [[changes[1][1], changes[0][1]], [secret("other", sealed="put meanwhile")]]


async def test_no_names_and_no_changes_touch_nothing(store: Store) -> None:
    assert await store.sealed_secrets([]) == []
    assert await store.reseal_secrets([]) == []
    assert await store.secrets() == []
    assert not await store.remove_secret(HOSTILE)


async def test_of_many_who_put_the_same_version_one_succeeds(store: Store, another: Another) -> None:
    stores = [store, await another()]
    await store.put_secret(secret(), LATER)
    puts = [stores[index % len(stores)].put_secret(secret(version=2, sealed=f"value {index}"), LATER) for index in range(8)]
    assert sorted(await asyncio.gather(*puts)) == [False] * 7 + [True]
    [versions] = await store.sealed_secrets(["billing"])
    assert [each.version for each in versions] == [2, 1]
