"""Workers, handlers and counts over HTTP."""

from __future__ import annotations

from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.model.access import fits
from duetime.wire.fields import NoQuery
from duetime.wire.overview import HandlerList, WorkerList


async def workers(call: Call) -> Response:
    call.query(NoQuery)
    return answer(WorkerList(await call.app.workers()))


async def handlers(call: Call) -> Response:
    call.query(NoQuery)
    found = await call.app.handlers()
    return answer(HandlerList([each for each in found if fits(call.caller.handlers, each.name)]))


async def stats(call: Call) -> Response:
    call.query(NoQuery)
    return answer(await call.app.stats())
