"""Schemathesis makes requests from the description, right and wrong ones, and compares every answer with it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test

from duetime.api.app import ROUTES
from duetime.api.openapi import describe
from duetime.api.server import Server
from tests.api.conftest import new_app
from tests.servers.waiting import PATIENCE

# Checks that are left out, and why.
LEFT_OUT = {
    "positive_data_acceptance": "a well-formed task is refused if nobody has declared its handler or the payload does not fit it, and a "
    "well-formed filter if it is empty: what is valid depends on the store",
}
LEFT_OUT_OF_ONE = {
    ("negative_data_rejection", "submit_tasks"): "bad tasks of a batch are answered one by one, with 200 for the whole",
    ("negative_data_rejection", "list_events"): "Last-Event-ID counts only with `follow`, whose answer does not end",
}
EXAMPLES = int(os.environ.get("DUETIME_TEST_REQUESTS", "4"))  # of each route


@schemathesis.serializer("application/x-ndjson")
def lines(context: object, value: object) -> bytes:
    """Send whatever was generated as the lines of a batch."""
    return value.encode("utf-8", "replace") if isinstance(value, str) else msgspec.json.encode(value)


schema = schemathesis.openapi.from_dict(describe(ROUTES))


class Known(NamedTuple):
    """Where the server is, and a token for it."""

    url: str
    token: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """A server with a token, in a thread of its own, because the fuzzer's requests block."""
    folder: Path = tmp_path_factory.mktemp("fuzzing")
    ready = threading.Event()
    known: list[Known] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        app = new_app(f"sqlite:///{folder}/store.db")
        async with app:
            made = await app.tokens.create("fuzzer", scopes=["admin"])
            async with Server(app, port=0).running() as server:
                known.append(Known(server.url, made.token))
                ready.set()
                await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(PATIENCE)
    yield known[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(PATIENCE)
    loop.close()


bounded = settings(
    max_examples=EXAMPLES, phases=(Phase.explicit, Phase.generate), derandomize=True, suppress_health_check=list(HealthCheck), deadline=None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),  # the server's loops do, in their own thread
]


@pytest.mark.parametrize("name", sorted(route.name for route in ROUTES))
def test_every_answer_is_as_described(served: Known, name: str) -> None:
    # Not `schema.parametrize()`: it thinks up all requests of all routes at collection, in each of the processes of a run.
    load_all_checks()
    [found] = schema.include(operation_id=name).get_all_operations()
    assert isinstance(found, Ok)
    build_operation_test(config=schema.config, operation=found.ok(), test_func=compare, given_kwargs={}, feedback=FeedbackSources())(
        served=served
    )


@bounded
def compare(served: Known, case: schemathesis.Case[Any]) -> None:
    name = case.operation.definition.raw["operationId"]
    if name == "list_events" and str((case.query or {}).get("follow")).lower() in ("true", "1"):
        case.query["follow"] = "false"  # the other answer does not end
    left_out = [*LEFT_OUT, *(check for check, route in LEFT_OUT_OF_ONE if route == name)]
    checks: list[Any] = [CHECKS.get_one(check) for check in left_out]
    case.call_and_validate(base_url=served.url, headers={"Authorization": f"Bearer {served.token}"}, excluded_checks=checks)
