"""Gates over HTTP: one per handler, or per handler and collection."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.clock import to_micros
from duetime.model.gate import Gate
from duetime.model.task import check_name
from duetime.wire.fields import NoQuery, given
from duetime.wire.gates import GateAnswer, GateBody, GateList, GateQuery, GatesAnswer, GatesBody, GatesQuery
from duetime.wire.problem import INVALID, NO_GATE, Fault

_all = msgspec.json.Decoder(GatesBody)
_body = msgspec.json.Decoder(GateBody)


async def list_gates(call: Call) -> Response:
    call.query(NoQuery)
    return answer(GateList([gate for gate in await call.app.gates.list() if call.may_see(gate.handler)]))


async def get(call: Call) -> Response:
    handler, collection = _addressed(call)
    call.allow(handler)
    for gate in await call.app.gates.list():
        if (gate.handler, gate.collection) == (handler, collection):
            return answer(gate)
    raise _no_gate(handler, collection)


async def put(call: Call) -> Response:
    handler, collection = _addressed(call)
    body = await call.body(_body)
    if "\0" in body.note:
        raise Refusal(INVALID, "note must not contain the character NUL", faults=[Fault("contains NUL", pointer="/note")])
    now, lasting = call.app.client.now(), given(body.lasting)
    gate = Gate(
        handler=handler,
        collection=collection,
        action=body.action,
        until_at=None if lasting is None else now + to_micros(lasting),
        note=body.note,
        set_by=call.caller.name,
        set_at=now,
    )
    async with call.acting(f"gates.{body.action}", _named(handler, collection)) as act:
        call.allow(handler)
        done = await call.app.gates.put(gate, timeout=body.wait, allow_unknown=body.allow_unknown)
        act.detail = "; ".join(text for text in (body.note, str(done)) if text)
    return answer(GateAnswer(done.gate, done.version, done.in_force, done.confirmed, done.waiting))


async def put_gates(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_all)
    if "\0" in body.note:
        raise Refusal(INVALID, "note must not contain the character NUL", faults=[Fault("contains NUL", pointer="/note")])
    async with call.acting(f"gates.{body.action}", body.handler) as act:
        done = await call.app.gates.close_all(
            body.handler,
            body.action,
            lasting=given(body.lasting),
            note=body.note,
            timeout=body.wait,
            by=call.caller.name,
            visible=call.may_see,
        )
        act.detail = "; ".join(text for text in (body.note, ", ".join(each.gate.handler for each in done), str(done[-1])) if text)
    return answer(GatesAnswer([GateAnswer(each.gate, each.version, each.in_force, each.confirmed, each.waiting) for each in done]))


async def open_gates(call: Call) -> Response:
    pattern = call.query(GatesQuery).handler
    await call.empty_body()
    async with call.acting("gates.open", pattern) as act:
        opened = await call.app.gates.open_all(pattern, visible=call.may_see)
        act.detail = ", ".join(_named(each.handler, each.collection) for each in opened)
    return answer(GateList(opened))


async def open_gate(call: Call) -> Response:
    handler, collection = _addressed(call)
    await call.empty_body()
    async with call.acting("gates.open", _named(handler, collection)):
        call.allow(handler)
        if not await call.app.gates.open(handler, collection=collection):
            raise _no_gate(handler, collection)
    return Response(status_code=204)


def _addressed(call: Call) -> tuple[str, str | None]:
    collection = given(call.query(GateQuery).collection)
    return check_name(call.path["handler"], "handler"), None if collection is None else check_name(collection, "collection")


def _named(handler: str, collection: str | None) -> str:
    return handler if collection is None else f"{handler}, collection {collection}"


def _no_gate(handler: str, collection: str | None) -> Refusal:
    return Refusal(NO_GATE, f"there is no gate on {_named(handler, collection)}; GET /v1/gates lists those that are closed")
