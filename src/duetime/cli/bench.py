"""The `bench` command: measure a store on this machine with no-op tasks.

Without a URL it uses a throw-away SQLite file. Its handlers are named `duetime.bench.…`, so it never touches the tasks of a store
in use. What it leaves in such a store is pruned like any finished task.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click
import msgspec

from duetime.app.app import App
from duetime.cli.show import Column, print_table
from duetime.clock import MILLISECOND, SECOND, Instant, to_datetime
from duetime.errors import InvalidValue

if TYPE_CHECKING:
    from duetime.worker.worker import Worker

BATCH = 1_000
PICKUPS = 200
DUE, EVERY = 500, 4 * MILLISECOND


class Measurement(msgspec.Struct, frozen=True):
    """One measured value."""

    name: str
    value: float
    unit: str
    detail: str = ""


@click.command(name="bench")
@click.option("--url", help="Measure this store; otherwise a throw-away SQLite file.")
@click.option("--tasks", default=20_000, show_default=True, type=click.IntRange(100, 10_000_000), help="How many tasks to drain.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(url: str | None, tasks: int, as_json: bool) -> None:
    """Measure submitting, draining, pickup and lateness with no-op tasks."""
    with ExitStack() as stack:
        if url is None:
            url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/bench.db"
        measurements, durability = asyncio.run(measure(url, tasks))
    if as_json:
        click.echo(msgspec.json.encode({"durability": durability, "measurements": measurements}))
        return
    columns = [Column("measurement", whole=True), Column("value", right=True), Column(""), Column("how", spare=1)]
    print_table(columns, [(each.name, f"{each.value:,.1f}", each.unit, each.detail) for each in measurements], empty="nothing measured")
    click.echo(f"{durability} These are measurements of one run on this machine; compare them only with others taken beside them.")


def run(arguments: Sequence[str]) -> int:
    """Run the command with the arguments that `duetime` passes on."""
    return command.main(args=list(arguments), prog_name="duetime bench", standalone_mode=False) or 0


async def measure(url: str, tasks: int) -> tuple[list[Measurement], str]:
    """Take all measurements on one store, one after the other."""
    app = App(url)
    async with app:
        bench = Bench(app)
        await bench.refuse_leftovers()
        measurements = [await bench.submitting(tasks)]
        async with app.worker(handlers=[bench.noop, bench.due]) as worker:
            measurements += [await bench.draining(worker, tasks), await bench.pickup(), *await bench.lateness()]
        return measurements, app.insight.durability


class Bench:
    """The handlers, and the starts that they record."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._started: dict[int, Instant] = {}
        self.noop = app.task(self._noop, name="duetime.bench.noop")
        self.due = app.task(self._due, name="duetime.bench.due")

    async def _noop(self, number: int) -> None:
        pass

    async def _due(self, number: int) -> None:
        self._started[number] = self._app.insight.now()

    async def refuse_leftovers(self) -> None:
        lanes = (await self._app.store.counts()).lanes
        left = [lane.handler for lane in lanes if lane.handler.startswith("duetime.bench.")]
        if left:
            raise InvalidValue(f"tasks of an earlier bench still wait in this store; first run `duetime cancel --handler {left[0]}`")

    async def submitting(self, tasks: int) -> Measurement:
        began = time.monotonic()
        for start in range(0, tasks, BATCH):
            await self._app.submit_many([self.noop.new(number=number) for number in range(start, min(start + BATCH, tasks))])
        return Measurement("submit_many", tasks / (time.monotonic() - began), "tasks/s", f"{BATCH:,} a call")

    async def draining(self, worker: Worker, tasks: int) -> Measurement:
        began = time.monotonic()
        while worker.executor.finished < tasks or len(worker.settler):  # noqa: ASYNC110  # an event per attempt would be measured too
            await asyncio.sleep(0.005)
        return Measurement("drain", tasks / (time.monotonic() - began), "tasks/s", "completions written, history kept")

    async def pickup(self) -> Measurement:
        """Measure the time from the call of `.now()` to the start of the handler, one task at a time."""
        waits = []
        for number in range(PICKUPS):
            called_at = self._app.insight.now()
            await self.due.now(number=number)
            await self._until(number + 1)
            waits.append(self._started[number] - called_at)
            await asyncio.sleep(0.005)
        return Measurement("pickup p50", statistics.median(waits) / MILLISECOND, "ms", "idle worker, submitting included")

    async def lateness(self) -> list[Measurement]:
        """Measure how late tasks start that are due at regular instants."""
        self._started.clear()
        first = self._app.insight.now() + SECOND // 2
        due_at = [first + number * EVERY for number in range(DUE)]
        await self._app.submit_many([self.due.new(number=number).at(to_datetime(at)) for number, at in enumerate(due_at)])
        await self._until(DUE)
        late = sorted(self._started[number] - at for number, at in enumerate(due_at))
        detail = f"{DUE} tasks, one every {EVERY / MILLISECOND:g} ms"
        return [Measurement(f"lateness p{share}", late[DUE * share // 100] / MILLISECOND, "ms", detail) for share in (50, 99)]

    async def _until(self, started: int) -> None:
        while len(self._started) < started:  # noqa: ASYNC110  # likewise
            await asyncio.sleep(0.0005)
