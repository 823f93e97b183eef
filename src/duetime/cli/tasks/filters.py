"""The options that select tasks, shared by all commands that take many."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from duetime.cli.parsing import MOMENT, future_moment, past_moment, tz_option
from duetime.model.task import State

if TYPE_CHECKING:
    from duetime.model.query import Query

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--where", metavar="QUERY", help="Only tasks that match this text, such as 'state:failed handler:shop.* finished:<1h'."),
    click.option("--state", type=click.Choice([state.value for state in State]), help="Only tasks in this state."),
    click.option("--handler", metavar="NAME", help="Only tasks of this handler; * stands for any characters."),
    click.option("--collection", metavar="NAME", help="Only tasks of this collection."),
    click.option("--key", metavar="KEY", help="Only tasks with this key."),
    click.option("--submitted-by", metavar="NAME", help="Only tasks that they submitted: a user, or the owner of a token."),
    click.option("--mine", is_flag=True, default=None, help="Only tasks that you submitted."),
    click.option("--id-prefix", metavar="TEXT", help="Only tasks whose ids begin so, with 4 characters or more."),
    click.option("--schedule", metavar="NAME", help="Only tasks that this schedule created."),
    click.option("--error", metavar="TEXT", help="Only tasks whose error has this text in its type, message or traceback."),
    click.option("--fingerprint", metavar="HEX", help="Only tasks that ended with this kind of failure; see `duetime failures`."),
    click.option("--logs", metavar="WORDS", help='Only tasks that printed or logged all these words; "phrases" and beginnings* too.'),
    click.option("--retrying", is_flag=True, default=None, help="Only tasks that wait after a failed try."),
    click.option("--parked", is_flag=True, default=None, help="Only tasks whose payload fits no code that has tried them."),
    click.option(
        "--since", "submitted_after", metavar=MOMENT, callback=past_moment, help="Submitted then or later; 2h means two hours ago."
    ),
    click.option("--until", "submitted_before", metavar=MOMENT, callback=past_moment, help="Submitted before then."),
    click.option(
        "--due-after", metavar=MOMENT, callback=future_moment, help="Due then or later; 2h means in two hours, -2h two hours ago."
    ),
    click.option("--due-before", metavar=MOMENT, callback=future_moment, help="Due before then."),
    click.option("--finished-after", metavar=MOMENT, callback=past_moment, help="Finished then or later; 2h means two hours ago."),
    click.option("--finished-before", metavar=MOMENT, callback=past_moment, help="Finished before then."),
    tz_option,
)


def filter_options(function: Function) -> Function:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def query_from(filters: dict[str, Any]) -> Query:
    from duetime.app.filters import Filters, query_of
    from duetime.clock import SystemClock

    given = {name: value for name, value in filters.items() if value is not None}
    return query_of(cast(Filters, given), given.pop("where", ""), SystemClock().now())


def any_given(filters: dict[str, Any]) -> bool:
    return any(value is not None for value in filters.values())
