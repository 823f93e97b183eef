"""Pull workers in JSON: their requests and the responses."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duetime.clock import Instant, to_datetime
from duetime.model.shapes import derive
from duetime.model.task import INSTANTS, LONGEST_KEPT, State
from duetime.store.pull_workers import RunningTask
from duetime.wire.fields import MOST_WAIT, Duration, Name, RetryNumbers, TaskId
from duetime.worker.pull.values import MOST_NUMBER

SHORTEST_LEASE, LONGEST_LEASE, USUAL_LEASE = 5.0, 3_600.0, 30.0
MOST_SLOTS = 10_000
MOST_HANDLERS = 1_000
MOST_CLAIMED = 1_000
MOST_TEXT = 1_000_000

Number = Annotated[int, Meta(ge=1, le=MOST_NUMBER)]
Attempt = Annotated[int, Meta(ge=1, le=2**31 - 1, description="The attempt's number.")]
MOST_ENDED = 1_000  # attempts that one request reports on
WorkerId = Annotated[str, Meta(min_length=1, max_length=100)]
Timeout = Annotated[float, Meta(gt=0, le=31_536_000, description="Seconds that an attempt may take.")]
Kept = Annotated[float, Meta(ge=0, le=LONGEST_KEPT, description="Seconds that a finished task is kept.")]


class KeepBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How long finished tasks of a handler are kept, by state; of those that are left out the settings say it."""

    succeeded: Kept | UnsetType = UNSET
    failed: Kept | UnsetType = UNSET
    cancelled: Kept | UnsetType = UNSET
    dropped: Kept | UnsetType = UNSET
    expired: Kept | UnsetType = UNSET


class OfferBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A handler that the worker runs. Fields that are left out stay as others have declared them."""

    slots: Annotated[int, Meta(ge=1, le=MOST_SLOTS, description="How many attempts it runs at once.")] = 1
    schema: Annotated[dict[str, Any], Meta(description="The JSON Schema of the payload.")] | UnsetType = UNSET
    doc: Annotated[str, Meta(max_length=10_000)] | UnsetType = UNSET
    timeout: Timeout | UnsetType = UNSET
    retry: RetryNumbers | UnsetType = UNSET
    keep: KeepBody | UnsetType = UNSET


class NewWorkerBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A worker that is about to claim."""

    handlers: Annotated[dict[Name, OfferBody], Meta(min_length=1, max_length=MOST_HANDLERS)]
    name: Annotated[Name, Meta(description="For people: the machine, or what it is.")] | UnsetType = UNSET
    lease: Annotated[float, Meta(ge=SHORTEST_LEASE, le=LONGEST_LEASE)] = USUAL_LEASE


class WorkerAnswer(msgspec.Struct, frozen=True):
    """A registered worker: it counts as alive until `lease_until`, and should renew its lease every `renew_every` seconds."""

    id: str
    lease: float
    renew_every: float
    lease_until: datetime


class ClaimBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What to claim. A claim with a number can be repeated and is answered with the same tasks; each new claim needs a new number."""

    limit: Annotated[int, Meta(ge=1, le=MOST_CLAIMED)] = 1
    wait: Annotated[float, Meta(ge=0, le=MOST_WAIT, description="Seconds to wait for a task; half of the lease at most.")] = 0.0
    claim: Number | UnsetType = UNSET


class ClaimedItem(msgspec.Struct, frozen=True, kw_only=True):
    """A task to run now. `attempt` is for this API; `fence` and `idempotency_key` are for those that the worker writes to.

    `fence` grows with every attempt, also after a fail-over of the store; `idempotency_key` is the same for every attempt of the task.
    """

    id: str
    handler: str
    payload: Annotated[msgspec.Raw, Meta(description="The handler's arguments by name.")]
    attempt: int
    fence: int
    idempotency_key: str
    deadline: datetime
    due_at: datetime
    submitted_at: datetime
    submitted_by: str
    tries: int
    priority: int
    key: str | None
    collection: str | None
    expires_at: datetime | None
    schedule: str | None
    planned_at: datetime | None
    meta: dict[str, str]


class ClaimAnswer(msgspec.Struct, frozen=True):
    """Tasks to run, the first one first. `draining`: the worker is given none until an operator undoes that."""

    items: list[ClaimedItem]
    draining: bool = False


class RenewBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`running`: all tasks that the worker runs, including those whose end it has reported without an answer yet.

    `answered`: the number of its newest claim that was answered. With both, attempts that were claimed for the worker but never reached
    it go back.
    """

    running: Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=100_000)] | UnsetType = UNSET
    claim: Number | UnsetType = UNSET


class RenewAnswer(msgspec.Struct, frozen=True):
    """`cancelled`: stop these and report `released`. `lost`: these are no longer the worker's; stop them and report nothing.

    `draining`: an operator wants the worker to finish what it runs; it is given nothing more until that is undone.
    """

    lease_until: datetime
    cancelled: list[str]
    lost: list[str]
    draining: bool = False


class Saying(StrEnum):
    """How an attempt ended, in a worker's words.

    RETRY: run it again later, no try is used up. RELEASED: it was not carried out; it goes back, or ends as cancelled if a cancel was
    requested.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRY = "retry"
    RELEASED = "released"


class ErrorBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Why an attempt did not succeed."""

    type: Annotated[str, Meta(min_length=1, max_length=200)] = "Error"
    message: Annotated[str, Meta(max_length=100_000)] = ""
    details: Annotated[str, Meta(max_length=MOST_TEXT, description="For people: a stack trace, for example.")] = ""
    location: Annotated[str, Meta(max_length=300, description="Where it failed: `src/charge.js:42 in charge`, for example.")] = ""


class CompleteBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How an attempt ended. Without `worker`: of work that was accepted with 202. With a callback token `attempt` may be left out too."""

    worker: WorkerId | UnsetType = UNSET
    attempt: Attempt | UnsetType = UNSET
    outcome: Saying = Saying.SUCCEEDED
    result: Annotated[Any, Meta(description="Any JSON; with `succeeded`.")] | UnsetType = UNSET
    error: ErrorBody | UnsetType | None = UNSET
    fatal: Annotated[bool, Meta(description="With `failed`: no more tries.")] = False
    delay: Annotated[Duration, Meta(description="With `retry`: seconds until then; 1 if left out.")] | UnsetType = UNSET


class EndedBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How one attempt of a worker ended, beside others: `task` and `attempt` name it, the rest is as in a single report."""

    task: TaskId
    attempt: Attempt
    outcome: Saying = Saying.SUCCEEDED
    result: Annotated[Any, Meta(description="Any JSON; with `succeeded`.")] | UnsetType = UNSET
    error: ErrorBody | UnsetType | None = UNSET
    fatal: bool = False
    delay: Duration | UnsetType = UNSET


class CompleteManyBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How attempts of a worker ended, each named once."""

    items: Annotated[list[EndedBody], Meta(min_length=1, max_length=MOST_ENDED)]


class AttemptVerdict(StrEnum):
    """Whether a worker's report on an attempt counts: now, before (a repeat), or not."""

    ACCEPTED = "accepted"
    ALREADY = "already"
    STALE = "stale"


class CompleteAnswer(msgspec.Struct, frozen=True):
    """`accepted`: stored now. `already`: stored before. `stale`: the attempt is no longer the worker's, and nothing was changed."""

    verdict: AttemptVerdict
    state: State


class CompleteManyItem(msgspec.Struct, frozen=True):
    """The answer to one report: its verdict, and the task's state; both null if there is no such task."""

    task: str
    verdict: AttemptVerdict | None
    state: State | None


class CompleteManyAnswer(msgspec.Struct, frozen=True):
    """The answers, in the order of the reports."""

    items: list[CompleteManyItem]


class ProgressBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How far an attempt is. Without `worker`: of work that was accepted with 202, whose silence begins anew.

    `extend`: seconds for which it may be silent from now, instead of the handler's `silence`; never beyond its deadline.
    """

    worker: WorkerId | UnsetType = UNSET
    attempt: Attempt | UnsetType = UNSET
    fraction: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    text: Annotated[str, Meta(max_length=1_000)] = ""
    extend: Annotated[float, Meta(gt=0, le=31_622_400)] | UnsetType = UNSET


class LogsBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What an attempt printed since the last time."""

    worker: WorkerId
    attempt: Attempt
    text: Annotated[str, Meta(max_length=MOST_TEXT)]


class ToldAnswer(msgspec.Struct, frozen=True):
    """`stale`: the attempt is no longer the worker's; stop it. `cancelling`: a cancel was requested; stop it."""

    verdict: AttemptVerdict
    cancelling: bool


_claimed_item = derive(
    RunningTask,
    ClaimedItem,
    {**dict.fromkeys(INSTANTS, to_datetime), "payload": lambda payload: msgspec.Raw(payload.encode())},
    given=("fence", "idempotency_key", "deadline", "meta"),
)


def claimed_item(task: RunningTask, deadline_at: Instant) -> ClaimedItem:
    """Return a claimed task as its worker receives it."""
    return _claimed_item(task, task.fence, task.id, to_datetime(deadline_at), dict(task.meta))
