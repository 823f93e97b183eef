"""Artifacts that somebody has put past all checks: a worker unpacks and runs none of them, and nothing of them is left."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from duetime import App, RetryPolicy, State, TaskFailed
from duetime.artifacts.blobs import blob_key
from duetime.model.artifacts import ArtifactKind, Upload
from tests.servers.waiting import PATIENCE
from tests.unit.test_unpacking import OUTSIDE, member, tar, zipped

pytestmark = pytest.mark.slow


async def put_unchecked(app: App, name: str, path: Path, content: bytes, kind: ArtifactKind) -> None:
    """Write an artifact into store and folder, as somebody could who has got hold of both."""
    digest = hashlib.sha256(content).hexdigest()
    blobs = app.blobs(app.store)
    assert blobs is not None
    await blobs.write(blob_key(digest), path)
    facts = {"sha256": digest, "size": len(content), "file": path.name, "run": ("touch", f"{path.parent}/ran"), "made_by": "mallory"}
    await app.store.add_upload(Upload(id=name, name=name, unpack=True, signature="", made_at=0, expires_at=0, **facts))  # type: ignore[arg-type]
    assert await app.store.finish_upload(name, kind) is not None


async def test_no_unsafe_archive_is_unpacked_or_run_by_a_worker(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/store.db", artifact_cache=f"{tmp_path}/outer/cache")
    (tmp_path / "outer").mkdir()
    archives: dict[str, tuple[Path, ArtifactKind]] = {}
    for index, (what, members) in enumerate(OUTSIDE.items()):
        archives[what] = tar(tmp_path / f"{index}.tar.gz", members), "tar"
    archives["bomb"] = tar(tmp_path / "bomb.tar.gz", [member("a", b"\0" * 20_000_000)]), "tar"
    archives["zip out"] = zipped(tmp_path / "out.zip", [("../outside", b"x")]), "zip"
    archives["zip that is a tar"] = archives["parent"][0], "zip"
    await app.open()
    for what, (path, kind) in archives.items():
        await put_unchecked(app, what, path, path.read_bytes(), kind)
        app.command(what, artifact=what, retry=RetryPolicy(tries=5, base=0))
    async with app.worker():
        for what in archives:
            task = await app.handler(what).now()
            with pytest.raises(TaskFailed) as raised:
                await app.result(task, timeout=PATIENCE)
            assert raised.value.error_type == "ArtifactUnsafe", what
            found = await app.get(task)
            assert (found.state, found.attempt) == (State.FAILED, 1), "it is not tried again"
    assert os.listdir(tmp_path / "outer") == ["cache"]
    assert {each.suffix for each in (tmp_path / "outer" / "cache").iterdir()} == {".lock"}, "the cache is clean"
    assert not (tmp_path / "ran").exists()
