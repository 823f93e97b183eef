"""Stored targets from the command line: put, shown, listed, deleted, and served by a worker that has no code."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from duetime import App
from duetime.model.addresses import AddressRules
from tests.cli.conftest import CommandLine, Program, until
from tests.servers.http import Conversation, answering, serving
from tests.servers.waiting import PATIENCE

PING = ("handlers", "put", "ping", "--url", "https://example.com/health", "--method", "GET")


def test_a_target_is_put_listed_shown_and_deleted(duetime: CommandLine) -> None:
    assert duetime.lines(*PING, "--note", "the shop is up") == ["put ping: GET https://example.com/health"]
    [row] = [line for line in duetime.lines("handlers") if line.startswith("ping")]
    assert "the shop is up" in row
    assert duetime.lines("handlers", "list") == duetime.lines("handlers")
    definition = duetime.lines("handlers", "show", "ping", "--target")
    shown = duetime("handlers", "show", "ping").stdout
    assert "its target: version 1, put " in shown
    assert all(line in shown for line in definition)
    assert json.loads("".join(definition)) == {
        "kind": "http",
        "doc": "the shop is up",
        "url": "https://example.com/health",
        "method": "GET",
    }
    assert duetime.lines("handlers", "delete", "ping") == ["deleted ping"]
    assert "no target is stored under 'ping'" in duetime("handlers", "show", "ping", "--target", code=3).stderr
    assert "no target is stored under 'ping'" in duetime("handlers", "delete", "ping", code=3).stderr
    acts = [(entry["action"], entry["subject"], entry["outcome"]) for entry in duetime.json("audit")["items"]]
    assert acts == [("handlers.delete", "ping", "refused"), ("handlers.delete", "ping", "done"), ("handlers.put", "ping", "done")]


def test_what_is_shown_can_be_put_again_from_a_file(duetime: CommandLine, tmp_path: Path) -> None:
    options = ("--bearer", "billing", "--header", "X-A={meta.a}", "--secret-header", "X-Key=key", "--sign", "hook", "--sign", "old")
    more = ("--body", '{"a": "{payload.a}"}', "--fatal", "404", "--tries", "3", "--timeout", "20s", "--concurrency", "7", "--priority", "9")
    last = ("--redirects", "any", "--callback-within", "1h", "--certificate", "client", "--disable-after", "20")
    made = duetime.json(*PING, *options, *more, *last)
    assert made["target"] == {
        "kind": "http",
        "url": "https://example.com/health",
        "method": "GET",
        "body": {"a": "{payload.a}"},
        "headers": {"X-A": "{meta.a}", "X-Key": {"secret": "key"}},
        "auth": {"type": "bearer", "token": {"secret": "billing"}},
        "sign": [{"secret": "hook"}, {"secret": "old"}],
        "timeout": 20.0,
        "redirects": "any",
        "fatal": [404],
        "callback": {"within": 3600.0},
        "certificate": {"secret": "client"},
        "disable_after": 20,
        "retry": {"tries": 3},
        "concurrency": 7,
        "priority": 9,
    }
    file = tmp_path / "target.json"
    file.write_text(json.dumps(made["target"]))
    assert duetime.json("handlers", "put", "ping", "--file", str(file)) == made, "nothing has changed"
    again = duetime("handlers", "put", "pong", "--file", "-", "--json", input=file.read_text())
    assert json.loads(again.stdout)["target"] == made["target"]


def test_brokers_and_commands_are_put_too(duetime: CommandLine) -> None:
    ship = duetime.json("handlers", "put", "ship", "--url", "nats://broker.example", "--to", "orders.{payload.region}", "--basic", "ada:pw")
    assert ship["target"]["auth"] == {"type": "basic", "user": "ada", "password": {"secret": "pw"}}
    assert (ship["kind"], ship["target"]["to"]) == ("publish", "orders.{payload.region}")
    backup = ("handlers", "put", "backup", "--command", "pg_dump -d '{payload.name}'", "--env", "A=b", "--secret-env", "PGPASSWORD=pg")
    made = duetime.json(*backup)
    assert made["target"]["argv"] == ["pg_dump", "-d", "{payload.name}"]
    assert made["target"]["env"] == {"A": "b", "PGPASSWORD": {"secret": "pg"}}


def test_a_command_names_the_artifact_that_it_runs(duetime: CommandLine) -> None:
    assert duetime.lines("handlers", "put", "report", "--artifact", "monthly") == ["put report: the artifact monthly"]
    assert duetime.json("handlers", "show", "report", "--target")["target"] == {"kind": "command", "artifact": "monthly"}
    pinned = ("handlers", "put", "report", "--command", "python main.py", "--artifact", "monthly@2", "--env", "A=b")
    assert duetime.lines(*pinned) == ["put report: python main.py of the artifact monthly@2"]
    definition = duetime.lines("handlers", "show", "report", "--target")
    argv = ["python", "main.py"]
    assert json.loads("".join(definition)) == {"kind": "command", "argv": argv, "artifact": "monthly@2", "env": {"A": "b"}}
    [row] = [line for line in duetime.lines("handlers") if line.startswith("report")]
    assert "python main.py of the artifact monthly@2" in row


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ((), 2, "give --url, or --command, or --artifact"),
        (("--url", "https://x.example", "--command", "true"), 2, "--command and --artifact run a program: not both"),
        (("--url", "https://x.example", "--artifact", "monthly"), 2, "--command and --artifact run a program: not both"),
        (("--artifact", "monthly@new"), 2, "artifact must be a name such as 'monthly', or name and version such as 'monthly@3'"),
        (("--artifact", "monthly", "--command", ""), 2, "argv is a list of the program and its arguments"),
        (("--bearer", "billing"), 2, "--bearer is about a request: give --url too"),
        (("--url", "https://x.example", "--bearer", "a", "--basic", "b:c"), 2, "give --bearer or --basic, not both"),
        (("--url", "https://x.example", "--basic", "ada"), 2, "expected USER:SECRET"),
        (("--url", "https://x.example", "--env", "A=b"), 2, "--env and --secret-env are variables of a program"),
        (("--url", "sqlite:///x.db"), 2, "--url is what the handler calls here; name the store with --store"),
        (("--url", "https://x.example/{order}"), 2, "url refers to {order}"),
        (("--url", "https://x.example", "--header", "Authorization=Bearer x"), 2, "headers: Authorization is a credential"),
        (("--command", "sh -c 'x"), 2, "--command cannot be read: No closing quotation"),
        (("--file", "nowhere.json"), 2, "nowhere.json cannot be read"),
        (("--file", "nowhere.json", "--tries", "3"), 2, "--file has the whole definition"),
    ],
)
def test_what_cannot_work_is_refused(duetime: CommandLine, options: tuple[str, ...], code: int, message: str) -> None:
    assert message in duetime("handlers", "put", "ping", *options, code=code).stderr


def test_one_that_is_stored_already_is_kept_if_asked(duetime: CommandLine) -> None:
    duetime(*PING)
    said = duetime("handlers", "put", "ping", "--url", "https://x.example", "--if-exists", "error", code=4).stderr
    assert "a target is stored under 'ping' already" in said


def test_kinds_can_be_allowed_only_where_targets_are_served(duetime: CommandLine) -> None:
    assert "--allow is about stored targets: give --targets too" in duetime("worker", "x:app", "--allow", "command", code=2).stderr
    assert "which App? give it as module:name" in duetime("worker", code=2).stderr


@pytest.mark.slow
@pytest.mark.covers("CJO.12")
def test_a_worker_without_code_serves_what_is_stored_and_commands_only_if_allowed(
    duetime: CommandLine, program: Program, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    duetime("handlers", "put", "touch", "--command", f"{sys.executable} -c 'import sys; open(sys.argv[1], \"w\")' {ran}")
    task = duetime.submit("touch")
    with program.worker("--targets") as worker:
        worker.until_said("touch is a stored command, which this worker does not run; start one with --allow command")
        assert "Start one where it may run: duetime worker --targets --allow command" in duetime("why", task).stdout
        assert not ran.exists()
        with program.start("worker", "--targets", "--allow", "command"):
            until(ran.exists, lambda: duetime("why", task).stdout)
            until(lambda: duetime.json("task", task)["state"] == "succeeded", lambda: "its success")


@pytest.mark.slow
@pytest.mark.covers("XXL.5")
def test_a_script_is_uploaded_run_replaced_and_rolled_back_without_code_and_without_a_restart(
    duetime: CommandLine, program: Program, tmp_path: Path
) -> None:
    script = tmp_path / "report.py"

    def put(version: int) -> None:
        script.write_text(f"import os\nos.write(3, b'\"version {version}\"')\n")
        duetime("artifacts", "put", "report", str(script), "--run", f"{sys.executable} report.py")

    def ran(handler: str) -> object:
        task = duetime.submit(handler)
        until(lambda: duetime.json("task", task)["state"] == "succeeded", lambda: duetime("why", task).stdout)
        return duetime.json("task", task)["result"]

    program.environment["DUETIME_ARTIFACT_CACHE"] = str(tmp_path / "cache")
    put(1)
    put(2)
    duetime("handlers", "put", "newest", "--artifact", "report")
    duetime("handlers", "put", "pinned", "--artifact", "report@2")
    with program.start("worker", "--targets", "--allow", "command"):
        assert (ran("newest"), ran("pinned")) == ("version 2", "version 2")
        put(3)
        assert (ran("newest"), ran("pinned")) == ("version 3", "version 2")
        duetime("artifacts", "restore", "report@1")
        assert (ran("newest"), ran("pinned")) == ("version 1", "version 2")
    assert [each["version"] for each in duetime.json("artifacts", "show", "report")["items"]] == [4, 3, 2, 1]


# ---- hosted cron ----


def test_one_line_makes_the_handler_and_its_schedule(duetime: CommandLine) -> None:
    line = ("schedules", "put", "ping", "--every", "1s", "--url", "https://example.com/health", "--method", "GET", "--bearer", "token")
    assert duetime.lines(*line)[0].startswith("ping: every second; next ")
    assert duetime.json("schedules", "show", "ping")["handler"] == "ping"
    assert duetime.json("handlers", "show", "ping", "--target")["target"] == {
        "kind": "http",
        "url": "https://example.com/health",
        "method": "GET",
        "auth": {"type": "bearer", "token": {"secret": "token"}},
    }
    duetime("schedules", "put", "other", "--every", "1h", "--handler", "ping")
    duetime("schedules", "put", "eu", "--every", "1h", "--handler", "eu.ping", "--url", "https://example.com/", "--basic", "ada:password")
    assert duetime.json("schedules", "show", "eu")["handler"] == "eu.ping"
    assert "say what runs: give --handler, or --url" in duetime("schedules", "put", "x", "--every", "1h", code=2).stderr
    assert "name the store with --store" in duetime("schedules", "put", "x", "--every", "1h", "--url", "sqlite:///x.db", code=2).stderr
    assert "has not run yet" in duetime("schedules", "runs", "eu").stderr
    assert "there is no schedule 'nobody'" in duetime("schedules", "runs", "nobody", code=3).stderr


@pytest.mark.slow
@pytest.mark.covers("CJO.5", "SCH.2")
async def test_a_url_is_called_every_second_and_the_history_has_planned_and_actual_times(duetime: CommandLine, url: str) -> None:
    async with serving(answering()) as server, App(url) as app:
        line = ("schedules", "put", "ping", "--every", "1s", "--url", server.url("/{task.schedule}"), "--method", "GET")
        await asyncio.to_thread(duetime, *line)
        async with app.worker(targets=True, addresses=AddressRules(loopback=True)), asyncio.timeout(PATIENCE):
            while len([task async for task in app.tasks(schedule="ping", state="succeeded")]) < 2:  # noqa: ASYNC110  # seconds pass
                await asyncio.sleep(0.05)
    listed = (await asyncio.to_thread(duetime.json, "schedules", "runs", "ping", "--limit", "1000"))["items"]
    ended = [run for run in listed if run["state"] == "succeeded"]
    assert {request.path for request in server.received} == {"/ping"}
    planned = [datetime.fromisoformat(run["planned_at"]) for run in reversed(ended)]
    gaps = [(later - former).total_seconds() for former, later in pairwise(planned)]
    assert all(gap >= 1 and gap == int(gap) for gap in gaps), "each second, but for those that a busy machine has skipped"
    assert all(datetime.fromisoformat(run["started_at"]) >= datetime.fromisoformat(run["planned_at"]) for run in ended)
    head, first, *_ = await asyncio.to_thread(duetime.lines, "schedules", "runs", "ping")
    assert head.split() == ["planned", "began", "late", "took", "state", "attempts", "error", "task"]
    assert first.count(":") >= 4


# ---- testing a handler ----


@pytest.mark.slow
async def test_the_phases_of_a_test_are_printed_while_the_answer_is_held_back(duetime: CommandLine, program: Program, url: str) -> None:
    may_answer = asyncio.Event()

    async def talk(conversation: Conversation) -> None:
        await conversation.request()
        await may_answer.wait()
        await conversation.answer(200, b"pong", "Content-Type: text/plain")

    async with serving(talk) as server, App(url) as app, app.worker(targets=True, addresses=AddressRules(loopback=True)):
        await asyncio.to_thread(duetime, "handlers", "put", "ping", "--url", server.url("/{payload.who}"), "--method", "GET")
        with program.start("handlers", "test", "ping", "who=ada") as test:
            assert test.stdout is not None
            assert "connects to 127.0.0.1:" in await asyncio.to_thread(test.stdout.readline)
            assert "waits for the answer" in await asyncio.to_thread(test.stdout.readline)
            may_answer.set()
            rest, _ = await asyncio.to_thread(test.communicate, timeout=PATIENCE)
    assert test.returncode == 0
    *_, done, body, outcome, status, address, phases = rest.splitlines()
    assert "is done, after 4 bytes" in done
    assert (body, outcome.split(), status.split()) == ("pong", ["outcome", "succeeded"], ["status", "200"])
    assert (address.split(), phases.split()[:2]) == (["address", f"127.0.0.1:{server.port}"], ["phases", "connect"])
    assert [request.path for request in server.received] == ["/ada"]


@pytest.mark.slow
async def test_a_test_that_fails_says_so_and_is_not_repeated(duetime: CommandLine, url: str) -> None:
    async with serving(answering(503, b"", "Retry-After: 1")) as server, App(url) as app:
        app.http("ask", server.url(), method="GET")
        app.command("backup", [sys.executable, "-c", "print('half'); raise SystemExit(3)"])
        async with app.worker():
            busy = await asyncio.to_thread(duetime, "handlers", "test", "ask", code=1)
            failed = await asyncio.to_thread(duetime.json, "handlers", "test", "backup", code=1)
    assert "answered: 503" in busy.stdout
    assert "was cancelled" in busy.stderr
    assert len(server.received) == 1
    assert (failed["state"], failed["attempts"][0]["detail"]["exit_code"]) == ("failed", 3)


def test_a_test_that_no_worker_begins_says_why_and_is_cancelled(duetime: CommandLine) -> None:
    duetime(*PING)
    said = duetime("handlers", "test", "ping", "--wait", "1.5s", code=1).stderr
    assert "no worker has begun with the test of ping within 1.5 s, so it was cancelled: " in said
    assert 1 <= said.count("Start one: duetime worker --targets") <= 2, (
        "once while it waits, though the seconds left change, and once at the end"
    )
    [task] = duetime.json("tasks", "--all")["items"]
    assert task["state"] == "cancelled"
    assert "did you mean ping?" in duetime("handlers", "test", "pink", code=3).stderr
