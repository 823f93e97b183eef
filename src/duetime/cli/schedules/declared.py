"""Schedules declared in code: `schedules plan` shows what the declarations would change, `schedules apply` does it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import show
from duetime.cli.failures import REFUSED
from duetime.cli.schedules import tables
from duetime.cli.session import Audited, given_url, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.schedules.declaring import Difference, SchedulePlan

_SIGNS = {"add": "+", "change": "~", "remove": "-", "older": "!", "keep": "=", "adopt": "="}
_REMARKS = {"older": "a newer revision has declared it; it is left alone", "keep": "changed by hand; left until the code changes"}


def _of_app(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--prefix", metavar="TEXT", default="", help="Remove only schedules whose names begin with this.")(function)
    return click.argument("app_path", metavar="[APP]", required=False, envvar="DUETIME_APP")(json_option(store_option(function)))


@click.command()
@_of_app
def plan(app_path: str | None, prefix: str, as_json: bool) -> None:
    """Show what `apply` would change.

    APP is module:name; the default is DUETIME_APP. The exit code is 0 if nothing differs, and 1 otherwise.
    """
    app = _find(app_path)
    found = on_store(lambda app: app.schedules.plan(prefix=prefix), app=app)
    _print_plan(found, as_json)
    if found:
        raise click.exceptions.Exit(REFUSED)


@click.command()
@_of_app
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def apply(app_path: str | None, prefix: str, as_json: bool, yes: bool) -> None:
    """Make the stored schedules match those that an App declares.

    Schedules that code declared once and no longer declares are removed; those that people made stay. APP is module:name.
    """
    app = _find(app_path)
    if not yes:
        found = on_store(lambda app: app.schedules.plan(prefix=prefix), app=app)
        if not found:
            _print_plan(found, as_json)
            return
        if not sys.stdin.isatty():
            raise click.UsageError(f"this would {_counts(found)}; add --yes to do it, or look at `duetime schedules plan` first")
        _print_plan(found, False)
        if not click.confirm(f"{_counts(found)}?", err=True):
            show.note("nothing was changed")
            raise click.exceptions.Exit(REFUSED)
    audited = Audited("schedules.apply", prefix or "all that code declared")
    _print_plan(on_store(lambda app: app.schedules.apply(prefix=prefix), app=app, creates=True, audited=audited), as_json)


def _find(app_path: str | None) -> App:
    if not app_path:
        raise click.UsageError("which App? give it as module:name, such as shop.tasks:app, or set DUETIME_APP")
    from duetime.cli.importing import find_app

    return find_app(app_path, given_url())


def _print_plan(found: SchedulePlan, as_json: bool) -> None:
    if as_json:
        show.print_json({"differs": bool(found), "differences": tables.document(found.differences)})
        return
    for difference in found.differences:
        _print_difference(difference)
    click.echo(_counts(found) if found else "nothing differs")


def _print_difference(difference: Difference) -> None:
    if difference.action in ("keep", "adopt") and not difference.fields:
        return
    remark = _REMARKS.get(difference.action, difference.action)
    click.echo(show.printable(f"{_SIGNS[difference.action]} {difference.name}: {remark}"))
    for change in difference.fields:
        click.echo(show.printable(f"    {change.field}: {_json(change.stored)} → {_json(change.declared)}"))


def _counts(found: SchedulePlan) -> str:
    parts = (("add", found.added), ("change", found.changed), ("remove", found.removed))
    return ", ".join(f"{verb} {len(names):,}" for verb, names in parts if names) or "change nothing"


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
