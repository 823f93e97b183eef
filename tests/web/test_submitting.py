"""A form from a handler's schema: each property a field of its kind, and what is filled in becomes the payload."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
import pytest

from duetime import App, InvalidValue
from duetime.web.schema_form import Field, fields_of, read_payload
from tests.web.conftest import Reader, dashboard


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


def printing() -> App:
    app = App("sqlite:///:memory:", user="mira")

    @app.task(name="print.label")
    async def label(text: str, copies: int, size: Size, weight: float | None = None, express: bool = False, lines: list[str] = []) -> None:  # noqa: B006
        """Print a label."""

    return app


def test_each_property_is_a_field_of_its_kind() -> None:
    app = printing()
    spec = app.handler("print.label").spec
    assert spec is not None
    schema = msgspec.json.decode(spec.payloads.schema())
    kinds = {field.name: (field.kind, field.required) for field in fields_of(schema)}
    assert kinds == {
        "text": ("text", True),
        "copies": ("integer", True),
        "size": ("choice", True),
        "weight": ("number", False),
        "express": ("yes or no", False),
        "lines": ("json", False),
    }
    assert next(field for field in fields_of(schema) if field.name == "size").choices == ['"large"', '"small"']
    assert next(field for field in fields_of(schema) if field.name == "express").usual == "false"


def test_what_is_left_empty_is_left_out_and_text_may_be_empty() -> None:
    fields = [
        Field(name="text", kind="text", required=True),
        Field(name="note", kind="text", required=False),
        Field(name="copies", kind="integer", required=False),
        Field(name="more", kind="json", required=False),
    ]
    assert read_payload(fields, {"field:text": "", "field:note": "", "field:copies": " ", "field:more": '{"a": [1]}'}) == {
        "text": "",
        "more": {"a": [1]},
    }


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        (Field(name="copies", kind="integer", required=True), "2.5", "copies must be a whole number"),
        (Field(name="copies", kind="integer", required=True), "", "copies must be filled in"),
        (Field(name="weight", kind="number", required=True), "heavy", "weight must be a number"),
        (Field(name="lines", kind="json", required=True), "[", "lines must be JSON"),
        (Field(name="lines", kind="json", required=True), "[" * 100_000, "lines must be JSON"),
        (Field(name="size", kind="choice", required=True, choices=['"small"']), '"huge"', "size must be one of"),
    ],
)
def test_what_does_not_fit_is_told_with_the_name_of_the_field(field: Field, text: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        read_payload([field], {field.input: text})


@pytest.mark.parametrize("schema", [{}, {"properties": 3}, {"properties": {"a": True}}, {"properties": {"a": {"$ref": "#/$defs/none"}}}])
def test_any_schema_has_some_form(schema: dict[str, Any]) -> None:
    assert all(field.kind == "json" for field in fields_of(schema))


async def test_a_task_is_submitted_and_tested_by_the_form() -> None:
    app = printing()
    async with dashboard(app) as ui, app.worker(grace=0.1):
        page = await ui("/handlers/print.label/submit")
        assert 'name="field:copies"' in page
        form = {
            "field:text": "Ada <b>",
            "field:copies": "3",
            "field:size": '"small"',
            "field:express": "true",
            "delay": "2h",
            "priority": "7",
        }
        headers, _ = await ui.whole("/handlers/print.label/submit", form={"do": "submit", **form}, status=303)
        task = await app.get(headers["location"].rpartition("/")[2])
        assert task.payload == {"text": "Ada <b>", "copies": 3, "size": "small", "express": True}
        assert (task.priority, task.submitted_by) == (7, "mira")
        headers, _ = await ui.whole("/handlers/print.label/submit", form={"do": "test", **form}, status=303)
        tested = await app.get(headers["location"].rpartition("/")[2])
        assert (tested.priority, tested.meta["duetime.test"]) == (9, "1")
        await ui("/handlers/print.label/submit", form={"do": "submit", **form, "field:copies": "many"}, status=303)
        assert "copies must be a whole number" in await ui("/handlers/print.label/submit")
        await ui("/handlers/no.such/submit", status=404)


async def test_who_may_not_submit_finds_no_form(signed: Callable[..., Any], app: App) -> None:
    async with app.worker(grace=0.1):
        pass  # handlers are declared now
    reader: Reader = await signed("rita", scopes=["read"])
    assert "/submit" not in await reader("/handlers/mail.send")
    await reader("/handlers/mail.send/submit", status=403)
    submitter: Reader = await signed("sam", scopes=["read", "submit"], handlers=["mail.send"])
    assert "/submit" in await submitter("/handlers/mail.send")
    await submitter("/handlers/payments.charge/submit", status=404)
    await submitter("/handlers/payments.charge/submit", form={"do": "submit", "field:order_id": "1", "field:cents": "1"}, status=303)
    assert "payments.charge" not in await submitter("/tasks")
