"""Rules in JSON: the forms that requests may have, and their conversion to rules and back. Errors point at the field."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, TypeAlias, assert_never

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.clock import to_datetime, to_seconds
from duetime.model.rules import AfterEnd, At, Calendar, Cron, Every, Rule, Union, Window, read_rule
from duetime.model.rules.kinds import MOST_INSTANTS, MOST_RULES
from duetime.model.rules.reading import LONGEST_INTERVAL
from duetime.wire.fields import Instant, Name, given_fields
from duetime.wire.problem import FieldError, pointing

Interval = Annotated[float, Meta(ge=1, le=LONGEST_INTERVAL, description="Seconds; whole milliseconds.", examples=[600])]
Zone = Annotated[str, Meta(min_length=1, max_length=100, description="An IANA time zone.", examples=["Europe/Berlin"])]
Gap = Annotated[
    Literal["run", "skip"], Meta(description="What becomes of a local time that clocks leap over: run after it, or not at all.")
]
TimeOfDay = Annotated[str, Meta(min_length=1, max_length=8, examples=["09:00"])]
Words = Annotated[str, Meta(min_length=1, max_length=200)]
Expression = Annotated[
    str,
    Meta(min_length=1, max_length=1_000, description="5 fields, or 6 with seconds first, or a shorthand.", examples=["30 9 * * MON-FRI"]),
]
Instants = Annotated[list[Instant], Meta(min_length=1, max_length=MOST_INSTANTS, examples=[["2030-01-31T07:00:00Z"]])]


class _Tagged(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, tag_field="rule"):
    pass


class CronRule(_Tagged, forbid_unknown_fields=True, frozen=True, kw_only=True, tag="cron"):
    """A cron expression, in the local time of a zone."""

    expression: Expression
    tz: Zone = "UTC"
    gap: Gap = "run"


class EveryRule(_Tagged, forbid_unknown_fields=True, frozen=True, kw_only=True, tag="every"):
    """A fixed rate: whole intervals since 1970, shifted by `phase` seconds."""

    interval: Interval
    phase: Annotated[float, Meta(ge=-LONGEST_INTERVAL, le=LONGEST_INTERVAL)] = 0.0


class AfterEndRule(_Tagged, forbid_unknown_fields=True, frozen=True, kw_only=True, tag="after_end"):
    """A fixed delay, counted from the end of the last run."""

    delay: Interval


class CalendarRule(_Tagged, forbid_unknown_fields=True, frozen=True, kw_only=True, tag="calendar"):
    """Every so many days, weeks, months or years, on named days, at local times.

    `on` names days, such as "mon-fri", 15, "last friday" or "last business day"; `since` is where longer intervals are counted from.
    """

    every: Annotated[int, Meta(ge=1, le=18_262)] = 1
    unit: Literal["day", "week", "month", "year"] = "day"
    on: (
        Annotated[list[Annotated[int, Meta(ge=-31, le=31)] | Words], Meta(min_length=1, max_length=400, examples=[["monday"]])]
        | UnsetType
        | None
    ) = UNSET
    at: Annotated[list[TimeOfDay], Meta(min_length=1, max_length=1_440)] = msgspec.field(default_factory=lambda: ["00:00"])
    tz: Zone = "UTC"
    since: date | UnsetType | None = UNSET
    missing: Annotated[Literal["skip", "last"], Meta(description="For a day that a month does not have.")] = "skip"
    gap: Gap = "run"
    business: (
        Annotated[str, Meta(min_length=1, max_length=200, description="The calendar whose days are no business days.")] | UnsetType | None
    ) = UNSET


class AtRule(_Tagged, forbid_unknown_fields=True, frozen=True, kw_only=True, tag="at"):
    """A list of instants."""

    instants: Instants


class WindowFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """From a local start, every so many seconds, until and including a local end, on some days."""

    every: Interval
    start: TimeOfDay = "00:00"
    end: TimeOfDay = "24:00"
    days: Annotated[str, Meta(min_length=1, max_length=100, examples=["mon-fri"])] = "mon-sun"
    tz: Zone = "UTC"
    gap: Gap = "run"


class WindowRule(WindowFields, forbid_unknown_fields=True, frozen=True, kw_only=True, tag_field="rule", tag="window"):
    """From a local start, every so many seconds, until and including a local end, on some days."""


SingleBody: TypeAlias = CronRule | EveryRule | AfterEndRule | CalendarRule | AtRule | WindowRule


class UnionRule(_Tagged, forbid_unknown_fields=True, frozen=True, kw_only=True, tag="union"):
    """Several rules as one: whatever any of them plans."""

    rules: Annotated[list[SingleBody], Meta(min_length=1, max_length=MOST_RULES)]


RuleBody: TypeAlias = CronRule | EveryRule | AfterEndRule | CalendarRule | AtRule | WindowRule | UnionRule
RuleText = Annotated[str, Meta(min_length=1, max_length=10_000, description='Such as "every 10m" or "@daily".', examples=["every 10m"])]


class RuleFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """When: exactly one of `cron` (with `tz`), `every`, `at`, `after_end`, `window` and `rule`."""

    cron: Expression | UnsetType | None = UNSET
    tz: Annotated[str, Meta(min_length=1, max_length=100, description="The zone of `cron`; UTC unless told.")] | UnsetType | None = UNSET
    every: Interval | UnsetType | None = UNSET
    at: Instants | UnsetType | None = UNSET
    after_end: (
        Annotated[float, Meta(ge=1, le=LONGEST_INTERVAL, description="Seconds after the end of the last run.")] | UnsetType | None
    ) = UNSET
    window: WindowFields | UnsetType | None = UNSET
    rule: RuleBody | RuleText | UnsetType | None = UNSET


FORMS = ("cron", "every", "at", "after_end", "window", "rule")


def rule_of(body: RuleFields, pointer: str = "") -> Rule:
    """Return the rule of a body; `pointer` is the body's position in the request, for errors."""
    given = given_fields(body)
    found = [name for name in FORMS if name in given]
    if len(found) != 1:
        detail = f"give exactly one of {', '.join(FORMS)}, got {' and '.join(found) or 'none'}"
        raise FieldError(detail, f"{pointer}/{found[1]}" if found else pointer)
    [form] = found
    value, zone = given[form], given.get("tz")
    if zone is not None and form != "cron":
        detail = f"tz is the zone of cron and means nothing to {form}; leave it out" + (", or say it in the rule" if form == "rule" else "")
        raise FieldError(detail, f"{pointer}/tz")
    match form:
        case "cron":
            with pointing(pointer, {"expression": "cron", "tz": "tz"}):
                return Cron(value, tz=zone or "UTC")
        case "every":
            with pointing(pointer, {"interval": "every"}):
                return Every(value)
        case "after_end":
            with pointing(pointer, {"delay": "after_end"}):
                return AfterEnd(value)
        case "at":
            with pointing(pointer, {"instants": "at"}):
                return At(value)
        case "window":
            return _window(value, f"{pointer}/window")
        case _:
            return _read_text(value, f"{pointer}/rule") if isinstance(value, str) else read_body(value, f"{pointer}/rule")


def body_of(rule: Rule) -> RuleBody:
    """Return a rule in its JSON form, which is the same in requests and responses."""
    match rule:
        case Cron():
            return CronRule(expression=rule.expression, tz=rule.tz, gap=rule.gap)
        case Every():
            return EveryRule(interval=to_seconds(rule.interval), phase=to_seconds(rule.phase))
        case AfterEnd():
            return AfterEndRule(delay=to_seconds(rule.delay))
        case Calendar():
            return CalendarRule(
                every=rule.every,
                unit=rule.unit,  # type: ignore[arg-type]  # singular once it is read
                on=UNSET if rule.on is None else list(rule.on),  # type: ignore[arg-type]
                at=list(rule.at),
                tz=rule.tz,
                since=UNSET if rule.since is None else rule.since,
                missing=rule.missing,
                gap=rule.gap,
                business=UNSET if rule.business is None else rule.business,
            )
        case At():
            return AtRule(instants=[to_datetime(each) for each in rule.instants if isinstance(each, int)])
        case Window():
            return WindowRule(every=to_seconds(rule.every), start=rule.start, end=rule.end, days=str(rule.days), tz=rule.tz, gap=rule.gap)
        case Union():
            return UnionRule(rules=[body_of(part) for part in rule.parts])  # type: ignore[misc]
        case _:
            assert_never(rule)


def read_body(body: RuleBody, pointer: str = "") -> Rule:
    """Return the rule of a body that names its kind."""
    match body:
        case CronRule():
            return _made(Cron, body, pointer)
        case EveryRule():
            return _made(Every, body, pointer)
        case AfterEndRule():
            return _made(AfterEnd, body, pointer)
        case CalendarRule():
            return _made(Calendar, body, pointer)
        case AtRule():
            return _made(At, body, pointer)
        case WindowRule():
            return _window(body, pointer)
        case UnionRule():
            return Union([read_body(each, f"{pointer}/rules/{number}") for number, each in enumerate(body.rules)])
        case _:
            assert_never(body)


def _made(kind: Any, body: msgspec.Struct, pointer: str) -> Rule:
    with pointing(pointer, {name: name for name in body.__struct_fields__}):
        made: Rule = kind(**given_fields(body))
        return made


def _window(body: WindowFields, pointer: str) -> Rule:
    return _made(Window, body, pointer)


def _read_text(text: str, pointer: str) -> Rule:
    with pointing(pointer, {}):
        return read_rule(text)


CalendarNames = Annotated[list[Name], Meta(max_length=100, description="Calendars that must all permit an occurrence.")]
