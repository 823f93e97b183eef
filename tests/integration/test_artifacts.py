"""Commands that run artifacts: fetched by their hash, checked before they run, unpacked once, and named in the attempt's detail."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from duetime import App, InvalidValue, RetryPolicy, State, StoredCommand, Task, TaskFailed
from duetime.artifacts.blobs import Blobs, blob_key
from duetime.artifacts.cache import ArtifactCache
from duetime.artifacts.folder import FolderBlobs
from duetime.model.artifacts import Artifact
from tests.chaos.fleet import until
from tests.servers.waiting import PATIENCE

pytestmark = pytest.mark.slow

ONCE = RetryPolicy.none()
MAIN = b"import helper, json, os, sys\nos.write(3, json.dumps([helper.VALUE, open('data/a.txt').read(), json.load(sys.stdin)]).encode())\n"


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test", artifact_cache=str(tmp_path / "cache"))


def packed(path: Path, value: object = 1, **more: bytes) -> Path:
    files = {"main.py": MAIN, "helper.py": f"VALUE = {value}\n".encode(), "data/a.txt": b"text", **more}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


async def detail(app: App, task: Task[Any]) -> dict[str, Any]:
    [*_, last] = await app.attempts(task)
    return dict(last.detail or {})


async def failed(app: App, task: Task[Any]) -> TaskFailed:
    with pytest.raises(TaskFailed) as raised:
        await app.result(task, timeout=PATIENCE)
    return raised.value


def entries(tmp_path: Path) -> list[str]:
    """Return what is in the cache besides locks."""
    folder = tmp_path / "cache"
    return sorted(each.name for each in folder.iterdir() if each.suffix != ".lock") if folder.exists() else []


def blobs_of(app: App) -> FolderBlobs:
    blobs = app.blobs(app.store)
    assert isinstance(blobs, FolderBlobs)
    return blobs


@pytest.mark.covers("REQ.9")
async def test_an_archive_is_fetched_unpacked_and_run_and_the_newest_version_is_followed(app: App, tmp_path: Path) -> None:
    path = tmp_path / "monthly.tar.gz"
    newest = app.command("newest", artifact="monthly", retry=ONCE)
    pinned = app.command("pinned", artifact="monthly@1", retry=ONCE)
    run = f"{sys.executable} main.py"
    first = await app.artifacts.put("monthly", packed(path, 1), run=run)
    async with app.worker():
        task = await newest.now(order_id=7)
        assert await app.result(task, timeout=PATIENCE) == [1, "text", {"order_id": 7}]
        found = await detail(app, task)
        assert (found["artifact"], found["sha256"], found["exit_code"]) == ("monthly@1", first.sha256, 0)
        second = await app.artifacts.put("monthly", packed(path, 2), run=run)
        task = await newest.now()
        assert await app.result(task, timeout=PATIENCE) == [2, "text", {}]
        assert (await detail(app, task))["artifact"] == "monthly@2"
        assert await app.result(await pinned.now(), timeout=PATIENCE) == [1, "text", {}]
        await app.artifacts.restore("monthly@1")
        task = await newest.now()
        assert await app.result(task, timeout=PATIENCE) == [1, "text", {}]
        assert (await detail(app, task))["artifact"] == "monthly@3"
    assert entries(tmp_path) == sorted([f"{first.sha256}-tar", f"{second.sha256}-tar"])


@pytest.mark.covers("RED.4")
async def test_a_stored_command_follows_the_newest_version_or_stays_with_one_while_a_worker_runs(app: App, tmp_path: Path) -> None:
    path = tmp_path / "monthly.tar.gz"
    run = f"{sys.executable} main.py"
    await app.artifacts.put("monthly", packed(path, 1), run=run)
    await app.artifacts.put("monthly", packed(path, 2), run=run)
    await app.targets.put("newest", StoredCommand(artifact="monthly", retry=ONCE))
    await app.targets.put("pinned", StoredCommand(artifact="monthly@2", argv=[sys.executable, "{artifact}/main.py"], retry=ONCE))
    async with app.worker(targets=True, allow=["command"]):

        async def ran(name: str) -> tuple[object, object]:
            task = await app.handler(name).now()
            return (await app.result(task, timeout=PATIENCE))[0], (await detail(app, task))["artifact"]

        assert [await ran("newest"), await ran("pinned")] == [(2, "monthly@2"), (2, "monthly@2")]
        await app.artifacts.put("monthly", packed(path, 3), run=run)
        assert [await ran("newest"), await ran("pinned")] == [(3, "monthly@3"), (2, "monthly@2")]
        await app.artifacts.restore("monthly@1")
        assert [await ran("newest"), await ran("pinned")] == [(1, "monthly@4"), (2, "monthly@2")]


async def test_single_programs_zips_and_arguments_that_refer_to_the_artifact(app: App, tmp_path: Path) -> None:
    script = tmp_path / "report.sh"
    script.write_text('#!/bin/sh\nprintf \'"%s %s"\' "$0" "$1" >&3\n')
    with zipfile.ZipFile(tmp_path / "tool.zip", "w") as archive:
        info = zipfile.ZipInfo("bin/tool")
        info.external_attr = 0o755 << 16
        archive.writestr(info, script.read_text())
    await app.artifacts.put("script", script)
    await app.artifacts.put("named", script, run="sh report.sh {payload.word}")
    await app.artifacts.put("tool", tmp_path / "tool.zip")
    itself = app.command("itself", artifact="script", retry=ONCE)
    by_name = app.command("by_name", artifact="named", retry=ONCE)
    inside = app.command("inside", ["bin/tool", "{payload.word}"], artifact="tool", retry=ONCE)
    whole = app.command("whole", ["{artifact}/bin/tool", "{artifact}"], artifact="tool", retry=ONCE)
    async with app.worker():
        assert (await app.result(await itself.now(), timeout=PATIENCE)).endswith("-file/files/file ")
        assert await app.result(await by_name.now(word="a b"), timeout=PATIENCE) == "report.sh a b"
        assert await app.result(await inside.now(word="x"), timeout=PATIENCE) == "bin/tool x"
        path = await app.result(await whole.now(), timeout=PATIENCE)
        assert path.split()[0] == f"{path.split()[1]}/bin/tool"


async def test_what_a_command_writes_stays_in_its_own_folder(app: App, tmp_path: Path) -> None:
    await app.artifacts.put("monthly", packed(tmp_path / "m.tar.gz"))
    writes = app.command("writes", ["sh", "-c", "ls >&2; echo x > new && ls | tr '\\n' ' ' | sed 's/.*/\"&\"/' >&3"], artifact="monthly")
    async with app.worker():
        for _ in range(2):
            assert await app.result(await writes.now(), timeout=PATIENCE) == "data helper.py main.py new "
    [entry] = entries(tmp_path)
    assert sorted(os.listdir(tmp_path / "cache" / entry / "files")) == ["data", "helper.py", "main.py"]


@pytest.mark.parametrize("change", ["longer", "shorter", "another byte"])
async def test_bytes_that_were_changed_are_not_run_and_the_task_fails_for_good(app: App, tmp_path: Path, change: str) -> None:
    script = tmp_path / "report.sh"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    info = await app.artifacts.put("monthly", script)
    blob = blobs_of(app)._path(blob_key(info.sha256))
    content = blob.read_bytes()
    blob.write_bytes({"longer": content + b"\n", "shorter": content[:-1], "another byte": content.replace(b"ran", b"rat")}[change])
    report = app.command("report", artifact="monthly", retry=RetryPolicy(tries=5, base=0))
    async with app.worker():
        error = await failed(app, task := await report.now())
        assert error.error_type == "ArtifactTampered"
        assert f"the bytes of monthly@1 in {blobs_of(app).url} were changed, and are not run" in str(error)
        found = await app.get(task)
        assert (found.state, found.attempt) == (State.FAILED, 1), "it is not tried again"
        assert (await detail(app, task)) == {"artifact": "monthly"}
        assert not (tmp_path / "ran").exists()
        assert not (tmp_path / "rat").exists()
        assert entries(tmp_path) == []
        blob.write_bytes(content)
        await app.retry(task)
        await app.result(task, timeout=PATIENCE)
    assert (tmp_path / "ran").exists()


async def test_bytes_that_are_missing_fail_the_attempt_and_are_waited_for_by_its_retries(app: App, tmp_path: Path) -> None:
    script = tmp_path / "report.sh"
    script.write_text("#!/bin/sh\n")
    info = await app.artifacts.put("monthly", script)
    await blobs_of(app).delete(blob_key(info.sha256))
    report = app.command("report", artifact="monthly", retry=RetryPolicy(tries=2, base=0))
    async with app.worker():
        error = await failed(app, task := await report.now())
        assert error.error_type == "ArtifactMissing"
        assert "the bytes of monthly@1 are gone" in str(error)
        assert (await app.get(task)).attempt == 2


async def test_an_artifact_that_is_not_there_or_says_nothing_fails_for_good(app: App, tmp_path: Path) -> None:
    await app.artifacts.put("silent", packed(tmp_path / "m.tar.gz"))
    await app.artifacts.put("wrong", packed(tmp_path / "m.tar.gz"), run="python {nothing}")
    handlers = {name: app.command(name, artifact=name) for name in ("none", "silent@7", "silent", "wrong")}
    async with app.worker():
        told = {name: await failed(app, await handler.now()) for name, handler in handlers.items()}
    assert told["none"].error_type == told["silent@7"].error_type == "ArtifactNotFound"
    assert "put it with `duetime artifacts put`, then retry the task" in str(told["none"])
    assert "neither silent nor the artifact silent@1 says what to run" in str(told["silent"])
    assert "what the artifact says to run cannot be run" in str(told["wrong"])


async def test_a_worker_that_does_not_know_where_artifacts_are_says_what_to_do() -> None:
    app = App("sqlite:///:memory:")
    report = app.command("report", artifact="monthly", retry=ONCE)
    async with app.worker():
        error = await failed(app, await report.now())
    assert error.error_type == "ArtifactUnavailable"
    assert "Set DUETIME_ARTIFACTS for this worker" in str(error)


def test_what_is_declared_is_checked(app: App) -> None:
    for options, words in (
        ({"artifact": "a@b"}, "name and version such as 'monthly@3'"),
        ({"artifact": "@3"}, "must not be empty"),
        ({"artifact": 3}, "got int"),
        ({}, "argv is a list"),
        ({"argv": []}, "argv is a list"),
        ({"argv": [], "artifact": "m"}, "argv is a list"),
        ({"argv": ["cat", "{artifact}"]}, "which is for commands that name an artifact"),
        ({"argv": ["{artifact.path}"], "artifact": "m"}, "{artifact} has no parts"),
        ({"argv": ["{payload.a}/{artifact}"], "artifact": "m"}, "the program must be written out"),
    ):
        with pytest.raises(InvalidValue, match=words.replace("{", r"\{")):
            app.command("report", **options)
    assert app.specs == {}


# ---- the cache ----


class Counting(FolderBlobs):
    """Counts how often a blob is read, and lets the test hold it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def read(self, key: str) -> Any:
        self.reads += 1
        await self.gate.wait()
        async for piece in super().read(key):
            yield piece


async def stored(blobs: Blobs, tmp_path: Path, content: bytes, version: int = 1) -> Artifact:
    path = tmp_path / f"content-{version}"
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    await blobs.write(blob_key(digest), path)
    facts: dict[str, Any] = {"name": "monthly", "file": "report.sh", "made_at": 0, "made_by": "anna"}
    return Artifact(sha256=digest, size=len(content), version=version, kind="file", **facts)


async def test_many_attempts_at_once_fetch_it_once(tmp_path: Path) -> None:
    blobs = Counting(tmp_path / "blobs")
    artifact = await stored(blobs, tmp_path, b"#!/bin/sh\n")
    caches = [ArtifactCache(tmp_path / "cache", 10**9, blobs) for _ in range(3)]  # as if of three workers

    async def use(cache: ArtifactCache) -> bytes:
        async with cache.using(artifact) as files:
            return (files / "file").read_bytes()

    found = await asyncio.gather(*(use(cache) for cache in caches for _ in range(20)))
    assert set(found) == {b"#!/bin/sh\n"}
    assert blobs.reads == 1


async def test_an_attempt_that_stops_waiting_does_not_stop_the_fetch(tmp_path: Path) -> None:
    blobs = Counting(tmp_path / "blobs")
    artifact = await stored(blobs, tmp_path, b"#!/bin/sh\n")
    cache = ArtifactCache(tmp_path / "cache", 10**9, blobs)
    blobs.gate.clear()

    async def use() -> None:
        async with cache.using(artifact):
            pass

    waiting = asyncio.create_task(use())
    await until("it is being fetched", lambda: _is(blobs.reads == 1))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    blobs.gate.set()
    await use()
    assert blobs.reads == 1


async def _is(value: bool) -> bool:
    return value


async def test_what_was_not_used_for_the_longest_time_goes_first_and_what_is_in_use_stays(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    artifacts = [await stored(blobs, tmp_path, bytes([number]) * 400, number) for number in range(1, 5)]
    cache = ArtifactCache(tmp_path / "cache", 1_000, blobs)

    def there() -> list[int]:
        return [each.version for each in artifacts if f"{each.sha256}-file" in entries(tmp_path)]

    async def use(artifact: Artifact, used_at: int) -> None:
        async with cache.using(artifact):
            pass
        os.utime(tmp_path / "cache" / f"{artifact.sha256}-file.lock", (used_at, used_at))

    one, two, three, four = artifacts
    await use(one, 100)
    await use(two, 200)
    await use(one, 300)
    await use(three, 400)
    assert there() == [1, 3]
    async with cache.using(one):
        os.utime(tmp_path / "cache" / f"{one.sha256}-file.lock", (1, 1))
        await use(four, 500)
        assert there() == [1, 4]
    assert not (tmp_path / "cache" / f"{two.sha256}-file.lock").exists()
    assert os.stat(tmp_path / "cache" / f"{one.sha256}-file").st_mode & 0o077 == 0


async def test_a_folder_into_which_others_can_write_is_not_used(app: App, tmp_path: Path) -> None:
    script = tmp_path / "report.sh"
    script.write_text("#!/bin/sh\n")
    await app.artifacts.put("monthly", script)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    report = app.command("report", artifact="monthly", retry=ONCE)
    async with app.worker():
        error = await failed(app, await report.now())
    assert "others can write to" in str(error)


UNPACKING = """
import asyncio, sys
from pathlib import Path
import msgspec
from duetime.artifacts import unpacking
from duetime.artifacts.cache import ArtifactCache
from duetime.artifacts.folder import FolderBlobs
from duetime.model.artifacts import Artifact

write = unpacking._Writer._write
def write_and_wait(self, path, source, executable):
    write(self, path, source, executable)
    print("unpacked", path, flush=True)
    sys.stdin.read()
unpacking._Writer._write = write_and_wait

async def main():
    artifact = msgspec.json.decode(sys.argv[2], type=Artifact)
    async with ArtifactCache(Path(sys.argv[1]) / "cache", 10**9, FolderBlobs(Path(sys.argv[1]) / "blobs")).using(artifact):
        print("never")
asyncio.run(main())
"""


async def test_a_process_that_is_killed_while_it_unpacks_leaves_no_half_entry(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "blobs")
    content = packed(tmp_path / "m.tar.gz").read_bytes()
    artifact = msgspec.structs.replace(await stored(blobs, tmp_path, content), kind="tar")
    command = [sys.executable, "-c", UNPACKING, str(tmp_path), msgspec.json.encode(artifact).decode()]
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"unpacked main.py")
    process.kill()
    await process.communicate()
    [left] = entries(tmp_path)
    assert left.endswith(".part"), "nothing that could be taken for an entry"
    async with ArtifactCache(tmp_path / "cache", 10**9, blobs).using(artifact) as files:
        assert sorted(os.listdir(files)) == ["data", "helper.py", "main.py"]
    assert entries(tmp_path) == [f"{artifact.sha256}-tar"]
