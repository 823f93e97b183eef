"""What a server does for pull workers: workers in any language that claim tasks over HTTP and report how they ended.

A pull worker has a lease, as every worker has; the server that gets one of its requests renews it. Servers remember nothing about pull
workers, so any number of servers may run behind a load balancer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from duetime.clock import SECOND, Instant
from duetime.errors import InvalidValue, StoreUnavailable, TaskNotFound
from duetime.ids import is_id, new_id
from duetime.model.figures import STALE_WRITES, FigureKey
from duetime.model.gate import Gates
from duetime.model.lifecycle import conclude, without_parking
from duetime.model.limit import Ask, LimitRecord
from duetime.model.outcome import Ended, Outcome, Settlement, SettleVerdict
from duetime.model.retry import RetryPolicy
from duetime.model.task import FINAL, ErrorInfo, TaskRecord
from duetime.runtime.slices import off_loop
from duetime.store import Store
from duetime.store.accepting import OpenAttempt
from duetime.store.pull_workers import PullWorker, RunningTask
from duetime.store.values import Declaration, Progress
from duetime.targets.schema import MOST_STEPS, Misfit, Steps, TooLong, misfit
from duetime.worker.failures import FailureLog
from duetime.worker.metrics import Tally
from duetime.worker.pull.accepted import Claimant, hear, open_attempt
from duetime.worker.pull.claim_wait import ClaimWait
from duetime.worker.pull.values import (
    Completed,
    Offer,
    PulledAttempt,
    Renewed,
    Report,
    ReportAnswer,
    as_running,
    cancelling,
    declaration,
    free_slots,
    lease_over,
    server_claim_number,
    timed_out,
)

MaySee = Callable[[str], bool]

logger = logging.getLogger("duetime.pull")

RENEW_SHARE = 3  # renewals that fit into a lease: one may be late and one be lost
WAIT_SHARE = 0.5  # of the lease: how long a claim may wait, since it renews the lease only when it begins and ends
CLAIMS_AT_ONCE = 8  # of all pull workers of a server: one hint may wake them together
PARKED_EVERY = 5.0  # seconds between two looks for parked tasks that fit a worker
MOST_LOOKS = 10_000  # workers whose last look is remembered
LIMITED_EVERY = SECOND // 2  # how soon to look again for what a limit keeps a worker from
ON_LOOP = 5_000  # steps of a check that the event loop takes itself, about 10 ms
KNOWN_FOR = 5.0  # seconds after which the declarations of handlers are read again

RELEASED = Ended(Outcome.RELEASED)

# What a pull worker itself can have reported; the other outcomes come from a server or a reaper.
OWN_REPORTS = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.FATAL, Outcome.RETRY_LATER, Outcome.CANCELLED})


class PullService:
    """Claims, renews and completes on behalf of pull workers. `store` is called each time, because an App may be opened on another one."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._declared: dict[str, Declaration] = {}
        self._schemas: dict[str, dict[str, Mapping[str, Any]]] = {}  # of each handler, by the digest of the declaration
        self._parked_looks: dict[str, float] = {}  # when parked tasks were last looked for, by worker
        self._read_at = -KNOWN_FOR
        self._claiming = asyncio.Semaphore(CLAIMS_AT_ONCE)
        self._waiting: set[asyncio.Event] = set()
        self._closed = False
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._stale = 0
        self._failures = FailureLog(lambda seconds, call: asyncio.get_running_loop().call_later(seconds, call))

    def totals(self) -> dict[FigureKey, int]:
        """Return the metrics of attempts whose end was reported to this server."""
        totals = {key: count for handler, tally in self._tallies.items() for key, count in tally.totals(handler)}
        return totals | {FigureKey(STALE_WRITES): self._stale}

    def close(self) -> None:
        """End all waiting claims: the server stops."""
        self._closed = True
        self._failures.tell()
        for woken in self._waiting:
            woken.set()

    # ---- registering ----

    async def register(self, name: str, offers: Mapping[str, Offer], lease: float) -> PullWorker:
        """Register a worker. Declare those of its handlers that nobody has declared, or of which it says something new."""
        store = self._store()
        await self._read_declarations()
        meant = {handler: declaration(handler, offer, self._declared.get(handler)) for handler, offer in offers.items()}
        changed = [each for handler, each in meant.items() if each.digest not in self._schemas.get(handler, {})]
        if changed:
            await store.declare(changed)
            self._read_at = -KNOWN_FOR
        worker = PullWorker(
            id=new_id(),
            name=name,
            slots={handler: offer.slots for handler, offer in offers.items()},
            lease=lease,
            declared={handler: meant[handler].digest for handler, offer in offers.items() if offer.schema is not None},
        )
        await store.register_pull_worker(worker)
        return worker

    async def get(self, id: str) -> PullWorker:
        """Return a pull worker; LeaseOver if there is none."""
        worker = await self._store().pull_worker(id) if is_id(id) else None
        if worker is None:
            raise lease_over(id)
        return worker

    async def unregister(self, worker: PullWorker) -> None:
        """Forget a worker that leaves. What it runs goes back and uses up no try."""
        await self._store().unregister(worker.id)

    def lease_until(self, worker: PullWorker) -> Instant:
        return self._store().now() + round(worker.lease * SECOND)

    async def renew(self, worker: PullWorker, *, running: Collection[str] | None = None, answered: int | None = None) -> Renewed:
        """Renew a worker's lease, end what has run for too long, and compare what it runs with what the store has of it.

        `running` names the tasks that the worker runs, and those whose end it has reported without an answer. With it, the answer also
        names tasks that the store has taken away. `answered` is the newest claim whose answer has arrived: older attempts that the
        worker does not know never reached it, and go back.
        """
        await self._beat(worker)
        attempts, late = await self._in_time(worker)
        if running is None:
            return Renewed(self.lease_until(worker), cancelling(attempts), late)
        if answered is not None:
            strays = [each for each in attempts if each.task.claim <= answered and each.task.id not in running]
            await self._end(worker.id, [(each, RELEASED) for each in strays])
            attempts = [each for each in attempts if each not in strays]
        known = {each.task.id for each in attempts}
        return Renewed(self.lease_until(worker), cancelling(attempts), [task for task in running if task not in known])

    async def _beat(self, worker: PullWorker) -> None:
        if not await self._store().renew_pull_worker(worker.id):
            raise lease_over(worker.id)

    # ---- claiming ----

    async def claim(
        self, worker: PullWorker, limit: int, *, number: int | None = None, wait: float = 0.0, gone: asyncio.Future[None] | None = None
    ) -> list[PulledAttempt]:
        """Claim tasks for a worker, at most `limit` and as its slots allow. Wait for some, but not when it has gone or the server stops.

        A claim that is repeated with the same number, here or at another server, returns the same tasks without those that have ended.
        A claim without a number cannot be repeated: if the worker has gone meanwhile, its tasks go back.
        """
        await self._beat(worker)
        loop = asyncio.get_running_loop()
        end = loop.time() + min(wait, worker.lease * WAIT_SHARE)
        with ClaimWait(self._store(), gone) as waiting:
            self._waiting.add(waiting.woken)
            try:
                while True:
                    claimed = await self._look(worker, limit, number, waiting)
                    if claimed or not await self._until_due(waiting, end):
                        break
            finally:
                self._waiting.discard(waiting.woken)
        if claimed and waiting.gone and number is None:
            await self._end(worker.id, [(each, RELEASED) for each in claimed])
            return []
        if wait:
            with contextlib.suppress(StoreUnavailable):  # what was claimed must arrive; half of the lease is left
                await self._beat(worker)
        return claimed

    async def _until_due(self, waiting: ClaimWait, end: float) -> bool:
        """Wait until there may be work; return False if the time is over, the worker has gone or the server stops."""
        loop = asyncio.get_running_loop()
        while (left := end - loop.time()) > 0 and not self._closed and not waiting.gone:
            waiting.woken.clear()
            pause = waiting.pause(loop.time())
            if pause <= 0:
                return True
            await waiting.wait(min(left, pause))
        return False

    async def _look(self, worker: PullWorker, limit: int, number: int | None, waiting: ClaimWait) -> list[PulledAttempt]:
        """Claim once; but return what the worker already runs under this number, if there is any."""
        seconds = asyncio.get_running_loop().time()
        reasons = waiting.timing.begin(self._store().now(), seconds)
        await self._know(worker.slots, worker.declared)  # before the claim: nothing that can fail may follow it
        attempts, _ = await self._in_time(worker)
        again = [each.task.id for each in attempts if each.task.claim == number]
        if again:
            return [self._bounded(task) for task in await self._store().running_tasks(worker.id, again)]
        wants = free_slots(worker, attempts)
        if self._store().traits.atomic != "call":
            await self._refuse_limited(wants)
        waiting.full = not wants
        async with self._claiming:
            if not wants or waiting.gone or self._closed:  # nothing is claimed for a worker that has gone
                waiting.timing.found(seconds)
                return []
            claim = await self._store().claim_for(worker.id, server_claim_number() if number is None else number, wants, limit)
            if not claim.tasks and worker.declared and self._parked_due(worker.id, seconds):
                limits = await self._store().limits()
                bound = {handler for each in limits if not each.is_counted for handler in each.uses}  # only `claim_for` keeps these
                wanted = {handler: min(want, limit) for handler, want in wants.items() if handler not in bound}
                parked = await self._store().claim_parked(worker.id, number or server_claim_number(), worker.declared, wanted)
                claim = msgspec.structs.replace(claim, tasks=parked.tasks)
        if not claim.tasks:
            waiting.timing.found_nothing(reasons, seconds, now=claim.now, next_at=claim.next_at)
            if claim.next_at is not None:
                waiting.timing.know(claim.next_at, self._store().now())
            if await self._lack(worker, wants):
                waiting.full = True  # what ends somewhere may make room
                waiting.timing.know(self._store().now() + LIMITED_EVERY, self._store().now())
        claimed = await self._ungated(worker, [self._bounded(task) for task in as_running(claim, number)])
        return await self._fitting(worker, claimed) if worker.declared else claimed

    async def _refuse_limited(self, wants: Mapping[str, int]) -> None:
        """Raise InvalidValue for a handler with a limit, where claims and limits are not in one place that could count them together."""
        for limit in await self._store().limits():
            limited = sorted(wants.keys() & limit.uses.keys())
            if limited:
                raise InvalidValue(
                    f"{limited[0]} has the limit {limit.name} of the whole fleet, which pull workers cannot keep on this store; "
                    "leave it out of the slots and run it in a worker of Duetime"
                )

    async def _lack(self, worker: PullWorker, wants: Mapping[str, int]) -> bool:
        """Let those who have idle permits know what limits keep a worker from; return whether there is such a limit.

        A worker that could run nothing anyway lacks nothing, or others would keep to their part for its sake.
        """
        store = self._store()
        now, asks, lacking = store.now(), [], False
        for limit in await store.limits():
            if limit.is_counted:
                continue  # the claim itself keeps back what it does not let start
            left = limit.running_at(now) - limit.out
            kept_from = [handler for handler in wants.keys() & limit.uses.keys() if limit.uses[handler] > left]
            due = [handler for handler in kept_from if (await store.handler_load(handler)).due]
            need = min(sum(limit.uses[handler] * wants[handler] for handler in due), limit.running_at(now))
            if need != next((holder.wanted for holder in limit.holders if holder.worker == worker.id), 0):
                asks.append(_ask(limit, need))
            lacking = lacking or bool(due)
        await store.allot(worker.id, now, asks)
        return lacking

    async def _ungated(self, worker: PullWorker, claimed: list[PulledAttempt]) -> list[PulledAttempt]:
        """Give back what a gate holds that came into force during the claim: a pull worker does not check gates itself."""
        store = self._store()
        gates = await store.gates() if claimed else Gates()
        if not gates:
            return claimed
        now = store.now()
        shut = [each for each in claimed if gates.holding(each.task.handler, each.task.collection, now) is not None]
        await self._end(worker.id, [(each, RELEASED) for each in shut])
        return [each for each in claimed if each not in shut]

    async def _fitting(self, worker: PullWorker, claimed: list[PulledAttempt]) -> list[PulledAttempt]:
        """Park what does not fit the parameters that the worker has declared."""
        unfit: list[tuple[PulledAttempt, Ended]] = []
        for each in claimed:
            handler = each.task.handler
            schema = self._schemas.get(handler, {}).get(worker.declared.get(handler, ""))
            found = None if schema is None else await _misfit(schema, msgspec.json.decode(each.task.payload))
            if found is not None:
                error = ErrorInfo("InvalidPayload", f"{handler}: {found.path} {found.problem}")
                parked = Ended(Outcome.PARKED, error=error, refused_by=worker.declared[handler])
                unfit.append((each, without_parking(parked, each.task.meta)))
        await self._end(worker.id, unfit)
        refused = {each.task.id for each, _ in unfit}
        return [each for each in claimed if each.task.id not in refused]

    def _parked_due(self, worker: str, seconds: float) -> bool:
        """Return whether it is time to look for parked tasks that fit a worker: not at every claim, which mostly finds none."""
        if seconds < self._parked_looks.get(worker, -PARKED_EVERY) + PARKED_EVERY:
            return False
        if len(self._parked_looks) >= MOST_LOOKS:
            self._parked_looks.clear()
        self._parked_looks[worker] = seconds
        return True

    # ---- what pull workers report ----

    async def complete(self, worker: str, task: str, attempt: int, ended: Ended, may_see: MaySee) -> Completed:
        """Record how an attempt ended, if the worker runs exactly this attempt. Return the verdict and the task's state.

        A task of a handler that the caller `may_see` nothing of counts as unknown.
        """
        own = await self._own(worker, task, attempt, may_see)
        if own is not None:
            if own.task.cancelling and ended.outcome is Outcome.RELEASED:
                ended = Ended(Outcome.CANCELLED)
            [(settlement, verdict)] = await self._end(worker, [(own, ended)])
            # the store may have turned going back into a cancel; a final state is as reported
            if verdict is SettleVerdict.ACCEPTED and settlement.state in FINAL:
                return Completed(verdict, settlement.state)
            if verdict is SettleVerdict.ACCEPTED:
                return Completed(verdict, (await self._record(task)).state)
        record, verdict = await self._record(task), await self._reported_before(worker, task, attempt, ended.outcome)
        if verdict is SettleVerdict.STALE:
            self._stale += 1
            logger.warning("pull worker %s: attempt %d of task %s is no longer its own; nothing was changed", worker[:80], attempt, task)
        return Completed(verdict, record.state)

    async def complete_many(self, worker: str, reports: Sequence[Report], may_see: MaySee) -> list[Completed | None]:
        """Record how many attempts ended, in one write; None for a task that is not there.

        What the worker does not run is looked at one by one, as `complete` does.
        """
        known = is_id(worker) and await self._store().pull_worker(worker) is not None
        running = await self._store().running_tasks(worker, [report.task for report in reports]) if known else []
        own = {(task.id, task.attempt): task for task in running if may_see(task.handler)}
        await self._know({task.handler for task in own.values()})
        ends: list[tuple[PulledAttempt, Ended]] = []
        for report in reports:
            task = own.get((report.task, report.attempt))
            if task is not None:
                returned = task.cancelling and report.ended.outcome is Outcome.RELEASED
                ends.append((self._bounded(task), Ended(Outcome.CANCELLED) if returned else report.ended))
        settled = dict(zip([(end.task.id, end.task.attempt) for end, _ in ends], await self._end(worker, ends), strict=True))
        answers: list[Completed | None] = []
        for report in reports:
            settlement, verdict = settled.get((report.task, report.attempt), (None, SettleVerdict.STALE))
            if settlement is not None and verdict is SettleVerdict.ACCEPTED and settlement.state in FINAL:
                answers.append(Completed(verdict, settlement.state))
                continue
            try:
                if settlement is not None and verdict is SettleVerdict.ACCEPTED:
                    answers.append(Completed(verdict, (await self._record(report.task)).state))
                else:
                    answers.append(await self.complete(worker, report.task, report.attempt, report.ended, may_see))
            except TaskNotFound:
                answers.append(None)
        return answers

    # ---- what is reported on accepted work ----

    async def complete_accepted(self, claimant: Claimant, ended: Ended, may_see: MaySee) -> Completed:
        """Record how an attempt ended whose work somebody outside has accepted, also if that is not known here yet."""
        task = claimant.task
        found = await self._found(claimant, may_see)
        if found is not None:
            if found.task.cancelling and ended.outcome is Outcome.RELEASED:
                ended = Ended(Outcome.CANCELLED)
            [(_, verdict)] = await self._end(None, [(PulledAttempt(found.task, found.deadline_at or 0), ended)])
            if verdict is SettleVerdict.ACCEPTED:
                return Completed(verdict, (await self._record(task)).state)
        record = await self._record(task)
        verdict = SettleVerdict.STALE
        for attempt in await self._store().attempts(task, after=claimant.number - 1, limit=1):
            if attempt.attempt == claimant.number and attempt.outcome in OWN_REPORTS:
                verdict = SettleVerdict.ALREADY
        self._stale += verdict is SettleVerdict.STALE
        return Completed(verdict, record.state)

    async def hear(self, claimant: Claimant, fraction: float | None, text: str, extend: float | None, may_see: MaySee) -> ReportAnswer:
        """Note how far accepted work is, and that somebody still works on it."""
        found = await self._found(claimant, may_see)
        if found is None:
            return ReportAnswer(SettleVerdict.STALE, False)
        heard = await hear(self._store(), found, fraction, text, extend)
        return ReportAnswer(heard.verdict, heard.cancelling)

    async def _found(self, claimant: Claimant, may_see: MaySee) -> OpenAttempt | None:
        """Return the attempt that is reported on, if it runs; TaskNotFound if there is no such task, or none for the caller."""
        record = await self._record(claimant.task)
        if not may_see(record.handler):
            raise _no_task(claimant.task)
        await self._know([record.handler])
        return await open_attempt(self._store(), claimant, self._is_request)

    def _is_request(self, handler: str) -> bool:
        """Return whether a handler's attempts are requests: their ends may be reported before their acceptance is stored."""
        declared = self._declared.get(handler)
        return declared is not None and declared.isolation == "http"

    async def _reported_before(self, worker: str, task: str, attempt: int, outcome: Outcome) -> SettleVerdict:
        """Return whether a report is a repeat or too late. An attempt that ran out of time was ended for the worker, not by it."""
        own = OWN_REPORTS | ({Outcome.RELEASED} if outcome is Outcome.RELEASED else set())
        for record in await self._store().attempts(task, after=attempt - 1, limit=1):
            if record.attempt == attempt and record.worker == worker and record.outcome in own:
                return SettleVerdict.ALREADY
        return SettleVerdict.STALE

    async def progress(self, worker: str, task: str, attempt: int, fraction: float, text: str, may_see: MaySee) -> ReportAnswer:
        """Note how far an attempt is."""
        answer = await self.owns(worker, task, attempt, may_see)
        if answer.verdict is SettleVerdict.ACCEPTED:
            await self._store().progress(worker, [Progress(task, attempt, fraction, text)])
        return answer

    async def owns(self, worker: str, task: str, attempt: int, may_see: MaySee) -> ReportAnswer:
        """Return whether a worker runs exactly this attempt, and whether it has to stop it."""
        own = await self._own(worker, task, attempt, may_see)
        return ReportAnswer(SettleVerdict.STALE, False) if own is None else ReportAnswer(SettleVerdict.ACCEPTED, own.task.cancelling)

    async def _own(self, worker: str, task: str, attempt: int, may_see: MaySee) -> PulledAttempt | None:
        """Return an attempt if the worker runs it; TaskNotFound if there is no such task."""
        # not if the worker has gone, and not for a worker that is no pull worker: nobody else may report for it
        known = is_id(worker) and await self._store().pull_worker(worker) is not None
        for running in await self._store().running_tasks(worker, [task]) if known else ():
            if running.attempt == attempt and may_see(running.handler):
                await self._know([running.handler])
                return self._bounded(running)
        if not may_see((await self._record(task)).handler):
            raise _no_task(task)
        return None

    async def _record(self, task: str) -> TaskRecord:
        [record] = await self._store().get([task])
        if record is None:
            raise _no_task(task)
        return record

    # ---- ending attempts ----

    async def _in_time(self, worker: PullWorker) -> tuple[list[PulledAttempt], list[str]]:
        """End attempts that have run out of time. Return the others, and the tasks of those that were ended."""
        running = await self._store().running_tasks(worker.id, payloads=False)
        await self._know([task.handler for task in running])
        attempts = [self._bounded(task) for task in running]
        now = self._store().now()
        late = [attempt for attempt in attempts if attempt.deadline_at <= now]
        await self._end(worker.id, [(attempt, timed_out(attempt)) for attempt in late])
        return [attempt for attempt in attempts if attempt.deadline_at > now], [attempt.task.id for attempt in late]

    async def _end(self, worker: str | None, ends: Sequence[tuple[PulledAttempt, Ended]]) -> list[tuple[Settlement, SettleVerdict]]:
        """End attempts of a worker, or accepted ones (None); the store checks that they are."""
        if not ends:
            return []
        store, now = self._store(), self._store().now()
        tasks = [attempt.task for attempt, _ in ends]
        settlements = [
            conclude(task, ended, self._policy(task), started_at=task.claimed_at, now=now, chance=random.random())
            for task, (_, ended) in zip(tasks, ends, strict=True)
        ]
        verdicts = await (store.complete(settlements) if worker is None else store.settle(worker, settlements))
        for task, settlement, verdict in zip(tasks, settlements, verdicts, strict=True):
            if verdict is SettleVerdict.ACCEPTED:
                self._tallies[task.handler].note(settlement, task.due_at)
                self._failures.note(task.handler, settlement)
        schedules = {task.schedule for task in tasks if task.schedule is not None}
        if schedules:
            await store.wake_schedules(sorted(schedules))
        return list(zip(settlements, verdicts, strict=True))

    # ---- what handlers declare ----

    def _bounded(self, task: RunningTask) -> PulledAttempt:
        declared = self._declared.get(task.handler)
        timeout = task.timeout or (Declaration(name="").timeout if declared is None else declared.timeout)
        return PulledAttempt(task, task.claimed_at + round(timeout * SECOND))

    def _policy(self, task: RunningTask) -> RetryPolicy:
        declared = self._declared.get(task.handler)
        numbers = task.retry or (b"{}" if declared is None else declared.retry)
        return RetryPolicy().with_numbers(numbers)

    async def _know(self, handlers: Collection[str], declared: Mapping[str, str] = {}) -> None:
        """Read the declarations again if one of these is not known, or what is known has become old."""
        old = asyncio.get_running_loop().time() - self._read_at >= KNOWN_FOR
        unknown = any(digest not in self._schemas.get(handler, {}) for handler, digest in declared.items())
        if handlers and (old or unknown or not self._declared.keys() >= set(handlers)):
            await self._read_declarations()

    async def _read_declarations(self) -> None:
        kept = await self._store().declarations(former=True)
        self._declared = {each.name: each for each in kept}
        self._schemas = {each.name: {} for each in kept}
        for each in kept:
            self._schemas[each.name][each.digest] = msgspec.json.decode(each.schema)
        self._read_at = asyncio.get_running_loop().time()


def _ask(limit: LimitRecord, need: int) -> Ask:
    """Ask for no permits, but say how many a pull worker could use."""
    return Ask(limit=limit.name, declared=limit.declared, uses=limit.uses, held=0, want=0, seen=limit.version, need=need)


async def _misfit(schema: Mapping[str, Any], value: object) -> Misfit | None:
    """Return what in a payload a schema does not allow. A long check is done in a thread; one that is too long lets the payload pass."""
    try:
        return misfit(schema, value, Steps(ON_LOOP))
    except TooLong:
        pass
    try:
        return await off_loop(misfit, schema, value, Steps(MOST_STEPS))
    except TooLong:
        return None


def _no_task(task: str) -> TaskNotFound:
    return TaskNotFound(f"there is no task {task[:80]!r}; it was never submitted, or has been pruned")
