"""The pages of locks and of events: who holds what, and what happened lately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from duetime import App
from duetime.model.event import MOST_EVENTS
from duetime.model.limit import Ask
from duetime.store.values import NewWorker
from duetime.web.pages import events
from duetime.web.pages.events import Tail
from tests.web.conftest import Reader

HOLDER = "0123456789abcdef"


async def test_a_lock_is_shown_with_its_holder_and_released_by_an_operator(ui: Reader, app: App) -> None:
    for name, by in (("ledger", "books-2"), ("stock", "shop-1")):
        await app.store.take_lock(name, HOLDER, by, 3_600.0, None)
    page = await ui("/locks?q=BOOKS")
    assert "ledger" in page
    assert "stock" not in page
    await ui("/locks", form={"do": "release", "lock": "ledger"}, status=303)
    assert [each.name for each in await app.locks.list()] == ["stock"]
    await ui("/locks", form={"do": "release", "lock": "ledger"}, status=303)
    assert 'class="toast bad"' in await ui("/locks"), "nobody holds it any more"
    await ui("/locks", form={"do": "release", "lock": "stock"}, status=303)
    assert "No lock is held" in await ui("/locks")


async def test_locks_are_released_only_by_those_who_may(signed: Callable[..., Any], app: App) -> None:
    for name in ("mail.lock", "orders.lock"):
        await app.store.take_lock(name, HOLDER, "somebody", 3_600.0, None)
    reads, some = await signed("reads", scopes=["read"]), await signed("some", handlers=["mail.*"])
    assert 'value="release"' not in await reads("/locks")
    await reads("/locks", form={"do": "release", "lock": "mail.lock"}, status=403)
    assert "orders.lock" not in await some("/locks")
    await some("/locks", form={"do": "release", "lock": "orders.lock"}, status=303)
    await some("/locks", form={"do": "release", "lock": "mail.lock"}, status=303)
    assert [each.name for each in await app.locks.list()] == ["orders.lock"]


@pytest.mark.each_store
@pytest.mark.covers("CEL.12")
async def test_events_are_shown_as_they_come_and_found_by_name_handler_and_task(ui: Reader, app: App) -> None:
    assert "No event yet" in await ui("/events")
    first = await app.handler("orders.expire").after(3_600, order_id=1)
    second = await app.handler("mail.send").after(3_600, to="a", template="b")
    await app.cancel(first)
    await app.gates.pause("mail.send", note="provider down")
    page = await seen(ui)
    for word in ("task.submitted", "task.cancelled", "gate.paused", "provider down", f'href="/ui/tasks/{first.id}"'):
        assert word in page
    assert page.index(">task.cancelled<") < page.index(f'href="/ui/tasks/{second.id}"'), "the newest first"
    assert second.id not in await ui("/events?names=task.cancelled")
    assert first.id not in await ui("/events?handler=mail.*")
    assert "provider down" not in await ui(f"/events?task={second.id}")
    assert "No event matches" in await ui("/events?names=worker.*")
    assert "there is no event" in await ui("/events?names=task.lots")


async def test_events_of_others_leave_no_trace(signed: Callable[..., Any], app: App) -> None:
    some = await signed("some", scopes=["read"], handlers=["mail.*"])
    await some("/events")
    hidden = await app.handler("orders.expire").after(3_600, order_id=1)
    own = await app.handler("mail.send").after(3_600, to="a", template="b")
    async with app.worker() as worker:
        page = await seen(some)
    assert own.id in page
    assert "1 of the last 1 events" in page, "how much happened to others is not told either"
    for word in (hidden.id, "orders.expire", worker.id, "worker.started"):
        assert word not in page.replace('<option value="worker.started">', "")


async def seen(reader: Reader) -> str:
    """Return the page of events with all that has happened: looks are shared for two seconds, and an action begins a new one."""
    await reader("/settings", form={"do": "save", "theme": "auto", "density": "comfortable", "zone": "UTC"}, status=303)
    return await reader("/events")


async def test_what_is_kept_of_events_is_bounded_and_goes_on_where_it_stopped(app: App) -> None:
    async with app:
        tail = await Tail().read(app.event_source)
        new = [app.handler("mail.send").new(to="a", template=str(number)).after(3_600) for number in range(MOST_EVENTS + 5)]
        await app.submit_many(new)
        await tail.read(app.event_source)
        assert len({event.cursor for event in tail.events}) == MOST_EVENTS + 5
        assert not tail.behind
        await app.handler("mail.send").after(3_600, to="a", template="one more")
        assert len((await tail.read(app.event_source)).events) == MOST_EVENTS + 6
        assert tail.events.maxlen == events.KEPT


async def test_a_limit_is_changed_and_reset_by_those_who_may(ui: Reader, signed: Callable[..., Any], app: App) -> None:
    assert "No limit is declared" in await ui("/limits")
    (await app.store.register(NewWorker(id="w1", host="here", pid=1, slots={"mail.send": 1}))).close()
    uses = (("mail", {"mail.send": 2}), ("both", {"mail.send": 1, "orders.expire": 1}))
    await app.store.allot("w1", 1, [Ask(limit=name, declared=4, uses=each, held=0, want=1) for name, each in uses])
    some, reads = await signed("some", handlers=["mail.*"]), await signed("reads", scopes=["read"])
    await some(
        "/limits", form={"do": "reset", "limit": "mail"}, status=303
    )  # looks are shared for two seconds, and an action begins a new one
    page = await some("/limits")
    assert "both" not in page
    assert "takes 2" in page
    await some("/limits", form={"do": "change", "limit": "both", "running": "2"}, status=303)
    await some("/limits", form={"do": "change", "limit": "mail", "running": "3", "lasting": "2h", "note": "less"}, status=303)
    await reads("/limits", form={"do": "reset", "limit": "mail"}, status=403)
    changed = {each.name: (each.running, each.set_by, each.note) for each in await app.limits.list()}
    assert changed == {"both": (4, "", ""), "mail": (3, "some", "less")}
    await some("/limits", form={"do": "change", "limit": "mail", "running": "none"}, status=303)
    assert "running must be a whole number" in await some("/limits")
    await some("/limits", form={"do": "reset", "limit": "mail"}, status=303)
    assert (await app.limits.get("mail")).own is None
