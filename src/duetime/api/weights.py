"""Weights of collections over HTTP. A token that is for some handlers only sees and sets those of these alone."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.api.route import Route
from duetime.client.weights import LocalWeights, WeightsInfo
from duetime.model.access import Scope
from duetime.model.task import check_name
from duetime.wire.fields import NoQuery
from duetime.wire.problem import INVALID, Fault
from duetime.wire.weights import WeightsBody, WeightsList

_body = msgspec.json.Decoder(WeightsBody)


async def list_weights(call: Call) -> Response:
    call.query(NoQuery)
    return answer(WeightsList([each for each in await call.app.weights.list() if call.may_see(each.handler)]))


async def get(call: Call) -> Response:
    return answer(await call.app.weights.get(_addressed(call)))


async def put(call: Call) -> Response:
    handler = check_name(call.path["handler"], "handler")
    body = await call.body(_body)
    if "\0" in body.note:
        raise Refusal(INVALID, "note must not contain the character NUL", faults=[Fault("contains NUL", pointer="/note")])
    async with call.acting("weights.put", handler) as act:
        act.detail = "; ".join(text for text in (said(body.weights), body.note) if text)
        return answer(await weights_of(call).put_by(call.caller.name, _addressed(call), body.weights, body.note))


async def delete(call: Call) -> Response:
    await call.empty_body()
    async with call.acting("weights.delete", call.path["handler"]):
        return answer(await call.app.weights.delete(_addressed(call)))


def weights_of(call: Call) -> LocalWeights:
    assert isinstance(call.app.weights, LocalWeights)
    return call.app.weights


def said(weights: dict[str, float]) -> str:
    """Return weights as one writes them on the command line, the first of them."""
    shown = [f"{collection}={weight:g}" for collection, weight in list(weights.items())[:10]]
    return " ".join(shown) + (f" and {len(weights) - 10:,} more" if len(weights) > 10 else "")


def _addressed(call: Call) -> str:
    call.query(NoQuery)
    handler = check_name(call.path["handler"], "handler")
    call.allow(handler)
    return handler


ROUTES = (
    Route(
        name="list_weights", method="GET", path="/v1/weights", endpoint=list_weights, scope=Scope.READ,
        summary="List the handlers whose collections share their starts, with the weights of these.", answer=WeightsList,
    ),
    Route(
        name="get_weights", method="GET", path="/v1/weights/{handler}", endpoint=get, scope=Scope.READ,
        summary="Return how the collections of a handler share its starts.", answer=WeightsInfo, problems=(404,),
    ),
    Route(
        name="put_weights", method="PUT", path="/v1/weights/{handler}", endpoint=put, scope=Scope.OPERATE,
        summary="Let the collections of a handler share its starts by these weights, in place of earlier ones.",
        body=WeightsBody, answer=WeightsInfo, problems=(404,),
    ),
    Route(
        name="delete_weights", method="DELETE", path="/v1/weights/{handler}", endpoint=delete, scope=Scope.OPERATE,
        summary="Forget the weights of a handler's collections: what its code says holds again.", answer=WeightsInfo, problems=(404,),
    ),
)  # fmt: skip
