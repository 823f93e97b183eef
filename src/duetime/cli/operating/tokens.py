"""Who may use a server, and what operators did: `tokens`, `audit`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from duetime.cli import parsing, show
from duetime.cli.session import json_option, on_store, store_option
from duetime.model.access import Scope

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.access.service import AuditInfo, AuditList, NewToken, TokenInfo

COLUMNS = (
    show.Column("name", whole=True),
    show.Column("scopes"),
    show.Column("handlers", spare=1),
    show.Column("expires", whole=True),
    show.Column("last use", whole=True),
    show.Column("rate", right=True, spare=2),
    show.Column("owner", spare=7),
    show.Column("created", spare=5),
    show.Column("created by", spare=4),
    show.Column("note", spare=3),
    show.Column("id", whole=True, spare=6),
)
AUDIT_COLUMNS = (
    show.Column("at"),
    show.Column("by"),
    show.Column("action"),
    show.Column("subject"),
    show.Column("outcome"),
    show.Column("from", spare=2),
    show.Column("detail", spare=1),
)
PAGE = 1_000

_expires = click.option(
    "--expires", metavar=f"{parsing.DURATION}|ISO", callback=parsing.expiry, help="Valid for this long, or until an instant."
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def tokens(ctx: click.Context, as_json: bool) -> None:
    """List, make, rotate and revoke tokens.

    A token lets its bearer use a server. Without a command the tokens are listed, without their secrets.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@tokens.command("list")
@json_option
@store_option
def list_tokens(as_json: bool) -> None:
    """List the tokens, without their secrets."""
    _list(as_json)


def _list(as_json: bool) -> None:
    found = on_store(lambda app: app.tokens.list())
    if as_json:
        show.print_json_list(found)
    else:
        show.print_table(COLUMNS, map(_row, found), empty="there is no token; `duetime tokens create` makes one")


def _row(token: TokenInfo) -> tuple[object, ...]:
    expires = "never" if token.expires_at is None else show.absolute(token.expires_at)
    return (
        *(
            token.name,
            ", ".join(token.scopes),
            ", ".join(token.handlers) or "all",
            f"{expires}, over" if token.expired else expires,
        ),
        *(show.absolute(token.last_used_at), None if token.rate is None else f"{token.rate:g}/s"),
        *("" if token.owner == token.name else token.owner, show.absolute(token.created_at), token.created_by, token.note, token.id),
    )


@tokens.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", type=click.Choice([scope.value for scope in Scope]), multiple=True, required=True, help="May be repeated."
)
@click.option(
    "--handler", "handlers", metavar="NAME", multiple=True, help="Only for this handler, or all of a prefix: shop.*; may be repeated."
)
@click.option("--owner", metavar="NAME", help="Whose it is: who submits what comes with it; without one the token's name.")
@click.option("--address", "addresses", metavar="NETWORK", multiple=True, help="Only from there, such as 10.0.0.0/8; may be repeated.")
@_expires
@parsing.tz_option
@click.option("--rate", type=float, metavar="N", help="At most this many requests a second at each server process.")
@click.option("--note", metavar="TEXT", default="", help="What it is for.")
@json_option
@store_option
def create(name: str, as_json: bool, **options: Any) -> None:
    """Make a token and print it, this once."""
    _print_token(on_store(lambda app: app.tokens.create(name, **options)), as_json)


@tokens.command()
@click.argument("name")
@click.option(
    "--grace",
    metavar=parsing.DURATION,
    callback=parsing.duration,
    default="1d",
    show_default=True,
    help="How long the old secret stays valid; 0 if it has leaked.",
)
@_expires
@parsing.tz_option
@json_option
@store_option
def rotate(name: str, grace: float, expires: float | datetime | None, as_json: bool) -> None:
    """Replace the secret of a token and print the new one, this once.

    NAME is a name, an id, or the token itself.
    """
    _print_token(on_store(lambda app: app.tokens.rotate(name, grace=grace, expires=expires)), as_json)


def _print_token(new: NewToken, as_json: bool) -> None:
    """Print the token alone on stdout, so that it can be piped into a file; the rest goes to stderr."""
    if as_json:
        show.print_json({"token": new.token, **msgspec.structs.asdict(new.info)})
        return
    click.echo(new.token)
    until = "" if new.info.old_until_at is None else f" The old secret is valid until {show.absolute(new.info.old_until_at)}."
    show.note(f"This is {show.printable(new.info.name)}. Keep it safe now: only its digest is stored, so it cannot be shown again.{until}")


@tokens.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Also the token that makes the request, and the last one with the scope admin.")
@json_option
@store_option
def revoke(name: str, force: bool, as_json: bool) -> None:
    """Revoke a token.

    NAME is a name, an id, or the token itself. Servers refuse it within five seconds.
    """
    gone = on_store(lambda app: app.tokens.revoke(name, force=force))
    if as_json:
        show.print_json(gone)
    else:
        click.echo(f"revoked {show.printable(gone.name)}")


@click.command()
@click.option("--by", metavar="NAME", help="Only what this token or user did.")
@click.option("--action", metavar="NAME", help="Only this, such as gates.pause or tokens.create.")
@click.option("--subject", metavar="NAME", help="Only what was done to this.")
@click.option("--since", metavar=parsing.MOMENT, callback=parsing.past_moment, help="Only then or later; 1h is an hour ago.")
@click.option("--until", metavar=parsing.MOMENT, callback=parsing.past_moment, help="Only before then.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="At most this many, the latest first.")
@parsing.tz_option
@json_option
@store_option
def audit(limit: int, as_json: bool, **filters: Any) -> None:
    """List what operators did.

    Who, what, on what, when, from where, and how it ended; the latest first.
    """
    found = on_store(lambda app: _entries(app, limit, filters))
    if as_json:
        show.print_json_list(found)
        return
    rows = ((show.absolute(entry.at), entry.by, entry.action, entry.subject, entry.outcome, entry.origin, entry.detail) for entry in found)
    show.print_table(AUDIT_COLUMNS, rows, empty="the audit has no such entry")


async def _entries(app: App, limit: int, filters: dict[str, Any]) -> list[AuditInfo]:
    found: list[AuditInfo] = []
    cursor: str | None = None
    while len(found) < limit:
        page: AuditList = await app.tokens.audit.list(**filters, limit=min(limit - len(found), PAGE), cursor=cursor)
        found += page.items
        cursor = page.next
        if cursor is None:
            break
    return found
