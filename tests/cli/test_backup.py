"""`duetime backup`: a copy that is whole, while the store is in use."""

import os
import stat
import time
from pathlib import Path

import pytest

from duetime import App, Context
from duetime.errors import StoreUnavailable
from duetime.store.sqlite import backup
from tests.chaos.processes import until
from tests.cli.conftest import CommandLine, Shop
from tests.servers.waiting import PATIENCE


def test_a_copy_has_all_tasks_and_works_as_a_store(shop: Shop, duetime: CommandLine, tmp_path: Path) -> None:
    task = duetime.submit("greet", "name=Ada", "--in", "1h")
    copy = tmp_path / "copies" / "ünïcode #1 100%.db"
    copy.parent.mkdir()
    assert duetime("backup", str(copy)).stdout.endswith("MB, checked\n")
    assert [each.name for each in copy.parent.iterdir()] == [copy.name], "nothing is left beside it"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    moved = tmp_path / "moved.db"
    copy.rename(moved)
    duetime("cancel", task)
    restored = CommandLine(f"sqlite:///{moved}")
    assert restored.json("task", task)["state"] == "pending", "what happened after the copy is not in it"
    assert restored("doctor").exit_code == 0


def test_it_says_that_the_bytes_of_artifacts_are_not_in_the_copy(
    duetime: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "report.sh"
    script.write_text("#!/bin/sh\n")
    duetime("migrate")
    assert duetime("backup", str(tmp_path / "none.db")).stderr == ""
    duetime("artifacts", "put", "report", str(script))
    folder = tmp_path / "store.db-duetime" / "artifacts"
    said = duetime("backup", str(tmp_path / "one.db"))
    assert said.stdout.endswith("MB, checked\n")
    assert said.stderr == f"duetime: the bytes of artifacts are not in it: back up {folder} too, after this\n"
    (tmp_path / "one.db-duetime").mkdir()
    folder.rename(tmp_path / "one.db-duetime" / "artifacts")
    restored = CommandLine(f"sqlite:///{tmp_path / 'one.db'}")
    assert "missing artifact" not in restored("doctor").stdout, "with that folder beside it the copy is whole"
    monkeypatch.setenv("DUETIME_ARTIFACTS", "s3://programs/duetime")
    assert "back up s3://programs/duetime too" in duetime("backup", str(tmp_path / "two.db")).stderr


async def next_second() -> None:
    now = int(time.time())
    await until("it is another second", lambda: int(time.time()) > now)


async def test_fences_grow_when_a_store_is_restored_from_one_copy_again_and_again(tmp_path: Path) -> None:
    """The store goes on after the copy was made; what it does then is unknown to the copy."""
    copy, fences = tmp_path / "copy.db", list[int]()

    def app_on(path: Path) -> App:
        app = App(f"sqlite:///{path}", user="test")

        @app.task
        async def write(ctx: Context) -> int:
            fences.append(ctx.fence)
            return ctx.attempt

        return app

    async with app_on(tmp_path / "store.db") as app:
        task = await app.handler("write").after(0.2)
        backup.back_up(tmp_path / "store.db", copy, lambda done, total: None)
        async with app.worker():
            assert await app.result(task, timeout=PATIENCE) == 1
    for number in range(2):
        restored = tmp_path / f"restored-{number}.db"
        restored.write_bytes(copy.read_bytes())
        async with app_on(restored) as app, app.worker():
            assert await app.result(task.id, timeout=PATIENCE) == 1
            assert await app.result(await app.handler("write").now(), timeout=PATIENCE) == 1, "attempts count from 1"
        await next_second()  # epochs go by seconds
    assert fences[0] < fences[1] < fences[3], fences


def test_a_copy_is_made_while_somebody_writes(shop: Shop, duetime: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.do(_submit(shop.app, 2_000))
    monkeypatch.setattr(backup, "AT_ONCE", 1)
    written: list[str] = []

    def write_meanwhile(done: int, total: int) -> None:
        if len(written) < 3:
            written.append(duetime.submit("greet", f"name=page-{done}", "--in", "1h"))

    copy = tmp_path / "copy.db"
    backup.back_up(tmp_path / "store.db", copy, write_meanwhile)
    assert len(written) == 3
    assert CommandLine(f"sqlite:///{copy}").json("stats")["states"]["pending"] in range(2_000, 2_004)


async def _submit(app: App, number: int) -> None:
    async with app:
        await app.submit_many([app.handler("greet").new(name=str(each)).after(3600) for each in range(number)])


def test_a_file_that_exists_is_not_touched(shop: Shop, duetime: CommandLine, tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    there.write_text("precious")
    assert f"{there} exists already; choose another name, or remove it" in duetime("backup", str(there), code=4).output
    assert there.read_text() == "precious"


def test_a_copy_that_fails_leaves_nothing(shop: Shop, duetime: CommandLine, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "copy.db"
    assert "could not be copied" in duetime("backup", str(missing), code=5).output
    assert not missing.parent.exists()
    duetime("migrate")
    with (tmp_path / "store.db").open("r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096 * 20))
    with pytest.raises(StoreUnavailable):
        backup.back_up(tmp_path / "store.db", tmp_path / "copy.db", lambda done, total: None)
    assert not (tmp_path / "copy.db").exists()
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize(
    ("url", "way"),
    [
        ("postgresql://me@127.0.0.1:1/shop", "pg_dump"),
        ("https://127.0.0.1:1", "run `duetime backup` where the store is"),
        ("sqlite:///:memory:", "a store in memory has no file to copy"),
    ],
)
def test_a_store_without_a_file_is_told_the_other_way(duetime: CommandLine, tmp_path: Path, url: str, way: str) -> None:
    assert way in duetime("backup", str(tmp_path / "copy.db"), "--url", url, code=2).output


def test_a_store_that_is_not_there_is_not_copied(duetime: CommandLine, tmp_path: Path) -> None:
    assert "there is no store at" in duetime("backup", str(tmp_path / "copy.db"), code=5).output
