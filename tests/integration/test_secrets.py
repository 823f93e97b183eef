"""Secrets from the put to the request: versions, keys, and values that are found nowhere afterwards."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import psycopg
import pytest

from duetime import App, Conflict, InvalidValue, RetryPolicy, Secret, SecretNotFound, SecretUnreadable, State, TaskFailed
from duetime.client.secrets import LocalSecrets
from duetime.duties import Pruner
from duetime.model.outcome import Ended, Outcome
from duetime.model.secrets import MAX_SECRET, write_key
from duetime.model.task import ErrorInfo
from duetime.runtime.service import Alarms
from duetime.secrets import reading
from duetime.secrets.keys import new_key
from duetime.targets.host import TargetHost
from duetime.targets.payload import OpenPayloads
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import AttemptHandle, Stop
from duetime.testing import using
from tests.api.conftest import until
from tests.servers.waiting import PATIENCE

OLD, NEW = (write_key(new_key(id)) for id in ("2026a", "2026b"))
PLANTED = 'hush/7 "Ä+\\x?'
FORMS = (
    PLANTED,
    quote(PLANTED, safe=""),
    base64.b64encode(PLANTED.encode()).decode(),
    json.dumps(PLANTED)[1:-1],
    json.dumps(PLANTED, ensure_ascii=False)[1:-1],
)
EVERYWHERE = "\n".join(FORMS)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        address: str = request.getfixturevalue("postgres_url")
        return address
    return f"sqlite:///{tmp_path / 'duetime.db'}"


def new_app(url: str, *keys: str) -> App:
    return App(url, user="anna", secret_keys=" ".join(keys)) if keys else App(url, user="anna")


@pytest.fixture
async def app(url: str, tmp_path: Path) -> AsyncIterator[App]:
    async with App(url, user="anna", secret_keys=NEW, output=str(tmp_path / "output")) as app:
        yield app


class Using:
    """A target spec and its target in one: it uses a secret, then does what the payload asks for, with all forms of the value."""

    kind = "using"
    direct_call = None

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []
        self.ended = asyncio.Event()

    def open(self, handler: HandlerSpec, host: TargetHost) -> Using:
        return self

    async def perform(self, attempt: AttemptHandle) -> Ended:
        payload = json.loads(attempt.claimed.payload)
        self.seen.append(await attempt.reveal(Secret(payload.get("secret", "billing"))))
        return await getattr(self, payload.get("does", "succeed"))(attempt)  # type: ignore[no-any-return]

    async def succeed(self, attempt: AttemptHandle) -> Ended:
        return Ended(Outcome.SUCCEEDED)

    async def tell(self, attempt: AttemptHandle) -> Ended:
        attempt.report(0.5, EVERYWHERE)
        print(EVERYWHERE)
        print(EVERYWHERE, file=sys.stderr)
        for form in FORMS:
            for character in form:
                print(character, end="", flush=True)
            print(" and", "x" * 10_000, form, end="")
            print("x" * 10_000 + form[:6], end="")
            print(form[6:], end="")
        sys.stdout.buffer.write(EVERYWHERE.encode())
        logging.getLogger("shop").warning("sent %s", EVERYWHERE)
        assert attempt.sink is not None
        attempt.sink.write(PLANTED.encode()[:5])
        attempt.sink.write(PLANTED.encode()[5:])
        return Ended(Outcome.SUCCEEDED, result=msgspec.json.encode({PLANTED: [PLANTED, {"all": EVERYWHERE}]}))

    async def report(self, attempt: AttemptHandle) -> Ended:
        attempt.report(0.5, EVERYWHERE)
        await self.ended.wait()
        return Ended(Outcome.SUCCEEDED)

    async def fail(self, attempt: AttemptHandle) -> Ended:
        return Ended(
            Outcome.FAILED,
            detail=msgspec.json.encode({"headers": {"x-token": EVERYWHERE}}),
            error=ErrorInfo("Status401", EVERYWHERE, EVERYWHERE, "billing.py:7"),
        )

    async def blow(self, attempt: AttemptHandle) -> Ended:
        try:
            raise KeyError(PLANTED)
        except KeyError as error:
            raise ValueError("x" * 1_900 + EVERYWHERE, PLANTED, PLANTED.encode()) from error

    async def wait(self, attempt: AttemptHandle) -> Ended:
        await asyncio.sleep(0)
        return await self.blow(attempt)

    async def hang(self, attempt: AttemptHandle) -> Ended:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            raise RuntimeError(EVERYWHERE) from None
        return Ended(Outcome.SUCCEEDED)

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        attempt.cancel()
        return 0.0


def declare(app: App, target: Using, *, timeout: float = 60.0) -> Any:
    once = RetryPolicy(tries=1)
    return app.register(HandlerSpec(name="charge", target=target, payloads=OpenPayloads("charge"), timeout=timeout, retry=once))


def dump(url: str) -> str:
    """Return all that is in the store's database, as text."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
            rows = [row for table in tables for row in connection.execute(f"select * from {table}")]
    else:
        address, _, schema = url.partition("?schema=")
        with psycopg.connect(address) as server:
            found = server.execute(
                "select table_name from information_schema.tables where table_schema = %s and table_type = 'BASE TABLE'", (schema,)
            )
            tables = [name for (name,) in found.fetchall()]
            rows = [row for table in tables for row in server.execute(f'select * from {schema}."{table}"'.encode()).fetchall()]
    assert len(rows) > 10
    return "\n".join(_text(value) for row in rows for value in row)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def files(folder: Path) -> dict[str, str]:
    """Return what is in all files of a folder."""
    return {str(file): file.read_bytes().decode("utf-8", "replace") for file in folder.rglob("*") if file.is_file()}


def refuse_planted(text: str, where: str) -> None:
    assert [form for form in FORMS if form in text] == [], f"found in {where}"


async def has(text: Awaitable[str]) -> bool:
    return bool(await text)


# ---- putting ----


async def test_a_secret_is_put_listed_without_its_value_and_deleted(app: App) -> None:
    info = await app.secrets.put("billing", PLANTED)
    assert (info.name, info.version, info.versions, info.key, info.readable) == ("billing", 1, 1, "2026b", True)
    assert (info.created_by, info.old_until_at) == ("anna", None)
    assert await app.secrets.list() == [info]
    refuse_planted(repr(info), "its description")
    await app.secrets.delete("billing")
    assert await app.secrets.list() == []
    with pytest.raises(SecretNotFound, match="there is no secret 'billing'; `duetime secrets` lists all"):
        await app.secrets.delete("billing")


async def test_another_value_is_another_version_and_the_former_one_stays_good_for_its_grace(app: App) -> None:
    first = await app.secrets.put("billing", "first-value")
    second = await app.secrets.put("billing", "second-value")
    assert (second.version, second.versions) == (2, 2)
    assert second.old_until_at is not None
    assert 86_399 <= (second.old_until_at - first.created_at).total_seconds() <= 86_400 + PATIENCE
    third = await app.secrets.put("billing", "third-value", grace=0)
    assert (third.version, third.versions, third.old_until_at) == (3, 1, None)


async def test_the_value_that_is_stored_changes_nothing_unless_former_ones_are_to_end(app: App) -> None:
    await app.secrets.put("billing", "first-value")
    second = await app.secrets.put("billing", "second-value")
    assert await app.secrets.put("billing", "second-value") == second
    ended = await app.secrets.put("billing", "second-value", grace=0)
    assert (ended.version, ended.versions) == (3, 1)


async def test_without_a_key_nothing_is_stored_and_the_message_says_what_to_do(url: str) -> None:
    async with new_app(url) as app:
        for call in (app.secrets.put("billing", PLANTED), app.secrets.rotate()):
            with pytest.raises(Conflict, match=r"without a key: make one with `duetime secrets new-key`.*DUETIME_SECRET_KEYS") as refused:
                await call
            refuse_planted(str(refused.value), "the message")
        assert await app.secrets.list() == []


@pytest.mark.parametrize(
    ("name", "value", "grace"),
    [("", "value", 0), ("a\nb", "value", 0), ("x" * 201, "value", 0), ("a", "", 0), ("a", "x" * 65_537, 0), ("a", "value", -1)],
)
async def test_what_is_out_of_bounds_is_refused(name: str, value: str, grace: float) -> None:
    async with new_app("sqlite:///:memory:", NEW) as app:
        with pytest.raises(InvalidValue):
            await app.secrets.put(name, value, grace=grace)
        assert await app.secrets.list() == []


async def test_hostile_names_large_values_and_every_script_come_back_as_they_were(app: App) -> None:
    names = ["'); drop table duetime_secret; --", "a/b?c#d%41", "../../etc/passwd", "名前 \N{SNOWMAN}\U0001f600", "x" * 200]
    target = Using()
    charge = declare(app, target)
    values = {name: f"{name} " + "\U0001f600" * (MAX_SECRET // 4 - 300) + "\r\n\x00 end" for name in names}
    for name, value in values.items():
        await app.secrets.put(name, value)
    assert [each.name for each in await app.secrets.list()] == sorted(names)
    async with app.worker():
        for name in names:
            await app.result(await charge.now(secret=name), timeout=PATIENCE)
    assert target.seen == [(values[name],) for name in names]


async def test_of_many_puts_at_once_each_is_a_version(url: str) -> None:
    async with new_app(url, NEW) as one, new_app(url, NEW) as other:
        await asyncio.gather(*((one, other)[index % 2].secrets.put("billing", f"value {index}") for index in range(8)))
        [info] = await one.secrets.list()
        assert (info.version, info.versions) == (8, 8)


async def test_former_versions_are_removed_when_they_have_ended(app: App) -> None:
    await app.secrets.put("billing", "first-value")
    await app.secrets.put("billing", "second-value", grace=0.001)
    await asyncio.sleep(0.002)
    await Pruner(app.store, Alarms(), {}).prune()
    assert await app.store.prune_secrets() == 0
    [[only]] = await app.store.sealed_secrets(["billing"])
    assert only.version == 2


# ---- keys ----


async def test_after_a_rotation_the_old_key_is_not_needed(url: str) -> None:
    async with new_app(url, OLD) as app:
        await app.secrets.put("billing", "first-value")
        await app.secrets.put("hook", "third-value")
    async with new_app(url, NEW, OLD) as app:
        await app.secrets.put("billing", "second-value")
        assert [each.key for each in await app.secrets.list()] == ["2026b", "2026a"]
        done = await app.secrets.rotate()
        assert (done.key, done.rotated, done.unreadable) == ("2026b", 2, []), "former versions too"
        assert (await app.secrets.rotate()).rotated == 0
    async with new_app(url, NEW) as app:
        assert [(each.key, each.readable) for each in await app.secrets.list()] == [("2026b", True)] * 2
        reader = app.secret_reader(app.store)
        assert (await reader.reveal("billing")).values == ("second-value", "first-value")
        assert (await reader.reveal("hook")).values == ("third-value",)


async def test_a_lost_key_is_told_and_the_secret_can_be_put_again(url: str) -> None:
    async with new_app(url, OLD) as app:
        await app.secrets.put("billing", "first-value")
    async with new_app(url, NEW) as app:
        target = Using()
        charge = declare(app, target)
        assert [each.readable for each in await app.secrets.list()] == [False]
        assert (await app.secrets.rotate()).unreadable == ["billing"]
        assert isinstance(app.secrets, LocalSecrets)
        assert "2026a" in (await app.secrets.unreadable())["billing"]
        async with app.worker():
            task = await charge.now()
            with pytest.raises(Exception, match="the secret 'billing' cannot be read: it was sealed with the key 2026a"):
                await app.result(task, timeout=PATIENCE)
            [attempt] = await app.attempts(task)
            assert attempt.outcome is Outcome.FATAL
            assert attempt.error is not None
            assert attempt.error.type == "SecretUnreadable"
            await app.secrets.put("billing", "second-value")
            await app.retry(task)
            await app.result(task, timeout=PATIENCE)
        assert target.seen == [("second-value",)]


async def test_rows_swapped_between_names_in_the_database_do_not_open(url: str) -> None:
    async with new_app(url, NEW) as app:
        await app.secrets.put("mine", "my-value")
        await app.secrets.put("other", "other-value")
        [mine], [other] = await app.store.sealed_secrets(["mine", "other"])
        swapped = [(mine, msgspec.structs.replace(mine, sealed=other.sealed)), (other, msgspec.structs.replace(other, sealed=mine.sealed))]
        assert await app.store.reseal_secrets(swapped) == [True, True]
        reader = app.secret_reader(app.store)
        for name in ("mine", "other"):
            with pytest.raises(SecretUnreadable, match="the stored row was changed"):
                await reader.reveal(name)
        assert isinstance(app.secrets, LocalSecrets)
        assert sorted(await app.secrets.unreadable()) == ["mine", "other"]


@pytest.mark.slow
async def test_rotation_under_load_loses_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While keys are rotated and secrets put by processes with the old and the new first key, every attempt reads a value."""
    monkeypatch.setattr(reading, "KEEP", 0.0)
    rounds, names = 12, [f"secret-{index}" for index in range(6)]
    async with new_app(url, OLD, NEW) as older, new_app(url, NEW, OLD) as newer:
        target = Using()
        charge = declare(newer, target)
        for name in names:
            await older.secrets.put(name, f"{name} 0")

        async def put(app: App, parity: int) -> None:
            for number in range(1, rounds):
                for name in names[parity::2]:
                    await app.secrets.put(name, f"{name} {number}")

        async def rotate() -> int:
            return sum([(await newer.secrets.rotate()).rotated for _ in range(rounds)])

        async with newer.worker():
            tasks = [await charge.now(secret=name) for _ in range(30) for name in names]
            _, _, rotated = await asyncio.gather(put(older, 0), put(newer, 1), rotate())
            for task in tasks:
                await newer.result(task, timeout=PATIENCE)
        assert rotated > 0
        assert (await newer.secrets.rotate()).unreadable == []
    async with new_app(url, NEW) as app:
        reader = app.secret_reader(app.store)
        for name in names:
            values = (await reader.reveal(name)).values
            assert values == tuple(f"{name} {number}" for number in reversed(range(rounds)))[:10]
    assert len(target.seen) == len(tasks)


# ---- using ----


async def test_an_attempt_gets_all_live_values_the_newest_first(app: App) -> None:
    target = Using()
    charge = declare(app, target)
    await app.secrets.put("billing", "first-value")
    async with app.worker():
        await app.result(await charge.now(), timeout=PATIENCE)
        await app.secrets.put("billing", "second-value")
        while len(target.seen[-1]) == 1:
            await app.result(await charge.now(), timeout=PATIENCE)
            await asyncio.sleep(0.05)
    assert target.seen[0] == ("first-value",)
    assert target.seen[-1] == ("second-value", "first-value")


async def test_a_missing_secret_ends_the_task_with_what_to_do(app: App) -> None:
    charge = declare(app, Using())
    async with app.worker():
        task = await charge.now(secret="nothing")
        with pytest.raises(Exception, match="there is no secret 'nothing'; put it with `duetime secrets put`"):
            await app.result(task, timeout=PATIENCE)
        assert [attempt.outcome for attempt in await app.attempts(task)] == [Outcome.FATAL]


@pytest.mark.parametrize("does", ["tell", "fail", "blow", "wait", "hang"])
async def test_a_value_is_found_nowhere_after_an_attempt_that_used_it(
    app: App, url: str, tmp_path: Path, does: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    target = Using()
    charge = declare(app, target, timeout=0.2 if does == "hang" else 60)
    await app.secrets.put("billing", PLANTED)
    printed: list[str] = []
    async with app.worker(echo=lambda line: printed.append(line.line)):
        tasks = [await charge.now(does=does)]
        with suppress(TaskFailed):
            await app.result(tasks[0], timeout=PATIENCE)
        tasks += [await charge.now(does=does)]  # this one finds the value in memory, so it does not wait for the store
        with suppress(TaskFailed):
            await app.result(tasks[1], timeout=PATIENCE)
    assert target.seen == [(PLANTED,)] * 2
    for task in tasks:
        ended = await app.get(task)
        assert ended.state is (State.SUCCEEDED if does == "tell" else State.FAILED)
        attempts, output = await app.attempts(task), await app.output.read(task)
        shown = repr((ended, attempts, await app.why(task), output, await app.secrets.list()))
        assert "***" in shown, "there was something to blank"
        refuse_planted(shown, "what the App shows")
        refuse_planted(msgspec.json.encode((ended, attempts, output)).decode(), "JSON")
    refuse_planted(dump(url), "the store")
    refuse_planted("\n".join(printed), "what is passed on")
    captured = capfd.readouterr()
    refuse_planted(captured.out + captured.err, "the process's own streams")
    for name, text in files(tmp_path).items():
        refuse_planted(text, name)
    for record in caplog.records:
        if record.name != "shop":  # of code that logs it through a handler of its own, which is not Duetime's
            refuse_planted(f"{record.getMessage()} {record.__dict__!r} {record.exc_text}", f"the log of {record.name}")
            refuse_planted(logging.Formatter().format(record), "a formatted record")


async def test_a_value_is_blanked_in_the_progress_that_is_shown_while_an_attempt_runs(app: App) -> None:
    target = Using()
    charge = declare(app, target)
    await app.secrets.put("billing", PLANTED)
    async with app.worker():
        task = await charge.now(does="report")

        async def shown() -> str:
            return (await app.get(task)).progress_text

        await until(lambda: has(shown()), "the progress is shown")
        assert "***" in await shown()
        refuse_planted(await shown(), "the progress")
        target.ended.set()
        await app.result(task, timeout=PATIENCE)


async def test_an_attempt_that_uses_no_secret_is_left_as_it_is(app: App) -> None:
    await app.secrets.put("billing", PLANTED)

    @app.task
    async def echo(text: str) -> str:
        print(text)
        return text

    async with app.worker():
        task = await echo.now(text=PLANTED)
        assert await app.result(task, timeout=PATIENCE) == PLANTED
    [output] = await app.output.read(task)
    assert output.text == f"{PLANTED}\n"


# ---- the testing kit ----


async def test_in_a_test_secrets_are_plain_values_that_need_no_key() -> None:
    app, target = App("sqlite:///:memory:"), Using()
    charge = declare(app, target)
    async with using(app) as t:
        t.secrets["billing"] = PLANTED
        task = await charge.now(does="fail")
        [ran] = await t.drain()
        assert ran.outcome is Outcome.FAILED
        refuse_planted(repr(t.task(task)), "the task")
        await charge.now(secret="nothing")
        [ran] = await t.drain()
        assert ran.outcome is Outcome.FATAL
        assert "there is no secret 'nothing'" in str(ran.error)
        assert 't.secrets["name"] = "value"' in str(ran.error)
    assert target.seen[0] == (PLANTED,)


def test_a_wrong_key_is_refused_by_the_name_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_SECRET_KEYS", "2026a:c2hvcnQ=")
    with pytest.raises(InvalidValue, match="DUETIME_SECRET_KEYS: the key 2026a is not 32 bytes in base64"):
        App("sqlite:///:memory:")
    monkeypatch.setenv("DUETIME_SECRET_KEYS", NEW)
    assert NEW not in repr(App("sqlite:///:memory:").config)
