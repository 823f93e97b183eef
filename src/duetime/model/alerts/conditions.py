"""When an alert fires: one struct per condition, the same words in Python, in JSON and on the command line."""

from __future__ import annotations

import math
import re
from datetime import time
from typing import ClassVar, TypeAlias
from zoneinfo import ZoneInfo

import msgspec

from duetime.clock import Seconds, to_seconds
from duetime.errors import InvalidValue
from duetime.model.event import check_pattern

LONGEST = 92 * 86_400.0  # for which figures are kept
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


class _Condition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """What all conditions share: each has a subject, which is a handler, a schedule, or the whole store."""


class _OfHandlers(_Condition, frozen=True, kw_only=True):
    """A condition of each handler that `handler` names: one, all that begin with `shop.*`, or `*` for all."""

    handler: str = "*"

    def __post_init__(self) -> None:
        check_pattern(self.handler)


class Failing(_OfHandlers, frozen=True, kw_only=True, tag="failing"):
    """The last `in_a_row` tasks of a handler failed, or more than `ratio` of its attempts within so many seconds did.

    With `ratio`, fewer than `least` attempts say nothing.
    """

    in_a_row: int | None = None
    ratio: float | None = None
    within: Seconds = 300.0
    least: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.in_a_row is None) == (self.ratio is None):
            raise InvalidValue("Failing needs in_a_row= or ratio=, one of them: Failing(in_a_row=5), or Failing(ratio=0.1, within=300)")
        if self.in_a_row is not None:
            whole("in_a_row", self.in_a_row, 100)
        if self.ratio is not None:
            share("ratio", self.ratio)
        span("within", self.within, 10.0, LONGEST)
        whole("least", self.least, 1_000_000)


class Disabled(_OfHandlers, frozen=True, kw_only=True, tag="disabled"):
    """A handler's gate has closed by itself, because its target is broken."""


class Late(_OfHandlers, frozen=True, kw_only=True, tag="late"):
    """The oldest due task of a handler has waited for longer than `oldest_due` seconds. What a gate holds back is not late."""

    oldest_due: Seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        span("oldest_due", self.oldest_due, 1.0, LONGEST)


class Slo(_OfHandlers, frozen=True, kw_only=True, tag="slo"):
    """An objective: a `ratio` of a handler's attempts start within `start_within` seconds of being due.

    What may start later is the error budget. The alert fires while the budget is spent more than `burn` times as fast as it may, both
    over the whole `window` and over its last twelfth, so that it is over soon after the cause is. Fewer than `least` starts say nothing.
    """

    start_within: Seconds = 5.0
    ratio: float = 0.95
    window: Seconds = 3_600.0
    burn: float = 1.0
    least: int = 20

    SHORT: ClassVar[int] = 12  # the last part of the window that must burn too

    def __post_init__(self) -> None:
        super().__post_init__()
        span("start_within", self.start_within, 0.001, 3_600.0)
        share("ratio", self.ratio)
        span("window", self.window, 120.0, LONGEST)
        if isinstance(self.burn, bool) or not isinstance(self.burn, int | float) or not 0 < self.burn <= 1_000:
            raise InvalidValue(
                f"burn, how many times as fast as it may the budget is spent, must be from above 0 to 1,000, got {self.burn!r}"
            )
        if self.burn * (1 - self.ratio) > 1:
            raise InvalidValue(f"burn={self.burn:g} can never be reached: with ratio={self.ratio:g} at most {1 / (1 - self.ratio):.0f} is")
        whole("least", self.least, 1_000_000)


class Running(_OfHandlers, frozen=True, kw_only=True, tag="running"):
    """An attempt of a handler has run for longer than so many seconds."""

    longer_than: Seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        span("longer_than", self.longer_than, 1.0, LONGEST)


class Backlog(_OfHandlers, frozen=True, kw_only=True, tag="backlog"):
    """More than `due` tasks of a handler are due and wait."""

    due: int

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("due", self.due, 1_000_000_000)


class Certificate(_OfHandlers, frozen=True, kw_only=True, tag="certificate"):
    """The TLS certificate of an HTTP handler's server ends within so many `days`: told once at each number."""

    days: tuple[int, ...] = (14, 3, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.days or any(isinstance(day, bool) or not isinstance(day, int) or not 0 <= day <= 365 for day in self.days):
            raise InvalidValue(f"days must be whole numbers from 0 to 365, such as (14, 3, 0), got {self.days!r}")


class _OfSchedules(_Condition, frozen=True, kw_only=True):
    """A condition of each schedule that `schedule` names: one, all that begin with `shop.*`, or `*` for all."""

    schedule: str = "*"

    def __post_init__(self) -> None:
        check_pattern(self.schedule)


class Missed(_OfSchedules, frozen=True, kw_only=True, tag="missed"):
    """An occurrence of a schedule was missed within so many seconds: nobody fired it in time."""

    within: Seconds = 3_600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        span("within", self.within, 60.0, LONGEST)


class Deadline(_OfSchedules, frozen=True, kw_only=True, tag="deadline"):
    """No run of a schedule has succeeded by a time of the day, on days on which one was planned."""

    by: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        super().__post_init__()
        clock_time("by", self.by)
        zone_named(self.tz)


class WorkerLost(_Condition, frozen=True, kw_only=True, tag="worker_lost"):
    """A worker died within so many seconds without leaving: killed, out of memory, or its machine is gone."""

    within: Seconds = 900.0

    def __post_init__(self) -> None:
        span("within", self.within, 60.0, LONGEST)


Condition: TypeAlias = Failing | Disabled | Late | Slo | Running | Backlog | Certificate | Missed | Deadline | WorkerLost
OF_HANDLERS = (Failing, Disabled, Late, Slo, Running, Backlog, Certificate)
OF_SCHEDULES = (Missed, Deadline)


def subject_pattern(condition: Condition) -> str:
    """Return which handlers or schedules a condition is about; `*` for one of the whole store."""
    match condition:
        case Missed() | Deadline():
            return condition.schedule
        case WorkerLost():
            return "*"
        case _:
            return condition.handler


def kind_of(condition: Condition) -> str:
    """Return the word for a condition in JSON and on the command line."""
    kind = condition.__struct_config__.tag
    assert isinstance(kind, str)
    return kind


def written(condition: Condition) -> str:
    """Write a condition as the command line takes it."""
    fields: dict[str, object] = msgspec.to_builtins(condition)
    return " ".join([kind_of(condition), *(f"{name}={_plain(value)}" for name, value in fields.items() if name != "kind")])


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- checks that rules share ----


def whole(what: str, number: object, most: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise InvalidValue(f"{what} must be a whole number from 1 to {most:,}, got {number!r}")


def share(what: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < 1:
        raise InvalidValue(f"{what} must lie between 0 and 1, such as 0.05 for 5 %, got {number!r}")


def span(what: str, seconds: Seconds, least: float, most: float) -> float:
    found = to_seconds(seconds, what)
    if not math.isfinite(found) or not least <= found <= most:
        raise InvalidValue(f"{what} must be from {least:g} to {most:,.0f} seconds, got {found:g}")
    return found


def clock_time(what: str, text: object) -> time:
    found = _CLOCK.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidValue(f"{what} must be a time of the day such as 07:00, got {text!r}")
    return time(int(found[1]), int(found[2]))


def zone_named(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise InvalidValue(f"tz must be the name of a time zone such as Europe/Berlin, got {name!r}") from None
