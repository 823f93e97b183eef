"""Artifacts in a bucket of a real S3-compatible server: uploaded past our server, and trusted only after they were read and hashed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import aiohttp
import pytest

from duetime import App, Conflict, RetryPolicy, StoreUnavailable, TaskFailed
from duetime.artifacts.blobs import blob_key, blobs_at, upload_key
from duetime.artifacts.bucket import BucketBlobs
from duetime.client.artifacts import LocalArtifacts
from duetime.model import artifacts as model
from tests.api.conftest import Client, served, until
from tests.servers.buckets import SeaweedServer
from tests.servers.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

SCRIPT = b"#!/bin/sh\necho from the bucket\n"
URL = "s3://artifacts/of/tests"


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedServer]:
    with SeaweedServer() as server:
        yield server


@pytest.fixture
async def blobs(server: SeaweedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> BucketBlobs:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    found = blobs_at(URL)
    assert isinstance(found, BucketBlobs)
    (tmp_path / "first").write_bytes(b"first")
    while True:  # it takes connections before it can make buckets
        try:
            await found.write("first", tmp_path / "first")
            return found
        except StoreUnavailable:
            wait_until("the server still runs", server._is_ready)


@pytest.fixture
async def app(blobs: BucketBlobs, tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path}/store.db", artifacts=URL, artifact_cache=f"{tmp_path}/cache")


@pytest.fixture
async def http(app: App) -> AsyncIterator[Client]:
    async with served(app) as client:
        yield client


def announced(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "file": "report.sh"}


async def send(url: str, content: bytes) -> int:
    async with aiohttp.ClientSession() as session, session.put(url, data=content) as answer:
        return answer.status


async def content_of(blobs: BucketBlobs, key: str) -> bytes:
    return b"".join([piece async for piece in blobs.read(key)])


@pytest.mark.covers("REQ.9")
async def test_a_presigned_upload_is_committed_once_its_hash_was_computed(http: Client, blobs: BucketBlobs) -> None:
    upload = (await http("POST", "/v1/artifacts/monthly/uploads", announced(SCRIPT), status=201)).json
    assert upload["url"].startswith(f"{os.environ['AWS_ENDPOINT_URL']}/artifacts/of/tests/uploads/")
    commit = f"/v1/artifacts/monthly/uploads/{upload['id']}/commit"
    assert "nothing was uploaded yet" in (await http.problem("POST", commit, status=409))["detail"]
    assert await send(upload["url"], SCRIPT + b"rm -rf /") == 200, "a presigned address binds neither size nor hash"
    assert "more than the announced" in (await http.problem("POST", commit, status=409))["detail"]
    assert await send(upload["url"], SCRIPT.upper()) == 200
    assert "SHA-256" in (await http.problem("POST", commit, status=409))["detail"]
    assert (await http("GET", "/v1/artifacts")).json["items"] == []
    assert await send(upload["url"], SCRIPT) == 200
    made = (await http("POST", commit, status=201)).json
    assert (made["version"], made["sha256"], made["kind"]) == (1, announced(SCRIPT)["sha256"], "file")
    assert (await http("POST", commit, status=201)).json == made
    assert await content_of(blobs, blob_key(made["sha256"])) == SCRIPT


async def test_what_is_uploaded_after_the_commit_changes_nothing_and_is_removed(
    http: Client, app: App, blobs: BucketBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duetime.client.artifacts.AFTER_THE_END", -2 * model.UPLOAD_WITHIN * 1_000_000)  # as if all had ended
    upload = (await http("POST", "/v1/artifacts/monthly/uploads", announced(SCRIPT), status=201)).json
    await send(upload["url"], SCRIPT)
    made = (await http("POST", f"/v1/artifacts/monthly/uploads/{upload['id']}/commit", status=201)).json
    assert await send(upload["url"], b"another program") == 200, "the address is still good"
    assert await content_of(blobs, blob_key(made["sha256"])) == SCRIPT
    assert await blobs.exists(upload_key(upload["id"]))
    await http("POST", "/v1/artifacts/monthly/uploads", announced(b"next"), status=201)
    assert not await blobs.exists(upload_key(upload["id"])), "the next upload removes what earlier ones have left"


async def test_tampered_and_expired_addresses_are_refused_by_the_bucket(app: App, blobs: BucketBlobs) -> None:
    good = await blobs.upload_url(upload_key("mine"), 60)
    assert good is not None
    parts = urlsplit(good)
    query = dict(parse_qsl(parts.query))
    for changed in (
        parts._replace(path=parts.path.replace("mine", "theirs")),
        parts._replace(path=parts.path.replace(upload_key("mine"), blob_key("0" * 64))),
        parts._replace(query=urlencode(query | {"X-Amz-Expires": "86400"})),
        parts._replace(query=urlencode(query | {"X-Amz-Signature": "0" * 64})),
        parts._replace(query=""),
    ):
        assert await send(urlunsplit(changed), b"x") == 403, urlunsplit(changed)
    assert await send(good, b"x") == 200
    short = await blobs.upload_url(upload_key("short"), 1)
    assert short is not None

    async def is_refused() -> bool:
        return await send(short, b"x") == 403

    await until(is_refused, "an address whose time is over is refused")


async def test_an_app_over_a_server_uploads_to_the_bucket_and_sends_it_no_token(
    app: App, blobs: BucketBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.sh"
    path.write_bytes(SCRIPT)
    async with app:
        token = (await app.tokens.create("root", scopes=["admin"])).token
        async with served(app) as http, App(http.url, token=token) as remote:
            made = await remote.artifacts.put("monthly", path, run="sh report.sh")
            assert (made.version, made.run, made.made_by) == (1, ("sh", "report.sh"), "root")
            assert await remote.artifacts.list() == [made]
    assert await content_of(blobs, blob_key(made.sha256)) == SCRIPT


async def test_local_put_restore_and_delete_keep_the_bucket_in_step(app: App, blobs: BucketBlobs, tmp_path: Path) -> None:
    path = tmp_path / "report.sh"
    async with app:
        digests = []
        for content in (SCRIPT, SCRIPT * 2):
            path.write_bytes(content)
            digests.append((await app.artifacts.put("nightly", path)).sha256)
        await app.artifacts.delete("nightly@2")
        assert not await blobs.exists(blob_key(digests[1]))
        await app.artifacts.put("another", path)
        again = await app.artifacts.restore("nightly@1")
        assert (again.version, again.sha256) == (1, digests[0]), "it is the newest one already"
        await app.artifacts.delete("nightly@1")
        assert not await blobs.exists(blob_key(digests[0]))
        assert await blobs.exists(blob_key(digests[1]))


async def test_a_worker_runs_what_was_committed_whatever_is_sent_to_the_address_later_and_nothing_that_was_changed_in_the_bucket(
    app: App, blobs: BucketBlobs, tmp_path: Path
) -> None:
    report = app.command("report", artifact="monthly", retry=RetryPolicy.none())
    artifacts = app.artifacts
    assert isinstance(artifacts, LocalArtifacts)
    upload = await artifacts.begin("monthly", **announced(SCRIPT))
    assert await send(upload.url, SCRIPT) == 200
    made = await artifacts.commit("monthly", upload.id)
    assert await send(upload.url, b"#!/bin/sh\necho another\n") == 200
    async with app.worker():
        task = await report.now()
        await app.result(task, timeout=PATIENCE)
        assert "".join(each.text for each in await app.output.read(task)) == "from the bucket\n"
        path = tmp_path / "changed.sh"
        path.write_bytes(SCRIPT.replace(b"bucket", b"gutter"))
        second = await artifacts.put("monthly", path, note="second")
        (tmp_path / "tampered").write_bytes(SCRIPT)
        await blobs.write(blob_key(second.sha256), tmp_path / "tampered")
        with pytest.raises(TaskFailed, match="were changed, and are not run") as raised:
            await app.result(await report.now(), timeout=PATIENCE)
        assert raised.value.error_type == "ArtifactTampered"
        await artifacts.restore(f"monthly@{made.version}")
        await app.result(await report.now(), timeout=PATIENCE)


async def test_a_bucket_that_cannot_be_reached_is_said_to_be_so(app: App, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("duetime.artifacts.bucket.PATIENCE", timedelta(seconds=1))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    path = tmp_path / "report.sh"
    path.write_bytes(SCRIPT)
    async with app:
        with pytest.raises(
            StoreUnavailable, match=r"the artifacts in s3://artifacts/of/tests cannot be read or written: .*AWS_ENDPOINT_URL"
        ):
            await app.artifacts.put("monthly", path)
        artifacts = app.artifacts
        assert isinstance(artifacts, LocalArtifacts)
        upload = await artifacts.begin("monthly", **announced(SCRIPT))
        stored = await app.store.upload(upload.id)
        assert stored is not None
        with pytest.raises(Conflict, match="uploads go to s3://artifacts/of/tests directly"):
            await artifacts.receive(stored, aiter_of(b""))


async def aiter_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
