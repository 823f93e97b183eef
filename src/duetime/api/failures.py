"""Failures by kind over HTTP. A token that is restricted to some handlers sees and mutes those of its handlers only."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.api.route import Route
from duetime.client.failures import DAY, Failure, not_found
from duetime.model.access import Scope
from duetime.model.failures import check_fingerprint
from duetime.wire.failures import FailureList, FailureListQuery, FailureQuery, MuteBody
from duetime.wire.fields import NoBody, NoQuery, given
from duetime.wire.problem import INVALID, Fault, pointing

_body = msgspec.json.Decoder(MuteBody)


async def list_failures(call: Call) -> Response:
    query = call.query(FailureListQuery)
    found = await call.app.failures.list(since=given(query.since) or DAY, handler=given(query.handler))
    return answer(FailureList([each for each in found if call.may_see(each.handler)]))


async def get(call: Call) -> Response:
    query = call.query(FailureQuery)
    fingerprint = check_fingerprint(call.path["fingerprint"])
    found = await call.app.failures.get(fingerprint, since=given(query.since) or DAY)
    return answer(_seen(call, found))


async def mute(call: Call) -> Response:
    call.query(NoQuery)
    fingerprint = check_fingerprint(call.path["fingerprint"])
    body = await call.body(_body)
    until_at, lasting = given(body.until_at), given(body.lasting)
    if (until_at is None) == (lasting is None):
        fault = Fault("one of until_at and lasting is needed", pointer="")
        raise Refusal(INVALID, "give until_at, an instant, or lasting, a number of seconds: one of the two", faults=[fault])
    async with call.acting("failures.mute", fingerprint) as act:
        _seen(call, await call.app.failures.get(fingerprint))
        with pointing("", {"until": "until_at"}):
            done = await call.app.failures.mute(fingerprint, until_at or lasting or 0.0, by=call.caller.name)
        act.detail = f"{done}; until {done.muted_until_at}"
    return answer(done)


async def unmute(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    fingerprint = check_fingerprint(call.path["fingerprint"])
    async with call.acting("failures.unmute", fingerprint) as act:
        _seen(call, await call.app.failures.get(fingerprint))
        done = await call.app.failures.unmute(fingerprint)
        act.detail = str(done)
    return answer(done)


def _seen(call: Call, failure: Failure) -> Failure:
    """Return a failure that the caller may see; to others it does not exist."""
    if not call.may_see(failure.handler):
        raise not_found(failure.fingerprint)
    return failure


ROUTES = (
    Route(
        name="list_failures", method="GET", path="/v1/failures", endpoint=list_failures, scope=Scope.READ,
        summary="List the kinds of failures seen since an instant, the latest first, with how often each was seen.",
        query=FailureListQuery, answer=FailureList,
    ),
    Route(
        name="get_failure", method="GET", path="/v1/failures/{fingerprint}", endpoint=get, scope=Scope.READ,
        summary="Return a kind of failure.", query=FailureQuery, answer=Failure, problems=(404,),
    ),
    Route(
        name="mute_failure", method="POST", path="/v1/failures/{fingerprint}/mute", endpoint=mute, scope=Scope.OPERATE,
        summary="Mark a kind of failure as known for some time; it is counted as before.", body=MuteBody, answer=Failure, problems=(404,),
    ),
    Route(
        name="unmute_failure", method="POST", path="/v1/failures/{fingerprint}/unmute", endpoint=unmute, scope=Scope.OPERATE,
        summary="Take a mute back.", body=NoBody, optional_body=True, answer=Failure, problems=(404,),
    ),
)  # fmt: skip
