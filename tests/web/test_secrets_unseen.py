"""Values of secrets are on no page of the dashboard and in no answer of the API, whatever a server does with them."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from markupsafe import escape

from duetime import App, Bearer, RetryPolicy, Secret, StoredHttp
from tests.servers.http import Conversation, serving
from tests.servers.waiting import PATIENCE
from tests.web.conftest import dashboard

KEY = base64.b64encode(bytes(32)).decode()
PLANTED = ('hush/7 "=x?', "quiet+8&y=z;")
SENT = [
    form for value in PLANTED for form in (value, quote(value, safe=""), base64.b64encode(value.encode()).decode(), json.dumps(value)[1:-1])
]
FORMS = [*SENT, *(str(escape(form)) for form in SENT)]
PAGES = [
    "/",
    "/tasks",
    "/handlers",
    "/handlers/told",
    "/handlers/failing",
    "/handlers/stored",
    "/failures",
    "/workers",
    "/audit",
    "/settings",
]


async def _repeat(conversation: Conversation) -> None:
    """Answer with the credentials that were sent, in every form."""
    while (request := await conversation.request()) is not None:
        told = "\n".join([request.headers["authorization"], request.headers["x-key"], *SENT])
        await conversation.answer(500 if request.method == "PUT" else 200, told.encode(), "Content-Type: text/plain")


@pytest.mark.slow
async def test_no_page_and_no_answer_shows_a_value(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_SECRET_KEYS", f"k:{KEY}")
    async with serving(_repeat) as server, App(url, user="ada") as app:
        headers, auth = {"X-Key": Secret("key")}, Bearer(Secret("token"))
        told = app.http("told", server.url(), auth=auth, headers=headers)
        failing = app.http("failing", server.url(), method="PUT", auth=auth, headers=headers, retry=RetryPolicy.none())
        for name, value in zip(("key", "token"), PLANTED, strict=True):
            await app.secrets.put(name, value)
        await app.targets.put("stored", StoredHttp(url="https://shop.example/", auth=auth, headers=headers))
        async with app.worker():
            tasks = [await told.now(), await failing.now()]
            for task in tasks:
                await app.client.wait(task.id, timeout=PATIENCE)
        assert len(server.received) == 2
        assert (server.received[0].headers["x-key"], server.received[0].headers["authorization"]) == (PLANTED[0], f"Bearer {PLANTED[1]}")
        async with dashboard(app) as ui:
            for page in [*PAGES, *(f"/tasks/{task.id}" for task in tasks)]:
                refuse(await ui(page), page)
            of_tasks = [f"tasks/{task.id}{part}" for task in tasks for part in ("", "/attempts", "/logs", "/why")]
            for path in ["tasks", "secrets", "handlers", "handlers/stored/target", *of_tasks]:
                async with ui.session.get(f"{ui.url}/v1/{path}") as answer:
                    text = await answer.text()
                assert answer.status == 200, (path, text)
                refuse(text, path)


def refuse(text: str, where: str) -> None:
    assert [form for form in FORMS if form in text] == [], f"found in {where}"
