"""Handlers and their gates: how each is doing, what it may do, and closing it with its effect told before."""

from __future__ import annotations

from typing import Any

from duetime.api.problems import Refusal
from duetime.client.artifacts import ArtifactInfo
from duetime.client.insight import AttemptInfo, HandlerInfo
from duetime.client.series import Series
from duetime.client.workers import WorkerInfo
from duetime.clock import to_datetime
from duetime.model.query import Query
from duetime.model.task import State
from duetime.web.courses import BY_DAY, NAMES, RANGES, by_day, courses, whole
from duetime.web.page import Page, View
from duetime.web.pages import gating
from duetime.web.pages.overview import handler_rows
from duetime.web.pages.submit import info_of
from duetime.web.performing import artifact_name, kind_of, leads_to, phases_of, secret_names
from duetime.web.visit import Visit
from duetime.wire.problem import NO_ROUTE

MOST_SCHEDULES = 50
MOST_VERSIONS = 5
_ENDED = (State.SUCCEEDED, State.FAILED)


async def view(visit: Visit) -> View:
    rows = await handler_rows(visit)
    gates = [gate for gate in (await visit.sight.see("gates", visit.app.gates.list)).value if visit.may_see(gate.handler)]
    facts = {"rows": rows, "gates": gates, "may_operate": visit.may("operate")}
    return View(title="Handlers", facts=facts)


async def view_one(visit: Visit) -> View:
    name = visit.path["name"]
    chosen = visit.query.get("range", "15min")
    chosen = chosen if chosen in RANGES else "15min"
    row = next((row for row in await handler_rows(visit) if row.name == name), None)
    if row is None:  # the same answer whether it exists or may not be seen
        raise Refusal(NO_ROUTE, f"there is no handler {name[:200]!r}, or your token is not for it")
    info = await info_of(visit, name)
    gates = [gate for gate in (await visit.sight.see("gates", visit.app.gates.list)).value if gate.handler == name]
    workers = [part for each in (await visit.sight.see("workers", visit.app.insight.workers)).value if (part := each.part(visit.may_see))]
    schedules = await visit.app.schedules.list(handler=name, limit=MOST_SCHEDULES)
    series = await _series(visit, name, chosen)
    drawn = by_day(series, visit.preferences.tz) if chosen == BY_DAY else series
    facts = {
        "row": row,
        "info": info,
        "sparks": {each: whole(drawn, each) for each in ("due", "oldest_due", "running", "attempts", "failed", "lateness_p99")},
        "gates": gates,
        "workers": [(each, number) for each in workers if (number := _slots(each, name, info))],
        "schedules": schedules,
        "courses": courses(series, visit.preferences.tz, chosen),
        "as_table": visit.query.get("as") == "table",
        "ranges": [(each, visit.here(range=each), each == chosen) for each in RANGES],
        "target": None if info is None else await _target(visit, info),
        "may_operate": visit.may("operate", name),
        "may_submit": info is not None and visit.may("submit", name),
    }
    return View(title=name, facts=facts, crumbs=(("/handlers", "Handlers"),))


async def _series(visit: Visit, name: str, chosen: str) -> Series:
    back, step = RANGES[chosen]
    since = to_datetime(visit.app.store.now()) - back
    seen = await visit.sight.see(
        f"series {chosen} of {name}", lambda: visit.app.insight.series(NAMES, handler=name, since=since, step=step)
    )
    return seen.value


def _slots(worker: WorkerInfo, name: str, info: HandlerInfo | None) -> int:
    """Return how many attempts of a handler a worker can run at once, by whichever of the handler's names it knows."""
    return max(worker.slots.get(each, 0) for each in (name, *(info.aliases if info else ())))


async def _target(visit: Visit, info: HandlerInfo) -> dict[str, Any]:
    """Return how attempts are performed. Secrets are named, never shown; what is stored under the names is for admins."""
    stored = info.target
    definition = None if stored is None else stored.target
    last = await visit.sight.see(f"last attempt of {info.name}", lambda: _last_attempt(visit, info.name))
    attempt = last.value
    names, artifact = secret_names(definition), artifact_name(definition)
    kept: dict[str, str] = {}
    versions: list[ArtifactInfo] = []
    if visit.may("admin"):
        if names:
            known = {each.name: each for each in (await visit.sight.see("secrets", visit.app.secrets.list)).value}
            kept = {name: f"version {known[name].version}" if name in known else "not stored" for name in names}
        if artifact:
            own = artifact.partition("@")[0]
            versions = (await visit.sight.see(f"artifact {own}", lambda: visit.app.artifacts.list(own))).value[-MOST_VERSIONS:][::-1]
    return {
        "kind": kind_of(info),
        "stored": stored,
        "leads_to": leads_to(definition),
        "secrets": [(name, kept.get(name, "")) for name in names],
        "artifact": artifact,
        "versions": versions,
        "last": attempt,
        "phases": phases_of(None if attempt is None else attempt[1]),
    }


async def _last_attempt(visit: Visit, name: str) -> tuple[str, AttemptInfo] | None:
    """Return the task that ended last, and its last attempt."""
    page = await visit.app.client.record_page(Query(handler=name, states=_ENDED, limit=1, brief=True))
    if not page.items:
        return None
    record = page.items[0]
    found = await visit.app.insight.attempts(record.id, after=record.attempt - 1)
    return (record.id, found[-1]) if found else None


PAGE = Page(path="/handlers", template="handlers.html", view=view, name="Handlers", letter="h", icon="handlers", actions=gating.ACTIONS)
ONE = Page(path="/handlers/{name}", template="handler.html", view=view_one, actions=gating.ACTIONS)
