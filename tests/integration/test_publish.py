"""Handlers that publish, with real brokers: what arrives, what is refused, and what happens while a broker is away."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aio_pika
import aiomqtt
import msgspec
import nats
import pytest
import redis.asyncio as redis_client

from duetime import App, Basic, RetryPolicy, Secret, State, Task
from duetime.app.handlers import AnyHandler
from duetime.client.insight import AttemptInfo
from duetime.targets.publish import brokers
from duetime.targets.publish import target as publishing
from tests.integration.broker_scenes import AmqpScene, KafkaScene, MqttScene, NatsScene, RedisScene, Scene, until
from tests.servers.brokers import MqttServer, NatsServer, RedisServer
from tests.servers.ports import free_port
from tests.servers.proxy import Proxy, Side
from tests.servers.waiting import PATIENCE

pytestmark = pytest.mark.slow

ONCE = RetryPolicy.none()
KINDS: dict[str, Callable[[], Scene]] = {"nats": NatsScene, "redis": RedisScene, "kafka": KafkaScene, "mqtt": MqttScene, "amqp": AmqpScene}
DURABLE = ["nats", "redis", pytest.param("amqp", marks=pytest.mark.system)]  # have lost nothing when they are killed
REAL = [*DURABLE, pytest.param("mqtt", marks=pytest.mark.system)]


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test")


async def _scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    scene = KINDS[request.param]()
    with scene.server:
        await scene.prepare()
        yield scene


any_scene = pytest.fixture(_scene, name="any_scene", params=[*REAL, "kafka"])
scene = pytest.fixture(_scene, name="scene", params=REAL)
durable_scene = pytest.fixture(_scene, name="durable_scene", params=DURABLE)


async def run(app: App, handler: AnyHandler, **payload: Any) -> AttemptInfo:
    """Run one task of a handler and return its last attempt."""
    async with app.worker():
        task = await handler.now(**payload)
        await app.client.wait(task.id, timeout=PATIENCE)
        return (await app.attempts(task))[-1]


def error_of(attempt: AttemptInfo) -> tuple[str, str]:
    assert attempt.error is not None
    return attempt.error.type, attempt.error.message


async def finished(app: App, tasks: Sequence[Task[None]]) -> list[Task[Any]]:
    """Wait until all tasks have ended and return them as they are then."""
    for task in tasks:
        await app.client.wait(task.id, timeout=PATIENCE)
    return [await app.get(task) for task in tasks]


# ---- what arrives ----


async def test_a_confirmed_message_has_its_body_and_says_which_attempt_it_is(app: App, any_scene: Scene) -> None:
    ship = app.publish(
        "ship", any_scene.server.url, to="shop.{payload.region}", body={"order": "{payload.order}", "note": "{payload.note}"},
        headers={"X-Tenant": "{meta.tenant}"},
    )  # fmt: skip
    async with app.worker():
        task = await ship.options(meta={"tenant": "Grün €"}).now(region="eu", order=7, note="Ünïcode 🚀")
        await app.result(task, timeout=PATIENCE)
        [attempt] = await app.attempts(task)
    [message] = await any_scene.published()
    assert message.to == "shop.eu"
    assert msgspec.json.decode(message.body) == {"order": 7, "note": "Ünïcode 🚀"}
    wanted = {
        "content-type": "application/json",
        "x-tenant": "Grün €",
        "duetime-task": task.id,
        "duetime-handler": "ship",
        "duetime-attempt": "1",
        "duetime-fence": "1",
    }
    assert {name: message.headers.get(name) for name in wanted} == wanted
    assert message.headers["duetime-due-at"].endswith("Z")
    detail = attempt.detail or {}
    assert (detail["broker"], detail["to"]) == (any_scene.server.url, "shop.eu")
    assert {"stream", "offset", "confirmed"} & detail.keys()
    assert "confirmed" in detail["phases"]


async def test_a_body_may_be_text_of_another_type(app: App, any_scene: Scene) -> None:
    ship = app.publish("ship", any_scene.server.url, to="shop.eu", body="ON {payload.n}", headers={"Content-Type": "text/plain"})
    await run(app, ship, n=5)
    [message] = await any_scene.published()
    assert (message.body, message.headers["content-type"]) == (b"ON 5", "text/plain")


async def test_payloads_of_the_largest_size_that_a_broker_takes_arrive_whole(app: App, any_scene: Scene) -> None:
    ship = app.publish("ship", any_scene.server.url, to="shop.eu")
    text = "ü" * 250_000
    attempt = await run(app, ship, text=text)
    [message] = await any_scene.published()
    assert attempt.outcome == "succeeded"
    assert msgspec.json.decode(message.body) == {"text": text}


async def test_a_value_cannot_lead_to_another_subject(app: App) -> None:
    with NatsServer() as server:
        ship = app.publish("ship", server.url, to="shop.{payload.region}", retry=ONCE)
        for region in ("eu.secret", "*", ">", "a b", ""):
            kind, text = error_of(await run(app, ship, region=region))
            assert kind == "UnfitReference"
            assert "subject" in text


# ---- a broker that goes away ----


async def test_nothing_is_lost_and_no_try_is_used_when_the_broker_is_killed_in_the_middle(app: App, durable_scene: Scene) -> None:
    scene = durable_scene
    ship = app.publish("ship", scene.server.url, to="shop.eu", concurrency=4, retry=ONCE)
    async with app.worker():
        tasks = [await ship.now(order=number) for number in range(300)]
        await until("some are published", lambda: _any(scene))
        scene.server.kill()
        tasks += [await ship.now(order=number) for number in range(300, 310)]
        await until("the others wait", lambda: _is_gated(app))
        [gate] = await app.gates.list()
        scene.server.start()
        ended = await finished(app, tasks)
    assert (gate.automatic, gate.note) == (True, f"{shown(scene)} cannot be reached")
    assert {(task.state, task.tries) for task in ended} == {(State.SUCCEEDED, 0)}
    messages = await scene.published()
    assert {message.headers["duetime-task"] for message in messages} == {task.id for task in ended}
    again = next(task for task in ended if task.attempt > 1)
    [first, *_] = await app.attempts(again)
    assert (first.outcome, error_of(first)[0]) == ("retry_later", "BrokerUnreachable")
    assert await app.gates.list() == []


async def _any(scene: Scene) -> bool:
    return bool(await scene.published())


async def _is_gated(app: App) -> bool:
    return bool(await app.gates.list())


def shown(scene: Scene) -> str:
    return str(scene.server.url).partition("?")[0]


async def _has_attempts(app: App, task: Task[Any]) -> bool:
    return any(attempt.outcome is not None for attempt in await app.attempts(task))


class Closing:
    """Takes connections, counts them, and ends each at once."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0

    async def __aenter__(self) -> Closing:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


@pytest.mark.parametrize("kind", ["nats", "redis"])
@pytest.mark.timeout(900)
async def test_thousands_of_tasks_try_one_connection_a_second_and_leave_by_priority_when_the_broker_comes(
    app: App, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = request.config.getoption("--scope") == "everything"
    many, pause = (50_000, brokers.FIRST_DELAY) if everything else (500, 0.1)
    monkeypatch.setattr(brokers, "FIRST_DELAY", pause)
    monkeypatch.setattr(publishing, "PROBE_EVERY", 2 * PATIENCE)  # so that only what a probe reports brings the next one in time
    port = free_port()
    ship = app.publish("ship", f"{kind}://127.0.0.1:{port}", to="shop.eu", retry=ONCE, concurrency=20)
    tasks = await app.submit_many([ship.options(priority=1).new(rank="low") for _ in range(many // 2)])
    async with Closing(port) as away:
        began = time.monotonic()
        async with app.worker():
            await until("the others wait", lambda: _is_gated(app))
            await until("it was tried again", lambda: _is(lambda: away.connections >= 3))
            assert away.connections <= (time.monotonic() - began) / pause + 2
            waiting = sum(lane.due + lane.later for lane in (await app.store.counts()).lanes)
            assert waiting >= many // 2 - 1, "all wait, but perhaps for the one that tries the broker"
    # these have not found the broker away, so none of them comes later than the others
    tasks = [*tasks, *await app.submit_many([ship.options(priority=9).new(rank="high") for _ in range(many // 2)])]
    scene = KINDS[kind]()
    scene.server.port = port
    with scene.server:
        await scene.prepare()
        async with app.worker():
            ended = await finished(app, tasks)
        assert {(task.state, task.tries) for task in ended} == {(State.SUCCEEDED, 0)}
        published = await scene.published()
    assert {message.headers["duetime-task"] for message in published} == {task.id for task in tasks}
    ranks = [msgspec.json.decode(message.body)["rank"] for message in published]
    # every sixteenth start is for whoever has waited longest
    assert ranks[: many // 2].count("high") >= 0.85 * (many // 2)


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()


async def test_after_an_outage_tasks_leave_in_the_order_of_their_priority(app: App, scene: Scene) -> None:
    ship = app.publish("ship", scene.server.url, to="shop.eu", concurrency=1)
    scene.server.kill()
    async with app.worker():
        low = [await ship.options(priority=1).now(rank="low") for _ in range(40)]
        high = [await ship.options(priority=9).now(rank="high") for _ in range(40)]
        await until("they wait for the broker", lambda: _is_gated(app))
        scene.server.start()
        await finished(app, [*low, *high])
    order = [msgspec.json.decode(message.body)["rank"] for message in await scene.published()]
    # every sixteenth start is for whoever has waited longest
    assert order[:40].count("high") >= 36


async def test_a_broker_that_is_silent_counts_as_unreachable(app: App, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    ship = app.publish("ship", scene.server.url, to="shop.eu", retry=ONCE)
    async with app.worker():
        await app.result(await ship.now(order=1), timeout=PATIENCE)
        monkeypatch.setattr(brokers, "CONFIRM_WITHIN", 0.2)
        scene.server.pause()
        task = await ship.now(order=2)
        await until("it has waited in vain", lambda: _has_attempts(app, task))
        monkeypatch.setattr(brokers, "CONFIRM_WITHIN", PATIENCE)
        scene.server.resume()
        [ended] = await finished(app, [task])
        [first, *_] = await app.attempts(task)
    assert (ended.state, ended.tries) == (State.SUCCEEDED, 0)
    assert "has not confirmed a message within 0.2 s" in error_of(first)[1]


async def test_when_only_the_confirmation_is_lost_nats_stores_the_message_once_and_says_so(app: App) -> None:
    scene = NatsScene()
    with scene.server, Proxy(scene.server.port) as proxy:
        await scene.prepare()
        ship = app.publish("ship", f"nats://127.0.0.1:{proxy.port}", to="shop.eu")
        async with app.worker():
            await app.result(await ship.now(order=1), timeout=PATIENCE)
            proxy.hold([Side.SERVER])
            task = await ship.now(order=2)
            await until("the server has it", lambda: _has(scene, 2))
            proxy.cut()
            proxy.heal()
            await app.result(task, timeout=PATIENCE)
            lost, told = await app.attempts(task)
        assert len(await scene.published()) == 2
    assert lost.outcome == "retry_later"
    assert told.detail is not None
    assert (told.detail["sequence"], told.detail["duplicate"]) == (2, True)


async def _has(scene: Scene, count: int) -> bool:
    return len(await scene.published()) == count


# ---- one connection ----


async def test_handlers_of_one_broker_share_a_connection_that_ends_with_the_worker(app: App) -> None:
    with RedisServer() as server:
        handlers = [app.publish(f"ship-{number}", server.url, to="shop.eu") for number in range(5)]
        client = redis_client.Redis(port=server.port, decode_responses=True)

        async def ours() -> int:
            return sum(each["name"] == "duetime" for each in await client.client_list())

        async def gone() -> bool:
            return await ours() == 0

        async with app.worker():
            assert await ours() == 0  # nothing before it is needed
            await finished(app, [await handler.now(n=n) for n in range(20) for handler in handlers])
            assert await ours() == 1
        await until("the connection has ended", gone)
        assert await client.xlen("shop.eu") == 100
        await client.aclose()


# ---- refusals ----


async def test_a_subject_without_a_stream_fails_and_says_what_to_create(app: App) -> None:
    with NatsServer() as server:
        kind, text = error_of(await run(app, app.publish("ship", server.url, to="orders.eu", retry=ONCE)))
    assert kind == "NoStream"
    assert "nats stream add NAME --subjects 'orders.eu'" in text


async def test_nats_refuses_messages_that_are_too_large_and_the_text_says_whose_limit_it_is(app: App) -> None:
    scene = NatsScene("max_payload: 100000")
    with scene.server:
        await scene.prepare(max_msg_size=50_000)
        ship = app.publish("ship", scene.server.url, to="shop.eu")
        for size, limit in [(60_000, "max_msg_size"), (100_000, "takes 100,000 (its max_payload)")]:
            attempt = await run(app, ship, text="x" * size)
            kind, text = error_of(attempt)
            assert (attempt.outcome, kind) == ("fatal", "MessageTooLarge")
            assert limit in text
        assert (await run(app, ship, text="x" * 1_000)).outcome == "succeeded"  # the connection is as good as before


async def test_redis_refuses_messages_that_are_too_large_and_the_text_says_whose_limit_it_is(app: App) -> None:
    scene = RedisScene("--proto-max-bulk-len", "1mb")
    with scene.server:
        client = redis_client.Redis(port=scene.server.port)
        ship = app.publish("ship", scene.server.url, to="shop.eu", body=["{payload.text}"] * 3)
        attempt = await run(app, ship, text="x" * 500_000)
        assert (attempt.outcome, error_of(attempt)[0]) == ("fatal", "MessageTooLarge")
        assert "proto-max-bulk-len" in error_of(attempt)[1]
        assert (await run(app, ship, text="x")).outcome == "succeeded"
        await client.aclose()


async def test_a_key_of_another_type_and_a_full_redis_are_refusals(app: App) -> None:
    with RedisServer() as server:
        client = redis_client.Redis(port=server.port)
        await client.set("shop.eu", "text")
        ship = app.publish("ship", server.url, to="shop.{payload.region}", retry=ONCE)
        kind, text = error_of(await run(app, ship, region="eu"))
        assert kind == "WrongType"
        assert "shop.eu is not a stream" in text
        await client.config_set("maxmemory", 1)
        kind, text = error_of(await run(app, ship, region="us"))
        assert kind == "PublishRefused"
        assert "maxmemory" in text
        await client.aclose()


async def test_a_stream_of_redis_keeps_about_as_many_messages_as_was_said(app: App) -> None:
    with RedisServer("--stream-node-max-entries", "10") as server:
        client = redis_client.Redis(port=server.port)
        ship = app.publish("ship", server.url, to="shop.eu", max_length=20)
        async with app.worker():
            await finished(app, await app.submit_many([ship.new(n=n) for n in range(200)]))
        assert 20 <= await client.xlen("shop.eu") <= 40
        await client.aclose()


USERS = """
authorization: { users: [
  { user: clerk, password: sesame, permissions: { publish: ["shop.allowed"], subscribe: ["_INBOX.>"] } },
  { user: boss, password: secret }
] }
"""


async def test_nats_users_without_the_right_are_refused_and_no_password_is_shown(app: App) -> None:
    with NatsServer(USERS) as server:
        boss = await nats.connect(f"nats://boss:secret@127.0.0.1:{server.port}")
        await boss.jetstream().add_stream(name="SHOP", subjects=["shop.>"])
        await boss.close()

        async def outcome(name: str, userinfo: str, to: str) -> AttemptInfo:
            return await run(app, app.publish(name, f"nats://{userinfo}@127.0.0.1:{server.port}", to=to, retry=ONCE))

        assert (await outcome("allowed", "clerk:sesame", "shop.allowed")).outcome == "succeeded"
        denied = await outcome("denied", "clerk:sesame", "shop.other")
        wrong = await outcome("wrong", "clerk:sesame2", "shop.allowed")
    assert error_of(denied)[0] == error_of(wrong)[0] == "NotPermitted"
    assert "publish to shop.other" in error_of(denied)[1]
    assert "refuses user and password" in error_of(wrong)[1]
    assert "sesame" not in str([denied, wrong])


async def test_redis_users_without_the_right_are_refused_and_no_password_is_shown(app: App) -> None:
    with RedisServer("--requirepass", "sesame") as server:
        client = redis_client.Redis(port=server.port, password="sesame")
        await client.acl_setuser("clerk", enabled=True, passwords=["+ticket"], keys=["shop.allowed"], commands=["+xadd", "+client"])

        async def outcome(name: str, userinfo: str, to: str) -> AttemptInfo:
            return await run(app, app.publish(name, f"redis://{userinfo}@127.0.0.1:{server.port}", to=to, retry=ONCE))

        assert (await outcome("default", ":sesame", "shop.eu")).outcome == "succeeded"
        assert (await outcome("allowed", "clerk:ticket", "shop.allowed")).outcome == "succeeded"
        denied = await outcome("denied", "clerk:ticket", "shop.other")
        wrong = await outcome("wrong", ":sesame2", "shop.eu")
        none = await run(app, app.publish("none", server.url, to="shop.eu", retry=ONCE))
        await client.aclose()
    assert [error_of(each)[0] for each in (denied, wrong, none)] == ["NotPermitted"] * 3
    assert "sesame" not in str([denied, wrong])


# ---- secrets ----


async def test_a_password_that_is_a_stored_secret_is_read_when_it_is_needed_and_never_shown(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'duetime.db'}", user="test", secret_keys=f"k1:{base64.b64encode(bytes(32)).decode()}")
    with RedisServer("--requirepass", "sesame-1") as server:
        client = redis_client.Redis(port=server.port, password="sesame-1", decode_responses=True)
        ship = app.publish("ship", server.url, to="shop.{payload.region}", auth=Basic("default", Secret("broker")), retry=ONCE)
        await app.secrets.put("broker", "sesame-0")
        wrong = await run(app, ship, region="sesame-0")
        await app.secrets.put("broker", "sesame-1")
        right = await run(app, ship, region="eu")
        assert await client.xlen("shop.eu") == 1
        await client.aclose()
    assert (error_of(wrong)[0], right.outcome) == ("NotPermitted", "succeeded")
    assert "sesame-0" not in str(wrong)


# ---- MQTT and Kafka ----


@pytest.mark.system
async def test_amqp_refuses_what_reaches_no_queue_and_says_what_is_missing(app: App) -> None:
    scene = AmqpScene()
    with scene.server:
        await scene.prepare()
        async with await aio_pika.connect(scene.server.url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange("shop", "topic")
            urls = {
                "plain": scene.server.url,
                "host": f"{scene.server.url}/none",
                "user": f"amqp://ada:sesame@127.0.0.1:{scene.server.port}",
            }

            async def refused(name: str, to: str, exchange: str | None = None, url: str = "plain") -> tuple[str, str]:
                return error_of(await run(app, app.publish(name, urls[url], to=to, exchange=exchange, retry=ONCE)))

            kind, text = await refused("no-queue", "shop.none")
            assert (kind, "there is no queue shop.none" in text) == ("Unroutable", True)
            kind, text = await refused("no-exchange", "eu", "none")
            assert (kind, "there is no exchange none" in text) == ("NoExchange", True)
            kind, text = await refused("unbound", "eu", "shop")
            assert (kind, "no queue is bound to the exchange shop" in text) == ("Unroutable", True)
            assert (await refused("host", "shop.eu", url="host"))[0] == "NotPermitted"
            kind, text = await refused("user", "shop.eu", url="user")
            assert (kind, "sesame" in text) == ("NotPermitted", False)
            await (await channel.get_queue("shop.eu")).bind(exchange, "eu")
            bound = await run(app, app.publish("bound", scene.server.url, to="eu", exchange="shop"))
            assert bound.detail is not None
            assert bound.detail["exchange"] == "shop"
        [message] = await scene.published()
    assert message.headers["message-id"] == message.headers["duetime-task"]


@pytest.mark.system
async def test_mqtt_refuses_what_is_too_large_and_what_is_not_permitted(app: App) -> None:
    scene = MqttScene("max_packet_size 20000\nallow_anonymous true")
    with scene.server:
        ship = app.publish("ship", scene.server.url, to="shop.eu")
        attempt = await run(app, ship, text="x" * 20_000)
        assert (attempt.outcome, error_of(attempt)[0]) == ("fatal", "MessageTooLarge")
        assert (await run(app, ship, text="x")).outcome == "succeeded"
    rights = tmp_file(scene.server.folder.parent, "rights", "topic readwrite other/#\n")
    with MqttServer(f"allow_anonymous true\nacl_file {rights}") as server:
        denied = await run(app, app.publish("denied", server.url, to="shop/eu", retry=ONCE))
        assert error_of(denied)[0] == "NotPermitted"
        assert "publish to shop/eu" in error_of(denied)[1]
    with MqttServer("allow_anonymous false") as server:
        assert error_of(await run(app, app.publish("nobody", server.url, to="shop/eu", retry=ONCE)))[0] == "NotPermitted"


@pytest.mark.system
async def test_an_mqtt_message_expires_with_its_task_and_is_kept_if_that_is_said(app: App) -> None:
    scene = MqttScene()
    with scene.server:
        await scene.prepare()
        ship = app.publish("ship", scene.server.url, to="shop/eu", retain=True)
        async with app.worker():
            await finished(app, [await ship.options(expires=600).now()])
        [message] = await scene.published()
        async with aiomqtt.Client("127.0.0.1", scene.server.port) as late:
            await late.subscribe("shop/#")
            kept = await anext(aiter(late.messages))
    assert 500 < int(message.headers["expires"]) <= 600
    assert kept.retain


def tmp_file(folder: Path, name: str, text: str) -> Path:
    """Write a file that the account of the servers can read."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o644)
    return path


async def test_the_key_of_a_kafka_message_is_the_tasks_key_or_its_id(app: App) -> None:
    scene = KafkaScene()
    with scene.server:
        ship = app.publish("ship", scene.server.url, to="shop.eu")
        async with app.worker():
            tasks = [await ship.options(key="order-7").now(n=1), await ship.now(n=2)]
            await finished(app, tasks)
        keys = {message.headers["duetime-task"]: message.headers["key"] for message in await scene.published()}
    assert keys == {tasks[0].id: "order-7", tasks[1].id: tasks[1].id}


async def test_kafka_refuses_messages_that_are_too_large(app: App) -> None:
    with KafkaScene().server as server:
        ship = app.publish("ship", server.url, to="shop.eu", body=["{payload.text}"] * 3)
        attempt = await run(app, ship, text="x" * 400_000)
    assert (attempt.outcome, error_of(attempt)[0]) == ("fatal", "MessageTooLarge")


async def test_a_kafka_that_is_away_uses_no_try(app: App) -> None:
    ship = app.publish("ship", f"kafka://127.0.0.1:{free_port()}", to="shop.eu", retry=ONCE)
    async with app.worker():
        task = await ship.now()
        await until("it has found nobody", lambda: _has_attempts(app, task))
        [first, *_] = await app.attempts(task)
        assert (error_of(first)[0], (await app.get(task)).tries) == ("BrokerUnreachable", 0)
