"""Another user of the machine looks for payloads, results and logs in the files of a store: nobody but their owner may read them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duetime import App
from duetime.store.open import store_from_url
from duetime.targets.output.spool import Spool, spool_root
from tests.chaos.fleet import Fleet, until
from tests.servers.waiting import PATIENCE

APP = "tests.attacks.talking:app"


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Return the modes of everything that belongs to the store in a folder, and is there now."""
    found = {}
    for path in (*folder.rglob("duetime.db*"), *(folder / "duetime.db-duetime").rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a journal comes and goes
            found[str(path.relative_to(folder))] = stat.S_IMODE(path.lstat().st_mode)
    return found


async def everything_made(fleet: Fleet) -> dict[str, int]:
    """Let a worker make all that it ever makes, and return the modes."""
    go = fleet.folder / "go"
    await fleet.start(app=APP)
    tasks = [await fleet.one(handler, until=str(go)) for handler in ("talk_in_a_thread", "talk_in_a_process")]
    found: dict[str, int] = {}

    def logs() -> int:
        found.update(modes(fleet.folder))
        names = [Path(name).name for name in found]
        return any(name.startswith("journal.") for name in names) + any(name.endswith(".1.log") and len(name) > 40 for name in names)

    await until("there is a journal of the thread, and a file of the process", lambda: logs() == 2)
    kinds = {Path(name).parts[1] for name in found if len(Path(name).parts) > 2}
    assert kinds == {"workers", "sockets", "output"}
    assert {"duetime.db", "duetime.db-wal", "duetime.db-shm"} <= found.keys()
    go.touch()
    for task in tasks:
        await fleet.app.result(task, timeout=PATIENCE)
    return found


@pytest.mark.slow
async def test_nobody_else_may_read_what_a_store_and_its_workers_write(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        assert {name: oct(mode) for name, mode in (await everything_made(fleet)).items() if mode & 0o077} == {}


@pytest.mark.slow
async def test_a_group_that_may_use_the_database_may_use_what_lies_beside_it(tmp_path: Path) -> None:
    group = 1 if os.geteuid() == 0 else os.getgid()
    database = tmp_path / "duetime.db"
    database.touch()
    os.chown(database, -1, group)
    database.chmod(0o660)
    async with Fleet(tmp_path) as fleet:
        found = await everything_made(fleet)
        folders = {name for name in found if not name.endswith(".log") and (tmp_path / name).is_dir()}
        logs = {name for name in found if name.endswith(".log")}
        expected = {name: 0o770 if name in folders else 0o640 if name in logs else 0o660 for name in found}
        left = {name: oct(mode) for name, mode in found.items() if mode != expected[name]}
        assert left == {}
        for folder in (tmp_path / "duetime.db-duetime", *(tmp_path / "duetime.db-duetime").iterdir()):
            assert folder.stat().st_gid == group


async def test_a_database_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    database = tmp_path / "store.db"
    sqlite3.connect(database).close()
    database.chmod(0o644)
    async with App(f"sqlite:///{database}"):
        assert stat.S_IMODE(database.stat().st_mode) == 0o644


async def test_the_locks_of_a_store_outlast_another_that_is_opened_beside_it(tmp_path: Path) -> None:
    """A descriptor of the file that is closed in the same process would free SQLite's locks: a rival could end the WAL mode."""
    stores = [store_from_url(f"sqlite:///{tmp_path}/store.db") for _ in range(2)]
    for store in stores:
        await store.open()
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('pragma journal_mode = delete')"
    rival = subprocess.run([sys.executable, "-c", code, tmp_path / "store.db"], capture_output=True, text=True, check=False)  # noqa: ASYNC221
    assert "database is locked" in rival.stderr
    for store in stores:
        await store.close()


def test_logs_in_a_folder_that_was_chosen_are_private_too(tmp_path: Path) -> None:
    chosen = tmp_path / "logs"
    chosen.mkdir(mode=0o755)
    root = spool_root(str(chosen), None, "postgresql://localhost/shop")
    assert root is not None
    spool = Spool.begin(root)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (chosen, root, spool.folder, spool.folder / "lock")] == [
        0o755,
        0o700,
        0o700,
        0o600,
    ]
    spool.leave()


def test_the_doctor_names_files_that_every_user_may_read(tmp_path: Path) -> None:
    database = tmp_path / "store.db"

    def doctor() -> str:
        command = [sys.executable, "-m", "duetime.cli", "doctor", "--url", f"sqlite:///{database}"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout

    app = App(f"sqlite:///{database}")
    app.sync(app.open())
    app.sync(app.close())
    assert "readable by others" not in doctor()
    database.chmod(0o644)
    Path(f"{database}-duetime").chmod(0o755)
    said = doctor()
    assert f"note: readable by others: {database}: every user of this machine may read it; run `chmod o= {database}`" in said
    assert f"run `chmod -R o= {database}-duetime`" in said
    for line in said.splitlines():
        if "readable by others" in line:
            subprocess.run(line.partition("`")[2].partition("`")[0].split(), check=True)
    assert "readable by others" not in doctor()
