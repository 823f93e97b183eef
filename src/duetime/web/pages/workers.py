"""Workers: those that are silent or dead first; and what each of them runs."""

from __future__ import annotations

from duetime.api.problems import Refusal
from duetime.client.workers import WorkerDetails, WorkerInfo
from duetime.errors import WorkerNotFound
from duetime.web.page import Action, Done, Page, View
from duetime.web.visit import Visit
from duetime.wire.problem import FORBIDDEN, NO_ROUTE

MOST = 100


async def _workers(visit: Visit) -> list[WorkerInfo]:
    found = (await visit.sight.see("workers", visit.app.insight.workers)).value
    return [part for each in found if (part := each.part(visit.may_see)) is not None]


def _order(worker: WorkerInfo) -> tuple[int, str, str]:
    rank = 0 if worker.alive is False else 1 if worker.silent_for else 2 if worker.draining else 3
    return rank, worker.host, worker.id


async def view(visit: Visit) -> View:
    found = sorted(await _workers(visit), key=_order)
    servers = (await visit.sight.see("servers", visit.app.insight.servers)).value
    begin = int(visit.query.get("from", "0")) if visit.query.get("from", "0").isdecimal() else 0
    facts = {
        "workers": found[begin : begin + MOST],
        "total": len(found),
        "servers": servers,
        "slots": sum(sum(each.slots.values()) for each in found),
        "running": sum(each.running or 0 for each in found),
        "next": visit.here(**{"from": begin + MOST}) if begin + MOST < len(found) else None,
        "previous": visit.here(**{"from": max(0, begin - MOST)}) if begin else None,
    }
    return View(title="Workers", facts=facts)


async def view_one(visit: Visit) -> View:
    found = await _one(visit)
    worker = found.worker
    facts = {"worker": worker, "tasks": found.tasks, "may_drain": worker.running is not None and visit.may("operate")}
    return View(title=f"Worker {worker.id[:8]}", facts=facts, crumbs=(("/workers", "Workers"),))


async def drain(visit: Visit) -> Done:
    worker = await _changed(visit, "workers.drain", undo=False)
    left = f"{worker.running:,} still running there" if worker.running else "nothing runs there"
    return Done(said=f"{worker.host} starts nothing more; {left}.")


async def undo_drain(visit: Visit) -> Done:
    worker = await _changed(visit, "workers.undo_drain", undo=True)
    return Done(said=f"{worker.host} claims again.")


async def _changed(visit: Visit, action: str, *, undo: bool) -> WorkerInfo:
    async with visit.acting(action, visit.path["worker"][:100]) as act:
        worker = (await _one(visit)).worker
        if worker.running is None:
            raise Refusal(FORBIDDEN, f"worker {worker.id} also runs handlers that your token is not for")
        done = await visit.app.client.workers.drain(worker.id, undo=undo)
        act.detail = f"{done.host}, process {done.pid}; {done.running} running"
    return done


async def _one(visit: Visit) -> WorkerDetails:
    try:
        found = (await visit.app.client.workers.get(visit.path["worker"])).part(visit.may_see)
    except WorkerNotFound:
        found = None
    if found is None:
        raise Refusal(NO_ROUTE, f"there is no worker {visit.path['worker'][:80]!r} any more: it has stopped, or was reaped")
    return found


PAGE = Page(path="/workers", template="workers.html", view=view, name="Workers", letter="w", icon="workers")
ONE = Page(
    path="/workers/{worker}",
    template="worker.html",
    view=view_one,
    actions={"drain": Action(run=drain), "undo": Action(run=undo_drain)},
)
