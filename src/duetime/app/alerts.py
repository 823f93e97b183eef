"""`app.alert`: rules of alerts that are declared beside the code that they are about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from duetime.clock import Seconds
from duetime.errors import InvalidHandler
from duetime.model.alerts.conditions import OF_HANDLERS, OF_SCHEDULES, Condition, subject_pattern
from duetime.model.alerts.rule import AlertRule


class DeclaresAlerts:
    """Declares rules of alerts: an App, or a group of Handlers."""

    _prefix: str
    _alert_rules: dict[str, AlertRule]

    def alert(
        self,
        name: str,
        when: Condition,
        /,
        *,
        channels: Sequence[str],
        sustained: Seconds = 0.0,
        repeat: Seconds | None = None,
        quiet: tuple[str, str] | None = None,
        tz: str = "UTC",
        note: str = "",
    ) -> AlertRule:
        """Declare a rule: `app.alert("late", Late(oldest_due=60, handler="shop.*"), channels=["ops"])`.

        `channels` are names of `app.channels`. The condition must hold for `sustained` seconds. With `repeat` it is told again until it is
        over or acknowledged. Between the two times of `quiet`, such as `("22:00", "07:00")` of the zone `tz`, nothing is told. In a group
        of Handlers the handlers and schedules of the condition are the group's. Workers store declared rules when they start.
        """
        rule = AlertRule(
            name=name,
            when=self._of_group(when),
            channels=cast(tuple[str, ...], channels) if isinstance(channels, str) else tuple(channels),  # a text is refused there
            sustained=sustained,
            repeat=repeat,
            quiet=quiet,
            tz=tz,
            note=note,
        )
        self.refuse_taken_alert(name)
        self._alert_rules[name] = rule
        return rule

    def _of_group(self, when: Condition) -> Condition:
        if not self._prefix:
            return when
        field = "handler" if isinstance(when, OF_HANDLERS) else "schedule" if isinstance(when, OF_SCHEDULES) else None
        return when if field is None else msgspec.structs.replace(when, **{field: f"{self._prefix}{subject_pattern(when)}"})

    def declared_alerts(self) -> Iterator[AlertRule]:
        """Return all rules that are declared here."""
        yield from self._alert_rules.values()

    def refuse_taken_alert(self, name: str) -> None:
        """Raise InvalidHandler if a rule of that name is declared already."""
        if any(rule.name == name for rule in self.declared_alerts()):
            raise InvalidHandler(f"a rule of alerts called {name} is already declared; give one of them another name")
