"""Filters, cursors and the checks of what callers give."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.clock import LATEST, SECOND
from duetime.errors import InvalidValue
from duetime.ids import new_id
from duetime.model.query import MAX_PAGE, Query, parse_state, read_cursor, write_cursor
from duetime.model.task import (
    MAX_NAME,
    NewTask,
    State,
    TaskRecord,
    check_meta,
    check_name,
    check_priority,
    delay_micros,
    due_instant,
    shown,
)


@given(st.integers(0, 2**63 - 1), st.text())
def test_a_cursor_returns_its_position(number: int, text: str) -> None:
    cursor = write_cursor(number, text)
    assert read_cursor(cursor, int, str) == [number, text]
    assert cursor.isascii()
    assert not set(cursor) & set("+/=&?# ")


@given(st.text(max_size=200))
def test_a_cursor_that_we_did_not_write_is_refused(text: str) -> None:
    try:
        position = read_cursor(text, int, str)
    except InvalidValue:
        return
    assert [type(part) for part in position] == [int, str]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "!!!!",
        "é",
        "\x00",
        base64.urlsafe_b64encode(b"not json").decode(),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        base64.urlsafe_b64encode(b'{"a": 1}').decode(),
        base64.urlsafe_b64encode(b"[]").decode(),
        base64.urlsafe_b64encode(b"[1]").decode(),
        base64.urlsafe_b64encode(b'["a", 1]').decode(),
        base64.urlsafe_b64encode(b'[true, "a"]').decode(),
        base64.urlsafe_b64encode(b'[1.5, "a"]').decode(),
        base64.urlsafe_b64encode(b'[1, "a", 2]').decode(),
        base64.urlsafe_b64encode(b'[null, "a"]').decode(),
        base64.urlsafe_b64encode(b'[1e400, "a"]').decode(),
        base64.urlsafe_b64encode(b"[" * 100_000).decode(),
    ],
)
def test_a_cursor_of_another_shape_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidValue, match="cursor is not one that this list gave out") as problem:
        read_cursor(cursor, int, str)
    assert len(str(problem.value)) < 250


@given(st.integers(0, 2**62), st.text(alphabet="0123456789abcdef-", max_size=36), st.data())
def test_a_cursor_with_a_changed_character_is_refused_or_names_a_position(number: int, text: str, data: st.DataObject) -> None:
    cursor = write_cursor(number, text)
    at = data.draw(st.integers(0, len(cursor) - 1))
    changed = cursor[:at] + data.draw(st.characters(codec="ascii")) + cursor[at + 1 :]
    try:
        position = read_cursor(changed, int, str)
    except InvalidValue:
        return
    assert [type(part) for part in position] == [int, str]


@pytest.mark.parametrize("limit", [0, -1, MAX_PAGE + 1])
def test_a_page_has_a_bounded_size(limit: int) -> None:
    with pytest.raises(InvalidValue, match=f"limit must lie between 1 and {MAX_PAGE}, got {limit}"):
        Query(limit=limit)
    assert Query(limit=1).limit == 1
    assert Query(limit=MAX_PAGE).limit == MAX_PAGE


def test_a_state_is_read_by_its_name() -> None:
    assert [parse_state(str(state)) for state in State] == list(State)
    for wrong in ("", "Pending", "done", "scheduled"):
        with pytest.raises(InvalidValue, match="state must be one of blocked, pending, running"):
            parse_state(wrong)


@pytest.mark.parametrize("priority", range(10))
def test_priorities_from_0_to_9_are_allowed(priority: int) -> None:
    assert check_priority(priority) == priority


@pytest.mark.parametrize("priority", [-1, 10, 12, 5.0, "5", None, True])
def test_another_priority_is_refused_with_what_was_expected(priority: Any) -> None:
    with pytest.raises(InvalidValue, match="priority must be a whole number from 0 to 9") as problem:
        check_priority(priority)
    assert repr(priority) in str(problem.value)


@pytest.mark.parametrize("name", ["a", "orders.expire", "日本", "with blank", "🦉", "x" * MAX_NAME])
def test_names_may_be_any_printable_text(name: str) -> None:
    assert check_name(name, "key") == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "key must not be empty"),
        ("  ", "key must not be empty"),
        ("x" * (MAX_NAME + 1), f"key must have at most {MAX_NAME} characters, got {MAX_NAME + 1}"),
        ("a\x00b", "key must not contain control characters"),
        ("a\nb", "key must not contain control characters"),
        ("\ud800", "key must not contain control characters"),
        (7, "key must be text, got int"),
        (None, "key must be text, got NoneType"),
        (b"a", "key must be text, got bytes"),
    ],
)
def test_other_names_are_refused_with_what_was_expected(name: Any, message: str) -> None:
    with pytest.raises(InvalidValue) as problem:
        check_name(name, "key")
    assert message in str(problem.value)


def test_meta_maps_text_to_text_and_is_small() -> None:
    assert check_meta({"trace": "00-ab"}) == {"trace": "00-ab"}
    for wrong in ({"a": 1}, {1: "a"}, {"a": None}):
        with pytest.raises(InvalidValue, match="meta must map text to text"):
            check_meta(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="8,192 characters"):
        check_meta({"a": "x" * 8_192})


def test_a_delay_is_not_negative_and_stays_inside_the_calendar() -> None:
    assert delay_micros(1.5) == 1_500_000
    assert delay_micros(timedelta(minutes=30)) == 1_800 * SECOND
    assert delay_micros(0) == 0
    for wrong, message in ((-1, "must not be negative, got -1"), (1e15, "beyond the year 9999"), (float("nan"), "must be finite")):
        with pytest.raises(InvalidValue, match=message):
            delay_micros(wrong)
    with pytest.raises(InvalidValue, match="delay must be seconds or a timedelta, got str"):
        delay_micros("1h")  # type: ignore[arg-type]


def test_a_due_time_is_aware() -> None:
    assert due_instant(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == SECOND
    assert due_instant(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)) == LATEST
    with pytest.raises(InvalidValue, match="time zone"):
        due_instant(datetime(2030, 1, 1))


def test_a_new_task_is_given_a_time_without_being_changed() -> None:
    task: NewTask[object] = NewTask(id=new_id(), handler="work", payload=b"{}")
    later = task.after(30)
    fixed = later.at(datetime(2030, 1, 1, tzinfo=UTC))
    assert (task.due_at, task.delay) == (None, 0)
    assert (later.due_at, later.delay) == (None, 30 * SECOND)
    assert (fixed.due_at, fixed.delay) == (due_instant(datetime(2030, 1, 1, tzinfo=UTC)), 0)
    assert (fixed.after(5).due_at, fixed.after(5).delay) == (None, 5 * SECOND)


def test_people_are_shown_datetimes_and_decoded_payloads() -> None:
    record = TaskRecord(
        id="t",
        handler="work",
        state=State.SUCCEEDED,
        payload=b'{"order_id": 7}',
        due_at=SECOND,
        submitted_at=0,
        finished_at=2 * SECOND,
        result=b"[1, 2]",
        retry=b'{"tries": 3}',
    )
    task = shown(record)
    assert task.due_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert task.finished_at == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert (task.payload, task.result, task.retry, task.meta) == ({"order_id": 7}, [1, 2], {"tries": 3}, {})
    assert (task.final, task.expires_at, task.started_at) == (True, None, None)
    assert not shown(msgspec.structs.replace(record, state=State.RUNNING)).final


@pytest.mark.parametrize("prefix", ["", "01a", "01A1E112", "01a1e1120", "xyza", "01a1-", "01a1e112-c0d3-7403-88d7-6b1eec5cb6478", "01a1%"])
def test_what_no_id_begins_with_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidValue, match="id_prefix"):
        Query(id_prefix=prefix)
