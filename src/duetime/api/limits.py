"""Limits over HTTP. A token that is for some handlers only is for limits of these alone."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.api.route import Route
from duetime.client.limits import LimitInfo, LocalLimits, no_limit
from duetime.clock import to_micros
from duetime.model.access import Scope
from duetime.model.limit import Rate
from duetime.wire.fields import NoQuery, given
from duetime.wire.limits import LimitAnswer, LimitBody, LimitList, OnePartition, PartitionList, PartitionQuery
from duetime.wire.problem import INVALID, Fault

_body = msgspec.json.Decoder(LimitBody)


async def list_limits(call: Call) -> Response:
    call.query(NoQuery)
    return answer(LimitList(await _seen(call)))


async def get(call: Call) -> Response:
    return answer(await _addressed(call))


async def put(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_body)
    if "\0" in body.note:
        raise Refusal(INVALID, "note must not contain the character NUL", faults=[Fault("contains NUL", pointer="/note")])
    lasting = given(body.lasting)
    async with call.acting("limits.put", call.path["name"]) as act:
        found = await _addressed(call)
        micros = None if lasting is None else to_micros(lasting)
        partition = given(body.partition)
        if partition is not None and "\0" in partition:
            raise Refusal(INVALID, "partition must not contain the character NUL", faults=[Fault("contains NUL", pointer="/partition")])
        rates = given(body.rate)
        rate = None if rates is None else [Rate(each.count, each.per, each.burst) for each in rates]
        running = given(body.running)
        done = await limits_of(call).put_by(call.caller.name, found.name, running, micros, body.note, body.wait, partition, rate)
        of = "" if partition is None else f"partition {partition}"
        numbers = [*([] if running is None else [f"{running}"]), *map(str, rate or ())]
        act.detail = "; ".join(text for text in (of, *numbers, body.note, str(done)) if text)
    return answer(LimitAnswer(done.limit, done.version, done.in_force, done.above, done.confirmed, done.waiting, done.partition))


async def reset(call: Call) -> Response:
    await call.empty_body()
    partition = given(call.query(OnePartition).partition)
    async with call.acting("limits.reset", call.path["name"]) as act:
        act.detail = "" if partition is None else f"partition {partition}"
        found = await _named(call)
        return answer(await call.app.limits.reset(found.name, partition=partition))


async def list_partitions(call: Call) -> Response:
    asked = call.query(PartitionQuery)
    found = await _named(call)
    items = await call.app.limits.partitions(found.name, partition=given(asked.partition), after=given(asked.cursor), limit=asked.limit)
    return answer(PartitionList(items, items[-1].partition if len(items) == asked.limit else None))


def limits_of(call: Call) -> LocalLimits:
    assert isinstance(call.app.limits, LocalLimits)
    return call.app.limits


async def _addressed(call: Call) -> LimitInfo:
    call.query(NoQuery)
    return await _named(call)


async def _named(call: Call) -> LimitInfo:
    seen = await _seen(call)
    for limit in seen:
        if limit.name == call.path["name"]:
            return limit
    raise no_limit(call.path["name"], [limit.name for limit in seen])


async def _seen(call: Call) -> list[LimitInfo]:
    return [limit for limit in await call.app.limits.list() if may_see_limit(call, limit)]


def may_see_limit(call: Call, limit: LimitInfo) -> bool:
    """Return whether the caller may see all handlers of a limit: otherwise it does not exist for them."""
    return all(call.may_see(handler) for handler in limit.handlers)


ROUTES = (
    Route(
        name="list_limits", method="GET", path="/v1/limits", endpoint=list_limits, scope=Scope.READ,
        summary="List the limits of the whole fleet, with who has what of them.", answer=LimitList,
    ),
    Route(
        name="get_limit", method="GET", path="/v1/limits/{name}", endpoint=get, scope=Scope.READ,
        summary="Return a limit.", answer=LimitInfo, problems=(404,),
    ),
    Route(
        name="put_limit", method="PUT", path="/v1/limits/{name}", endpoint=put, scope=Scope.OPERATE,
        summary="Let another number hold than the declared one. Answered when every worker goes by it.",
        body=LimitBody, answer=LimitAnswer, problems=(404,),
    ),
    Route(
        name="reset_limit", method="DELETE", path="/v1/limits/{name}", endpoint=reset, scope=Scope.OPERATE,
        summary="Let the declared number hold again.", query=OnePartition, answer=LimitInfo, problems=(404,),
    ),
    Route(
        name="list_partitions", method="GET", path="/v1/limits/{name}/partitions", endpoint=list_partitions, scope=Scope.READ,
        summary="List the partitions of a limit by key.", query=PartitionQuery, answer=PartitionList, problems=(404,),
    ),
)  # fmt: skip
