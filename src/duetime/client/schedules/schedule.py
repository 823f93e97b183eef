"""The public `Schedule`, checked when it is made, and its stored spec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec
from msgspec.structs import force_setattr

from duetime.clock import SECOND, Instant, Seconds, to_datetime, to_instant, to_micros, to_seconds
from duetime.errors import InvalidValue
from duetime.model.policies import read_missed, read_overlap
from duetime.model.retry import RetryPolicy
from duetime.model.rules import AfterEnd, At, Calendar, Cron, Every, Rule, Union, Window, read_rule
from duetime.model.schedule import DEFAULT_GRACE, ScheduleRecord, ScheduleSpec
from duetime.model.task import check_meta, check_name, check_priority

RULES = (Cron, Every, AfterEnd, Calendar, At, Window, Union)
RESERVED = "duetime."  # prefix of the meta names that Duetime itself writes
LONGEST = 366 * 86_400.0  # of jitter and grace
LONGEST_NOTE = 1_000


class Named(Protocol):
    """A handler."""

    @property
    def name(self) -> str: ...


class _Main(msgspec.Struct, frozen=True):
    name: str
    handler: str | Named
    rule: Rule | str


class Schedule(_Main, frozen=True, kw_only=True):
    """What runs and when, for `app.schedules.put` and `declare`.

    `rule` is a rule or its text ("*/5 * * * *", "every 10m"; `tz` is then the zone of a cron expression). `calendars` name day
    calendars that must permit an occurrence. `missed` and `overlap` are policies: for occurrences that nobody fired in time (later
    than `grace`), and for those that come while an earlier run has not ended. Without `overlap` the latter are skipped, or queued if
    `missed` begins with "all". Priority, timeout and retry default to the handler's own.

        Schedule("sweep", handler=sweep, rule=Cron("*/5 * * * *", tz="Europe/Berlin"), missed="all within 6h")
    """

    payload: Mapping[str, Any] = {}
    tz: str | None = None
    calendars: str | Sequence[str] = ()
    start: datetime | None = None
    end: datetime | None = None
    count: int | None = None
    jitter: Seconds = 0.0
    missed: str = "latest"
    overlap: str | None = None
    grace: Seconds = DEFAULT_GRACE
    pause_after: int | None = None
    collection: str | None = None
    priority: int | None = None
    timeout: Seconds | None = None
    retry: RetryPolicy | None = None
    expires: Seconds | None = None
    meta: Mapping[str, str] = {}
    note: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "the name of a schedule")
        check_name(self.handler_name, "the handler of a schedule")
        force_setattr(self, "rule", _read_rule(self.rule, self.tz))
        force_setattr(self, "tz", None)  # the rule has it now
        if not isinstance(self.payload, Mapping) or not all(isinstance(name, str) for name in self.payload):
            raise InvalidValue(f'payload must map the names of arguments to values, for example {{"shop": 7}}, got {self.payload!r}')
        force_setattr(self, "calendars", _read_names(self.calendars))
        self._check_bounds()
        missed = read_missed(self.missed)
        overlap = self.overlap if self.overlap is not None else ("queue all" if str(missed).startswith("all") else "skip")
        force_setattr(self, "missed", str(missed))
        force_setattr(self, "overlap", str(read_overlap(overlap)))
        force_setattr(self, "jitter", _read_span(self.jitter, "jitter"))
        force_setattr(self, "grace", _read_span(self.grace, "grace"))
        self._check_options()

    def _check_bounds(self) -> None:
        for name in ("start", "end"):
            value: datetime | None = getattr(self, name)
            if value is not None:
                to_instant(value, name)
        if self.start is not None and self.end is not None and self.end < self.start:
            raise InvalidValue(f"end must not lie before start, got start {self.start.isoformat()} and end {self.end.isoformat()}")
        _check_number(self.count, "count", "how many occurrences there are in all, for example count=10")
        _check_number(self.pause_after, "pause_after", "after how many failed runs in a row it pauses, for example pause_after=3")

    def _check_options(self) -> None:
        if self.collection is not None:
            check_name(self.collection, "collection")
        if self.priority is not None:
            check_priority(self.priority)
        for name in ("timeout", "expires"):
            value: Seconds | None = getattr(self, name)
            if value is not None and to_seconds(value, name) <= 0:
                raise InvalidValue(f"{name} must be positive, got {value}")
        if self.retry is not None and not isinstance(self.retry, RetryPolicy):
            raise InvalidValue(f"retry must be a RetryPolicy, for example RetryPolicy(tries=3), got {self.retry!r}")
        if self.retry is not None and (self.retry.only or self.retry.never):
            raise InvalidValue(
                "the exception types of a retry policy live in code and are not stored: name them where the handler is declared"
            )
        for name in check_meta(self.meta):
            if name.startswith(RESERVED):
                raise InvalidValue(f"meta names that begin with {RESERVED!r} are written by Duetime itself, got {name!r}")
        if not isinstance(self.note, str) or len(self.note) > LONGEST_NOTE:
            raise InvalidValue(f"note must be text of at most {LONGEST_NOTE:,} characters")

    @property
    def handler_name(self) -> str:
        name: object = self.handler if isinstance(self.handler, str) else getattr(self.handler, "name", None)
        if not isinstance(name, str):
            raise InvalidValue(f"handler is given by its name or as what @app.task made of it, got {type(self.handler).__name__}")
        return name

    def spec(self, *, handler: str, payload: bytes, priority: int) -> ScheduleSpec:
        """Return the spec to store, with the handler's name, payload and priority."""
        assert not isinstance(self.rule, str)  # __post_init__ has read it
        assert self.overlap is not None
        return ScheduleSpec(
            handler=handler,
            rule=self.rule,
            payload=msgspec.Raw(payload),
            calendars=tuple(self.calendars),
            start_at=_instant(self.start, "start"),
            end_at=_instant(self.end, "end"),
            count=self.count,
            jitter=to_seconds(self.jitter),
            missed=self.missed,
            overlap=self.overlap,
            grace=to_seconds(self.grace),
            pause_after=self.pause_after,
            collection=self.collection,
            priority=priority,
            timeout=None if self.timeout is None else to_seconds(self.timeout),
            retry=None if self.retry is None else msgspec.Raw(self.retry.numbers()),
            expires_in=None if self.expires is None else to_micros(self.expires),
            meta=dict(self.meta),
            note=self.note,
        )


def schedule_of(record: ScheduleRecord) -> Schedule:
    """Return the `Schedule` that would create a stored schedule again."""
    spec = record.spec
    return Schedule(
        record.name,
        spec.handler,
        spec.rule,
        payload=msgspec.json.decode(spec.payload, type=dict[str, Any]),
        calendars=spec.calendars,
        start=None if spec.start_at is None else to_datetime(spec.start_at),
        end=None if spec.end_at is None else to_datetime(spec.end_at),
        count=spec.count,
        jitter=spec.jitter,
        missed=spec.missed,
        overlap=spec.overlap,
        grace=spec.grace,
        pause_after=spec.pause_after,
        collection=spec.collection,
        priority=spec.priority,
        timeout=spec.timeout,
        retry=None if spec.retry is None else RetryPolicy().with_numbers(bytes(spec.retry)),
        expires=None if spec.expires_in is None else spec.expires_in / SECOND,
        meta=spec.meta,
        note=spec.note,
    )


def rule_from(
    *,
    cron: str | None = None,
    every: Seconds | None = None,
    at: Iterable[datetime] | None = None,
    after_end: Seconds | None = None,
    rule: Rule | str | None = None,
    tz: str | None = None,
) -> Rule:
    """Return the rule that exactly one of the keywords gives."""
    given = [
        name for name, value in {"cron": cron, "every": every, "at": at, "after_end": after_end, "rule": rule}.items() if value is not None
    ]
    if len(given) != 1:
        raise InvalidValue(
            f"give exactly one of cron=, every=, at=, after_end= and rule=, got {', '.join(given) or 'none'}; for example "
            'cron="*/5 * * * *", and for several rules rule=Cron("0 9 * * *") | Every(hours=6)'
        )
    if cron is not None:
        return Cron(cron) if tz is None else Cron(cron, tz=tz)
    if tz is not None and rule is None:
        raise InvalidValue(f"tz is the zone of a cron expression and means nothing to {given[0]}=; leave it out")
    if every is not None:
        return Every(every)
    if at is not None:
        return At(at)
    return AfterEnd(after_end) if after_end is not None else _read_rule(rule, tz)


def _read_rule(rule: object, tz: str | None) -> Rule:
    if isinstance(rule, str):
        read = read_rule(rule)
        if tz is None:
            return read
        if isinstance(read, Cron):
            return Cron(read.expression, tz=tz, gap=read.gap)
    elif isinstance(rule, RULES):
        if tz is None:
            return rule
    else:
        raise InvalidValue(f'rule must be a rule such as Cron("*/5 * * * *") or Every(minutes=10), or text that says one, got {rule!r}')
    raise InvalidValue('tz is the zone of a cron expression in text; say it in the rule instead: Cron("0 9 * * *", tz="Europe/Berlin")')


def _read_names(names: str | Sequence[str]) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names)
    return tuple(dict.fromkeys(check_name(name, "a calendar's name") for name in listed))


def _read_span(value: Seconds, name: str) -> float:
    seconds = to_seconds(value, name)
    if not 0 <= seconds <= LONGEST:
        raise InvalidValue(f"{name} must be 0 seconds to 366 days, got {value}; for example {name}=30")
    return float(seconds)


def _check_number(value: object, name: str, meaning: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InvalidValue(f"{name} must be a whole number of at least 1, got {value!r}; it says {meaning}")


def _instant(when: datetime | None, name: str) -> Instant | None:
    return None if when is None else to_instant(when, name)
