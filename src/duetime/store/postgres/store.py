"""The production store: verbs of the seam on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from duetime.clock import Clock, Instant
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.model.access import AuditEntry, TokenRecord
from duetime.model.figures import FigureKey
from duetime.model.gate import Gate, Gates
from duetime.model.outcome import AttemptRecord, Settlement, SettleVerdict
from duetime.model.query import Page, Query
from duetime.model.rules import DayCalendar
from duetime.model.schedule import ScheduleRecord, Skip
from duetime.model.task import FINAL, NewTask, State, TaskRecord
from duetime.store.access import AuditFilter, AuditPage, TokenVerdict
from duetime.store.output import KeptOutput, OutputChunk, OutputHits, OutputPosition, OutputSearch
from duetime.store.postgres import (
    access,
    callers,
    control,
    figures,
    gates,
    inspection,
    output,
    pull_workers,
    read,
    schedules,
    schema,
    upkeep,
    work,
)
from duetime.store.postgres import requests as named_requests
from duetime.store.postgres.address import Address
from duetime.store.postgres.clock import ServerClock, monotonic
from duetime.store.postgres.connection import LANE_GONE, Database, Link, Rejected
from duetime.store.postgres.lanes import Lanes, keys_of
from duetime.store.postgres.lease import PostgresLease
from duetime.store.postgres.runner import Runner, failure
from duetime.store.postgres.statements import statements
from duetime.store.postgres.submit import Submission, check_due, is_plain, new_tasks, stored_now, with_tasks
from duetime.store.postgres.wakeups import Wakeups
from duetime.store.pull_workers import PullWorker, RunningTask
from duetime.store.requests import NamedRequest, Requested, decide
from duetime.store.schedules import DueSchedules, DutyLease, ScheduleCursor, ScheduleFilter, ScheduleWrite
from duetime.store.shard import Grouping, Lease, Listener
from duetime.store.traits import Traits
from duetime.store.values import (
    Added,
    CancelVerdict,
    ChangeVerdict,
    Claim,
    Counts,
    Declaration,
    Edit,
    HandlerLoad,
    Hint,
    HintKind,
    Inconsistency,
    NewWorker,
    Progress,
    Pruned,
    RunningAttempt,
    WorkerRecord,
)

T = TypeVar("T")

DURABILITY = (
    "A returned write survives a crash of the process and of the server, if the server flushes its commits "
    "(fsync and synchronous_commit on, as is the default); after a fail-over to an asynchronous replica the last ones may be gone."
)
PATIENCE = 600.0  # seconds that a statement may take which looks at everything


class PostgresStore:
    """One schema of one database behind the verbs of `duetime.store.Store`."""

    output_folder: str | None = None

    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        self._address = address
        self._sql = statements(address.schema)
        self._clock = ServerClock(clock)
        self.now: Callable[[], Instant] = self._clock.now  # asked twice per attempt: no call in between
        self.reached: Callable[[], Instant] = self._clock.reached
        self.traits = Traits(
            atomic="call",
            durability=DURABILITY,
            liveness="lease",
            claim_ahead=10_000,
            settles_at_once=2,
            output_batch=output.AT_ONCE,
            retention_steps={state: upkeep.width(state) for state in FINAL},
        )
        self._door = asyncio.Lock()
        self._whereabouts = ""
        self._database: Database | None = None

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> PostgresStore:
        return cls(Address.from_url(url), clock=clock)

    @property
    def url(self) -> str:
        return self._address.shown

    async def open(self, *, migrate: bool = True) -> None:
        async with self._door:
            if self._database is None:
                await self._open(migrate)

    async def _open(self, migrate: bool) -> None:
        database = Database(self._address)
        try:
            async with database.link() as link:
                found = await schema.versions(link, self._address)
                if found is None or not found.current:
                    if not migrate:
                        raise schema.refuse_old(self._address, found)
                    await schema.migrate(link, self._address, self._clock.now())
                await self._learn(link)
            lanes = Lanes(database, self._sql)
            await lanes.load()
        except BaseException:
            await database.close()
            raise
        database.repair = self._make_missing_partitions
        database.arrive = lanes.restore
        self._database, self._lanes = database, lanes
        self._patient = Database(msgspec.structs.replace(self._address, timeout=max(PATIENCE, self._address.timeout), connections=2))
        self._wakeups = Wakeups(self._address)
        self._claims = work.Claims(database, self._sql, lanes, self._clock, polls=not self._address.notify)

    async def _learn(self, link: Link) -> None:
        """Ask the server for its time and for what tells this store from others."""
        for _ in range(3):  # the first takes longer than its answer is worth
            sent_at = monotonic()
            [[now]] = await link.rows(self._sql.tell_time)
            self._clock.heard(now, sent_at)
        [[self._whereabouts, _, _]] = await link.rows(self._sql.whereabouts)

    async def close(self) -> None:
        self._door = asyncio.Lock()  # a later event loop needs its own
        database, self._database = self._database, None
        if database is not None:
            await self._wakeups.close()
            await self._patient.close()
            await database.close()

    async def ping(self) -> None:
        await self._opened.rows(self._sql.ping)

    def script(self) -> str:
        return schema.script(self._address.schema)

    # ---- submitting ----

    async def add(self, tasks: Sequence[NewTask[object]]) -> Sequence[Added]:
        if not tasks:
            return []
        await self.prepare(tasks)
        added = await self._add_plain(tasks) if is_plain(tasks) else None
        return await self._with_lanes(lambda: self._add_carefully(tasks)) if added is None else added

    async def add_requested(self, requested: Sequence[Requested]) -> Sequence[Added | NamedRequest]:
        if not requested:
            return []
        tasks = [task for task, _ in requested]
        await self.prepare(tasks)
        added = await self._add_plain(tasks, named_requests.columns(requested)) if is_plain(tasks) else None
        return await self._with_lanes(lambda: self._add_requested_carefully(requested)) if added is None else added

    async def _with_lanes(self, add: Callable[[], Awaitable[T]]) -> T:
        """Add tasks, a second time if a lane is gone."""
        try:
            return await add()
        except Rejected as rejection:
            if rejection.state != LANE_GONE:
                raise
        await self._lanes.restore(self._opened)
        return await add()

    async def _add_plain(self, tasks: Sequence[NewTask[object]], requests: Sequence[Any] = ()) -> Sequence[Added] | None:
        """Add tasks that are most probably all new, in one statement; None if one of them is not, or the wake-up after it failed."""
        sql = self._sql
        statement = sql.add_requested if requests else sql.add_new
        parameters = [*new_tasks(tasks, self._lanes), self._clock.parameter, *requests]
        telling = tasks[0].due_at is None and tasks[0].delay == 0 and self._wakeups.may_send()
        if telling:
            statement = sql.add_requested_and_tell if requests else sql.add_new_and_tell
            parameters = [*parameters, self._wakeups.channel, self._wakeups.due_now]
        try:
            [[now]] = await self._opened.rows(with_tasks(self._sql, statement), parameters)
        except Rejected:
            if telling:
                self._hint(HintKind.DUE)  # they may be stored all the same
            return None
        hint = self._wakeups.tell if telling else self._wakeups.send
        hint(HintKind.DUE, max(now, min([now + task.delay if task.due_at is None else task.due_at for task in tasks])))
        return stored_now(tasks, now)

    async def _add_carefully(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        """Add tasks that may meet others."""

        async def job(run: Runner) -> tuple[list[Added], Instant | None]:
            submission = Submission(run, self._sql, self._lanes, self._clock.parameter, lock_parents=True)
            return await submission.add(tasks), submission.earliest

        added, earliest = await self._opened.transaction(job)
        if earliest is not None:
            self._hint(HintKind.DUE, earliest)
        return added

    async def _add_requested_carefully(self, requested: Sequence[Requested]) -> list[Added | NamedRequest]:
        """Add tasks with their requests, of which some may be known. All requests come before all tasks, as everywhere, so that no two
        transactions wait for each other.
        """

        async def job(run: Runner) -> tuple[list[Added | NamedRequest], Instant | None]:
            named = [request for _, request in requested if request is not None]
            decided = decide(requested, await named_requests.note(run, self._sql, named, self._clock.parameter) if named else [])
            submission = Submission(run, self._sql, self._lanes, self._clock.parameter, lock_parents=True)
            added = await submission.add(decided.tasks)
            await named_requests.correct(run, self._sql, decided, added)
            return decided.answered(added), submission.earliest

        answers, earliest = await self._opened.transaction(job)
        if earliest is not None:
            self._hint(HintKind.DUE, earliest)
        return answers

    async def prepare(self, tasks: Sequence[NewTask[object]]) -> None:
        check_due(tasks, self._clock.now())
        await self._opened_lanes.ensure(keys_of(tasks))

    async def add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> list[Added]:
        try:
            return await self._add_on(connection, tasks)
        except StoreUnavailable as error:
            failed = None if error.__cause__ is None else failure(error.__cause__)
            if failed is not None and failed.state == LANE_GONE:
                await self._lanes.restore(self._opened)  # the caller's next try finds it
            raise

    async def _add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> list[Added]:
        async with callers.callers_transaction(connection, self._sql, self.url, self._whereabouts) as run:
            if not tasks:
                return []
            await self.prepare(tasks)
            submission = Submission(run, self._sql, self._lanes, self._clock.parameter, lock_parents=False)
            added = await submission.add(tasks)
            if self._address.notify and submission.earliest is not None and submission.earliest <= self._clock.now() + work.LONGEST_POLL:
                await run.rows(self._sql.notify, [self._wakeups.channel, self._wakeups.caught])
            return added

    async def declare(self, declarations: Sequence[Declaration]) -> None:
        if declarations:
            await self._opened.transaction(lambda run: control.declare(run, self._sql, declarations, self._clock.now()))

    async def declarations(self) -> list[Declaration]:
        return await control.declarations(self._opened, self._sql)

    # ---- working ----

    async def register(self, worker: NewWorker) -> Lease:
        await work.register(self._opened, self._sql, worker, self._clock.parameter)
        return PostgresLease(worker.id, worker.lease, self._address, self._clock)

    async def unregister(self, worker: str) -> None:
        released = await self._opened.transaction(lambda run: work.unregister(run, self._sql, worker, self._clock.parameter))
        self._claims.forget(worker)
        if released:
            self._hint(HintKind.DUE)
        self._hint(HintKind.GATES)  # a barrier may have waited for this worker only
        await self._lanes.publish()  # or the next worker would walk over all that this one has taken

    async def claim(self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0) -> Claim:
        self._opened  # noqa: B018  raises if it is not open
        return await self._claims.claim(worker, claim, wants, total, ahead)

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        self._opened  # noqa: B018
        if not settlements:
            return []
        settled = await self._claims.settle(worker, settlements)
        if settled.earliest is not None:
            self._hint(HintKind.DUE, settled.earliest)
        if settled.finished:
            self._hint(HintKind.DONE)
        return settled.verdicts

    def grouping(self, worker: str) -> Grouping:
        return work.WholeClaims(self._claims, worker)

    async def progress(self, worker: str, marks: Sequence[Progress]) -> None:
        if marks:
            newest = {mark.id: mark for mark in marks}.values()
            columns = [[m.id for m in newest], [m.attempt for m in newest], [m.fraction for m in newest], [m.text for m in newest]]
            await self._opened.rows(self._sql.progress, [worker, *columns])

    async def confirm_gates(self, worker: str, version: int) -> None:
        await gates.confirm(self._opened, self._sql, worker, version)
        self._hint(HintKind.GATES)

    async def attempts_of(self, worker: str) -> list[RunningAttempt]:
        return await read.attempts_of(self._opened, self._sql, worker)

    async def workers(self) -> list[WorkerRecord]:
        return await read.workers(self._opened, self._sql)

    async def reap(self, worker: str, beat: int) -> int | None:
        taken = await self._opened.transaction(lambda run: work.reap(run, self._sql, worker, beat, self._clock.parameter))
        if taken is not None:
            self._hint(HintKind.GATES)
        if taken:
            self._hint(HintKind.DUE)
            self._hint(HintKind.DONE)
        return taken

    # ---- pull workers ----

    async def register_pull_worker(self, worker: PullWorker) -> None:
        await pull_workers.admit(self._opened, self._sql, worker, self._clock.parameter)

    async def pull_worker(self, id: str) -> PullWorker | None:
        return await pull_workers.by_id(self._opened, self._sql, id)

    async def renew_pull_worker(self, id: str) -> bool:
        return await pull_workers.renew(self._opened, self._sql, id, self._clock.parameter)

    async def claim_for(self, worker: str, claim: int, wants: Mapping[str, int], total: int) -> Claim:
        try:
            return await self.claim(worker, claim, wants, total)
        except Rejected:  # the number is in use, by the primary key of claims
            return Claim([], self._clock.now(), None)
        finally:
            self._claims.forget(worker)  # it may settle at another server and claim there, and then what is remembered here is wrong

    async def running_tasks(self, worker: str, ids: Sequence[str] | None = None) -> list[RunningTask]:
        return [] if ids is not None and not ids else await pull_workers.holdings(self._opened, self._sql, worker, ids)

    # ---- control ----

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        if not ids:
            return []
        verdicts = await control.cancel(self._opened.transaction, self._sql, ids, self._clock.parameter)
        if CancelVerdict.CANCELLING in verdicts:
            self._hint(HintKind.CANCEL)
        if CancelVerdict.CANCELLED in verdicts:
            self._hint(HintKind.DONE)
            self._hint(HintKind.DUE)  # a child may have waited only for its end
        return verdicts

    async def retry(self, ids: Sequence[str]) -> list[ChangeVerdict]:
        if not ids:
            return []
        verdicts = await self._opened.transaction(lambda run: control.retry(run, self._sql, ids, self._clock.parameter))
        self._hint(HintKind.DUE)
        return verdicts

    async def edit(self, edits: Sequence[Edit]) -> list[ChangeVerdict]:
        if not edits:
            return []
        verdicts = await control.edit(self._opened.transaction, self._sql, edits, self._clock.parameter, self._lane_id)
        self._hint(HintKind.DUE)
        return verdicts

    async def _lane_id(self, handler: str, collection: str, priority: int) -> int:
        await self._lanes.ensure([(handler, collection, priority)])
        return self._lanes[handler, collection, priority].id

    async def put_gate(self, gate: Gate) -> int:
        version = await self._opened.transaction(lambda run: gates.put_gate(run, self._sql, gate))
        self._hint(HintKind.GATES)
        return version

    async def remove_gate(self, handler: str, collection: str | None) -> int | None:
        version = await self._opened.transaction(lambda run: gates.remove_gate(run, self._sql, handler, collection, self._clock.parameter))
        self._hint(HintKind.GATES)
        self._hint(HintKind.DUE)
        return version

    async def gates(self) -> Gates:
        return await gates.read_gates(self._opened, self._sql, self._clock.parameter)

    # ---- schedules ----

    async def write_schedules(self, writes: Sequence[ScheduleWrite], *, together: bool = False) -> list[bool]:
        if not writes:
            return []
        await self.prepare([task for write in writes for task in write.tasks])
        now, transact = self._clock.parameter, self._opened.transaction
        written = await schedules.fire(self._opened, self._sql, self._lanes, writes, now)
        if written is None:
            written = await schedules.write(transact, self._sql, self._lanes, writes, now, together=together)
        if any(written.accepted):
            self._hint(HintKind.SCHEDULES, written.next_at)
        if written.due_at is not None:
            self._hint(HintKind.DUE, written.due_at)
        return written.accepted

    async def due_schedules(
        self, limit: int, closed: Sequence[tuple[str, str | None]] = (), *, after: ScheduleCursor | None = None
    ) -> DueSchedules:
        return await schedules.due(self._opened, self._sql, limit, closed, after, self._clock.parameter)

    async def wake_schedules(self, names: Sequence[str]) -> None:
        woken_at = await schedules.wake(self._opened, self._sql, names, self._clock.parameter) if names else None
        if woken_at is not None:
            self._hint(HintKind.SCHEDULES, woken_at)

    async def schedules(self, names: Sequence[str]) -> list[ScheduleRecord | None]:
        return await schedules.by_name(self._opened, self._sql, names) if names else []

    async def list_schedules(self, filter: ScheduleFilter) -> list[ScheduleRecord]:
        return await schedules.page(self._opened, self._sql, filter)

    async def skips(self, schedule: str, limit: int, before: Instant | None = None) -> list[Skip]:
        return await schedules.skips(self._opened, self._sql, schedule, limit, before)

    async def prune_skips(self, before: Instant, limit: int) -> int:
        return await schedules.prune_skips(self._opened, self._sql, before, limit)

    async def put_calendar(self, name: str, calendar: DayCalendar | None) -> bool:
        known = await self._opened.transaction(lambda run: schedules.put_calendar(run, self._sql, name, calendar))
        self._hint(HintKind.SCHEDULES)
        return known

    async def calendars(self) -> dict[str, DayCalendar]:
        return await schedules.calendars(self._opened, self._sql)

    async def take_duty(self, duty: str, holder: str, seconds: float) -> DutyLease:
        return await schedules.take_duty(self._opened, self._sql, duty, holder, seconds, self._clock.parameter)

    async def leave_duty(self, duty: str, holder: str) -> None:
        await schedules.leave_duty(self._opened, self._sql, duty, holder, self._clock.parameter)

    async def duties(self) -> dict[str, DutyLease]:
        return await schedules.duties(self._opened, self._sql, self._clock.parameter)

    # ---- tokens and the audit ----

    async def put_token(self, token: TokenRecord) -> TokenVerdict:
        return await self._opened.transaction(lambda run: access.put_token(run, self._sql, token, self._clock.parameter))

    async def tokens(self) -> list[TokenRecord]:
        return await access.tokens(self._opened, self._sql)

    async def find_tokens(self, ids: Sequence[str]) -> list[TokenRecord | None]:
        return await access.find_tokens(self._opened, self._sql, ids) if ids else []

    async def remove_token(self, id: str) -> bool:
        return await access.remove_token(self._opened, self._sql, id)

    async def note_use(self, uses: Mapping[str, Instant]) -> None:
        if uses:
            await access.note_use(self._opened, self._sql, uses)

    async def add_audit(self, entries: Sequence[AuditEntry]) -> None:
        if entries:
            await access.add_audit(self._opened, self._sql, entries)

    async def audit(self, filter: AuditFilter) -> AuditPage:
        return await access.audit(self._opened, self._sql, filter)

    async def prune_audit(self, before: Instant, limit: int) -> int:
        return await access.prune_audit(self._opened, self._sql, before, limit)

    async def prune_requests(self, before: Instant, limit: int) -> int:
        return await named_requests.prune(self._opened, self._sql, before, limit)

    # ---- what workers count ----

    async def add_figures(self, source: str, number: int, increments: Mapping[FigureKey, int]) -> None:
        if increments:
            now = self._clock.parameter
            await self._opened.transaction(lambda run: figures.add(run, self._sql, source, number, increments, now))

    async def figures(self) -> dict[FigureKey, int]:
        return await figures.sums(self._opened, self._sql)

    async def fold_figures(self, before: Instant) -> int:
        return await self._opened.transaction(lambda run: figures.fold(run, self._sql, before))

    # ---- output ----

    async def keep_output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        return await output.keep(self._opened, self._sql, chunks, self._clock.parameter) if chunks else []

    async def kept_output(self, task: str) -> list[KeptOutput]:
        return await output.kept(self._opened, self._sql, task)

    async def output(self, task: str, attempt: int | None, after: OutputPosition, limit: int) -> list[OutputChunk]:
        return await output.chunks(self._opened, self._sql, task, attempt, after, limit)

    async def search_output(self, search: OutputSearch) -> OutputHits:
        return await output.search(self._opened_patiently, self._sql, search)

    # ---- upkeep ----

    async def drop(self, limit: int) -> int:
        return await self._upkeep(lambda run: control.drop(run, self._sql, limit, self._clock.parameter))

    async def expire(self, limit: int) -> int:
        return await self._upkeep(lambda run: control.expire(run, self._sql, limit, self._clock.parameter))

    async def _upkeep(self, job: Callable[[Runner], Awaitable[int]]) -> int:
        changed = await self._opened.transaction(job)
        if changed:
            self._hint(HintKind.DONE)
            self._hint(HintKind.DUE)  # a child may have waited only for its end
        return changed

    async def tidy(self) -> None:
        await self._opened.transaction(lambda run: upkeep.ensure(run, self._sql, self._clock.now()))
        await self._opened.transaction(lambda run: upkeep.fold(run, self._sql))
        await self._opened.transaction(lambda run: upkeep.release_orphans(run, self._sql, self._clock.parameter))
        await self._lanes.publish()

    async def _make_missing_partitions(self) -> None:
        """Make the tables of history for the present; those ahead of it are the tidier's, and are missing only if none has run."""
        await self._opened.transaction(lambda run: upkeep.ensure(run, self._sql, self._clock.now(), ahead=0))

    async def prune(self, state: State, before: Instant, limit: int) -> list[Pruned]:
        if state not in FINAL:
            raise InvalidValue(f"only final states can be pruned, got {state}")
        return await upkeep.prune(self._opened_patiently, self._sql, state, before, limit)

    async def inspect(self, *, repair: bool) -> list[Inconsistency]:
        return await self._opened_patiently.transaction(
            lambda run: inspection.inspect(run, self._sql, self._clock.parameter, repair=repair)
        )

    # ---- reading ----

    async def get(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        if not ids:
            return []
        return await read.get(self._opened, self._sql, ids)

    async def find(self, handler: str, key: str) -> TaskRecord | None:
        return await read.find(self._opened, self._sql, handler, key)

    async def page(self, query: Query) -> Page:
        return await read.page(self._opened, self._sql, query)

    async def attempts(self, task: str) -> list[AttemptRecord]:
        return await read.attempts(self._opened, self._sql, task)

    async def counts(self) -> Counts:
        return await read.counts(self._opened_patiently, self._sql, self._clock.parameter)

    async def handler_load(self, handler: str) -> HandlerLoad:
        return await read.handler_load(self._opened, self._sql, handler, self._clock.parameter)

    # ---- wake-ups ----

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        self._opened  # noqa: B018
        return self._wakeups.listen(on_hint)

    def _hint(self, kind: HintKind, at: Instant | None = None) -> None:
        self._wakeups.send(kind, at)

    # ---- being open ----

    @property
    def _opened(self) -> Database:
        if self._database is None:
            raise StoreUnavailable(f"the store {self.url} is not open; await open() first")
        return self._database

    @property
    def _opened_patiently(self) -> Database:
        self._opened  # noqa: B018  raises if it is not open
        return self._patient

    @property
    def _opened_lanes(self) -> Lanes:
        self._opened  # noqa: B018
        return self._lanes
