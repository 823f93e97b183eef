"""The `schedules backfill` command: run planned instants that have passed."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing, show
from duetime.cli.failures import REFUSED
from duetime.cli.schedules import tables
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.schedules.backfill import Backfill


@click.command()
@click.argument("name")
@click.option("--from", "start", metavar=parsing.INSTANT, required=True, callback=parsing.instant, help="The first instant.")
@click.option("--to", "end", metavar=parsing.INSTANT, required=True, callback=parsing.instant, help="The last instant.")
@click.option(
    "--existing",
    type=click.Choice(["skip", "failed", "all"]),
    default="skip",
    show_default=True,
    help="Which occurrences that already have a task to run again.",
)
@click.option("--concurrency", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="How many may run at once.")
@click.option("--dry-run", is_flag=True, help="Only count what would be run.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@parsing.tz_option
@json_option
@store_option
def backfill(name: str, start: datetime, end: datetime, existing: str, concurrency: int, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Run what a schedule had planned between two instants, at most 10,000 occurrences."""
    options: dict[str, Any] = {"existing": existing, "concurrency": concurrency}

    async def perform(app: App, dry: bool) -> Backfill:
        return await app.schedules.backfill(name, start, end, dry_run=dry, **options)

    if dry_run or not yes:
        with show.bar("counting occurrences", None):
            report = on_store(lambda app: perform(app, True))
    if not dry_run:
        if not yes:
            _ask(name, report)
        with show.bar("submitting tasks", None):
            report = on_store(lambda app: perform(app, False), audited=Audited("schedules.backfill", name))
    if as_json:
        show.print_json(tables.document(report))
    else:
        click.echo(_words(report))


def _ask(name: str, report: Backfill) -> None:
    question = f"run {show.count(len(report.planned), 'occurrence')} of {name}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {question}; add --yes to do it, or --dry-run to count only")
    if not click.confirm(f"{question}?", err=True):
        show.note("nothing was submitted")
        raise click.exceptions.Exit(REFUSED)


def _words(report: Backfill) -> str:
    done = "would be run" if report.dry_run else "submitted"
    parts = [f"{report.schedule}: {show.count(len(report.planned), 'occurrence')} {done}"]
    if report.existing:
        parts.append(f"{report.existing:,} left alone because they have a task already")
    if report.ahead:
        parts.append(f"{report.ahead:,} left to the schedule itself")
    return ", ".join(parts)
