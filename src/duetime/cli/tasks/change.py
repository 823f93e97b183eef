"""Commands that change tasks: `cancel`, `retry`, `edit`, `reschedule`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from duetime.cli import parsing, show
from duetime.cli.failures import CONFLICT, REFUSED, exit_code, print_error
from duetime.cli.session import Audited, json_option, on_store, store_option
from duetime.cli.tasks.filters import any_given, filter_options, query_from
from duetime.errors import DuetimeError

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.client import Bulk

# What a command answers for one task, and the exit code (0: done).
Answer: TypeAlias = tuple[str, int]
One: TypeAlias = Callable[["App", str], Awaitable[Answer]]

_AT_ONCE = 64  # ids under way at once; a store writes what arrives together in one commit


def many_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--yes", "-y", is_flag=True, help="Do not ask before changing what the filters match.")(function)
    function = click.option("--dry-run", is_flag=True, help="Only count what the filters match.")(function)
    return filter_options(function)


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@many_options
@json_option
@store_option
def cancel(ids: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool, **filters: Any) -> None:
    """Cancel tasks, by id or by filters.

    --handler and --key alone name one task, which is cancelled without a question. A waiting task never starts: `cancelled`. A
    running one is told to stop: `cancelling`. One that has ended stays as it is: `finished`.
    """
    given = {name for name, value in filters.items() if value is not None}
    if given == {"handler", "key"} and not ids and not dry_run:

        async def by_key(app: App) -> dict[str, Answer]:
            task = await app.client.find(filters["handler"], filters["key"])
            return {task.id: await _cancel_one(app, task.id)}

        audited = _audited("cancel", f"{filters['handler']}, key {filters['key']}")
        _print_answers(on_store(by_key, audited=audited), as_json)
    else:
        _change(ids, filters, dry_run, yes, as_json, verb="cancel", one=_cancel_one, many=lambda app: app.client.cancel_many)


async def _cancel_one(app: App, task_id: str) -> Answer:
    verdict = await app.client.cancel(task_id)
    return verdict.value, CONFLICT if verdict == "finished" else 0


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@many_options
@json_option
@store_option
def retry(ids: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool, **filters: Any) -> None:
    """Run tasks again that did not succeed.

    By id or by filters; without --state the failed ones. A task keeps its id, and its attempts are counted on.
    """
    _change(ids, filters, dry_run, yes, as_json, verb="retry", one=_retry_one, many=lambda app: app.client.retry_many)


async def _retry_one(app: App, task_id: str) -> Answer:
    return (await app.client.retry(task_id)).state.value, 0


def _change(
    ids: Sequence[str],
    filters: dict[str, Any],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    *,
    verb: str,
    one: One,
    many: Callable[[App], Callable[..., Awaitable[Bulk]]],
) -> None:
    """Apply a command to tasks given by id, or to those that the filters match."""
    if bool(ids) == any_given(filters):
        raise click.UsageError("give task ids, or filters, not both" if ids else "give task ids, or filters such as --handler and --state")
    if ids and dry_run:
        raise click.UsageError("--dry-run counts what filters match; it takes no ids")
    if ids:
        _print_answers(on_store(lambda app: _each(app, ids, one), audited=_audited(verb, ", ".join(ids))), as_json)
        return
    query = query_from(filters)
    given = ", ".join(f"{name} {value}" for name, value in sorted(filters.items()) if value is not None)
    audited = Audited(f"tasks.{verb}", given, detail=lambda done: f"{show.count(done.matched, 'task')}: {_counted(done.answers)}")

    def perform(doing: str, **options: bool) -> Bulk:
        with show.bar(doing, None):
            return on_store(lambda app: many(app)(query, **options), audited=None if options["dry_run"] else audited)

    if not yes and not dry_run:
        _ask(verb, perform("counting tasks", dry_run=True).matched)
    done = perform("counting tasks" if dry_run else "changing tasks", dry_run=dry_run)
    if as_json:
        show.print_json({"matched": done.matched, "answers": done.answers, "dry_run": dry_run})
    elif dry_run:
        click.echo(f"{show.count(done.matched, 'task')} would be changed by {verb}")
    else:
        answers = _counted(done.answers)
        click.echo(f"{show.count(done.matched, 'task')}{': ' if answers else ''}{answers}")


def _counted(answers: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {answer}" for answer, number in sorted(answers.items()))


def _audited(verb: str, subject: str) -> Audited:
    """Describe a change of tasks given by id for the audit; it counts as done if it was done to at least one."""

    def detail(answers: dict[str, Answer]) -> str:
        return _counted(Counter(answer for answer, _ in answers.values()))

    return Audited(f"tasks.{verb}", subject, detail, lambda answers: any(code == 0 for _, code in answers.values()))


def _ask(verb: str, matched: int) -> None:
    question = f"{verb} {show.count(matched, 'task')}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {question}; add --yes to do it, or --dry-run to count only")
    if not click.confirm(f"{question}?", err=True):
        show.note("nothing was changed")
        raise click.exceptions.Exit(REFUSED)


async def _each(app: App, ids: Sequence[str], one: One) -> dict[str, Answer]:
    """Apply a command to each id; a failure does not stop the rest."""
    import asyncio

    async def guarded(task_id: str) -> Answer:
        try:
            return await one(app, task_id)
        except DuetimeError as problem:
            return str(problem), exit_code(problem)

    ids = list(dict.fromkeys(ids))
    answers: list[Answer] = []
    with show.bar("changing tasks", len(ids)) as advance:
        for start in range(0, len(ids), _AT_ONCE):
            answers += await asyncio.gather(*(guarded(task_id) for task_id in ids[start : start + _AT_ONCE]))
            advance(_AT_ONCE)
    return dict(zip(ids, answers, strict=True))


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
_AT = click.option("--at", metavar=parsing.INSTANT, callback=parsing.instant, help="Due at an instant with a zone.")


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@_IN
@_AT
@click.option("--priority", type=int, help="0 to 9, 9 first.")
@click.option("--collection", metavar="NAME", help="The new collection.")
@json_option
@store_option
def edit(
    ids: tuple[str, ...], delay: float | None, at: datetime | None, priority: int | None, collection: str | None, as_json: bool
) -> None:
    """Change the due time, priority or collection of waiting tasks."""

    async def edit_one(app: App, task_id: str) -> Answer:
        task = await app.client.edit(task_id, due_at=at, delay=delay, priority=priority, collection=collection)
        return f"{task.state}, due {show.absolute(task.due_at)}", 0

    if delay is None and at is None and priority is None and collection is None:
        raise click.UsageError("nothing to change: give --at, --in, --priority or --collection")
    if delay is not None and at is not None:
        raise click.UsageError("give --in or --at, not both")
    _print_answers(on_store(lambda app: _each(app, ids, edit_one), audited=_audited("edit", ", ".join(ids))), as_json)


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@_IN
@_AT
@json_option
@store_option
@click.pass_context
def reschedule(ctx: click.Context, ids: tuple[str, ...], delay: float | None, at: datetime | None, as_json: bool) -> None:
    """Change the due time of waiting tasks."""
    if delay is None and at is None:
        raise click.UsageError("say when: give --at or --in")
    ctx.invoke(edit, ids=ids, delay=delay, at=at, priority=None, collection=None, as_json=as_json)
