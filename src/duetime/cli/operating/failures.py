"""The `failures` commands: failures of the same kind as one line each, muted or run again."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from duetime.cli import parsing, show
from duetime.cli.session import Audited, json_option, now_of, on_store, store_option
from duetime.cli.tasks.change import retry

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.failures import Failure
    from duetime.model.task import Task

COLUMNS = (
    show.Column("fingerprint", whole=True),
    show.Column("tasks", right=True),
    show.Column("attempts", right=True),
    show.Column("last"),
    show.Column("handler"),
    show.Column("error"),
    show.Column("first", spare=3),
    show.Column("trend", spare=2, whole=True),
    show.Column("mark", spare=1),
)
BARS = " ▁▂▃▄▅▆▇█"

_since = click.option(
    "--since",
    metavar=parsing.MOMENT,
    callback=parsing.past_moment,
    default="24h",
    show_default=True,
    help="Counts since then; 2h: two hours.",
)
_handler = click.option("--handler", metavar="NAME", help="Only failures of this handler.")
_muted = click.option("--muted", is_flag=True, help="Those that are muted too.")


@click.group(invoke_without_command=True)
@_since
@_handler
@_muted
@json_option
@store_option
@click.pass_context
def failures(ctx: click.Context, since: datetime, handler: str | None, muted: bool, as_json: bool) -> None:
    """List, mute and retry failures by kind.

    Failures of one handler, with the same type of error and from the same function, are one kind. Without a command the kinds of the last
    day are listed, the latest first.
    """
    if ctx.invoked_subcommand is None:
        _list(since, handler, muted, as_json)


@failures.command("list")
@_since
@_handler
@_muted
@json_option
@store_option
def list_failures(since: datetime, handler: str | None, muted: bool, as_json: bool) -> None:
    """List the kinds of failures, the latest first."""
    _list(since, handler, muted, as_json)


def _list(since: datetime, handler: str | None, muted: bool, as_json: bool) -> None:
    async def use(app: App) -> tuple[list[Failure], datetime]:
        return await app.failures.list(since=since, handler=handler), now_of(app)

    found, now = on_store(use)
    listed = [each for each in found if muted or each.muted_until_at is None]
    if as_json:
        show.print_json_list(listed)
        return
    left_out = len(found) - len(listed)
    empty = f"no failure since {show.absolute(since)}" if not left_out else f"no failure that is not muted since {show.absolute(since)}"
    show.print_table(COLUMNS, [_row(each, now) for each in listed], empty=empty)
    if left_out:
        show.note(f"{show.count(left_out, 'muted kind')} not shown; add --muted")


def _row(failure: Failure, now: datetime) -> tuple[object, ...]:
    said = f"{failure.type}: {failure.message}" if failure.message else failure.type
    return (
        *(failure.fingerprint, f"{failure.tasks:,}", f"{failure.attempts:,}", show.relative(failure.last_at, now), failure.handler, said),
        *(show.relative(failure.first_at, now), bars(failure.trend), mark(failure)),
    )


def bars(trend: list[int]) -> str:
    """Draw counts as one character each; what is not zero is seen."""
    highest = max(trend, default=0)
    return "".join(BARS[0 if not each else max(1, round(each * (len(BARS) - 1) / highest))] for each in trend)


def mark(failure: Failure) -> str | None:
    if failure.muted_until_at is not None:
        return f"muted until {show.absolute(failure.muted_until_at)}"
    return "new" if failure.new else "again after 3 d" if failure.again else None


@failures.command("show")
@click.argument("fingerprint")
@_since
@json_option
@store_option
def show_failure(fingerprint: str, since: datetime, as_json: bool) -> None:
    """Show a kind of failure with the traceback of its last task."""
    from duetime.errors import TaskNotFound

    async def use(app: App) -> tuple[Failure, Task[object] | None, datetime]:
        found = await app.failures.get(fingerprint, since=since)
        try:
            task = await app.client.get(found.sample)
        except TaskNotFound:
            task = None
        return found, task, now_of(app)

    found, task, now = on_store(use)
    if as_json:
        show.print_json(found)
        return
    show.print_facts(
        (
            ("failure", f"{found.type}: {found.message}" if found.message else found.type),
            ("handler", found.handler),
            ("where", found.location),
            ("tasks failed", f"{found.tasks:,}"),
            ("attempts failed", f"{found.attempts:,}"),
            ("since", show.absolute(since)),
            ("first seen", show.relative(found.first_at, now)),
            ("last seen", show.relative(found.last_at, now)),
            ("trend", bars(found.trend).strip() and bars(found.trend)),
            ("mark", mark(found)),
            ("last task", found.sample if task is not None else f"{found.sample}, no longer stored"),
        )
    )
    if task is not None and task.error is not None and task.error.fingerprint == found.fingerprint:
        click.echo()
        show.print_traceback(task.error)


@failures.command()
@click.argument("fingerprint")
@click.option("--for", "lasting", metavar=parsing.DURATION, callback=parsing.duration, help="For this long: 7d.")
@click.option("--until", metavar=parsing.INSTANT, callback=parsing.instant, help="Until an instant: 2030-01-31T07:00:00Z.")
@parsing.tz_option
@json_option
@store_option
def mute(fingerprint: str, lasting: float | None, until: datetime | None, as_json: bool) -> None:
    """Mark a kind of failure as known. It is counted as before."""
    if lasting is not None and until is not None:
        raise click.UsageError("give --for or --until, not both")
    given = until if until is not None else lasting
    if given is None:
        raise click.UsageError("say until when: give --for, such as 7d, or --until")
    audited = Audited("failures.mute", fingerprint, detail=lambda done: f"{done}; until {done.muted_until_at}")
    done: Failure = on_store(lambda app: app.failures.mute(fingerprint, given), audited=audited)
    if as_json:
        show.print_json(done)
        return
    click.echo(show.printable(f"muted until {show.absolute(done.muted_until_at)}: {done}"))


@failures.command()
@click.argument("fingerprint")
@json_option
@store_option
def unmute(fingerprint: str, as_json: bool) -> None:
    """Take a mute back."""
    done: Failure = on_store(lambda app: app.failures.unmute(fingerprint), audited=Audited("failures.unmute", fingerprint, detail=str))
    if as_json:
        show.print_json(done)
        return
    click.echo(show.printable(f"no longer muted: {done}"))


@failures.command("retry")
@click.argument("fingerprint")
@click.option("--dry-run", is_flag=True, help="Only count the tasks.")
@click.option("--rate", type=float, metavar="N", help="Run at most N tasks again per second.")
@click.option("--canary", is_flag=True, help="One task first, then 1 %, then the rest; stop if over 10 % of them fail again.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@store_option
@click.pass_context
def retry_failure(ctx: click.Context, fingerprint: str, dry_run: bool, rate: float | None, canary: bool, yes: bool, as_json: bool) -> None:
    """Run all tasks again that failed in this way.

    The same as `duetime retry --state failed --fingerprint FINGERPRINT`.
    """
    asked = {"dry_run": dry_run, "rate": rate, "canary": canary, "yes": yes, "as_json": as_json}
    ctx.invoke(retry, ids=(), state="failed", fingerprint=fingerprint, **asked)
