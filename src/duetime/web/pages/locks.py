"""Locks: who holds what, since when, and whether they still live; and taking one from a holder that hangs."""

from __future__ import annotations

from duetime.client.locks import no_lock
from duetime.model.access import Scope
from duetime.web.page import Action, Done, Page, View
from duetime.web.visit import Visit


async def view(visit: Visit) -> View:
    seen = await visit.sight.see("locks", visit.app.locks.list)
    wanted = visit.query.get("q", "").strip().lower()
    found = [each for each in seen.value if visit.may_see(each.name) and (wanted in each.name.lower() or wanted in each.by.lower())]
    found.sort(key=lambda lock: (not lock.silent, lock.free_at is not None, lock.name))
    facts = {
        "locks": [(each, visit.may("operate", each.name)) for each in found],
        "seen": seen,
        "q": visit.query.get("q", ""),
        "held": sum(each.free_at is None for each in found),
        "may_operate": visit.may("operate"),
    }
    return View(title="Locks", facts=facts)


async def release(visit: Visit) -> Done:
    name = visit.needed("lock")
    async with visit.acting("locks.delete", name[:200]):
        if not visit.may_see(name):
            raise no_lock(name)
        visit.allow(Scope.OPERATE, name)
        await visit.app.locks.delete(name)
    return Done(said=f"{name} is free. Whoever held it learns so at its next beat.")


PAGE = Page(
    path="/locks",
    template="locks.html",
    view=view,
    name="Locks",
    letter="k",
    icon="locks",
    more=True,
    actions={"release": Action(run=release)},
)
