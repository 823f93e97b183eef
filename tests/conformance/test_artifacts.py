"""Versions of artifacts and the uploads that become them: a number means the same bytes for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from duetime.model.artifacts import Artifact, Upload
from duetime.model.targets import NewTarget
from duetime.store import Store
from duetime.store.artifacts import ArtifactGone, SeenArtifact
from duetime.targets.declaring import declaration_of
from duetime.targets.stored.definitions import StoredCommand
from duetime.targets.stored.specs import spec_of
from tests.conformance.conftest import Another

HOSTILE = "'); drop table duetime_artifact; -- \" \\ {} %s $1 / \N{SNOWMAN}\U0001f600"


def upload(id: str, name: str = "monthly", **facts: Any) -> Upload:
    content = {"sha256": "a" * 64, "size": 7, "file": "main.py", "run": ("python", "main.py"), "made_at": 5, "made_by": "anna"}
    return Upload(**{"id": id, "name": name, "unpack": True, "signature": "b" * 64, "expires_at": 100, **content, **facts})


async def put(store: Store, id: str, name: str = "monthly", **facts: Any) -> Artifact:
    await store.add_upload(upload(id, name, **{"sha256": id.rjust(64, "0"), **facts}))
    made = await store.finish_upload(id, "tar")
    assert made is not None
    return made


async def test_an_upload_is_given_back_as_it_was_stored(store: Store) -> None:
    facts: dict[str, Any] = {"file": HOSTILE, "run": (HOSTILE, ""), "note": HOSTILE, "made_by": HOSTILE}
    full = upload(HOSTILE, HOSTILE, sha256=HOSTILE, signature=HOSTILE, size=2**53, made_at=2**53, expires_at=2**53, unpack=False, **facts)
    await store.add_upload(full)
    await store.add_upload(upload(HOSTILE, "another"))
    assert await store.upload(HOSTILE) == full, "a repeat changes nothing"
    assert await store.upload("nothing") is None
    made = await store.finish_upload(HOSTILE, "zip")
    assert made == Artifact(name=HOSTILE, sha256=HOSTILE, size=2**53, made_at=2**53, version=1, kind="zip", **facts)
    assert await store.artifact(HOSTILE, 1) == await store.artifact(HOSTILE) == made
    assert await store.artifacts() == await store.artifacts(HOSTILE) == [made]


async def test_finished_uploads_are_versions_one_after_the_other(store: Store) -> None:
    first, second, other = await put(store, "1"), await put(store, "2"), await put(store, "3", "another")
    assert [(each.name, each.version) for each in (first, second, other)] == [("monthly", 1), ("monthly", 2), ("another", 1)]
    assert await store.artifact("monthly") == second
    assert await store.artifact("monthly", 1) == first
    assert await store.artifacts("monthly") == [second, first]
    assert await store.artifacts() == [other, second, first]
    assert (await store.artifact("monthly", 3), await store.artifact("nothing"), await store.artifacts("nothing")) == (None, None, [])
    finished = await store.upload("2")
    assert finished is not None
    assert finished.version == 2


async def test_what_is_the_newest_version_already_becomes_no_other_one(store: Store) -> None:
    first = await put(store, "1", sha256="c" * 64)
    assert await put(store, "2", sha256="c" * 64, made_by="bert", note="again") == first
    assert (await put(store, "3", sha256="c" * 64, run=("sh",))).version == 2
    assert (await put(store, "4", sha256="c" * 64)).version == 3, "version 1 is not the newest one any more"
    await store.add_upload(upload("5", sha256="c" * 64))
    made = await store.finish_upload("5", "file")
    assert made is not None
    assert made.version == 4


async def test_a_repeated_finish_returns_the_same_version(store: Store) -> None:
    made = await put(store, "1")
    await put(store, "2")
    assert await store.finish_upload("1", "tar") == made
    assert await store.finish_upload("nothing", "tar") is None
    await store.remove_artifact("monthly", 1)
    assert await store.finish_upload("1", "tar") is None
    assert len(await store.artifacts()) == 1


async def test_the_number_of_a_removed_version_is_never_used_again(store: Store) -> None:
    first, second = await put(store, "1"), await put(store, "2")
    assert [await store.remove_artifact("monthly", 2) for _ in range(2)] == [second, ArtifactGone.UNKNOWN]
    assert await store.artifact("monthly", 2) is None
    assert await store.artifact("monthly") == first
    assert (await put(store, "3")).version == 3
    for version in (1, 3):
        assert isinstance(await store.remove_artifact("monthly", version), Artifact)
    assert await store.artifacts() == []
    assert (await put(store, "4")).version == 4
    assert await store.remove_artifact("nothing", 1) is ArtifactGone.UNKNOWN


async def seen_now(store: Store) -> SeenArtifact:
    versions = tuple(each.version for each in await store.artifacts("monthly"))
    return SeenArtifact((await store.target_versions()).version, versions)


async def test_a_version_is_removed_only_if_nothing_has_changed_since_it_was_judged(store: Store) -> None:
    first, _ = await put(store, "1"), await put(store, "2")
    seen = await seen_now(store)
    spec = spec_of("nightly", StoredCommand(artifact="monthly@1"))
    definition = b'{"kind": "command", "artifact": "monthly@1"}'
    await store.put_target(NewTarget(name="nightly", kind="command", definition=definition, changed_by="anna"), declaration_of(spec))
    assert await store.remove_artifact("monthly", 1, seen) is ArtifactGone.CHANGED
    seen = await seen_now(store)
    await put(store, "3")
    assert await store.remove_artifact("monthly", 1, seen) is ArtifactGone.CHANGED
    assert len(await store.artifacts("monthly")) == 3
    assert await store.remove_artifact("monthly", 9, await seen_now(store)) is ArtifactGone.UNKNOWN
    assert await store.remove_artifact("monthly", 1, await seen_now(store)) == first


async def test_of_two_who_remove_the_last_versions_at_once_one_looks_again(store: Store, another: Another) -> None:
    await put(store, "1")
    await put(store, "2")
    seen, other = await seen_now(store), await another()
    answers = await asyncio.gather(store.remove_artifact("monthly", 1, seen), other.remove_artifact("monthly", 2, seen))
    assert ArtifactGone.CHANGED in answers
    assert len(await store.artifacts("monthly")) == 1


async def test_bytes_are_needed_by_versions_and_by_uploads_that_are_to_come(store: Store) -> None:
    digest = "d" * 64
    assert not await store.needs_blob(digest)
    await store.add_upload(upload("1", sha256=digest))
    assert await store.needs_blob(digest)
    await store.finish_upload("1", "tar")
    await put(store, "2", "another", sha256=digest)
    await store.remove_artifact("monthly", 1)
    assert await store.needs_blob(digest)
    await store.remove_artifact("another", 1)
    assert not await store.needs_blob(digest)


async def test_uploads_whose_time_is_over_are_found_and_forgotten(store: Store) -> None:
    for id, expires_at in (("late", 300), ("b", 100), ("a", 100), ("first", 50)):
        await store.add_upload(upload(id, expires_at=expires_at))
    await store.finish_upload("first", "tar")
    assert await store.ended_uploads(101, 10) == ["first", "a", "b"]
    assert await store.ended_uploads(101, 2) == ["first", "a"]
    assert await store.ended_uploads(50, 10) == []
    await store.remove_uploads([])
    await store.remove_uploads(["first", "a", "nothing"])
    assert await store.ended_uploads(1_000, 10) == ["b", "late"]
    assert await store.upload("first") is None
    assert await store.artifact("monthly", 1) is not None


async def test_many_who_finish_at_once_get_versions_of_their_own(store: Store, another: Another) -> None:
    stores = [store, await another()]
    for index in range(8):
        await store.add_upload(upload(str(index), sha256=str(index) * 64))
    made = await asyncio.gather(*(stores[index % 2].finish_upload(str(index), "tar") for index in range(8) for _ in range(2)))
    assert sorted(each.version for each in made if each is not None) == sorted([*range(1, 9)] * 2)
