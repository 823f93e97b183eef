"""Signals over HTTP. A token that is for some handlers only is for the signals that are named like these."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.route import Route
from duetime.client.signals import new_signal, no_signal
from duetime.model.access import Scope
from duetime.model.steps import check_signal
from duetime.targets.payload import encode_result
from duetime.wire.fields import NoQuery, given
from duetime.wire.signals import (
    DeleteSignalsQuery,
    SendSignalBody,
    SignalAnswer,
    SignalList,
    SignalsDeleted,
    SignalSent,
    SignalsQuery,
    signal_answer,
)

_send = msgspec.json.Decoder(SendSignalBody)


async def send(call: Call) -> Response:
    call.query(NoQuery)
    name = check_signal(call.path["name"])
    call.allow(name)
    body = await call.body(_send)
    data = encode_result(body.value, "the value of the signal")
    signal = new_signal(name, data, id=given(body.id), keep=body.keep, by=call.caller.name)
    [new] = await call.app.store.send_signals([signal])
    return answer(SignalSent(name=name, id=signal.id, new=new), 201 if new else 200)


async def list_signals(call: Call) -> Response:
    query = call.query(SignalsQuery)
    items: list[SignalAnswer] = []
    after: int | None = int(query.cursor)
    while after is not None and len(items) < query.limit:  # of a token that may see few of them a page may be empty
        found = await call.app.store.signals(given(query.name), after=after, limit=query.limit - len(items))
        after = found[-1].number if len(items) + len(found) >= query.limit else None
        items += [signal_answer(each) for each in found if call.may_see(each.name)]
    return answer(SignalList(items, None if after is None else str(after)))


async def delete(call: Call) -> Response:
    query = call.query(DeleteSignalsQuery)
    name = check_signal(call.path["name"])
    call.allow(name)
    async with call.acting("signals.delete", name):
        deleted = await call.app.store.delete_signals(name, given(query.id))
        if not deleted:
            raise no_signal(name, given(query.id))
    return answer(SignalsDeleted(deleted))


ROUTES = (
    Route(
        name="list_signals", method="GET", path="/v1/signals", endpoint=list_signals, scope=Scope.READ,
        summary="List the signals that are kept, the oldest first.", query=SignalsQuery, answer=SignalList,
    ),
    Route(
        name="send_signal", method="POST", path="/v1/signals/{name}", endpoint=send, scope=Scope.SUBMIT,
        summary="Send a signal to the task that has waited longest for its name, or keep it for one that comes. Answered with 200 "
        "if it was sent before.",
        body=SendSignalBody, answer=SignalSent, status=201, also=(200,),
    ),
    Route(
        name="delete_signals", method="DELETE", path="/v1/signals/{name}", endpoint=delete, scope=Scope.OPERATE,
        summary="Forget the kept signals of a name, or one of them.", query=DeleteSignalsQuery, answer=SignalsDeleted, problems=(404,),
    ),
)  # fmt: skip
