"""Commands that show the whole store: `handlers`, `workers`, `stats`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.session import json_option, now_of, on_store, store_option
from duetime.model.task import FINAL, State

if TYPE_CHECKING:
    from datetime import datetime

    from duetime.app.app import App
    from duetime.client.insight import HandlerInfo, Stats, WorkerInfo

FINALS = tuple(state for state in State if state in FINAL)


def _numbers(*titles: str, spare: int = 0) -> tuple[show.Column, ...]:
    return tuple(show.Column(title, right=True, spare=spare) for title in titles)


@click.command()
@json_option
@store_option
def handlers(as_json: bool) -> None:
    """List the declared handlers."""
    found = on_store(lambda app: app.insight.handlers())
    if as_json:
        show.print_json_list(found)
        return
    policies = (*_numbers("prio", "timeout", "tries", spare=3), show.Column("isolation", spare=3))
    counts = _numbers("pending", "running", "failed")
    columns = (show.Column("handler"), *_numbers("workers", "slots"), *policies, *counts, show.Column("about", spare=2))
    show.print_table(columns, map(_handler_row, found), empty="no process has declared a handler yet")


def _handler_row(handler: HandlerInfo) -> tuple[object, ...]:
    about = handler.doc.strip().partition("\n")[0]
    tries = handler.retry.get("tries")
    states = [f"{handler.states[state]:,}" for state in (State.PENDING, State.RUNNING, State.FAILED)]
    policies = (handler.priority, f"{handler.timeout:g} s", tries, handler.isolation)
    return (handler.name, handler.workers, handler.slots, *policies, *states, about)


@click.command()
@json_option
@store_option
def workers(as_json: bool) -> None:
    """List the registered workers.

    Dead ones are listed until their tasks have been taken back. `silent` is a worker whose last beat is older than its lease.
    """

    async def use(app: App) -> tuple[list[WorkerInfo], datetime]:
        return await app.insight.workers(), now_of(app)

    found, now = on_store(use)
    if as_json:
        show.print_json_list(found)
        return
    columns = (show.Column("worker", whole=True), show.Column("alive"), show.Column("host"), *_numbers("process", "running", "slots"))
    show.print_table(
        (*columns, show.Column("started", spare=1), show.Column("last beat", spare=3), show.Column("handlers", spare=2)),
        [_worker_row(worker, now) for worker in found],
        empty="no worker is registered; start one: duetime worker APP",
    )


def _worker_row(worker: WorkerInfo, now: datetime) -> tuple[object, ...]:
    beat = None if worker.beat_at is None else show.relative(worker.beat_at, now)
    process = (worker.host, "over HTTP" if worker.pull else worker.pid, worker.running, sum(worker.slots.values()))
    return (worker.id, _alive(worker), *process, show.relative(worker.started_at, now), beat, ", ".join(sorted(worker.slots)))


def _alive(worker: WorkerInfo) -> str:
    if worker.alive is not None:
        return "yes" if worker.alive else "no"
    if worker.silent_for is not None:
        return f"silent {show.span(timedelta(seconds=worker.silent_for))}"
    return "?" if worker.beat_at is None else "yes"


@click.command()
@json_option
@store_option
def stats(as_json: bool) -> None:
    """Count tasks by handler and state."""
    found = on_store(lambda app: app.insight.stats())
    if as_json:
        show.print_json(found)
        return
    live = (*_numbers("due", "later"), *_numbers("blocked", spare=3), *_numbers("running"), show.Column("oldest due", spare=2))
    finals = (show.Column(state, right=True, spare=0 if state in (State.SUCCEEDED, State.FAILED) else 4) for state in FINALS)
    spreads = _numbers("late p99", "took p99", spare=1)
    show.print_table((show.Column("handler"), *live, *finals, *spreads), _stats_rows(found), empty="the store holds no tasks")
    silent = f", {found.silent_workers:,} silent" if found.silent_workers else ""
    show.note(f"{show.count(found.workers, 'live worker')}{silent}. {found.durability}")


def _stats_rows(found: Stats) -> list[tuple[object, ...]]:
    return [
        (
            each.handler,
            *(f"{number:,}" for number in (each.due, each.later, each.blocked, each.running)),
            None if each.oldest_due_at is None else show.relative(each.oldest_due_at, found.now),
            *(f"{each.finals.get(state, 0):,}" for state in FINALS),
            *(None if spread is None else show.span(timedelta(seconds=spread.p99)) for spread in (each.lateness, each.duration)),
        )
        for each in found.handlers
    ]
