"""Pull workers over HTTP: they register, claim, renew their lease and report how attempts ended."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call, Gone, decode
from duetime.api.problems import Refusal
from duetime.api.route import Route
from duetime.clock import to_datetime
from duetime.ids import is_id
from duetime.model.access import Scope
from duetime.model.outcome import Ended, Outcome, SettleVerdict
from duetime.model.retry import RetryPolicy
from duetime.model.task import ErrorInfo, State, check_name
from duetime.runtime.slices import Slices
from duetime.store.pull_workers import PullWorker
from duetime.targets.payload import encode_result
from duetime.wire.fields import NoQuery, given, given_fields
from duetime.wire.problem import FORBIDDEN, INVALID, LEASE_OVER, NO_WORKER, Fault
from duetime.wire.pull import (
    AttemptVerdict,
    ClaimAnswer,
    ClaimBody,
    CompleteAnswer,
    CompleteBody,
    CompleteManyAnswer,
    CompleteManyBody,
    CompleteManyItem,
    EndedBody,
    ErrorBody,
    LogsBody,
    NewWorkerBody,
    OfferBody,
    ProgressBody,
    RenewAnswer,
    RenewBody,
    Saying,
    ToldAnswer,
    WorkerAnswer,
    claimed_item,
)
from duetime.worker.pull.accepted import Claimant
from duetime.worker.pull.schema import fault_in
from duetime.worker.pull.service import RENEW_SHARE, PullService
from duetime.worker.pull.values import LeaseOver, Offer, Report, ReportAnswer, lease_over

S = TypeVar("S", bound=msgspec.Struct)

RETRY_AFTER = 1.0  # seconds, if a worker requests a retry without a delay

_new_worker = msgspec.json.Decoder(NewWorkerBody)
_claim = msgspec.json.Decoder(ClaimBody)
_renew = msgspec.json.Decoder(RenewBody)
_complete = msgspec.json.Decoder(CompleteBody)
_complete_many = msgspec.json.Decoder(CompleteManyBody)
_progress = msgspec.json.Decoder(ProgressBody)
_logs = msgspec.json.Decoder(LogsBody)


# ---- workers ----


async def register(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_new_worker)
    offers = {}
    slices = Slices()
    for handler, offer in body.handlers.items():
        await slices.pause()
        call.allow(check_name(handler, "handler"))
        offers[handler] = _offer(handler, offer)
    name = check_name(given(body.name) or call.caller.name, "name")
    worker = await _service(call).register(name, offers, body.lease)
    until = to_datetime(_service(call).lease_until(worker))
    return answer(WorkerAnswer(worker.id, worker.lease, worker.lease / RENEW_SHARE, until), 201)


async def claim(call: Call) -> Response:
    call.query(NoQuery)
    body = await _optional(call, _claim)
    worker = await _worker(call)
    gone = asyncio.ensure_future(call.gone())
    try:
        claimed = await _service(call).claim(worker, body.limit, number=given(body.claim), wait=body.wait, gone=gone)
        if gone.done():
            raise Gone
    except LeaseOver as over:
        raise _over(over) from None
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    return answer(ClaimAnswer([claimed_item(each.task, each.deadline_at) for each in claimed], worker.draining))


async def renew(call: Call) -> Response:
    call.query(NoQuery)
    body = await _optional(call, _renew)
    worker = await _worker(call)
    running = given(body.running)
    try:
        renewed = await _service(call).renew(worker, running=running, answered=given(body.claim))
    except LeaseOver as over:
        raise _over(over) from None
    return answer(RenewAnswer(to_datetime(renewed.lease_until), renewed.cancelled, renewed.lost, worker.draining))


async def dismiss(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    await _service(call).unregister(await _worker(call))
    return Response(status_code=204)


# ---- their attempts ----


async def complete(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_complete)
    ended = _ended(body)
    # a report that comes too late is not an error of the request: answer 200 with the verdict, so that clients need not treat it as a
    # failure
    worker = given(body.worker)
    if worker is None:
        done = await _service(call).complete_accepted(_claimant(call, given(body.attempt)), ended, call.may_see)
    else:
        done = await _service(call).complete(_own(call, worker), call.path["id"], _number(given(body.attempt)), ended, call.may_see)
    return answer(CompleteAnswer(AttemptVerdict(done.verdict), done.state))


async def complete_many(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_complete_many)
    worker = await _worker(call)
    named: set[tuple[str, int]] = set()
    reports = []
    for index, each in enumerate(body.items):
        if (each.task, each.attempt) in named:
            detail = f"task {each.task} is reported on twice; say once how an attempt ended"
            raise Refusal(INVALID, detail, faults=[Fault(detail, pointer=f"/items/{index}")])
        named.add((each.task, each.attempt))
        reports.append(Report(each.task, each.attempt, _ended(each)))
    done = await _service(call).complete_many(worker.id, reports, call.may_see)
    items = []
    for report, completed in zip(reports, done, strict=True):
        verdict, state = (None, None) if completed is None else (AttemptVerdict(completed.verdict), completed.state)
        items.append(CompleteManyItem(report.task, verdict, state))
    return answer(CompleteManyAnswer(items))


async def progress(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_progress)
    _without_nul(body.text)
    worker, fraction, attempt, service = given(body.worker), given(body.fraction), given(body.attempt), _service(call)
    if worker is None:
        said = (fraction, body.text, given(body.extend))
        return _reported(await service.hear(_claimant(call, attempt), *said, call.may_see))
    if fraction is None:
        raise _missing("fraction", "say how far the attempt is")
    if given(body.extend) is not None:
        detail = "extend is for work that was accepted with 202; a worker renews its lease instead"
        raise Refusal(INVALID, detail, faults=[Fault(detail, pointer="/extend")])
    return _reported(await service.progress(_own(call, worker), call.path["id"], _number(attempt), fraction, body.text, call.may_see))


async def append_logs(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_logs)
    report = await _service(call).owns(body.worker, call.path["id"], body.attempt, call.may_see)
    if report.verdict is SettleVerdict.ACCEPTED:
        await call.app.output.keep(call.path["id"], body.attempt, body.text)
    return _reported(report)


# ---- what is asked ----


def _service(call: Call) -> PullService:
    return call.shared.pull


def _claimant(call: Call, attempt: int | None) -> Claimant:
    """Return who reports on accepted work: by a callback token, or by the attempt's number."""
    fence = None if call.permit is None else call.permit.fence
    return Claimant(call.path["id"], attempt=attempt if fence is not None else _number(attempt), fence=fence)


def _own(call: Call, worker: str) -> str:
    """Refuse a callback token that speaks for a worker: it is for accepted work only."""
    if call.permit is not None:
        raise Refusal(FORBIDDEN, "a callback token reports on accepted work; leave out worker")
    return worker


def _number(attempt: int | None) -> int:
    if attempt is None:
        raise _missing("attempt", "say which attempt this is about; its request had it in the header Duetime-Attempt")
    return attempt


def _missing(field: str, what: str) -> Refusal:
    detail = f"{field} is missing: {what}"
    return Refusal(INVALID, detail, faults=[Fault(detail, pointer=f"/{field}")])


async def _worker(call: Call) -> PullWorker:
    """Return the worker in the address. One with a handler that the caller's token is not for is answered as one that has left."""
    if not is_id(call.path["id"]):
        raise Refusal(NO_WORKER, f"{call.path['id'][:80]!r} is not the id of a pull worker; POST /v1/workers gives one")
    try:
        worker = await _service(call).get(call.path["id"])
    except LeaseOver as over:
        raise _over(over) from None
    if not all(map(call.may_see, worker.slots)):
        raise _over(lease_over(worker.id))
    return worker


async def _optional(call: Call, decoder: msgspec.json.Decoder[S]) -> S:
    """Read a body whose fields are all optional, so that the body is too."""
    data = await call.data(call.shared.limits.body)
    return decode(decoder, data if data.strip() else b"{}")


def _offer(handler: str, body: OfferBody) -> Offer:
    retry = given(body.retry)
    schema = given(body.schema)
    keep = given(body.keep)
    doc = given(body.doc)
    if doc is not None:
        _without_nul(doc)
    wrong = None if schema is None else fault_in(schema)
    if wrong is not None:
        detail = f"the schema of {handler} cannot be used: {wrong}"
        escaped = handler.replace("~", "~0").replace("/", "~1")
        raise Refusal(INVALID, detail, faults=[Fault(detail, pointer=f"/handlers/{escaped}/schema")])
    return Offer(
        slots=body.slots,
        schema=None if schema is None else msgspec.json.encode(schema),
        doc=doc,
        timeout=given(body.timeout),
        retry=None if retry is None else RetryPolicy(**given_fields(retry)),
        keep=None if keep is None else {State(state): seconds for state, seconds in given_fields(keep).items()},
    )


def _ended(body: CompleteBody | EndedBody) -> Ended:
    """Turn a worker's report into an `Ended`. Fields that do not go together are refused."""
    result, error, delay = given(body.result), given(body.error), given(body.delay)
    _only("result", result is not None, body.outcome, Saying.SUCCEEDED)
    _only("error", error is not None, body.outcome, Saying.FAILED, Saying.RETRY)
    _only("fatal", body.fatal, body.outcome, Saying.FAILED)
    _only("delay", delay is not None, body.outcome, Saying.RETRY)
    match body.outcome:
        case Saying.SUCCEEDED:
            return Ended(Outcome.SUCCEEDED, result=None if result is None else _result(result))
        case Saying.FAILED:
            return Ended(Outcome.FATAL if body.fatal else Outcome.FAILED, error=_error(error, "Error"))
        case Saying.RETRY:
            return Ended(Outcome.RETRY_LATER, error=_error(error, "RetryLater"), delay=RETRY_AFTER if delay is None else delay)
        case Saying.RELEASED:
            return Ended(Outcome.RELEASED)


def _only(field: str, is_given: bool, outcome: Saying, *allowed: Saying) -> None:
    if is_given and outcome not in allowed:
        detail = f"{field} goes with the outcome {' or '.join(allowed)}, got {outcome}; leave it out"
        raise Refusal(INVALID, detail, faults=[Fault(detail, pointer=f"/{field}")])


def _result(value: Any) -> bytes:
    return encode_result(value)


def _error(body: ErrorBody | None, usual: str) -> ErrorInfo:
    return ErrorInfo(usual, "") if body is None else ErrorInfo(body.type, body.message, body.details, body.location)


def _without_nul(text: str) -> None:
    if "\0" in text:
        raise Refusal(INVALID, "a text must not contain the character NUL", faults=[Fault("contains NUL", pointer="/text")])


def _over(error: LeaseOver) -> Refusal:
    return Refusal(LEASE_OVER, str(error))


# ---- what is answered ----


def _reported(report: ReportAnswer) -> Response:
    return answer(ToldAnswer(AttemptVerdict(report.verdict), report.cancelling))


ROUTES = (
    Route(
        name="register_worker", method="POST", path="/v1/workers", endpoint=register, scope=Scope.WORK,
        summary="Register a worker in any language, with the handlers that it has.",
        body=NewWorkerBody, answer=WorkerAnswer, status=201,
    ),
    Route(
        name="claim_tasks", method="POST", path="/v1/workers/{id}/claim", endpoint=claim, scope=Scope.WORK,
        summary="Claim due tasks for a worker, and renew its lease. Waits for some if asked to.",
        body=ClaimBody, optional_body=True, answer=ClaimAnswer, problems=(404, 410),
    ),
    Route(
        name="renew_worker", method="POST", path="/v1/workers/{id}/renew", endpoint=renew, scope=Scope.WORK,
        summary="Renew a worker's lease; answered with what it has to stop.",
        body=RenewBody, optional_body=True, answer=RenewAnswer, problems=(404, 410),
    ),
    Route(
        name="complete_tasks", method="POST", path="/v1/workers/{id}/complete", endpoint=complete_many, scope=Scope.WORK,
        summary="Say how up to 1,000 attempts of a worker ended, in one commit; answered for each.",
        body=CompleteManyBody, answer=CompleteManyAnswer, problems=(404, 410),
    ),
    Route(
        name="dismiss_worker", method="DELETE", path="/v1/workers/{id}", endpoint=dismiss, scope=Scope.WORK,
        summary="Let a worker go; what it holds goes back, and no try is used up.", status=204, problems=(404, 410),
    ),
    Route(
        name="complete_task", method="POST", path="/v1/tasks/{id}/complete", endpoint=complete, scope=Scope.WORK, callback=True,
        summary="Say how an attempt ended. Repeating it is harmless; a word that comes too late changes nothing.",
        body=CompleteBody, answer=CompleteAnswer, problems=(404,),
    ),
    Route(
        name="note_progress", method="POST", path="/v1/tasks/{id}/progress", endpoint=progress, scope=Scope.WORK, callback=True,
        summary="Say how far an attempt is.", body=ProgressBody, answer=ToldAnswer, problems=(404,),
    ),
    Route(
        name="append_logs", method="POST", path="/v1/tasks/{id}/logs", endpoint=append_logs, scope=Scope.WORK,
        summary="Add to what an attempt printed.", body=LogsBody, answer=ToldAnswer, problems=(404, 409),
    ),
)  # fmt: skip
