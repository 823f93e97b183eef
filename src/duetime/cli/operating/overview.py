"""The command that shows the whole store: `stats`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.session import json_option, on_store, store_option
from duetime.model.task import FINAL, State

if TYPE_CHECKING:
    from duetime.client.insight import Stats

FINALS = tuple(state for state in State if state in FINAL)


def _numbers(*titles: str, spare: int = 0) -> tuple[show.Column, ...]:
    return tuple(show.Column(title, right=True, spare=spare) for title in titles)


@click.command()
@json_option
@store_option
def stats(as_json: bool) -> None:
    """Count tasks by handler and state."""
    found = on_store(lambda app: app.insight.stats())
    if as_json:
        show.print_json(found)
        return
    live = (*_numbers("due", "later"), *_numbers("parked", "blocked", spare=3), *_numbers("running"), show.Column("oldest due", spare=2))
    finals = (show.Column(state, right=True, spare=0 if state in (State.SUCCEEDED, State.FAILED) else 4) for state in FINALS)
    spreads = _numbers("late p99", "took p99", spare=1)
    show.print_table((show.Column("handler"), *live, *finals, *spreads), _stats_rows(found), empty="the store holds no tasks")
    silent = f", {found.silent_workers:,} silent" if found.silent_workers else ""
    show.note(f"{show.count(found.workers, 'live worker')}{silent}. {found.durability}")


def _stats_rows(found: Stats) -> list[tuple[object, ...]]:
    return [
        (
            each.handler,
            f"{each.due:,}{'+' if each.more else ''}",
            *(f"{number:,}" for number in (each.later, each.parked, each.blocked, each.running)),
            None if each.oldest_due_at is None else show.relative(each.oldest_due_at, found.now),
            *(f"{each.finals.get(state, 0):,}" for state in FINALS),
            *(None if spread is None else show.span(timedelta(seconds=spread.p99)) for spread in (each.lateness, each.duration)),
        )
        for each in found.handlers
    ]
