"""The options that give a rule, shared by all commands that take one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

import click

from duetime.cli import parsing

if TYPE_CHECKING:
    from duetime.model.rules import Rule

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--cron", metavar="EXPR", multiple=True, help='A cron expression: "30 9 * * MON-FRI", or six fields, seconds first.'),
    click.option("--every", metavar="DURATION", multiple=True, help='A fixed rate: 10m, or "10m phase 30s".'),
    click.option("--at", metavar=parsing.INSTANT, multiple=True, callback=parsing.instants, help="An instant."),
    click.option("--after-end", metavar="DURATION", multiple=True, help="This long after the end of the last run."),
    click.option("--rule", metavar="JSON|@FILE", multiple=True, callback=parsing.texts, help="Any rule, as JSON or in words."),
    click.option(
        "--tz",
        metavar="ZONE",
        is_eager=True,
        callback=parsing.instants_zone,
        help="The zone of --cron and of instants that do not say theirs, such as Europe/Berlin; otherwise UTC.",
    ),
)


def rule_options(function: Function) -> Function:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def rule_from(
    cron: Sequence[str], every: Sequence[str], at: Sequence[datetime], after_end: Sequence[str], rule: Sequence[str], tz: str | None
) -> Rule | None:
    """Read the given rules and join them into one; return None without any."""
    from duetime.errors import InvalidValue
    from duetime.model.rules import At, Cron, read_rule

    if tz is not None and not cron and not parsing.was_zone_used(click.get_current_context()):
        raise click.UsageError("--tz is the zone of --cron and of instants that do not say theirs; a --rule names its zone inside")
    try:
        rules: list[Rule] = [Cron(expression, tz=tz or "UTC") for expression in cron]
        rules += [read_rule(f"every {text}") for text in every]
        rules += [At(at)] if at else []
        rules += [read_rule(f"after end {text}") for text in after_end]
        rules += [read_rule(text) for text in rule]
    except InvalidValue as problem:
        raise click.UsageError(str(problem)) from None
    return reduce(lambda joined, other: joined | other, rules) if rules else None
