"""The command line over a server: the scenarios that are played on a store, with nothing but an address, and what is different."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from duetime import App
from duetime.api.server import Server
from tests.cli import test_change, test_forecast, test_gates, test_naming, test_overview, test_schedules, test_submit, test_tasks
from tests.cli.conftest import CommandLine, Shop
from tests.servers.ports import free_port
from tests.servers.waiting import PATIENCE

_SCENES = (test_change, test_forecast, test_gates, test_naming, test_overview, test_schedules, test_submit, test_tasks)
# A server takes tasks and schedules of declared handlers only, notes in a task's meta which request has made it, and knows people
# by their tokens.
_DIFFERENT = {
    "test_people_find_what_they_submitted",
    "test_a_value_that_is_json_means_that_and_any_other_is_text",
    "test_the_difference_is_shown_before_it_is_applied",
    "test_delay_time_expiry_collection_and_priority_are_stored",
}

globals().update(
    {
        name: test
        for scenes in _SCENES
        for name, test in vars(scenes).items()
        if name.startswith("test_") and callable(test) and name not in _DIFFERENT
    }
)


@contextmanager
def serving(url: str) -> Iterator[str]:
    """Serve a store from a thread of its own; yield the address."""
    ready, loops = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]]()

    async def serve() -> None:
        async with Server(App(url), port=0).running() as server:
            over = asyncio.Event()
            loops.append((asyncio.get_running_loop(), over, server.url))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE), "the server did not start"
        yield loops[0][2]
    finally:
        loop, over, _ = loops[0]
        loop.call_soon_threadsafe(over.set)
        thread.join(PATIENCE)


declare = test_schedules.declare


@pytest.fixture(autouse=True)
def opened(shop: Shop) -> None:
    """A store in which handlers are declared."""


@pytest.fixture
def duetime(url: str) -> Iterator[CommandLine]:
    with serving(url) as address:
        yield CommandLine(address)


# ---- what is different ----


def test_what_was_asked_for_is_stored(duetime: CommandLine) -> None:
    options = ["--in", "1h", "--key", "k", "--collection", "eu", "--priority", "9", "--timeout", "5s", "--meta", "tenant=a"]
    task = duetime.json("submit", "greet", "name=007", "times=7", *options)
    assert (task["key"], task["collection"], task["priority"], task["timeout"], task["meta"]["tenant"]) == ("k", "eu", 9, 5.0, "a")
    assert task["payload"] == {"name": "007", "times": 7}
    assert duetime.json("task", task["id"]) == {**task, "attempts": []}


def test_declared_schedules_are_compared_and_applied_once_a_worker_knows_their_handlers(
    duetime: CommandLine, shop: Shop, declare: Any
) -> None:
    path = declare("from duetime import App\napp = App()\n@app.schedule(cron='0 9 * * *')\nasync def morning() -> None: ...\n")
    assert "no process that opened this store has declared a handler 'morning'" in duetime("schedules", "plan", path, code=2).stderr
    shop.app.task(name="morning")(_nothing)
    shop.do(shop.app.open())
    assert duetime("schedules", "plan", path, code=1).stdout.splitlines() == ["+ morning: add", "add 1"]
    duetime("schedules", "apply", path, "--yes")
    assert [each["name"] for each in duetime.json("schedules")["items"]] == ["morning"]


async def _nothing() -> None: ...


@pytest.mark.parametrize(
    "command",
    [["migrate"], ["migrate", "--sql"], ["server"]],
)
def test_commands_about_the_store_itself_say_where_they_belong(duetime: CommandLine, command: list[str]) -> None:
    said = duetime(*command, code=2).stderr
    assert f"needs a store, and {duetime.url} is a server; run it where the store is reached" in said


def test_a_server_that_is_not_there_ends_with_5(duetime: CommandLine) -> None:
    answer = duetime("stats", code=5, url=f"http://127.0.0.1:{free_port()}")
    assert "cannot be reached" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_token_is_needed_where_there_are_some_and_what_is_done_is_in_the_audit_once(
    url: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create() -> list[str]:
        async with shop.app as app:
            return [(await app.tokens.create(name, scopes=[name])).token for name in ("submit", "operate")]

    submit, operate = shop.do(create())
    with serving(url) as address:
        duetime = CommandLine(address)
        assert "give one as token=… or in DUETIME_TOKEN" in duetime("tasks", code=1).stderr
        monkeypatch.setenv("DUETIME_TOKEN", submit)
        task = duetime.submit("greet", "name=Ada", "--in", "1h")
        assert "operate" in duetime("cancel", task, code=1).stderr
        monkeypatch.setenv("DUETIME_TOKEN", operate)
        assert duetime.lines("cancel", task) == [f"{task} cancelled"]
        duetime("gates", "pause", "greet", "--note", "down")
    entries = [(each["by"], each["action"], each["outcome"]) for each in CommandLine(url).json("audit")["items"]]
    assert [each for each in reversed(entries) if not each[1].startswith("tokens.")] == [
        ("operate", "tasks.cancel", "done"),
        ("operate", "gates.pause", "done"),
    ]


def test_tokens_and_the_audit_are_managed_with_an_admin_token(url: str, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CommandLine(url)
    boss = store("tokens", "create", "boss", "--scope", "admin").stdout.strip()
    with serving(url) as address:
        duetime = CommandLine(address)
        monkeypatch.setenv("DUETIME_TOKEN", boss)
        options = ["--scope", "submit", "--handler", "greet", "--expires", "90d", "--rate", "50", "--note", "the web shop"]
        made = duetime("tokens", "create", "shop", *options)
        assert "cannot be shown again" in made.stderr
        monkeypatch.setenv("DUETIME_TOKEN", made.stdout.strip())
        duetime.submit("greet", "name=Ada", "--in", "1h")
        assert "the token shop lacks the scope admin; use one that has it" in duetime("tokens", code=1).stderr
        monkeypatch.setenv("DUETIME_TOKEN", boss)
        assert [line.split()[:2] for line in duetime.lines("tokens")] == [["name", "scopes"], ["boss", "admin"], ["shop", "submit"]]
        rotated = duetime.json("tokens", "rotate", made.stdout.strip(), "--grace", "0")
        assert rotated["token"] != made.stdout.strip()
        assert duetime.lines("tokens", "revoke", rotated["token"]) == ["revoked shop"]
        assert "there is no token 'shop'" in duetime("tokens", "revoke", "shop", code=3).stderr
        refused = duetime("tokens", "revoke", "boss", code=4).stderr
        assert "boss is the one that makes this request" in refused
        assert refused.endswith("; --force revokes it all the same\n")
        entries = duetime.json("audit", "--since", "1h", "--action", "tokens.revoke")["items"]
        assert [(each["by"], each["subject"], each["outcome"]) for each in entries] == [
            ("boss", "boss", "refused"),
            ("boss", "shop", "refused"),
            ("boss", "shop", "done"),
        ]
        assert duetime.json("audit") == store.json("audit")
        duetime("tokens", "revoke", "boss", "--force")
        assert "not known here" in duetime("tokens", code=1).stderr


def test_the_doctor_examines_and_repairs_over_a_server(duetime: CommandLine, url: str, tmp_path: Path) -> None:
    assert duetime.lines("doctor")[-1] == "no problems"
    assert duetime.json("doctor")["store"] == url
    task = duetime.submit("greet", "name=x", "--in", "1h")
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as damaged:
        damaged.execute("delete from duetime_due")
        damaged.commit()
    answer = duetime("doctor", code=1)
    assert f"problem: task without a location: {task}: " in answer.stdout
    assert answer.stdout.endswith("1 problem left of 1; what can be repaired is: duetime doctor --repair\n")
    assert duetime.json("doctor", "--repair")["healthy"] is True
    assert duetime.lines("doctor")[-1] == "no problems"
    [entry] = CommandLine(url).json("audit", "--action", "doctor.repair")["items"]
    assert (entry["subject"], entry["outcome"], entry["detail"], entry["origin"]) == ("store", "done", "1 problem, repaired", "127.0.0.1")
