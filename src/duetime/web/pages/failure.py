"""One kind of failure: its trend, a sample, the tasks that ended so; run one of them or all again, and mute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from duetime.api.operations import told
from duetime.client.failures import Failure, not_found
from duetime.client.operations import Asked, OperationInfo
from duetime.clock import SECOND
from duetime.errors import InvalidValue, TaskNotFound
from duetime.model.access import Scope
from duetime.model.operation import Canary, Verb, plan_text
from duetime.model.query import Query
from duetime.model.query_text import write_query
from duetime.model.task import ErrorInfo, State
from duetime.web.page import Action, Done, Page, View
from duetime.web.pages.failures import RANGES, USUAL, chosen_range
from duetime.web.pages.operations import MOST_COUNTED, TYPED_ABOVE
from duetime.web.pages.tasks import read_duration
from duetime.web.visit import Visit
from duetime.web.words import duration, number

MOST_SHOWN = 50
REPLAYS_SHOWN = 3


async def _failure(visit: Visit, since: float = RANGES[USUAL][0]) -> Failure:
    """Return the kind in the address; one that the person may not see is answered as one that does not exist."""
    found = await visit.app.failures.get(visit.path["fingerprint"], since=since)
    if not visit.may_see(found.handler):
        raise not_found(found.fingerprint)
    return found


def _failed(failure: Failure, limit: int = MOST_SHOWN) -> Query:
    return Query(fingerprint=failure.fingerprint, state=State.FAILED, limit=limit)


async def view(visit: Visit) -> View:
    wanted = chosen_range(visit)
    seconds, spoken = RANGES[wanted]
    failure = await _failure(visit, seconds)
    page = await visit.app.client.page(_failed(failure))
    replays = await _replays(visit, failure)
    count = (await visit.sight.see(f"failed {failure.fingerprint}", partial(visit.app.client.count, _failed(failure), MOST_COUNTED))).value
    affected = Counter(task.collection for task in page.items if task.collection is not None)
    facts = {
        "failure": failure,
        "spoken": spoken,
        "ago": duration(seconds),
        "ranges": [(name, visit.here(range=None if name == USUAL else name), name == wanted) for name in RANGES],
        "tasks": [visit.hiding.of_task(task) for task in page.items],
        "more": page.next is not None,
        "collections": affected.most_common(5),
        "keys": [task.key for task in page.items if task.key is not None][:5],
        "sample": await _sample(visit, failure),
        "replays": replays,
        "count": count,
        "plan": plan_text(max(1, count.count), Canary()),
        "typed": count.count > TYPED_ABOVE,
        "q": write_query(_replayed(visit, failure)),
        "since": [(name, words) for name, (_, words) in RANGES.items()],
        "may_operate": visit.may("operate", failure.handler),
    }
    every = 5.0 if all(each.ended for each in replays) else 1.0
    return View(title=f"{failure.type} in {failure.handler}", facts=facts, crumbs=(("/failures", "Failures"),), every=every)


async def _replays(visit: Visit, failure: Failure) -> Sequence[OperationInfo]:
    """Return the operations that ran tasks of this kind again, the latest first."""
    page = (await visit.sight.see("operations", partial(visit.app.client.operations.page, 100))).value
    mine = [each for each in page.items if each.verb is Verb.RETRY and each.filter.get("fingerprint") == failure.fingerprint]
    return mine[:REPLAYS_SHOWN]


async def _sample(visit: Visit, failure: Failure) -> ErrorInfo | None:
    """Return the error of the last task, if that is stored and its last error is of this kind."""
    try:
        task = await visit.app.client.get(failure.sample)
    except TaskNotFound:
        return None
    return task.error if task.error is not None and task.error.fingerprint == failure.fingerprint else None


# ---- actions ----


async def _allowed(visit: Visit) -> Failure:
    failure = await _failure(visit)
    visit.allow(Scope.OPERATE, failure.handler)
    return failure


async def try_one(visit: Visit) -> Done:
    """Run the task again that failed last, and go there: the cheapest way to learn whether the cause is gone."""
    failure = await _allowed(visit)
    page = await visit.app.client.page(_failed(failure, 1))
    if not page.items:
        return Done(said="No failed task of this kind is stored any more.", good=False)
    [task] = page.items
    async with visit.acting("tasks.retry", task.id):
        await visit.app.client.retry(task.id)
    return Done(said="It runs again: if it succeeds, the others may too.", to=visit.link("tasks", task.id))


async def retry(visit: Visit) -> Done:
    """Start an operation that runs all tasks again that failed so, or those of the last hours."""
    failure = await _allowed(visit)
    query = _replayed(visit, failure)
    count = await visit.app.client.count(query, MOST_COUNTED)
    if count.count == 0:
        return Done(said="No such task is stored any more.", good=False)
    if count.count > TYPED_ABOVE and visit.field("typed").replace(",", "") != str(count.count):
        raise InvalidValue(f"type {count.count} to run more than {TYPED_ABOVE:,} tasks again")
    rate, stop = _decimal(visit, "rate"), _decimal(visit, "stop")
    canary = None
    if visit.field("canary") == "on":
        canary = Canary() if stop is None else Canary(failed=stop)
    async with visit.acting("tasks.retry", f"fingerprint {failure.fingerprint}, state failed") as act:
        asked = Asked(verb=Verb.RETRY, query=query, rate=rate, canary=canary)
        act.detail = told(await visit.app.client.operations.start(asked, made_by=visit.caller.name))
    many = f"{number(count.count)}{' or more' if count.more else ''}"
    return Done(said=f"Started, {many} to run again: {plan_text(count.count, canary, rate)}. It goes on without this page.")


def _replayed(visit: Visit, failure: Failure) -> Query:
    """Return which tasks are run again. Operations of somebody with a token for some handlers name one, so that they may stop them."""
    since = visit.field("since")
    if since and since not in RANGES:
        raise InvalidValue(f"since is empty for all, or one of {', '.join(RANGES)}; got {since[:40]!r}")
    return Query(
        fingerprint=failure.fingerprint,
        state=State.FAILED,
        handler=failure.handler if visit.caller.handlers else None,
        finished_after=visit.now - round(RANGES[since][0] * SECOND) if since else None,
    )


def _decimal(visit: Visit, name: str) -> float | None:
    text = visit.field(name)
    try:
        return float(text) if text else None
    except ValueError:
        raise InvalidValue(f"{name} must be a number, got {text[:80]!r}") from None


async def mute(visit: Visit) -> Done:
    async with visit.acting("failures.mute", visit.path["fingerprint"]) as act:
        await _allowed(visit)
        done = await visit.app.failures.mute(visit.path["fingerprint"], read_duration(visit.needed("lasting")), by=visit.caller.name)
        act.detail = f"{done}; until {done.muted_until_at}"
    return Done(said="Muted: it is counted as before and left out of the list until then.")


async def unmute(visit: Visit) -> Done:
    async with visit.acting("failures.unmute", visit.path["fingerprint"]):
        await _allowed(visit)
        await visit.app.failures.unmute(visit.path["fingerprint"])
    return Done(said="No longer muted.")


PAGE = Page(
    path="/failures/{fingerprint}",
    template="failure.html",
    view=view,
    actions={
        "try": Action(run=try_one),
        "retry": Action(run=retry),
        "mute": Action(run=mute),
        "unmute": Action(run=unmute),
    },
)
