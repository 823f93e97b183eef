"""The pages of flows: where each one is and why, its nodes and their tasks, and cancelling and retrying it as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duetime import App, Fatal
from duetime.web.pages import flows
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader, dashboard, ids_in


async def test_flows_are_listed_by_state_and_name_and_lead_to_their_pages(ui: Reader, app: App) -> None:
    handler = app.handler
    first = await app.chain(handler("mail.send").new(to="a", template="b"), handler("orders.expire").new(order_id=1), name="welcome")
    second = await app.chain(handler("orders.expire").new(order_id=2), name="expiry")
    await app.flows.cancel(second)
    page = await ui("/flows")
    assert f'href="/ui/flows/{first.id}"' in page
    assert f'href="/ui/flows/{second.id}"' in page
    assert "0 of 1 task ended" in page, "what the node that runs says"
    assert first.id not in await ui("/flows?state=cancelled")
    assert second.id not in await ui("/flows?name=welcome")
    assert "No flow matches" in await ui("/flows?name=other")
    assert "state must be one of" in await ui("/flows?state=red", status=422)


async def test_a_flow_says_where_it_is_and_shows_the_tasks_of_each_node(ui: Reader, app: App) -> None:
    handler = app.handler
    flow = await app.group(
        [handler("orders.expire").new(order_id=number) for number in range(flows.MEMBERS + 1)],
        succeeded=handler("mail.send").new(to="a", template="done"),
        name="expiry",
    )
    group, after = flow.nodes
    page = await ui(f"/flows/{flow.id}")
    assert "0 of 27 tasks have ended" in page
    assert len(ids_in(page)) == flows.MEMBERS
    assert f'href="/ui/flows/{flow.id}?node={group.name}"' in await ui(f"/tasks/{ids_in(page)[0]}"), "and back"
    assert "first=25" in page
    assert len(ids_in(await ui(f"/flows/{flow.id}?node={group.name}&first=25"))) == 1
    page = await ui(f"/flows/{flow.id}?node={after.name}")
    assert "No task of it is made yet" in page
    assert f"{group.name} succeeded" in page, "what it waits for"
    assert "has no node" in await ui(f"/flows/{flow.id}?node=other", status=422)


async def test_a_flow_that_failed_is_retried_as_a_whole(url: str) -> None:
    app, broken = App(url), True

    @app.task
    async def charge(order: int) -> int:
        if broken:
            raise Fatal("the bank is away")
        return order

    async with dashboard(app) as ui, app.worker(grace=0.1):
        flow = await app.chain(charge.new(7), charge.new(8), name="pay")
        await app.flows.wait(flow, timeout=PATIENCE)
        page = await ui(f"/flows/{flow.id}")
        assert "the bank is away" in page, "the task that failed is shown without asking for its node"
        assert "1 without success" in page
        broken = False
        await ui(f"/flows/{flow.id}", form={"do": "retry"}, status=303)
        assert (await app.flows.wait(flow, timeout=PATIENCE)).state == "succeeded"
        assert 'value="retry"' not in await ui(f"/flows/{flow.id}")
        await ui(f"/flows/{flow.id}", form={"do": "cancel"}, status=303)
        assert "cannot be cancelled" in await ui(f"/flows/{flow.id}")


async def test_a_flow_is_acted_on_only_by_those_who_may_operate_all_its_handlers(signed: Callable[..., Any], app: App) -> None:
    handler = app.handler
    flow = await app.chain(handler("mail.send").new(to="a", template="b"), handler("orders.expire").new(order_id=1))
    some = await signed("some", handlers=["mail.*"])
    reads = await signed("reads", scopes=["read"])
    await some(f"/flows/{flow.id}", status=404)
    own = next(each for each in (await app.flows.members(flow, flow.nodes[0].name)))
    page = await some(f"/tasks/{own.task}")
    assert flow.id not in page, "nor does a task of theirs lead to it"
    assert f'href="/ui/flows/{flow.id}' in await reads(f"/tasks/{own.task}")
    await some(f"/flows/{flow.id}", form={"do": "cancel"}, status=303)
    assert 'value="cancel"' not in await reads(f"/flows/{flow.id}")
    await reads(f"/flows/{flow.id}", form={"do": "cancel"}, status=403)
    assert (await app.flows.get(flow)).state == "running"
    both = await signed("both", handlers=["mail.*", "orders.*"])
    await both(f"/flows/{flow.id}", form={"do": "cancel"}, status=303)
    assert (await app.flows.get(flow)).state == "cancelled"
    [entry] = (await app.tokens.audit.list(by="both", action="flows.cancel")).items
    assert entry.subject == flow.id
