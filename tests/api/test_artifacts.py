"""Artifacts over HTTP: announced and committed by admins, uploaded by whoever has the address; and the same through an App."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from duetime import App, ArtifactNotFound, Conflict, InvalidValue, NotAllowed, StoredCommand, StoredHttp
from duetime.api.server import Server
from duetime.artifacts.folder import FolderBlobs
from duetime.client.artifacts import LocalArtifacts
from duetime.clock import ManualClock
from duetime.model.artifacts import UPLOAD_WITHIN, Artifact
from duetime.model.targets import NewTarget
from duetime.store.artifacts import ArtifactGone, SeenArtifact
from duetime.store.sqlite.store import SqliteStore
from duetime.targets.declaring import declaration_of
from duetime.targets.stored.specs import spec_of
from tests.api.conftest import Client, new_app, served
from tests.api.test_tokens import Bearer, acts, bearer  # noqa: F401  # a fixture

SCRIPT = b"#!/bin/sh\necho hello\n"


def announced(content: bytes = SCRIPT, **more: Any) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "file": "report.sh", **more}


def tar_of(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


async def begin(http: Client, content: bytes = SCRIPT, name: str = "monthly", **more: Any) -> tuple[str, str]:
    """Announce an upload; return its address and that of its commit."""
    upload = (await http("POST", f"/v1/artifacts/{name}/uploads", announced(content, **more), status=201)).json
    return upload["url"], f"/v1/artifacts/{name}/uploads/{upload['id']}/commit"


async def put(http: Client, content: bytes = SCRIPT, name: str = "monthly", **more: Any) -> Any:
    url, commit = await begin(http, content, name, **more)
    await http("PUT", url, data=content, status=204)
    return (await http("POST", commit, status=201)).json


def kept(app: App, folder: str) -> list[str]:
    """Return the names of the blobs that are there."""
    blobs = app.blobs(app.store)
    assert isinstance(blobs, FolderBlobs)
    path = blobs._path(folder)
    return sorted(each.name for each in path.iterdir()) if path.exists() else []


@pytest.fixture
async def remote(app: App) -> AsyncIterator[App]:
    async with served(app) as http, App(http.url) as remote:
        yield remote


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_an_artifact_is_uploaded_listed_restored_and_deleted(
    request: pytest.FixtureRequest, tmp_path: Path, url: str, kind: str
) -> None:
    store = url if kind == "sqlite" else request.getfixturevalue("postgres_url")
    app = App(store, user="anna", artifacts=f"file://{tmp_path}/blobs")
    async with served(app) as http:
        assert (await http("GET", "/v1/artifacts")).json == {"items": [], "next": None}
        first = await put(http, run=["sh", "report.sh"], note="the first")
        digest = announced()["sha256"]
        assert {key: first[key] for key in first if not key.startswith("made")} == {
            "name": "monthly",
            "version": 1,
            "versions": 1,
            "sha256": digest,
            "size": len(SCRIPT),
            "kind": "file",
            "file": "report.sh",
            "run": ["sh", "report.sh"],
            "note": "the first",
        }
        packed = tar_of(**{"main.py": b"print('hello')"})
        second = await put(http, packed, file="monthly.tar.gz")
        assert (second["version"], second["versions"], second["kind"]) == (2, 2, "tar")
        assert (await http("GET", "/v1/artifacts")).json["items"] == [second]
        assert [each["version"] for each in (await http("GET", "/v1/artifacts/monthly")).json["items"]] == [2, 1]
        assert (await http("GET", "/v1/artifacts/monthly/versions/newest")).json == second
        assert (await http("GET", "/v1/artifacts/monthly/versions/1")).json == {**first, "versions": 2}
        again = (await http("POST", "/v1/artifacts/monthly/versions/1/restore", status=201)).json
        assert (again["version"], again["sha256"], again["run"], again["note"]) == (3, digest, ["sh", "report.sh"], "version 1 again")
        assert (await http("DELETE", "/v1/artifacts/monthly/versions/1")).json["version"] == 1
        assert kept(app, "sha256") == sorted([digest, second["sha256"]]), "version 3 needs the bytes of version 1"
        for version in (2, 3):
            await http("DELETE", f"/v1/artifacts/monthly/versions/{version}")
        assert kept(app, "sha256") == kept(app, "uploads") == []
        assert (await put(http))["version"] == 4, "a number is never used again"


async def test_the_same_bytes_again_are_no_new_version(http: Client) -> None:
    first = await put(http)
    assert await put(http) == first
    assert (await put(http, run=["sh", "report.sh"]))["version"] == 2


async def test_what_was_not_announced_is_refused(http: Client, app: App) -> None:
    url, commit = await begin(http)
    assert "nothing was uploaded yet" in (await http.problem("POST", commit, status=409))["detail"]
    await http.problem("PUT", url, data=SCRIPT + b"\n", status=413)
    await http.problem("PUT", url, data=SCRIPT[:-1], status=422)

    async def pieces(content: bytes) -> AsyncIterator[bytes]:
        yield content[:5]
        yield content[5:]

    await http.problem("PUT", url, data=pieces(SCRIPT + b"\n"), status=413)
    await http.problem("PUT", url, data=pieces(SCRIPT[:-1]), status=422)
    assert kept(app, "uploads") == [], "nothing of it is kept"
    await http("PUT", url, data=SCRIPT.upper(), status=204)
    assert "their SHA-256 is" in (await http.problem("POST", commit, status=409))["detail"]
    assert (await http("GET", "/v1/artifacts")).json["items"] == []
    await http("PUT", url, data=pieces(SCRIPT), status=204)
    assert (await http("POST", commit, status=201)).json["version"] == 1
    await http.problem("PUT", url, data=SCRIPT, status=409)
    assert (await http("POST", commit, status=201)).json["version"] == 1, "a commit can be repeated"


async def test_an_address_that_was_changed_is_no_address(http: Client, app: App) -> None:
    url, commit = await begin(http)
    other, _ = await begin(http)
    signature = url.partition("=")[2]
    for wrong in (
        url[:-1],
        url.partition("?")[0],
        url.replace(signature, other.partition("=")[2]),
        url.replace(signature, signature.swapcase()),
        url.replace("/v1/uploads/", "/v1/uploads/0"),
        "/v1/uploads/..%2Fsha256?signature=x",
        "/v1/uploads/x?signature=x",
    ):
        await http.problem("PUT", wrong, data=SCRIPT, status=404)
    await http.problem("POST", commit.replace("monthly", "another"), status=404)
    await http.problem("POST", commit.replace("uploads/", "uploads/0"), status=404)
    assert kept(app, "uploads") == []


async def test_an_address_is_good_for_a_quarter_of_an_hour_and_what_was_not_committed_is_removed(tmp_path: Path) -> None:
    clock = ManualClock()
    app = App("sqlite:///:memory:", artifacts=f"file://{tmp_path}/blobs")
    async with app.using_store(SqliteStore(":memory:", clock=clock)), served(app) as http:
        url, commit = await begin(http)
        clock.advance(UPLOAD_WITHIN - 1)
        await http("PUT", url, data=SCRIPT, status=204)
        clock.advance(1)
        assert "was over at" in (await http.problem("PUT", url, data=SCRIPT, status=409))["detail"]
        assert "was over at" in (await http.problem("POST", commit, status=409))["detail"]
        assert len(kept(app, "uploads")) == 1
        clock.advance(61)
        await begin(http)
        assert kept(app, "uploads") == []
        await http.problem("PUT", url, data=SCRIPT, status=404)


@pytest.mark.parametrize(
    ("body", "pointer", "words"),
    [
        ({"sha256": "x"}, "/sha256", "[0-9a-f]{64}"),
        ({"size": 0}, "/size", ">= 1"),
        ({"size": 500_000_001}, "/size", "1 to 500,000,000 bytes, got 500,000,001"),
        ({"file": "../main.py"}, "/file", "without folders"),
        ({"file": "."}, "/file", "without folders"),
        ({"file": "ä" * 200}, "/file", "1 to 255 bytes"),
        ({"run": "python main.py"}, "/run", "expected an array"),
        ({"run": ["a\0b"]}, "/run", "without NUL"),
        ({"note": "x" * 1_001}, "/note", "1000"),
        ({"url": "http://127.0.0.1"}, "", "url"),
    ],
)
async def test_what_is_wrong_is_pointed_at(http: Client, body: dict[str, Any], pointer: str, words: str) -> None:
    problem = await http.problem("POST", "/v1/artifacts/monthly/uploads", announced(**body) | body, status=422)
    assert problem["errors"][0]["pointer"].startswith(pointer), problem
    assert words in problem["detail"], problem


async def test_names_and_versions_are_checked(http: Client) -> None:
    for method, path, status in (
        ("POST", "/v1/artifacts/a%40b/uploads", 422),
        ("GET", "/v1/artifacts/a%40b", 422),
        ("GET", "/v1/artifacts/nothing", 404),
        ("GET", "/v1/artifacts/nothing/versions/newest", 404),
        ("GET", "/v1/artifacts/nothing/versions/0", 422),
        ("GET", "/v1/artifacts/nothing/versions/x", 422),
        ("DELETE", "/v1/artifacts/nothing/versions/1", 404),
        ("DELETE", "/v1/artifacts/nothing/versions/newest", 422),
        ("POST", "/v1/artifacts/nothing/versions/1/restore", 404),
    ):
        await http.problem(method, path, announced() if path.endswith("uploads") else None, status=status)
    hostile = quote("../../etc/passwd", safe="")
    assert (await put(http, name=hostile))["name"] == "../../etc/passwd"


async def test_an_archive_that_is_not_safe_is_refused_when_it_is_committed(http: Client, app: App) -> None:
    packed = tar_of(**{"../outside": b"x"})
    url, commit = await begin(http, packed, file="bad.tar.gz")
    await http("PUT", url, data=packed, status=204)
    problem = await http.problem("POST", commit, status=422)
    assert "bad.tar.gz cannot be an artifact: a member is called '../outside', which leads out of the archive" in problem["detail"]
    assert kept(app, "sha256") == []
    assert (await put(http, packed, file="bad.tar.gz", unpack=False))["kind"] == "file"


async def test_artifacts_are_for_admins_and_every_act_is_in_the_audit(app: App, bearer: Bearer) -> None:  # noqa: F811
    operator, admin, nobody = (
        await bearer("operator", "operate", "submit", "read", "work"),
        await bearer("root", "admin"),
        await bearer(None),
    )
    url, commit = await begin(admin)
    for method, path, body in (
        ("GET", "/v1/artifacts", None),
        ("GET", "/v1/artifacts/monthly", None),
        ("GET", "/v1/artifacts/monthly/versions/1", None),
        ("POST", "/v1/artifacts/monthly/uploads", announced()),
        ("POST", commit, None),
        ("POST", "/v1/artifacts/monthly/versions/1/restore", None),
        ("DELETE", "/v1/artifacts/monthly/versions/1", None),
    ):
        await operator.problem(method, path, body, status=403)
        await nobody.problem(method, path, body, status=401)
    await nobody("PUT", url, data=SCRIPT, status=204)
    assert (await admin("POST", commit, status=201)).json["made_by"] == "root"
    await admin("DELETE", "/v1/artifacts/monthly/versions/1")
    assert await acts(app) == [
        ("root", "artifacts.begin", "monthly", "done"),
        ("root", "artifacts.put", "monthly", "done"),
        ("root", "artifacts.delete", "monthly@1", "done"),
    ]
    audit = repr(await app.tokens.audit.list())
    assert url.partition("=")[2] not in audit, "an address is as good as a token"


async def test_an_upload_may_take_longer_than_other_requests_once_its_address_is_known_to_be_good(app: App) -> None:
    async def slowly(began: asyncio.Event, go_on: asyncio.Event) -> AsyncIterator[bytes]:
        yield SCRIPT[:3]
        began.set()
        await go_on.wait()
        yield SCRIPT[3:]

    async with served(app, arrive_within=0.3) as http:
        assert isinstance(http.server, Server)
        good, wrong = (await begin(http))[0], "/v1/uploads/x?signature=x"
        for url, status in ((wrong, 404), (good, 204)):
            began, go_on = asyncio.Event(), asyncio.Event()
            sending = asyncio.create_task(http("PUT", url, data=slowly(began, go_on), status=status))
            await began.wait()
            if status == 204:
                # another connection is refused for arriving too slowly, although it began later
                reader, writer = await asyncio.open_connection("127.0.0.1", int(http.url.rpartition(":")[2]))
                writer.write(b"POST /v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{")
                assert b" 408 " in await reader.readline()
                writer.close()
                await writer.wait_closed()
                assert not sending.done()
            go_on.set()
            await sending


async def test_an_app_over_a_server_does_the_same(remote: App, app: App, tmp_path: Path) -> None:
    path = tmp_path / "monthly.tar.gz"
    path.write_bytes(tar_of(**{"main.py": b"print('hello')"}))
    info = await remote.artifacts.put("monthly/eu", path, run="python main.py", note="hello")
    assert info == (await app.artifacts.list())[0] == await remote.artifacts.get("monthly/eu") == await remote.artifacts.get("monthly/eu@1")
    assert (info.run, info.kind, info.file) == (("python", "main.py"), "tar", "monthly.tar.gz")
    path.write_bytes(tar_of(**{"main.py": b"print('goodbye')"}))
    second = await remote.artifacts.put("monthly/eu", path)
    assert await remote.artifacts.list("monthly/eu") == await app.artifacts.list("monthly/eu")
    assert (await remote.artifacts.restore("monthly/eu@1")).version == 3
    assert (await remote.artifacts.delete("monthly/eu@2")).sha256 == second.sha256
    for call in (remote.artifacts.get("monthly/eu@2"), remote.artifacts.delete("monthly/eu@2"), remote.artifacts.list("nothing")):
        with pytest.raises(ArtifactNotFound, match="there is no artifact"):
            await call
    with pytest.raises(InvalidValue, match="say which version is meant, such as monthly/eu@1"):
        await remote.artifacts.delete("monthly/eu")
    with pytest.raises(InvalidValue, match="cannot be read: No such file"):
        await remote.artifacts.put("monthly", tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidValue, match="is empty"):
        await remote.artifacts.put("monthly", tmp_path / "empty")
    with pytest.raises(InvalidValue, match="must not contain '@'"):
        await remote.artifacts.put("a@b", path)
    with pytest.raises(InvalidValue, match="No closing quotation"):
        await remote.artifacts.put("monthly", path, run="python 'main.py")


async def test_an_app_with_too_small_a_token_is_told_so(app: App, bearer: Bearer, tmp_path: Path) -> None:  # noqa: F811
    operator = await bearer("operator", "operate")
    (tmp_path / "a").write_bytes(b"x")
    async with App(operator.url, token=operator.token or "") as remote:
        with pytest.raises(NotAllowed, match="admin"):
            await remote.artifacts.put("monthly", tmp_path / "a")


async def test_a_server_that_does_not_know_where_to_keep_them_says_what_to_do() -> None:
    async with served(new_app("sqlite:///:memory:")) as http:
        problem = await http.problem("POST", "/v1/artifacts/monthly/uploads", announced(), status=409)
        assert "set DUETIME_ARTIFACTS to a folder that all workers reach" in problem["detail"]
        assert (await http("GET", "/v1/artifacts")).json["items"] == []


async def test_bytes_that_a_delete_takes_away_at_the_same_moment_are_written_again(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.sh"
    path.write_bytes(SCRIPT)
    async with app:
        artifacts = app.artifacts
        assert isinstance(artifacts, LocalArtifacts)
        finish = app.store.finish_upload

        async def finish_and_lose(*args: Any) -> Any:
            made = await finish(*args)
            blobs = artifacts.kept()
            await blobs.delete(f"sha256/{announced()['sha256']}")
            return made

        monkeypatch.setattr(app.store, "finish_upload", finish_and_lose)
        await artifacts.put("monthly", path)
        assert kept(app, "sha256") == [announced()["sha256"]]


async def test_a_version_that_is_deleted_while_it_is_restored_is_not_restored(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.sh"
    path.write_bytes(SCRIPT)
    async with app:
        await app.artifacts.put("monthly", path)
        add = app.store.add_upload

        async def delete_and_add(upload: Any) -> None:
            await app.artifacts.delete("monthly@1")
            await add(upload)

        monkeypatch.setattr(app.store, "add_upload", delete_and_add)
        with pytest.raises(ArtifactNotFound):
            await app.artifacts.restore("monthly@1")
        assert await app.artifacts.list() == []
        assert not await app.store.needs_blob(announced()["sha256"])


async def test_a_version_that_a_stored_target_needs_is_deleted_only_by_force(http: Client, remote: App, app: App) -> None:
    for content in (b"first\n", b"second\n", b"third\n"):
        await put(http, content)
    for name, command in {
        "pinned": StoredCommand(artifact="monthly@2"),
        "again": StoredCommand(artifact="monthly@2", argv=["sh", "{artifact}"]),
        "newest": StoredCommand(artifact="monthly"),
        "another": StoredCommand(artifact="monthly-two@1"),
        "other": StoredCommand(argv=["true"]),
    }.items():
        await app.targets.put(name, command)
    await app.targets.put("web", StoredHttp(url="https://example.com", body={"artifact": "monthly@3"}))
    versions = "/v1/artifacts/monthly/versions"
    await http("DELETE", f"{versions}/3")
    problem = await http.problem("DELETE", f"{versions}/2", status=409)
    assert problem["detail"].startswith("monthly@2 is needed by 2 stored handlers, again and pinned: without it their tasks fail. ")
    assert "force=true removes it all the same. Handlers that are declared by code are not known here" in problem["detail"]
    with pytest.raises(Conflict, match="2 stored handlers, again and pinned"):
        await remote.artifacts.delete("monthly@2")
    assert [each.version for each in await app.artifacts.list("monthly")] == [2, 1]
    await http("DELETE", f"{versions}/2?force=true")
    with pytest.raises(Conflict, match="monthly@1 is needed by 1 stored handler, newest: "):
        await app.artifacts.delete("monthly@1")
    with pytest.raises(ArtifactNotFound):
        await app.artifacts.delete("monthly@2")
    assert (await remote.artifacts.delete("monthly@1", force=True)).version == 1
    await http.problem("GET", "/v1/artifacts/monthly", status=404)


async def test_a_target_that_is_put_while_its_artifact_is_deleted_keeps_it(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.sh").write_bytes(SCRIPT)
    await app.artifacts.put("monthly", tmp_path / "report.sh")
    remove = app.store.remove_artifact

    async def remove_late(name: str, version: int, seen: SeenArtifact | None = None) -> Artifact | ArtifactGone:
        await app.targets.put("nightly", StoredCommand(artifact="monthly@1"))  # after nobody was found to need it
        return await remove(name, version, seen)

    monkeypatch.setattr(app.store, "remove_artifact", remove_late)
    with pytest.raises(Conflict, match="monthly@1 is needed by 1 stored handler, nightly: "):
        await app.artifacts.delete("monthly@1")
    assert (await app.artifacts.get("monthly@1")).version == 1


async def test_a_target_of_a_newer_release_needs_its_artifact_too(app: App, tmp_path: Path) -> None:
    (tmp_path / "report.sh").write_bytes(SCRIPT)
    await app.artifacts.put("monthly", tmp_path / "report.sh")
    spec = spec_of("future", StoredCommand(artifact="monthly@1"))
    definition = b'{"kind": "command", "artifact": "monthly@1", "gpu": true}'
    await app.store.put_target(NewTarget(name="future", kind="command", definition=definition, changed_by="x"), declaration_of(spec), None)
    with pytest.raises(Conflict, match="monthly@1 is needed by 1 stored handler, future: "):
        await app.artifacts.delete("monthly@1")
