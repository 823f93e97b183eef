"""Lines that are passed on: whole, in order, bounded; and log lines as JSON."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from duetime.cli.hosting.log import JsonLines, LogChoice, TextLines, said
from duetime.ids import new_id
from duetime.targets.output import OutputFiles, Printed, Sink
from duetime.targets.output.echo import MOST_OF_A_LINE


@pytest.fixture
def echoed() -> list[Printed]:
    return []


@pytest.fixture
def files(tmp_path: Path, echoed: list[Printed]) -> OutputFiles:
    files = OutputFiles(tmp_path, cap=20_000)
    files.echo = echoed.append
    return files


def test_pieces_are_passed_on_as_lines(files: OutputFiles, echoed: list[Printed]) -> None:
    task = new_id()
    sink = Sink(files, task, 2, "greet")
    for piece in ("hel", "lo ", "Ada\nand", " Grace\n\nunfinished"):
        sink.echo(piece)
    assert echoed == [Printed("greet", task, 2, line) for line in ("hello Ada", "and Grace", "")]
    sink.close()
    assert echoed[-1].line == "unfinished"


def test_attempts_do_not_mix_their_lines(files: OutputFiles, echoed: list[Printed]) -> None:
    first, second = Sink(files, new_id(), 1, "a"), Sink(files, new_id(), 1, "b")
    for sink, piece in ((first, "one "), (second, "two "), (first, "three\n"), (second, "four\n")):
        sink.echo(piece)
    assert [(printed.handler, printed.line) for printed in echoed] == [("a", "one three"), ("b", "two four")]


def test_a_line_without_end_is_passed_on_in_parts(files: OutputFiles, echoed: list[Printed]) -> None:
    sink = Sink(files, new_id(), 1)
    sink.echo("x" * (MOST_OF_A_LINE + 1))
    assert len(echoed) == 1


def test_no_more_is_passed_on_than_is_kept(files: OutputFiles, echoed: list[Printed]) -> None:
    sink = Sink(files, new_id(), 1)
    for _ in range(100):
        sink.echo("x" * 999 + "\n")
    sink.close()
    assert sum(len(printed.line) + 1 for printed in echoed) <= files.cap + 100
    assert "the attempt prints too much" in echoed[-1].line


def test_what_a_sub_process_wrote_is_passed_on_when_its_attempt_ends(files: OutputFiles, echoed: list[Printed]) -> None:
    sink = Sink(files, new_id(), 1)
    sink.share().write_text("from a child\nits last words")
    assert echoed == []
    sink.close()
    assert [printed.line for printed in echoed] == ["from a child", "its last words"]


def test_nothing_is_passed_on_if_nobody_wants_it(tmp_path: Path) -> None:
    sink = Sink(OutputFiles(tmp_path), new_id(), 1)
    sink.echo("hello\n")
    sink.close()
    assert sink._lines is None


def record(**fields: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": "hello", **fields})


@pytest.mark.parametrize("message", ["two\nlines", "\udcff", "\0 \x1b[31m", "☃" * 10, '"quoted" \\'])
def test_any_record_is_one_line_of_json(message: str) -> None:
    line = JsonLines().format(record(msg=message, exc_text=message, duetime_task="t", duetime_error=object()))
    assert "\n" not in line
    document = json.loads(line)
    assert document["message"] == message.replace("\udcff", "\\udcff")
    assert (document["task"], document["exception"]) == ("t", document["message"])


def test_fields_that_a_record_lacks_are_left_out() -> None:
    document = json.loads(JsonLines(2).format(record()))
    assert list(document) == ["time", "level", "logger", "message", "worker"]
    assert document["time"].endswith("Z")


def test_control_characters_of_text_lines_are_escaped() -> None:
    line = TextLines().format(record(msg="\x1b[2J\tgone\x07", exc_text="Traceback\n  \x9b31m"))
    assert line.endswith("INFO shop: \\x1b[2J\tgone\\x07\nTraceback\n  \\x9b31m")


def test_what_a_command_says_is_json_where_its_log_is() -> None:
    assert said("starts", LogChoice("info")) == "duetime: starts"
    assert said("starts", LogChoice("info"), 2) == "duetime worker 2: starts"
    assert json.loads(said("starts at 100%", LogChoice("info", "json"), 2))["message"] == "starts at 100%"
