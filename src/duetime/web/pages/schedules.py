"""Schedules: what comes next, how the last runs went, and running, pausing, changing and previewing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from duetime.client.schedules.info import ScheduleInfo
from duetime.client.schedules.service import Schedules
from duetime.clock import SECOND
from duetime.errors import ChangedMeanwhile, DuetimeError, InvalidValue, ScheduleNotFound
from duetime.model.access import Scope
from duetime.model.query import Query
from duetime.model.rules import Rule, describe
from duetime.model.rules.clock_changes import clock_changes
from duetime.model.wording import count
from duetime.store.schedules import ScheduleFilter
from duetime.web.page import Action, Done, Page, View
from duetime.web.pages import backfilling
from duetime.web.pages.tasks import read_duration
from duetime.web.visit import Visit
from duetime.wire.rules import RuleFields, rule_of

PER_PAGE = 50
MOST_IN_FOLDERS = 2_000
TICKED = "schedule:"
MANY = {"pause": "paused", "resume": "resumed", "delete": "deleted"}
RUNS = 20
PREVIEWED = 10
AHEAD = 400 * 86_400 * SECOND  # how far changes of clocks are looked for: both of a year
_TROUBLE = ("broken", "late", "failing", "gated", "paused")


def service(visit: Visit, scope: Scope = Scope.READ) -> Schedules:
    """Return the schedules as the person may use them: those of handlers they may not use do not exist."""
    if not visit.caller.handlers:
        return visit.app.schedules.on_behalf_of(visit.caller.name)
    return visit.app.schedules.on_behalf_of(visit.caller.name, lambda handler: _refusal(visit, scope, handler))


def _refusal(visit: Visit, scope: Scope, handler: str) -> DuetimeError | None:
    try:
        visit.allow(scope, handler)
    except DuetimeError as refusal:
        return refusal
    return None


async def view(visit: Visit) -> View:
    after, handler, health = visit.query.get("after", ""), visit.query.get("handler") or None, visit.query.get("health") or None
    if handler is not None:
        visit.allow(Scope.READ, handler)
    items, more = await service(visit).page(
        ScheduleFilter(limit=PER_PAGE, after=after, handler=handler, prefix=visit.query.get("q") or None)
    )
    shown = [each for each in items if visit.may_see(each.handler) and health in (None, each.health)]
    if not after:
        shown.sort(key=lambda each: (each.health not in _TROUBLE, each.name))
    prefix = visit.query.get("q", "")
    facts = {
        "folders": await _folders(visit, prefix),
        "folder": prefix if prefix.endswith("/") else "",
        "schedules": [(each, await _next(visit, each, 3)) for each in shown],
        "next": None if more is None else visit.here(after=more),
        "first": not after,
        "q": visit.query.get("q", ""),
        "health": health,
        "healths": [(name, visit.here(health=None if name == health else name), name == health) for name in (*_TROUBLE, "ok", "ended")],
        "may_operate": visit.may("operate"),
    }
    return View(title="Schedules", facts=facts, every=3.0)


async def _folders(visit: Visit, prefix: str) -> list[tuple[str, str, int, str]]:
    """Return the folders in the present one, first the one above: its word, its whole name, how many schedules it has, its address."""
    seen = await visit.sight.see(
        f"schedules in folders of {'|'.join(visit.caller.handlers)}", lambda: service(visit).list(limit=MOST_IN_FOLDERS)
    )
    names = [each.name for each in seen.value if visit.may_see(each.handler)]
    here = prefix[: prefix.rfind("/") + 1]
    found = counted(names, here)
    above = here[:-1].rpartition("/")[0]
    upward = [("..", f"{above}/" if above else "", 0, visit.link("schedules", q=f"{above}/" if above else None))] if here else []
    return upward + [(name[len(here) :], name, count, visit.link("schedules", q=name)) for name, count in sorted(found.items())]


def counted(names: Iterable[str], here: str) -> Counter[str]:
    """Return the folders directly in a folder, each with the number of names anywhere in it. A folder is what a slash ends."""
    inside = (name[len(here) :] for name in names if name.startswith(here))
    return Counter(here + name[: name.index("/") + 1] for name in inside if "/" in name)


async def _next(visit: Visit, schedule: ScheduleInfo, count: int) -> list[object]:
    if schedule.health in ("ended", "broken"):
        return []
    try:
        return list(await visit.app.schedules.preview(schedule.name, count=count))
    except DuetimeError:
        return []


async def _get(visit: Visit, scope: Scope = Scope.READ) -> ScheduleInfo:
    name = visit.path.get("schedule") or visit.needed("schedule")
    found = await service(visit, scope).get(name)
    if not visit.may_see(found.handler):
        raise ScheduleNotFound(f"there is no schedule {name!r}")
    return found


async def view_one(visit: Visit) -> View:
    schedule = await _get(visit)
    runs = await visit.app.client.page(Query(schedule=schedule.name, limit=RUNS))
    preview, problem, written = await _preview(visit, schedule)
    rule = None if preview is None else read_rule(written["cron"], written["every"], written["tz"])
    span = backfilling.Span.of(visit.query)
    past, past_problem = await backfilling.foreseen(service(visit), schedule, span)
    facts = {
        "schedule": schedule,
        "runs": runs.items,
        "upcoming": await _next(visit, schedule, PREVIEWED),
        "changes": clock_changes(schedule.rule, visit.now, visit.now + AHEAD),
        "skips": await visit.app.schedules.skips(schedule.name, limit=10),
        "preview": preview,
        "problem": problem,
        "written": written,
        "words": "" if rule is None else describe(rule),
        "span": span,
        "past": past,
        "past_problem": past_problem,
        "would_change": [] if rule is None else clock_changes(rule, visit.now, visit.now + AHEAD),
        "may_operate": visit.may("operate", schedule.handler),
    }
    return View(title=schedule.name, facts=facts, crumbs=(("/schedules", "Schedules"),), every=3.0)


async def _preview(visit: Visit, schedule: ScheduleInfo) -> tuple[list[object] | None, str, dict[str, str]]:
    """Return the instants of a rule that somebody is writing, or what is wrong with it, and what they wrote."""
    written = {name: visit.query.get(name, "").strip() for name in ("cron", "every", "tz")}
    if not any(written[name] for name in ("cron", "every")):
        return None, "", {**written, "tz": written["tz"] or schedule.zone}
    try:
        rule = read_rule(written["cron"], written["every"], written["tz"])
        return list(await visit.app.schedules.preview(rule, count=PREVIEWED)), "", written
    except DuetimeError as error:
        return None, str(error), written


def read_rule(cron: str, every: str, tz: str) -> Rule:
    """Read a rule from the fields of a form: an expression of cron, or an interval."""
    if bool(cron) == bool(every):
        raise InvalidValue("write a cron expression, or an interval such as 15min; one of them")
    fields: dict[str, object] = {"cron": cron} if cron else {"every": read_duration(every)}
    if tz and cron:
        fields["tz"] = tz
    try:
        return rule_of(msgspec.convert(fields, RuleFields))
    except msgspec.ValidationError as error:
        raise InvalidValue(str(error)) from None


# ---- actions ----


def _chosen(visit: Visit) -> list[str]:
    """Return the ticked schedules."""
    names = [name.removeprefix(TICKED) for name in visit.form if name.startswith(TICKED)]
    if not names:
        raise InvalidValue("tick some schedules first")
    return names[:PER_PAGE]


async def act_on_many(visit: Visit) -> Done:
    """Pause, resume or delete what is ticked. What is refused does not stop the rest."""
    verb = visit.needed("verb")
    if verb not in MANY:
        raise InvalidValue(f"many schedules can be {', '.join(MANY.values())}, got {verb[:40]!r}")
    names, schedules, refused = _chosen(visit), service(visit, Scope.OPERATE), []
    acts: dict[str, Callable[[str], Awaitable[object]]] = {
        "pause": schedules.pause,
        "resume": schedules.resume,
        "delete": schedules.delete,
    }
    for name in names:
        try:
            async with visit.acting(f"schedules.{verb}", name):
                visit.allow(Scope.OPERATE, (await schedules.get(name)).handler)
                await acts[verb](name)
        except DuetimeError as error:
            refused.append(str(error))
    said = f"{len(names) - len(refused)} of {len(names)} schedules {MANY[verb]}."
    return Done(said=f"{said} {refused[0]}" if refused else said, good=not refused)


async def copy(visit: Visit) -> Done:
    schedule, to = await _get(visit), visit.needed("to")
    async with visit.acting("schedules.copy", schedule.name) as act:
        visit.allow(Scope.OPERATE, schedule.handler)
        stored = await service(visit, Scope.OPERATE).copy(schedule.name, to)
        act.detail = f"to {to}"
    return Done(said=f"{stored.name} fires from now on.", to=visit.link("schedules", stored.name))


async def delete(visit: Visit) -> Done:
    schedule = await _get(visit)
    async with visit.acting("schedules.delete", schedule.name):
        visit.allow(Scope.OPERATE, schedule.handler)
        await service(visit, Scope.OPERATE).delete(schedule.name)
    return Done(said=f"{schedule.name} was deleted; its tasks stay.", to=visit.link("schedules"))


async def trigger(visit: Visit) -> Done:
    schedule = await _get(visit)
    async with visit.acting("schedules.trigger", schedule.name) as act:
        visit.allow(Scope.OPERATE, schedule.handler)
        task = await service(visit, Scope.OPERATE).trigger(schedule.name)
        act.detail = task.id
    return Done(said=f"{schedule.name} runs now, as task {task.id}.")


async def pause(visit: Visit) -> Done:
    schedule = await _get(visit)
    async with visit.acting("schedules.pause", schedule.name) as act:
        visit.allow(Scope.OPERATE, schedule.handler)
        await service(visit, Scope.OPERATE).pause(schedule.name, note=visit.field("note"))
        act.detail = visit.field("note")
    return Done(said=f"{schedule.name} does not fire until it is resumed.")


async def resume(visit: Visit) -> Done:
    schedule = await _get(visit)
    async with visit.acting("schedules.resume", schedule.name):
        visit.allow(Scope.OPERATE, schedule.handler)
        await service(visit, Scope.OPERATE).resume(schedule.name, catch_up=visit.field("catch_up") == "on")
    return Done(said=f"{schedule.name} fires again.")


async def backfill(visit: Visit) -> Done:
    """Run occurrences of the past."""
    schedule = await _get(visit)
    async with visit.acting("schedules.backfill", schedule.name) as act:
        visit.allow(Scope.OPERATE, schedule.handler)
        span = backfilling.Span.of(visit.form)
        done = await backfilling.backfill(service(visit, Scope.OPERATE), schedule, span, dry_run=False)
        act.detail = f"{count(len(done.tasks), 'task')} from {span.since} until {span.until}"
    said = f"{count(len(done.tasks), 'occurrence')} of the past {'runs' if len(done.tasks) == 1 else 'run'} now."
    return Done(said=said, to=visit.link("schedules", schedule.name))


async def change(visit: Visit) -> Done:
    """Save another rule. Refused if somebody else has changed the schedule since the form was shown, or if code declares it."""
    schedule = await _get(visit)
    if schedule.declared is not None:
        raise InvalidValue(f"{schedule.name} is declared in code, which would set it back; change it there")
    rule = read_rule(visit.field("cron"), visit.field("every"), visit.field("tz"))
    async with visit.acting("schedules.put", schedule.name) as act:
        visit.allow(Scope.OPERATE, schedule.handler)
        changed = msgspec.structs.replace(schedule.schedule, rule=rule)
        try:
            stored = await service(visit, Scope.OPERATE).upsert(changed, seen=[visit.needed("tag")])
        except ChangedMeanwhile:
            by = f"{schedule.changed_by or 'code'} has changed {schedule.name} meanwhile"
            raise ChangedMeanwhile(
                f"{by}: it is {schedule.description} now, and you wrote {describe(rule)}; look at it, then save again"
            ) from None
        act.detail = stored.info.description
    return Done(said=f"{schedule.name}: {stored.info.description}.", to=visit.link("schedules", schedule.name))


ACTIONS = {
    "trigger": Action(run=trigger),
    "pause": Action(run=pause),
    "resume": Action(run=resume),
    "change": Action(run=change),
    "backfill": Action(run=backfill),
    "copy": Action(run=copy),
    "delete": Action(run=delete),
    "many": Action(run=act_on_many),
}
PAGE = Page(path="/schedules", template="schedules.html", view=view, name="Schedules", letter="s", icon="schedules", actions=ACTIONS)
ONE = Page(path="/schedules/{schedule}", template="schedule.html", view=view_one, actions=ACTIONS)
