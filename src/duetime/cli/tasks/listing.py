"""Commands that show tasks: `tasks`, `task`, `why`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import show
from duetime.cli.session import json_option, now_of, on_store, store_option
from duetime.cli.tasks.filters import filter_options, query_from
from duetime.cli.tasks.naming import key_options, named, one_id

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.client import Client
    from duetime.client.insight import AttemptInfo
    from duetime.model.query import Query
    from duetime.model.task import ErrorInfo, Task

COLUMNS = (
    show.Column("id", whole=True),
    show.Column("state"),
    show.Column("handler"),
    show.Column("when", whole=True),
    show.Column("prio", right=True, spare=6),
    show.Column("tries", right=True, spare=5),
    show.Column("collection", spare=4),
    show.Column("key", spare=1),
    show.Column("error", spare=2),
    show.Column("where", spare=3),
)
ATTEMPT_COLUMNS = (
    show.Column("attempt", right=True),
    show.Column("outcome"),
    show.Column("started", whole=True),
    show.Column("took", right=True),
    show.Column("worker", spare=2),
    show.Column("error", spare=1),
    show.Column("where", spare=1),
)


class Listing:
    """The tasks that match, page by page, up to a limit. `cursor` is where the next listing continues.

    With a limit it ends with a page that ended after looking at `looked` tasks one by one.
    """

    def __init__(self, client: Client, query: Query, limit: int | None, cursor: str | None) -> None:
        self._client = client
        self._query = query
        self._limit = limit
        self.cursor = cursor
        self.looked: int | None = None

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
            if left is not None and page.looked is not None:
                self.looked = page.looked
                return
            left = None if left is None else left - len(page.items)


@click.command()
@click.argument("query", nargs=-1)
@filter_options
@click.option("--count", "counting", is_flag=True, help="Only count them, up to 100,000.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Show at most this many.")
@click.option("--all", "everything", is_flag=True, help="Show all that match, however many; with --json they stream.")
@click.option("--cursor", metavar="CURSOR", help="Continue where an earlier listing ended.")
@json_option
@store_option
def tasks(query: tuple[str, ...], counting: bool, limit: int, everything: bool, cursor: str | None, as_json: bool, **filters: Any) -> None:
    """List tasks, newest first.

    A QUERY says the same as the options: duetime tasks 'state:failed handler:shop.* finished:<1h'. If only final states match, the latest
    finished comes first.
    """
    if query and filters["where"] is not None:
        raise click.UsageError("give the query once, either behind `tasks` or as --where")
    chosen = query_from({**filters, "where": " ".join(query) or filters["where"]})
    if counting:
        _count(chosen, as_json)
        return

    async def use(app: App) -> None:
        import msgspec

        wanted = chosen if as_json else msgspec.structs.replace(chosen, brief=True)
        listing = Listing(app.client, wanted, None if everything else limit, cursor)
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
        if listing.looked is not None:
            show.note(
                f"looked at {listing.looked:,} tasks one by one, {len(found):,} found; go on with --cursor {listing.cursor}, or --all"
            )
        elif listing.cursor is not None:
            show.note(f"{show.count(len(found), 'task')} shown, there are more: --all, a higher --limit, or --cursor {listing.cursor}")

    on_store(use)


def _count(query: Query, as_json: bool) -> None:
    found = on_store(lambda app: app.client.count(query))
    if as_json:
        show.print_json(found)
    else:
        click.echo(f"more than {show.count(found.count, 'task')}" if found.more else show.count(found.count, "task"))


def _row(task: Task[Any], now: datetime) -> tuple[object, ...]:
    state = "parked" if task.parked else task.state
    facts = (task.id, state, task.handler, _when(task, now), task.priority, task.tries, task.collection, task.key)
    return (*facts, task.error, _where(task.error))


def _where(error: ErrorInfo | None) -> str | None:
    return None if error is None else error.location


def _when(task: Task[Any], now: datetime) -> str:
    """Return the one instant that matters in the task's state."""
    if task.finished_at is not None:
        return show.relative(task.finished_at, now)
    if task.started_at is not None and task.state == "running":
        return f"for {show.span(now - task.started_at)}"
    return f"due {show.relative(task.due_at, now)}"


@click.command()
@click.argument("task_id", metavar="[ID]", required=False)
@key_options
@json_option
@store_option
def task(task_id: str | None, handler: str | None, key: str | None, as_json: bool) -> None:
    """Show one task and its attempts.

    The beginning of an ID is enough where no other one begins so.
    """
    name = named(() if task_id is None else (task_id,), handler, key)

    async def use(app: App) -> None:
        found = await app.client.get(await one_id(app, name))
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


def _state(task: Task[Any]) -> str:
    if task.deadline_at is not None:
        return "running, accepted outside" + (", a cancel was requested" if task.cancelling else "")
    if task.cancelling:
        return "running, a cancel was requested"
    return f"{task.state}, parked: its payload fits no code that has tried it" if task.parked else task.state


def _print_task(task: Task[Any], attempts: list[AttemptInfo], now: datetime) -> None:
    from duetime.model.retry import retry_text

    def both(when: datetime | None) -> str | None:
        return None if when is None else f"{show.absolute(when)} ({show.relative(when, now)})"

    show.print_facts(
        (
            ("task", task.id),
            ("handler", task.handler),
            ("state", _state(task)),
            ("progress", None if task.progress is None else f"{task.progress:.0%} {task.progress_text}".rstrip()),
            ("payload", _json(task.payload)),
            ("result", _json(task.result) if task.state == "succeeded" else None),
            ("error", task.error),
            ("where", _where(task.error)),
            ("due", both(task.due_at)),
            ("priority", task.priority),
            ("collection", task.collection),
            ("key", task.key),
            ("submitted", f"{both(task.submitted_at)} by {task.submitted_by or 'somebody'}"),
            ("started", both(task.started_at)),
            ("finished", both(task.finished_at)),
            ("expires", both(task.expires_at)),
            ("timeout", None if task.timeout is None else f"{task.timeout:g} s"),
            ("retry", None if task.retry is None else retry_text(task.retry)),
            ("schedule", task.schedule),
            ("planned", both(task.planned_at)),
            ("meta", _json(task.meta) if task.meta else None),
            ("tries", task.tries),
            ("crashes", task.crashes or None),
        )
    )
    if attempts:
        click.echo()
        show.print_table(ATTEMPT_COLUMNS, [row for attempt in attempts for row in _attempt_rows(attempt, now)], empty="")
    for attempt in attempts:
        if attempt.detail:
            click.echo(f"attempt {attempt.attempt}: {detail_line(attempt.detail)}")
    last = next((attempt.error for attempt in reversed(attempts) if attempt.error is not None), task.error)
    if last is not None and last.traceback:
        click.echo()
        show.print_traceback(last)


def _attempt_rows(attempt: AttemptInfo, now: datetime) -> Iterator[tuple[object, ...]]:
    if attempt.left_out:
        yield ("…", f"… {show.count(attempt.left_out, 'attempt')} left out …", *[None] * (len(ATTEMPT_COLUMNS) - 2))
    yield _attempt_row(attempt, now)


def _attempt_row(attempt: AttemptInfo, now: datetime) -> tuple[object, ...]:
    took = None if attempt.started_at is None else show.span((attempt.finished_at or now) - attempt.started_at)
    return (
        attempt.attempt,
        attempt.outcome or "running",
        show.absolute(attempt.started_at),
        took,
        attempt.worker,
        attempt.error,
        _where(attempt.error),
    )


def detail_line(detail: Mapping[str, Any]) -> str:
    """Return an attempt's detail as one line: `status 503, url …; phases: dns 2 ms, connect 11 ms`. Phases are in seconds."""
    own = ", ".join(f"{show.printable(name)} {_fact(fact)}" for name, fact in detail.items() if not isinstance(fact, Mapping))
    nested = [(name, fact) for name, fact in detail.items() if isinstance(fact, Mapping)]
    parts = [f"{show.printable(name)}: {_phases(fact) if name == 'phases' else detail_line(fact)}" for name, fact in nested]
    return "; ".join([*([own] if own else []), *parts])


def _phases(phases: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{show.printable(name)} {show.span(timedelta(seconds=fact)) if type(fact) in (int, float) else _fact(fact)}"
        for name, fact in phases.items()
    )


def _fact(fact: object) -> str:
    return show.printable(fact) if isinstance(fact, str) else _json(fact)


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


@click.command()
@click.argument("task_id", metavar="[ID]", required=False)
@key_options
@json_option
@store_option
def why(task_id: str | None, handler: str | None, key: str | None, as_json: bool) -> None:
    """Explain why a task has not run, or how it ended.

    The beginning of an ID is enough where no other one begins so.
    """
    name = named(() if task_id is None else (task_id,), handler, key)

    async def use(app: App) -> None:
        reasons = await app.insight.why(await app.client.record(await one_id(app, name)))
        if as_json:
            show.print_json_list(reasons)
        else:
            for reason in reasons:
                click.echo(show.printable(reason.text))

    on_store(use)
