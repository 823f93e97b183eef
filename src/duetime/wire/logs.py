"""What attempts printed and logged, in JSON. `AttemptOutput` and `LogHits` are what is shown of it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.client.output import AttemptOutput, OutputEvent
from duetime.model.outcome import Outcome
from duetime.model.query import MAX_PAGE
from duetime.model.task import ErrorInfo, State
from duetime.wire.fields import Cursor, Instant, Name, SearchText, given, optional


class LogsQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which attempts' output to return, and whether to follow it."""

    attempt: Annotated[int, Meta(ge=1, le=2**31 - 1, description="Only this attempt.")] | UnsetType = UNSET
    follow: Annotated[bool, Meta(description="Answer with an event stream that ends with the task, or with the attempt.")] = False
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    cursor: Annotated[str, Meta(pattern=r"^[0-9]{1,9}$", description="The `next` of the page before.")] | UnsetType = UNSET


class LogsSearchQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What to search for: words that must all occur, "phrases", and beginnings such as time*."""

    q: SearchText | UnsetType = UNSET
    handler: Name | UnsetType = UNSET
    collection: Name | UnsetType = UNSET
    after: Instant | UnsetType = UNSET
    before: Instant | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 20
    cursor: Cursor | UnsetType = UNSET


class OutputList(msgspec.Struct, frozen=True):
    """The output of attempts, the first one first."""

    items: list[AttemptOutput]
    next: str | None


class LogEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The data of an event of the stream that `follow` answers with; `event` and `id` of the stream are its kind and position.

    `output` has a `text`; `attempt` an `outcome`, null for one that begins, and an `error` if it failed; `end` the `state` of the task.
    """

    attempt: int
    text: str | UnsetType = UNSET
    outcome: Outcome | UnsetType | None = UNSET
    state: State | UnsetType | None = UNSET
    error: ErrorInfo | UnsetType = UNSET


def log_event(event: OutputEvent) -> LogEvent:
    match event.kind:
        case "output":
            return LogEvent(attempt=event.attempt, text=event.text)
        case "attempt":
            return LogEvent(attempt=event.attempt, outcome=event.outcome, error=optional(event.error))
        case "end":
            return LogEvent(attempt=event.attempt, state=event.state)


def event_of(kind: Literal["output", "attempt", "end"], position: str, data: LogEvent) -> OutputEvent:
    return OutputEvent(
        kind=kind,
        attempt=data.attempt,
        text=given(data.text) or "",
        position=position,
        outcome=given(data.outcome),
        state=given(data.state),
        error=given(data.error),
    )
