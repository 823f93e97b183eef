"""Operations over HTTP: acts on all tasks that match."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.intake import check_key
from duetime.api.problems import Refusal
from duetime.api.route import IDEMPOTENCY, Route
from duetime.app.filters import query_of
from duetime.client.operations import Asked, OperationInfo, Request, fields_of, not_found
from duetime.errors import Conflict
from duetime.model.access import Scope
from duetime.model.operation import Canary, Verb
from duetime.model.query import Query
from duetime.wire.fields import NoBody, NoQuery, given, given_fields
from duetime.wire.operations import BulkQuery, OperationBody, OperationList, OperationListQuery, OperationQuery
from duetime.wire.problem import INVALID, KEY_REUSED, Fault
from duetime.wire.tasks import BulkAnswer, BulkBody, BulkEditBody, Filter

_body = msgspec.json.Decoder(OperationBody)
_bulk = msgspec.json.Decoder(BulkBody)
_bulk_edit = msgspec.json.Decoder(BulkEditBody)
_NO_FILTERS = ("dry_run", "set", "rate")  # the fields of a bulk body that choose no tasks


# ---- operations ----


async def start(call: Call) -> Response:
    wait = call.query(OperationQuery).wait
    body = await call.body(_body)
    changes = {} if body.set is msgspec.UNSET else given_fields(body.set)
    if changes and body.verb is not Verb.EDIT:
        raise Refusal(INVALID, f"set is for an edit, not for {body.verb}", faults=[Fault("is for an edit", pointer="/set")])
    asked = Asked(verb=body.verb, query=query_for(call, body.filter), rate=given(body.rate), canary=_canary(body), **changes)
    found = await _started(call, asked, body, wait)
    return answer(found, 201, {"location": _address(call, found)})


def _canary(body: OperationBody) -> Canary | None:
    given_canary = given(body.canary)
    return None if given_canary is None else Canary(share=given_canary.share, failed=given_canary.failed)


async def list_operations(call: Call) -> Response:
    query = call.query(OperationListQuery)
    page = await call.app.client.operations.page(query.limit, given(query.cursor))
    return answer(OperationList([each for each in page.items if _may_see(call, each)], page.next))


async def get(call: Call) -> Response:
    wait = call.query(OperationQuery).wait
    found = await _addressed(call)
    return answer(await _waited(call, found, wait))


async def stop(call: Call) -> Response:
    return await _change(call, "stop", call.app.client.operations.stop)


async def pause(call: Call) -> Response:
    return await _change(call, "pause", call.app.client.operations.pause)


async def resume(call: Call) -> Response:
    return await _change(call, "resume", call.app.client.operations.resume)


async def _change(call: Call, verb: str, change: Callable[[str], Awaitable[OperationInfo]]) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    async with call.acting(f"operations.{verb}", call.path["id"]) as act:
        found = await _addressed(call)
        changed = await change(found.id)
        act.detail = told(changed)
    return answer(changed)


async def _addressed(call: Call) -> OperationInfo:
    """Return the operation in the address. One on handlers that the caller's token is not for is answered as one that does not exist."""
    found = await call.app.client.operations.get(call.path["id"])
    if not _may_see(call, found):
        raise not_found(call.path["id"])
    return found


def _may_see(call: Call, operation: OperationInfo) -> bool:
    if call.owner is not None and operation.filter.get("submitted_by") != call.owner:
        return False
    handler = operation.filter.get("handler")
    return not call.caller.handlers if handler is None else call.may_see(handler)


# ---- verbs on many tasks ----


async def cancel_tasks(call: Call) -> Response:
    return await _bulk_verb(call, Verb.CANCEL, call.query(BulkQuery).wait, await call.body(_bulk))


async def retry_tasks(call: Call) -> Response:
    return await _bulk_verb(call, Verb.RETRY, call.query(BulkQuery).wait, await call.body(_bulk))


async def edit_tasks(call: Call) -> Response:
    wait = call.query(BulkQuery).wait
    body = await call.body(_bulk_edit)
    return await _bulk_verb(call, Verb.EDIT, wait, body, given_fields(body.set))


async def _bulk_verb(call: Call, verb: Verb, wait: float, body: BulkBody, changes: dict[str, Any] | None = None) -> Response:
    """Start an operation and wait a while for its end. A dry run changes nothing, so the audit does not record it."""
    changes = changes or {}
    query = query_for(call, body, *_NO_FILTERS)
    if body.dry_run:
        client = call.app.client
        count = {Verb.CANCEL: client.cancel_many, Verb.RETRY: client.retry_many, Verb.EDIT: client.edit_many}[verb]
        done = await count(query, dry_run=True, **changes)
        return answer(BulkAnswer(done.matched, done.answers, True))
    asked = Asked(verb=verb, query=query, rate=given(body.rate), **changes)
    found = await _started(call, asked, body, wait)
    answered = BulkAnswer(found.matched, found.answers, False, found)
    return answer(answered, 200 if found.ended else 202, {"location": _address(call, found)})


async def _started(call: Call, asked: Asked, body: msgspec.Struct, wait: float) -> OperationInfo:
    key = call.header("idempotency-key")
    request = None
    if key is not None:
        digest = hashlib.sha256(msgspec.json.encode((asked.verb, body), order="deterministic")).hexdigest()[:32]
        request = Request(call.caller.token or call.caller.name, check_key(key), digest)
    changes = {name: value for name in ("due_at", "delay", "priority", "collection") if (value := getattr(asked, name)) is not None}
    async with call.acting(f"tasks.{asked.verb}", _words(fields_of(asked.query)) or "no filter") as act:
        try:
            found = await call.app.client.operations.start(asked, made_by=call.caller.name, request=request)
        except Conflict as reused:
            raise Refusal(KEY_REUSED, str(reused), faults=[Fault("was used for another request", parameter="Idempotency-Key")]) from None
        act.detail = f"operation {found.id}"  # so much is known if the wait is broken off
        found = await _waited(call, found, wait)
        act.detail = "; ".join(text for text in (_words(changes), told(found)) if text)
    return found


async def _waited(call: Call, found: OperationInfo, seconds: float) -> OperationInfo:
    """Return the operation when it has ended, or as it is when the wait is over or the client has gone."""
    if found.ended or not seconds:
        return found
    waiting = asyncio.ensure_future(call.app.client.operations.wait(found.id, timeout=seconds))
    gone = asyncio.ensure_future(call.gone())
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (waiting, gone):
            task.cancel()
        await asyncio.gather(waiting, gone, return_exceptions=True)
    return await call.app.client.operations.get(found.id)


def query_for(call: Call, filters: Filter, *leaving: str) -> Query:
    """Return the query of a filter. Refuse one that reaches beyond the handlers of the caller's token, or beyond its owner's tasks."""
    found = query_of(given_fields(filters, "q", *leaving), given(filters.q) or "", call.app.insight.now())  # type: ignore[arg-type]
    call.allow_filter(found.handler)
    call.hiding.check(found)
    found = found.by(call.caller.submitted_by)
    return found if call.owner is None else msgspec.structs.replace(found, mine=True).by(call.owner)


def told(operation: OperationInfo) -> str:
    """Return an operation in words, for the audit."""
    counted = ", ".join(f"{number:,} {each}" for each, number in sorted(operation.answers.items())) or "none matched"
    return f"operation {operation.id} {operation.state}; {counted}"


def _words(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(fields.items()))


def _address(call: Call, operation: OperationInfo) -> str:
    return f"{call.prefix}/v1/operations/{operation.id}"


ROUTES = (
    Route(
        name="cancel_tasks", method="POST", path="/v1/tasks/cancel", endpoint=cancel_tasks, scope=Scope.OPERATE, own=True,
        summary="Cancel all live tasks that match a filter: an operation, answered with 202 if it goes on after the wait.",
        query=BulkQuery, body=BulkBody, answer=BulkAnswer, also=(202,), headers=(IDEMPOTENCY,),
    ),
    Route(
        name="retry_tasks", method="POST", path="/v1/tasks/retry", endpoint=retry_tasks, scope=Scope.OPERATE, own=True,
        summary="Retry all finished tasks that match a filter, without a state those that failed: an operation, answered with 202 if it "
        "goes on after the wait.",
        query=BulkQuery, body=BulkBody, answer=BulkAnswer, also=(202,), headers=(IDEMPOTENCY,),
    ),
    Route(
        name="edit_tasks", method="POST", path="/v1/tasks/edit", endpoint=edit_tasks, scope=Scope.OPERATE, own=True,
        summary="Change all waiting tasks that match a filter: an operation, answered with 202 if it goes on after the wait.",
        query=BulkQuery, body=BulkEditBody, answer=BulkAnswer, also=(202,), headers=(IDEMPOTENCY,),
    ),
    Route(
        name="start_operation", method="POST", path="/v1/operations", endpoint=start, scope=Scope.OPERATE, own=True,
        summary="Start an act on all tasks that match a filter now. Answered as soon as it is committed.",
        query=OperationQuery, body=OperationBody, answer=OperationInfo, status=201, headers=(IDEMPOTENCY,),
    ),
    Route(
        name="list_operations", method="GET", path="/v1/operations", endpoint=list_operations, scope=Scope.READ, own=True,
        summary="List operations, latest started first.", query=OperationListQuery, answer=OperationList,
    ),
    Route(
        name="get_operation", method="GET", path="/v1/operations/{id}", endpoint=get, scope=Scope.READ, own=True,
        summary="Return an operation as it is now, or when it has ended.", query=OperationQuery, answer=OperationInfo, problems=(404,),
    ),
    Route(
        name="stop_operation", method="POST", path="/v1/operations/{id}/stop", endpoint=stop, scope=Scope.OPERATE, own=True,
        summary="End an operation: no further task is acted on, and what was done stays.",
        body=NoBody, optional_body=True, answer=OperationInfo, problems=(404, 409),
    ),
    Route(
        name="pause_operation", method="POST", path="/v1/operations/{id}/pause", endpoint=pause, scope=Scope.OPERATE, own=True,
        summary="Let an operation rest until it is resumed.",
        body=NoBody, optional_body=True, answer=OperationInfo, problems=(404, 409),
    ),
    Route(
        name="resume_operation", method="POST", path="/v1/operations/{id}/resume", endpoint=resume, scope=Scope.OPERATE, own=True,
        summary="Let a paused operation go on.",
        body=NoBody, optional_body=True, answer=OperationInfo, problems=(404, 409),
    ),
)  # fmt: skip
