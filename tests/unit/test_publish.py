"""Declaring handlers that publish: which brokers, destinations and headers there are, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import pytest

from duetime import App, Handlers, InvalidValue
from duetime.errors import MissingExtra
from duetime.targets.publish import brokers as publishing
from duetime.targets.publish.address import SCHEMES, Address, Kind, read_address
from duetime.targets.publish.brokers import Broker, Brokers
from duetime.targets.publish.destinations import Destination
from duetime.targets.publish.links import opener
from duetime.targets.publish.messages import Acknowledgement, BrokerUnreachable, Message, PublishRefused

MESSAGE = Message(id="1", to="shop", headers={}, body=b"", content_type="text/plain")


@pytest.fixture
def app() -> App:
    return App("sqlite:///:memory:", user="ada")


# ---- declarations ----


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "shown"),
    [
        ("nats://broker.example", "nats", [("broker.example", 4222)], "nats://broker.example:4222"),
        ("nats://a,b:4333", "nats", [("a", 4222), ("b", 4333)], "nats://a:4222,b:4333"),
        ("valkey://[::1]/3", "redis", [("::1", 6379)], "valkey://[::1]:6379/3"),
        ("amqps://ada:p%40ss@mq/%2Fshop", "amqp", [("mq", 5671)], "amqps://mq:5671//shop"),
        ("kafka://k1:1,k2:2", "kafka", [("k1", 1), ("k2", 2)], "kafka://k1:1,k2:2"),
        ("mqtts://m", "mqtt", [("m", 8883)], "mqtts://m:8883"),
    ],
)
def test_a_url_says_which_broker_it_is(url: str, kind: Kind, hosts: list[tuple[str, int]], shown: str) -> None:
    address = read_address(url)
    assert (address.kind, list(address.hosts), address.shown) == (kind, hosts, shown)


def test_user_and_password_are_decoded_and_never_shown() -> None:
    address = read_address("amqp://ada:p%40ss@mq")
    assert (address.user, address.password) == ("ada", "p@ss")
    assert "ss" not in repr(address) + address.shown


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://x", "url must begin with nats://"),
        ("nats://", "url must begin with"),
        ("nats://user:sesame@", "url needs a host"),
        ("nats://h:port", "url needs a host"),
        ("nats://h:70000", "url needs a host"),
        ("nats://{payload.h}", "url has no references"),
        ("nats://h/path", "does not know"),
        ("redis://a,b", "only nats and kafka take several"),
        ("redis://a/x", "number of a database"),
        ("redis://a?maxlen=1", "nothing after"),
        (7, "got int"),
    ],
)
def test_a_url_that_is_none_is_refused_without_showing_a_password(app: App, url: Any, told: str) -> None:
    with pytest.raises(InvalidValue, match=f"ship: .*{told}") as refused:
        app.publish("ship", url, to="shop")
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    ("scheme", "to"),
    [
        *(("nats", to) for to in ("", "a..b", ".a", "a.", "a b", "a.*", "a.>", "a\n", "a.{payload.x", "x" * 1_001)),
        *(("mqtt", to) for to in ("", "a/+", "a/#", "a\0")),
        *(("kafka", to) for to in ("", "a b", "ü", "a/b", "x" * 250)),
        *(("amqp", to) for to in ("", "ü" * 128)),
        *(("redis", to) for to in ("", "a\0")),
    ],
)
def test_a_destination_to_which_nobody_can_publish_is_refused(app: App, scheme: str, to: str) -> None:
    with pytest.raises(InvalidValue, match="ship: to "):
        app.publish("ship", f"{scheme}://h", to=to)


@pytest.mark.parametrize(
    ("scheme", "to"), [("nats", "shop.ü"), ("mqtt", "/shop//x y"), ("redis", "shop:{payload.x}"), ("amqp", "a b"), ("kafka", "a.b_c-1")]
)
def test_other_destinations_are_taken(app: App, scheme: str, to: str) -> None:
    app.publish("ship", f"{scheme}://h", to=to)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"headers": {"Duetime-Task": "x"}}, "set by Duetime"),
        ({"headers": {"nats-msg-id": "x"}}, "set by Duetime"),
        ({"headers": {"traceparent": "x"}}, "set by Duetime"),
        ({"headers": {"a b": "x"}}, "cannot be the name"),
        ({"headers": {"A": "x", "a": "x"}}, "given twice"),
        ({"headers": {"A": "x\ny"}}, "one line"),
        ({"max_length": 5}, r"max_length is for redis:// and means nothing to nats://"),
        ({"exchange": "x"}, r"exchange is for amqp://"),
        ({"retain": False}, r"retain is for mqtt://"),
        ({"concurrency": 0}, "at least 1"),
        ({"body": object()}, "body must be JSON"),
    ],
)
def test_options_that_cannot_be_are_refused(app: App, options: Any, told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        app.publish("ship", "nats://h", to="shop", **options)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis://h", {"max_length": 0}),
        ("redis://h", {"headers": {"Body": "x"}}),
        ("amqp://h", {"exchange": "x" * 256}),
    ],
)
def test_options_of_one_broker_are_checked_too(app: App, url: str, options: Any) -> None:
    with pytest.raises(InvalidValue):
        app.publish("ship", url, to="shop", **options)


def test_references_are_checked_against_the_payload_where_it_is_declared(app: App) -> None:
    def order(region: str) -> None: ...

    app.publish("ship", "nats://h", to="shop.{payload.region}", payload=order)
    with pytest.raises(InvalidValue, match="the payload has only region"):
        app.publish("other", "nats://h", to="shop.{payload.regoin}", payload=order)


def test_groups_declare_handlers_that_publish(app: App) -> None:
    group = Handlers("shop.")
    ship = group.publish("ship", "nats://h", to="orders")
    app.include(group)
    assert (ship.name, app.specs["shop.ship"].target.kind) == ("shop.ship", "publish")


@pytest.mark.parametrize("kind", ["nats", "redis", "mqtt", "amqp", "kafka"])
def test_a_missing_client_is_told_with_the_command_that_installs_it(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {scheme.kind for scheme in SCHEMES.values()} == {"nats", "redis", "mqtt", "amqp", "kafka"}
    for name in ("nats", "redis", "aiomqtt", "aio_pika", "aiokafka"):
        for module in [module for module in sys.modules if module.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"duetime.targets.publish.{kind}", raising=False)
    with pytest.raises(MissingExtra, match=rf"pip install 'duetime\[{kind}\]'"):
        opener(kind)


# ---- connections ----


class FakeLink:
    """A connection that does as it is told."""

    def __init__(self) -> None:
        self.is_open = True
        self.closed = False
        self.failing: Exception | None = None

    async def publish(self, message: Message) -> Acknowledgement:
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        return {"to": message.to}

    async def close(self) -> None:
        self.closed = True


class Dialling:
    """Opens connections, or fails to, and counts."""

    def __init__(self) -> None:
        self.links: list[FakeLink] = []
        self.dialled: list[tuple[str, int]] = []
        self.failing: Exception | None = None

    async def __call__(self, address: Address, host: tuple[str, int]) -> FakeLink:
        self.dialled.append(host)
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        self.links.append(FakeLink())
        return self.links[-1]


class Clock:
    """A clock that a test moves, in place of `monotonic`."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(publishing, "monotonic", clock)
    return clock


async def refused_for(broker: Broker) -> float:
    with pytest.raises(BrokerUnreachable) as unreachable:
        await broker.publish(MESSAGE)
    return unreachable.value.delay


async def test_all_who_come_at_once_share_one_attempt_to_connect(clock: Clock) -> None:
    dialling = Dialling()
    broker = Broker(read_address("nats://h"), dialling)
    await asyncio.gather(*(broker.publish(MESSAGE) for _ in range(100)))
    assert len(dialling.dialled) == 1
    await broker.close()
    assert dialling.links[0].closed


async def test_a_broker_that_stays_away_is_tried_less_and_less_often_and_on_its_other_hosts_too(clock: Clock) -> None:
    dialling = Dialling()
    dialling.failing = BrokerUnreachable("refused")
    broker = Broker(read_address("nats://a,b"), dialling)
    delays = []
    for _ in range(9):
        results = await asyncio.gather(*(broker.publish(MESSAGE) for _ in range(50)), return_exceptions=True)
        assert all(isinstance(result, BrokerUnreachable) for result in results)
        delay = await refused_for(broker)
        delays.append(delay)
        clock.now += delay
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [host for host, _ in dialling.dialled] == ["a", "b"] * 4 + ["a"]
    dialling.failing = None
    assert await broker.publish(MESSAGE) == {"to": "shop"}


async def test_a_broker_that_takes_connections_and_loses_them_is_not_tried_more_often(clock: Clock) -> None:
    dialling = Dialling()
    broker = Broker(read_address("nats://h"), dialling)
    delays = []
    for _ in range(3):
        await broker._connected()
        dialling.links[-1].failing = BrokerUnreachable("reset")
        await asyncio.gather(*(broker.publish(MESSAGE) for _ in range(50)), return_exceptions=True)
        delays.append(await refused_for(broker))
        clock.now += delays[-1]
    assert delays == [1, 2, 4]
    assert len(dialling.dialled) == 3
    await broker.close()
    assert all(link.closed for link in dialling.links)


async def test_a_connection_that_ended_while_nobody_used_it_is_made_again_but_not_twice_in_a_second(clock: Clock) -> None:
    dialling = Dialling()
    broker = Broker(read_address("nats://h"), dialling)
    await broker.publish(MESSAGE)
    dialling.links[0].is_open = False
    assert 0 < await refused_for(broker) <= 1
    clock.now += 1
    await broker.publish(MESSAGE)
    assert len(dialling.dialled) == 2


async def test_a_refusal_of_the_connection_reaches_those_who_asked_and_the_others_wait(clock: Clock) -> None:
    dialling = Dialling()
    dialling.failing = PublishRefused("NotPermitted", "wrong password")
    broker = Broker(read_address("nats://h"), dialling)
    with pytest.raises(PublishRefused):
        await broker.publish(MESSAGE)
    assert await refused_for(broker) == 1


async def test_a_caller_who_gives_up_does_not_end_the_attempt_to_connect_of_others(clock: Clock) -> None:
    dialling = Dialling()
    broker = Broker(read_address("nats://h"), dialling)
    first = asyncio.create_task(broker.publish(MESSAGE))
    second = asyncio.create_task(broker.publish(MESSAGE))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == {"to": "shop"}
    assert len(dialling.dialled) == 1


async def test_a_connection_that_swallows_a_cancel_while_it_closes_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of Kafka does: a worker that stopped at that moment hung."""
    monkeypatch.setattr(publishing, "CLOSE_WITHIN", 0.001)
    released, ended = asyncio.Event(), asyncio.Event()

    class Deaf(FakeLink):
        async def close(self) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
            await released.wait()
            ended.set()

    async def dial(address: Address, host: tuple[str, int]) -> FakeLink:
        return Deaf()

    broker = Broker(read_address("kafka://h"), dial)
    await broker.publish(MESSAGE)
    await broker.close()
    assert not ended.is_set()
    released.set()
    await ended.wait()


async def test_handlers_of_one_url_share_a_broker() -> None:
    brokers, dialling = Brokers(), Dialling()
    one = brokers.at(read_address("nats://h"), dialling)
    assert brokers.at(read_address("nats://h:4222"), dialling) is one
    assert brokers.at(read_address("nats://ada:x@h"), dialling) is not one


def test_a_destination_says_what_a_value_would_have_led_to() -> None:
    with pytest.raises(InvalidValue, match=r"a subject to which one can publish: 'a\.\.b' has nothing between two '\.'"):
        Destination("a..b", "nats")
