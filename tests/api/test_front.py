"""The page at `/`: for a browser, without a token, and without anything secret."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.metadata import version

from duetime import App
from duetime.api import front_page
from duetime.model.access import Scope
from tests.api.conftest import Client, served


async def test_it_tells_a_browser_what_this_is_and_what_to_try(http: Client, app: App) -> None:
    answer = await http("GET", "/", headers={"Accept": "text/html"})
    page = answer.data.decode()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert version("duetime") in page
    assert app.store.traits.durability in page
    for address in ("/openapi.json", "/metrics", "/v1/stats", "/readyz"):
        assert f'<a href="{address}">' in page
    assert page.count("<pre>curl ") == 3
    assert f"{http.url}/v1/tasks" in page


async def test_it_needs_no_token_and_tells_nothing_about_handlers(app: App) -> None:
    async with app:
        await app.tokens.create("me", scopes=[Scope.READ])
        async with served(app) as http:
            page = (await http("GET", "/")).data.decode()
            assert "$DUETIME_TOKEN" in page
            assert "greet" not in page
            assert str(app.store.url) not in page


async def test_it_runs_no_script_and_loads_nothing(http: Client) -> None:
    answer = await http("GET", "/")
    page = answer.data.decode()
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in policy
    assert "<script" not in page
    assert not re.search(r'(src|href)="https?:', page)


async def test_a_host_that_is_no_name_is_not_written_into_it(http: Client) -> None:
    page = (await http("GET", "/", headers={"Host": "x'\"><script>alert(1)</script>"})).data.decode()
    assert "alert" not in page
    assert "http://127.0.0.1:8420/v1/tasks" in page


def test_what_is_shown_of_a_handler_is_escaped() -> None:
    page = front_page.page("http://127.0.0.1:8420", "<b>", ("a<b>'c", {"name": "</pre><script>"}))
    assert "<script" not in page
    assert "<b>" not in page
