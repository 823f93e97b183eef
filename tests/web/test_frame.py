"""The frame of the dashboard: who gets in, which forms are taken, which headers are sent, and what an error looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from duetime import App
from duetime.model.access import AuditOutcome, Scope
from duetime.web.pages import PAGES
from tests.web.conftest import SAME, Reader, dashboard

ADDRESSES = [page.path for page in PAGES if "{" not in page.path]


async def test_a_browser_at_the_root_is_sent_to_the_dashboard_and_a_program_is_not(ui: Reader) -> None:
    async with ui.session.get(f"{ui.url}/", headers={"Accept": "text/html,*/*"}, allow_redirects=False) as response:
        assert (response.status, response.headers["location"]) == (303, "/ui/")
    async with ui.session.get(f"{ui.url}/", headers={"Accept": "*/*"}) as response:
        assert "curl" in await response.text()
    assert (await ui.whole("", status=303))[0]["location"] == "/ui/"


@pytest.mark.parametrize("address", [*ADDRESSES, "/sign-in", "/nowhere"])
async def test_every_answer_is_sent_with_the_strict_headers(ui: Reader, address: str) -> None:
    headers, _ = await ui.whole(address, status=404 if address == "/nowhere" else 200)
    policy = headers["content-security-policy"]
    for rule in (
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "base-uri 'none'",
    ):
        assert rule in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("address", ADDRESSES)
async def test_pages_have_no_inline_script_style_or_foreign_address(ui: Reader, address: str) -> None:
    page = await ui(address)
    assert "style=" not in page
    assert "<style" not in page
    assert " onclick" not in page
    assert "javascript:" not in page
    assert page.count("<script") == page.count('<script type="module" src="/ui/assets/')
    assert (
        "//"
        not in page.replace(ui.url, "").replace("http://www.w3.org/2000/svg", "").replace("<!--", "").split("<pre")[0].split("<textarea")[0]
    )


async def test_files_are_immutable_under_their_hash_and_unknown_ones_are_not_there(ui: Reader) -> None:
    page = await ui("/tasks")
    start = page.index("/ui/assets/")
    address = page[start : page.index('"', start)].removeprefix("/ui")
    headers, text = await ui.whole(address)
    assert "immutable" in headers["cache-control"]
    assert text
    for wrong in ("/assets/0000000000000000/app.css", address.rpartition("/")[0] + "/..%2Fweb.py"):
        await ui(wrong, status=404)


# ---- who ----


async def test_without_a_session_every_page_leads_to_the_sign_in_and_back(app: App) -> None:
    async with app:
        made = await app.tokens.create("anna", scopes=["operate"])
        async with dashboard(app) as reader:
            for address in ADDRESSES:
                headers, _ = await reader.whole(address, status=303)
                assert headers["location"].startswith("/ui/sign-in?to=%2Fui%2F")
            headers, _ = await reader.whole("/tasks?q=state:failed", status=303)
            page = await reader(headers["location"].removeprefix("/ui"))
            assert 'value="/ui/tasks?q=state:failed"' in page
            headers, _ = await reader.whole("/sign-in", form={"token": made.token, "to": "/ui/tasks?q=state:failed"}, status=303)
            assert headers["location"] == "/ui/tasks?q=state:failed"
            assert "anna" in await reader("/tasks")


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example", "/ui/\\evil", "/v1/tasks", "/ui/\nx", ""])
async def test_after_signing_in_nobody_is_led_elsewhere(app: App, to: str) -> None:
    async with app:
        made = await app.tokens.create("anna", scopes=["operate"])
        async with dashboard(app) as reader:
            headers, _ = await reader.whole("/sign-in", form={"token": made.token, "to": to}, status=303)
            assert headers["location"] == "/ui/"


async def test_the_cookie_is_no_token_and_is_good_for_these_pages_only(app: App) -> None:
    async with app:
        made = await app.tokens.create("anna", scopes=["admin"])
        async with dashboard(app) as reader:
            headers, text = await reader.whole("/sign-in", form={"token": made.token}, status=303)
            cookie = headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert "Path=/ui/" in cookie
            assert made.token not in cookie + text
            secret = cookie.partition("=")[2].partition(";")[0]
            for sent in ({"Cookie": f"duetime={secret}"}, {"Authorization": f"Bearer {secret}"}):
                async with aiohttp.ClientSession() as other, other.get(f"{reader.url}/v1/tasks", headers=sent) as response:
                    assert response.status == 401


async def test_behind_tls_the_cookie_is_secure_and_without_it_the_token_is_refused(app: App) -> None:
    async with app:
        made = await app.tokens.create("anna", scopes=["admin"])
        async with dashboard(app) as reader:
            encrypted = {"Host": "tasks.example.org", "Origin": "https://tasks.example.org"}
            headers, _ = await reader.whole("/sign-in", form={"token": made.token}, headers=encrypted, status=303)
            assert headers["set-cookie"].startswith("__Secure-duetime=")
            assert "Secure" in headers["set-cookie"].partition(";")[2]
            plain = {"Host": "tasks.example.org", "Origin": "http://tasks.example.org"}
            assert "not encrypted" in await reader("/sign-in", form={"token": made.token}, headers=plain, status=403)


async def test_a_token_that_is_not_good_is_refused_and_soon_nobody_is_asked_any_more(app: App) -> None:
    async with app:
        await app.tokens.create("anna", scopes=["admin"])
        async with dashboard(app) as reader:
            page = await reader("/sign-in", form={"token": "dt_0123456789abcdef_" + "0" * 64}, status=401)
            assert "not known here" in page
            assert "0" * 64 not in page
            statuses = set()
            for _ in range(12):
                async with reader.session.post(f"{reader.url}/ui/sign-in", data={"token": "x"}, headers=SAME) as response:
                    statuses.add(response.status)
            assert statuses == {401, 429}


async def test_signing_out_ends_the_session(signed: Callable[..., Any]) -> None:
    reader = await signed("anna")
    kept = {cookie.key: cookie.value for cookie in reader.session.cookie_jar}
    await reader("/tasks")
    await reader("/sign-out", form={}, status=303)
    async with aiohttp.ClientSession(cookies=kept) as other:
        await Reader(other, reader.url)("/tasks", status=303)


async def test_a_revoked_token_ends_its_sessions(signed: Callable[..., Any], app: App) -> None:
    reader = await signed("anna")
    await reader("/tasks")
    await app.tokens.revoke("anna")
    await reader("/tasks", status=303)
    headers, _ = await reader.whole("/tasks", status=401, headers={"Duetime-Parts": "none"})
    assert headers["duetime-go"].startswith("/ui/sign-in")


async def test_a_rotated_token_ends_sessions_of_its_old_secret_when_that_ends(signed: Callable[..., Any], app: App) -> None:
    reader = await signed("anna")
    await app.tokens.rotate("anna", grace=3_600)
    await reader("/tasks")
    await app.tokens.rotate("anna", grace=0)
    await reader("/tasks", status=303)


async def test_without_tokens_only_loopback_names_and_own_pages_are_answered(ui: Reader) -> None:
    for headers in ({"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example"}, {"Origin": "http://evil.example"}):
        await ui("/tasks", headers=headers, status=403)
        async with ui.session.get(f"{ui.url}/v1/tasks", headers=headers) as response:
            assert response.status == 403


# ---- forms ----


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "SAME"},
    ],
)
async def test_a_form_from_elsewhere_is_refused_and_audited(signed: Callable[..., Any], app: App, headers: dict[str, str]) -> None:
    reader = await signed("anna")
    task = await app.handler("orders.expire").after(3_600, order_id=1)
    sent = {name: reader.url if value == "SAME" else value for name, value in headers.items()}
    await reader(f"/tasks/{task.id}", form={"do": "cancel"}, headers=sent, status=403)
    assert (await app.get(task.id)).state == "pending"
    [entry] = (await app.tokens.audit.list(action="ui.forged")).items
    assert (entry.by, entry.outcome) == ("anna", AuditOutcome.REFUSED)
    await reader(f"/tasks/{task.id}?do=cancel")
    assert (await app.get(task.id)).state == "pending", "a GET acts on nothing"
    await reader(f"/tasks/{task.id}", form={"do": "cancel"}, headers={"Origin": reader.url}, status=303)
    assert (await app.get(task.id)).state == "cancelled"


async def test_somebody_who_may_only_read_is_offered_nothing_and_refused(signed: Callable[..., Any], app: App) -> None:
    reader = await signed("eve", scopes=["read"])
    task = await app.handler("orders.expire").after(3_600, order_id=1)
    for address in (*ADDRESSES, f"/tasks/{task.id}"):
        page = await reader.whole(address, status=200 if _scope(address) in (Scope.READ, None) else 403)
        offered = page[1].split("<main")[1].count('method="post"')
        assert offered == (1 if address == "/settings" else page[1].count("data-select")), address
    for page in PAGES:
        for name, action in page.actions.items():
            if action.scope is Scope.READ:
                continue
            address = page.path.replace("{id}", task.id).replace("{name}", "orders.expire")
            assert "lacks the scope" in await reader(address, form={"do": name}, status=403)
    assert (await app.get(task.id)).state == "pending"


def _scope(address: str) -> Scope | None:
    return next((page.scope for page in PAGES if page.path == address), None)


async def test_somebody_with_some_handlers_finds_no_trace_of_others(signed: Callable[..., Any], app: App) -> None:
    reader = await signed("paula", handlers=["payments.*"])
    mine = await app.handler("payments.charge").after(3_600, order_id=1, cents=5)
    await app.chain(app.handler("payments.charge").new(order_id=1, cents=1), app.handler("orders.expire").new(order_id=1), name="mixed")
    await app.store.take_lock("orders.expire-lock", "0123456789abcdef", "hidden-key", 3_600.0, None)
    others = await app.handler("orders.expire").options(key="hidden-key", collection="hidden-lane").after(3_600, order_id=1)
    for page in PAGES:
        if "{" in page.path or page.scope is Scope.ADMIN:
            continue
        text = await reader(page.path, status=403 if page.whole or page.path == "/operations/new" else 200)
        for word in ("orders.expire", "mixed", "hidden-key", "hidden-lane", "sweep-carts", others.id):
            assert word not in text, f"{page.path} shows {word}"
    assert "payments.charge" in await reader(f"/tasks/{mine.id}")
    await reader(f"/tasks/{others.id}", status=404)
    await reader(f"/tasks/{others.id}", form={"do": "cancel"}, status=303)
    await reader("/tasks", form={"do": "cancel", f"task:{others.id}": "on"}, status=303)
    assert (await app.get(others.id)).state == "pending"
    await reader("/tasks?q=handler:orders.expire", status=403)


# ---- errors ----


async def test_errors_are_pages_that_say_what_to_do(ui: Reader) -> None:
    page = await ui("/nowhere", status=404)
    assert "there is nothing at" in page
    assert "<!doctype html>" in page
    page = await ui("/tasks/01a1ee76-a8ef-74c3-83ad-6a657b63f2ce", status=404)
    assert "never submitted to this store, or it has been deleted or pruned" in page
    await ui("/tasks", form={"do": "explode"}, status=400)
    text = await ui("/tasks/xyz", headers={"Duetime-Parts": "none"}, status=404)
    assert "is not a task id" in text
    assert "<" not in text


async def test_the_dashboard_works_below_a_prefix(app: App) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    import duetime
    from tests.web.mounted import asked

    async with app:
        token = (await app.tokens.create("anna", scopes=["operate"])).token
        api = duetime.asgi(app)
        parent = Starlette(routes=[Mount("/jobs", api)])
        status, headers, _ = await asked(parent, "GET", "/jobs/ui/tasks")
        assert (status, headers["location"]) == (303, "/jobs/ui/sign-in?to=%2Fui%2Ftasks")
        status, headers, _ = await asked(parent, "POST", "/jobs/ui/sign-in", form={"token": token, "to": "/ui/tasks"})
        assert (status, headers["location"]) == (303, "/jobs/ui/tasks")
        assert "Path=/jobs/ui/" in headers["set-cookie"]
        cookie = headers["set-cookie"].partition(";")[0]
        status, _, page = await asked(parent, "GET", "/jobs/ui/tasks", cookie=cookie)
        assert status == 200
        addresses = {part.partition('"')[0] for part in page.split('href="')[1:]}
        assert addresses
        assert all(address.startswith(("/jobs/ui/", "#")) for address in addresses), addresses
