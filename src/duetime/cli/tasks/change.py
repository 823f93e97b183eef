"""Commands that change tasks: `cancel`, `retry`, `copy`, `delete`, `edit`, `reschedule`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click

from duetime.cli import parsing, show
from duetime.cli.failures import CONFLICT, REFUSED, exit_code, print_error
from duetime.cli.operating.operations import until_ended
from duetime.cli.session import Audited, json_option, on_store, store_option
from duetime.cli.tasks.filters import any_given, filter_options, query_from
from duetime.cli.tasks.naming import Named, key_options, named, one_id, whole_id
from duetime.errors import DuetimeError

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.operations import Asked, Bulk, OperationInfo
    from duetime.model.query import Query

# What a command answers for one task, and the exit code (0: done).
Answer: TypeAlias = tuple[str, int]
One: TypeAlias = Callable[["App", str], Coroutine[Any, Any, Answer]]

_AT_ONCE = 64  # ids under way at once; a store writes what arrives together in one commit


def many_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--yes", "-y", is_flag=True, help="Do not ask before changing what the filters match.")(function)
    function = click.option("--rate", type=float, metavar="N", help="Change at most N tasks per second, with filters.")(function)
    function = click.option("--dry-run", is_flag=True, help="Only count what the filters match.")(function)
    return filter_options(function)


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@many_options
@json_option
@store_option
def cancel(ids: tuple[str, ...], dry_run: bool, yes: bool, rate: float | None, as_json: bool, **filters: Any) -> None:
    """Cancel tasks, by id or by filters.

    --handler and --key alone name one task, which is cancelled without a question. A waiting task never starts: `cancelled`. A
    running one is told to stop: `cancelling`. One that has ended stays as it is: `finished`.
    """
    _change(ids, filters, dry_run, yes, as_json, rate, verb="cancel", one=_cancel_one)


async def _cancel_one(app: App, task_id: str) -> Answer:
    verdict = await app.client.cancel(task_id)
    return verdict.value, CONFLICT if verdict == "finished" else 0


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@many_options
@click.option("--canary", is_flag=True, help="One task first, then 1 %, then the rest; stop if over 10 % of them fail again.")
@json_option
@store_option
def retry(ids: tuple[str, ...], dry_run: bool, yes: bool, rate: float | None, canary: bool, as_json: bool, **filters: Any) -> None:
    """Run tasks again that did not succeed.

    By id or by filters; without --state the failed ones. --handler and --key alone name one task, which is retried without a
    question. A task keeps its id, and its attempts are counted on.
    """
    _change(ids, filters, dry_run, yes, as_json, rate, verb="retry", one=_retry_one, canary=canary)


async def _retry_one(app: App, task_id: str) -> Answer:
    return (await app.client.retry(task_id)).state.value, 0


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@key_options
@json_option
@store_option
def delete(ids: tuple[str, ...], handler: str | None, key: str | None, as_json: bool) -> None:
    """Remove tasks for good, with their attempts and logs.

    A waiting task never starts, and those that wait for it fare as if it had been cancelled. A running one is refused: cancel it first.
    """
    _change_named(named(ids, handler, key), "delete", _delete_one, as_json)


async def _delete_one(app: App, task_id: str) -> Answer:
    await app.client.delete(task_id)
    return "deleted", 0


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@key_options
@click.option(
    "--payload", metavar="JSON|@FILE|-", callback=parsing.payload, help="Other arguments, a JSON object, from a file or standard input."
)
@json_option
@store_option
def copy(ids: tuple[str, ...], handler: str | None, key: str | None, payload: dict[str, Any] | None, as_json: bool) -> None:
    """Submit tasks once more as new ones, due now.

    Whatever became of the first: a copy has the same handler, payload and options, no key, and names its origin in its meta.
    """

    async def copy_one(app: App, task_id: str) -> Answer:
        return f"copied as {(await app.client.copy(task_id, payload=payload)).id}", 0

    name = named(ids, handler, key)
    _print_answers(on_store(lambda app: _each(app, name, copy_one)), as_json)


def _change(
    ids: Sequence[str],
    filters: dict[str, Any],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    rate: float | None,
    *,
    verb: Literal["cancel", "retry"],
    one: One,
    canary: bool = False,
) -> None:
    """Apply a command to tasks given by id, to the one of a handler and key, or to those that the filters match."""
    if bool(ids) == any_given(filters):
        raise click.UsageError("give task ids, or filters, not both" if ids else "give task ids, or filters such as --handler and --state")
    if ids and (dry_run or canary or rate is not None):
        raise click.UsageError(
            f"{'--dry-run' if dry_run else '--canary' if canary else '--rate'} is about what filters match; it takes no ids"
        )
    by_key = {name for name, value in filters.items() if value is not None} == {"handler", "key"} and not dry_run
    if ids or by_key:
        _change_named(named(ids, filters["handler"], filters["key"]), verb, one, as_json)
        return
    from duetime.client.operations import Asked
    from duetime.model.operation import Canary, Verb

    query = query_from(filters)
    given = ", ".join(f"{name} {value}" for name, value in sorted(filters.items()) if value is not None)
    total: int | None = None
    if dry_run or not yes:
        with show.bar("counting tasks", None):
            total = on_store(lambda app: _count(app, verb, query)).matched
    if dry_run and as_json:
        show.print_json({"matched": total, "answers": {}, "dry_run": True})
    elif dry_run:
        click.echo(f"{show.count(total or 0, 'task')} would be changed by {verb}")
    if dry_run:
        return
    if not yes:
        _ask(verb, total or 0)

    def detail(done: OperationInfo) -> str:
        return f"operation {done.id} {done.state}; {_counted(done.answers) or 'none matched'}"

    audited = Audited(f"tasks.{verb}", given, detail)
    done = on_store(
        lambda app: _perform(app, Asked(verb=Verb(verb), query=query, rate=rate, canary=Canary() if canary else None), total),
        audited=audited,
    )
    if as_json:
        show.print_json({"matched": done.matched, "answers": done.answers, "dry_run": False, "operation": done.id, "state": done.state})
    else:
        answers = _counted(done.answers)
        click.echo(f"{show.count(done.matched, 'task')}{': ' if answers else ''}{answers}")
    if done.state != "done":
        print_error(f"operation {done.id} {done.state}{': ' if done.note else ''}{done.note}")
        raise click.exceptions.Exit(REFUSED)


async def _count(app: App, verb: Literal["cancel", "retry"], query: Query) -> Bulk:
    return await (app.client.cancel_many if verb == "cancel" else app.client.retry_many)(query, dry_run=True)


async def _perform(app: App, asked: Asked, total: int | None) -> OperationInfo:
    return await until_ended(app, await app.client.operations.start(asked), total)


def _counted(answers: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {answer}" for answer, number in sorted(answers.items()))


def _change_named(name: Named, verb: str, one: One, as_json: bool) -> None:
    """Apply a command to tasks given by id, or to the one of a handler and key. Records it as done if it was done to at least one."""

    def detail(answers: dict[str, Answer]) -> str:
        return _counted(Counter(answer for answer, _ in answers.values()))

    def done(answers: dict[str, Answer]) -> bool:
        return any(code == 0 for _, code in answers.values())

    audited = Audited(f"tasks.{verb}", str(name), detail, done, known=", ".join if name.ids else None)
    _print_answers(on_store(lambda app: _each(app, name, one), audited=audited), as_json)


def _ask(verb: str, matched: int) -> None:
    question = f"{verb} {show.count(matched, 'task')}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {question}; add --yes to do it, or --dry-run to count only")
    if not click.confirm(f"{question}?", err=True):
        show.note("nothing was changed")
        raise click.exceptions.Exit(REFUSED)


async def _each(app: App, name: Named, one: One) -> dict[str, Answer]:
    """Apply a command once to each task that was named; a failure does not stop the rest."""
    import asyncio

    if not name.ids:
        task_id = await one_id(app, name)
        return {task_id: await one(app, task_id)}
    changes: dict[str, asyncio.Future[Answer]] = {}

    async def guarded(text: str) -> tuple[str, Answer]:
        task_id = text
        try:
            task_id = await whole_id(app, text)
            if task_id not in changes:  # another text may have named the same task
                changes[task_id] = asyncio.ensure_future(one(app, task_id))
            return task_id, await changes[task_id]
        except DuetimeError as problem:
            return task_id, (str(problem), exit_code(problem))

    answers: dict[str, Answer] = {}
    ids = list(dict.fromkeys(name.ids))
    with show.bar("changing tasks", len(ids)) as advance:
        for start in range(0, len(ids), _AT_ONCE):
            answers |= await asyncio.gather(*(guarded(text) for text in ids[start : start + _AT_ONCE]))
            advance(_AT_ONCE)
    return answers


def _print_answers(answers: dict[str, Answer], as_json: bool) -> None:
    """Print an answer per task. Failures go to stderr, and the first one gives the exit code."""
    if as_json:
        show.print_json_list({"id": task_id, "answer": answer, "exit_code": code} for task_id, (answer, code) in answers.items())
    for task_id, (answer, code) in answers.items():
        if as_json:
            continue
        if code == 0 or (code == CONFLICT and answer == "finished"):
            click.echo(f"{task_id} {answer}")
        else:
            print_error(answer)
    failures = [code for _, code in answers.values() if code]
    if failures:
        raise click.exceptions.Exit(failures[0])


_IN = click.option("--in", "delay", metavar=parsing.DURATION, callback=parsing.duration, help="Due this long from now.")
_AT = click.option("--at", metavar=parsing.INSTANT, callback=parsing.instant, help="Due at an instant: 2030-01-31T07:00:00Z.")


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@key_options
@_IN
@_AT
@parsing.tz_option
@click.option("--priority", type=int, help="0 to 9, 9 first.")
@click.option("--collection", metavar="NAME", help="The new collection.")
@click.option(
    "--payload", metavar="JSON|@FILE|-", callback=parsing.payload, help="The new arguments, a JSON object, from a file or standard input."
)
@json_option
@store_option
def edit(
    ids: tuple[str, ...],
    handler: str | None,
    key: str | None,
    delay: float | None,
    at: datetime | None,
    priority: int | None,
    collection: str | None,
    payload: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Change waiting tasks: due time, priority, collection, payload.

    A parked task that gets another payload is tried again at once. --payload alone also changes a task that ended without
    success: `duetime retry` then runs it with its new arguments.
    """

    async def edit_one(app: App, task_id: str) -> Answer:
        task = await app.client.edit(task_id, due_at=at, delay=delay, priority=priority, collection=collection, payload=payload)
        return (f"{task.state}; to run it: duetime retry" if task.final else f"{task.state}, due {show.absolute(task.due_at)}"), 0

    name = named(ids, handler, key)
    if delay is None and at is None and priority is None and collection is None and payload is None:
        raise click.UsageError("nothing to change: give --at, --in, --priority, --collection or --payload")
    if delay is not None and at is not None:
        raise click.UsageError("give --in or --at, not both")
    _change_named(name, "edit", edit_one, as_json)


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@key_options
@_IN
@_AT
@parsing.tz_option
@json_option
@store_option
@click.pass_context
def reschedule(ctx: click.Context, /, delay: float | None, at: datetime | None, **options: Any) -> None:
    """Change the due time of waiting tasks."""
    if delay is None and at is None:
        raise click.UsageError("say when: give --at or --in")
    ctx.invoke(edit, delay=delay, at=at, priority=None, collection=None, payload=None, **options)
