"""Alerts in the testing kit: evaluated when the test asks, on its clock; nothing is sent."""

from __future__ import annotations

from duetime import App, Failing, Fatal, Handlers, Late, Mail
from duetime.testing import using


async def test_rules_that_are_declared_are_evaluated_and_told_once() -> None:
    app, shop = App(), Handlers(prefix="shop.")
    shop.alert("late", Late(oldest_due=60), channels=["ops", "pager"], repeat=3_600)
    app.alert("failing", Failing(ratio=0.5, least=2), channels=["ops"])

    @shop.task
    async def charge(fail: bool = False) -> None:
        if fail:
            raise Fatal("no stock")

    app.include(shop)
    async with using(app) as t:
        assert await t.notices() == []
        await app.gates.pause("shop.charge")
        await charge.now()
        await t.advance(minutes=2)
        assert await t.notices() == [], "what a gate holds back is not late"
        await app.gates.open("shop.charge")
        await t.drain()
        await app.submit_many([charge.new(fail=True) for _ in range(3)])
        await t.drain()
        [notice] = await t.notices()
        [change] = notice.changes
        assert (notice.channel, change.kind, change.rule, change.subject) == ("ops", "firing", "failing", "shop.charge")
        assert change.text.startswith("3 of 4 attempts of shop.charge failed within 5 min 0 s")
        assert await t.notices() == []
        await t.advance(minutes=6)
        assert [each.changes[0].kind for each in await t.notices()] == ["recovered"]


async def test_nothing_is_sent() -> None:
    app = App()
    app.alert("failing", Failing(in_a_row=1), channels=["ops"])

    @app.task
    async def charge() -> None:
        raise Fatal("no stock")

    async with using(app) as t:
        await app.channels.put("ops", Mail(server="smtp://mail.invalid", sender="a@b.example", to=("c@d.example",)))
        await charge.now()
        await t.drain()
        assert len(await t.notices()) == 1
        assert t.tasks(handler="duetime.notify") == []
        assert (await app.alerts.firing())[0].subject == "charge"
