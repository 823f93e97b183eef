"""Events over HTTP: a page of those that are kept, or a stream of those that come."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.api.route import Header, Route
from duetime.api.streams import EventStream
from duetime.client.events import filter_of
from duetime.errors import InvalidValue
from duetime.model.access import Scope
from duetime.model.event import Event
from duetime.wire.events import EventList, EventsQuery, body_of
from duetime.wire.fields import given
from duetime.wire.problem import INVALID, Fault

_encode = msgspec.json.Encoder().encode
_LAST_EVENT = Header("Last-Event-ID", "With `follow`: go on behind this event, as browsers do by themselves after a lost connection.")
_STREAM = "With `follow=true`: server-sent events. Each is named as in `name`, and its id is the cursor from which to resume."


async def events(call: Call) -> Response:
    query = call.query(EventsQuery)
    names = [name.strip() for name in query.names.split(",") if name.strip()]
    try:
        wanted = filter_of(names, given(query.handler), given(query.task), call.caller.handlers)
    except InvalidValue as error:
        name = "handler" if "handler" in str(error) else "names"
        raise Refusal(INVALID, str(error), faults=[Fault(str(error), parameter=name)]) from None
    after = call.header("last-event-id") if query.follow else None
    after = given(query.cursor) if after is None else after
    try:
        if not query.follow or after is not None:  # a cursor is checked now, while a status can still be sent
            page = await call.app.event_source.page(wanted, after=after, limit=1 if query.follow else query.limit)
    except InvalidValue as error:
        raise Refusal(INVALID, str(error), faults=[Fault(str(error), parameter="cursor")]) from None
    if query.follow:
        return EventStream(call, call.app.event_source.follow(wanted, after=after), _written)
    return answer(EventList([body_of(event) for event in page.items], page.next))


def _written(event: Event) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event.cursor.encode(), event.name.encode(), _encode(body_of(event)))


ROUTES = (
    Route(
        name="list_events", method="GET", path="/v1/events", endpoint=events, scope=Scope.READ,
        summary="Return what happened to tasks, schedules, workers and gates, or follow it as it happens.",
        query=EventsQuery, answer=EventList, stream=_STREAM, headers=(_LAST_EVENT,),
    ),
)  # fmt: skip
