"""Flows that are under way while the code changes: a handler that was renamed, and comes back."""

from __future__ import annotations

from pathlib import Path

from duetime import App
from tests.chaos.processes import until
from tests.servers.waiting import PATIENCE


def release(path: Path, *handlers: str) -> App:
    """Make a release of a program that has these handlers."""
    app = App(f"sqlite:///{path}/duetime.db")
    for name in handlers:

        @app.task(name=name)
        async def handler(number: int, name: str = name) -> str:
            return f"{name} {number}"

    return app


async def test_a_flow_waits_for_a_handler_that_a_deploy_renamed_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    first = release(tmp_path, "fetch", "store")
    async with first:
        flow = await first.chain(*(first.handler(name).new(number=1) for name in ("fetch", "store")))
    renamed = release(tmp_path, "fetch", "keep")
    async with renamed.worker():

        async def waits() -> bool:
            texts = [reason.text for reason in await renamed.flows.why(flow)]
            return any(text.startswith("node store:") and "no live worker runs store" in text for text in texts)

        await until("it says that nobody runs the handler", waits)
        assert (await renamed.flows.get(flow)).state == "running"
    fixed = release(tmp_path, "fetch", "keep", "store")
    async with fixed.worker():
        assert await fixed.result(flow, timeout=PATIENCE) == "store 1"
