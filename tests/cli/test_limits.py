"""Limits on the command line: what may run at once, changed and reset."""

from __future__ import annotations

import asyncio

from duetime import App
from duetime.model.limit import Ask, CountedLimit, RateRule
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


def test_partitions_and_rates(duetime: CommandLine, shop: Shop) -> None:
    async def declare() -> None:
        async with App(duetime.url) as app:
            rule = RateRule(10, 1_000_000)
            await app.store.declare_counted(["sync"], [CountedLimit(name="vendor", running=3, uses={"sync": 1}, by="user", rates=[rule])])

    asyncio.run(declare())
    assert duetime("limits", "partitions", "vendor").stderr.strip() == "nothing runs or waits under this limit"
    assert duetime("limits", "put", "vendor", "--running", "5", "--partition", "7").stdout.startswith(
        "vendor for 7 allows 5 until it is reset"
    )
    [there] = duetime.json("limits", "partitions", "vendor")["items"]
    assert (there["partition"], there["own"], there["parked"]) == ("7", 5, 0)
    told = duetime("limits", "put", "vendor", "--rate", "2/1m", "--rate", "100/day", "--burst", "4").stdout
    assert told.startswith("vendor allows 3 and 2/60s, burst 4 and 100/day by user until it is reset")
    assert "at most 3 and 2/60s, burst 4 and 100/day by user" in duetime("limits", "show", "vendor").stdout
    assert "a number and a time such as 10/1s" in duetime("limits", "put", "vendor", "--rate", "fast", code=2).stderr
    assert "give running=" in duetime("limits", "put", "vendor", code=2).stderr
    assert duetime("limits", "reset", "vendor", "--partition", "7").stdout.strip().endswith("for 7 as well")
