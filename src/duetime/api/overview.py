"""Workers, handlers, counts and series over HTTP."""

from __future__ import annotations

import time

from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.health import loops_of
from duetime.api.problems import Refusal
from duetime.client.insight import HandlerDetails, unknown_handler
from duetime.model.health import HealthFacts, findings, verdict_on
from duetime.wire.fields import NoQuery, given
from duetime.wire.overview import HandlerList, SeriesList, SeriesQuery, UpcomingQuery
from duetime.wire.problem import INVALID, Fault
from duetime.wire.tasks import RawTaskList, raw_of


async def handlers(call: Call) -> Response:
    call.query(NoQuery)
    found = await call.app.handlers()
    return answer(HandlerList([each for each in found if call.may_see(each.name)]))


async def handler(call: Call) -> Response:
    call.query(NoQuery)
    return answer(await _addressed(call))


async def upcoming(call: Call) -> Response:
    query = call.query(UpcomingQuery)
    found = await call.app.insight.upcoming((await _addressed(call)).name, query.limit)
    return answer(RawTaskList([raw_of(call.hiding.of(record)) for record in found], None))


async def _addressed(call: Call) -> HandlerDetails:
    """Return the handler in the address. One that the caller's token is not for is answered as one that nobody has declared."""
    name = call.path["name"]
    if call.caller.handlers and not any(
        call.may_see(each.name) and name in (each.name, *each.aliases) for each in await call.app.handlers()
    ):
        raise unknown_handler(name)
    return await call.app.insight.handler(name)


async def health(call: Call) -> Response:
    call.query(NoQuery)
    found = await call.app.insight.health()
    stuck = [(f"The server's loop {loop.name!r}", loop.seconds) for loop in loops_of(call.shared, time.monotonic())]
    whole = verdict_on([*found.findings, *findings(HealthFacts(now=call.app.insight.now(), stuck=stuck))])
    return answer(whole.part(call.may_see) if call.caller.handlers else whole)


async def stats(call: Call) -> Response:
    call.query(NoQuery)
    found = await call.app.stats()
    return answer(found if not call.caller.handlers else found.part(call.may_see))


async def series(call: Call) -> Response:
    query = call.query(SeriesQuery)
    names = (given(query.names) or "").split(",") if given(query.names) else ()
    handler, since, until, step = given(query.handler), given(query.since), given(query.until), given(query.step)
    if given(query.by) is None:
        call.allow_filter(handler)
        return answer(SeriesList([await call.app.series(names, handler=handler, since=since, until=until, step=step)]))
    if handler is not None:
        what = "is one handler, and by=handler asks for a series of each; leave one of them out"
        raise Refusal(INVALID, f"the parameter handler {what}", faults=[Fault(what, parameter="handler")])
    found = await call.app.series_by_handler(names, since=since, until=until, step=step)
    return answer(SeriesList([each for each in found if each.handler is not None and call.may_see(each.handler)]))
