"""Alerts while everything else goes wrong: evaluators that are killed, a store that is away, clocks that are set, servers that hang."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiosmtpd.smtp import SMTP, Envelope, Session

from duetime import AlertRule, App, Failing, Fatal, Late, Mail, Task, Webhook, WorkerLost
from duetime.clock import SECOND, ManualClock
from duetime.duties.alert_facts import Memory
from duetime.duties.alerts import evaluate, submit_messages
from duetime.errors import StoreUnavailable
from duetime.ids import new_id
from duetime.model.task import NewTask
from duetime.store.alerts import DocumentKind
from duetime.store.sqlite.store import SqliteStore
from duetime.targets.notices import mail as mailing
from duetime.targets.notices.notice import Notice
from duetime.targets.notices.target import SLOTS, SLOTS_OF_ONE
from tests.servers.fixtures import NewPostgres
from tests.servers.http import Conversation, serving
from tests.servers.mail import MailServer
from tests.servers.waiting import PATIENCE

NOTIFY = "duetime.notify"
NOWHERE = Webhook(url="http://127.0.0.1:9/")

# An evaluator as a process of its own, which is killed right before or after it writes what is to be told, or makes tasks of it.
EVALUATOR = """
import asyncio, os, signal, sys
from duetime.duties.alert_facts import Memory
from duetime.duties.alerts import evaluate, submit_messages
from duetime.store.open import store_from_url

url, dies = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    store = store_from_url(url)
    await store.open()
    change, add = store.change_alert_documents, store.add

    async def changing(changes):
        told = any(each.kind == "message" for each in changes)
        if told and dies == "before it is told":
            die()
        kept = await change(changes)
        if told and kept and dies == "after it is told":
            die()
        return kept

    async def adding(tasks):
        answer = await add(tasks)
        if dies == "after its task":
            die()
        return answer

    store.change_alert_documents, store.add = changing, adding
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(5):
        await evaluate(store, Memory())
        await submit_messages(store)
    await store.close()

asyncio.run(main())
"""
MOMENTS = ("before it is told", "after it is told", "after its task")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


async def look(app: App) -> None:
    while not await evaluate(app.store, Memory()):
        pass  # a worker of the test was faster
    await submit_messages(app.store)


async def notices(app: App) -> list[Task[Any]]:
    return sorted([task async for task in app.tasks(handler=NOTIFY)], key=lambda task: task.id)


async def told(app: App) -> list[str]:
    return [change["kind"] for task in await notices(app) for change in task.payload["changes"]]


def notice(channel: str = "ops") -> NewTask[Any]:
    return NewTask[Any](id=new_id(), handler=NOTIFY, payload=msgspec.json.encode(Notice(channel=channel, test=True)), priority=9)


def charging(app: App) -> Any:
    @app.task(name="charge")
    async def charge(fail: bool) -> None:
        if fail:
            raise Fatal("no stock")

    return charge


async def run(app: App, charge: Any, *fails: bool) -> None:
    async with app.worker(handlers=["charge"]):
        for fail in fails:
            await app.client.wait((await charge.now(fail=fail)).id, timeout=PATIENCE)


def evaluators(url: str, *moments: str) -> list[int]:
    """Run processes that evaluate at the same time, each killed at another moment; return how they ended."""
    started = [
        subprocess.Popen([sys.executable, "-c", EVALUATOR, url, dies], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for dies in moments
    ]
    try:
        for each in started:
            assert each.stdout is not None
            assert each.stdout.readline() == b"ready\n"
        for each in started:
            assert each.stdin is not None
            each.stdin.write(b"go\n")
            each.stdin.flush()
        return [each.wait(PATIENCE) for each in started]
    finally:
        for each in started:
            each.kill()
            each.communicate()


@pytest.mark.slow
async def test_evaluators_that_are_killed_at_any_moment_leave_one_message_of_each_change(url: str) -> None:
    app = App(url, user="anna")
    charge = charging(app)
    async with app:
        await app.channels.put("ops", NOWHERE)
        await app.alerts.put(AlertRule(name="failing", when=Failing(in_a_row=1), channels=("ops",)))
        for fail, expected in ((True, ["firing"]), (False, ["firing", "recovered"])):
            await app.store.take_duty("alerts", "this test", 60.0)  # workers of the test leave it to the evaluators
            await run(app, charge, fail)
            ended = await asyncio.to_thread(evaluators, url, *MOMENTS)
            assert -signal.SIGKILL in ended, "nobody was killed"
            await asyncio.gather(look(app), look(app))
            assert await told(app) == expected
            assert await app.store.alert_documents(DocumentKind.MESSAGE) == []


SENDER = """
import asyncio, sys
from duetime import App

async def main():
    app = App(sys.argv[1])
    async with app, app.worker(handlers=[]):
        await asyncio.Event().wait()

asyncio.run(main())
"""


class KillsSender(MailServer):
    """Takes a mail, and has its sender killed before it hears of that."""

    sender: subprocess.Popen[bytes] | None = None

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        answer = await super().handle_DATA(server, session, envelope)
        if self.sender is not None:
            self.sender.kill()
            self.sender.wait()
            self.sender = None
        return answer


@pytest.mark.slow
async def test_a_mail_that_arrived_before_its_sender_died_comes_twice_as_one_message(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with KillsSender() as server:
        async with App(url, user="anna") as app:
            await app.channels.put("ops", Mail(server=f"smtp://127.0.0.1:{server.port}", sender="a@b.example", to=("c@d.example",)))
            task = await app.client.submit(notice())
            server.sender = process = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", SENDER, url])
            try:
                await asyncio.to_thread(process.wait, PATIENCE)
                async with app.worker(handlers=[]):
                    ended = await app.client.wait(task.id, timeout=PATIENCE)
            finally:
                process.kill()
                process.wait()
            assert (ended.state, ended.attempt) == ("succeeded", 2)
    assert [each["Message-ID"] for each in server.received] == [f"<{task.id}@duetime>"] * 2


async def test_a_store_that_was_away_for_ten_minutes_tells_what_began_before_once_and_of_its_own_absence_nothing(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/unused.db", user="anna")
    charge = charging(app)
    clock = ManualClock()
    async with app.using_store(SqliteStore(str(tmp_path / "store.db"), clock=clock)):
        await app.channels.put("ops", NOWHERE)
        for name, when in (("failing", Failing(in_a_row=1)), ("lost", WorkerLost()), ("late", Late(oldest_due=60))):
            await app.alerts.put(AlertRule(name=name, when=when, channels=("ops",)))
        await run(app, charge, True)
        assert await evaluate(app.store, Memory())
        clock.advance(600)  # the store was away: nobody looked, and the message still waits
        await look(app)
        await look(app)
        assert await told(app) == ["firing"]
        await run(app, charge, False)
        await look(app)
        assert await told(app) == ["firing", "recovered"]


@pytest.mark.slow
async def test_a_server_that_goes_away_stops_no_evaluator(new_postgres: NewPostgres) -> None:
    server = new_postgres()
    app = App(server.url(), user="anna")
    charge = charging(app)
    async with app:
        await app.channels.put("ops", NOWHERE)
        await app.alerts.put(AlertRule(name="failing", when=Failing(in_a_row=1), channels=("ops",)))
        await run(app, charge, True)
        assert await evaluate(app.store, Memory())
        await asyncio.to_thread(server.kill)
        with pytest.raises(StoreUnavailable):
            await evaluate(app.store, Memory())
        with pytest.raises(StoreUnavailable):
            await submit_messages(app.store)
        await asyncio.to_thread(server.start)

        async def looked() -> bool:
            try:
                await look(app)
            except StoreUnavailable:
                return False
            return True

        async with asyncio.timeout(PATIENCE):
            while not await looked():  # noqa: ASYNC110  # until the store has found its server again
                await asyncio.sleep(0.05)
        assert await told(app) == ["firing"]


async def test_clocks_that_are_set_tell_nothing_twice_and_forget_nothing(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/unused.db", user="anna")
    charge = charging(app)
    clock = ManualClock()
    async with app.using_store(SqliteStore(str(tmp_path / "store.db"), clock=clock)):
        await app.channels.put("ops", NOWHERE)
        await app.alerts.put(AlertRule(name="failing", when=Failing(in_a_row=1), channels=("ops",)))
        await run(app, charge, True)
        for step in (0, 5, -3_600, 5, 7_200, -7_200, 5, 600, 3_600):
            clock.set(clock.now() + step * SECOND)
            await look(app)
        assert await told(app) == ["firing"]
        await run(app, charge, False)
        for step in (0, -3_600, 5, 7_200, 5):
            clock.set(clock.now() + step * SECOND)
            await look(app)
        assert await told(app) == ["firing", "recovered"]


async def test_500_handlers_that_fail_at_once_are_one_message(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/unused.db", user="anna")

    async def bad() -> None:
        raise Fatal("the bank is closed")

    handlers = [app.task(bad, name=f"h{number:03}") for number in range(500)]
    clock = ManualClock()
    async with app.using_store(SqliteStore(str(tmp_path / "store.db"), clock=clock)):
        await app.channels.put("ops", NOWHERE)
        await app.alerts.put(AlertRule(name="failing", when=Failing(in_a_row=1), channels=("ops",)))
        tasks = await app.submit_many([handler.new() for handler in handlers])
        async with app.worker():
            for task in tasks:
                await app.client.wait(task.id, timeout=PATIENCE)
        await look(app)
        [first] = await notices(app)
        assert (len(first.payload["changes"]), first.payload["more"]) == (100, 400)
        assert len(await app.alerts.firing()) == 500
        clock.advance(60)
        await look(app)
        assert len(await notices(app)) == 1, "what still fires is not told again"


async def test_mail_servers_that_accept_and_hang_hold_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_HTTP_ALLOW", "127.0.0.1")
    monkeypatch.setattr(mailing, "ANSWER_WITHIN", 3_600.0)
    app = App(f"sqlite:///{tmp_path}/store.db", user="anna")
    all_hang, hanging, channels = asyncio.Event(), 0, [f"hangs {number}" for number in range((SLOTS - 1) // SLOTS_OF_ONE)]

    async def silent(conversation: Conversation) -> None:
        nonlocal hanging
        hanging += 1
        if hanging == SLOTS_OF_ONE * len(channels):
            all_hang.set()
        await conversation.reader.read()

    async with app, serving(silent) as server:
        with MailServer() as good:
            for name, port in (*((each, server.port) for each in channels), ("ops", good.port)):
                await app.channels.put(name, Mail(server=f"smtp://127.0.0.1:{port}", sender="a@b.example", to=("c@d.example",)))
            for name in channels * SLOTS:
                await app.client.submit(notice(name))
            async with app.worker(handlers=[], grace=0.1):
                await asyncio.wait_for(all_hang.wait(), PATIENCE)
                task = await app.client.submit(notice())
                assert (await app.client.wait(task.id, timeout=PATIENCE)).state == "succeeded", "other channels have slots left"
                answered = await asyncio.wait_for(asyncio.to_thread(threading.current_thread), PATIENCE)
                assert "asyncio" in answered.name
            assert (hanging, len(good.received)) == (SLOTS_OF_ONE * len(channels), 1)
        assert sorted({task.state for task in await notices(app)}) == ["pending", "succeeded"]


async def test_a_mail_server_that_never_answers_is_a_failure_that_says_so_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailing, "ANSWER_WITHIN", 0.2)
    app = App(f"sqlite:///{tmp_path}/store.db", user="anna")

    async def silent(conversation: Conversation) -> None:
        await conversation.reader.read()

    async with app, serving(silent) as server:
        await app.channels.put("ops", Mail(server=f"smtp://127.0.0.1:{server.port}", sender="a@b.example", to=("c@d.example",)))
        task = await app.client.submit(notice())
        async with app.worker(handlers=[]), asyncio.timeout(PATIENCE):
            while not [each for each in await app.attempts(task) if each.outcome]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        [attempt, *_] = await app.attempts(task)
        assert attempt.error is not None
        assert (attempt.error.type, "does not answer" in attempt.error.message) == ("MailUnreachable", True)
        assert (await app.get(task)).state == "pending", "it is tried again, for a day"
