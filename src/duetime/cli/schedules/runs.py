"""`schedules runs`: the history of a schedule, with when each run was planned and when it began."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import show
from duetime.cli.session import json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.model.task import Task


@click.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 1_000), metavar="N", default=20, show_default=True, help="How many, the latest ones.")
@json_option
@store_option
def runs(name: str, limit: int, as_json: bool) -> None:
    """Show the runs of a schedule: planned, begun and ended when, and how.

    The latest comes first. `late` is from the planned instant to the begin of the last attempt.
    """

    async def use(app: App) -> list[Task[Any]]:
        await app.schedules.get(name)
        found: list[Task[Any]] = []
        async for task in app.tasks(schedule=name):
            found.append(task)
            if len(found) == limit:
                break
        return found

    found = on_store(use)
    if as_json:
        import msgspec

        show.print_json_list(msgspec.to_builtins(task, str_keys=True) for task in found)
        return
    times = (show.Column("planned", whole=True), show.Column("began", whole=True), show.Column("late", right=True))
    rest = (show.Column("took", right=True), show.Column("state"), show.Column("attempts", right=True), show.Column("error", spare=2))
    show.print_table((*times, *rest, show.Column("task", spare=1)), map(_row, found), empty=f"{name} has not run yet")


def _row(task: Task[Any]) -> tuple[object, ...]:
    planned, began, ended = task.planned_at, task.started_at, task.finished_at
    late = None if planned is None or began is None else show.span(began - planned)
    took = None if began is None or ended is None else show.span(ended - began)
    error = None if task.error is None else str(task.error).partition("\n")[0]
    return (_instant(planned), _instant(began), late, took, task.state, task.attempt, error, task.id)


def _instant(when: datetime | None) -> str | None:
    return None if when is None else f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1_000:03d}"
