"""The `schedules` commands: list, show, pause and so on. Those with many options have files of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing, show
from duetime.cli.failures import exit_code, print_error
from duetime.cli.schedules import tables
from duetime.cli.schedules.backfill import backfill
from duetime.cli.schedules.crontab import import_crontab
from duetime.cli.schedules.declared import apply, plan
from duetime.cli.schedules.forecast import forecast_command
from duetime.cli.schedules.put import preview, put
from duetime.cli.schedules.runs import runs
from duetime.cli.session import Audited, json_option, now_of, on_store, store_option
from duetime.cli.tasks.listing import print_task_json
from duetime.cli.tasks.submit import print_result
from duetime.errors import DuetimeError

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.schedules.info import ScheduleInfo, SkipInfo

NEXT_SHOWN = 5
SKIPS_SHOWN = 5


def _listing(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        store_option,
        json_option,
        click.option("--paused", is_flag=True, default=None, help="Only those that are paused."),
        click.option("--handler", metavar="NAME", help="Only those of this handler."),
        click.option("--prefix", metavar="TEXT", help="Only those whose names begin with this, such as a folder: reports/"),
    ):
        function = option(function)
    return function


@click.group(invoke_without_command=True)
@_listing
@click.pass_context
def schedules(ctx: click.Context, handler: str | None, prefix: str | None, paused: bool | None, as_json: bool) -> None:
    """List, make and control schedules.

    A schedule creates tasks by a rule, one for each planned instant. Without a command the schedules are listed.
    """
    if ctx.invoked_subcommand is None:
        _list(handler, prefix, paused, as_json)


@schedules.command("list")
@_listing
def list_schedules(handler: str | None, prefix: str | None, paused: bool | None, as_json: bool) -> None:
    """List schedules by name."""
    _list(handler, prefix, paused, as_json)


def _list(handler: str | None, prefix: str | None, paused: bool | None, as_json: bool) -> None:
    async def use(app: App) -> None:
        found = await app.schedules.list(handler=handler, paused=paused, prefix=prefix)
        if as_json:
            show.print_json_list(tables.document(info) for info in found)
            return
        tables.print_rows(found, now_of(app))
        late = [info.name for info in found if info.health == "late"]
        if late:
            show.note(f"{show.count(len(late), 'schedule')} late: no worker fires schedules now; `duetime workers` lists the live ones")

    on_store(use)


@schedules.command("show")
@click.argument("name")
@json_option
@store_option
def show_schedule(name: str, as_json: bool) -> None:
    """Show one schedule: what it does, when it runs next, and what was skipped."""

    async def use(app: App) -> tuple[ScheduleInfo, list[datetime], list[SkipInfo], datetime]:
        info = await app.schedules.get(name)
        following = [] if info.problem else await app.schedules.preview(name, count=NEXT_SHOWN)
        return info, following, (await app.schedules.skips(name, limit=SKIPS_SHOWN)), now_of(app)

    info, following, skips, now = on_store(use)
    if as_json:
        show.print_json({**tables.document(info), "following": tables.document(following), "skips": tables.document(skips)})
    else:
        tables.print_one(info, following, skips, now)


# ---- commands on schedules by name ----


def _names(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--prefix", metavar="TEXT", help="All whose names begin with this, such as a folder: reports/")(function)
    return click.argument("names", metavar="[NAME]...", nargs=-1)(store_option(function))


@schedules.command()
@click.argument("name")
@click.argument("new")
@json_option
@store_option
def copy(name: str, new: str, as_json: bool) -> None:
    """Store the same schedule under a new name; it fires from now on."""
    audited = Audited("schedules.copy", name, detail=lambda copied: f"to {new}")
    info, now = on_store(lambda app: _copied(app, name, new), audited=audited)
    if as_json:
        show.print_json(tables.document(info))
    else:
        following = tables.next_words(info, now)
        click.echo(f"copied {name} to {new}{', next ' if following else ''}{following or ''}")


async def _copied(app: App, name: str, new: str) -> tuple[ScheduleInfo, datetime]:
    return await app.schedules.copy(name, new), now_of(app)


@schedules.command()
@_names
def delete(names: tuple[str, ...], prefix: str | None) -> None:
    """Remove schedules; tasks that they have created stay."""

    async def one(app: App, name: str) -> str:
        await app.schedules.delete(name)
        return f"deleted {name}"

    _each("schedules.delete", names, prefix, one)


@schedules.command()
@_names
@click.option("--note", metavar="TEXT", default="", help="Why; shown beside the schedule.")
def pause(names: tuple[str, ...], prefix: str | None, note: str) -> None:
    """Stop schedules from firing until they are resumed."""

    async def one(app: App, name: str) -> str:
        await app.schedules.pause(name, note=note)
        return f"paused {name}"

    _each("schedules.pause", names, prefix, one)


@schedules.command()
@_names
@click.option("--catch-up", is_flag=True, help="Treat what was planned meanwhile as missed, by the schedule's policy.")
def resume(names: tuple[str, ...], prefix: str | None, catch_up: bool) -> None:
    """Let paused schedules fire again, from now on."""

    async def one(app: App, name: str) -> str:
        info = await app.schedules.resume(name, catch_up=catch_up)
        following = tables.next_words(info, now_of(app))
        return f"resumed {name}{', next ' if following else ''}{following or ''}"

    _each("schedules.resume", names, prefix, one)


def _each(action: str, names: Sequence[str], prefix: str | None, one: Callable[[App, str], Awaitable[str]]) -> None:
    """Apply a command to each schedule. A failure does not stop the rest, and the first one gives the exit code."""
    if bool(names) == bool(prefix):
        raise click.UsageError("give the names of schedules, or --prefix with how they begin")

    async def use(app: App) -> list[int]:
        failures: list[int] = []
        chosen = names if prefix is None else [info.name for info in await app.schedules.list(prefix=prefix)]
        for name in dict.fromkeys(chosen):
            try:
                click.echo(await one(app, name))
            except DuetimeError as problem:
                print_error(str(problem))
                failures.append(exit_code(problem))
        return failures

    failures = on_store(
        use, audited=Audited(action, ", ".join(names) or f"all that begin with {prefix}", done=lambda failures: not failures)
    )
    if failures:
        raise click.exceptions.Exit(failures[0])


@schedules.command()
@click.argument("name")
@click.argument("arguments", metavar="[NAME=VALUE]...", nargs=-1, callback=parsing.argument_map)
@click.option("--payload", metavar="JSON|@FILE|-", callback=parsing.payload, help="Arguments for this run only, as a JSON object.")
@click.option("--overlap", metavar="POLICY", default="allow", show_default=True, help="If a run is still going on: a policy as in `put`.")
@click.option("--wait", is_flag=True, help="Wait until it ends and print its result.")
@click.option("--wait-timeout", metavar=parsing.DURATION, callback=parsing.duration, help="Wait at most this long.")
@json_option
@store_option
def trigger(
    name: str,
    arguments: dict[str, Any],
    payload: dict[str, Any] | None,
    overlap: str,
    wait: bool,
    wait_timeout: float | None,
    as_json: bool,
) -> None:
    """Run a schedule's work now, and print the task's id.

    The rule is not affected. NAME=VALUE and --payload replace the same arguments of the schedule's payload.
    """

    async def use(app: App) -> None:
        given = {**(payload or {}), **arguments}
        if given:
            given = {**(await app.schedules.get(name)).schedule.payload, **given}
        task = await app.schedules.trigger(name, payload=given or None, overlap=overlap)
        if wait or wait_timeout is not None:
            await print_result(app, task, wait_timeout, as_json)
        elif as_json:
            print_task_json(task)
        else:
            click.echo(task.id)

    on_store(use, audited=Audited("schedules.trigger", name))


for _command in (put, runs, preview, backfill, plan, apply, import_crontab, forecast_command):
    schedules.add_command(_command)
