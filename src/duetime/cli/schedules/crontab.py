"""The `schedules import` command: turn the lines of a crontab into schedules of one handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

import click

from duetime.cli import parsing, show
from duetime.cli.failures import CONFLICT, REFUSED, print_error
from duetime.cli.schedules import tables
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.schedules.schedule import Schedule
    from duetime.model.crontab import Crontab, Entry
    from duetime.model.task import IfStored

PARTS = ("input", "environment", "user")
COLUMNS = (
    show.Column("line", right=True),
    show.Column("name"),
    show.Column("rule"),
    show.Column("payload", spare=1),
)


@click.command("import")
@click.argument("file", metavar="FILE", type=click.File("r", encoding="utf-8", errors="replace"))
@click.option("--handler", metavar="NAME", required=True, help="The handler that runs the commands; it is given `command`.")
@click.option("--prefix", metavar="TEXT", default="", help="The beginning of the schedules' names.")
@click.option("--system", is_flag=True, help="Each line has a user before the command, as in /etc/crontab.")
@click.option(
    "--tz", metavar="ZONE", callback=parsing.zone, help="The zone, until a line with CRON_TZ or TZ; otherwise UTC, and it is said so."
)
@click.option("--leave-out", type=click.Choice(PARTS), multiple=True, help="Leave this out of the payload; may be repeated.")
@click.option("--skip-refused", is_flag=True, help="Import the rest although some lines are refused.")
@click.option(
    "--if-exists", type=click.Choice(["error", "keep", "replace"]), default="error", show_default=True, help="If a name is taken."
)
@click.option("--allow-unknown", is_flag=True, help="Also if no process has declared the handler yet.")
@click.option("--dry-run", is_flag=True, help="Only show the schedules.")
@json_option
@store_option
def import_crontab(
    file: TextIO,
    handler: str,
    prefix: str,
    system: bool,
    tz: str | None,
    leave_out: tuple[str, ...],
    skip_refused: bool,
    if_exists: IfStored,
    allow_unknown: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Turn the lines of a crontab into schedules.

    The handler's payload is `command`, and where the crontab has them `input` (what follows a %), `environment` (variables) and `user`.
    """
    from duetime.model.crontab import read_crontab

    crontab = read_crontab(file.read(), system=system, tz=tz or "UTC")
    if tz is None:
        _report_zone(crontab)
    _report_refusals(crontab, skip_refused)
    schedules = [_schedule(entry, handler, prefix, leave_out) for entry in crontab.entries]
    if not dry_run:
        _put(schedules, prefix, if_exists, allow_unknown)
    if as_json:
        show.print_json_list(
            {**tables.document(schedule), "line": entry.line} for entry, schedule in zip(crontab.entries, schedules, strict=True)
        )
        return
    rows = [_row(entry, schedule) for entry, schedule in zip(crontab.entries, schedules, strict=True)]
    show.print_table(COLUMNS, rows, empty="the file has no entries")
    show.note(f"{show.count(len(schedules), 'schedule')} {'would be ' if dry_run else ''}imported")


def _report_zone(crontab: Crontab) -> None:
    """Say of how many entries nobody named the zone: cron would run them by the clock of its machine."""
    unzoned = sum(not entry.zoned for entry in crontab.entries)
    if unzoned:
        show.note(
            f"{show.count(unzoned, 'entry has', 'entries have')} no CRON_TZ or TZ above and {'runs' if unzoned == 1 else 'run'} by UTC; "
            "if cron ran them by another zone, name it with --tz"
        )


def _report_refusals(crontab: Crontab, skip_refused: bool) -> None:
    for refusal in crontab.refusals:
        print_error(str(refusal))
    if crontab.refusals and not skip_refused:
        print_error("nothing was imported; repair these lines, or add --skip-refused to import the others")
        raise click.exceptions.Exit(REFUSED)


def _schedule(entry: Entry, handler: str, prefix: str, leave_out: tuple[str, ...]) -> Schedule:
    from duetime.client.schedules.schedule import Schedule

    payload: dict[str, Any] = {"command": entry.command}
    for part in PARTS:
        value = getattr(entry, part)
        if value and part not in leave_out:
            payload[part] = value
    return Schedule(f"{prefix}{entry.name}", handler=handler, rule=entry.rule, payload=payload, note=entry.note)


def _put(schedules: list[Schedule], prefix: str, if_exists: IfStored, allow_unknown: bool) -> None:
    async def use(app: App) -> list[str]:
        if if_exists == "error":  # check before anything is written, so that a second import does not stop half-way
            taken = {info.name for info in await app.schedules.list(prefix=prefix or None)} & {schedule.name for schedule in schedules}
            if taken:
                return sorted(taken)
        with show.bar("making schedules", len(schedules)) as advance:
            for schedule in schedules:
                await app.schedules.put(schedule, if_exists=if_exists, allow_unknown=allow_unknown)
                advance(1)
        return []

    audited = Audited("schedules.import", f"{len(schedules)} schedules", done=lambda taken: not taken)
    taken = on_store(use, creates=allow_unknown, audited=audited)
    if taken:
        print_error(f"there are schedules of these names: {', '.join(taken)}; choose a --prefix, or --if-exists keep or replace")
        raise click.exceptions.Exit(CONFLICT)


def _row(entry: Entry, schedule: Schedule) -> tuple[object, ...]:
    import msgspec

    from duetime.model.rules import describe

    return (entry.line, schedule.name, describe(entry.rule), msgspec.json.encode(schedule.payload).decode())
