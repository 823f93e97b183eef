"""`app.alerts`: rules, what fires now, and who has taken notice of it."""

from __future__ import annotations

import builtins
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol, TypeAlias

import msgspec

from duetime.clock import SECOND, Instant, Seconds, to_datetime
from duetime.errors import AlertNotFound, Conflict, InvalidValue
from duetime.ids import token
from duetime.model.alerts.conditions import Certificate, Condition, Disabled, Failing, Late, Missed, Slo, WorkerLost, span
from duetime.model.alerts.course import AlertState, is_silent
from duetime.model.alerts.rule import AlertRule, StoredRule, check_alert_name
from duetime.store import Store
from duetime.store.alerts import DocumentKind
from duetime.store.schedules import ScheduleFilter
from duetime.targets.notices.documents import Kept, change, rules_of, states_of

AlertStateName: TypeAlias = Literal["pending", "firing"]

MOST_RULES = 1_000
LONGEST_MUTE = 92 * 86_400.0
RACES = 20  # changes of others at the same moment, before ours gives up


class AlertRuleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored rule: how many subjects fire or are about to, who has changed it, and until when it is muted."""

    rule: AlertRule
    firing: int
    pending: int
    declared: bool
    changed_at: datetime
    changed_by: str
    muted_until: datetime | None = None
    muted_by: str = ""
    silent: bool = False


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A subject that a rule's condition holds for. `told_at`: when somebody was told last; None while nobody was."""

    rule: str
    subject: str
    state: AlertStateName
    since: datetime
    text: str
    told_at: datetime | None = None
    flapping: bool = False
    acknowledged_at: datetime | None = None
    acknowledged_by: str = ""


class Alerts(Protocol):
    """Rules of alerts, and alerts."""

    async def put(self, rule: AlertRule, *, by: str | None = None) -> AlertRuleInfo:
        """Store a rule in place of an earlier one of its name. One that was changed begins anew: what holds is told again.

        Raises Conflict for a rule that code declares.
        """
        ...

    async def get(self, name: str) -> AlertRuleInfo:
        """Return a rule. Raises AlertNotFound if there is none."""
        ...

    async def list(self) -> list[AlertRuleInfo]:
        """Return all rules by name."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a rule; nobody is told of its end. One that code declares comes back when a worker starts."""
        ...

    async def mute(self, name: str, *, lasting: Seconds, by: str | None = None) -> AlertRuleInfo:
        """Tell nothing of a rule for so many seconds; what still holds then is told then. 0 ends it now."""
        ...

    async def firing(self, *, state: AlertStateName | None = "firing", rule: str | None = None) -> builtins.list[Alert]:
        """Return what fires now, or is about to, the longest first."""
        ...

    async def acknowledge(self, rule: str, subject: str | None = None, *, by: str | None = None) -> int:
        """Take notice of what a rule fires for, of one subject or of all: it is not repeated any more. Return for how many that is new."""
        ...

    async def suggest(self) -> builtins.list[AlertRule]:
        """Return rules that would suit what is declared and stored, for the channel `ops`; nothing is stored."""
        ...


class LocalAlerts(Alerts):
    """The alerts of a store."""

    def __init__(self, store: Store, *, user: str, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._user = user
        self._opened = opened

    async def put(self, rule: AlertRule, *, by: str | None = None) -> AlertRuleInfo:
        check_rule(rule)
        await self._opened()
        await self._refuse_unknown(rule)
        return await self._write(rule, by or self._user, declared=False)

    async def declare(self, rules: Sequence[AlertRule]) -> None:
        """Store rules that code declares; those that are stored so already stay as they are."""
        if rules:
            await self._opened()
        for rule in rules:
            await self._write(rule, "code", declared=True)

    async def _write(self, rule: AlertRule, by: str, *, declared: bool) -> AlertRuleInfo:
        for _ in range(RACES):
            before = await self._rule_or_none(rule.name)
            if before is not None and before.value.declared and not declared:
                raise Conflict(f"the rule {rule.name!r} is declared by code: change it there, or mute it; or choose another name")
            if before is not None and before.value.rule == rule and before.value.declared == declared:
                return await self.get(rule.name)
            if before is None and len(await self._store.alert_documents(DocumentKind.RULE)) >= MOST_RULES:
                raise Conflict(f"there are {MOST_RULES:,} rules already; delete those that nobody needs")
            stored = StoredRule(rule=rule, id=token(8), changed_at=self._store.now(), changed_by=by, declared=declared)
            if await self._store.change_alert_documents([change(DocumentKind.RULE, rule.name, before, stored)]):
                return await self.get(rule.name)
        raise _races(rule.name)

    async def get(self, name: str) -> AlertRuleInfo:
        await self._opened()
        rule = await self._rule(name)
        return rule_info(rule.value, [each.value for each in await states_of(self._store)], self._store.now())

    async def list(self) -> builtins.list[AlertRuleInfo]:
        await self._opened()
        states, now = [each.value for each in await states_of(self._store)], self._store.now()
        return [rule_info(each.value, states, now) for each in await rules_of(self._store)]

    async def delete(self, name: str) -> None:
        await self._opened()
        for _ in range(RACES):
            rule = await self._rule(name)
            if await self._store.change_alert_documents([change(DocumentKind.RULE, name, rule, None)]):
                return
        raise _races(name)

    async def mute(self, name: str, *, lasting: Seconds, by: str | None = None) -> AlertRuleInfo:
        seconds = span("lasting", lasting, 0.0, LONGEST_MUTE)
        await self._opened()
        for _ in range(RACES):
            rule = await self._rule(name)
            until = self._store.now() + round(seconds * SECOND) if seconds else None
            muted = msgspec.structs.replace(rule.value, muted_until=until, muted_by=(by or self._user) if seconds else "")
            if await self._store.change_alert_documents([change(DocumentKind.RULE, name, rule, muted)]):
                return await self.get(name)
        raise _races(name)

    async def firing(self, *, state: AlertStateName | None = "firing", rule: str | None = None) -> builtins.list[Alert]:
        await self._opened()
        rules = {each.name: each.value.id for each in await rules_of(self._store)}
        states = [each.value for each in await states_of(self._store)]
        wanted = [each for each in states if rule in (None, each.rule) and rules.get(each.rule) == each.rule_id]
        found = [shown(each) for each in wanted if each.state != "recovered" and state in (None, each.state)]
        return sorted(found, key=lambda each: (each.since, each.rule, each.subject))

    async def acknowledge(self, rule: str, subject: str | None = None, *, by: str | None = None) -> int:
        await self._opened()
        await self._rule(rule)
        done = 0
        for _ in range(RACES):
            mine = [each for each in await states_of(self._store) if each.value.rule == rule and each.value.state == "firing"]
            mine = [each for each in mine if subject in (None, each.value.subject)]
            if not mine and subject is not None:
                raise AlertNotFound(f"the rule {rule!r} does not fire for {subject!r}; `duetime alerts firing` lists what does")
            open_ = [each for each in mine if each.value.acknowledged_at is None]
            if not open_:
                return done
            now = self._store.now()
            changes = [
                change(
                    DocumentKind.ALERT,
                    each.name,
                    each,
                    msgspec.structs.replace(each.value, acknowledged_at=now, acknowledged_by=by or self._user),
                )
                for each in open_
            ]
            if await self._store.change_alert_documents(changes):
                return len(open_)
        raise _races(rule)

    async def suggest(self) -> builtins.list[AlertRule]:
        await self._opened()
        declared = await self._store.declarations()
        goals = {each.name: each.start_within for each in declared if each.start_within is not None}
        schedules = await self._store.list_schedules(ScheduleFilter(limit=1))
        return suggested({each.isolation for each in declared}, schedules=bool(schedules), goals=goals)

    async def _rule(self, name: str) -> Kept[StoredRule]:
        found = await self._rule_or_none(check_alert_name(name, "the name of a rule"))
        if found is None:
            raise AlertNotFound(f"there is no rule {name!r}; `duetime alerts` lists all")
        return found

    async def _rule_or_none(self, name: str) -> Kept[StoredRule] | None:
        return next(iter(await rules_of(self._store, [name])), None)

    async def _refuse_unknown(self, rule: AlertRule) -> None:
        known = {each.name for each in await self._store.alert_documents(DocumentKind.CHANNEL)}
        unknown = [each for each in rule.channels if each not in known]
        if unknown:
            there = f"there are {', '.join(sorted(known))}" if known else "there are none yet"
            raise InvalidValue(f"there is no channel {unknown[0]!r}, {there}; put one first: duetime channels put {unknown[0]}")


def check_rule(rule: object) -> AlertRule:
    if not isinstance(rule, AlertRule):
        raise InvalidValue(f'a rule is written AlertRule(name="…", when=Late(oldest_due=60), channels=("ops",)), got {rule!r}')
    return rule


def rule_info(stored: StoredRule, states: Sequence[AlertState], now: Instant) -> AlertRuleInfo:
    """Return a rule as people see it."""
    own = [each.state for each in states if each.rule == stored.rule.name and each.rule_id == stored.id]
    muted = stored.muted_until is not None and stored.muted_until > now
    return AlertRuleInfo(
        rule=stored.rule,
        firing=own.count("firing"),
        pending=own.count("pending"),
        declared=stored.declared,
        changed_at=to_datetime(stored.changed_at),
        changed_by=stored.changed_by,
        muted_until=to_datetime(stored.muted_until) if muted and stored.muted_until is not None else None,
        muted_by=stored.muted_by if muted else "",
        silent=is_silent(stored, now),
    )


def shown(state: AlertState) -> Alert:
    """Return an alert as people see it."""
    assert state.state != "recovered"
    acknowledged = state.acknowledged_at
    return Alert(
        rule=state.rule,
        subject=state.subject,
        state=state.state,
        since=to_datetime(state.since),
        text=state.text,
        told_at=to_datetime(state.told_at) if state.told else None,
        flapping=state.told == "flapping",
        acknowledged_at=None if acknowledged is None else to_datetime(acknowledged),
        acknowledged_by=state.acknowledged_by,
    )


def suggested(kinds: set[str], *, schedules: bool, goals: Mapping[str, float] = {}) -> list[AlertRule]:  # never changed
    """Return rules worth having, for what a store runs. `goals`: within how many seconds tasks of handlers should start."""
    wanted: list[tuple[str, Condition, float, str]] = [
        ("late", Late(oldest_due=60), 0, "Work waits for a minute: too few workers or slots, or none."),
        ("failing", Failing(ratio=0.2, within=300), 0, "A fifth of a handler's attempts fail."),
        ("failing in a row", Failing(in_a_row=5), 0, "A handler that runs seldom, and fails each time."),
        ("on time", Slo(start_within=5, ratio=0.95, window=3_600), 0, "95 % start within five seconds."),
        ("worker lost", WorkerLost(), 0, "Killed, out of memory, or its machine is gone."),
    ]
    for handler, seconds in sorted(goals.items()):
        objective = Slo(handler=handler, start_within=min(max(seconds, 0.001), 3_600.0))
        name = re.sub(r"[^\w .:-]", "-", f"on time: {handler}")[:100].strip()
        wanted.append((name, objective, 0, "95 % start within what the handler declares."))
    if schedules:
        wanted.append(("missed", Missed(), 0, "Nobody fired a schedule in time."))
    if "http" in kinds:
        wanted.append(("certificates", Certificate(), 0, "The certificate of a server that is called ends soon."))
        wanted.append(("disabled", Disabled(), 0, "A target failed so often that its handler was paused."))
    return [AlertRule(name=name, when=when, channels=("ops",), sustained=sustained, note=note) for name, when, sustained, note in wanted]


def _races(name: str) -> Conflict:
    return Conflict(f"others keep changing {name!r} at this moment; try again")
