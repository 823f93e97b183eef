"""`duetime top`: what the store does at the moment, by handler, like the `top` of an operating system."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.session import json_option, now_of, on_store, store_option

if TYPE_CHECKING:
    from datetime import datetime

    from duetime.app.app import App
    from duetime.client.series import Series

SHOWN = (
    *("attempts", "tasks_failed", "lateness_p50", "lateness_p95", "lateness_p99", "duration_p95"),
    *("due", "later", "running", "oldest_due"),
)
WINDOW = timedelta(seconds=70)  # a minute of whole steps, and the present one
COLUMNS = (
    show.Column("handler"),
    show.Column("per s", right=True),
    show.Column("failed/min", right=True),
    show.Column("due", right=True),
    show.Column("oldest due", right=True),
    show.Column("running", right=True),
    show.Column("later", right=True, spare=1),
    show.Column("late p50", right=True, spare=3),
    show.Column("late p95", right=True),
    show.Column("late p99", right=True, spare=2),
    show.Column("took p95", right=True, spare=4),
)


@click.command()
@click.option("--once", is_flag=True, help="Print the table once and end, as is done without a terminal.")
@click.option("--every", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, metavar="SECONDS", help="How often to look.")
@json_option
@store_option
def top(once: bool, every: float, as_json: bool) -> None:
    """Show what runs and waits now, by handler, the busiest first.

    Rates and lateness are of the last minute. What is due and runs is counted every ten seconds. ^C ends it.
    """
    if as_json:
        on_store(_print_json)
    elif once or not sys.stdout.isatty():
        on_store(_print)
    else:
        on_store(lambda app: _watch(app, every))


async def _print_json(app: App) -> None:
    series, _ = await _look(app)
    show.print_json_list(series)


async def _print(app: App) -> None:
    frame = await _frame(app)
    show.print_table(frame.columns, frame.rows, empty=frame.empty)
    show.note(frame.title)


async def _watch(app: App, every: float) -> None:
    frame = await _frame(app)  # before the terminal is taken: a store that does not answer is told as by other commands
    with show.screen() as draw:
        while True:
            draw(frame)
            await asyncio.sleep(every)
            frame = await _frame(app)


async def _look(app: App) -> tuple[list[Series], datetime]:
    now = now_of(app)
    return await app.insight.series_by_handler(SHOWN, since=now - WINDOW, step=10), now


async def _frame(app: App) -> show.Frame:
    series, now = await _look(app)
    workers = sum(worker.alive is not False and worker.silent_for is None for worker in await app.insight.workers())
    series.sort(key=lambda each: (-each.per_second("attempts"), -(each.last("due") or 0), each.handler or ""))
    rate = sum(each.per_second("attempts") for each in series)
    due, running = (round(sum(each.last(name) or 0 for each in series)) for name in ("due", "running"))
    title = f"{now:%H:%M:%S} UTC   {_rate(rate)} attempts/s   {due:,} due   {running:,} running   {show.count(workers, 'live worker')}"
    return show.Frame(title, COLUMNS, [_row(each) for each in series], empty="no process has declared a handler yet")


def _row(series: Series) -> tuple[object, ...]:
    return (
        series.handler,
        _rate(series.per_second("attempts")),
        f"{series.per_second('tasks_failed') * 60:,.0f}",
        _whole(series.last("due")),
        _span(series.last("oldest_due")) if series.last("due") else None,
        _whole(series.last("running")),
        _whole(series.last("later")),
        *(_span(series.last(name)) for name in ("lateness_p50", "lateness_p95", "lateness_p99", "duration_p95")),
    )


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _span(seconds: float | None) -> str | None:
    return None if seconds is None else show.span(timedelta(seconds=seconds))
