"""The page of alerts: what fires, taking notice of it, muting a rule, trying a channel."""

from __future__ import annotations

from duetime import AlertRule, App, Backlog, Webhook
from duetime.duties.alert_facts import Memory
from duetime.duties.alerts import evaluate, submit_messages
from tests.web.conftest import dashboard


async def test_what_fires_is_acknowledged_and_muted_and_a_channel_tried(url: str) -> None:
    app = App(url, user="mira")

    @app.task(name="mail.<b>send")
    async def send() -> None: ...

    async with app:
        await app.channels.put("ops", Webhook(url="https://example.com/?a=<b>"))
        await app.alerts.put(AlertRule(name="backlog", when=Backlog(due=1), channels=("ops",), note="<script>"))
        await app.submit_many([send.new() for _ in range(3)])
        assert await evaluate(app.store, Memory())
        async with dashboard(app) as ui:
            assert 'mail.&lt;b&gt;send has 3 due tasks; 1 is allowed. <a href="/ui/alerts">Look</a>' in (await ui("/")).replace(ui.url, "")
            text = await ui("/alerts")
            assert "mail.&lt;b&gt;send has 3 due tasks; 1 is allowed." in text
            assert "<script>" not in text.partition("<main")[2].partition("</main")[0]
            await ui("/alerts", form={"do": "acknowledge", "rule": "backlog", "subject": "mail.<b>send"}, status=303)
            assert "seen by" in await ui("/alerts")
            await ui("/alerts", form={"do": "mute", "rule": "backlog", "lasting": "1h"}, status=303)
            assert "Tell again" in await ui("/alerts")
            await ui("/alerts", form={"do": "mute", "rule": "backlog", "lasting": "off"}, status=303)
            assert (await app.alerts.get("backlog")).muted_until is None
            await submit_messages(app.store)
            told = (await ui("/alerts")).partition("Told lately")[2]
            assert "FIRING: backlog: mail.&lt;b&gt;send" in told
            await ui("/alerts", form={"do": "test", "channel": "ops"}, status=303)
            assert "duetime.notify" in await ui("/handlers/duetime.notify")
            assert any([task.payload.get("test") async for task in app.tasks(handler="duetime.notify")])
