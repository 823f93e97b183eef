"""The doctor over HTTP, for admins: what it finds names files, hosts and tasks of all handlers.

A server reaps dead workers all the time. So a repair does not wait here until a silent worker is dead, as that of the command line does.
"""

from __future__ import annotations

from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.route import Route
from duetime.client.doctor import Diagnosis
from duetime.model.access import Scope
from duetime.wire.fields import NoBody, NoQuery


async def examine(call: Call) -> Response:
    call.query(NoQuery)
    async with call.shared.examining:
        return answer(await call.app.doctor.examine())


async def repair(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    async with call.acting("doctor.repair", "store") as act, call.shared.examining:
        found = await call.app.doctor.examine(repair=True)
        act.detail = str(found)
    return answer(found)


ROUTES = (
    Route(
        name="examine", method="GET", path="/v1/doctor", endpoint=examine, scope=Scope.ADMIN,
        summary="Look for impossible states of the store, and for what else is worth knowing. The whole store is read.", answer=Diagnosis,
    ),
    Route(
        name="repair", method="POST", path="/v1/doctor/repair", endpoint=repair, scope=Scope.ADMIN,
        summary="Look for impossible states and repair what can be repaired; no live task is lost or invented.",
        body=NoBody, optional_body=True, answer=Diagnosis,
    ),
)  # fmt: skip
