"""A failing test shows what the servers wrote while it ran, and no more than can be read."""

from __future__ import annotations

import pytest

from tests.servers.fixtures import NewPostgres
from tests.servers.log import ERRORS, LINES, WIDTH, excerpt


def message(number: int, level: str = "LOG", text: str = "checkpoint") -> str:
    return f"2026-11-18 06:21:{number % 60:02d}.123 +0545 [{number}] {level}:  {text}"


def test_a_short_log_is_shown_whole() -> None:
    text = "\n".join([message(1), message(2, "ERROR", "deadlock detected")])
    assert excerpt(text) == text.replace(":  ", ": ")
    assert excerpt("") == ""


def test_a_message_of_many_lines_becomes_a_short_one() -> None:
    statement = message(1, "STATEMENT", "select *") + "\n\t    from task" * 100
    shown = excerpt(f"{statement}\n{message(2)}").splitlines()
    assert len(shown) == 2
    assert "select * from task from task" in shown[0]
    assert len(shown[0]) == WIDTH + 1


def test_errors_are_shown_however_much_was_written_after_them() -> None:
    lines = [message(0, "ERROR", "the cause"), *(message(number) for number in range(1, 500))]
    shown = excerpt("\n".join(lines)).splitlines()
    assert shown[0] == f"… {len(lines) - LINES - 1} earlier messages"
    assert "the cause" in shown[1]
    assert len(shown) == LINES + 2


def test_a_flood_of_errors_is_bounded_too() -> None:
    lines = [message(number, "ERROR", f"error {number}") for number in range(1_000)] + [message(1)] * LINES
    shown = excerpt("\n".join(lines)).splitlines()
    assert len(shown) == 1 + ERRORS + LINES
    assert "error 999" in shown[ERRORS]


@pytest.mark.slow
def test_a_server_tells_what_it_wrote_since(new_postgres: NewPostgres) -> None:
    server = new_postgres()
    with pytest.raises(Exception, match="first_mistake"):
        server.query("select first_mistake")
    size = server.log_size()
    with pytest.raises(Exception, match="second_mistake"):
        server.query("select second_mistake")
    assert "first_mistake" in excerpt(server.log())
    shown = excerpt(server.log(since=size))
    assert "second_mistake" in shown
    assert "first_mistake" not in shown
