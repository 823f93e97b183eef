"""Metrics for Prometheus: they are those of all workers, they only grow, and the page about them is complete."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from duetime import App, Context, RetryPolicy
from duetime.api.health import STUCK_AFTER
from duetime.client.access.tokens import UseNotes
from duetime.errors import StoreUnavailable
from duetime.model.figures import STALE_WRITES, FigureKey
from duetime.runtime.service import Pulse
from tests.api.conftest import Client, new_app, served, until
from tests.api.pulling import register
from tests.servers.fixtures import NewPostgres
from tests.servers.waiting import PATIENCE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


async def scrape(http: Client) -> Samples:
    """Return all samples by name, and then by labels."""
    found: Samples = {}
    for family in text_string_to_metric_families((await http("GET", "/metrics")).data.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name][tuple(sorted(labels.items()))]


@pytest.fixture
async def worked(app: App) -> AsyncIterator[App]:
    """An app whose tasks ended in several ways, in a worker that is gone."""

    @app.task(retry=RetryPolicy(tries=2, base=0, jitter=0))
    async def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")

    async with app:
        tasks = [await app.handler("greet").now(name="Ada") for _ in range(3)]
        tasks += [await flaky.now(), await app.handler("fail").now(text="no")]
        async with app.worker():
            for task in tasks:
                await app.client.wait(task, timeout=PATIENCE)
        yield app


async def test_attempts_are_counted_by_handler_and_outcome_and_shown_after_their_worker_is_gone(worked: App) -> None:
    async with served(worked) as http:
        found = await scrape(http)
    assert of(found, "duetime_attempts_total", handler="greet", outcome="succeeded") == 3
    assert of(found, "duetime_attempts_total", handler="fail", outcome="fatal") == 1
    assert of(found, "duetime_attempts_total", handler="flaky", outcome="failed") == 1
    assert of(found, "duetime_attempts_total", handler="flaky", outcome="succeeded") == 1
    assert of(found, "duetime_retries_total", handler="flaky") == 1
    # 0 from the start: Prometheus sees no rise from a missing value
    assert {handler: of(found, "duetime_tasks_failed_total", handler=handler) for handler in ("greet", "flaky", "fail")} == {
        "greet": 0,
        "flaky": 0,
        "fail": 1,
    }
    for name in ("duetime_lateness_seconds", "duetime_duration_seconds"):
        assert of(found, f"{name}_count", handler="greet") == 3
        assert of(found, f"{name}_bucket", handler="greet", le="+Inf") == 3
        assert of(found, f"{name}_sum", handler="greet") >= 0
        upto = [count for labels, count in found[f"{name}_bucket"].items() if ("handler", "greet") in labels]
        assert upto == sorted(upto)
    for name in ("stale_writes", "lease_losses", "workers_lost", "attempts_taken_back", "store_errors", "blocked_loops"):
        assert of(found, f"duetime_{name}_total") == 0


async def test_the_failed_tasks_of_a_handler_are_zero_before_its_first_attempt(app: App) -> None:
    async with served(app) as http:
        await http.submit(delay=60)
        assert of(await scrape(http), "duetime_tasks_failed_total", handler="greet") == 0


async def test_a_task_that_a_pull_worker_failed_is_counted_and_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    async with served(app) as http:
        worker = await register(http)
        await http("POST", "/v1/tasks", {"handler": "resize", "payload": {"number": 1}}, status=201)
        [claimed] = await worker.claim()
        await worker.complete(claimed, outcome="failed", fatal=True, error={"type": "RangeError", "message": "too wide", "details": "at 7"})
    async with served(app) as http:
        assert of(await scrape(http), "duetime_tasks_failed_total", handler="resize") == 1
    [record] = [record for record in caplog.records if record.name == "duetime.failures"]
    assert (record.levelname, vars(record)["duetime_task"], record.exc_text) == ("ERROR", claimed["id"], "at 7")


async def test_figures_grow_on_from_worker_to_worker_and_are_the_same_on_every_server(worked: App) -> None:
    async with worked.worker():
        await worked.result(await worked.handler("greet").now(name="Bob"), timeout=PATIENCE)
    async with served(worked) as here, served(worked) as there:
        for http in (here, there):
            assert of(await scrape(http), "duetime_attempts_total", handler="greet", outcome="succeeded") == 4


async def test_stale_writes_of_any_worker_are_shown(app: App) -> None:
    async with served(app) as http:
        await app.store.add_figures("another process", 1, {FigureKey(STALE_WRITES): 2})
        assert of(await scrape(http), "duetime_stale_writes_total") == 2


async def test_attempts_of_workers_over_http_are_counted_too(app: App) -> None:
    async with served(app) as http:
        worker = await register(http)
        await http("POST", "/v1/tasks", {"handler": "resize", "payload": {"number": 1}}, status=201)
        [claimed] = await worker.claim()
        await worker.complete(claimed)
        verdict, _ = await worker.complete({**claimed, "attempt": 7})
        assert verdict == "stale"
    async with served(app) as http:
        found = await scrape(http)
    assert of(found, "duetime_attempts_total", handler="resize", outcome="succeeded") == 1
    assert of(found, "duetime_lateness_seconds_count", handler="resize") == 1
    assert of(found, "duetime_stale_writes_total") == 1


async def test_a_scrape_shows_what_was_known_while_the_store_is_down(new_postgres: NewPostgres) -> None:
    postgres = await asyncio.to_thread(new_postgres)
    async with served(new_app(postgres.url())) as http:
        await http.submit(delay=3600)
        before = await scrape(http)
        assert of(before, "duetime_http_ready") == 1
        assert of(before, "duetime_tasks", handler="greet", state="later") == 1
        await asyncio.to_thread(postgres.kill)

        async def not_ready() -> bool:
            return of(await scrape(http), "duetime_http_ready") == 0

        await until(not_ready, "the metrics say that the server is not ready")
        assert (await scrape(http))["duetime_tasks"] == before["duetime_tasks"]
        await asyncio.to_thread(postgres.start)

        async def ready() -> bool:
            return of(await scrape(http), "duetime_http_ready") == 1

        await until(ready, "the metrics say that the server is ready again")


async def test_a_server_whose_store_can_be_read_but_not_written_is_not_ready(new_postgres: NewPostgres) -> None:
    postgres = await asyncio.to_thread(new_postgres)

    def forbid_writing(forbidden: str) -> None:
        with psycopg.connect(postgres.url(), autocommit=True) as connection:
            connection.execute("set default_transaction_read_only = off")
            connection.execute(f"alter system set default_transaction_read_only = {forbidden}")
            connection.execute("select pg_reload_conf()")

    async with served(new_app(postgres.url())) as http:
        await http("GET", "/readyz")
        await asyncio.to_thread(forbid_writing, "on")

        async def says_why() -> bool:
            answer = await http("GET", "/readyz", status=None)
            return answer.status == 503 and "read-only" in answer.json["detail"]

        await until(says_why, "the server says that nothing can be written")
        await http("GET", "/v1/tasks")
        await http("GET", "/livez")
        await asyncio.to_thread(forbid_writing, "off")

        async def is_ready() -> bool:
            return (await http("GET", "/readyz", status=None)).status == 200

        await until(is_ready, "the server is ready again")


async def test_a_loop_whose_run_does_not_end_is_shown_by_livez_and_metrics(app: App) -> None:
    async with served(app) as http:
        pulse = Pulse("telling the time")
        http.server.api.shared.pulses.append(pulse)
        now = asyncio.get_running_loop().time()
        pulse.begin(now - STUCK_AFTER - 1)
        assert "telling the time has not gone on" in (await http.problem("GET", "/livez", status=503))["detail"]
        assert of(await scrape(http), "duetime_http_loop_seconds", loop="telling the time") > STUCK_AFTER
        pulse.fail(StoreUnavailable("gone"), now)  # which a restart would not cure
        await http("GET", "/livez")
        pulse.succeed(now)
        await http("GET", "/livez")


async def test_loops_of_a_worker_in_the_same_process_are_watched_beside_the_servers_own(app: App) -> None:
    async with served(app) as http, app.worker() as worker:
        http.server.api.shared.pulses += worker.pulses
        names = [loop["name"] for loop in (await http("GET", "/livez")).json["loops"]]
        assert {"feeder", "settler", "keeper", "reaper"} <= set(names)
        shown = (await http("GET", "/metrics")).data.decode()
        assert len(re.findall(r'^duetime_http_loop_seconds\{loop="reaper"\}', shown, re.MULTILINE)) == 1


async def test_a_worker_that_a_server_finds_dead_is_counted(app: App, tmp_path: Path) -> None:
    code = f"""
import asyncio
from duetime import App
app = App("sqlite:///{tmp_path}/store.db")

@app.task
async def greet(name: str) -> None:
    await asyncio.sleep(600)

async def main() -> None:
    async with app.worker():
        await asyncio.sleep(600)

asyncio.run(main())
"""
    async with served(app) as http:
        task = await http.submit()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)

        async def runs() -> bool:
            return bool((await http("GET", f"/v1/tasks/{task['id']}")).json["state"] == "running")

        async def went_back() -> bool:
            return bool((await http("GET", f"/v1/tasks/{task['id']}")).json["state"] == "pending")

        await until(runs, "the task runs")
        process.kill()
        await process.wait()
        await until(went_back, "the server takes it back")
    async with served(app) as http:
        found = await scrape(http)
        assert (of(found, "duetime_workers_lost_total"), of(found, "duetime_attempts_taken_back_total")) == (1, 1)


async def test_a_server_with_tokens_watches_the_loop_that_notes_their_use(app: App) -> None:
    await app.tokens.create("reader", scopes=["read"])
    async with served(app) as http:
        loops = [loop["name"] for loop in (await http("GET", "/livez")).json["loops"]]
        assert UseNotes.name in loops


async def test_every_figure_is_explained_and_every_explained_one_exists(worked: App) -> None:
    async with served(worked) as http:
        await http.submit()
        await scrape(http)  # so that a request has been counted
        text = (await http("GET", "/metrics")).data.decode()
    shown = {family.name for family in text_string_to_metric_families(text) if not family.name.endswith("_created")}
    explained = {
        name.removesuffix("_total")
        for name in re.findall(r"^\| `(duetime_(?!worker_)\w+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert shown == explained
