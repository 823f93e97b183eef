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


def test_an_instant_without_a_zone_is_in_that_of_tz(duetime: CommandLine, shop: Shop) -> None:
    for options in (("--at", "2030-01-31T07:00", "--tz", "Europe/Berlin"), ("--tz", "Europe/Berlin", "--at", "2030-01-31T07:00")):
        said = duetime("submit", "greet", "name=x", *options)
        assert duetime.json("task", said.stdout.strip())["due_at"] == "2030-01-31T06:00:00Z"
        assert said.stderr == ""
    both = ("--at", "2030-01-31T07:00Z", "--expires", "2030-02-01", "--tz", "Asia/Tokyo")
    task = duetime.json("task", duetime.submit("greet", "name=x", *both))
    assert (task["due_at"], task["expires_at"]) == ("2030-01-31T07:00:00Z", "2030-01-31T15:00:00Z")


def test_an_instant_without_any_zone_is_utc_and_that_is_said(duetime: CommandLine, shop: Shop) -> None:
    said = duetime("submit", "greet", "name=x", "--at", "2030-01-31T07:00")
    assert duetime.json("task", said.stdout.strip())["due_at"] == "2030-01-31T07:00:00Z"
    assert said.stderr == "2030-01-31T07:00 does not say its zone and is taken as UTC; --tz names another one\n"


def test_every_command_with_instants_takes_tz(duetime: CommandLine, shop: Shop) -> None:
    task_id = duetime.submit("greet", "name=x", "--at", "2030-01-31T07:00Z")
    tz = ("--tz", "Europe/Berlin")
    assert duetime.ids("--due-after", "2030-01-31T08:00", *tz) == [task_id]
    assert duetime.ids("--due-after", "2030-01-31T08:01", *tz) == []
    assert "2030-06-01 05:00:00 UTC" in duetime("reschedule", task_id, "--at", "2030-06-01T07:00", *tz).stdout
    assert "2030-06-01 05:00:00 UTC" in duetime("edit", task_id, "--at", "2030-06-01T07:00", *tz).stdout
    assert duetime("logs", "--search", "x", "--since", "2030-01-01", *tz).stderr == "no logs have these words\n"
    made = duetime.json("schedules", "put", "once", "--handler", "greet", "name=x", "--at", "2030-01-31T07:00", *tz)
    assert made["next_at"] == "2030-01-31T06:00:00Z"
    every = ("schedules", "put", "often", "--handler", "greet", "name=x", "--every", "1h", "--start", "2030-01-31T07:00", *tz)
    assert duetime.json(*every)["schedule"]["start"] == "2030-01-31T06:00:00Z"
    shown = duetime("schedules", "preview", "--every", "1h", "--after", "2030-01-31T07:00", "--count", "1", *tz).stdout
    assert "2030-01-31" in shown
    assert duetime("schedules", "backfill", "often", "--from", "2020-01-01", "--to", "2020-01-02", "--dry-run", *tz).stderr == ""


def test_a_task_that_needs_others_waits_for_them(duetime: CommandLine) -> None:
    first = duetime("submit", "greet", "name=Ada", "--in", "1h").stdout.strip()
    second = duetime("submit", "greet", "name=Eva", "--in", "1h").stdout.strip()
    task = duetime.json("submit", "greet", "name=Bob", "--needs", first, "--needs", f"ended:{second}")
    assert task["state"] == "blocked"
    told = duetime("why", task["id"]).stdout.replace("\n", " ")
    assert first in told
    assert second in told


def test_what_is_not_there_cannot_be_needed(duetime: CommandLine) -> None:
    answer = duetime("submit", "greet", "name=Bob", "--needs", "01890000-0000-7000-8000-000000000000", code=3)
    assert "no task 01890000-0000-7000-8000-000000000000" in answer.stderr
    assert duetime.ids() == []


def test_few_tasks_are_made_of_many_submissions(duetime: CommandLine) -> None:
    first = duetime.json("submit", "greet", "name=Ada", "--key", "doc-7", "--debounce", "30s", "--max-wait", "5m")
    again = duetime.json("submit", "greet", "name=Bob", "--key", "doc-7", "--debounce", "30s", "--max-wait", "5m")
    assert (again["id"], again["payload"]["name"], again["merged"]["submissions"]) == (first["id"], "Bob", 2)
    opened = duetime("submit", "greet", "name=Ada", "--key", "host-7", "--throttle", "1m").stdout
    assert duetime("submit", "greet", "name=Bob", "--key", "host-7", "--throttle", "1m").stdout == opened
    assert "give key= too" in duetime("submit", "greet", "name=Ada", "--debounce", "30s", code=2).stderr
