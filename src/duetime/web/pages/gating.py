"""Closing and opening gates, with what it will do told before."""

from __future__ import annotations

from duetime.clock import to_micros
from duetime.errors import InvalidValue
from duetime.model.access import Scope
from duetime.model.gate import Gate, GateAction
from duetime.model.task import check_name
from duetime.web.page import Action, Done
from duetime.web.pages.tasks import read_duration
from duetime.web.visit import Visit

CONFIRMED_WITHIN = 5.0  # seconds that a form waits for the workers; what is missing then is named


async def close(visit: Visit) -> Done:
    """Pause or drop a handler's tasks, or those of a collection, and say which workers have confirmed it."""
    handler, collection = _named(visit)
    action = visit.field("action", "pause")
    if action not in tuple(GateAction):
        raise InvalidValue(f"a gate pauses or drops, got {action[:40]!r}")
    note, now = visit.field("note"), visit.app.client.now()
    if action == GateAction.DROP and not note:
        raise InvalidValue("say in the note why tasks are dropped: they will not run later")
    lasting = visit.field("lasting")
    gate = Gate(
        handler=handler,
        collection=collection,
        action=GateAction(action),
        until_at=now + to_micros(read_duration(lasting)) if lasting else None,
        note=note[:1_000],
        set_by=visit.caller.name,
        set_at=now,
    )
    async with visit.acting(f"gates.{action}", _subject(handler, collection)) as act:
        visit.allow(Scope.OPERATE, handler)
        done = await visit.app.gates.put(gate, timeout=CONFIRMED_WITHIN)
        act.detail = "; ".join(text for text in (note, str(done)) if text)
    verb = "paused" if action == GateAction.PAUSE else "dropped"
    if done.in_force:
        return Done(said=f"Tasks of {_subject(handler, collection)} are {verb}: {len(done.confirmed)} workers have confirmed it.")
    total = len(done.confirmed) + len(done.waiting)
    missing = ", ".join(done.waiting[:3])
    return Done(said=f"Set, but only {len(done.confirmed)} of {total} workers have confirmed it. Missing: {missing}.", good=False)


async def open_gate(visit: Visit) -> Done:
    handler, collection = _named(visit)
    async with visit.acting("gates.open", _subject(handler, collection)):
        visit.allow(Scope.OPERATE, handler)
        was = await visit.app.gates.open(handler, collection=collection)
    return Done(said=f"The gate on {_subject(handler, collection)} {'is open: what was paused runs' if was else 'was open already'}.")


def _named(visit: Visit) -> tuple[str, str | None]:
    collection = visit.field("collection")
    return check_name(visit.needed("handler"), "handler"), check_name(collection, "collection") if collection else None


def _subject(handler: str, collection: str | None) -> str:
    return handler if collection is None else f"{handler}, collection {collection}"


ACTIONS = {"gate": Action(run=close), "open": Action(run=open_gate)}
