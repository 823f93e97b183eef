"""Workers over HTTP, of every kind: what they run, and draining them. What pull workers say themselves is in `pull`."""

from __future__ import annotations

from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.api.route import Route
from duetime.client.workers import WorkerDetails, WorkerInfo, no_worker
from duetime.model.access import Scope
from duetime.wire.fields import NoBody, NoQuery
from duetime.wire.overview import WorkerList
from duetime.wire.problem import FORBIDDEN


async def list_workers(call: Call) -> Response:
    call.query(NoQuery)
    found = await call.app.workers()
    return answer(WorkerList([part for each in found if (part := each.part(call.may_see)) is not None]))


async def get(call: Call) -> Response:
    call.query(NoQuery)
    return answer(await _seen(call))


async def drain(call: Call) -> Response:
    return await _drained(call, undo=False)


async def undo_drain(call: Call) -> Response:
    return await _drained(call, undo=True)


async def _drained(call: Call, *, undo: bool) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    async with call.acting("workers.undo_drain" if undo else "workers.drain", call.path["id"][:100]) as act:
        found = await _seen(call)
        if found.worker.running is None:
            raise Refusal(FORBIDDEN, f"worker {found.worker.id} also runs handlers that this token is not for; use one for all of them")
        done = await call.app.client.workers.drain(found.worker.id, undo=undo)
        act.detail = f"{done.host}, process {done.pid}; {done.running} running"
    return answer(done)


async def _seen(call: Call) -> WorkerDetails:
    """Return the worker in the address. One that has none of the handlers that the token is for is answered as one that is not there."""
    found = (await call.app.client.workers.get(call.path["id"])).part(call.may_see)
    if found is None:
        raise no_worker(call.path["id"])
    return found


ROUTES = (
    Route(
        name="list_workers", method="GET", path="/v1/workers", endpoint=list_workers, scope=Scope.READ,
        summary="List the registered workers.", answer=WorkerList,
    ),
    Route(
        name="get_worker", method="GET", path="/v1/workers/{id}", endpoint=get, scope=Scope.READ,
        summary="Return a worker and the tasks that it runs.", answer=WorkerDetails, problems=(404,),
    ),
    Route(
        name="drain_worker", method="POST", path="/v1/workers/{id}/drain", endpoint=drain, scope=Scope.OPERATE,
        summary="Let a worker finish what it runs and claim nothing more. It stays registered.",
        body=NoBody, optional_body=True, answer=WorkerInfo, problems=(404,),
    ),
    Route(
        name="undo_drain", method="DELETE", path="/v1/workers/{id}/drain", endpoint=undo_drain, scope=Scope.OPERATE,
        summary="Let a worker claim again.", answer=WorkerInfo, problems=(404,),
    ),
)  # fmt: skip
