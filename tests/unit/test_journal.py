"""The journal of a worker's output: frames that are written whole, read back in any pieces, and never mistaken for one another."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.targets.output.files import OutputFiles, Sink, cut_line
from duetime.targets.output.journal import SEGMENT, Frames, Journal, attempts_of, read_attempt, segments
from duetime.targets.output.spool import read_unshipped, unshipped_attempts
from duetime.worker.backlog import Backlog

TASKS = [f"01a1e114-c422-747f-88ba-d8ab7298e49{n}" for n in range(3)]


def sink(files: OutputFiles, task: str, attempt: int = 1) -> Sink:
    return Sink(files, task, attempt)


@pytest.fixture
def files(tmp_path: Path) -> OutputFiles:
    return OutputFiles(tmp_path / "worker", 1 << 20, journal=Journal(tmp_path / "worker"))


def everything(folder: Path) -> bytes:
    return b"".join(segment.path.read_bytes() for segment in segments(folder))


def test_lines_of_all_attempts_are_in_one_file_each_as_soon_as_it_is_finished(files: OutputFiles) -> None:
    first, second = sink(files, TASKS[0]), sink(files, TASKS[1], 2)
    first.write("one\n")
    second.write("two\n")
    first.write("no end yet")
    assert len(segments(files.folder)) == 1
    assert [(frame.name, frame.offset, frame.data) for frame in Frames(everything(files.folder))] == [
        ((TASKS[0], 1), 0, b"one\n"),
        ((TASKS[1], 2), 0, b"two\n"),
    ]
    first.close()
    assert read_attempt(files.folder, TASKS[0], 1, 0, 100) == (b"one\nno end yet", True)


def test_an_attempt_that_prints_nothing_makes_no_file(files: OutputFiles) -> None:
    sink(files, TASKS[0]).close()
    assert not files.folder.exists()


def test_what_another_process_writes_too_has_a_file_of_its_own(files: OutputFiles) -> None:
    one = sink(files, TASKS[0])
    path = one.share()
    one.write("hello\n")
    assert path.read_text() == "hello\n"
    assert segments(files.folder) == []


def test_the_cap_holds_in_a_journal(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path, 10, journal=Journal(tmp_path))
    one = sink(files, TASKS[0])
    one.write("12345\n")
    one.write("6789 and more\n")
    one.write("nothing of this\n")
    one.close()
    assert read_attempt(tmp_path, TASKS[0], 1, 0, 1_000) == (b"12345\n6789" + cut_line(10), True)


@given(st.lists(st.tuples(st.sampled_from(TASKS), st.integers(1, 3), st.binary(max_size=60)), max_size=20), st.integers(1, 400))
def test_frames_are_read_back_however_the_bytes_are_cut(written: list[tuple[str, int, bytes]], cut: int) -> None:
    data = b"".join(f"{task} {attempt} 7 {len(text)}\n".encode() + text for task, attempt, text in written)
    found, at = [], 0
    for end in (*range(0, len(data), cut), len(data)):
        frames = Frames(data[at:end])
        found += [(*frame.name, frame.data) for frame in frames]
        assert not frames.broken
        at += frames.end
    assert found == written
    assert at == len(data)


def test_a_text_that_looks_like_a_frame_is_none(files: OutputFiles) -> None:
    forged = f"{TASKS[1]} 1 0 6\nforged\n"
    sink(files, TASKS[0]).write(forged)
    assert read_attempt(files.folder, TASKS[1], 1, 0, 100) is None
    assert read_attempt(files.folder, TASKS[0], 1, 0, 1_000) == (forged.encode(), True)
    assert attempts_of(files.folder, TASKS[1]) == set()


@pytest.mark.parametrize("task", ["", "../../etc/passwd", f"{TASKS[0]} 1 0 5\nx", f"{TASKS[0]}\n"])
def test_only_ids_of_tasks_become_heads(files: OutputFiles, task: str) -> None:
    with pytest.raises(ValueError, match="not a task id"):
        sink(files, task).write("hello\n")
    assert not files.folder.exists()


def test_a_long_journal_has_several_segments_in_the_order_of_writing(files: OutputFiles) -> None:
    one, line = sink(files, TASKS[0]), "x" * 999 + "\n"
    for _ in range(1_000):
        one.write(line)
    other = sink(files, TASKS[1])
    for _ in range(1_000):
        other.write(line)
    assert [segment.number for segment in segments(files.folder)] == [1, 2, 3]
    assert all(segment.path.stat().st_size < SEGMENT + 2_000 for segment in segments(files.folder))
    assert read_attempt(files.folder, TASKS[0], 1, 999_000, 5_000) == (line.encode(), True)
    assert read_attempt(files.folder, TASKS[1], 1, 500_000, 1_000) == (line.encode(), False)


def test_a_reader_is_not_told_that_all_is_read_if_the_beginning_is_gone(files: OutputFiles) -> None:
    journal = files.journal
    assert journal is not None
    journal.append(TASKS[0], 1, 0, b"one\n")
    [first] = segments(files.folder)
    assert not journal.retire(first.path, 3), "more was written"
    assert journal.retire(first.path, first.path.stat().st_size)
    journal.append(TASKS[0], 1, 4, b"two\n")
    assert read_attempt(files.folder, TASKS[0], 1, 0, 100) is None
    assert read_attempt(files.folder, TASKS[0], 1, 4, 100) == (b"two\n", True)


def test_readers_find_both_kinds_beside_each_other(tmp_path: Path) -> None:
    files = OutputFiles(tmp_path / "worker", 1 << 20, journal=Journal(tmp_path / "worker"))
    sink(files, TASKS[0], 1).write("journal\n")
    files.path(TASKS[0], 2).write_text("file\n")
    assert unshipped_attempts(tmp_path, TASKS[0], range(1, 5)) == {1, 2}
    assert unshipped_attempts(tmp_path, TASKS[1], range(1, 5)) == set()
    assert read_unshipped(tmp_path, TASKS[0], 1, 3, 100) == (b"rnal\n", True)
    assert read_unshipped(tmp_path, TASKS[0], 2, 0, 100) == (b"file\n", True)
    assert read_unshipped(tmp_path, TASKS[0], 3, 0, 100) is None


def test_threads_write_whole_frames(files: OutputFiles) -> None:
    def talk(number: int) -> None:
        one = sink(files, TASKS[0], number)
        for line in range(200):
            one.write(f"{number} {line}\n")

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(1, 6):
        text = "".join(f"{number} {line}\n" for line in range(200))
        assert read_attempt(files.folder, TASKS[0], number, 0, 1 << 20) == (text.encode(), True)


def test_a_fork_has_segments_of_its_own(files: OutputFiles) -> None:
    one = sink(files, TASKS[0])
    one.write("before\n")
    pid = os.fork()
    if not pid:
        one.write("in the fork\n")
        os._exit(0)
    os.waitpid(pid, 0)
    one.write("after\n")
    assert [(segment.number, segment.fork) for segment in segments(files.folder)] == [(1, 0), (2, pid)]
    found = read_attempt(files.folder, TASKS[0], 1, 0, 100)
    assert found is not None
    assert sorted(found[0].splitlines()) == [b"after", b"before", b"in the fork"]


def test_a_journal_is_private(files: OutputFiles) -> None:
    before = os.umask(0o022)
    try:
        files.folder.mkdir(mode=0o700)
        sink(files, TASKS[0]).write("hello\n")
    finally:
        os.umask(before)
    [segment] = segments(files.folder)
    assert stat.S_IMODE(segment.path.stat().st_mode) == 0o600


def test_a_disk_that_is_full_leaves_no_half_frame(files: OutputFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, write, calls = sink(files, TASKS[0]), sink(files, TASKS[1]), os.write, iter(range(10))

    def full(file: int, data: bytes) -> int:
        if next(calls):
            raise OSError(28, "no space left on device")
        return write(file, data[:10])

    one.write("one\n")
    monkeypatch.setattr(os, "write", full)
    one.write("two\n")
    monkeypatch.undo()
    other.write("three\n")
    assert [frame.data for frame in Frames(everything(files.folder))] == [b"one\n", b"three\n"]


# ---- what a dead worker left ----


def packed(backlog: Backlog) -> list[tuple[str, str, bool]]:
    backlog.look({})
    parcels, _ = backlog.pack(1 << 20)
    return [(parcel.name[0], "".join(chunk.text for chunk in parcel.chunks), parcel.chunks[-1].last) for parcel in parcels]


def test_of_a_frame_that_was_cut_what_is_there_is_kept(files: OutputFiles) -> None:
    sink(files, TASKS[0]).write("whole\n")
    [segment] = segments(files.folder)
    with segment.path.open("ab") as file:
        file.write(f"{TASKS[1]} 1 0 100\nhalf of".encode())
    assert packed(Backlog(files.folder)) == [(TASKS[0], "whole\n", True), (TASKS[1], "half of", True)]


def test_a_head_that_was_cut_is_nothing(files: OutputFiles) -> None:
    sink(files, TASKS[0]).write("whole\n")
    [segment] = segments(files.folder)
    with segment.path.open("ab") as file:
        file.write(TASKS[1].encode()[:20])
    backlog = Backlog(files.folder)
    assert packed(backlog) == [(TASKS[0], "whole\n", True)]
    backlog.look({})
    for parcel in backlog.pack(1 << 20)[0]:
        parcel.note(parcel.chunks[-1].end)
    backlog.retire()
    assert segments(files.folder) == []


def test_a_segment_that_is_no_journal_is_put_aside_and_holds_up_no_other(files: OutputFiles, caplog: pytest.LogCaptureFixture) -> None:
    sink(files, TASKS[0]).write("whole\n")
    (files.folder / "journal.0.log").write_bytes(b"this is no journal\n" * 100)
    assert packed(Backlog(files.folder)) == [(TASKS[0], "whole\n", True)]
    assert (files.folder / "journal.0.unreadable").exists()
    assert "cannot be read from byte 0 on" in caplog.text
