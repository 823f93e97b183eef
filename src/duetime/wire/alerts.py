"""Alerts and channels in JSON. A rule and a channel are the same words as in Python."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.client.alerts.alerts import LONGEST_MUTE, Alert, AlertRuleInfo
from duetime.client.alerts.channels import ChannelInfo
from duetime.clock import Seconds
from duetime.model.alerts.conditions import Condition
from duetime.model.alerts.rule import AlertRule
from duetime.targets.notices.channels import Channel

ChannelBody = Channel


class RuleBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A rule; its name is in the address."""

    when: Condition
    channels: Annotated[list[str], Meta(min_length=1, max_length=20)]
    sustained: Seconds = 0.0
    repeat: Seconds | None = None
    quiet: tuple[str, str] | None = None
    tz: str = "UTC"
    note: Annotated[str, Meta(max_length=1_000)] = ""

    def named(self, name: str) -> AlertRule:
        """Return the rule. Raises InvalidValue for what cannot be meant."""
        return AlertRule(
            name=name,
            when=self.when,
            channels=tuple(self.channels),
            sustained=self.sustained,
            repeat=self.repeat,
            quiet=self.quiet,
            tz=self.tz,
            note=self.note,
        )


def rule_body(rule: AlertRule) -> RuleBody:
    return RuleBody(
        when=rule.when,
        channels=list(rule.channels),
        sustained=rule.sustained,
        repeat=rule.repeat,
        quiet=rule.quiet,
        tz=rule.tz,
        note=rule.note,
    )


class MuteRuleBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """For how many seconds nothing is told of a rule; 0 ends that."""

    lasting: Annotated[float, Meta(ge=0, le=LONGEST_MUTE)]


class AcknowledgeBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What somebody has taken notice of: all that a rule fires for, or one subject of it."""

    rule: str
    subject: str | UnsetType = UNSET


class Acknowledged(msgspec.Struct, frozen=True):
    """For how many subjects that is new."""

    acknowledged: int


class AlertQuery(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Which alerts: those that fire, that are about to, or both (`all`); of one rule if it is given."""

    state: Literal["firing", "pending", "all"] = "firing"
    rule: str | UnsetType = UNSET


class AlertList(msgspec.Struct, frozen=True):
    """What fires or is about to, the longest first."""

    items: list[Alert]
    next: None = None


class AlertRuleList(msgspec.Struct, frozen=True):
    """All rules by name."""

    items: list[AlertRuleInfo]
    next: None = None


class SuggestedRules(msgspec.Struct, frozen=True):
    """Rules that would suit; none of them is stored."""

    items: list[AlertRule]
    next: None = None


class ChannelList(msgspec.Struct, frozen=True):
    """All channels by name."""

    items: list[ChannelInfo]
    next: None = None
