"""Alerts: what fires, the rules, and where notices go."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from duetime.clock import Seconds
from duetime.errors import InvalidValue
from duetime.model.access import Scope
from duetime.model.alerts.conditions import Condition, Deadline, Missed, WorkerLost, written
from duetime.model.query import Query
from duetime.model.task import Task
from duetime.targets.notices.channels import Channel, Mail, kind_of
from duetime.targets.notices.notice import NOTIFY, Notice, headline
from duetime.web.page import Action, Done, Page, View
from duetime.web.visit import Visit

TOLD = 20  # notices on the page
MUTED: dict[str, Seconds] = {"1h": 3_600.0, "8h": 28_800.0, "1d": 86_400.0}


async def view(visit: Visit) -> View:
    app = visit.app
    alerts = await visit.sight.see("alerts", lambda: app.alerts.firing(state=None))
    rules = await visit.sight.see("alert rules", app.alerts.list)
    channels = await visit.sight.see("channels", app.channels.list)
    told = await visit.sight.see("notices", lambda: _told(visit))
    operates = visit.may("operate")
    conditions = {each.rule.name: each.rule.when for each in rules.value}
    facts = {
        "alerts": [(each, _link(visit, conditions.get(each.rule), each.subject)) for each in alerts.value],
        "seen": alerts,
        "rules": [(each, written(each.rule.when)) for each in rules.value],
        "channels": [(each, kind_of(each.channel), _where(each.channel)) for each in channels.value] if operates else [],
        "told": told.value,
        "may_operate": operates,
        "may_admin": visit.may("admin"),
        "muted": list(MUTED),
    }
    return View(title="Alerts", facts=facts)


async def _told(visit: Visit) -> list[tuple[Task[Any], str]]:
    """Return the last notices as tasks, each with what it says in one line."""
    page = await visit.app.client.page(Query(handler=NOTIFY, limit=TOLD))
    told = []
    for task in page.items:
        with contextlib.suppress(msgspec.ValidationError):  # it is not from alerts
            told.append((task, headline(msgspec.convert(task.payload, Notice))))
    return told


def _link(visit: Visit, condition: Condition | None, subject: str) -> str:
    """Return the address of what an alert is about."""
    match condition:
        case WorkerLost():
            return visit.link("workers")
        case Missed() | Deadline():
            return visit.link("schedules", subject)
        case _:
            return visit.link("handlers", subject)


def _where(channel: Channel) -> str:
    """Say in a few words where a channel leads to."""
    if isinstance(channel, Mail):
        return f"{', '.join(channel.to)} by {channel.server}"
    return channel.url if isinstance(channel.url, str) else f"the secret {channel.url.name}"


async def acknowledge(visit: Visit) -> Done:
    rule, subject = visit.needed("rule"), visit.needed("subject")
    async with visit.acting("alerts.acknowledge", rule[:200]) as act:
        await visit.app.alerts.acknowledge(rule, subject, by=visit.caller.name)
        act.detail = subject[:200]
    return Done(said=f"{rule} is not repeated for {subject} any more.")


async def mute(visit: Visit) -> Done:
    rule, chosen = visit.needed("rule"), visit.field("lasting")
    lasting = 0.0 if chosen == "off" else MUTED.get(chosen)
    if lasting is None:
        raise InvalidValue(f"a rule is muted for {', '.join(MUTED)}, got {chosen[:20]!r}")
    async with visit.acting("alerts.mute", rule[:200]) as act:
        await visit.app.alerts.mute(rule, lasting=lasting, by=visit.caller.name)
        act.detail = chosen
    return Done(said=f"{rule} tells {'again' if chosen == 'off' else f'nothing for {chosen}'}.")


async def test(visit: Visit) -> Done:
    name = visit.needed("channel")
    async with visit.acting("channels.test", name[:200]):
        task = await visit.app.channels.test(name)
    return Done(said=f"A test is on its way to {name}.", to=visit.link("tasks", task.id))


PAGE = Page(
    path="/alerts",
    template="alerts.html",
    view=view,
    name="Alerts",
    letter="n",
    icon="bell",
    more=True,
    whole=True,
    actions={"acknowledge": Action(run=acknowledge), "mute": Action(run=mute), "test": Action(run=test, scope=Scope.ADMIN)},
)
