"""Converts request bodies to new tasks, and the store's answers to response bodies, for one task and for many."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET

from duetime.api.access import allow
from duetime.api.call import check_containers, decode
from duetime.api.problems import Refusal, problem_of
from duetime.app.app import App
from duetime.client.batching import add_each, persistently
from duetime.client.client import duplicate_key
from duetime.clock import to_datetime
from duetime.errors import DuetimeError, DuplicateKey, InvalidValue
from duetime.model.access import Caller, Scope, fits
from duetime.model.retry import RetryPolicy
from duetime.model.task import NewTask, TaskRecord, check_meta
from duetime.model.trace_context import TRACEPARENT
from duetime.runtime.slices import Slices
from duetime.store.requests import NamedRequest
from duetime.store.values import Added, AddVerdict, AllNew
from duetime.wire.fields import given_fields
from duetime.wire.problem import FORBIDDEN, INVALID, KEY_REUSED, MALFORMED, NO_TASK, Fault
from duetime.wire.tasks import BatchAnswer, BatchItem, NewTaskBody, Verdict, needs_of

MOST_KEY = 255

FIELDS = NewTaskBody.__struct_fields__
body_decoder = msgspec.json.Decoder(NewTaskBody)
_NOT_OPTIONS = ("handler", "payload", "due_at", "delay")
_options_of = attrgetter(*[name for name in FIELDS if name not in _NOT_OPTIONS])
_NO_OPTIONS = _options_of(body_decoder.decode(b'{"handler": "any"}'))  # most tasks of a batch have none


def task_of(app: App, body: NewTaskBody, caller: Caller, trace: Mapping[str, str] | None = None) -> NewTask[Any]:
    """Make a new task of a body that has the right types.

    Raises InvalidValue and InvalidPayload for anything else that is wrong. `trace` comes from the request's headers; a trace in the
    body's own meta takes precedence.
    """
    handler = app.handler(body.handler)
    own = caller.only_own(Scope.SUBMIT)
    allow(caller, Scope.OWN if own else Scope.SUBMIT, handler.name)  # not the name from the request: it may be an alias
    if own and (body.if_exists not in ("error", "keep") or body.debounce not in (UNSET, None)):
        detail = (
            f"the token {caller.name} is for its owner's tasks, and this could change somebody else's with the same key; use error or keep"
        )
        raise Refusal(FORBIDDEN, detail, faults=[Fault("may change another's task", pointer="/if_exists")])
    if body.due_at not in (UNSET, None) and body.delay not in (UNSET, None):
        raise Refusal(INVALID, "give due_at or delay, not both", faults=[Fault("due_at is given too", pointer="/delay")])
    if _options_of(body) != _NO_OPTIONS:
        options = given_fields(body, *_NOT_OPTIONS)
        if options["if_exists"] == "error":
            del options["if_exists"]
        if "needs" in options:
            options["needs"] = needs_of(options["needs"])
        if "retry" in options:
            options["retry"] = RetryPolicy(**given_fields(options["retry"]))
        if options:
            handler = handler.options(**options)
    task: NewTask[Any] = handler.new(**body.payload)
    if body.due_at not in (UNSET, None):
        task = task.at(body.due_at)
    elif body.delay not in (UNSET, None):
        task = task.after(body.delay)
    if task.submitted_by != caller.submitted_by:
        task = msgspec.structs.replace(task, submitted_by=caller.submitted_by)
    return _traced(task, trace) if trace and TRACEPARENT not in (task.meta or {}) else task


def _traced(task: NewTask[Any], trace: Mapping[str, str]) -> NewTask[Any]:
    try:
        return msgspec.structs.replace(task, meta=check_meta({**(task.meta or {}), **trace}))
    except InvalidValue:  # meta is full: a trace is never a reason to refuse a task
        return task


async def faults_of_needs(app: App, tasks: Sequence[NewTask[Any]], caller: Caller) -> dict[int, Refusal]:
    """Return which tasks need one that is not there, by number. One of a handler that the caller's token is not for is not there either."""
    parents = sorted({edge.parent for task in tasks for edge in task.edges})
    if not parents:
        return {}
    found = await app.client.records(parents)
    own = caller.only_own(Scope.SUBMIT)
    known = {
        record.id
        for record in found
        if record is not None and fits(caller.handlers, record.handler) and (not own or record.submitted_by == caller.submitted_by)
    }
    faults = {}
    for number, task in enumerate(tasks):
        for index, edge in enumerate(task.edges):
            if edge.parent not in known:
                detail = f"there is no task {edge.parent}, which this one would need: it was never submitted here, or it has been pruned"
                faults[number] = Refusal(NO_TASK, detail, faults=[Fault(detail, pointer=f"/needs/{index}")])
    return faults


def refuse_anothers(caller: Caller, task: NewTask[Any], added: Added) -> None:
    """Refuse to answer with somebody else's task, which holds the key, if the caller may see its owner's only."""
    if added.record.submitted_by != caller.submitted_by and caller.only_own(Scope.SUBMIT):
        raise DuplicateKey(f"the key {task.key!r} of {task.handler} is held by somebody else's task; choose another key", task_id="")


# ---- Idempotency-Key ----


def request_of(task: NewTask[Any], key: str, body: NewTaskBody, caller: Caller) -> NamedRequest:
    """Name the request for a task, so that a repeat is answered with the task of the first one."""
    digest = hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()[:32]
    # by the token's id, because its name can be given to another one later
    return NamedRequest(caller.token or caller.name, check_key(key), digest, task.id)


def key_reused(stored: NamedRequest) -> Refusal:
    return Refusal(
        KEY_REUSED,
        f"this Idempotency-Key stands for task {stored.task}, which came with another body; "
        "repeat a request with its body unchanged, or use a new key",
        faults=[Fault("was used for another request", parameter="Idempotency-Key")],
    )


def check_key(key: str) -> str:
    """Check a key and use it literally. The quotes of the draft's grammar count as part of the key, so `"a"` and `a` are two keys."""
    if not key or len(key) > MOST_KEY or not key.isascii() or not key.isprintable():
        detail = f"Idempotency-Key must have 1 to {MOST_KEY} printable ASCII characters, got {len(key)}"
        raise Refusal(INVALID, detail, faults=[Fault(detail, parameter="Idempotency-Key")])
    return key


# ---- many ----


async def submit_batch(
    app: App, raw: AsyncIterator[bytes | msgspec.Raw], caller: Caller, trace: Mapping[str, str] | None = None, *, lines: bool
) -> BatchAnswer:
    """Store all tasks of a batch that can be stored, in one commit, and answer for each. A broken array has no items."""
    items: list[BatchItem | None] = []
    indexes: list[int] = []
    tasks: list[NewTask[Any]] = []
    async for item in raw:
        try:
            # decoded one by one: an error is reported for its own item only, and no more than one payload is in memory as objects
            tasks.append(task_of(app, _body_of(item), caller, trace))
            indexes.append(len(items))
            items.append(None)
        except Refusal as refusal:
            if refusal.kind is MALFORMED and not lines:
                raise
            items.append(_refused(refusal))
        except DuetimeError as error:
            items.append(_refused(error))
    admission = app.client.admission
    faults: dict[int, DuetimeError] = {**await admission.faults(tasks), **await faults_of_needs(app, tasks, caller)}
    if admission.quotas is not None:
        good = [number for number in range(len(tasks)) if number not in faults] if faults else range(len(tasks))
        faults |= {good[index]: fault for index, fault in (await admission.quotas.faults([tasks[number] for number in good])).items()}
    slices = Slices()
    for number, fault in faults.items():
        await slices.pause()
        items[indexes[number]] = _refused(fault)
    if faults:
        indexes = [index for number, index in enumerate(indexes) if number not in faults]
        tasks = [task for number, task in enumerate(tasks) if number not in faults]
    for number, task in enumerate(tasks):
        await slices.pause()
        tasks[number] = admission.complete(task)
    first: TaskRecord | None = None
    if tasks:
        answers = await add_each(lambda some: persistently(app.client.add, some), tasks)
        if isinstance(answers, AllNew):
            for index, task in zip(indexes, tasks, strict=True):
                items[index] = BatchItem(verdict=Verdict.ADDED, id=task.id)
        else:
            for index, task, added in zip(indexes, tasks, answers, strict=True):
                await slices.pause()
                items[index] = _refused(added) if isinstance(added, DuetimeError) else _item(task, added, caller)
        first = next((added.record for added in answers if isinstance(added, Added) and added.verdict is AddVerdict.ADDED), None)
    done = [item for item in items if item is not None]
    when, by = (None, None) if first is None else (to_datetime(first.submitted_at), first.submitted_by)
    return BatchAnswer(done, Counter(item.verdict for item in done), when, by)


def _body_of(item: bytes | msgspec.Raw) -> NewTaskBody:
    try:
        return body_decoder.decode(check_containers(item) if isinstance(item, bytes) else item)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return decode(body_decoder, item)


def _refused(error: DuetimeError | Refusal) -> BatchItem:
    return BatchItem(verdict=Verdict.REFUSED, problem=problem_of(error, FIELDS))


def _item(task: NewTask[Any], added: Added, caller: Caller) -> BatchItem:
    try:
        refuse_anothers(caller, task, added)
    except DuplicateKey as error:
        return BatchItem(verdict=Verdict.DUPLICATE, problem=problem_of(error, FIELDS))
    match added.verdict:
        case AddVerdict.DUPLICATE:
            return BatchItem(verdict=Verdict.DUPLICATE, id=added.record.id, problem=problem_of(duplicate_key(task, added), FIELDS))
        case AddVerdict.REPEATED:  # our own retry found what the first try had stored: ids are new here
            return BatchItem(verdict=Verdict.ADDED, id=added.record.id)
        case verdict:
            return BatchItem(verdict=Verdict(verdict), id=added.record.id)
