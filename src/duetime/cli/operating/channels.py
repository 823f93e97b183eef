"""The `channels` commands: where notices of alerts go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duetime.cli import show
from duetime.cli.failures import REFUSED, print_error
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.client.alerts.channels import ChannelInfo
    from duetime.targets.notices.channels import Channel

COLUMNS = (
    show.Column("name", whole=True),
    show.Column("kind"),
    show.Column("where"),
    show.Column("rules"),
    show.Column("changed", spare=1),
    show.Column("by", spare=2),
)
WAIT = 60.0  # seconds that `test` waits for its task


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def channels(ctx: click.Context, as_json: bool) -> None:
    """List, put, test and delete channels of alerts."""
    if ctx.invoked_subcommand is None:
        _list(as_json)


@channels.command("list")
@json_option
@store_option
def list_channels(as_json: bool) -> None:
    """List the channels."""
    _list(as_json)


def _list(as_json: bool) -> None:
    found = on_store(lambda app: app.channels.list())
    if as_json:
        show.print_json_list(found)
    else:
        show.print_table(COLUMNS, map(_row, found), empty="there is no channel; `duetime channels put` stores one")


def _row(info: ChannelInfo) -> tuple[object, ...]:
    from duetime.targets.notices.channels import kind_of

    rules = ", ".join(info.rules)
    return (info.name, kind_of(info.channel), where(info.channel), rules, show.absolute(info.changed_at), info.changed_by)


def where(channel: Channel) -> str:
    """Say in a few words where a channel leads to."""
    from duetime.targets.notices.channels import Mail

    if isinstance(channel, Mail):
        return f"{', '.join(channel.to)} by {channel.server}"
    return channel.url if isinstance(channel.url, str) else f"the secret {channel.url.name}"


@channels.command("show")
@click.argument("name")
@json_option
@store_option
def show_channel(name: str, as_json: bool) -> None:
    """Show a channel."""
    info = on_store(lambda app: app.channels.get(name))
    if as_json:
        show.print_json(info)
        return
    _, kind, at, rules, changed, by = _row(info)
    show.print_facts([("name", info.name), ("kind", kind), ("where", at), ("rules", rules or "none"), ("changed", f"{changed} by {by}")])


@channels.group()
def put() -> None:
    """Store a channel in place of an earlier one of its name."""


@put.command()
@click.argument("name")
@click.option("--server", metavar="URL", required=True, help="smtp://host:587 (with STARTTLS), or smtps://host.")
@click.option("--from", "sender", metavar="ADDRESS", required=True, help="Who sends it.")
@click.option("--to", metavar="ADDRESS", multiple=True, required=True, help="Who gets it; may be given several times.")
@click.option("--user", help="The user at the server.")
@click.option("--password", metavar="SECRET", help="The name of the secret with the password: duetime secrets put.")
@store_option
def mail(name: str, server: str, sender: str, to: tuple[str, ...], user: str | None, password: str | None) -> None:
    """Send mail."""
    from duetime.model.secrets import Secret
    from duetime.targets.http.auth import Basic
    from duetime.targets.notices.channels import Mail

    if (user is None) != (password is None):
        raise click.UsageError("give --user and --password together, or neither")
    auth = None if user is None or password is None else Basic(user, Secret(password))
    _put(name, Mail(server=server, sender=sender, to=to, auth=auth))


@put.command()
@click.argument("name")
@click.option("--to", "address", metavar="URL", help="Where to send it.")
@click.option("--to-secret", "secret", metavar="SECRET", help="The name of the secret with the URL.")
@click.option("--sign", metavar="SECRET", help="The name of the secret that signs: duetime secrets put.")
@store_option
def webhook(name: str, address: str | None, secret: str | None, sign: str | None) -> None:
    """Send JSON by POST, signed as webhooks are."""
    from duetime.model.secrets import Secret
    from duetime.targets.notices.channels import Webhook

    _put(name, Webhook(url=_url(address, secret), sign=None if sign is None else Secret(sign)))


@put.command()
@click.argument("name")
@click.option("--to", "address", metavar="URL", help="The incoming webhook; it is a secret itself, so rather give --to-secret.")
@click.option("--to-secret", "secret", metavar="SECRET", help="The name of the secret with the URL: duetime secrets put.")
@store_option
def slack(name: str, address: str | None, secret: str | None) -> None:
    """Send to Slack, or to what takes the same: Mattermost, Discord (…/slack), Rocket.Chat."""
    from duetime.targets.notices.channels import Slack

    _put(name, Slack(url=_url(address, secret)))


def _url(address: str | None, secret: str | None) -> Any:
    from duetime.model.secrets import Secret

    if (address is None) == (secret is None):
        raise click.UsageError("give --to or --to-secret, one of them")
    return address if secret is None else Secret(secret)


def _put(name: str, channel: Channel) -> None:
    info = on_store(lambda app: app.channels.put(name, channel), audited=Audited("channels.put", name))
    show.note(f"put {info.name}: {where(info.channel)}; try it: duetime channels test {info.name}")


@channels.command()
@click.argument("name")
@store_option
def test(name: str) -> None:
    """Send a test, and say whether it arrived. A worker must run."""
    task = on_store(lambda app: _tested(app, name), audited=Audited("channels.test", name))
    if task.state == "succeeded":
        show.note(f"the test has arrived at {name}")
        return
    why = f"{task.error.type}: {task.error.message}" if task.error else "nothing has taken it yet; start a worker"
    print_error(f"the test of {name} is {task.state}: {why}")
    raise click.exceptions.Exit(REFUSED)


async def _tested(app: Any, name: str) -> Any:
    task = await app.channels.test(name)
    return await app.client.wait(task.id, timeout=WAIT)


@channels.command()
@click.argument("name")
@store_option
def delete(name: str) -> None:
    """Remove a channel that no rule tells something."""
    on_store(lambda app: app.channels.delete(name), audited=Audited("channels.delete", name))
    show.note(f"deleted {name}")
