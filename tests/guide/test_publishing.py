"""Handlers that publish: an attempt is a message, and the broker's word decides. In tests no broker is touched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from duetime import App, Basic, Context, Handlers, InvalidPayload, InvalidValue, Next, RetryPolicy, Secret, State
from duetime.testing import UnansweredRequest, using

NOW = datetime(2030, 1, 1, 9, tzinfo=UTC)


class Command(msgspec.Struct):
    device: str
    action: str = "restart"


@pytest.fixture
def app() -> App:
    return App("sqlite:///:memory:", user="ada")


async def test_a_command_is_pushed_to_a_device_at_its_time(app: App) -> None:
    devices = Handlers("devices.")
    command = devices.publish("command", "mqtt://broker.example", to="devices/{payload.device}/commands", payload=Command)
    app.include(devices)
    with pytest.raises(InvalidPayload, match="device"):
        command.new(device=7)  # type: ignore[arg-type]
    async with using(app, now=NOW) as t:
        task = await command.at(NOW + timedelta(hours=12), device="d7")
        t.answer_next(command)
        await t.advance(hours=11)
        assert t.requests(command) == []
        await t.advance(hours=1)
        [sent] = t.requests(command)
        assert t.task(task).state is State.SUCCEEDED
    assert (sent.method, sent.url, sent.to) == ("PUBLISH", "mqtt://broker.example:1883", "devices/d7/commands")
    assert sent.json == {"device": "d7", "action": "restart"}
    assert sent.at == NOW + timedelta(hours=12)
    wanted = {
        "content-type": "application/json",
        "duetime-task": task.id,
        "duetime-handler": "devices.command",
        "duetime-attempt": "1",
        "duetime-due-at": "2030-01-01T21:00:00.000000Z",
    }
    assert {name: sent.headers.get(name) for name in wanted} == wanted
    assert int(sent.headers["duetime-fence"]) >= 1


async def test_an_unreachable_broker_uses_no_try_and_a_refusal_does(app: App) -> None:
    ship = app.publish("ship", "nats://broker.example", to="orders", retry=RetryPolicy(tries=2, base=1, jitter=0))
    async with using(app, now=NOW) as t:
        task = await ship.now(order=7)
        t.answer_next(ship, broker="unreachable", times=5)
        t.answer_next(ship, broker="refused", times=2)
        await t.advance(minutes=5)
        attempts = await app.attempts(task)
        ended = t.task(task)
    assert [attempt.outcome for attempt in attempts] == ["retry_later"] * 5 + ["failed"] * 2
    assert [attempt.error.type for attempt in attempts if attempt.error] == ["BrokerUnreachable"] * 5 + ["PublishRefused"] * 2
    assert (ended.state, ended.tries) == (State.FAILED, 2)


async def test_the_fence_grows_and_the_id_stays(app: App) -> None:
    ship = app.publish("ship", "nats://broker.example", to="orders", body={"fence": "{task.fence}"})
    async with using(app, now=NOW) as t:
        await ship.now()
        t.answer_next(ship, broker="unreachable")
        t.answer_next(ship)
        await t.advance(minutes=5)
        first, second = t.requests(ship)
    assert first.task == second.task
    assert int(first.headers["duetime-fence"]) < int(second.headers["duetime-fence"])
    assert second.json["fence"] == int(second.headers["duetime-fence"])


async def test_a_message_without_an_answer_fails_the_test_by_name(app: App) -> None:
    ship = app.publish("ship", "nats://broker.example", to="orders.{payload.region}")
    async with using(app, now=NOW) as t:
        await ship.now(region="eu")
        with pytest.raises(UnansweredRequest, match=r"ship published to orders\.eu .*answer_next\(ship"):
            await t.drain()


async def test_answers_must_fit_the_handler(app: App) -> None:
    ship = app.publish("ship", "nats://broker.example", to="orders")
    call = app.http("call", "https://shop.example")
    async with using(app, now=NOW) as t:
        with pytest.raises(InvalidValue, match="answer it with broker"):
            t.answer_next(ship, status=503)
        with pytest.raises(InvalidValue, match="answer it with status"):
            t.answer_next(call, broker="refused")
        with pytest.raises(InvalidValue, match="one of confirmed, refused, unreachable"):
            t.answer_next(ship, broker="gone")  # type: ignore[arg-type]


@pytest.mark.parametrize("subject", ["a.*", "$JS.API.STREAM.DELETE.orders", "a..b", ""])
async def test_a_payload_cannot_choose_what_a_broker_keeps_for_itself(app: App, subject: str) -> None:
    ship = app.publish("ship", "nats://broker.example", to="{payload.subject}")
    async with using(app, now=NOW) as t:
        task = await ship.now(subject=subject)
        [ran] = await t.drain()
        assert (ran.outcome, t.requests(ship)) == ("fatal", [])
        [attempt] = await app.attempts(task)
    assert attempt.error is not None
    assert attempt.error.type == "UnfitReference"


async def test_middleware_runs_around_a_message(app: App) -> None:
    seen = []

    @app.middleware
    async def note(ctx: Context, call_next: Next) -> object:
        try:
            return await call_next()
        except Exception as error:
            seen.append(str(error))
            raise

    ship = app.publish("ship", "nats://broker.example", to="orders")
    async with using(app, now=NOW) as t:
        task = await ship.now()
        t.answer_next(ship, broker="unreachable")
        t.answer_next(ship)
        await t.advance(minutes=1)
        assert t.task(task).state is State.SUCCEEDED
        assert (await app.attempts(task))[-1].detail is not None
    [text] = seen
    assert "cannot be reached" in text


def test_a_password_is_given_once(app: App) -> None:
    app.publish("ship", "nats://broker.example", to="orders", auth=Basic("ada", Secret("broker")))
    with pytest.raises(InvalidValue, match="given twice"):
        app.publish("other", "nats://ada:x@broker.example", to="orders", auth=Basic("ada", Secret("broker")))
