"""Commands that show tasks: `tasks`, `task`, `why`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import show
from duetime.cli.session import json_option, now_of, on_store, store_option
from duetime.cli.tasks.filters import filter_options, query_from

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.client import Client
    from duetime.client.insight import AttemptInfo
    from duetime.model.query import Query
    from duetime.model.task import Task

COLUMNS = (
    show.Column("id", whole=True),
    show.Column("state"),
    show.Column("handler"),
    show.Column("when"),
    show.Column("prio", right=True, spare=5),
    show.Column("tries", right=True, spare=4),
    show.Column("collection", spare=3),
    show.Column("key", spare=2),
    show.Column("error", spare=1),
)
ATTEMPT_COLUMNS = (
    show.Column("attempt", right=True),
    show.Column("outcome"),
    show.Column("started"),
    show.Column("took", right=True),
    show.Column("worker", spare=2),
    show.Column("error", spare=1),
)


class Listing:
    """The tasks that match, page by page, up to a limit. `cursor` is where the next listing continues."""

    def __init__(self, client: Client, query: Query, limit: int | None, cursor: str | None) -> None:
        self._client = client
        self._query = query
        self._limit = limit
        self.cursor = cursor

    async def __aiter__(self) -> AsyncIterator[Task[Any]]:
        import msgspec

        from duetime.model.query import MAX_PAGE

        left = self._limit
        while left is None or left > 0:
            size = MAX_PAGE if left is None else min(left, MAX_PAGE)
            page = await self._client.page(msgspec.structs.replace(self._query, limit=size, cursor=self.cursor))
            self.cursor = page.next
            for task in page.items:
                yield task
            if page.next is None:
                return
            left = None if left is None else left - len(page.items)


@click.command()
@filter_options
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Show at most this many.")
@click.option("--all", "everything", is_flag=True, help="Show all that match, however many; with --json they stream.")
@click.option("--cursor", metavar="CURSOR", help="Continue where an earlier listing ended.")
@json_option
@store_option
def tasks(limit: int, everything: bool, cursor: str | None, as_json: bool, **filters: Any) -> None:
    """List tasks, newest first.

    With --state and a final state, the latest finished comes first.
    """
    query = query_from(filters)

    async def use(app: App) -> None:
        listing = Listing(app.client, query, None if everything else limit, cursor)
        if as_json:
            await show.stream_json_list(aiter(listing), lambda: listing.cursor)
            return
        found: list[Task[Any]] = []
        with show.waiting("reading tasks") as say:
            async for task in listing:
                found.append(task)
                if len(found) % 1_000 == 0:
                    say(f"{len(found):,} tasks read")
        now = now_of(app)
        show.print_table(COLUMNS, [_row(task, now) for task in found], empty="no tasks match")
        if listing.cursor is not None:
            show.note(f"{show.count(len(found), 'task')} shown, there are more: --all, a higher --limit, or --cursor {listing.cursor}")

    on_store(use)


def _row(task: Task[Any], now: datetime) -> tuple[object, ...]:
    error = None if task.error is None else f"{task.error.type}: {task.error.message}"
    return (task.id, task.state, task.handler, _when(task, now), task.priority, task.tries, task.collection, task.key, error)


def _when(task: Task[Any], now: datetime) -> str:
    """Return the one instant that matters in the task's state."""
    if task.finished_at is not None:
        return show.relative(task.finished_at, now)
    if task.started_at is not None and task.state == "running":
        return f"for {show.span(now - task.started_at)}"
    return f"due {show.relative(task.due_at, now)}"


@click.command()
@click.argument("task_id", metavar="ID")
@json_option
@store_option
def task(task_id: str, as_json: bool) -> None:
    """Show one task and its attempts."""

    async def use(app: App) -> None:
        found = await app.client.get(task_id)
        attempts = await app.insight.attempts(found.id)
        if as_json:
            print_task_json(found, attempts)
        else:
            _print_task(found, attempts, now_of(app))

    on_store(use)


def print_task_json(task: Task[Any], attempts: list[AttemptInfo] | None = None) -> None:
    import msgspec

    document = msgspec.to_builtins(task, str_keys=True)
    show.print_json(document if attempts is None else {**document, "attempts": attempts})


def _print_task(task: Task[Any], attempts: list[AttemptInfo], now: datetime) -> None:
    def both(when: datetime | None) -> str | None:
        return None if when is None else f"{show.absolute(when)} ({show.relative(when, now)})"

    show.print_facts(
        (
            ("task", task.id),
            ("handler", task.handler),
            ("state", "running, a cancel was requested" if task.cancelling else task.state),
            ("progress", None if task.progress is None else f"{task.progress:.0%} {task.progress_text}".rstrip()),
            ("payload", _json(task.payload)),
            ("result", _json(task.result) if task.state == "succeeded" else None),
            ("error", None if task.error is None else f"{task.error.type}: {task.error.message}"),
            ("due", both(task.due_at)),
            ("priority", task.priority),
            ("collection", task.collection),
            ("key", task.key),
            ("submitted", f"{both(task.submitted_at)} by {task.submitted_by or 'somebody'}"),
            ("started", both(task.started_at)),
            ("finished", both(task.finished_at)),
            ("expires", both(task.expires_at)),
            ("timeout", None if task.timeout is None else f"{task.timeout:g} s"),
            ("retry", None if task.retry is None else _json(task.retry)),
            ("schedule", task.schedule),
            ("planned", both(task.planned_at)),
            ("meta", _json(task.meta) if task.meta else None),
            ("tries", task.tries),
            ("crashes", task.crashes or None),
        )
    )
    if attempts:
        click.echo()
        show.print_table(ATTEMPT_COLUMNS, [_attempt_row(attempt, now) for attempt in attempts], empty="")


def _attempt_row(attempt: AttemptInfo, now: datetime) -> tuple[object, ...]:
    error = None if attempt.error is None else f"{attempt.error.type}: {attempt.error.message}"
    took = None if attempt.started_at is None else show.span((attempt.finished_at or now) - attempt.started_at)
    return (attempt.attempt, attempt.outcome or "running", show.absolute(attempt.started_at), took, attempt.worker, error)


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


@click.command()
@click.argument("task_id", metavar="ID")
@json_option
@store_option
def why(task_id: str, as_json: bool) -> None:
    """Explain why a task has not run, or how it ended."""

    async def use(app: App) -> None:
        reasons = await app.insight.why(await app.client.record(task_id))
        if as_json:
            show.print_json_list(reasons)
        else:
            for reason in reasons:
                click.echo(show.printable(reason.text))

    on_store(use)
