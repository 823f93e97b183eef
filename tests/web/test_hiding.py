"""What only admins see of tasks is in no answer to others: on no page, in no file, not over HTTP, and not by searching."""

from __future__ import annotations

import contextlib
from pathlib import Path

import aiohttp
import pytest

from duetime import App, TaskFailed
from duetime.web.pages import PAGES
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader, dashboard

SECRET = "hunter2-hunter2"


@pytest.fixture
def vault(tmp_path: Path) -> App:
    app = App(f"sqlite:///{tmp_path}/store.db", hide="payload.password, result.token, meta.*")

    @app.task
    async def log_in(user: str, password: str) -> dict[str, str]:
        return {"token": f"{SECRET}-token", "user": user}

    @app.task(name="fails")
    async def fails(password: str) -> None:
        raise ValueError("no")

    return app


async def test_hidden_parts_are_shown_to_admins_alone(vault: App) -> None:
    async with vault, vault.worker(grace=0.1):
        admin = (await vault.tokens.create("root", scopes=["admin"])).token
        other = (await vault.tokens.create("olga", scopes=["operate", "submit"])).token
        task = await vault.handler("log_in").options(meta={"tenant": f"{SECRET}-meta"}).now(user="ada", password=f"{SECRET}-password")
        await vault.client.wait(task.id, timeout=PATIENCE)
        failed = await vault.handler("fails").now(password=f"{SECRET}-password")
        with contextlib.suppress(TaskFailed):
            await vault.result(failed, timeout=PATIENCE)
        [kind] = await vault.failures.list()
        async with dashboard(vault) as ui:
            await ui.sign_in(other)
            known = {"{id}": task.id, "{name}": "log_in", "{fingerprint}": kind.fingerprint}
            for page in PAGES:
                path = page.path
                for word, value in known.items():
                    path = path.replace(word, value)
                if "{" not in path and page.scope != "admin" and not page.whole:
                    assert SECRET not in await ui(path), path
            for path in ("/tasks.ndjson", "/operations/new?verb=retry&q=state:failed"):
                assert SECRET not in await ui(path), path
            assert "is hidden here" in await ui(f"/tasks?q=payload.password:{SECRET}-password")
            await ui(f"/tasks.ndjson?q=meta.tenant:{SECRET}-meta", status=422)
            headers = {"Authorization": f"Bearer {other}"}
            for path in (f"/v1/tasks/{task.id}", "/v1/tasks", "/v1/tasks?brief=true"):
                async with ui.session.get(f"{ui.url}{path}", headers=headers) as response:
                    text = await response.text()
                    assert response.status == 200
                    assert SECRET not in text, path
                    assert "(hidden)" in text
            async with ui.session.get(f"{ui.url}/v1/tasks", params={"q": "payload.password:x"}, headers=headers) as response:
                assert response.status == 422
            await _edits(ui, vault)
        async with dashboard(vault) as ui, aiohttp.ClientSession() as session:
            await ui.sign_in(admin)
            seen = await ui(f"/tasks/{task.id}")
            for part in ("password", "token", "meta"):
                assert f"{SECRET}-{part}" in seen
            async with session.get(f"{ui.url}/v1/tasks/{task.id}", headers={"Authorization": f"Bearer {admin}"}) as response:
                assert SECRET in await response.text()


async def _edits(ui: Reader, app: App) -> None:
    """Somebody who does not see the whole payload can edit and copy the task, and leaves what is hidden as it is."""
    waiting = await app.handler("log_in").after(3_600, user="ada", password=f"{SECRET}-password")
    page = await ui(f"/tasks/{waiting.id}")
    assert "are hidden from you" in page
    assert SECRET not in page
    await ui(f"/tasks/{waiting.id}", form={"do": "edit", "priority": "9", "payload": '{"user": "eve", "password": "(hidden)"}'}, status=303)
    changed = await app.get(waiting.id)
    assert (changed.priority, changed.payload["password"]) == (9, f"{SECRET}-password")
    headers, _ = await ui.whole(f"/tasks/{waiting.id}", form={"do": "copy"}, status=303)
    copied = await app.get(headers["location"].rpartition("/")[2])
    assert copied.payload == {"user": "ada", "password": f"{SECRET}-password"}
