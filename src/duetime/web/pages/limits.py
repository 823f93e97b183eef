"""Limits of the whole fleet: what may run, who has what of it, and changing that."""

from __future__ import annotations

from duetime.api.limits import limits_of, may_see_limit
from duetime.client.limits import LimitInfo, no_limit
from duetime.clock import to_micros
from duetime.errors import InvalidValue
from duetime.model.access import Scope
from duetime.web.page import Action, Done, Page, View
from duetime.web.pages.gating import CONFIRMED_WITHIN
from duetime.web.pages.tasks import read_duration
from duetime.web.visit import Visit

SOME = 5  # partitions of a limit that are shown


async def view(visit: Visit) -> View:
    seen = await visit.sight.see("limits", visit.app.limits.list)
    found = [limit for limit in seen.value if may_see_limit(visit.call, limit)]
    partitions = {}
    for limit in found:
        if limit.by is not None and (limit.out or limit.parked) and not seen.is_old:
            partitions[limit.name] = await visit.app.limits.partitions(limit.name, limit=SOME)
    facts = {
        "partitions": partitions,
        "limits": [(limit, all(visit.may("operate", handler) for handler in limit.handlers)) for limit in found],
        "seen": seen,
        "may_operate": visit.may("operate"),
    }
    return View(title="Limits", facts=facts)


async def change(visit: Visit) -> Done:
    name, text, lasting, note = visit.needed("limit"), visit.needed("running"), visit.field("lasting"), visit.field("note")
    if not text.isdecimal():
        raise InvalidValue(f"running must be a whole number, got {text[:40]!r}")
    async with visit.acting("limits.put", name[:200]) as act:
        found = await _addressed(visit, name)
        micros = to_micros(read_duration(lasting)) if lasting else None
        one = visit.field("partition") or None
        done = await limits_of(visit.call).put_by(visit.caller.name, found.name, int(text), micros, note[:1_000], CONFIRMED_WITHIN, one)
        act.detail = "; ".join(text for text in (text, note, str(done)) if text)
    if done.partition is not None:
        return Done(said=f"{name} allows {done.partition.running:,} for {done.partition.partition}: {done}.", good=True)
    return Done(said=f"{name} allows {done.limit.running:,}: {done}.", good=done.in_force)


async def reset(visit: Visit) -> Done:
    name = visit.needed("limit")
    async with visit.acting("limits.reset", name[:200]):
        await _addressed(visit, name)
        found = await visit.app.limits.reset(name)
    return Done(said=f"{name} allows {'as many as come' if found.running is None else f'{found.running:,}'}, as declared.")


async def _addressed(visit: Visit, name: str) -> LimitInfo:
    """Return a limit that the person may change. One of which they may not see all handlers does not exist for them."""
    found = [limit for limit in await visit.app.limits.list() if may_see_limit(visit.call, limit)]
    for limit in found:
        if limit.name == name:
            for handler in limit.handlers:
                visit.allow(Scope.OPERATE, handler)
            return limit
    raise no_limit(name, [limit.name for limit in found])


PAGE = Page(
    path="/limits",
    template="limits.html",
    view=view,
    name="Limits",
    letter="m",
    icon="limits",
    more=True,
    actions={"change": Action(run=change), "reset": Action(run=reset)},
)
