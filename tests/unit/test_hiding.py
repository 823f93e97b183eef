"""What is hidden of tasks: blanked where it stands, whatever the payload looks like, and never searched for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from duetime.errors import InvalidValue
from duetime.model.hiding import BLANK, NOTHING, read_hiding
from duetime.model.query import Query
from duetime.model.task import State, Task, TaskRecord

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TASK = TaskRecord(
    id="01a1ee76-a8ef-74c3-83ad-6a657b63f2ce", handler="h", state=State.SUCCEEDED,
    payload=b'{"card": {"number": "4711", "name": "Ada"}, "n": 1}',
    result=b'{"token": "t", "ok": true}', meta={"tenant": "acme", "secret": "s"}, due_at=0, submitted_at=0,
)  # fmt: skip


def payload(paths: str, data: Any) -> Any:
    record = msgspec.structs.replace(TASK, payload=msgspec.json.encode(data))
    return msgspec.json.decode(read_hiding(paths, "hide").of(record).payload)


@pytest.mark.parametrize(
    ("paths", "given", "shown"),
    [
        ("payload.password", {"password": "x", "user": "a"}, {"password": BLANK, "user": "a"}),
        ("payload.a.b", {"a": {"b": {"c": 1}, "d": 2}, "b": 3}, {"a": {"b": BLANK, "d": 2}, "b": 3}),
        ("payload.*", {"a": 1, "b": {"c": 2}}, {"a": BLANK, "b": BLANK}),
        ("payload.lines.*.price", {"lines": [{"price": 1, "sku": "x"}, 7]}, {"lines": [{"price": BLANK, "sku": "x"}, 7]}),
        ("payload.lines.0", {"lines": [1, 2]}, {"lines": [BLANK, 2]}),
        ("payload.a.b", {"a": "text"}, {"a": "text"}),
        ("payload.a, payload.b", {"a": 1, "b": 2, "c": 3}, {"a": BLANK, "b": BLANK, "c": 3}),
        ("meta.*", {"a": 1}, {"a": 1}),
    ],
)
def test_a_path_blanks_what_stands_there(paths: str, given: Any, shown: Any) -> None:
    assert payload(paths, given) == shown


def test_payload_result_and_meta_are_blanked_and_the_rest_stays() -> None:
    hiding = read_hiding("payload.card.number, result.token, meta.secret", "hide")
    found = hiding.of(TASK)
    assert found.payload == b'{"card":{"number":"(hidden)","name":"Ada"},"n":1}'
    assert found.result == b'{"token":"(hidden)","ok":true}'
    assert found.meta == {"tenant": "acme", "secret": BLANK}
    task: Task[Any] = Task(
        id=TASK.id, handler="h", state=State.SUCCEEDED, payload={"card": {"number": 1}}, result={"token": 2}, due_at=NOW, submitted_at=NOW,
        meta={"secret": "s"},
    )  # fmt: skip
    blanked = hiding.of_task(task)
    assert (blanked.payload, blanked.result, blanked.meta) == ({"card": {"number": BLANK}}, {"token": BLANK}, {"secret": BLANK})


def test_a_payload_that_was_cut_is_hidden_as_a_whole() -> None:
    cut = msgspec.structs.replace(TASK, payload=b'{"password": "secr')
    assert read_hiding("payload.password", "hide").of(cut).payload == b'"(hidden)"'


def test_nothing_is_touched_where_nothing_is_hidden() -> None:
    assert NOTHING.of(TASK) is TASK


@pytest.mark.parametrize("query", [Query(payload={"card.number": "4"}), Query(payload={"card.number.0": "4"}), Query(meta={"secret": "s"})])
def test_what_is_hidden_cannot_be_searched_for(query: Query) -> None:
    with pytest.raises(InvalidValue, match="is hidden here"):
        read_hiding("payload.card.*, meta.secret", "hide").check(query)


def test_what_is_not_hidden_can_be_searched_for() -> None:
    read_hiding("payload.card.number, meta.secret", "hide").check(Query(payload={"card.name": "Ada"}, meta={"tenant": "acme"}))


@pytest.mark.parametrize("text", ["password", "payload", "payload.", "error.message", "payload..x"])
def test_a_path_begins_with_what_can_be_hidden(text: str) -> None:
    with pytest.raises(InvalidValue, match="hide has paths such as"):
        read_hiding(text, "hide")
