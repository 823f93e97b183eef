"""The page of a handler: its course as charts and as tables, how it is performed, and secrets by name only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from duetime import App
from duetime.client.insight import AttemptInfo
from duetime.client.series import Series
from duetime.clock import SECOND, ManualClock, to_instant
from duetime.model.figures import ATTEMPTS, FigureKey
from duetime.model.secrets import Secret
from duetime.model.series import SeriesName
from duetime.store.sqlite.store import SqliteStore
from duetime.targets.http.auth import Bearer
from duetime.targets.stored.definitions import StoredCommand, StoredHttp
from duetime.web.courses import together
from duetime.web.performing import phases_of, secret_names
from tests.servers.waiting import PATIENCE
from tests.web.conftest import Reader, dashboard

START = to_instant(datetime(2030, 5, 6, 12, tzinfo=UTC))


async def test_a_stored_target_is_shown_with_its_secrets_by_name(signed: Callable[..., Any], app: App) -> None:
    target = StoredHttp(url="https://billing.example/{payload.order}", auth=Bearer(Secret("billing-token")), sign=Secret("signing"))
    await app.targets.put("billing.notify", target)
    await app.targets.put("report", StoredCommand(artifact="report@3", env={"KEY": Secret("report-key")}))
    admin: Reader = await signed("root", scopes=["admin"])
    page = await admin("/handlers/billing.notify")
    assert "POST https://billing.example/{payload.order}" in page
    assert re.search(r"<code>billing-token</code> <span class=\"error\">not stored", page)
    reader: Reader = await signed("rita", scopes=["read"])
    page = await reader("/handlers/billing.notify")
    assert "<code>signing</code>" in page
    assert "not stored" not in page, "what is stored under the names is for admins"
    page = await reader("/handlers/report")
    assert "a program, stored" in page
    assert "<code>report@3</code>" in page
    assert "<code>report-key</code>" in page


async def test_the_versions_of_its_artifact_are_shown_to_admins(tmp_path: Any) -> None:
    app = App("sqlite:///:memory:", artifacts=f"file://{tmp_path}/artifacts", user="mira")
    program = tmp_path / "report.sh"
    program.write_text("#!/bin/sh\necho hello\n")
    async with dashboard(app) as ui:
        await app.artifacts.put("report", program, note="first of all")
        await app.targets.put("report", StoredCommand(artifact="report"))
        page = await ui("/handlers/report")
        assert "version 1, 21 bytes" in page
        assert "first of all" in page


def test_secrets_are_found_wherever_they_stand() -> None:
    target = StoredHttp(url="https://a.example", headers={"x-key": Secret("one")}, sign=[Secret("two"), Secret("one")])
    assert secret_names(target) == ["one", "two"]


def test_phases_are_in_their_order_and_as_wide_as_they_took() -> None:
    detail = {"status": 200, "phases": {"body": 0.01, "dns": 0.02, "first_byte": 0.24, "total": 0.3, "odd": "x"}}
    attempt = AttemptInfo(attempt=1, outcome=None, worker=None, started_at=None, finished_at=None, error=None, detail=detail)
    assert [(each.name, each.share) for each in phases_of(attempt)] == [("name", 2), ("wait", 24), ("body", 1)]
    assert phases_of(None) == []


_HALVES: tuple[tuple[str, list[float | None], list[float | None]], ...] = (
    ("a", [1, None, None], [0.5, None, 3]),
    ("b", [2, 5, None], [0.2, 0.1, None]),
)


def test_of_several_handlers_counts_are_added_and_the_worst_lateness_is_taken() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    one, two = (
        Series(handler=name, step=10, since=at, until=at, values={SeriesName.ATTEMPTS: counts, SeriesName.LATENESS_P99: late})
        for name, counts, late in _HALVES
    )
    joined = together([one, two])
    assert joined is not None
    assert joined["attempts"] == [3, 5, None]
    assert joined["lateness_p99"] == [0.5, 0.1, 3]
    assert together([]) is None


async def _counted(store: SqliteStore, clock: ManualClock) -> None:
    """Count attempts of two handlers in three steps, with a gap between."""
    for number, (mine, others) in enumerate(((5, 100), (0, 0), (7, 100)), 1):
        if mine:
            figures = {FigureKey(ATTEMPTS, "payments.charge", "succeeded"): mine, FigureKey(ATTEMPTS, "mail.send", "succeeded"): others}
            await store.add_figures("history", number, figures)
        clock.advance(10)


def _column(page: str, caption: str, column: int) -> list[str]:
    """Return a column of the table of a chart, the latest value first."""
    table = page.split(f"<figcaption>{caption}")[1].partition("</table>")[0]
    return [re.findall(r"<td[^>]*>([^<]*)</td>", row)[column] for row in table.split("<tr>")[2:]]


async def test_a_restricted_token_sees_the_course_of_its_handlers_alone() -> None:
    app = App("sqlite:///:memory:", user="mira")
    app.task(name="payments.charge")(_nothing)
    app.task(name="mail.send")(_nothing)
    clock = ManualClock(START)
    store = SqliteStore(":memory:", clock=clock)
    async with app.using_store(store), dashboard(app) as everything:
        await _counted(store, clock)
        whole = await everything("/?as=table")
        assert _column(whole, "Attempts per 10 s", 0)[:3] == ["107", "0", "105"]
        own = await everything("/handlers/payments.charge?as=table")
        assert _column(own, "Attempts per 10 s", 0)[:3] == ["7", "0", "5"]
        token = (await app.tokens.create("paula", scopes=["read"], handlers=["payments.charge"])).token
        async with dashboard(app) as ui:  # there are tokens now
            await ui.sign_in(token)
            assert _column(await ui("/?as=table"), "Attempts per 10 s", 0)[:3] == ["7", "0", "5"]
            assert 'class="chart"' in await ui("/")


async def _nothing() -> None: ...


def test_the_clock_of_these_tests_begins_a_step() -> None:
    assert START % (10 * SECOND) == 0


async def test_the_phases_of_a_request_are_on_the_pages_of_its_task_and_its_handler(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path}/store.db")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    app.http("ping", f"http://127.0.0.1:{port}/", method="GET")
    async with server, dashboard(app) as ui, app.worker(grace=0.1):
        task = await app.handler("ping").now()
        await app.client.wait(task.id, timeout=PATIENCE)
        for path in (f"/tasks/{task.id}", "/handlers/ping"):
            page = await ui(path)
            assert "<span>connect</span>" in page, path
            assert "<span>wait</span>" in page, path
        assert "a request, declared in code" in page
        assert "status 200" in page
