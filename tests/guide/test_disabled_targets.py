"""A target that fails again and again is disabled: its tasks wait behind an automatic gate, and one at a time tries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from duetime import App, DisableAfter, InvalidValue, RetryPolicy, State
from duetime.testing import using

NOW = datetime(2030, 1, 1, 14, 2, tzinfo=UTC)
RULE = DisableAfter(3, lasting=60, probe_every=900)
TWICE = RetryPolicy(tries=2, base=30, cap=30)


@pytest.fixture
def app() -> App:
    return App("sqlite:///:memory:", user="ada")


async def test_after_failures_in_a_row_tasks_wait_and_a_probe_that_succeeds_lets_them_run(app: App) -> None:
    charge = app.http("charge", "https://billing.example", retry=TWICE, disable_after=RULE)
    async with using(app, now=NOW, raise_errors=False) as t:
        t.answer_next(charge, status=503, times=4)
        for _ in range(2):
            await charge.now()
        await t.advance(60)
        assert [len(t.requests(charge)), await app.gates.list()] == [4, []], "both have used their tries, over 30 seconds: not yet"
        t.answer_next(charge, status=503)
        await charge.now()
        await t.drain()
        [gate] = await app.gates.list()
        assert (gate.handler, gate.action, gate.automatic, gate.set_by) == ("charge", "pause", True, "duetime")
        assert gate.note == "disabled: 5 failures since 14:02 UTC, last: 503"

        tasks = [await charge.now() for _ in range(5)]
        await t.advance(minutes=10)
        assert len(t.requests(charge)) == 5, "nothing passes"
        [why, *_] = await app.why(tasks[0])
        assert why.text == (
            "a gate pauses charge until a task of it succeeds; set by duetime: disabled: 5 failures since 14:02 UTC, last: 503. "
            "From 2030-01-01 14:18:00 UTC on, one tries; to open it now: duetime gates open"
        )
        t.answer_next(charge, status=503, times=2)
        await t.advance(minutes=30)
        assert len(t.requests(charge)) == 7, "a probe each quarter of an hour"
        assert {t.task(task).tries for task in tasks} == {0}, "a probe uses up no try"
        assert {t.task(task).state for task in tasks} == {State.PENDING}

        t.answer_next(charge, status=200, times=6)
        await t.advance(minutes=15)
        assert await app.gates.list() == []
        assert {t.task(task).state for task in tasks} == {State.SUCCEEDED}
        entries = [(entry.action, entry.by, entry.subject) for entry in (await app.tokens.audit.list()).items]
        assert entries == [("gates.open", "duetime", "charge"), ("gates.pause", "duetime", "charge")]


async def test_one_bad_tenant_does_not_stop_the_others(app: App) -> None:
    hook = app.http("hook", "https://{payload.tenant}.example", hosts=["bad.example", "good.example"], retry=RetryPolicy.none(),
                    disable_after=DisableAfter(2, lasting=0), disable="collection")  # fmt: skip
    async with using(app, now=NOW, raise_errors=False) as t:
        for tenant, status in (("bad", 500), ("good", 200), ("bad", 500)):
            t.answer_next(hook, status=status)
            await hook.options(collection=tenant).now(tenant=tenant)
            await t.drain()
        assert [(gate.handler, gate.collection) for gate in await app.gates.list()] == [("hook", "bad")]
        held, free = [await hook.options(collection=tenant).now(tenant=tenant) for tenant in ("bad", "good")]
        t.answer_next(hook, status=200)
        await t.drain()
        assert (t.task(held).attempt, t.task(free).state) == (0, State.SUCCEEDED)


async def test_opening_the_gate_by_hand_counts_from_the_beginning(app: App) -> None:
    backup = app.command("backup", ["pg_dump"], retry=RetryPolicy.none(), disable_after=DisableAfter(2, lasting=0, probe_every=60))
    async with using(app, now=NOW, raise_errors=False) as t:
        for _ in range(2):
            t.answer_next(backup, exit=3)
            await backup.now()
            await t.drain()
        [gate] = await app.gates.list()
        assert gate.note == "disabled: 2 failures since 14:02 UTC, last: CommandFailed: exit code 3"
        assert await app.gates.open(backup)
        t.answer_next(backup, exit=3)
        await backup.now()
        await t.drain()
        assert await app.gates.list() == []
        t.answer_next(backup, exit=3)
        await backup.now()
        await t.drain()
        assert len(await app.gates.list()) == 1


async def test_what_a_person_has_closed_no_success_opens(app: App) -> None:
    charge = app.http("charge", "https://billing.example", disable_after=DisableAfter(1, lasting=0, probe_every=60))
    async with using(app, now=NOW, raise_errors=False) as t:
        t.answer_next(charge, status=500)
        task = await charge.now()
        await t.drain()
        assert [gate.automatic for gate in await app.gates.list()] == [True]
        await app.gates.pause(charge, note="we repair it")
        await t.advance(hours=1)
        assert len(t.requests(charge)) == 1
        [gate] = await app.gates.list()
        assert (gate.set_by, gate.note, gate.automatic, gate.probe_at) == ("ada", "we repair it", False, None)
        assert t.task(task).state is State.PENDING


async def test_a_target_that_says_when_to_come_again_three_times_is_left_alone_until_then(app: App) -> None:
    charge = app.http("charge", "https://billing.example")
    async with using(app, now=NOW) as t:
        tasks = [await charge.now() for _ in range(6)]
        t.answer_next(charge, status=429, headers={"Retry-After": "40"}, times=3)
        await t.drain()
        [gate] = await app.gates.list()
        assert (gate.automatic, gate.probe_at, gate.until_at) == (True, None, datetime(2030, 1, 1, 14, 2, 40, tzinfo=UTC))
        assert gate.note == "it says when to come again (Retry-After), last: 429"
        await t.advance(39)
        assert len(t.requests(charge)) == 3
        t.answer_next(charge, status=200, times=6)
        await t.advance(1)
        assert {t.task(task).state for task in tasks} == {State.SUCCEEDED}


async def test_answers_that_are_not_in_a_row_close_nothing(app: App) -> None:
    charge = app.http("charge", "https://billing.example", concurrency=1)
    async with using(app, now=NOW) as t:
        for status in (429, 503, 200, 429, 503):
            t.answer_next(charge, status=status, headers={"Retry-After": "40"})
            await charge.now()
            await t.drain()
        assert await app.gates.list() == []


async def test_while_a_broker_is_away_one_task_at_a_time_looks_for_it(app: App) -> None:
    ship = app.publish("ship", "nats://broker.example", to="orders")
    async with using(app, now=NOW) as t:
        tasks = [await ship.now() for _ in range(50)]
        t.answer_next(ship, broker="unreachable", times=3)
        await t.drain()
        [gate] = await app.gates.list()
        assert (gate.automatic, gate.note) == (True, "nats://broker.example:4222 cannot be reached")
        t.answer_next(ship, broker="unreachable", times=4)
        t.answer_next(ship, broker="confirmed", times=50)
        await t.advance(minutes=10)
        assert len(t.requests(ship)) == 57
        assert {(t.task(task).state, t.task(task).tries) for task in tasks} == {(State.SUCCEEDED, 0)}
        assert await app.gates.list() == []


@pytest.mark.parametrize("options", [
    {"disable_after": 0}, {"disable_after": True}, {"disable_after": 2.5}, {"disable_after": 3, "disable": "tenant"},
])  # fmt: skip
def test_what_cannot_be_meant_is_refused_when_declaring(app: App, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="disable"):
        app.http("charge", "https://billing.example", **options)


def test_a_rule_that_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidValue, match="lasting"):
        DisableAfter(20, lasting=-1)
    with pytest.raises(InvalidValue, match="probe_every"):
        DisableAfter(20, probe_every=0.5)
