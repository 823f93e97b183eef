"""Files to keep: the whole log of a task, and the tasks of a query, for those who may see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from duetime import App, Context, RetryPolicy
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader, dashboard


async def test_the_whole_log_is_a_file_of_text() -> None:
    app = App("sqlite:///:memory:")

    @app.task(retry=RetryPolicy(tries=2, base=0, jitter=0))
    async def talk(ctx: Context) -> None:
        for number in range(3_000):
            print(f"<b>line {number}</b>")
        if ctx.attempt == 1:
            raise ValueError("once more")

    async with dashboard(app) as ui, app.worker(grace=0.1):
        task = await talk.now()
        await app.client.wait(task.id, timeout=PATIENCE)
        page = await ui(f"/tasks/{task.id}")
        assert "line 2999" in page
        assert "line 0<" not in page, "a page has the last 2,000 lines"
        headers, text = await ui.whole(f"/tasks/{task.id}/log")
        assert headers["content-type"] == "text/plain; charset=utf-8"
        assert headers["content-disposition"].startswith("attachment")
        assert headers["x-content-type-options"] == "nosniff"
        assert text.count("<b>line 0</b>\n") == 2
        assert text.index("==> attempt 1") < text.index("==> attempt 2")
        _, second = await ui.whole(f"/tasks/{task.id}/log?attempt=2")
        assert second == "".join(f"<b>line {number}</b>\n" for number in range(3_000))


async def test_tasks_are_exported_as_lines_of_json(signed: Callable[..., Any], app: App) -> None:
    await app.submit_many([app.handler("mail.send").new(to="a", template="b").after(3_600) for _ in range(1_500)])
    other = await app.handler("orders.expire").after(3_600, order_id=7)
    reader: Reader = await signed("rita", scopes=["read"])
    headers, text = await reader.whole("/tasks.ndjson?q=handler:mail.send")
    assert headers["content-disposition"] == "attachment; filename*=UTF-8''tasks.ndjson"
    found = [json.loads(line) for line in text.splitlines()]
    assert len({each["id"] for each in found}) == 1_500
    assert {each["handler"] for each in found} == {"mail.send"}
    restricted: Reader = await signed("paula", scopes=["read"], handlers=["mail.send"])
    assert other.id not in await restricted("/tasks.ndjson")
    await restricted("/tasks.ndjson?q=handler:orders.expire", status=403)
    await restricted(f"/tasks/{other.id}/log", status=404)
