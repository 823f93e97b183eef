"""What is stored of a task, and the only code that turns it into records.

A task is its *facts*, which the scripts read and change; its *record*, which they only pass on; its *end*, once it has one; and the ends of
its earlier attempts. All are MessagePack, because that is what Lua in the server reads and writes without losing digits of instants.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from duetime.clock import Instant
from duetime.model.lifecycle import unmet
from duetime.model.outcome import AttemptRecord, Outcome, Settlement
from duetime.model.task import ErrorInfo, Extras, NewTask, State, TaskRecord, with_extras
from duetime.store.pull_workers import RunningTask
from duetime.store.redis.keys import LETTERS, collection_of, handler_of, lane_name, priority_of
from duetime.store.values import ClaimedTask

STATES = {letter: state for state, letter in LETTERS.items()} | {"b": State.BLOCKED, "p": State.PENDING, "r": State.RUNNING}


class Facts(msgspec.Struct, omit_defaults=True):
    """What changes about a task; scripts use the same short names.

    s: letter of its state. l: lane. d: when it is due next. i: when it was due first. u: submitted. n: its number in the order of
    submitting. e: expiry. h: the field of its key. a, t, k: attempt, tries, crashes. w, c, g: worker, claim, claimed at. x: a cancel
    was requested. p: parked. r: refused by. f: finished at. v: grows with each change. m: others waited for it. q: for which tasks it
    waits, with "s" if it needs their success. y: for which it waited in vain. z: the one of them that ended otherwise.
    """

    s: str
    l: str  # noqa: E741
    d: Instant
    i: Instant
    u: Instant
    n: int
    e: Instant | None = None
    h: str | None = None
    a: int = 0
    t: int = 0
    k: int = 0
    w: str | None = None
    c: int = 0
    g: Instant = 0
    x: int = 0
    p: int = 0
    r: str | None = None
    f: Instant | None = None
    v: int = 0
    m: int = 0
    q: dict[str, str] | None = None
    y: dict[str, str] | None = None
    z: str | None = None

    @property
    def state(self) -> State:
        return STATES[self.s]

    @property
    def handler(self) -> str:
        return handler_of(self.l)

    @property
    def collection(self) -> str | None:
        return collection_of(self.l)

    @property
    def priority(self) -> int:
        return priority_of(self.l)


class Content(msgspec.Struct, array_like=True):
    """What a task is, apart from what its facts say."""

    payload: str
    key: str | None
    timeout: float | None
    retry: str | None
    extras: Extras | None
    submitted_by: str
    schedule: str | None
    planned_at: Instant | None


class End(msgspec.Struct, array_like=True):
    """How an attempt ended. `result` is of a task's last one."""

    outcome: str
    attempt: int
    worker: str | None
    started_at: Instant | None
    finished_at: Instant
    result: str | None
    detail: str | None
    error: ErrorInfo | None


encode = msgspec.msgpack.Encoder().encode
read_facts = msgspec.msgpack.Decoder(Facts).decode
read_content = msgspec.msgpack.Decoder(Content).decode
read_end = msgspec.msgpack.Decoder(End).decode
read_progress = msgspec.msgpack.Decoder(tuple[int, float, str]).decode


class Stored(NamedTuple):
    """A task as it was read. `raw` is what its facts were, to be compared at a change."""

    id: str
    raw: bytes
    facts: Facts
    content: Content
    end: End | None
    progress: tuple[int, float, str] | None


def content_of(task: NewTask[object]) -> Content:
    extras = Extras(meta=dict(task.meta) if task.meta else None, merged=task.merged)
    return Content(
        task.payload.decode(),
        task.key,
        task.timeout,
        None if task.retry is None else task.retry.decode(),
        None if extras == Extras() else extras,
        task.submitted_by,
        task.schedule,
        task.planned_at,
    )


def lane_of(task: NewTask[object]) -> str:
    return lane_name(task.handler, task.collection, task.priority)


def end_of(settlement: Settlement, worker: str | None) -> bytes:
    result, detail = settlement.result, settlement.detail
    return encode(
        End(
            settlement.outcome.value,
            settlement.attempt,
            worker,
            settlement.started_at,
            settlement.finished_at,
            None if result is None else result.decode(),
            None if detail is None else detail.decode(),
            settlement.error,
        )
    )


def record_of(stored: Stored, last_error: ErrorInfo | None = None) -> TaskRecord:
    """Return a task as the seam shows it; `last_error` is that of its last attempt, if it goes on."""
    facts, content, end = stored.facts, stored.content, stored.end
    running, final = facts.s == "r", facts.f is not None
    progress = stored.progress if running and stored.progress is not None and stored.progress[0] == facts.a else None
    error = last_error
    if final:
        error = None if end is None else end.error
        if facts.z is not None:
            error = unmet(facts.z)
    started_at = max(facts.g, facts.d) if running else None
    if final and end is not None:
        started_at = end.started_at
    record = TaskRecord(
        id=stored.id,
        handler=facts.handler,
        state=facts.state,
        payload=content.payload.encode(),
        due_at=facts.i if final else facts.d,
        submitted_at=facts.u,
        submitted_by=content.submitted_by,
        key=content.key,
        collection=facts.collection,
        priority=facts.priority,
        timeout=content.timeout,
        retry=None if content.retry is None else content.retry.encode(),
        expires_at=facts.e,
        schedule=content.schedule,
        planned_at=content.planned_at,
        attempt=facts.a,
        tries=facts.t,
        crashes=facts.k,
        cancelling=bool(facts.x),
        parked=bool(facts.p),
        worker=(facts.w or None) if running else None if end is None or not final else end.worker,
        started_at=started_at,
        finished_at=facts.f,
        result=None if not final or end is None or end.result is None else end.result.encode(),
        error=error,
        progress=None if progress is None else progress[1],
        progress_text="" if progress is None else progress[2],
    )
    return with_extras(record, content.extras)


def claimed_of(task: str, facts: Facts, content: Content, epoch: int) -> ClaimedTask:
    return ClaimedTask(
        id=task,
        handler=facts.handler,
        payload=content.payload,
        attempt=facts.a,
        tries=facts.t,
        crashes=facts.k,
        due_at=facts.d,
        since_at=facts.i,
        submitted_at=facts.u,
        submitted_by=content.submitted_by,
        expires_at=facts.e,
        timeout=content.timeout,
        retry=content.retry,
        extras=content.extras,
        key=content.key,
        collection=facts.collection,
        priority=facts.priority,
        schedule=content.schedule,
        planned_at=content.planned_at,
        epoch=epoch,
    )


def running_of(task: str, facts: Facts, content: Content, epoch: int, *, payloads: bool) -> RunningTask:
    """Return a task that a worker runs, to be handed out again."""
    if not payloads:
        content = msgspec.structs.replace(content, payload="")
    claimed = msgspec.structs.asdict(claimed_of(task, facts, content, epoch))
    return RunningTask(**claimed, claim=facts.c, cancelling=bool(facts.x), claimed_at=facts.g)


def attempt_of(end: End) -> AttemptRecord:
    detail = None if end.detail is None else end.detail.encode()
    return AttemptRecord(end.attempt, Outcome(end.outcome), end.worker, end.started_at, end.finished_at, end.error, detail)
