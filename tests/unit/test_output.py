"""What attempts print and log, told apart and kept within bounds."""

import asyncio
import contextvars
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from duetime.errors import InvalidValue
from duetime.ids import new_id
from duetime.targets.output import CappedFile, Capture, OutputFiles, Sink, current_attempt, cut_line

CUT = "\n… the rest of the output was cut: an attempt may write 10 bytes\n"


@pytest.fixture
def files(tmp_path: Path) -> OutputFiles:
    return OutputFiles(tmp_path / "output")


@pytest.fixture(autouse=True)
def enabled_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what import-linter does in another test: its logging configuration disables every logger that exists."""
    for name in ("duetime.output", "duetime.task", "shop"):
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)


@contextmanager
def captured() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Replace the process's streams and capture them. No fixture, because pytest changes streams before the test's body."""
    own = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(sys, "stdout", own[0])
        patches.setattr(sys, "stderr", own[1])
        patches.setattr(logging.getLogger(), "handlers", [])
        capture = Capture()
        capture.install()
        try:
            yield own
        finally:
            capture.uninstall()
            assert (sys.stdout, sys.stderr) == own


class _Attempt(NamedTuple):
    sink: Sink


@contextmanager
def attempt(files: OutputFiles, task_id: str, number: int = 1) -> Iterator[Sink]:
    """Run the block as an attempt."""
    sink = Sink(files, task_id, number)
    token = current_attempt.set(_Attempt(sink))
    try:
        yield sink
    finally:
        current_attempt.reset(token)
        sink.close()


def read(files: OutputFiles, task_id: str, number: int) -> str:
    path = files.path(task_id, number)
    return path.read_bytes().decode("utf-8", "replace") if path.exists() else ""


# ---- files ----

ID = "01a1e114-c422-747f-88ba-d8ab7298e491"  # always the same one: tests that run side by side must have the same names


def test_a_file_is_named_by_task_and_attempt(files: OutputFiles) -> None:
    task_id = new_id()
    assert files.path(task_id, 3) == files.folder / f"{task_id}.3.log"


@pytest.mark.parametrize("trick", ["../../etc/passwd", "", "*", "0" * 36, f"{ID}/..", f"{ID}\n", ID.upper()])
def test_what_is_not_a_task_id_is_refused(files: OutputFiles, trick: str) -> None:
    with pytest.raises(InvalidValue, match="not a task id"):
        files.path(trick, 1)


def test_whoever_writes_may_read_what_was_written_so_far_and_the_end_is_told(tmp_path: Path) -> None:
    ends: list[str] = []
    files = OutputFiles(tmp_path, ended=lambda: ends.append("ended"))
    with attempt(files, new_id()) as sink:
        assert sink.read() == ""
        sink.write("first\nand a beginning")
        assert sink.read() == "first\nand a beginning"
    with attempt(files, new_id()):
        pass
    assert ends == ["ended"], "an attempt without output is not worth a word"
    with attempt(files, new_id()) as sink:
        assert sink.share().parent == tmp_path
    assert len(ends) == 2


# ---- one capped file ----


def test_no_file_is_made_without_output(files: OutputFiles) -> None:
    with attempt(files, new_id()) as sink:
        sink.flush()
    assert not files.folder.exists()


def test_a_finished_line_is_in_the_file_at_once_and_an_unfinished_one_when_flushed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = CappedFile(path, 1_000)
    file.write("a line\nand")
    assert path.read_text() == "a line\nand"
    file.write(" no")
    assert path.read_text() == "a line\nand"
    file.flush()
    assert path.read_text() == "a line\nand no"
    file.write(" end")
    file.close()
    assert path.read_text() == "a line\nand no end"


def test_a_long_line_without_end_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = CappedFile(path, 100_000)
    for _ in range(100):
        file.write("x" * 100)
    assert path.stat().st_size >= 8_192
    file.close()


@pytest.mark.parametrize("parts", [["0123456789", "\n"], ["01234567", "89abc\n"], ["0123456789" + "x" * 100_000], [b"0123456789abc\n"]])
def test_output_beyond_the_cap_is_cut_with_a_line_that_says_so(tmp_path: Path, parts: list[str | bytes]) -> None:
    path = tmp_path / "file"
    file = CappedFile(path, 10)
    for part in (*parts, "more\n", "and more\n"):
        assert file.write(part)
    file.close()
    assert path.read_text() == "0123456789" + CUT


def test_exactly_the_cap_is_not_cut(tmp_path: Path) -> None:
    file = CappedFile(tmp_path / "file", 10)
    file.write("012345678\n")
    file.close()
    assert (tmp_path / "file").read_text() == "012345678\n"


def test_a_character_is_never_cut_in_two(tmp_path: Path) -> None:
    file = CappedFile(tmp_path / "file", 10)
    file.write("012345678€\n")
    file.close()
    assert (tmp_path / "file").read_bytes().decode() == "012345678" + CUT


def test_a_second_writer_goes_on_where_the_first_stopped_and_does_not_cut_twice(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for part in ("01234\n", "56789\n", "more\n"):
        file = CappedFile(path, 10)
        file.write(part)
        file.close()
    assert path.read_text() == "01234\n5678" + CUT


def test_a_closed_file_takes_nothing_more(tmp_path: Path) -> None:
    file = CappedFile(tmp_path / "file", 10)
    file.close()
    assert not file.write("text\n")
    assert not (tmp_path / "file").exists()


def test_many_open_files_do_not_use_up_the_descriptors(files: OutputFiles) -> None:
    before = len(os.listdir("/proc/self/fd"))
    sinks = [(task_id, Sink(files, task_id, 1)) for task_id in (new_id() for _ in range(300))]
    for write in range(2):
        for _, sink in sinks:
            sink.write(f"write {write}\n")
    assert len(os.listdir("/proc/self/fd")) < before + 80
    for task_id, sink in sinks:
        sink.close()
        assert read(files, task_id, 1) == "write 0\nwrite 1\n"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_cannot_be_written_is_warned_of_once_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("duetime.targets.output.files._warned", False)
    (tmp_path / "file").touch()
    files = OutputFiles(tmp_path / "file")
    for _ in range(2):
        with attempt(files, new_id()) as sink:
            assert sink.write("text\n")
            assert sink.write("more\n")
    full = CappedFile(Path("/dev/full"), 100)
    assert full.write("text\n")
    full.close()
    [record] = caplog.records
    assert "cannot be kept" in record.getMessage()


def test_lone_surrogates_are_written_as_escapes(files: OutputFiles) -> None:
    task_id = new_id()
    with attempt(files, task_id) as sink:
        sink.write("\ud800\n")
    assert read(files, task_id, 1) == "\\ud800\n"


# ---- capturing ----


def test_without_an_attempt_everything_goes_where_it_always_went() -> None:
    with captured() as streams:
        print("out")
        print("err", file=sys.stderr)
        sys.stdout.writelines(["a", "b"])
        logging.getLogger("shop").warning("logged")
        logging.getLogger("shop").info("not logged")
        assert streams[0].getvalue() == "out\nab"
        assert streams[1].getvalue() == "err\nlogged\n"


def test_an_attempts_output_goes_to_its_file_only(files: OutputFiles) -> None:
    with captured() as streams:
        task_id = new_id()
        with attempt(files, task_id):
            print("printed ✓", 1)
            print("to stderr", file=sys.stderr)
            sys.stdout.buffer.write(b"bytes\n")
            print("no newline at the end", end="")
        lines = read(files, task_id, 1).splitlines()
        assert lines == ["printed ✓ 1", "to stderr", "bytes", "no newline at the end"]
        assert (streams[0].getvalue(), streams[1].getvalue()) == ("", "")


def test_log_records_are_written_with_time_level_name_and_traceback(files: OutputFiles) -> None:
    with captured():
        task_id = new_id()
        with attempt(files, task_id):
            try:
                raise KeyError("x")
            except KeyError:
                logging.getLogger("shop").exception("failed %d times", 2)
        first, *rest = read(files, task_id, 1).splitlines()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ERROR shop: failed 2 times", first)
        assert rest[0] == "Traceback (most recent call last):"
        assert rest[-1] == "KeyError: 'x'"


def test_a_tasks_own_log_is_kept_from_info_on(files: OutputFiles) -> None:
    with captured() as streams:
        task_id = new_id()
        with attempt(files, task_id):
            logging.getLogger("duetime.task").info("hello")
            logging.getLogger("duetime.task").debug("not wanted")
        assert read(files, task_id, 1).endswith("Z INFO duetime.task: hello\n")
        logging.getLogger("duetime.task").info("outside")
        assert streams[1].getvalue() == ""


def test_a_record_that_the_programs_own_handler_prints_is_not_written_twice(files: OutputFiles) -> None:
    with captured():
        own = logging.StreamHandler()
        own.setLevel(logging.ERROR)
        own.setFormatter(logging.Formatter("mine: %(message)s"))
        logging.getLogger().addHandler(own)
        task_id = new_id()
        with attempt(files, task_id):
            logging.getLogger("shop").error("wrong")
            logging.getLogger("shop").warning("odd")
        first, second = read(files, task_id, 1).splitlines()
        assert first == "mine: wrong"
        assert second.endswith("Z WARNING shop: odd")


def test_a_broken_log_call_is_reported_and_harms_nothing(files: OutputFiles) -> None:
    with captured():
        task_id = new_id()
        with attempt(files, task_id):
            logging.getLogger("shop").warning("%d", "no number")
            print("goes on")
        text = read(files, task_id, 1)
        assert "--- Logging error ---" in text
        assert text.endswith("goes on\n")


def test_what_is_not_text_is_refused_as_always(files: OutputFiles) -> None:
    with captured(), attempt(files, new_id()), pytest.raises(TypeError, match="must be str"):
        sys.stdout.write(b"bytes")  # type: ignore[arg-type]


def test_output_after_the_end_of_an_attempt_goes_to_the_process(files: OutputFiles) -> None:
    with captured() as streams:
        for first in (True, False):
            task_id = new_id()
            with attempt(files, task_id):
                late = contextvars.copy_context()
                if first:
                    print("in time")
            late.run(print, "too late", first)
            assert read(files, task_id, 1) == ("in time\n" if first else "")
        assert streams[0].getvalue() == "too late True\ntoo late False\n"


def test_a_capture_is_shared_and_removed_with_its_last_user(files: OutputFiles) -> None:
    with captured():
        proxies = sys.stdout, sys.stderr
        second = Capture()
        second.install()
        second.install()
        assert (sys.stdout, sys.stderr) == proxies
        task_id = new_id()
        with attempt(files, task_id):
            logging.getLogger("shop").warning("once")
        assert len(read(files, task_id, 1).splitlines()) == 1
        second.uninstall()
        second.uninstall()
        assert (sys.stdout, sys.stderr) == proxies


def test_uninstalling_restores_streams_and_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.stdout, sys.stderr, list(logging.getLogger().handlers), logging.getLogger("duetime.task").level
    capture = Capture()
    capture.install()
    assert sys.stdout is not before[0]
    capture.uninstall()
    assert (sys.stdout, sys.stderr, list(logging.getLogger().handlers), logging.getLogger("duetime.task").level) == before


def test_a_stream_that_somebody_else_has_installed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    capture = Capture()
    capture.install()
    other = io.StringIO()
    sys.stdout = other
    capture.uninstall()
    assert sys.stdout is other


def test_a_program_without_a_console_can_be_captured(files: OutputFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    capture = Capture()
    capture.install()
    try:
        task_id = new_id()
        with attempt(files, task_id):
            print("inside", flush=True)
        print("outside", flush=True)
        assert not sys.stdout.isatty()
    finally:
        capture.uninstall()
    assert read(files, task_id, 1) == "inside\n"


def test_a_finaliser_that_prints_in_the_middle_of_a_write_does_not_hang(files: OutputFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    with captured():
        write = os.write
        inside: list[bool] = []

        def interrupted(file: int, data: bytes) -> int:
            if not inside:
                inside.append(True)
                print("from the finaliser")
            return write(file, data)

        task_id = new_id()
        with attempt(files, task_id):
            monkeypatch.setattr(os, "write", interrupted)
            print("first")
            monkeypatch.setattr(os, "write", write)
        assert sorted(read(files, task_id, 1).splitlines()) == ["first", "from the finaliser"]


async def test_twenty_coroutines_and_twenty_threads_write_to_files_of_their_own(files: OutputFiles) -> None:
    with captured() as streams:
        lines = 200
        ids = [new_id() for _ in range(40)]
        barrier = threading.Barrier(20)

        def expected(task_id: str) -> str:
            return "".join(f"{task_id} prints {number}\n" for number in range(lines))

        async def coroutine(task_id: str) -> None:
            with attempt(files, task_id):
                for number in range(lines):
                    print(task_id, "prints", number)
                    await asyncio.sleep(0)

        def function(task_id: str) -> None:
            with attempt(files, task_id):
                barrier.wait()
                for number in range(lines):
                    print(task_id, "prints", number)

        with ThreadPoolExecutor(20) as threads:
            loop = asyncio.get_running_loop()
            await asyncio.gather(
                *(asyncio.ensure_future(coroutine(task_id)) for task_id in ids[:20]),
                *(loop.run_in_executor(threads, contextvars.copy_context().run, function, task_id) for task_id in ids[20:]),
            )
        for task_id in ids:
            assert read(files, task_id, 1) == expected(task_id)
        assert streams[0].getvalue() == ""


def test_threads_of_one_attempt_share_its_file_line_by_line(files: OutputFiles) -> None:
    with captured():
        task_id = new_id()
        with attempt(files, task_id), ThreadPoolExecutor(10) as threads:
            for number in range(500):
                threads.submit(contextvars.copy_context().run, sys.stdout.write, f"line {number}\n")
        assert sorted(read(files, task_id, 1).splitlines()) == sorted(f"line {number}" for number in range(500))


def test_printing_without_end_is_cut_and_then_takes_no_more_space(tmp_path: Path) -> None:
    with captured():
        files = OutputFiles(tmp_path, cap=100_000)
        task_id = new_id()
        with attempt(files, task_id):
            for number in range(50_000):
                print(f"{number:099d}")
        assert files.path(task_id, 1).stat().st_size == 100_000 + len(cut_line(100_000))


def test_a_cap_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="must not be negative"):
        OutputFiles(tmp_path, cap=-1)
