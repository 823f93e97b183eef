"""Alerts from the condition to the message: real mail, real webhooks, any number of evaluators."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from duetime import (
    AlertNotFound,
    AlertRule,
    App,
    Backlog,
    Basic,
    ChannelNotFound,
    Conflict,
    Deadline,
    Failing,
    Fatal,
    Handlers,
    InvalidValue,
    Late,
    Mail,
    Missed,
    Running,
    Secret,
    Slack,
    Task,
    Webhook,
    WorkerLost,
    webhooks,
)
from duetime.client.alerts.alerts import suggested
from duetime.clock import SECOND, ManualClock, to_instant
from duetime.duties.alert_facts import Memory, deadline_around
from duetime.duties.alerts import evaluate, submit_messages
from duetime.model.alerts.conditions import written
from duetime.store.alerts import DocumentChange, DocumentKind
from duetime.store.open import store_from_url
from duetime.targets.notices import channels
from tests.servers.http import Conversation, serving
from tests.servers.mail import MailServer
from tests.servers.waiting import PATIENCE

NOTIFY = "duetime.notify"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
async def app(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.setenv("DUETIME_HTTP_ALLOW", "127.0.0.1")
    async with App(url, user="anna", secret_keys="k:" + "A" * 43 + "=") as app:
        yield app


async def look(app: App) -> None:
    """Evaluate all rules once, as the duty does."""
    while not await evaluate(app.store, Memory()):
        pass  # a worker of the test was faster
    await submit_messages(app.store)


async def notices(app: App) -> list[Task[Any]]:
    return sorted([task async for task in app.tasks(handler=NOTIFY)], key=lambda task: task.id)


async def delivered(app: App) -> list[Task[Any]]:
    """Let a worker send what is to be sent."""
    found = await notices(app)
    async with app.worker(handlers=[]):
        for task in found:
            await app.client.wait(task.id, timeout=PATIENCE)
    return await notices(app)


def mail(port: int) -> Mail:
    return Mail(server=f"smtp://127.0.0.1:{port}", sender="duetime@shop.example", to=("ops@shop.example",))


def failing(app: App, error: str = "no stock") -> Any:
    @app.task(name="charge")
    async def charge(fail: bool) -> None:
        if fail:
            raise Fatal(error)

    return charge


async def run(app: App, charge: Any, *fails: bool) -> None:
    async with app.worker():
        for fail in fails:
            await app.client.wait((await charge.now(fail=fail)).id, timeout=PATIENCE)


# ---- channels ----


@pytest.mark.covers("CJO.6", "REQ.8", "XXL.10")
async def test_who_is_told_of_failures_by_mail_hears_of_their_end_too(app: App, caplog: pytest.LogCaptureFixture) -> None:
    charge = failing(app, "no stock\r\nBcc: everybody@example.com")
    with MailServer() as server:
        await app.channels.put("ops", mail(server.port))
        await app.alerts.put(AlertRule(name="failing", when=Failing(in_a_row=2, handler="ch*"), channels=("ops",), note="See the runbook."))
        await run(app, charge, True)
        await look(app)
        assert await app.alerts.firing() == []
        await run(app, charge, True)
        for _ in range(3):
            await look(app)
        [alert] = await app.alerts.firing()
        assert (alert.rule, alert.subject, alert.state) == ("failing", "charge", "firing")
        [task] = await delivered(app)
        assert (task.state, task.priority) == ("succeeded", 9)
        await run(app, charge, False)
        await look(app)
        await look(app)
        await delivered(app)
        assert await app.alerts.firing() == []
    logged = [record.getMessage() for record in caplog.records if record.name == "duetime.alerts"]
    assert [line.partition(":")[0] for line in logged if "firing" in line] == ["alert failing, firing"]
    first, second = server.received
    assert first["Subject"] == "[Duetime] FIRING: failing: charge"
    assert second["Subject"] == "[Duetime] RECOVERED: failing: charge"
    assert first["Message-ID"] == f"<{task.id}@duetime>"
    assert (first["To"], first["From"], first["Bcc"], first["Auto-Submitted"]) == (
        "ops@shop.example",
        "duetime@shop.example",
        None,
        "auto-generated",
    )
    text = first.get_payload()
    assert isinstance(text, str)
    assert "The last 2 tasks of charge failed" in text
    assert "runbook" in text
    assert "\nBcc" not in text


@pytest.mark.covers("RSQ.5", "XXL.10")
async def test_a_webhook_is_signed_and_slack_shows_markup_as_text(app: App) -> None:
    secret = webhooks.new_secret()
    charge = failing(app, "<!channel> & <http://evil|click>")

    async def talk(conversation: Conversation) -> None:
        while await conversation.request() is not None:
            await conversation.answer(200, b"ok")

    async with serving(talk) as server:
        await app.secrets.put("signing", secret)
        await app.secrets.put("slack", server.url("/services/T/B/secret"))
        await app.channels.put("hook", Webhook(url=server.url("/hook"), sign=Secret("signing")))
        await app.channels.put("chat", Slack(url=Secret("slack")))
        await app.alerts.put(AlertRule(name="failing", when=Failing(in_a_row=1), channels=("hook", "chat")))
        await run(app, charge, True)
        await look(app)
        tasks = await delivered(app)
        assert [task.state for task in tasks] == ["succeeded", "succeeded"], tasks
        by_path = {each.path: each for each in server.received}
    hook, chat = by_path["/hook"], by_path["/services/T/B/secret"]
    received = webhooks.verify(hook.headers, hook.body, secret)
    assert received.id in {task.id for task in tasks}
    told = msgspec.json.decode(hook.body)
    assert told["type"] == "duetime.alert.firing"
    assert (told["changes"][0]["rule"], told["changes"][0]["subject"]) == ("failing", "charge")
    said = msgspec.json.decode(chat.body)
    assert "&lt;!channel&gt; &amp; &lt;http://evil|click&gt;" in chat.body.decode()
    assert b"<!channel>" not in chat.body
    assert {block["text"]["type"] for block in said["blocks"]} == {"plain_text"}
    for task in tasks:
        shown = [await app.attempts(task), await app.why(task)]
        assert "services/T/B" not in repr(shown)


async def test_a_channel_that_is_repaired_is_used_by_what_still_waits(app: App) -> None:
    with MailServer() as server:
        server.answer = "451 try again"
        before = mail(server.port)
        await app.channels.put("ops", before)
        task = await app.channels.test("ops")
        async with app.worker(handlers=[]):
            ended = await app.client.wait(task.id, timeout=PATIENCE)
        assert (ended.state, ended.error and ended.error.type) == ("failed", "MailRefused")
        server.answer = "250 taken"
        await app.channels.put("ops", msgspec.structs.replace(before, to=("other@d.example",)))
        await app.retry(task)
        async with app.worker(handlers=[]):
            assert (await app.client.wait(task.id, timeout=PATIENCE)).state == "succeeded"
    assert server.envelopes[0].rcpt_tos == ["other@d.example"]
    assert server.received[0]["Subject"] == "[Duetime] A test of the channel ops"


async def test_a_password_is_a_secret_and_goes_to_the_server_only(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with MailServer(starttls=context, login=("duetime", "s3cret-pass")) as server:
        await app.secrets.put("smtp", "s3cret-pass")
        auth = Basic("duetime", Secret("smtp"))
        await app.channels.put("ops", msgspec.structs.replace(mail(server.port), auth=auth))
        task = await app.channels.test("ops")
        async with app.worker(handlers=[]):
            ended = await app.client.wait(task.id, timeout=PATIENCE)
        assert ended.state == "succeeded", ended.error
        assert "s3cret" not in repr([await app.channels.list(), ended, await app.attempts(task)])
    assert len(server.received) == 1


async def test_tls_from_the_first_byte_and_without_any_nothing_is_sent(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    monkeypatch.setattr(channels, "_LOOPBACK", ())  # as if the server were elsewhere
    with MailServer(tls=context) as secure, MailServer() as plain:
        await app.channels.put("secure", msgspec.structs.replace(mail(secure.port), server=f"smtps://127.0.0.1:{secure.port}"))
        await app.channels.put("plain", mail(plain.port))
        tasks = [await app.channels.test("secure"), await app.channels.test("plain")]
        async with app.worker(handlers=[]):
            ended = [await app.client.wait(task.id, timeout=PATIENCE) for task in tasks]
    assert [(task.state, task.error and task.error.type) for task in ended] == [("succeeded", None), ("failed", "MailNotEncrypted")]
    assert (len(secure.received), plain.received) == (1, [])


async def test_a_mail_server_that_accepts_and_hangs_is_left_when_the_worker_stops(app: App) -> None:
    arrived = asyncio.Event()

    async def silent(conversation: Conversation) -> None:
        arrived.set()
        await conversation.reader.read()

    async with serving(silent) as server:
        await app.channels.put("ops", mail(server.port))
        task = await app.channels.test("ops")
        async with app.worker(handlers=[], grace=0.1):
            await asyncio.wait_for(arrived.wait(), PATIENCE)
        assert (await app.get(task)).state in ("pending", "failed")


async def test_bad_channels_are_refused_with_what_is_expected(app: App) -> None:
    at, me, you = "smtp://mail.example", "a@b.example", ("c@d.example",)
    for make, said in (
        (lambda: Mail(server="mail.example", sender=me, to=you), "smtp://host"),
        (lambda: Mail(server="smtp://u:p@mail.example", sender=me, to=you), "belongs into auth"),
        (lambda: Mail(server=at, sender="a@b.example\nBcc: x@y.example", to=you), "such as ops@example.com"),
        (lambda: Mail(server=at, sender=me, to=()), "1 to 100"),
        (lambda: Mail(server=at, sender=me, to=you, auth=Basic("u", "plain")), "stored as a secret"),
        (lambda: Webhook(url="ftp://example.com"), "http"),
    ):
        with pytest.raises(InvalidValue, match=said):
            make()
    with pytest.raises(ChannelNotFound):
        await app.channels.get("nobody")
    with pytest.raises(InvalidValue, match="there is no channel 'ops'"):
        await app.alerts.put(AlertRule(name="late", when=Late(oldest_due=60), channels=("ops",)))


# ---- exactly one ----


async def test_any_number_of_evaluators_tell_once(app: App, url: str) -> None:
    charge = failing(app)
    await app.channels.put("ops", Webhook(url="http://127.0.0.1:9/"))
    await app.alerts.put(AlertRule(name="failing", when=Failing(in_a_row=1), channels=("ops",)))
    await run(app, charge, True)
    others = [store_from_url(url) for _ in range(2)]
    for other in others:
        await other.open()
    try:
        stores = [app.store, *others]

        async def evaluator(index: int) -> None:
            for _ in range(4):
                await evaluate(stores[index], Memory())
                await submit_messages(stores[index])

        await asyncio.gather(*(evaluator(index) for index in range(3)))
    finally:
        for other in others:
            await other.close()
    assert len(await notices(app)) == 1


async def test_a_message_whose_process_died_before_or_after_its_submit_is_submitted_once(app: App) -> None:
    charge = failing(app)
    await app.channels.put("ops", Webhook(url="http://127.0.0.1:9/"))
    await app.alerts.put(AlertRule(name="failing", when=Failing(in_a_row=1), channels=("ops",)))
    await run(app, charge, True)
    assert await evaluate(app.store, Memory())
    messages = await app.store.alert_documents(DocumentKind.MESSAGE)
    assert len(messages) == 1, "dies here: the message is stored"
    await submit_messages(app.store)
    [task] = await notices(app)
    assert task.id == messages[0].name
    await app.store.change_alert_documents([DocumentChange(DocumentKind.MESSAGE, task.id, "", messages[0].body)])
    await submit_messages(app.store)  # as if it had died before it could remove the message
    assert [each.id for each in await notices(app)] == [task.id]


async def test_a_flood_of_failures_is_one_message(app: App) -> None:
    async def bad(n: int) -> None:
        raise Fatal("no")

    group = [app.task(bad, name=f"h{number}") for number in range(60)]
    await app.channels.put("ops", Webhook(url="http://127.0.0.1:9/"))
    await app.alerts.put(AlertRule(name="failing", when=Failing(in_a_row=1, handler="h*"), channels=("ops",)))
    async with app.worker():
        for handler in group:
            await app.client.wait((await handler.now(n=1)).id, timeout=PATIENCE)
    await look(app)
    [task] = await notices(app)
    assert len(task.payload["changes"]) == 60
    assert len(await app.alerts.firing()) == 60


async def test_what_goes_wrong_with_notices_raises_none(app: App) -> None:
    await app.channels.put("ops", Webhook(url="http://127.0.0.1:9/"))
    await app.alerts.put(AlertRule(name="failing", when=Failing(in_a_row=1), channels=("ops",)))
    task = await app.channels.test("ops")
    async with app.worker(handlers=[]):
        assert (await app.client.wait(task.id, timeout=PATIENCE)).state == "failed"
    await look(app)
    assert await app.alerts.firing(state=None) == []


# ---- rules ----


async def test_rules_are_put_muted_acknowledged_and_deleted(app: App) -> None:
    charge = failing(app)
    await app.channels.put("ops", Webhook(url="http://127.0.0.1:9/"))
    rule = AlertRule(name="failing", when=Failing(in_a_row=1), channels=("ops",), repeat=60)
    first = await app.alerts.put(rule)
    assert await app.alerts.put(rule) == first, "a repeat changes nothing"
    with pytest.raises(Conflict, match="is told by the rule 'failing'"):
        await app.channels.delete("ops")
    assert (await app.alerts.mute("failing", lasting=3_600)).muted_by == "anna"
    await run(app, charge, True)
    await look(app)
    assert ((await app.alerts.get("failing")).firing, await notices(app)) == (1, [])
    await app.alerts.mute("failing", lasting=0)
    await look(app)
    assert len(await notices(app)) == 1
    assert [await app.alerts.acknowledge("failing"), await app.alerts.acknowledge("failing", "charge")] == [1, 0]
    assert (await app.alerts.firing())[0].acknowledged_by == "anna"
    with pytest.raises(AlertNotFound, match="does not fire for 'other'"):
        await app.alerts.acknowledge("failing", "other")
    await app.alerts.delete("failing")
    await look(app)
    assert (await app.alerts.firing(state=None), await app.alerts.list()) == ([], [])
    with pytest.raises(AlertNotFound):
        await app.alerts.get("failing")
    await app.channels.delete("ops")


async def test_declared_rules_are_stored_by_workers_and_changed_in_code_only(url: str) -> None:
    app, shop = App(url, user="anna"), Handlers(prefix="shop.")
    app.alert("late", Late(oldest_due=60), channels=["ops"])
    shop.alert("shop late", Late(oldest_due=5), channels=["ops"])
    app.include(shop)

    @app.task
    async def nothing() -> None: ...

    async with app:
        await app.channels.put("ops", Webhook(url="http://127.0.0.1:9/"))
        async with app.worker():
            rules = {each.rule.name: each for each in await app.alerts.list()}
        assert {name: (each.declared, each.rule.when) for name, each in rules.items()} == {
            "late": (True, Late(oldest_due=60)),
            "shop late": (True, Late(oldest_due=5, handler="shop.*")),
        }
        with pytest.raises(Conflict, match="declared by code"):
            await app.alerts.put(AlertRule(name="late", when=Late(oldest_due=1), channels=("ops",)))


async def test_waiting_running_and_missing_work_fires(app: App, url: str) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> None:
        begun.set()
        await over.wait()

    await app.channels.put("ops", Webhook(url="http://127.0.0.1:9/"))
    await app.alerts.put(AlertRule(name="backlog", when=Backlog(due=2), channels=("ops",)))
    await app.alerts.put(AlertRule(name="late", when=Late(oldest_due=1), channels=("ops",)))
    await app.alerts.put(AlertRule(name="running", when=Running(longer_than=1), channels=("ops",)))
    await app.alerts.put(AlertRule(name="lost", when=WorkerLost(), channels=("ops",)))
    await app.submit_many([slow.new() for _ in range(3)])
    await look(app)
    firing = {each.rule for each in await app.alerts.firing()}
    assert firing == {"backlog"}
    async with app.worker(concurrency=1):
        await asyncio.wait_for(begun.wait(), PATIENCE)

        async def fired() -> bool:
            await look(app)
            return {each.rule for each in await app.alerts.firing()} >= {"running", "late"}

        async with asyncio.timeout(PATIENCE):
            while not await fired():  # noqa: ASYNC110  # the store's clock decides it
                await asyncio.sleep(0.05)
        over.set()
        async with asyncio.timeout(PATIENCE):
            while await app.alerts.firing():
                await look(app)


@pytest.mark.covers("AIR.9")
async def test_a_schedule_that_has_not_succeeded_by_its_time_fires_until_it_has(url: str) -> None:
    app = App(url, user="anna")
    clock = ManualClock(to_instant(datetime(2026, 3, 2, 1, tzinfo=UTC)))
    store = store_from_url(url, clock=clock)

    @app.schedule(cron="0 2 * * *")
    async def nightly() -> None: ...

    async with app.using_store(store):
        await app.schedules.declare()
        await app.channels.put("ops", Webhook(url="http://127.0.0.1:9/"))
        await app.alerts.put(
            AlertRule(name="nightly", when=Deadline(schedule="nightly", by="07:00", tz="Europe/Berlin"), channels=("ops",))
        )
        await app.alerts.put(AlertRule(name="missed", when=Missed(), channels=("ops",)))
        for hour, expected in ((1, []), (5.9, []), (6.1, ["nightly"])):
            clock.set(to_instant(datetime(2026, 3, 2, tzinfo=UTC) + timedelta(hours=hour)))
            await look(app)
            assert [each.rule for each in await app.alerts.firing()] == expected, hour
        assert "No run of the schedule nightly has succeeded by 07:00 (Europe/Berlin)" in (await app.alerts.firing())[0].text


def test_deadlines_are_local_times_on_days_of_23_and_25_hours() -> None:
    condition = Deadline(by="07:00", tz="Europe/Berlin")
    for month, day, hours in ((3, 29, 23), (10, 25, 25), (6, 1, 24)):
        before, by = deadline_around(condition, to_instant(datetime(2026, month, day, 12, tzinfo=UTC)))
        assert by - before == hours * 3_600 * SECOND


async def test_rules_are_suggested_for_what_is_there(app: App) -> None:
    app.http("ping", "https://example.com/")
    await app.open()
    names = [rule.name for rule in await app.alerts.suggest()]
    assert {"late", "failing", "worker lost", "certificates"} <= set(names)
    assert "missed" not in names


def test_the_page_of_what_should_wake_me_has_every_rule_that_is_suggested() -> None:
    page = (Path(__file__).parents[2] / "docs" / "what-should-wake-me.md").read_text(encoding="utf-8")
    ready = dict(re.findall(r"^duetime alerts put ('[^']+'|\S+) (.+?) --", page, re.MULTILINE))
    rules = suggested({"http"}, schedules=True)
    assert len(rules) == 8
    for rule in rules:
        name = f"'{rule.name}'" if " " in rule.name else rule.name
        field = written(rule.when).split(" ")
        assert ready[name].split(" ")[0] == field[0]
        assert set(ready[name].split(" ")) <= {*field, "start_within=5", "ratio=0.95"}, "the rest are defaults"
        assert f"| `{name} {ready[name]}` |" in page
