"""The `workers` commands: list them, show what one runs, drain one."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.session import Audited, json_option, now_of, on_store, store_option

if TYPE_CHECKING:
    from datetime import datetime

    from duetime.app.app import App
    from duetime.client.workers import WorkerDetails, WorkerInfo

COLUMNS = (
    show.Column("worker", whole=True),
    show.Column("alive"),
    show.Column("host"),
    show.Column("process", right=True),
    show.Column("running", right=True),
    show.Column("slots", right=True),
    show.Column("started", spare=1),
    show.Column("last beat", spare=3),
    show.Column("handlers", spare=2),
)
TASKS = (show.Column("task", whole=True), show.Column("handler"), show.Column("attempt", right=True), show.Column("started"))


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def workers(ctx: click.Context, as_json: bool) -> None:
    """List, show and drain the registered workers.

    Dead ones are listed until their tasks have been taken back. `silent` is a worker whose last beat is older than its lease.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@workers.command("list")
@json_option
@store_option
def list_workers(as_json: bool) -> None:
    """List the registered workers."""
    _list(as_json)


def _list(as_json: bool) -> None:
    async def use(app: App) -> tuple[list[WorkerInfo], datetime]:
        return await app.insight.workers(), now_of(app)

    found, now = on_store(use)
    if as_json:
        show.print_json_list(found)
        return
    rows = [_row(worker, now) for worker in found]
    show.print_table(COLUMNS, rows, empty="no worker is registered; start one: duetime worker APP")


@workers.command("show")
@click.argument("worker", metavar="ID")
@json_option
@store_option
def show_worker(worker: str, as_json: bool) -> None:
    """Show one worker and the tasks that it runs."""

    async def use(app: App) -> tuple[WorkerDetails, datetime]:
        return await app.client.workers.get(worker), now_of(app)

    found, now = on_store(use)
    if as_json:
        show.print_json(found)
        return
    show.print_facts(_facts(found.worker, now))
    rows = [(task.id, task.handler, task.attempt, show.relative(task.started_at, now)) for task in found.tasks]
    show.print_table(TASKS, rows, empty="it runs nothing")


@workers.command()
@click.argument("worker", metavar="ID")
@click.option("--undo", is_flag=True, help="Let it claim again.")
@store_option
def drain(worker: str, undo: bool) -> None:
    """Let a worker finish what it runs and claim nothing more.

    It stays registered until it is stopped; --undo lets it claim again.
    """
    audited = Audited(
        "workers.undo_drain" if undo else "workers.drain",
        worker,
        detail=lambda info: f"{info.host}, process {info.pid}; {info.running} running",
    )
    found = on_store(lambda app: app.client.workers.drain(worker, undo=undo), audited=audited)
    if undo:
        show.note(f"worker {found.id} claims again")
        return
    runs = "nothing runs in it" if not found.running else f"{show.count(found.running, 'task')} still running"
    show.note(f"worker {found.id} claims nothing more; {runs}. To undo it: duetime workers drain --undo {found.id}")


def _row(worker: WorkerInfo, now: datetime) -> tuple[object, ...]:
    beat = None if worker.beat_at is None else show.relative(worker.beat_at, now)
    process = (worker.host, "over HTTP" if worker.pull else worker.pid, worker.running, _slots(worker))
    return (worker.id, _alive(worker), *process, show.relative(worker.started_at, now), beat, ", ".join(sorted(worker.slots)))


def _facts(worker: WorkerInfo, now: datetime) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("worker", worker.id),
        ("alive", _alive(worker)),
        ("host", worker.host),
        ("process", "over HTTP" if worker.pull else worker.pid),
        ("duetime", worker.version),
        ("python", worker.python),
        ("event loop", f"answers up to {worker.lag:g} s late" if worker.lag else None),
        ("running", worker.running),
        ("slots", _slots(worker)),
        ("started", show.absolute(worker.started_at)),
        ("last beat", None if worker.beat_at is None else show.relative(worker.beat_at, now)),
        ("handlers", ", ".join(f"{handler} {slots}" for handler, slots in sorted(worker.slots.items()))),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _slots(worker: WorkerInfo) -> int:
    return sum(worker.slots.values()) if worker.concurrency is None else worker.concurrency


def _alive(worker: WorkerInfo) -> str:
    if worker.alive is False:
        return "no"
    if worker.silent_for is not None:
        return f"silent {show.span(timedelta(seconds=worker.silent_for))}"
    if worker.alive is None and worker.beat_at is None:
        return "?"
    return "draining" if worker.draining else "yes"
