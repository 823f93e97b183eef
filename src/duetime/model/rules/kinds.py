"""The kinds of rules. Each is a frozen value with a JSON form; `plan_of` turns it into a plan that computes instants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from duetime.clock import LATEST, Instant, Seconds, to_datetime, to_instant, to_seconds
from duetime.errors import InvalidValue
from duetime.model.rules import forms
from duetime.model.rules.cron import read_expression
from duetime.model.rules.reading import (
    EVERY_WEEKDAY,
    read_choice,
    read_date,
    read_interval,
    read_millis,
    read_time,
    read_times,
    read_weekdays,
    read_zone,
    several,
    time_text,
    weekdays_text,
)

if TYPE_CHECKING:
    from msgspec import StructMeta
else:
    StructMeta = type(msgspec.Struct)

Gap: TypeAlias = Literal["run", "skip"]
Unit: TypeAlias = Literal["day", "week", "month", "year", "days", "weeks", "months", "years"]

MOST_RULES = 100
MOST_INSTANTS = 10_000
# No interval is longer than the 50 years after which a search gives up.
_LONGEST = {"day": 18_262, "week": 2_608, "month": 600, "year": 50}
_UNIT_SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1, "milliseconds": 0.001}


class _Written(StructMeta):
    """Lets a rule be constructed in ways that its fields alone do not allow. Decoding bypasses this."""

    def __call__(self, *values: Any, **named: Any) -> Any:
        read: Any = self.written  # type: ignore[attr-defined]
        return super().__call__(**read(*values, **named))


class _Joinable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="rule"):
    """What all rules share: `|` joins them."""

    def __or__(self, other: object) -> Union:
        if not isinstance(other, _Joinable):
            return NotImplemented
        return Union(rules=(self, other))  # type: ignore[arg-type]


class Cron(_Joinable, frozen=True, tag="cron"):
    """A cron expression of 5 fields, or 6 with seconds first, in the local time of a zone.

    Fixed times in a gap run once at the first instant after it (`gap="skip"`: not at all), in a fold once. If the minute or the
    hour begins with `*`, it runs at every real matching instant.

        Cron("30 9 * * MON-FRI", tz="Europe/Berlin")
    """

    expression: str
    tz: str = "UTC"
    gap: Gap = "run"

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise InvalidValue(f'expression must be text such as "*/5 * * * *", got {type(self.expression).__name__}')
        force_setattr(self, "expression", " ".join(self.expression.split()))
        read_expression(self.expression)
        force_setattr(self, "tz", read_zone(self.tz))
        read_choice(self.gap, ("run", "skip"), "gap")


class Every(_Joinable, frozen=True, tag="every", metaclass=_Written):
    """A fixed rate: whole intervals since the Unix epoch, shifted by `phase`.

    All processes agree on them, and they do not drift. Days here have 24 hours; for local days use `Calendar`.

        Every(90)    Every(minutes=10)    Every(hours=2, phase=timedelta(minutes=5))
    """

    interval: Seconds
    phase: Seconds = 0.0

    if TYPE_CHECKING:

        def __init__(
            self,
            interval: Seconds = ...,
            phase: Seconds = ...,
            *,
            weeks: float = ...,
            days: float = ...,
            hours: float = ...,
            minutes: float = ...,
            seconds: float = ...,
            milliseconds: float = ...,
        ) -> None: ...

    _example: ClassVar[str] = "Every(minutes=10)"

    @staticmethod
    def written(interval: Seconds | None = None, phase: Seconds = 0.0, **units: float) -> dict[str, Seconds]:
        unknown = units.keys() - _UNIT_SECONDS
        if unknown:
            raise InvalidValue(f"interval: no unit {min(unknown)!r}; there are {', '.join(_UNIT_SECONDS)}; for example {Every._example}")
        if (interval is None) is not bool(units):
            raise InvalidValue(f"interval must be given once, as seconds, a timedelta or units; for example {Every._example}")
        if interval is None:
            interval = sum(to_seconds(number, unit) * _UNIT_SECONDS[unit] for unit, number in units.items())
        return {"interval": interval, "phase": phase}

    def __post_init__(self) -> None:
        interval = read_interval(self.interval, "interval", self._example)
        phase = read_millis(self.phase, "phase", "Every(minutes=10, phase=30)")
        force_setattr(self, "interval", interval)
        force_setattr(self, "phase", round(phase * 1000) % round(interval * 1000) / 1000)


class AfterEnd(_Joinable, frozen=True, tag="after_end"):
    """A fixed delay, counted from the end of the last run.

    AfterEnd(60)    AfterEnd(timedelta(minutes=5))
    """

    delay: Seconds

    def __post_init__(self) -> None:
        force_setattr(self, "delay", read_interval(self.delay, "delay", "AfterEnd(60)"))


class Calendar(_Joinable, frozen=True, tag="calendar"):
    """Every n days, weeks, months or years, on named days, at local times.

    Intervals of more than one are counted from `since`, which is also the day if `on` is not given. `missing` is for a day that
    a month does not have: `skip` the month, or use its `last`. `business` names the calendar whose days are no business days.

        Calendar(2, "weeks", on="monday", at="09:00", tz="Europe/Berlin", since=date(2030, 1, 7))
        Calendar(unit="month", on="last business day", at="18:00", business="holidays")
        Calendar(unit="year", on=["12-24", "last friday of november"], at=["08:00", "20:00"])
    """

    every: int = 1
    unit: Unit = "day"
    on: int | str | Sequence[int | str] | None = None
    at: str | Sequence[str] = ("00:00",)
    tz: str = "UTC"
    since: date | None = None
    missing: Literal["skip", "last"] = "skip"
    gap: Gap = "run"
    business: str | None = None

    def __post_init__(self) -> None:
        unit = self.unit.rstrip("s") if isinstance(self.unit, str) else self.unit
        read_choice(unit, ("day", "week", "month", "year"), "unit")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or not 1 <= self.every <= _LONGEST[unit]:
            raise InvalidValue(f"every must be 1 to {_LONGEST[unit]} {unit}s, got {self.every!r}; for example Calendar(2, 'weeks')")
        force_setattr(self, "unit", unit)
        force_setattr(self, "at", read_times(self.at, "at"))
        force_setattr(self, "tz", read_zone(self.tz))
        if self.since is not None:
            force_setattr(self, "since", read_date(self.since, "since"))
        read_choice(self.missing, ("skip", "last"), "missing")
        read_choice(self.gap, ("run", "skip"), "gap")
        force_setattr(self, "on", None if self.on is None else self._read_on())
        if self.business is not None and (not isinstance(self.business, str) or not self.business):
            raise InvalidValue(f'business must be the name of a calendar, for example business="holidays", got {self.business!r}')
        if self.business is not None and "business day" not in str(self.on):
            raise InvalidValue('business says which days are no business days; say on="last business day" too, or leave it out')

    def _read_on(self) -> tuple[int | str, ...]:
        if not several(self.on):
            raise InvalidValue('on must name at least one day, for example on="monday", or be left out')
        if self.unit == "day":
            if tuple(" ".join(str(value).lower().split()) for value in several(self.on)) != ("business day",):
                raise InvalidValue(f'on: for days only on="business day" is possible, got {self.on!r}; for weekdays say unit="week"')
            if self.every != 1:
                raise InvalidValue(f'every must be 1 with on="business day", got {self.every}')
            return ("business day",)
        if self.unit == "week":
            return tuple(weekdays_text(read_weekdays(self.on, "on")).split(","))
        if self.unit == "year":
            return tuple(form.text for form in forms.read_year_forms(self.on))
        days = forms.read_month_forms(self.on)
        forms.refuse_impossible(days, self.every, self.anchor.month)
        return tuple(form.text for form in days)

    @property
    def anchor(self) -> date:
        """Return the day from which intervals are counted; a Monday for weeks."""
        return self.since or date(1970, 1, 5 if self.unit == "week" else 1)


class At(_Joinable, frozen=True, tag="at", metaclass=_Written):
    """An explicit list of instants, sorted and distinct.

    At(datetime(2030, 1, 1, 9, tzinfo=UTC), datetime(2030, 2, 1, 9, tzinfo=UTC))
    """

    instants: Sequence[Instant | datetime]

    if TYPE_CHECKING:

        def __init__(self, *instants: Instant | datetime | Iterable[Instant | datetime]) -> None: ...

    @staticmethod
    def written(*values: Any, instants: Iterable[Any] = ()) -> dict[str, list[Any]]:
        found: list[Any] = list(instants)
        for value in values:
            found += value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
        return {"instants": found}

    def __post_init__(self) -> None:
        if not 1 <= len(self.instants) <= MOST_INSTANTS:
            example = "for example At(datetime(2030, 1, 1, 9, tzinfo=UTC))"
            raise InvalidValue(f"instants must be 1 to {MOST_INSTANTS:,}, got {len(self.instants):,}; {example}")
        found = {value if type(value) is int else to_instant(value, "instants") for value in self.instants}  # type: ignore[arg-type]
        first, last = min(found), max(found)
        if first < 0 or last > LATEST:
            raise InvalidValue(f"instants must lie between 1970 and 9999, got {first if first < 0 else last} microseconds")
        force_setattr(self, "instants", tuple(sorted(found)))

    def __repr__(self) -> str:
        return f"At({', '.join(to_datetime(instant).isoformat() for instant in self.instants if isinstance(instant, int))})"


class Window(_Joinable, frozen=True, tag="window"):
    """From a local start, every interval in elapsed time, until and including a local end, on some days.

    A window over midnight belongs to the day on which it starts. A start or end in a gap is moved to the first instant after it;
    with `gap="skip"` a window that would start in one is left out.

        Window(600, "08:00", "18:00", days="mon-fri", tz="Europe/Berlin")
    """

    every: Seconds
    start: str = "00:00"
    end: str = "24:00"
    days: str | Sequence[str] = "mon-sun"
    tz: str = "UTC"
    gap: Gap = "run"

    def __post_init__(self) -> None:
        force_setattr(self, "every", read_interval(self.every, "every", 'Window(600, "08:00", "18:00")'))
        start, end = read_time(self.start, "start"), read_time(self.end, "end", end=True)
        if start == end:
            raise InvalidValue(f'end must differ from start, got {self.start} for both; a whole day is start="00:00", end="24:00"')
        force_setattr(self, "start", time_text(start))
        force_setattr(self, "end", time_text(end))
        mask = read_weekdays(self.days, "days")
        if not mask:
            raise InvalidValue(f'days must name at least one weekday, for example "mon-fri", got {self.days!r}')
        force_setattr(self, "days", "mon-sun" if mask == EVERY_WEEKDAY else weekdays_text(mask))
        force_setattr(self, "tz", read_zone(self.tz))
        read_choice(self.gap, ("run", "skip"), "gap")


class Union(_Joinable, frozen=True, tag="union"):
    """Several rules as one: everything that any of them plans. Usually written with `|`.

    Cron("0 9 * * *") | Every(hours=6)
    """

    rules: Sequence[Cron | Every | AfterEnd | Calendar | At | Window | Union]

    def __post_init__(self) -> None:
        flat: list[Single] = []
        for rule in self.rules:
            if isinstance(rule, Union):
                flat += rule.parts
            elif isinstance(rule, Cron | Every | AfterEnd | Calendar | At | Window):
                flat.append(rule)
            else:
                raise InvalidValue(f'rules must be rules, for example Cron("0 9 * * *") | Every(hours=6), got {type(rule).__name__}')
        if not 1 <= len(flat) <= MOST_RULES:
            raise InvalidValue(f'rules must be 1 to {MOST_RULES}, got {len(flat)}; for example Cron("0 9 * * *") | Every(hours=6)')
        force_setattr(self, "rules", tuple(flat))

    @property
    def parts(self) -> tuple[Single, ...]:
        return tuple(rule for rule in self.rules if not isinstance(rule, Union))


Single: TypeAlias = Cron | Every | AfterEnd | Calendar | At | Window
Rule: TypeAlias = Single | Union
