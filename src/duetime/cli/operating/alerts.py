"""The `alerts` commands: rules, what fires, and taking notice of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing, show
from duetime.cli.session import Audited, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.client.alerts.alerts import Alert, AlertRuleInfo
    from duetime.model.alerts.conditions import Condition

KINDS = ("failing", "disabled", "late", "slo", "running", "backlog", "certificate", "missed", "deadline", "worker_lost")
RULES = (
    show.Column("rule", whole=True),
    show.Column("condition"),
    show.Column("channels"),
    show.Column("firing", right=True),
    show.Column("pending", right=True),
    show.Column("state", spare=1),
    show.Column("by", spare=2),
)
ALERTS = (
    show.Column("rule", whole=True),
    show.Column("subject", whole=True),
    show.Column("state"),
    show.Column("since", whole=True),
    show.Column("what"),
)


@click.group(invoke_without_command=True)
@json_option
@store_option
@click.pass_context
def alerts(ctx: click.Context, as_json: bool) -> None:
    """Rules that tell people what is not well.

    Without a command the rules are listed. Where notices go: `duetime channels`.
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)


@alerts.command("list")
@json_option
@store_option
def list_rules(as_json: bool) -> None:
    """List the rules."""
    _list(as_json)


def _list(as_json: bool) -> None:
    found = on_store(lambda app: app.alerts.list())
    if as_json:
        show.print_json_list(found)
    else:
        show.print_table(RULES, map(_rule_row, found), empty="there is no rule; `duetime alerts suggest` shows some that would suit")


def _rule_row(info: AlertRuleInfo) -> tuple[object, ...]:
    state = f"muted until {show.absolute(info.muted_until)}" if info.muted_until else "quiet now" if info.silent else ""
    by = "code" if info.declared else info.changed_by
    return (info.rule.name, _written(info.rule.when), ", ".join(info.rule.channels), info.firing, info.pending, state, by)


def _written(condition: Condition) -> str:
    from duetime.model.alerts.conditions import written

    return written(condition)


@alerts.command()
@click.argument("name")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("fields", metavar="[FIELD=VALUE]…", nargs=-1)
@click.option("--channel", "channels", metavar="NAME", multiple=True, required=True, help="Whom to tell; may be given several times.")
@click.option(
    "--sustained", metavar=parsing.DURATION, callback=parsing.duration, default="0", help="How long it must hold before it is told."
)
@click.option(
    "--repeat", metavar=parsing.DURATION, callback=parsing.duration, help="Tell it again so often, until it is over or acknowledged."
)
@click.option("--quiet", metavar="22:00-07:00", help="Tell nothing between these times of the day.")
@click.option("--tz", metavar="ZONE", default="UTC", show_default=True, help="The time zone of --quiet.")
@click.option("--note", default="", help="What people should know who are told.")
@json_option
@store_option
def put(
    name: str,
    kind: str,
    fields: tuple[str, ...],
    channels: tuple[str, ...],
    sustained: float,
    repeat: float | None,
    quiet: str | None,
    tz: str,
    note: str,
    as_json: bool,
) -> None:
    """Store a rule in place of an earlier one of its name.

    KIND is the condition and FIELD=VALUE what it allows, for example

    \b
      duetime alerts put late late oldest_due=60 handler=shop.* --channel ops
      duetime alerts put failing failing ratio=0.2 within=5m --channel ops
      duetime alerts put nightly deadline schedule=nightly by=07:00 tz=Europe/Berlin --channel ops
    """
    from duetime.model.alerts.rule import AlertRule

    rule = AlertRule(
        name=name,
        when=_condition(kind, fields),
        channels=channels,
        sustained=sustained,
        repeat=repeat,
        quiet=_quiet(quiet),
        tz=tz,
        note=note,
    )
    info = on_store(lambda app: app.alerts.put(rule), audited=Audited("alerts.put", name))
    if as_json:
        show.print_json(info)
    else:
        show.note(f"put {info.rule.name}: {_written(info.rule.when)}, told to {', '.join(info.rule.channels)}")


def _condition(kind: str, fields: Iterable[str]) -> Condition:
    import msgspec

    from duetime.errors import InvalidValue
    from duetime.model.alerts.conditions import Condition

    values: dict[str, Any] = {"kind": kind}
    for field in fields:
        name, equals, text = field.partition("=")
        if not equals or not name:
            raise click.UsageError(f"a field is written NAME=VALUE, got {field!r}")
        values[name] = [int(part) if part.isdecimal() else part for part in text.split(",")] if name == "days" else _value(text)
    try:
        found: Condition = msgspec.convert(values, Condition, strict=False)
    except InvalidValue:
        raise
    except msgspec.ValidationError as error:
        raise click.UsageError(f"{kind}: {error}") from None
    return found


def _value(text: str) -> object:
    """Return a number for a duration such as 5m, and otherwise the text."""
    try:
        return parsing.parse_seconds(text)
    except (click.UsageError, ValueError):
        return text


def _quiet(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    start, dash, end = text.partition("-")
    if not dash:
        raise click.UsageError(f"--quiet is written 22:00-07:00, got {text!r}")
    return start.strip(), end.strip()


@alerts.command("show")
@click.argument("name")
@json_option
@store_option
def show_rule(name: str, as_json: bool) -> None:
    """Show a rule, and what it fires for."""
    info, found = on_store(lambda app: _rule_and_alerts(app, name))
    if as_json:
        show.print_json(info)
        return
    facts: list[tuple[str, object]] = [
        ("name", info.rule.name),
        ("condition", _written(info.rule.when)),
        ("channels", ", ".join(info.rule.channels)),
        ("sustained", info.rule.sustained or None),
        ("repeat", info.rule.repeat),
        ("quiet", None if info.rule.quiet is None else f"{'-'.join(info.rule.quiet)} {info.rule.tz}"),
        ("muted until", None if info.muted_until is None else f"{show.absolute(info.muted_until)} by {info.muted_by}"),
        ("note", info.rule.note or None),
        ("changed", f"{show.absolute(info.changed_at)} by {info.changed_by}"),
    ]
    show.print_facts((name, value) for name, value in facts if value is not None)
    if found:
        show.print_table(ALERTS, map(_alert_row, found), empty="")


async def _rule_and_alerts(app: Any, name: str) -> tuple[AlertRuleInfo, list[Alert]]:
    return await app.alerts.get(name), await app.alerts.firing(state=None, rule=name)


@alerts.command()
@click.option("--all", "everything", is_flag=True, help="What is about to fire too.")
@json_option
@store_option
def firing(everything: bool, as_json: bool) -> None:
    """List what fires now.

    The exit code is 0 also if something does; `duetime status` is for monitors.
    """
    found = on_store(lambda app: app.alerts.firing(state=None if everything else "firing"))
    if as_json:
        show.print_json_list(found)
    else:
        show.print_table(ALERTS, map(_alert_row, found), empty="nothing fires")


def _alert_row(alert: Alert) -> tuple[object, ...]:
    acknowledged = f"acknowledged by {alert.acknowledged_by}" if alert.acknowledged_at else ""
    return (
        alert.rule,
        alert.subject,
        "flapping" if alert.flapping else acknowledged or alert.state,
        show.absolute(alert.since),
        alert.text,
    )


@alerts.command()
@click.argument("rule")
@click.argument("subject", required=False)
@store_option
def acknowledge(rule: str, subject: str | None) -> None:
    """Take notice of what a rule fires for: it is not repeated any more.

    Without SUBJECT it is about everything that the rule fires for.
    """
    audited = Audited("alerts.acknowledge", rule)
    done = on_store(lambda app: app.alerts.acknowledge(rule, subject), audited=audited)
    show.note(f"acknowledged {show.count(done, 'alert')}")


@alerts.command()
@click.argument("name")
@click.option("--for", "lasting", metavar=parsing.DURATION, callback=parsing.duration, required=True, help="How long; 0 ends it now.")
@store_option
def mute(name: str, lasting: float) -> None:
    """Tell nothing of a rule for a while; what still holds then is told then."""
    info = on_store(lambda app: app.alerts.mute(name, lasting=lasting), audited=Audited("alerts.mute", name))
    show.note(f"{name} is muted until {show.absolute(info.muted_until)}" if info.muted_until else f"{name} is not muted")


@alerts.command()
@click.argument("name")
@store_option
def delete(name: str) -> None:
    """Remove a rule; nobody is told of its end."""
    on_store(lambda app: app.alerts.delete(name), audited=Audited("alerts.delete", name))
    show.note(f"deleted {name}")


@alerts.command()
@json_option
@store_option
def suggest(as_json: bool) -> None:
    """Print commands that store rules which would suit; nothing is stored."""
    found = on_store(lambda app: app.alerts.suggest())
    if as_json:
        show.print_json_list(found)
        return
    for rule in found:
        click.echo(f"# {rule.note}")
        click.echo(f"duetime alerts put {_quoted(rule.name)} {_written(rule.when)} --channel {rule.channels[0]}")


def _quoted(text: str) -> str:
    return f"'{text}'" if " " in text else text
