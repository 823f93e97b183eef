"""Alerts: evaluates rules and tells channels. Any number of processes may do so at once: each change is told by one of them.

An evaluation reads the rules, what is kept of their subjects, and the facts; `model.alerts` decides; one write keeps all of it, provided
that nothing has changed since it was read. What is to be told is written with it, as messages. A message becomes a task with the message's
own id, and then the message is removed: a process that dies in between leaves it to the next one, which submits the same id again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
from collections.abc import Sequence
from typing import Protocol

import msgspec

from duetime.clock import DAY, SECOND
from duetime.duties.alert_facts import AlertFactsStore, Gathering, Memory
from duetime.errors import StoreUnavailable
from duetime.ids import new_id, token
from duetime.model.alerts.course import Change, ChangeKind, Pace, advance, paced
from duetime.model.alerts.judging import observe
from duetime.model.task import NewTask
from duetime.runtime.service import Alarms, Service
from duetime.store.alerts import DocumentChange, DocumentKind
from duetime.store.shard import Submitting
from duetime.targets.notices.documents import Kept, change, messages_of, paces_of, rules_of, state_name, states_of
from duetime.targets.notices.notice import NOTIFY, notice_of

LOOK_EVERY = 5.0
IDLE = 15.0  # seconds between looks while there are no rules
LEASE = 20.0
GOOD_FOR = DAY  # for how long a notice is worth sending
SUBMITTER = "alerts"

logger = logging.getLogger("duetime.alerts")


class AlertsStore(AlertFactsStore, Submitting, Protocol):
    """What the duty needs of a store."""


class Alerts(Service):
    """Evaluates the rules every five seconds, in one process at a time; without rules nothing is written and no lease is taken."""

    name = "alerts"

    def __init__(self, store: AlertsStore, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{token(4)}"
        self._held = False
        self._memory = Memory()

    async def run_once(self) -> float | None:
        if not await self._store.alert_documents(DocumentKind.RULE) and not await self._store.alert_documents(DocumentKind.MESSAGE):
            return IDLE * random.uniform(0.8, 1.2)
        lease = await self._store.take_duty(self.name, self._holder, LEASE)
        self._held = lease.granted
        if not lease.granted:
            return min(LEASE, max(0.0, (lease.until_at - lease.now) / SECOND)) + random.uniform(0.1, 1.0)
        await self.evaluate()
        return LOOK_EVERY

    async def evaluate(self) -> int:
        """Evaluate all rules once, and submit what is to be told; return how many messages were submitted."""
        await evaluate(self._store, self._memory)
        return await submit_messages(self._store)

    async def stop(self) -> None:
        await super().stop()
        if self._held:
            self._held = False
            with contextlib.suppress(StoreUnavailable):
                await self._store.leave_duty(self.name, self._holder)


async def evaluate(store: AlertsStore, memory: Memory) -> bool:
    """Evaluate all rules and keep what follows. Return False if somebody else changed something meanwhile: then nothing is kept."""
    rules, states = await rules_of(store), await states_of(store)
    gathering = Gathering(store, memory)
    by_name = {each.name: each for each in states}
    changes: list[DocumentChange] = []
    told: dict[str, list[Change]] = {}
    for rule in rules:
        seen = {each.subject: each for each in observe(rule.value.rule.when, await gathering.facts(rule.value.rule.when))}
        subjects = dict.fromkeys((*seen, *(each.value.subject for each in states if each.value.rule == rule.name)))
        for subject in subjects:
            name = state_name(rule.name, subject)
            before = by_name.get(name)
            state, announced = advance(rule.value, None if before is None else before.value, seen.get(subject), subject, gathering.now)
            if state != (None if before is None else before.value):
                changes.append(change(DocumentKind.ALERT, name, before, state))
            if announced is not None:
                for channel in rule.value.rule.channels:
                    told.setdefault(channel, []).append(announced)
    alive = {rule.name for rule in rules}
    changes.extend(change(DocumentKind.ALERT, each.name, each, None) for each in states if each.value.rule not in alive)
    changes.extend(_messages(told, await paces_of(store), gathering.now))
    kept = not changes or await store.change_alert_documents(changes)
    if kept:
        for each in dict.fromkeys(each for listed in told.values() for each in listed):
            logger.log(
                logging.INFO if each.kind is ChangeKind.RECOVERED else logging.WARNING, "alert %s, %s: %s", each.rule, each.kind, each.text
            )
    return kept


def _messages(told: dict[str, list[Change]], paces: Sequence[Kept[Pace]], now: int) -> list[DocumentChange]:
    """Return what writes the messages of each channel, and what it has been told lately."""
    known = {each.name: each for each in paces}
    changes = []
    for channel in dict.fromkeys((*told, *known)):
        before = known.get(channel)
        pace, messages = paced(Pace() if before is None else before.value, told.get(channel, ()), now)
        if before is None or pace != before.value:
            changes.append(change(DocumentKind.PACE, channel, before, None if pace == Pace() else pace))
        for listed, more in messages:
            changes.append(change(DocumentKind.MESSAGE, new_id(), None, notice_of(channel, listed, more)))
    return changes


async def submit_messages(store: AlertsStore) -> int:
    """Make a task of each message, and remove it then. Any number of processes may do so at once: the task has the message's id."""
    messages = await messages_of(store)
    if not messages:
        return 0
    tasks = [
        NewTask[object](
            id=each.name, handler=NOTIFY, payload=msgspec.json.encode(each.value), priority=9, expires_in=GOOD_FOR, submitted_by=SUBMITTER
        )
        for each in messages
    ]
    await store.add(tasks)
    for each in messages:
        await store.change_alert_documents([change(DocumentKind.MESSAGE, each.name, each, None)])
    return len(messages)
