"""Traces from submitting to attempts, with the real SDK."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as otel

from duetime import App, Context, Fatal, RetryLater, RetryPolicy
from duetime.model.task import NewTask
from duetime.model.trace_context import MOST_STATE, read_headers
from duetime.store.open import store_from_url
from duetime.tracing import trace
from tests.api.conftest import served
from tests.integration import traced_app
from tests.servers.waiting import PATIENCE

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PATH = "tests.integration.traced_app:app"

Span = dict[str, Any]


@pytest.fixture
def spans_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "spans"
    file.touch()
    monkeypatch.setenv("SPANS", str(file))
    return file


@pytest.fixture
async def app(tmp_path: Path, spans_file: Path) -> AsyncIterator[App]:
    async with traced_app.app.using_store(store_from_url(f"sqlite:///{tmp_path}/duetime.db")) as app:
        yield app


@pytest.fixture
def fresh(tmp_path: Path, spans_file: Path) -> App:
    """An app without handlers that is traced."""
    app = App(f"sqlite:///{tmp_path}/fresh.db")
    assert trace(app, provider=traced_app.provider)
    return app


def spans_in(file: Path) -> list[Span]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def named(spans: list[Span], name: str) -> Span:
    [found] = [span for span in spans if span["name"] == name]
    return found


@pytest.mark.parametrize("handler", ["in_loop", "in_thread", "in_process"])
async def test_submit_attempt_and_what_the_handler_does_are_one_trace_wherever_it_runs(app: App, spans_file: Path, handler: str) -> None:
    tracer = otel.get_tracer("program", tracer_provider=traced_app.provider)
    with tracer.start_as_current_span("request"):
        task = await app.handler(handler).now()
    async with app.worker(path=PATH):
        await app.result(task, timeout=PATIENCE)
    spans = spans_in(spans_file)
    request, submit, run = named(spans, "request"), named(spans, f"submit {handler}"), named(spans, f"run {handler}")
    [inside] = [span for span in spans if span["name"].startswith("inside the ")]
    assert {span["trace"] for span in spans} == {request["trace"]}
    assert (submit["parent"], submit["kind"]) == (request["id"], "PRODUCER")
    assert (run["parent"], run["kind"], run["status"]) == (submit["id"], "CONSUMER", "UNSET")
    assert inside["parent"] == run["id"]
    assert (run["pid"] == os.getpid()) == (handler != "in_process")
    told = run["attributes"]
    assert (told["duetime.task"], told["duetime.handler"], told["duetime.attempt"]) == (task.id, handler, 1)
    assert told["duetime.outcome"] == "succeeded"
    assert told["duetime.lateness"] >= 0


async def test_retries_are_several_attempts_in_one_trace(app: App, spans_file: Path) -> None:
    async with app.worker(path=PATH):
        assert await app.result(await app.handler("flaky").now(), timeout=PATIENCE) == "at last"
    spans = spans_in(spans_file)
    submit = named(spans, "submit flaky")
    runs = [span for span in spans if span["name"] == "run flaky"]
    assert [run["parent"] for run in runs] == [submit["id"]] * 3
    assert {run["trace"] for run in runs} == {submit["trace"]}
    assert [run["attributes"]["duetime.attempt"] for run in runs] == [1, 2, 3]
    assert [run["attributes"]["duetime.outcome"] for run in runs] == ["failed", "failed", "succeeded"]
    assert [run["status"] for run in runs] == ["ERROR", "ERROR", "UNSET"]


async def test_a_request_begins_the_trace_of_the_tasks_that_it_submits(app: App, spans_file: Path) -> None:
    headers = {"traceparent": PARENT, "tracestate": "shop=1", "content-type": "application/json"}
    async with served(app) as http, app.worker(path=PATH):
        one = (await http("POST", "/v1/tasks", {"handler": "in_loop"}, headers=headers, status=201, wait=20)).json
        two = (await http("POST", "/v1/tasks/batch", [{"handler": "flaky"}], headers=headers)).json["items"][0]
        assert (await http("GET", f"/v1/tasks/{two['id']}", wait=20)).json["state"] == one["state"] == "succeeded"
    spans = spans_in(spans_file)
    assert {span["trace"] for span in spans} == {PARENT.split("-")[1]}
    for handler in ("in_loop", "flaky"):
        submit = named(spans, f"submit {handler}")
        assert submit["parent"] == PARENT.split("-")[2]
        assert {span["parent"] for span in spans if span["name"] == f"run {handler}"} == {submit["id"]}
    assert one["meta"]["tracestate"] == "shop=1"


async def test_a_server_without_tracing_passes_the_trace_on_and_bad_headers_are_ignored(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")

    @app.task
    async def work() -> None: ...

    async with served(app) as http:

        async def meta(body: dict[str, Any] | None = None, **headers: str) -> Any:
            return (await http("POST", "/v1/tasks", {"handler": "work", **(body or {})}, headers=headers, status=201)).json["meta"]

        assert await meta() == {}
        assert await meta(traceparent=PARENT) == {"traceparent": PARENT}
        assert await meta(traceparent=PARENT, tracestate="a=1,b=2") == {"traceparent": PARENT, "tracestate": "a=1,b=2"}
        assert await meta(traceparent="nonsense", tracestate="a=1") == {}
        other = PARENT.replace("0af7", "1bf8")
        assert await meta({"meta": {"traceparent": other, "tenant": "eu"}}, traceparent=PARENT) == {"traceparent": other, "tenant": "eu"}
        full = {"note": "x" * 8_180}
        assert await meta({"meta": full}, traceparent=PARENT) == full


async def test_a_request_that_is_repeated_in_another_trace_is_still_the_same_request(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/duetime.db")

    @app.task
    async def work() -> None: ...

    async with served(app) as http:
        answers = [
            await http("POST", "/v1/tasks", {"handler": "work"}, headers={"idempotency-key": "k", "traceparent": parent}, status=201)
            for parent in (PARENT, PARENT.replace("0af7", "1bf8"))
        ]
        assert answers[0].json["id"] == answers[1].json["id"]
        assert answers[1].headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize(
    "parent",
    [
        None,
        "",
        PARENT.upper(),
        PARENT.replace("00-", "ff-", 1),
        PARENT + "-more",
        "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + "-01",
        PARENT[:-1],
    ],
)
def test_a_header_that_names_no_trace_is_ignored(parent: str | None) -> None:
    assert read_headers(parent, "a=1") == {}


def test_a_trace_of_a_later_version_is_passed_on_and_a_state_that_is_too_long_is_not() -> None:
    later = PARENT.replace("00-", "01-", 1) + "-more"
    assert read_headers(later, None) == {"traceparent": later}
    assert read_headers(PARENT, "x" * (MOST_STATE + 1)) == read_headers(PARENT, "a\0b") == {"traceparent": PARENT}


async def test_a_schedules_task_begins_a_trace_of_its_own(tmp_path: Path, spans_file: Path, fresh: App) -> None:
    @fresh.schedule(every=1)
    async def tick() -> None: ...

    ran = asyncio.Event()

    @fresh.middleware
    async def note(ctx: Context, call_next: Any) -> object:
        value = await call_next()
        ran.set()
        return value

    tracer = otel.get_tracer("program", tracer_provider=traced_app.provider)
    with tracer.start_as_current_span("main program"):
        async with asyncio.timeout(PATIENCE), fresh.worker():
            await ran.wait()
    spans = spans_in(spans_file)
    runs = [span for span in spans if span["name"] == "run tick"]
    assert runs
    assert {run["parent"] for run in runs} == {None}
    assert named(spans, "main program")["trace"] not in {run["trace"] for run in runs}
    assert len({run["trace"] for run in runs}) == len(runs)


async def test_attempts_that_do_not_succeed_say_how_they_ended(spans_file: Path, fresh: App) -> None:
    started = asyncio.Event()

    @fresh.task
    async def fatal() -> None:
        raise Fatal("no")

    @fresh.task
    async def later(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise RetryLater(timedelta(0))

    @fresh.task(timeout=0.05, retry=RetryPolicy(tries=1))
    async def slow() -> None:
        await asyncio.sleep(60)

    @fresh.task
    async def endless() -> None:
        started.set()
        await asyncio.sleep(60)

    async with fresh.worker():
        tasks = [await handler.now() for handler in (fatal, later, slow)]
        long = await endless.now()
        async with asyncio.timeout(PATIENCE):
            await started.wait()
        await fresh.cancel(long)
        for task in (*tasks, long):
            await fresh.client.wait(task, timeout=PATIENCE)
    told = [
        (span["name"], span["attributes"]["duetime.outcome"], span["status"])
        for span in spans_in(spans_file)
        if span["name"].startswith("run")
    ]
    assert sorted(told) == [
        ("run endless", "cancelled", "UNSET"),
        ("run fatal", "fatal", "ERROR"),
        ("run later", "retry_later", "UNSET"),
        ("run later", "succeeded", "UNSET"),
        ("run slow", "timed_out", "ERROR"),
    ]


async def test_many_tasks_are_submitted_under_the_present_span(spans_file: Path, fresh: App) -> None:
    @fresh.task
    async def work(number: int) -> None: ...

    with otel.get_tracer("program", tracer_provider=traced_app.provider).start_as_current_span("import"):
        tasks = await fresh.submit_many([work.new(number=number).after(3600) for number in range(3)])
    spans = spans_in(spans_file)
    parent = named(spans, "import")
    submits = [span for span in spans if span["name"] == "submit work"]
    assert [span["parent"] for span in submits] == [parent["id"]] * 3
    assert [task.meta["traceparent"].split("-")[2] for task in tasks] == [span["id"] for span in submits]
    await fresh.close()


async def test_without_a_provider_nothing_is_put_around_attempts() -> None:
    """In a process of its own: other tests may have set a provider, which can be done once only."""
    code = """
from duetime import App
from duetime.tracing import trace
app = App("sqlite:///:memory:")
assert trace(app) is False
assert app.middlewares == [] and app._hooks == []
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
otel.set_tracer_provider(TracerProvider())
assert trace(app) is True and trace(app) is True
assert len(app.middlewares) == len(app._hooks) == 1
"""
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_without_the_package_tracing_is_off() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "opentelemetry" else find_spec(name, *rest)
from duetime import App
from duetime.tracing import trace
app = App("sqlite:///:memory:")
assert trace(app) is False
assert app.middlewares == []
"""
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_submitted_from_no_span_begins_a_trace(spans_file: Path, fresh: App) -> None:
    [hook] = fresh._hooks
    new_task: NewTask[Any] = NewTask(id="a", handler="work", payload=b"{}")
    first, second = dict(hook(new_task) or {}), dict(hook(new_task) or {})
    assert first["traceparent"].split("-")[1] != second["traceparent"].split("-")[1]
