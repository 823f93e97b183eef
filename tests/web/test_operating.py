"""A day at the dashboard: what people who operate other systems are used to do there, and what it refuses."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Callable
from typing import Any

import pytest

from duetime import App, State, TaskFailed, TaskNotFound
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader, dashboard, ids_in


async def failed_charge(app: App, order_id: int = 4) -> str:
    """Let a charge fail; return its id."""
    task = await app.handler("payments.charge").now(order_id=order_id, cents=100)
    async with app.worker(grace=0.1):
        with contextlib.suppress(TaskFailed):
            await app.result(task, timeout=PATIENCE)
    return task.id


def buttons(page: str) -> set[str]:
    """Return the actions that a page offers."""
    return {part.partition('"')[0] for part in page.split('name="do" value="')[1:]}


@pytest.mark.covers("HF.8")
async def test_tasks_are_run_again_and_deleted_by_those_who_may_and_nobody_else(signed: Callable[..., Any], app: App) -> None:
    task = await failed_charge(app)
    olga, eve = await signed("olga"), await signed("eve", scopes=["read"])
    mailer = await signed("mailer", handlers=["mail.*"])
    stranger = Reader(olga.session, olga.url)
    assert {"retry", "delete"} <= buttons(await olga(f"/tasks/{task}"))
    assert buttons(await eve(f"/tasks/{task}")) == set()
    await mailer(f"/tasks/{task}", status=404)
    for do in ("retry", "delete"):
        await eve(f"/tasks/{task}", form={"do": do}, status=403)
        await mailer(f"/tasks/{task}", form={"do": do}, status=303)  # with the sentence that there is no such task
        assert (await app.get(task)).state is State.FAILED
    await olga(f"/tasks/{task}", form={"do": "retry"}, status=303)
    again = await app.get(task)
    assert (again.state, again.attempt) == (State.PENDING, 1), "attempts go on where they were"
    await olga(f"/tasks/{task}", form={"do": "delete"}, status=303)
    with pytest.raises(TaskNotFound):
        await app.get(task)
    await stranger.whole("/sign-out", form={}, status=303)
    await stranger("/tasks", status=303)  # to the sign-in
    entries = (await app.tokens.audit.list(subject=task)).items
    assert {(each.by, each.action, each.outcome.value) for each in entries} >= {
        ("olga", "tasks.retry", "done"),
        ("olga", "tasks.delete", "done"),
    }


@pytest.mark.covers("RSQ.6")
async def test_pages_show_what_waits_who_works_what_failed_and_how_much(ui: Reader, app: App) -> None:
    await failed_charge(app)
    await app.submit_many([app.handler("mail.send").new(to="ada", template=str(number)) for number in range(3)])
    async with app.worker(handlers=["orders.expire"]):
        [worker] = await app.workers()
        assert f"/ui/workers/{worker.id}" in await ui("/workers")
        page = await ui(f"/workers/{worker.id}")
        assert worker.host in page
        assert "orders.expire" in page
    waiting = (await ui("/handlers")).split('data-key="mail.send"')[1].partition("</tr>")[0]
    assert 'data-label="due">3<' in waiting
    assert "payment gateway: connection reset by peer" in await ui("/failures")
    overview = await ui("/")
    for figure in ("Attempts a second", "Due now", "Oldest due", "Running", "Failed", "Workers"):
        assert f'class="caption">{figure}<' in overview
    due = overview.split('class="caption">Due now<')[1].partition("</li>")[0]
    assert ">3</a>" in due


async def test_a_task_links_to_its_trace_where_somebody_has_said_where_that_is(url: str) -> None:
    trace, shown = "0af7651916cd43dd8448eb211c80319c", []
    chosen: list[dict[str, Any]] = [{"trace_url": "https://traces.example/t/{trace}"}, {}]
    for settings in chosen:
        app = App(url, **settings)
        async with app, dashboard(app) as ui:
            meta = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
            with_trace = await app.handler("x").options(meta=meta, allow_unknown=True).after(60)
            hostile = await app.handler("x").options(meta={"traceparent": '"><script>'}, allow_unknown=True).after(60)
            shown.append(f'href="https://traces.example/t/{trace}"' in await ui(f"/tasks/{with_trace.id}"))
            assert "traces.example" not in await ui(f"/tasks/{hostile.id}")
    assert shown == [True, False]


async def test_a_copy_is_run_with_another_payload_and_leads_to_its_origin(signed: Callable[..., Any], app: App) -> None:
    olga = await signed("olga")
    expire = app.handler("orders.expire").options(key="order-7", collection="eu", timeout=9)
    task = await expire.after(3_600, order_id=7)
    headers, _ = await olga.whole(f"/tasks/{task.id}", form={"do": "copy", "payload": '{"order_id": 8}'}, status=303)
    copy = await app.get(headers["location"].rpartition("/")[2])
    assert (copy.payload["order_id"], copy.collection, copy.timeout, copy.key, copy.submitted_by) == (8, "eu", 9, None, "olga")
    page = await olga(f"/tasks/{copy.id}")
    assert f'href="/ui/tasks/{task.id}"' in page
    [same] = re.findall(r'href="/ui(/tasks\?q=[^"]+)">all with this key', await olga(f"/tasks/{task.id}"))
    assert task.id in ids_in(await olga(html.unescape(same)))
    assert "all with this key" not in page
    await olga(f"/tasks/{task.id}", form={"do": "copy", "payload": "[8]"}, status=303)
    assert "payload must be a JSON object" in await olga(f"/tasks/{task.id}")
    assert (await app.count(handler="orders.expire")).count == 2
