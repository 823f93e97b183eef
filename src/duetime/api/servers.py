"""Servers over HTTP: who has the address of one finds the others."""

from __future__ import annotations

from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.route import Route
from duetime.model.access import Scope
from duetime.wire.fields import NoQuery
from duetime.wire.overview import ServerList


async def list_servers(call: Call) -> Response:
    call.query(NoQuery)
    return answer(ServerList(await call.app.servers()))


ROUTES = (
    Route(
        name="list_servers", method="GET", path="/v1/servers", endpoint=list_servers, scope=Scope.READ, own=True,
        summary="List the servers that have made themselves known, with their addresses.", answer=ServerList,
    ),
)  # fmt: skip
