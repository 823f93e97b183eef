"""Steps: one handler whose parts are saved, and which waits without a slot."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import pytest

from duetime import App, Context, Fatal, RetryPolicy, TaskFailed
from duetime.model.outcome import Outcome
from duetime.testing import using

app = App("sqlite:///:memory:")
made: list[str] = []


@dataclass
class Account:
    id: int
    parts: list[str]


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    made.clear()


async def create_account(user: int) -> Account:
    made.append(f"account {user}")
    return Account(user, ["a", "b"])


def greeting(account: Account) -> str:
    made.append("greeting")
    return f"hello {account.id}"


@app.task
async def load(part: str) -> int:
    made.append(f"part {part}")
    return len(part)


@app.task(timeout=60, retry=RetryPolicy(tries=3, base=1, jitter=0))
async def onboard(ctx: Context, user: int) -> str:
    account = await ctx.step("account", create_account, user)
    assert isinstance(account, Account), "the type is the same in each attempt"
    await ctx.sleep("grace", timedelta(days=3))
    approved = await ctx.wait("approval", f"user-{user}-ok", bool, timeout=86_400)
    sizes = await ctx.call("import", [load.new(part=part) for part in account.parts])
    return f"{await ctx.step('greeting', greeting, account)}: {approved} {sizes}"


@app.task
def onboard_in_a_thread(ctx: Context, user: int) -> str:
    account = Account(user, [])
    text = ctx.sync(ctx.step("greeting", greeting, account))
    ctx.sync(ctx.sleep("grace", 60))
    approved = ctx.sync(ctx.wait("approval", f"user-{user}-ok", bool))
    return f"{text}: {approved} {ctx.sync(ctx.call('import', load.new(part='abc')))}"


async def test_a_handler_goes_on_after_its_last_saved_step() -> None:
    async with using(app) as t:
        task = await onboard.now(user=7)
        [first] = await t.drain()
        assert (first.outcome, first.task.state) == (Outcome.SUSPENDED, "pending")
        [reason] = [each for each in await app.why(task) if each.kind == "suspended"]
        assert "sleeps in its step 'grace'" in reason.text
        [second] = await t.advance(days=3)
        assert (second.outcome, second.task.state) == (Outcome.SUSPENDED, "blocked")
        [reason] = [each for each in await app.why(task) if each.kind == "suspended"]
        assert "step 'approval' waits for the signal 'user-7-ok'" in reason.text
        assert await app.signals.send("user-7-ok", True) is True
        await t.drain()
        assert await app.result(task) == "hello 7: True [1, 1]"
        assert made == ["account 7", "part a", "part b", "greeting"]
        assert [each.tries for each in t.tasks() if each.handler == "onboard"] == [0]


async def test_a_def_handler_says_it_with_ctx_sync() -> None:
    async with using(app) as t:
        await app.signals.send("user-8-ok", False)
        task = await onboard_in_a_thread.now(user=8)
        await t.advance(minutes=1)
        assert await app.result(task) == "hello 8: False 3"
        assert made == ["greeting", "part abc"]


async def test_a_wait_ends_by_its_time() -> None:
    async with using(app) as t:
        task = await onboard.now(user=7)
        await t.advance(days=4, hours=1, raise_errors=False)
        failed = await app.get(task)
        assert failed.error is not None
        assert (failed.state, failed.error.type) == ("failed", "TimeoutError")
        assert "no signal 'user-7-ok' came in time for the wait 'approval'" in failed.error.message


async def test_retries_and_an_operators_retry_do_not_repeat_what_is_saved() -> None:
    async with using(app) as t:
        await app.signals.send("user-7-ok", True, keep=timedelta(days=7))
        task = await onboard.now(user=7)
        t.fail_next(load, Fatal("no such part"))
        await t.advance(days=4, raise_errors=False)
        with pytest.raises(TaskFailed, match="no such part"):
            await app.result(task)
        [broken] = [each for each in t.tasks() if each.handler == "load" and each.state == "failed"]
        assert broken.meta == {"called_by": task.id}
        await app.retry(broken)
        await t.drain()
        await app.retry(task)
        await t.drain()
        assert await app.result(task) == "hello 7: True [1, 1]"
        assert made.count("account 7") == 1


async def test_children_are_cancelled_with_the_task_that_has_called_them() -> None:
    async with using(app) as t:
        await app.signals.send("user-7-ok", True, keep=timedelta(days=7))
        task = await onboard.now(user=7)
        await t.advance(days=3, seconds=-1)
        await app.gates.pause("load")
        await t.advance(seconds=2)
        assert [each.state for each in t.tasks() if each.handler == "load"] == ["pending", "pending"]
        assert "its step 'import' waits" in (await app.why(task))[0].text
        assert await app.cancel(task) == "cancelled"
        await t.drain()
        assert [each.state for each in t.tasks() if each.handler == "load"] == ["cancelled", "cancelled"]


async def test_a_worker_that_dies_after_a_step_does_not_run_it_again() -> None:
    async with using(app) as t:
        await onboard.now(user=7)
        t.crash_next(onboard, after="account")
        [first, second] = await t.drain()
        assert (first.outcome, second.outcome) == (Outcome.LOST, Outcome.SUSPENDED)
        assert made == ["account 7"]


@app.task
async def odd(ctx: Context, what: str) -> object:
    async def nothing() -> object:
        return None

    match what:
        case "twice":
            await ctx.step("one", nothing)
            return await ctx.step("one", nothing)
        case "no JSON":
            return await ctx.step("one", asyncio.sleep, 0, object())
        case "large":
            return await ctx.step("one", asyncio.sleep, 0, "x" * 2_000_000)
        case "a call":
            return await ctx.step("one", nothing())  # type: ignore[call-overload]
        case "kind":
            await ctx.step("one", nothing)
            if ctx.attempt == 1:
                await ctx.sleep("two", 1)
            return await ctx.step("two", nothing)
        case "type":
            return await ctx.wait("one", "odd", int)
        case "empty":
            return await ctx.call("none", [])
        case "name":
            return await ctx.step("", nothing)
        case _:
            return ctx.sync(ctx.step("one", nothing))


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        ("twice", "InvalidStep", "step 'one' is there twice in one attempt"),
        ("no JSON", "InvalidStep", "the value of step 'one', of type object, is not JSON"),
        ("large", "InvalidStep", "2,000,002 bytes"),
        ("a call", "InvalidStep", "leave out the brackets"),
        ("kind", "InvalidStep", "step 'two' was saved as a sleep and is a value now"),
        ("type", "InvalidStep", "the signal 'odd' cannot be read as int"),
        ("sync", "InvalidStep", "await the call itself"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_what_cannot_be_a_step_fails_for_good_and_says_why(what: str, error: str, says: str) -> None:
    async with using(app, raise_errors=False) as t:
        await app.signals.send("odd", "text")
        task = await odd.now(what=what)
        await t.advance(60)
        ended = await app.get(task)
        assert ended.error is not None
        assert (ended.state, ended.error.type) == ("failed", error)
        assert says in ended.error.message


async def test_no_children_are_no_wait() -> None:
    async with using(app) as t:
        task = await odd.now(what="empty")
        await t.drain()
        assert await app.result(task) == []


async def test_signals_are_told_apart_by_name_and_id() -> None:
    async with using(app) as t:
        assert await app.signals.send("paid", {"amount": 5}, id="7") is True
        assert await app.signals.send("paid", {"amount": 6}, id="7") is False
        [kept] = await app.signals.list("paid")
        assert (kept.value, kept.task, kept.keep_until - kept.sent_at) == ({"amount": 5}, None, timedelta(days=1))
        await t.advance(days=1, seconds=1)
        assert await app.signals.list() == []
