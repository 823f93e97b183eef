"""Commands in tests: no process is started, the test says how each ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from duetime import App, RetryPolicy, State, testing
from duetime.errors import InvalidValue
from duetime.testing import UnansweredRequest


@dataclass
class Backup:
    name: str
    level: int = 3


app = App("sqlite:///:memory:", user="test")
back_up = app.command(
    "back-up",
    ["no-such-program", "-d", "{payload.name}", "--level={payload.level}"],
    payload=Backup,
    result=int,
    env={"PGUSER": "backup"},
    keep_env=[],
    exits={3: "fatal"},
    retry=RetryPolicy(tries=2, base=10),
)


async def test_a_command_is_not_run_but_noted() -> None:
    async with testing.using(app) as t:
        t.answer_next(back_up, output="1 table\n", result=1)
        task = await back_up.now(name="shop; rm -rf /")
        [ran] = await t.drain()
        assert await app.result(task) == 1
        [sent] = t.requests(back_up)
    assert (ran.task.state, ran.task.id) == (State.SUCCEEDED, sent.task)
    assert sent.argv == ("no-such-program", "-d", "shop; rm -rf /", "--level=3")
    assert sent.env.items() >= {"PGUSER": "backup", "DUETIME_TASK": task.id, "DUETIME_ATTEMPT": "1"}.items()
    assert sent.env.keys() == {"PGUSER", "DUETIME_TASK", "DUETIME_ATTEMPT", "DUETIME_FENCE", "DUETIME_DEADLINE"}
    assert sent.json == {"name": "shop; rm -rf /", "level": 3}


async def test_exit_codes_and_signals_end_attempts() -> None:
    async with testing.using(app) as t:
        t.answer_next(back_up, exit=1, output="the disk is full\n")
        t.answer_next(back_up, exit=-9)
        task = await back_up.now(name="shop")
        await t.advance(timedelta(minutes=1))
        assert t.task(task).state is State.FAILED
        first, second = await app.attempts(task)
        assert first.error is not None
        assert second.error is not None
        assert (first.error.message, first.error.traceback) == ("exit code 1", "the disk is full\n")
        assert second.error.message == "killed by signal 9 (SIGKILL)"
        assert first.detail is not None
        assert first.detail["exit_code"] == 1


async def test_75_comes_again_in_a_minute_and_uses_up_no_try() -> None:
    async with testing.using(app) as t:
        t.answer_next(back_up, exit=75)
        task = await back_up.now(name="shop")
        await t.drain()
        assert (t.task(task).state, t.task(task).tries) == (State.PENDING, 0)
        t.answer_next(back_up, result=2)
        await t.advance(minutes=1)
        assert t.task(task).state is State.SUCCEEDED


async def test_a_fatal_exit_is_not_tried_again() -> None:
    async with testing.using(app) as t:
        t.answer_next(back_up, exit=3)
        task = await back_up.now(name="shop")
        await t.advance(hours=1)
        assert t.task(task).state is State.FAILED
        assert len(t.requests(back_up)) == 1


async def test_a_command_without_an_answer_fails_the_test_by_name() -> None:
    async with testing.using(app) as t:
        await back_up.now(name="shop")
        with pytest.raises(UnansweredRequest, match=r"back-up ran no-such-program -d shop --level=3 .*answer_next\(back-up, exit=0\)"):
            await t.drain()


async def test_answers_must_fit_the_handler() -> None:
    async with testing.using(app) as t:
        with pytest.raises(InvalidValue, match="back-up is a command: answer it with exit, output and result"):
            t.answer_next(back_up, status=200)
        with pytest.raises(InvalidValue, match="from 0 to 255"):
            t.answer_next(back_up, exit=256)


async def test_middleware_runs_around_a_command() -> None:
    from duetime import Context, Next

    own = App("sqlite:///:memory:", user="test")
    lists = own.command("lists", ["ls"], retry=RetryPolicy.none())
    seen: list[str] = []

    @own.middleware
    async def notes(ctx: Context, call_next: Next) -> object:
        try:
            value = await call_next()
        except Exception as error:
            seen.append(f"raised {error}")
            raise
        seen.append(f"returned {value}")
        return value

    async with testing.using(own) as t:
        t.answer_next(lists, result=[1])
        t.answer_next(lists, exit=4)
        for _ in range(2):
            await lists.now()
            await t.drain()
    assert seen == ["returned [1]", "raised exit code 4"]


async def test_a_command_that_runs_an_artifact_needs_none_in_a_test() -> None:
    app = App("sqlite:///:memory:")
    report = app.command("report", artifact="monthly@3")
    told = app.command("told", ["python", "{artifact}"], artifact="monthly")
    async with testing.using(app) as t:
        t.answer_next(report, exit=0)
        t.answer_next(told, exit=0)
        await report.now()
        await told.now()
        await t.drain()
        assert [each.argv for each in t.requests(report)] == [("/artifacts/monthly@3",)]
        assert [each.argv for each in t.requests(told)] == [("python", "/artifacts/monthly")]


async def test_artifacts_that_a_test_puts_and_deletes_are_not_those_of_the_app(tmp_path: Path) -> None:
    """A test that deletes a version must not take the same bytes from production, whose versions the test's store does not know."""
    script = tmp_path / "report.sh"
    script.write_text("#!/bin/sh\n")
    real = tmp_path / "real"
    app = App("sqlite:///:memory:", artifacts=real.as_uri())
    async with app:
        kept = await app.artifacts.put("monthly", script)
        async with testing.using(app):
            assert await app.artifacts.list() == []
            assert (await app.artifacts.put("monthly", script)).sha256 == kept.sha256
            script.write_text("#!/bin/sh\necho another\n")
            another = await app.artifacts.put("monthly", script)
            assert (await app.artifacts.get("monthly")).version == 2
            await app.artifacts.delete("monthly@1")
        assert [each.name for each in (real / "sha256").iterdir()] == [kept.sha256]
        assert another.sha256 != kept.sha256
        assert [str(each) for each in await app.artifacts.list()] == [str(kept)]
