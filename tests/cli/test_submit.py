"""Submitting from the command line."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tests.cli.conftest import CommandLine, Shop


@pytest.fixture(autouse=True)
def opened(shop: Shop) -> None:
    """A store in which handlers are declared."""


def test_it_prints_nothing_but_the_id(duetime: CommandLine) -> None:
    answer = duetime("submit", "greet", "name=Ada")
    assert answer.stdout == f"{duetime.ids()[0]}\n"
    assert answer.stderr == ""


def test_a_value_that_is_json_means_that_and_any_other_is_text(duetime: CommandLine) -> None:
    arguments = ["a=7", "b=007", 'c="7"', "d=true", "e=null", "f=[1, 2]", "g=", "h=x=y", "i=1.5", "j={", "k=Grüße"]
    task = duetime.json("submit", "whatever", *arguments, "--allow-unknown")
    expected = {"a": 7, "b": "007", "c": "7", "d": True, "e": None, "f": [1, 2], "g": "", "h": "x=y", "i": 1.5, "j": "{", "k": "Grüße"}
    assert task["payload"] == expected


@pytest.mark.parametrize("source", ["inline", "file", "standard input"])
def test_a_payload_is_taken_as_json(duetime: CommandLine, source: str) -> None:
    text = '{"name": "Ada", "times": 3}'
    Path("payload.json").write_text(text)
    given = {"inline": text, "file": "@payload.json", "standard input": "-"}[source]
    task_id = duetime("submit", "greet", "--payload", given, input=text).stdout.strip()
    assert duetime.json("task", task_id)["payload"] == {"name": "Ada", "times": 3}


def test_named_arguments_complete_a_payload(duetime: CommandLine) -> None:
    task = duetime.json("submit", "greet", "times=2", "--payload", '{"name": "Ada"}')
    assert task["payload"] == {"name": "Ada", "times": 2}


@pytest.mark.covers("CEL.1")
def test_delay_time_expiry_collection_and_priority_are_stored(duetime: CommandLine) -> None:
    options = ["--priority", "9", "--collection", "eu", "--timeout", "1m30s", "--expires", "1h", "--meta", "tenant=a", "--meta", "b=c=d"]
    task = duetime.json("submit", "greet", "name=Ada", "--at", "2030-01-31T07:00+01:00", *options)
    assert task["handler"] == "greet"
    assert task["due_at"] == "2030-01-31T06:00:00Z"
    assert task["expires_at"] == "2030-01-31T07:00:00Z"
    assert (task["priority"], task["collection"], task["timeout"]) == (9, "eu", 90.0)
    assert task["meta"] == {"tenant": "a", "b": "c=d"}
    delayed = duetime.json("submit", "greet", "name=Ada", "--in", "1d2h", "--expires", "2100-01-01T00:00:00Z")
    assert instant(delayed["due_at"]) - instant(delayed["submitted_at"]) == timedelta(hours=26)
    assert delayed["expires_at"] == "2100-01-01T00:00:00Z"


def instant(text: str) -> datetime:
    return msgspec.convert(text, datetime).astimezone(UTC)


def test_the_handlers_own_priority_is_the_default(duetime: CommandLine, shop: Shop) -> None:
    shop.app.task(name="urgent", priority=8)(_nothing)
    shop.do(shop._open())
    assert duetime.json("submit", "urgent")["priority"] == 8


async def _nothing() -> None:
    return None


def test_a_taken_key_is_a_conflict_unless_it_is_allowed_for(duetime: CommandLine) -> None:
    first = duetime.submit("greet", "name=Ada", "--key", "k", "--in", "1h")
    answer = duetime("submit", "greet", "name=Bob", "--key", "k", code=4)
    assert first in answer.stderr
    assert "--if-exists keep" in answer.stderr
    assert duetime.submit("greet", "name=Bob", "--key", "k", "--if-exists", "keep") == first
    assert duetime.json("task", first)["payload"] == {"name": "Ada"}
    assert duetime.submit("greet", "name=Bob", "--key", "k", "--if-exists", "replace", "--in", "2h") == first
    assert duetime.json("task", first)["payload"] == {"name": "Bob"}


def test_waiting_ends_after_its_time_and_the_task_stays(duetime: CommandLine) -> None:
    answer = duetime("submit", "greet", "name=Ada", "--in", "1h", "--wait", "--wait-timeout", "10ms", code=1)
    task_id, complaint = answer.stderr.splitlines()
    assert duetime.json("task", task_id)["state"] == "pending"
    assert "still pending" in complaint


def test_an_unknown_handler_may_be_allowed_also_where_there_is_no_store_yet(duetime: CommandLine, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    task_id = duetime("submit", "later", "--allow-unknown", "--url", url).stdout.strip()
    assert "later" in duetime("task", task_id, "--url", url).stdout


def test_the_handlers_of_an_app_are_declared_when_it_is_named(
    duetime: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "declared_here", raising=False)
    url = f"sqlite:///{tmp_path}/new.db"
    Path("declared_here.py").write_text("from duetime import App\napp = App()\n@app.task\nasync def hello(name: str) -> None: ...\n")
    assert "name is missing" in duetime("submit", "hello", "--app", "declared_here:app", "--url", url, code=1).stderr
    duetime("submit", "hello", "name=Ada", "--url", url)
