"""A rule of alerts: a condition, and whom it tells when."""

from __future__ import annotations

import re
from datetime import datetime, time
from zoneinfo import ZoneInfo

import msgspec

from duetime.clock import Instant, Seconds, to_datetime
from duetime.errors import InvalidValue
from duetime.model.alerts.conditions import LONGEST, Condition, clock_time, span, zone_named

_NAME = re.compile(r"[^\W_][\w .:-]{0,99}")
MOST_CHANNELS = 20


class AlertRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What people are told of, and where.

    `when` is the condition, `channels` are the names of those who are told. It must hold for `sustained` seconds before anybody is. With
    `repeat` it is told again every so many seconds until it is over or somebody acknowledges it. Between the two times of `quiet`, of the
    zone `tz`, nothing is told; what still holds afterwards is told then.
    """

    name: str
    when: Condition
    channels: tuple[str, ...]
    sustained: Seconds = 0.0
    repeat: Seconds | None = None
    quiet: tuple[str, str] | None = None
    tz: str = "UTC"
    note: str = ""

    def __post_init__(self) -> None:
        check_alert_name(self.name, "the name of a rule")
        if isinstance(self.channels, str) or not self.channels or not all(isinstance(each, str) for each in self.channels):
            raise InvalidValue(f'channels must list the names of those who are told, such as ["ops"], got {self.channels!r}')
        if len(self.channels) > MOST_CHANNELS or len(set(self.channels)) < len(self.channels):
            raise InvalidValue(f"channels must be up to {MOST_CHANNELS} different names, got {', '.join(self.channels)[:200]}")
        span("sustained", self.sustained, 0.0, LONGEST)
        if self.repeat is not None:
            span("repeat", self.repeat, 60.0, LONGEST)
        zone_named(self.tz)
        if self.quiet is not None:
            if isinstance(self.quiet, str) or len(self.quiet) != 2:
                raise InvalidValue(f'quiet must be two times of the day, such as ("22:00", "07:00"), got {self.quiet!r}')
            start, end = (clock_time("quiet", each) for each in self.quiet)
            if start == end:
                raise InvalidValue("quiet must not last for the whole day; mute the rule instead, or delete it")
        if len(self.note) > 1_000:
            raise InvalidValue(f"a note has at most 1,000 characters, got {len(self.note):,}")

    def is_quiet(self, now: Instant) -> bool:
        """Return whether nothing is told at this time of the day."""
        if self.quiet is None:
            return False
        start, end = (clock_time("quiet", each) for each in self.quiet)
        at = _local(now, zone_named(self.tz))
        return start <= at < end if start < end else at >= start or at < end


def check_alert_name(name: object, what: str) -> str:
    """Check the name of a rule or a channel."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name != name.strip():
        raise InvalidValue(f"{what} has up to 100 letters, digits, spaces and . _ : - and begins with a letter or digit, got {name!r}")
    return name


def _local(now: Instant, zone: ZoneInfo) -> time:
    local: datetime = to_datetime(now).astimezone(zone)
    return local.time().replace(tzinfo=None)


class StoredRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule as it is stored. `id` is random: a rule that is put again alarms again. `declared`: by code."""

    rule: AlertRule
    id: str
    changed_at: Instant
    changed_by: str
    declared: bool = False
    muted_until: Instant | None = None
    muted_by: str = ""
