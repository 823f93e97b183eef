"""The pages of flows: where each one is and why, its nodes and their tasks, and cancelling and retrying it as a whole."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from duetime import App, Fatal, Flow, Node, Plan
from duetime.client.flows import NodeInfo
from duetime.web.flow_picture import MOST_DRAWN, picture
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


async def test_of_a_result_that_was_yielded_the_first_items_are_shown(url: str) -> None:
    app = App(url)

    @app.task
    async def paths(many: int) -> AsyncIterator[str]:
        for number in range(many):
            yield f"image-{number}.png"

    @app.flow
    def listing(plan: Plan) -> Node[list[str]]:
        return plan.add(paths.new(many=1_100), name="paths")

    async with app, app.worker(), dashboard(app) as ui:
        flow = await listing.now()
        await app.result(flow, timeout=PATIENCE)
        page = await ui(f"/flows/{flow.id}")
        assert "the first of 1,100 items" in page
        assert "image-19.png" in page
        assert "image-20.png" not in page


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


async def test_a_flow_is_drawn_by_layers_and_each_node_leads_to_its_tasks(ui: Reader, app: App) -> None:
    send = app.handler("mail.send")
    plan = Plan("drawn")
    first = plan.add(send.new(to="a", template="a").after(600), name="first")
    both = [plan.add(send.new(to="a", template="a"), name=f"<{name}>", needs=[first]) for name in ("left", "right")]
    plan.add(send.new(to="a", template="a"), name="last of all that have a very long name", needs=both)
    flow = await app.submit_flow(plan.new_flow())
    page = await ui(f"/flows/{flow.id}")
    svg = page[page.index('<svg class="graph"') : page.index("</svg>", page.index('<svg class="graph"'))]
    assert "Nodes of the flow: first running, &lt;left&gt; waiting" in svg
    assert svg.count('class="link"') == 4
    assert [re.search(r'x="(\d+)" y="(\d+)"', each)[0] for each in svg.split("<rect")[1:]] == [  # type: ignore[index]
        'x="0" y="0"', 'x="250" y="0"', 'x="250" y="66"', 'x="500" y="0"',
    ]  # fmt: skip
    assert "last of all that have…" in svg
    assert f'href="/ui/flows/{flow.id}?node=%3Cleft%3E"' in svg
    assert "<left>" not in svg
    diagram = (await app.flows.get(flow)).mermaid()
    assert 'n0["first<br>running, 0 of 1"]' in diagram
    assert "n1 --> n3" in diagram


def test_a_very_large_flow_is_not_drawn() -> None:
    nodes = [NodeInfo(name=f"n{number}", handler="h", state="waiting", members=1) for number in range(MOST_DRAWN + 1)]
    flow: Flow[object] = Flow(id="id", name="large", state="running", nodes=nodes, submitted_at=datetime.now(UTC))
    assert picture(flow, str) == ""
    assert picture(msgspec.structs.replace(flow, nodes=nodes[1:]), str).count("<rect") == MOST_DRAWN


async def test_a_node_of_a_flow_runs_again_from_its_page(ui: Reader, app: App) -> None:
    send = app.handler("mail.send")
    flow = await app.chain(send.new(to="a", template="a").after(600), send.new(to="b", template="b"))
    first = flow.nodes[0].name
    assert "Run again from here" not in await ui(f"/flows/{flow.id}?node={first}"), "its task lives"
    await app.flows.cancel(flow)
    assert "Run again from here" in await ui(f"/flows/{flow.id}?node={first}")
    await ui(f"/flows/{flow.id}", form={"do": "rerun", "node": first}, status=303)
    assert (await app.flows.get(flow)).node(first).round == 2
