"""The `logs` command: print, follow or search what attempts printed and logged."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.parsing import MOMENT, past_moment, tz_option
from duetime.cli.session import json_option, on_store, store_option
from duetime.cli.tasks.naming import named, one_id
from duetime.errors import StoreUnavailable, TaskNotFound
from duetime.model.task import State

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.model.task import ErrorInfo

COLUMNS = (
    show.Column("task", whole=True),
    show.Column("attempt", right=True, spare=3),
    show.Column("handler", spare=2),
    show.Column("state", spare=1),
    show.Column("at", whole=True, spare=4),
    show.Column("passage"),
)
MOST_KEPT = 20_000  # characters of followed logs that an error is compared with
AGAIN_AFTER = 1.0  # seconds until a follower tries again to reach the store


@click.command()
@click.argument("task_id", metavar="[ID]", required=False)
@click.option("--attempt", type=click.IntRange(min=1), help="Only this attempt; otherwise all that have logs.")
@click.option("--follow", "-f", is_flag=True, help="Print lines as they come, until the attempt, or without --attempt the task, has ended.")
@click.option("--search", "-s", metavar="WORDS", help='Search the logs instead: all words must occur; "phrases" and beginnings* work too.')
@click.option("--handler", metavar="NAME", help="With --search: only logs of this handler. With --key: the handler of that task.")
@click.option("--key", metavar="KEY", help="Instead of an ID: the live task with this key, or the latest that had it.")
@click.option("--collection", metavar="NAME", help="With --search: only logs of this collection.")
@click.option("--since", metavar=MOMENT, callback=past_moment, help="With --search: logs that began then or later; 2h means two hours ago.")
@click.option("--until", metavar=MOMENT, callback=past_moment, help="With --search: logs that began before then.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="With --search: at most this many.")
@tz_option
@json_option
@store_option
def logs(
    task_id: str | None,
    attempt: int | None,
    follow: bool,
    search: str | None,
    handler: str | None,
    key: str | None,
    collection: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    as_json: bool,
) -> None:
    """Print, follow or search the logs of attempts.

    The beginning of an ID is enough where no other one begins so.
    """
    if [task_id is None, key is None, search is None].count(False) != 1 or (key is not None and handler is None):
        raise click.UsageError("give the ID of a task, or --handler and --key, or --search WORDS")
    if search is not None and (follow or attempt is not None):
        raise click.UsageError("--follow and --attempt need the ID of a task, and go without --search")
    if search is None and any(given is not None for given in (collection, since, until, handler if key is None else None)):
        raise click.UsageError("--handler without --key, --collection, --since and --until go with --search")
    if follow and as_json:
        raise click.UsageError("--follow prints text as it comes; leave --json out")

    async def use(app: App) -> None:
        if search is not None:
            await _search(app, search, handler, collection, since, until, limit, as_json=as_json)
            return
        found = await app.client.get(await one_id(app, named(() if task_id is None else (task_id,), handler, key)))
        if attempt is not None and attempt > found.attempt and not (follow and not found.final):
            raise TaskNotFound(f"task {found.id} has no attempt {attempt}; its last one is {found.attempt}")
        if follow:
            if found.state in (State.PENDING, State.BLOCKED):
                show.note(f"task {found.id} is {found.state}: waiting for it to run; `duetime why {found.id}` explains why it waits")
            await print_as_they_come(app, found.id, attempt)
        else:
            await _print(app, found.id, attempt, as_json=as_json)

    on_store(use)


async def _print(app: App, task_id: str, attempt: int | None, *, as_json: bool) -> None:
    outputs = await app.output.read(task_id, attempt)
    if as_json:
        show.print_json_list(outputs)
        return
    if not outputs:
        show.note(f"the store has no logs of task {task_id}")
    for output in outputs:
        _print_head(output.attempt, alone=len(outputs) == 1)
        if output.text:
            click.echo(output.text, nl=not output.text.endswith("\n"))
        if output.error is not None:
            _print_error(output.error, output.text)


def _print_head(attempt: int, *, alone: bool) -> None:
    """Name the attempt on stderr, where it cannot be mistaken for its logs."""
    if not alone:
        show.note(f"attempt {attempt}:")


def _print_error(error: ErrorInfo, printed: str) -> None:
    """Print why an attempt failed, unless that is the last that its process printed before it died."""
    if not error.traceback or error.traceback.strip() not in printed:
        show.print_traceback(error)


async def print_as_they_come(app: App, task_id: str, only: int | None) -> None:
    """Print logs as they come; wait while the store is unreachable."""
    position: str | None = None
    headed, printed = only or 1, ""
    told: set[int] = set()  # attempts whose failure was printed
    away = False
    while True:
        try:
            async for event in app.output.follow(task_id, only, after=position):
                position, away = event.position, False
                # a stream that was resumed repeats the end of an attempt
                if event.kind != "output" and (event.error is None or event.attempt in told):
                    continue
                if event.attempt != headed:
                    _print_head(event.attempt, alone=False)
                    headed, printed = event.attempt, ""
                click.echo(event.text, nl=False)
                printed = (printed + event.text)[-MOST_KEPT:]
                if event.error is not None:
                    told.add(event.attempt)
                    _print_error(event.error, printed)
            return
        except StoreUnavailable as error:
            if not away:
                show.note(f"{error}; trying again")
            away = True
            await asyncio.sleep(AGAIN_AFTER)


async def _search(
    app: App,
    words: str,
    handler: str | None,
    collection: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    *,
    as_json: bool,
) -> None:
    found = await app.output.search(words, handler=handler, collection=collection, after=since, before=until, limit=limit)
    if as_json:
        show.print_json_list(found.items)
        return
    show.print_table(
        COLUMNS,
        ((hit.task, hit.attempt, hit.handler, hit.state.value, show.absolute(hit.at), hit.passage) for hit in found.items),
        empty="no logs have these words",
    )
    if found.next is not None:
        show.note(f"these are the latest {limit}; --limit shows more")
