"""Events: what happened lately, newest first. One reader follows them for all viewers of a server, and only while somebody looks."""

from __future__ import annotations

from collections import deque
from datetime import datetime

import msgspec

from duetime.client.events import EventSource, filter_of
from duetime.errors import InvalidValue
from duetime.model.event import (
    KINDS,
    MOST_EVENTS,
    NAMES,
    Event,
    EventFilter,
    EventRecord,
    GateEvent,
    ScheduleEvent,
    TaskEvent,
    WorkerEvent,
)
from duetime.web.page import Page, View
from duetime.web.visit import Visit
from duetime.web.words import number, short_id

KEPT = 5_000  # the newest, in the memory of the server
PAGES_OF_A_LOOK = 10  # bounds what one look reads; the next goes on
SHOWN = 100
COLOURS = {
    "succeeded": "succeeded", "failed": "failed", "quarantined": "failed", "lost": "failed", "cancelled": "cancelled", "dropped": "dropped",
    "expired": "expired", "missed": "expired", "started": "running", "fired": "running", "skipped": "skipped", "opened": "succeeded",
    "retrying": "expired",
}  # fmt: skip
GLYPHS = {
    "retrying": "retrying",
    "retried": "retrying",
    "paused": "pause",
    "lost": "warning",
    "missed": "warning",
    "quarantined": "warning",
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An event as the page shows it: of what (with its address), and what there is to tell."""

    cursor: str
    at: datetime
    name: str
    colour: str
    glyph: str
    subject: str
    address: str
    handler: str
    told: str


class Tail:
    """The newest events that were read so far. `behind`: there are more to read."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=KEPT)
        self.behind = False
        self._cursor: str | None = None

    async def read(self, source: EventSource) -> Tail:
        """Read what has happened since the last look; at the first one from the oldest that is kept."""
        for _ in range(PAGES_OF_A_LOOK):
            page = await source.page(EventFilter(), after=self._cursor, limit=MOST_EVENTS)
            self.events.extend(page.items)
            self.behind, self._cursor = len(page.items) == MOST_EVENTS, page.next
            if not self.behind:
                break
        return self


async def view(visit: Visit) -> View:
    names, handler, task = (visit.query.get(field, "").strip() for field in ("names", "handler", "task"))
    tail = visit.sight.kept("events", Tail)
    seen = await visit.sight.see("events", lambda: tail.read(visit.app.event_source))
    problem, wanted = "", EventFilter(visible=visit.caller.handlers)
    try:
        wanted = filter_of(
            [each.strip() for each in names.split(",") if each.strip()], handler or None, task or None, visit.caller.handlers
        )
    except InvalidValue as error:
        problem = str(error)
    found: list[Row] = []
    looked = 0
    own = EventFilter(visible=visit.caller.handlers)
    for event in reversed(tail.events) if not problem else ():
        facts_of = event_facts(event)
        if not own.takes(facts_of):
            continue
        looked += 1
        if wanted.takes(facts_of):
            found.append(_row(visit, event))
            if len(found) == SHOWN:
                break
    facts = {
        "rows": found,
        "looked": looked,
        "full": len(found) == SHOWN,
        "seen": seen,
        "behind": tail.behind,
        "given": {"names": names, "handler": handler, "task": task},
        "problem": problem,
        "known": NAMES,
        "nouns": [(noun, visit.here(names=None if names == f"{noun}.*" else f"{noun}.*"), names == f"{noun}.*") for noun in KINDS],
    }
    return View(title="Events", facts=facts)


def event_facts(event: Event) -> EventRecord:
    """Return what filters look at."""
    match event:
        case TaskEvent():
            return EventRecord(cursor="", at=0, name=event.name, subject=event.task, handler=event.handler)
        case ScheduleEvent():
            return EventRecord(cursor="", at=0, name=event.name, subject=event.schedule, handler=event.handler, note=event.task)
        case WorkerEvent():
            return EventRecord(cursor="", at=0, name=event.name, subject=event.worker)
        case GateEvent():
            return EventRecord(cursor="", at=0, name=event.name, subject=event.handler, handler=event.handler)


def _row(visit: Visit, event: Event) -> Row:
    verb = event.name.partition(".")[2]
    subject, address, handler = _subject(visit, event)
    return Row(
        cursor=event.cursor,
        at=event.at,
        name=event.name,
        colour=COLOURS.get(verb, "pending"),
        glyph=GLYPHS.get(verb) or COLOURS.get(verb, "pending"),
        subject=subject,
        address=address,
        handler=handler,
        told=told(event),
    )


def _subject(visit: Visit, event: Event) -> tuple[str, str, str]:
    match event:
        case TaskEvent():
            return short_id(event.task), visit.link("tasks", event.task), event.handler
        case ScheduleEvent():
            return event.schedule, visit.link("schedules", event.schedule), event.handler or ""
        case WorkerEvent():
            return event.host or short_id(event.worker), visit.link("workers", event.worker), ""
        case GateEvent():
            return event.handler, visit.link("handlers", event.handler), event.handler


def told(event: Event) -> str:
    """Say in one line what an event tells besides its name and subject."""
    match event:
        case TaskEvent():
            error = "" if event.error is None else f"{event.error.type}: {event.error.message}".strip(": ")
            attempt = f"attempt {event.attempt}" if event.attempt and event.name != "task.submitted" else ""
            outcome = event.outcome.replace("_", " ") if event.outcome and event.outcome not in event.name else ""
            schedule = f"of {event.schedule}" if event.schedule else ""
            return ", ".join(part for part in (attempt, outcome, error, schedule, _collection(event.collection)) if part)
        case ScheduleEvent():
            count = f"{number(event.count)} occurrences" if event.count and event.count > 1 else ""
            reason = event.reason.replace("_", " ") if event.reason else ""
            by = f"by {event.by}" if event.by else ""
            return ", ".join(part for part in (count, reason, event.note or "", by, _collection(event.collection)) if part)
        case WorkerEvent():
            return ""
        case GateEvent():
            by = f"by {event.by}" if event.by else ""
            return ", ".join(part for part in (_collection(event.collection), event.note, by) if part)


def _collection(name: str | None) -> str:
    return f"collection {name}" if name else ""


PAGE = Page(path="/events", template="events.html", view=view, name="Events", letter="e", icon="events", more=True)
