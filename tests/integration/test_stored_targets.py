"""Targets that are stored under a handler's name: workers serve, change and drop them while they run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from duetime import (
    App,
    Bearer,
    Callback,
    Conflict,
    InvalidValue,
    Secret,
    StoredCommand,
    StoredHttp,
    StoredPublish,
    TargetNotFound,
    Task,
    UnknownHandler,
)
from duetime.config import Settings
from duetime.model.addresses import AddressRules
from duetime.model.retry import RetryPolicy
from duetime.model.secrets import write_key
from duetime.secrets.keys import new_key
from duetime.targets.stored.definitions import Definition
from tests.servers.http import Conversation, Server, answering, serving
from tests.servers.waiting import PATIENCE

LOOPBACK = AddressRules(loopback=True)
ONCE = RetryPolicy.none()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/duetime.db"
    address: str = request.getfixturevalue("postgres_url")
    return address


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    async with App(url, user="anna") as app:
        yield app


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[App]:
    """An App where the engine of the store makes no difference."""
    async with App(f"sqlite:///{tmp_path}/alone.db", user="anna") as app:
        yield app


@contextlib.asynccontextmanager
async def answered(path: str = "/") -> AsyncIterator[tuple[Server, StoredHttp]]:
    async with serving(answering()) as server:
        yield server, StoredHttp(url=server.url(path))


async def until_served(app: App, name: str, slots: int | None) -> None:
    """Wait until all workers together have so many slots of a handler; None: none of them knows it."""
    await until(lambda: _slots_are(app, name, slots or 0))


async def _slots_are(app: App, name: str, slots: int) -> bool:
    return sum(worker.slots.get(name, 0) for worker in await app.workers()) == slots


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110  # nothing tells when a worker has registered other slots
            await asyncio.sleep(0.01)


async def reasons(app: App, task: Task[Any]) -> str:
    return " | ".join(reason.text for reason in await app.why(task))


# ---- served while a worker runs ----


@pytest.mark.covers("XXL.5")
async def test_a_target_is_served_changed_and_dropped_while_a_worker_runs(app: App) -> None:
    async with answered("/one") as (one, first), answered("/two") as (two, _), app.worker(targets=True, addresses=LOOPBACK):
        info = await app.targets.put("ping", first)
        await until_served(app, "ping", 50)
        await app.result(await app.handler("ping").now(), timeout=PATIENCE)
        assert [request.path for request in one.received] == ["/one"]
        changed = await app.targets.put("ping", StoredHttp(url=two.url("/two"), method="get", concurrency=3))
        await until_served(app, "ping", 3)
        await app.result(await app.handler("ping").now(), timeout=PATIENCE)
        assert [(request.method, request.path) for request in two.received] == [("GET", "/two")]
        assert len(one.received) == 1
        assert changed.version > info.version
        await app.targets.delete("ping")
        await until_served(app, "ping", None)
        with pytest.raises(UnknownHandler, match="'ping'"):
            await app.handler("ping").now()


async def test_what_was_stored_before_is_served_from_the_start(app: App) -> None:
    async with answered() as (server, target):
        await app.targets.put("ping", target)
        task = await app.handler("ping").now()
        async with app.worker(targets=True, addresses=LOOPBACK) as worker:
            assert [each.slots for each in await app.workers()] == [{"ping": 50}]
            await app.result(task, timeout=PATIENCE)
            assert worker.executor.queues.slots == 50
    assert len(server.received) == 1


async def test_a_lost_hint_is_made_up_for_by_the_next_renewal(alone: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answered() as (_, target), alone.worker(targets=True, addresses=LOOPBACK, lease=0.5) as worker:
        monkeypatch.setattr(worker, "_on_hint", lambda hint: None)
        await alone.targets.put("ping", target)
        await until_served(alone, "ping", 50)


async def test_a_worker_without_targets_serves_none(alone: App) -> None:
    async with answered() as (server, target), alone.worker() as worker:
        await alone.targets.put("ping", target)
        task = await alone.handler("ping").now()
        await worker.stored.run_once()
        assert "no live worker serves it; there is 1 worker of other handlers. Start one: duetime worker --targets" in await reasons(
            alone, task
        )
    assert server.received == []


async def test_a_worker_for_some_handlers_serves_only_those(alone: App) -> None:
    async with answered() as (_, target):
        await alone.targets.put("ping", target)
        await alone.targets.put("pong", target)
        async with alone.worker(handlers=["pong"], targets=True):
            assert [each.slots for each in await alone.workers()] == [{"pong": 50}]


async def test_an_attempt_that_runs_ends_as_it_began_and_can_still_be_cancelled(alone: App) -> None:
    """The target that began an attempt must be the one that is told to stop it."""
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def talk(conversation: Conversation) -> None:
        await conversation.request()
        arrived.set()
        await go_on.wait()
        await conversation.answer()

    async with serving(talk) as slow, answered() as (_, other), alone.worker(targets=True, addresses=LOOPBACK) as worker:
        await alone.targets.put("ping", StoredHttp(url=slow.url(), retry=ONCE))
        await until_served(alone, "ping", 50)
        finishes = await alone.handler("ping").now()
        await arrived.wait()
        await alone.targets.put("ping", StoredHttp(url=other.url, concurrency=7))
        await until_served(alone, "ping", 7)
        go_on.set()
        await alone.result(finishes, timeout=PATIENCE)
        arrived.clear()
        go_on.clear()
        await alone.targets.put("ping", StoredHttp(url=slow.url(), concurrency=8))
        await until_served(alone, "ping", 8)
        cancelled = await alone.handler("ping").now()
        await arrived.wait()
        await alone.targets.delete("ping")
        await until_served(alone, "ping", None)
        assert await alone.cancel(cancelled) == "cancelling"
        assert (await alone.client.wait(cancelled, timeout=PATIENCE)).state == "cancelled"
        assert worker.executor.former == {}
        await worker.stored.run_once()
        assert worker.executor.host.closing == [], "connections of former targets are closed"
        assert worker.executor.queues.free == worker.executor.queues.slots == 0


async def test_tasks_of_a_deleted_target_wait_and_why_says_so(app: App) -> None:
    async with answered() as (server, target):
        await app.targets.put("ping", target)
        task = await app.handler("ping").after(0)
        await app.targets.delete("ping")
        async with app.worker(targets=True, addresses=LOOPBACK):
            assert "nothing says how to run ping: no code declares it, and no target is stored under its name" in await reasons(app, task)
            await app.targets.put("ping", target)
            await app.result(task, timeout=PATIENCE)
    assert len(server.received) == 1


async def test_queued_tasks_of_a_dropped_target_go_back(alone: App) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def talk(conversation: Conversation) -> None:
        while await conversation.request() is not None:
            arrived.set()
            await go_on.wait()
            await conversation.answer()

    async with serving(talk) as server, alone.worker(targets=True, addresses=LOOPBACK):
        await alone.targets.put("ping", StoredHttp(url=server.url(), concurrency=1))
        await until_served(alone, "ping", 1)
        first, second = await alone.handler("ping").now(), await alone.handler("ping").now()
        await arrived.wait()
        await alone.targets.delete("ping")
        await until_served(alone, "ping", None)
        go_on.set()
        await alone.result(first, timeout=PATIENCE)

        async def is_back() -> bool:
            return (await alone.get(second)).state == "pending"

        await until(is_back)
        assert (await alone.get(second)).tries == 0


# ---- code comes first ----


async def test_a_name_that_running_code_has_is_refused(app: App, url: str) -> None:
    code = App(url)
    code.task(name="ping", aliases=["pang"])(_nothing)
    async with answered() as (_, target), code.worker():
        for name in ("ping", "pang"):
            with pytest.raises(Conflict, match=f"1 live worker runs '{name}' by code of their own"):
                await app.targets.put(name, target)
    with pytest.raises(Conflict, match="'pang' is a former name of the handler 'ping'"):
        await app.targets.put("pang", target)
    with pytest.raises(Conflict, match="this program declares a handler 'ping'"):
        await code.targets.put("ping", target)
    await code.close()


async def test_code_that_starts_later_wins_everywhere_and_says_so(app: App, url: str, caplog: pytest.LogCaptureFixture) -> None:
    code = App(url)
    ran = asyncio.Event()

    @code.task
    async def ping() -> None:
        ran.set()

    async with answered() as (server, target), app.worker(targets=True, addresses=LOOPBACK):
        await app.targets.put("ping", target)
        await until_served(app, "ping", 50)
        async with code.worker():
            assert (await app.targets.get("ping")).shadowed

            async def only_code_runs_it() -> bool:
                return len([each for each in await app.workers() if "ping" in each.slots]) == 1

            await until(only_code_runs_it)
            await app.result(await app.handler("ping").now(), timeout=PATIENCE)
        assert ran.is_set()
        assert server.received == []
        assert "its code runs the tasks, here and everywhere" in caplog.text
        await app.targets.put("ping", target)
        await until_served(app, "ping", 50)
        assert not (await app.targets.get("ping")).shadowed


async def _nothing() -> None:
    """Do nothing."""


# ---- commands ----


@pytest.mark.covers("CJO.12")
async def test_a_stored_command_runs_only_where_commands_are_allowed(app: App, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    await app.targets.put("touch", StoredCommand(argv=[sys.executable, "-c", "import sys; open(sys.argv[1], 'w')", str(ran)]))
    task = await app.handler("touch").now()
    async with app.worker(targets=True) as worker:
        await worker.stored.run_once()
        assert [each.slots for each in await app.workers()] == [{}]
        said = await reasons(app, task)
        assert "the target of touch is a stored command, and no live worker runs those; there is 1 worker of other handlers" in said
        assert "duetime worker --targets --allow command" in said
        assert not ran.exists()
        async with app.worker(targets=True, allow=["command"]):
            await app.result(task, timeout=PATIENCE)
    assert ran.exists()


async def test_a_target_that_becomes_a_command_is_dropped_where_those_are_not_allowed(alone: App) -> None:
    async with answered() as (_, target), alone.worker(targets=True, addresses=LOOPBACK):
        await alone.targets.put("ping", target)
        await until_served(alone, "ping", 50)
        await alone.targets.put("ping", StoredCommand(argv=["true"]))
        await until_served(alone, "ping", None)


async def test_only_commands_can_be_allowed(alone: App) -> None:
    with pytest.raises(InvalidValue, match="command is the only one, got 'http'"):
        async with alone.worker(targets=True, allow=["http"]):  # type: ignore[list-item]
            pass


# ---- what a definition can and cannot say ----


async def test_a_stored_target_never_reaches_inside_though_code_may(alone: App) -> None:
    async with answered() as (server, target), alone.worker(targets=True):
        await alone.targets.put("ping", StoredHttp(url=target.url, retry=ONCE))
        task = await alone.handler("ping").now()
        record = await alone.client.wait(task, timeout=PATIENCE)
        assert record.error is not None
        assert (record.state, record.error.type) == ("failed", "AddressRefused")
    assert server.received == []


async def test_a_stored_broker_inside_is_refused(alone: App) -> None:
    async with serving(answering()) as server, alone.worker(targets=True):
        await alone.targets.put("ship", StoredPublish(url=f"redis://127.0.0.1:{server.port}", to="orders"))
        record = await alone.client.wait(await alone.handler("ship").now(), timeout=PATIENCE)
        assert record.error is not None
        assert (record.state, record.error.type) == ("failed", "AddressRefused")
        assert "loopback" in record.error.message
    assert server.received == []


async def test_secrets_are_named_and_read_by_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_SECRET_KEYS", write_key(new_key("a")))
    async with App(f"sqlite:///{tmp_path}/duetime.db") as app, answered() as (server, target):
        await app.secrets.put("billing", "sesame")
        await app.secrets.put("key", "open")
        headers: dict[str, str | Secret] = {"X-Api-Key": Secret("key"), "X-Tenant": "{payload.tenant}"}
        await app.targets.put("ping", StoredHttp(url=target.url, auth=Bearer(Secret("billing")), headers=headers))
        async with app.worker(targets=True, addresses=LOOPBACK):
            await app.result(await app.handler("ping").now(tenant="blue"), timeout=PATIENCE)
        [received] = server.received
        assert [received.headers[name] for name in ("authorization", "x-api-key", "x-tenant")] == ["Bearer sesame", "open", "blue"]
        stored = await app.store.targets()
        assert b"sesame" not in stored[0].definition
        assert b'{"secret":"billing"}' in stored[0].definition


REFUSED: list[tuple[Any, str]] = [
    (lambda: StoredHttp(url="https://x.example", auth=Bearer("sesame")), "auth: a stored target names the secret that has the token"),
    (lambda: StoredHttp(url="https://x.example", headers={"Authorization": "Bearer x"}), "headers: Authorization is a credential"),
    (lambda: StoredHttp(url="https://x.example", headers={"X-Api-Key": "x"}), "headers: X-Api-Key is a credential"),
    (lambda: StoredHttp(url="https://x.example", retry=RetryPolicy(never=(ValueError,))), "retry: the exception types"),
    (lambda: StoredPublish(url="redis://ada:sesame@x.example", to="a"), "url: it has a password"),
    (lambda: StoredPublish(url="kafka://x.example", to="a"), "kafka:// cannot be stored"),
    (lambda: StoredCommand(argv=["x"], env={"PGPASSWORD": "x"}), "env: PGPASSWORD is a credential"),
    (lambda: StoredHttp(url="https://x.example/{order.id}"), "url refers to {order.id}"),
    (lambda: StoredHttp(url="ftp://x.example"), "it must begin with http:// or https://"),
    (lambda: StoredHttp(url="https://x.example", method="BREW"), "method must be one of"),
    (lambda: StoredHttp(url="https://x.example", timeout=0), "timeout must be positive"),
    (lambda: StoredHttp(url="https://x.example", concurrency=0), "concurrency, the slots in each worker process"),
    (lambda: StoredHttp(url="https://x.example", concurrency=10**6), "concurrency, the slots in each worker process"),
    (lambda: StoredHttp(url="https://x.example", priority=10), "priority must be"),
    (lambda: StoredHttp(url="https://x.example", fatal=[200]), "fatal lists statuses"),
    (lambda: StoredHttp(url="https://x.example", headers={"Host": "y"}), "the header Host belongs to the connection"),
    (lambda: StoredHttp(url="https://x.example", body={"a": "x" * 70_000}), "bytes as JSON, and at most 65,536 are stored"),
    (lambda: StoredCommand(argv=[]), "argv is a list"),
    (lambda: StoredCommand(argv=["./x"]), "write the whole path"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
async def test_a_definition_that_cannot_work_is_refused(alone: App, make: Any, message: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        await alone.targets.put("ping", make())
    assert message in str(refused.value)
    assert "sesame" not in str(refused.value)
    assert await alone.targets.list() == []


async def test_a_target_that_this_worker_cannot_serve_is_told_and_left_to_others(alone: App, caplog: pytest.LogCaptureFixture) -> None:
    async with answered() as (_, target), alone.worker(targets=True, addresses=LOOPBACK) as worker:
        await alone.targets.put("slow", StoredHttp(url=target.url, callback=Callback(within=60)))
        await alone.targets.put("ping", target)
        await until_served(alone, "ping", 50)
        await worker.stored.run_once()
        assert [each.slots for each in await alone.workers()] == [{"ping": 50}]
    assert caplog.text.count("cannot serve the stored target of slow: it has a callback") == 1


async def test_a_handler_that_nothing_is_stored_for_has_no_target(app: App) -> None:
    for verb in (app.targets.get, app.targets.delete):
        with pytest.raises(TargetNotFound, match="no target is stored under 'ping'"):
            await verb("ping")


def test_settings_know_nothing_of_targets() -> None:
    """Whether a worker runs stored commands is said where it is started, never by a setting that something else may change."""
    assert not {"targets", "allow"} & Settings.__annotations__.keys()


def all_kinds() -> list[Definition]:
    return [StoredHttp(url="https://x.example"), StoredPublish(url="nats://x.example", to="a"), StoredCommand(argv=["true"])]


async def test_all_kinds_are_listed_with_their_handlers(app: App) -> None:
    for name, target in zip("abc", all_kinds(), strict=True):
        await app.targets.put(name, target)
    assert [(each.name, each.kind, each.target) for each in await app.targets.list()] == list(
        zip("abc", ["http", "publish", "command"], all_kinds(), strict=True)
    )
    assert [(each.name, each.isolation, each.target is not None) for each in await app.handlers()] == [
        ("a", "http", True),
        ("b", "publish", True),
        ("c", "command", True),
    ]
