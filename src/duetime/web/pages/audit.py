"""What operators did: who, what, on what, when, from where, and how it ended."""

from __future__ import annotations

from duetime.model.access import Scope
from duetime.web.page import Page, View
from duetime.web.visit import Visit

FIELDS = ("by", "action", "subject")


async def view(visit: Visit) -> View:
    given = {name: visit.query.get(name) or None for name in FIELDS}
    page = await visit.app.tokens.audit.list(**given, cursor=visit.query.get("cursor") or None, limit=50)  # type: ignore[arg-type]
    facts = {
        "entries": page.items,
        "given": given,
        "next": None if page.next is None else visit.here(cursor=page.next),
        "exports": [(form, visit.link(f"audit.{form}", **given)) for form in ("csv", "ndjson")],
        "first": not visit.query.get("cursor"),
    }
    return View(title="Audit", facts=facts, every=5.0)


PAGE = Page(
    path="/audit", template="audit.html", view=view, name="Audit", letter="a", icon="audit", more=True, scope=Scope.ADMIN, whole=True
)
