"""Tasks over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from duetime.api import intake
from duetime.api.answers import answer
from duetime.api.batches import items_of
from duetime.api.call import JSON, NDJSON, Call
from duetime.api.operations import query_for
from duetime.api.problems import Refusal
from duetime.client.client import stored, task_not_found
from duetime.errors import ChangedMeanwhile
from duetime.model.access import AuditOutcome
from duetime.model.query import read_cursor, write_cursor
from duetime.model.task import FINAL, Task, TaskRecord, shown
from duetime.store.requests import NamedRequest
from duetime.store.values import AddVerdict, CancelVerdict
from duetime.wire.fields import NoQuery, given, given_fields
from duetime.wire.problem import CHANGED
from duetime.wire.tasks import (
    AttemptList,
    AttemptQuery,
    CancelAnswer,
    CopyBody,
    CountQuery,
    ListQuery,
    RawTaskList,
    ReasonList,
    TaskChange,
    WaitQuery,
    raw_of,
)

_encode = msgspec.json.Encoder().encode
_changes = msgspec.json.Decoder(TaskChange)
_copies = msgspec.json.Decoder(CopyBody)


# ---- submitting ----


async def submit(call: Call) -> Response:
    query = call.query(WaitQuery)
    body = await call.body(intake.body_decoder)
    task = await call.app.client.admission.admit(intake.task_of(call.app, body, call.caller, call.trace))
    for refusal in (await intake.faults_of_needs(call.app, [task], call.caller)).values():
        raise refusal
    key = call.header("idempotency-key")
    request = None if key is None else intake.request_of(task, key, body, call.caller)
    answered = await call.shared.batching.add(task, request)
    if isinstance(answered, NamedRequest):
        raise intake.key_reused(answered)
    intake.refuse_anothers(call.caller, task, answered)
    added = stored(task, answered)
    headers = {}
    if added.verdict is AddVerdict.ADDED:
        call.shared.figures.note_submitted(1)
    if added.verdict is AddVerdict.REPEATED and key is not None:
        headers["idempotency-replayed"] = "true"
    record = added.record
    if query.wait:
        record = await _waited(call, record, query.wait)
    is_new = added.verdict in (AddVerdict.ADDED, AddVerdict.REPEATED) and not added.met
    return _task(record, 201 if is_new else 200, {"location": f"{call.prefix}/v1/tasks/{record.id}", **headers})


async def submit_many(call: Call) -> Response:
    call.query(NoQuery)
    kind = call.content_type(JSON, NDJSON)
    data = await call.data(call.shared.limits.batch)
    raw = items_of(data, lines=kind == NDJSON, largest=call.shared.limits.body)
    done = await intake.submit_batch(call.app, raw, call.caller, call.trace, lines=kind == NDJSON)
    call.shared.figures.note_submitted(done.counts.get("added", 0))
    return answer(done)


# ---- reading ----


async def addressed(call: Call) -> TaskRecord:
    """Return the task in the address. One that the caller's token does not reach is answered as one that does not exist."""
    record = await call.app.client.record(call.path["id"])
    if not call.may_see(record.handler) or not call.owns(record.submitted_by):
        raise task_not_found(call.path["id"])
    return record


async def _allowed(call: Call) -> str:
    """Return the id in the path. The task is read only if the token does not reach all: handler and submitter of a task never change."""
    return (await addressed(call)).id if call.caller.handlers or call.owner is not None else call.path["id"]


async def get(call: Call) -> Response:
    wait = call.query(WaitQuery).wait
    record = await addressed(call)
    if wait:
        record = await _waited(call, record, wait)
    body, tag = _representation(record)
    if call.hiding:  # the tag is that of the whole task: who edits it must have seen its last state
        body = _encode(shown(call.hiding.of(record)))
    if matches(call.header("if-none-match"), tag):
        return Response(status_code=304, headers={"etag": tag})
    return answer(None, 200, {"etag": tag}, encoded=body)


async def list_tasks(call: Call) -> Response:
    query = call.query(ListQuery)
    filters = query_for(call, query, "limit", "cursor", "brief", "scan")
    wanted = msgspec.structs.replace(filters, limit=query.limit, cursor=given(query.cursor), brief=query.brief, scan=query.scan)
    page = await call.app.client.record_page(wanted)
    return answer(RawTaskList([raw_of(call.hiding.of(record)) for record in page.items], page.next, page.looked))


async def count(call: Call) -> Response:
    query = call.query(CountQuery)
    return answer(await call.app.client.count(query_for(call, query, "limit"), query.limit))


async def attempts(call: Call) -> Response:
    query = call.query(AttemptQuery)
    cursor = given(query.cursor)
    [after] = [0] if cursor is None else read_cursor(cursor, int)
    record = await addressed(call)
    items = await call.app.insight.attempts(record.id, after=after, limit=query.limit)
    more = bool(items) and items[-1].attempt < record.attempt
    return answer(AttemptList(items, write_cursor(items[-1].attempt) if more else None))


async def why(call: Call) -> Response:
    call.query(NoQuery)
    record = await addressed(call)
    reasons = await call.app.insight.why(record, may_see=call.may_see if call.owner is None else lambda handler: False)
    return answer(ReasonList(reasons))


# ---- changing ----


async def cancel(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    async with call.acting("tasks.cancel", call.path["id"]) as act:
        task_id = await _allowed(call)
        verdict = await call.app.client.cancel(task_id)
        act.detail = verdict.value
        act.outcome = AuditOutcome.REFUSED if verdict is CancelVerdict.FINISHED else AuditOutcome.DONE
    return answer(CancelAnswer(task_id, verdict))


async def retry(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    async with call.acting("tasks.retry", call.path["id"]):
        return task_answer(await call.app.client.retry(await _allowed(call)))


async def copy(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.optional_body(_copies, CopyBody())
    record = await addressed(call)
    payload = None if body.payload is UNSET else body.payload
    task = await call.app.client.copy(record.id, payload=payload, submitted_by=call.caller.submitted_by)
    call.shared.figures.note_submitted(1)
    return task_answer(task, 201, {"location": f"{call.prefix}/v1/tasks/{task.id}"})


async def delete(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    async with call.acting("tasks.delete", call.path["id"]):
        await call.app.client.delete(await _allowed(call))
    return Response(status_code=204)


async def edit(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_changes)
    changes = given_fields(body)
    async with call.acting("tasks.edit", call.path["id"]) as act:
        task = await _edited(call, changes)
        act.detail = _words({**changes, "payload": "changed"} if "payload" in changes else changes)
    return task_answer(task)


async def _edited(call: Call, changes: dict[str, Any]) -> Task[Any]:
    task_id, expected = await _allowed(call), call.header("if-match")
    if expected is None:
        return await call.app.client.edit(task_id, **changes)
    seen = await call.app.client.record(task_id)
    if not matches(expected, _representation(seen)[1]):
        raise _changed(seen, expected)
    try:
        # the store compares again when it writes, because another server may have been faster
        return await call.app.client.edit(task_id, seen=None if expected.strip() == "*" else seen, **changes)
    except ChangedMeanwhile:
        raise _changed(await call.app.client.record(task_id), expected) from None


def _changed(record: TaskRecord, expected: str) -> Refusal:
    _, tag = _representation(record)
    detail = f"task {record.id} has the ETag {tag}, and If-Match asks for {expected[:200]}; read it again"
    return Refusal(CHANGED, detail, headers={"etag": tag})


def _words(fields: dict[str, Any]) -> str:
    """Return the given fields as text, for the audit."""
    return ", ".join(f"{name} {value}" for name, value in sorted(fields.items()))


# ---- waiting ----


async def _waited(call: Call, record: TaskRecord, seconds: float) -> TaskRecord:
    """Return the task when it is final, or as it is when the wait is over or the client has gone."""
    if record.state in FINAL:
        return record
    waiting = asyncio.ensure_future(call.shared.waiters.until_final(record.id, seconds))
    gone = asyncio.ensure_future(call.gone())
    try:
        await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (waiting, gone):
            task.cancel()
        await asyncio.gather(waiting, gone, return_exceptions=True)
    return await call.app.client.record(record.id)


# ---- answers ----


def _representation(record: TaskRecord) -> tuple[bytes, str]:
    body = _encode(shown(record))
    return body, _tag(body)


def _tag(body: bytes) -> str:
    """Return a strong ETag: it changes whenever the response body would."""
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def _task(record: TaskRecord, status: int, headers: dict[str, str]) -> Response:
    body, tag = _representation(record)
    return answer(None, status, {"etag": tag, **headers}, encoded=body)


def task_answer(task: Task[Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = _encode(task)
    return answer(None, status, {"etag": _tag(body), **(headers or {})}, encoded=body)


def matches(condition: str | None, tag: str) -> bool:
    """Return whether a list of ETags, or *, names this one."""
    if condition is None:
        return False
    return condition.strip() == "*" or tag in [each.strip() for each in condition.split(",")]
