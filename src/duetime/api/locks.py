"""Locks over HTTP. A token that is for some handlers only is for the locks that are named like these."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.route import Route
from duetime.client.locks import no_lock
from duetime.model.access import Scope
from duetime.model.task import check_name
from duetime.wire.fields import NoQuery
from duetime.wire.locks import FreeLockBody, HolderBody, LockAnswer, LockHeld, LockList, TakeLockBody, lock_answer, seen_of

_take = msgspec.json.Decoder(TakeLockBody)
_holder = msgspec.json.Decoder(HolderBody)
_free = msgspec.json.Decoder(FreeLockBody)


async def take(call: Call) -> Response:
    name, body = _name(call), await call.body(_take)
    found = await call.app.store.take_lock(name, body.holder, call.caller.name, body.lease, seen_of(body.dead))
    return answer(lock_answer(found))


async def renew(call: Call) -> Response:
    name, body = _name(call), await call.body(_holder)
    return answer(LockHeld(await call.app.store.renew_lock(name, body.holder)))


async def free(call: Call) -> Response:
    name, body = _name(call), await call.body(_free)
    return answer(LockHeld(await call.app.store.free_lock(name, body.holder, body.rest)))


async def list_locks(call: Call) -> Response:
    call.query(NoQuery)
    found = await call.app.store.locks()
    return answer(LockList([lock_answer(each) for each in found if call.may_see(each.name)]))


async def get(call: Call) -> Response:
    call.query(NoQuery)
    for found in await call.app.store.locks():
        if found.name == call.path["name"] and call.may_see(found.name):
            return answer(lock_answer(found))
    raise no_lock(call.path["name"])


async def delete(call: Call) -> Response:
    name = _name(call)
    async with call.acting("locks.delete", name):
        if not await call.app.store.remove_lock(name):
            raise no_lock(name)
    return Response(status_code=204)


def _name(call: Call) -> str:
    call.query(NoQuery)
    name = check_name(call.path["name"], "the name of a lock")
    call.allow(name)
    return name


ROUTES = (
    Route(
        name="list_locks", method="GET", path="/v1/locks", endpoint=list_locks, scope=Scope.READ,
        summary="List the locks that are held or rest.", answer=LockList,
    ),
    Route(
        name="get_lock", method="GET", path="/v1/locks/{name}", endpoint=get, scope=Scope.READ,
        summary="Return a lock that is held or rests.", answer=LockAnswer, problems=(404,),
    ),
    Route(
        name="take_lock", method="POST", path="/v1/locks/{name}/take", endpoint=take, scope=Scope.SUBMIT,
        summary="Take a lock if nobody holds it, or if the caller has found its holder dead. Answered with whoever has it then.",
        body=TakeLockBody, answer=LockAnswer,
    ),
    Route(
        name="renew_lock", method="POST", path="/v1/locks/{name}/renew", endpoint=renew, scope=Scope.SUBMIT,
        summary="Prove that the holder of a lock lives.", body=HolderBody, answer=LockHeld,
    ),
    Route(
        name="free_lock", method="POST", path="/v1/locks/{name}/free", endpoint=free, scope=Scope.SUBMIT,
        summary="Give a lock back.", body=FreeLockBody, answer=LockHeld,
    ),
    Route(
        name="delete_lock", method="DELETE", path="/v1/locks/{name}", endpoint=delete, scope=Scope.OPERATE,
        summary="Take a lock from whoever has it.", status=204, problems=(404,),
    ),
)  # fmt: skip
