"""What attempts printed and logged, over HTTP: read, followed as an event stream, and searched."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.api.route import Header, Route
from duetime.api.streams import EventStream
from duetime.api.tasks import addressed
from duetime.client.output import LogHits, OutputEvent, read_position
from duetime.errors import InvalidValue
from duetime.model.access import Scope
from duetime.wire.fields import given
from duetime.wire.logs import LogsQuery, LogsSearchQuery, OutputList, log_event
from duetime.wire.problem import INVALID, Fault

_encode = msgspec.json.Encoder().encode
_LAST_EVENT = Header("Last-Event-ID", "With `follow`: go on behind this event, as browsers do by themselves after a lost connection.")
_STREAM = (
    "With `follow=true`: server-sent events. `output` has `attempt` and `text`, and its id is where to resume; `attempt` tells that one "
    "began, or with an `outcome` that it ended; `end` with the task's `state` is the last."
)


async def logs(call: Call) -> Response:
    query = call.query(LogsQuery)
    record = await addressed(call)
    attempt = given(query.attempt)
    if query.follow:
        after = call.header("last-event-id")
        if after is not None:
            read_position(after)  # checked now, while a status can still be sent
        return EventStream(call, call.app.output.follow(record.id, attempt, after=after), _written)
    after_attempt = int(query.cursor) if isinstance(query.cursor, str) else 0
    page = await call.app.output.page(record.id, attempt=attempt, after=after_attempt, limit=query.limit)
    return answer(OutputList(page.items, None if page.next is None else str(page.next)))


async def search(call: Call) -> Response:
    query = call.query(LogsSearchQuery)
    call.allow_filter(given(query.handler))
    if query.q is UNSET:
        raise Refusal(INVALID, "the parameter q is missing: say what to search for", faults=[Fault("is missing", parameter="q")])
    try:
        found = await call.app.output.search(
            query.q,
            handler=given(query.handler),
            collection=given(query.collection),
            after=given(query.after),
            before=given(query.before),
            limit=query.limit,
            cursor=given(query.cursor),
        )
    except InvalidValue as error:
        name = "cursor" if "cursor" in str(error) else "q"
        raise Refusal(INVALID, str(error), faults=[Fault(str(error), parameter=name)]) from None
    return answer(found)


def _written(event: OutputEvent) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event.position.encode(), event.kind.encode(), _encode(log_event(event)))


ROUTES = (
    Route(
        name="read_logs", method="GET", path="/v1/tasks/{id}/logs", endpoint=logs, scope=Scope.READ, own=True,
        summary="Return what a task's attempts printed and logged, or follow it as it comes.",
        query=LogsQuery, answer=OutputList, stream=_STREAM, problems=(404,), headers=(_LAST_EVENT,),
    ),
    Route(
        name="search_logs", method="GET", path="/v1/logs", endpoint=search, scope=Scope.READ,
        summary="Find attempts by words of what they printed and logged, the latest first.", query=LogsSearchQuery, answer=LogHits,
    ),
)  # fmt: skip
