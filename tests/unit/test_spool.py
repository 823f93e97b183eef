"""Folders of workers that gather output: whose they are, and how their bytes become text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.ids import new_id
from duetime.store.output import CHUNK
from duetime.targets.output.spool import Spool, abandoned, find, name_of, pieces, read_from, spool_root, text_of, whole_characters

URL = "postgresql://db.example.com:5432/shop?schema=jobs"


# ---- where ----


def test_a_store_with_a_folder_of_its_own_has_the_spools_there() -> None:
    assert spool_root(None, "/data/shop.db-duetime/output", "sqlite:////data/shop.db") == Path("/data/shop.db-duetime/output")


def test_stores_that_share_a_chosen_folder_have_folders_of_their_own() -> None:
    roots = {spool_root("/var/spool", beside, url) for beside, url in ((None, URL), (None, f"{URL}2"), ("/data/x", "sqlite:////data/x"))}
    assert len(roots) == 3
    assert {root.parent for root in roots if root is not None} == {Path("/var/spool")}
    assert name_of(URL).startswith("postgresql-db-example-com-5432-shop-schema-jobs-")


@pytest.mark.parametrize("off", ["off", "OFF"])
def test_output_can_be_switched_off(off: str) -> None:
    assert spool_root(off, "/data/output", URL) is None


def test_without_a_choice_it_is_the_users_folder_for_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert spool_root(None, None, URL) == tmp_path / "duetime" / "output" / name_of(URL)
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/not/allowed")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert spool_root(None, None, URL) == tmp_path / "home" / ".local" / "state" / "duetime" / "output" / name_of(URL)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    root = spool_root(None, None, URL)
    assert root is not None
    assert root.parts[-3].startswith("duetime-")


# ---- whose ----


def test_a_living_workers_folder_is_nobody_elses(tmp_path: Path) -> None:
    mine, other = Spool.begin(tmp_path), Spool.begin(tmp_path)
    assert list(abandoned(tmp_path, mine)) == []
    assert Spool.lock(other.folder) is None
    other.leave()
    mine.leave()
    assert os.listdir(tmp_path) == []


def test_a_dead_workers_folder_is_taken_by_one(tmp_path: Path) -> None:
    mine, another = Spool.begin(tmp_path), Spool.begin(tmp_path)
    code = "import os, sys; from pathlib import Path; from duetime.targets.output.spool import Spool; s = Spool.begin(Path(sys.argv[1])); "
    code += "(s.folder / (sys.argv[2] + '.2.log')).write_text('last words'); os.kill(os.getpid(), 9)"
    task_id = new_id()
    subprocess.run([sys.executable, "-c", code, str(tmp_path), task_id], check=False, timeout=60)
    [taken] = abandoned(tmp_path, mine)
    assert list(abandoned(tmp_path, another)) == []
    [file] = taken.files()
    assert (file.task, file.attempt) == (task_id, 2)
    assert find(tmp_path, task_id, 2) == file.path
    assert find(tmp_path, task_id, 1) is None
    taken.leave()
    assert file.path.exists(), "what was not shipped stays"
    [taken] = abandoned(tmp_path, mine)
    file.path.unlink()
    taken.leave()
    assert not file.path.parent.exists()


def test_a_child_keeps_the_folder_of_its_worker(tmp_path: Path) -> None:
    mine, worker = Spool.begin(tmp_path), Spool.begin(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[worker.descriptor]) as child:
        os.close(worker.descriptor)
        assert list(abandoned(tmp_path, mine)) == []
        child.communicate(b"\n", timeout=60)
    [taken] = abandoned(tmp_path, mine)
    assert taken.folder == worker.folder


def test_what_is_not_an_output_file_is_left_alone(tmp_path: Path) -> None:
    spool = Spool.begin(tmp_path)
    for name in ("README", f"{new_id()}.log", f"{new_id()}.0.log", f"{new_id()}.1.log.bak", "x.1.log"):
        (spool.folder / name).touch()
    (tmp_path / "a file").touch()
    assert spool.files() == []
    assert list(abandoned(tmp_path / "nowhere", spool)) == []
    spool.leave()
    assert (spool.folder / "README").exists()


def test_a_folder_that_cannot_be_made_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Spool.begin(tmp_path / "file" / "output")


def test_a_temporary_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    root = spool_root(None, None, URL)
    assert root is not None
    Spool.begin(root).leave()
    [folder] = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    stranger = os.getuid() + 1
    folder.rename(tmp_path / f"duetime-{stranger}")
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    root = spool_root(None, None, URL)
    assert root is not None
    with pytest.raises(PermissionError, match="belongs to another user"):
        Spool.begin(root)


# ---- text ----


@given(st.binary(max_size=200))
def test_any_bytes_become_text_of_the_same_length_without_nul(data: bytes) -> None:
    text = text_of(data)
    assert len(text.encode()) == len(data)
    assert "\0" not in text


@given(st.text(max_size=50), st.integers(0, 200))
def test_a_character_that_is_not_all_there_is_left_for_later(text: str, end: int) -> None:
    data = text.replace("\0", "").encode()[:end]
    ready = data[: whole_characters(data)]
    assert text.replace("\0", "").startswith(ready.decode())
    assert len(data) - len(ready) < 4


@given(st.binary(max_size=20))
def test_bytes_that_are_no_text_are_not_left_for_ever(data: bytes) -> None:
    assert len(data) - whole_characters(data) < 4
    assert whole_characters(data + b"\n") == len(data) + 1


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 100_000, b"line\n" * 30_000, "\U0001f600".encode() * 30_000, b"\xff" * 100_000, b"\x80" * 100_000, b"\n" * 100_000],
    ids=["nothing", "one line", "lines", "emoji", "rubbish", "more rubbish", "empty lines"],
)
def test_pieces_are_small_and_together_the_whole(data: bytes) -> None:
    parts = list(pieces(data))
    assert b"".join(parts) == data
    assert all(0 < len(part) <= CHUNK for part in parts)
    assert "".join(text_of(part) for part in parts) == text_of(data)
    if data.startswith(b"line"):
        assert all(part.endswith(b"\n") for part in parts)


def test_reading_from_an_offset_says_whether_that_is_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_from(path, 0, 4) == (b"0123", False)
    assert read_from(path, 6, 4) == (b"6789", True)
    assert read_from(path, 10, 4) == (b"", True)
    with pytest.raises(FileNotFoundError):
        read_from(tmp_path / "gone", 0, 4)
