"""The pages of failures: kinds and one kind, run again, muted, and seen only by those who may."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Callable
from typing import Any

import pytest

from duetime import App, Fatal, State, TaskFailed
from duetime.client.operations import OperationInfo
from duetime.model.operation import Canary
from duetime.web.pages import failure as failure_page
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader

HOSTILE = '<script>alert("{{ 7 * 7 }}")</script>'


async def fail(app: App, *orders: int) -> str:
    """Let charges fail; return the fingerprint of their kind."""
    tasks = [await app.handler("payments.charge").options(collection="eu").now(order_id=order, cents=100) for order in orders]
    async with app.worker(grace=0.1):
        for task in tasks:
            with contextlib.suppress(TaskFailed):
                await app.result(task, timeout=PATIENCE)
    stored = await app.get(tasks[0].id)
    assert stored.error is not None
    return stored.error.fingerprint


async def test_without_a_failure_the_page_says_so(ui: Reader) -> None:
    page = await ui("/failures")
    assert "No failure in the last 24 hours" in page
    assert "None has been seen at all" in page


async def test_kinds_lead_to_their_page_and_from_there_to_their_tasks(ui: Reader, app: App) -> None:
    fingerprint = await fail(app, 4, 8, 12)
    page = await ui("/failures")
    assert f"/ui/failures/{fingerprint}" in page
    assert "payment gateway: connection reset by peer" in page
    assert "1 kind in the last 24 hours: 3 tasks failed for good, 3 attempts failed." in page
    assert "No failure in the last 24 hours" in await ui("/failures?handler=mail.send")
    assert 'payments.charge: payment gateway: connection reset by peer</span></span><span class="at">3 ×' in await ui("/")
    kind = await ui(f"/failures/{fingerprint}?range=7d")
    found = [task.id async for task in app.tasks(fingerprint=fingerprint)]
    assert len(found) == 3
    assert all(f"/ui/tasks/{each}" in kind for each in found)
    assert "raise ConnectionError" in html.unescape(kind), "with a traceback"
    assert f"/ui/failures/{fingerprint}" in await ui(f"/tasks/{found[0]}"), "and back from a task"
    assert found[0] in await ui(f"/tasks?q=fingerprint:{fingerprint}")


@pytest.mark.each_store
@pytest.mark.covers("AIR.10")
async def test_one_is_tried_and_all_are_run_again(ui: Reader, app: App) -> None:
    fingerprint = await fail(app, 4, 8, 12)
    newest = (await app.client.page(query(fingerprint))).items[0].id
    headers, _ = await ui.whole(f"/failures/{fingerprint}", form={"do": "try"}, status=303)
    assert headers["location"].endswith(f"/ui/tasks/{newest}")
    assert (await app.get(newest)).state is State.PENDING
    await ui(f"/failures/{fingerprint}", form={"do": "retry"}, status=303)
    assert "Started, 2 to run again: 2 tasks, one batch after the other." in await ui(f"/failures/{fingerprint}")
    [begun] = await begun_in(app)
    assert (begun.verb, begun.rate, begun.canary) == ("retry", None, None)
    assert (await app.operations.wait(begun, timeout=PATIENCE)).answers == {"changed": 2}
    assert [task async for task in app.tasks(fingerprint=fingerprint)] == []
    assert "None is stored: they were run again" in await ui(f"/failures/{fingerprint}")


async def test_a_replay_takes_its_rate_its_canary_and_its_time_from_the_dialog(ui: Reader, app: App) -> None:
    fingerprint = await fail(app, 4, 8, 12)
    page = await ui(f"/failures/{fingerprint}")
    assert "1 task first, then 1 (1 %), then the other 1" in page, "the plan is told before"
    form = {"do": "retry", "rate": "0.5", "canary": "on", "stop": "0", "since": "24h"}
    await ui(f"/failures/{fingerprint}", form=form, status=303)
    [begun] = await begun_in(app)
    assert (begun.rate, begun.canary) == (0.5, Canary(failed=0))
    assert {"fingerprint", "state", "finished_after"} == begun.filter.keys()
    page = await ui(f"/failures/{fingerprint}")
    assert "at most 0.5 a second; it stops when more than 0 % of a stage fail again" in page
    assert "canary of one task" in page, "its progress is on the page"
    assert (await app.operations.stop(begun)).state == "stopped"


async def test_a_replay_with_a_canary_that_fails_again_leaves_the_rest_alone(ui: Reader, app: App) -> None:
    fingerprint = await fail(app, 4, 8, 12)
    async with app.worker(grace=0.1):
        await ui(f"/failures/{fingerprint}", form={"do": "retry", "canary": "on"}, status=303)
        [begun] = await begun_in(app)
        ended = await app.operations.wait(begun, timeout=PATIENCE)
    assert (ended.state, ended.matched) == ("stopped", 1)
    page = await ui(f"/failures/{fingerprint}")
    assert "1 task run again" in page
    assert "canary: 1 of 1 tasks failed again; the rest was left alone" in page


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"rate": "fast"}, "rate must be a number"),
        ({"rate": "-1"}, "rate must be more than 0"),
        ({"canary": "on", "stop": "100"}, "failed from 0 to below 100"),
        ({"since": "1y"}, "since is empty for all, or one of 1h, 24h, 7d"),
    ],
)
async def test_a_replay_that_cannot_be_meant_is_refused(ui: Reader, app: App, field: dict[str, str], said: str) -> None:
    fingerprint = await fail(app, 4)
    await ui(f"/failures/{fingerprint}", form={"do": "retry", **field}, status=303)
    assert said in await ui(f"/failures/{fingerprint}")
    assert await begun_in(app) == []


async def test_somebody_with_a_token_for_some_handlers_sees_the_replay_that_they_started(signed: Callable[..., Any], app: App) -> None:
    teller = await signed("teller", handlers=["payments.*"])
    fingerprint = await fail(app, 4)
    await teller(f"/failures/{fingerprint}", form={"do": "retry"}, status=303)
    assert fingerprint in await teller("/operations")


async def test_a_thousand_tasks_are_run_again_only_if_their_number_is_typed(ui: Reader, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_page, "TYPED_ABOVE", 2)
    fingerprint = await fail(app, 4, 8, 12)
    assert 'name="typed"' in await ui(f"/failures/{fingerprint}")
    await ui(f"/failures/{fingerprint}", form={"do": "retry", "typed": "2"}, status=303)
    assert "type 3 to run more than 2 tasks again" in await ui(f"/failures/{fingerprint}")
    assert await begun_in(app) == []
    await ui(f"/failures/{fingerprint}", form={"do": "retry", "typed": "3"}, status=303)
    assert len(await begun_in(app)) == 1


async def begun_in(app: App) -> list[OperationInfo]:
    return [each async for each in app.operations.list()]


def query(fingerprint: str) -> Any:
    from duetime.model.query import Query

    return Query(fingerprint=fingerprint, state=State.FAILED)


async def test_a_kind_is_muted_and_left_out_until_it_is_asked_for(ui: Reader, app: App) -> None:
    fingerprint = await fail(app, 4)
    await ui(f"/failures/{fingerprint}", form={"do": "mute", "lasting": "7d"}, status=303)
    assert "muted by" in await ui(f"/failures/{fingerprint}")
    page = await ui("/failures")
    assert fingerprint not in page
    assert "But 1 that is muted." in page
    assert fingerprint in await ui("/failures?muted=yes")
    await ui(f"/failures/{fingerprint}", form={"do": "unmute"}, status=303)
    assert fingerprint in await ui("/failures")
    await ui(f"/failures/{fingerprint}", form={"do": "mute", "lasting": "soon"}, status=303)
    assert "such as 15min" in await ui(f"/failures/{fingerprint}")


async def test_unknown_kinds_are_not_found(ui: Reader) -> None:
    assert "no failure with the fingerprint" in await ui(f"/failures/{'0' * 16}", status=404)
    await ui("/failures/x", status=422)


@pytest.mark.parametrize("do", ["try", "retry", "mute", "unmute"])
async def test_somebody_who_reads_is_offered_nothing_and_somebody_with_other_handlers_sees_nothing(
    signed: Callable[..., Any], app: App, do: str
) -> None:
    reader, mailer = await signed("reader", scopes=["read"]), await signed("mailer", handlers=["mail.*"])
    fingerprint = await fail(app, 4)
    page = await reader(f"/failures/{fingerprint}")
    assert 'name="do"' not in page
    await reader(f"/failures/{fingerprint}", form={"do": do, "lasting": "1d"}, status=403)
    assert "payments" not in await mailer("/failures")
    assert "payments" not in await mailer(f"/failures/{fingerprint}", status=404)
    assert (await app.failures.get(fingerprint)).muted_until_at is None
    await mailer.whole(f"/failures/{fingerprint}", form={"do": do, "lasting": "1d"}, status=303)
    assert (await app.failures.get(fingerprint)).muted_until_at is None
    assert len([task async for task in app.tasks(fingerprint=fingerprint)]) == 1, "nothing was run again"


async def test_what_an_error_says_is_text(ui: Reader, app: App) -> None:
    @app.task(name="hostile")
    async def hostile() -> None:
        raise Fatal(HOSTILE)

    task = await app.handler("hostile").now()
    async with app.worker(grace=0.1):
        with contextlib.suppress(TaskFailed):
            await app.result(task, timeout=PATIENCE)
    [group] = await app.failures.list()
    for page in (await ui("/failures"), await ui(f"/failures/{group.fingerprint}")):
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in page
