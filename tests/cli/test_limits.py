"""Limits on the command line: what may run at once, changed and reset."""

from __future__ import annotations

import asyncio

from duetime import App
from duetime.model.limit import Ask
from duetime.store.values import NewWorker
from tests.cli.conftest import CommandLine, Shop


def test_limits_are_listed_shown_changed_and_reset(duetime: CommandLine, shop: Shop) -> None:
    assert duetime("limits").stderr.strip() == "no worker has declared a limit"

    async def declare() -> None:
        async with App(duetime.url) as app:
            (await app.store.register(NewWorker(id="worker-1", host="here", pid=1, slots={"sync": 9}))).close()
            await app.store.allot("worker-1", 1, [Ask(limit="erp", declared=4, uses={"sync": 1}, held=0, want=0, need=2)])

    asyncio.run(declare())
    [listed] = duetime.json("limits")["items"]
    assert (listed["name"], listed["running"], listed["lacking"], listed["handlers"]) == ("erp", 4, 2, {"sync": 1})
    assert listed == duetime.json("limits", "show", "erp") == duetime.json("limits", "list")["items"][0]
    told = duetime("limits", "put", "erp", "--running", "2", "--for", "1h", "--note", "ERP maintenance").stdout
    assert told.startswith("erp allows 2 until ")
    shown = duetime("limits", "show", "erp").stdout
    assert "at most 2 (declared: 4)" in shown
    assert "ERP maintenance" in shown
    assert duetime.json("limits", "put", "erp", "--running", "3")["in_force"] is True
    assert duetime("limits", "reset", "erp").stdout.strip() == "erp allows 4, as declared"
    assert "did you mean erp?" in duetime("limits", "put", "erpp", "--running", "1", code=3).stderr
    assert "there is no limit 'nobody'" in duetime("limits", "reset", "nobody", code=3).stderr
    assert "to stop work, use a gate" in duetime("limits", "put", "erp", "--running", "0", code=2).stderr
    assert {"limits.put", "limits.reset"} == {each["action"] for each in duetime.json("audit")["items"]}
