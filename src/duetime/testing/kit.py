"""The kit that a test uses: move the clock, look at tasks, inject faults."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from itertools import count
from typing import Any, TypeVar, Unpack, overload

import msgspec

from duetime.app.app import App
from duetime.app.filters import Filters, name_of, query_of
from duetime.app.handlers import AnyHandler, Handler
from duetime.client.client import AnyTask
from duetime.client.flows import AnyFlow, Flow
from duetime.clock import LATEST, Instant, ManualClock, Seconds, to_datetime, to_instant, to_micros
from duetime.duties import Deadlines, Firing, Sweeper, Waits
from duetime.duties.hooks import chains_of
from duetime.errors import InvalidValue, TaskFailed, TaskNotFound, UnknownHandler
from duetime.model.event import MOST_EVENTS, TaskEvent
from duetime.model.event import shown as shown_event
from duetime.model.figures import FigureKey
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome
from duetime.model.query import Query
from duetime.model.retry import RetryPolicy
from duetime.model.steps import check_step
from duetime.model.task import FINAL, State, Task, TaskRecord, shown
from duetime.runtime.service import Alarms
from duetime.secrets.reading import GivenSecrets
from duetime.store.values import Claim, ClaimedTask, NewWorker
from duetime.targets.context import Resources, current
from duetime.targets.endings import failed, succeeded
from duetime.targets.notices.notice import Notice
from duetime.targets.spec import HandlerSpec
from duetime.targets.suspended import Suspended
from duetime.targets.target import Accepted, Stop
from duetime.testing.alerts import new_notices
from duetime.testing.answers import PreparedAnswer
from duetime.testing.matching import as_call, as_line, check_names, has_arguments
from duetime.testing.messages import BrokerAnswer, Messages
from duetime.testing.parts import Died, MortalDoor, SteppedExecutor
from duetime.testing.requests import Requests, SentRequest
from duetime.testing.stores import SteppedStore
from duetime.worker.disabling import TargetWatch
from duetime.worker.metrics import FigureWriter
from duetime.worker.permits import Permits, counted_limits
from duetime.worker.settler import Settler
from duetime.worker.stored import Serving, StoredTargets

R = TypeVar("R")

logger = logging.getLogger("duetime.testing")

CLEAN_UP = 5.0  # seconds that an attempt may take to end when the block ends while it runs
INTENTS_AT_ONCE = 1_000
HOOKS_FOLLOW = 100 * 366 * 86_400.0  # seconds: tests move clocks far
SHOWN_TASKS = 10  # in the message of an assertion
FAILURES = (Outcome.FAILED, Outcome.FATAL, Outcome.TIMED_OUT, Outcome.PARKED)  # a payload that does not fit is a failure in a test


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that ran. `task` is the task after it, `error` the exception that the handler raised.

    `outcome` None: its work was accepted elsewhere (202), and `complete` ends it.
    """

    task: Task[Any]
    attempt: int
    outcome: Outcome | None
    at: datetime
    error: BaseException | None = None

    @property
    def handler(self) -> str:
        return self.task.handler

    @property
    def payload(self) -> dict[str, Any]:
        return self.task.payload


class Kit:
    """What `using` returns: a clock to move, and access to what was submitted and how it ended."""

    def __init__(self, app: App, store: SteppedStore, clock: ManualClock, *, raise_errors: bool, limit: int) -> None:
        self.app = app
        self.clock = clock
        self.raise_errors = raise_errors
        self.limit = limit
        self.secrets: dict[str, str] = {}
        """Values of secrets for targets, by name. They need no key, and come before stored ones."""
        self._store = store
        self._worker = secrets.token_hex(8)
        self._claims = count(1)
        self._next_at: Instant | None = None
        self._probe_at: Instant | None = None  # of the next probe of an automatic gate
        self._moving = False
        self._declared = False
        self._wait_for_hints = app.client.wait
        self._requests = Requests(clock)
        self._messages = Messages(self._requests)
        self._accepted: set[str] = set()  # tasks whose work was accepted elsewhere, and may not have ended

    # ---- time ----

    @property
    def now(self) -> datetime:
        """The app's present time."""
        return to_datetime(self.clock.now())

    async def advance(
        self,
        by: Seconds = 0,
        /,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        raise_errors: bool | None = None,
    ) -> list[Ran]:
        """Move the clock, and run everything at the instant at which it comes due, with retries and tasks that handlers submit.

        Takes seconds, a timedelta, or the keywords of one. Returns what ran, in order.
        """
        step = to_micros(by, "the step") + to_micros(timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds))
        if step <= 0:
            raise InvalidValue("advance moves the clock forward and takes a positive duration; to run what is due now use drain")
        return await self._go_to(self.clock.now() + step, raise_errors)

    async def advance_to(self, when: datetime, /, *, raise_errors: bool | None = None) -> list[Ran]:
        """Move the clock to an instant, as `advance` does."""
        instant = to_instant(when, "when")
        if instant < self.clock.now():
            raise InvalidValue(f"time does not run backwards: it is {self.now.isoformat()} already, got {when.isoformat()}")
        return await self._go_to(instant, raise_errors)

    async def drain(self, *, raise_errors: bool | None = None) -> list[Ran]:
        """Run what is due now, and what that submits for now, until nothing is due. Return what ran, in order."""
        return await self._go_to(self.clock.now(), raise_errors)

    async def _go_to(self, end: Instant, raise_errors: bool | None) -> list[Ran]:
        if end > LATEST:
            raise InvalidValue("the clock cannot be moved beyond the year 9999")
        if _inside_handler():
            raise RuntimeError("a handler cannot move the clock or drain: call advance and drain from the test itself")
        if self._moving:
            raise RuntimeError("advance or drain is under way already; await one before you call the next")
        self._moving = True
        ran: list[Ran] = []
        try:
            strict = self.raise_errors if raise_errors is None else raise_errors
            await self._run_due(ran, strict)
            while (instant := self._next_instant()) is not None and instant <= end:
                self.clock.set(instant)
                await self._run_due(ran, strict)
            if self.clock.now() < end:
                self.clock.set(end)
                await self._run_due(ran, strict)
        finally:
            self._moving = False
        return ran

    def _next_instant(self) -> Instant | None:
        """Return when something can happen next: a task comes due, a gate opens or is probed, a task expires, a schedule fires."""
        now = self.clock.now()
        instants = [self._next_at, self._probe_at, self._store.notices.next_expiry(now), self._firing.next_at, *self._deadline_instants()]
        return min((instant for instant in instants if instant is not None and instant > now), default=None)

    def _deadline_instants(self) -> list[Instant]:
        """Return when work times out that was accepted elsewhere."""
        records = {task_id: self._store.look_at(task_id) for task_id in self._accepted}
        instants = {task_id: record.deadline_at for task_id, record in records.items() if record is not None and record.deadline_at}
        self._accepted = set(instants)
        return list(instants.values())

    async def _run_due(self, into: list[Ran], strict: bool) -> None:
        done, allowed, counted = 0, self.limit, False
        while True:
            ran = await self._step()
            if await self._call_hooks() and ran is None:
                continue  # a hook may have submitted something
            if ran is None:
                return
            into.append(ran)
            done += 1
            if strict and ran.error is not None and ran.outcome in FAILURES:
                raise ran.error
            if done >= allowed:
                if counted:
                    raise RuntimeError(
                        f"{done:,} attempts ran at {self.now.isoformat()} and more are due at once; the last was of {ran.handler}. "
                        "Does a handler submit itself again without a delay? If so many are meant to run, use using(app, limit=…)"
                    )
                left = sum(lane.due for lane in (await self._store.counts()).lanes)
                allowed, counted = allowed + left + self.limit, True

    async def _call_hooks(self) -> bool:
        """Call the app's hooks with what has happened; return whether any was called. What a hook raises fails the test."""
        called = False
        for hook in self.app.declared_hooks():
            cursor = await self._store.follow_events(hook.follower, HOOKS_FOLLOW, remember=True)
            page = await self._store.events(cursor, MOST_EVENTS)
            events = [shown_event(record) for record in page.items if hook.filter.takes(record)]
            chains = await chains_of(self._store, events)
            for event in events:
                chain = chains.get(event.task, []) if isinstance(event, TaskEvent) else []
                if hook.name not in chain:
                    called = True
                    await hook.call(event, chain)
            if page.next != cursor:
                await self._store.pass_events(hook.follower, cursor, page.next)
        return called

    async def _step(self) -> Ran | None:
        """Run the next attempt; return None if none is due."""
        await self._register_new_handlers()
        await self._fire()
        await self._carry_out()
        while self._accepted and await self._deadlines.sweep():
            pass
        while self._store.notices.has_flows and await self._store.advance_flows():
            pass
        while self._store.notices.has_waits and await self._waits.look():
            pass
        swept = False
        while True:
            claim = await self._claim(self._store.claim(self._worker, next(self._claims), self._executor.ready(), 1))
            self._next_at = claim.next_at
            for claimed in claim.tasks or await self._claim_probe():
                return await self._perform(claimed)
            if swept:
                return None
            # a claim that found only an expired task returns nothing, although more may be due
            while await self._sweeper.sweep():
                pass
            swept = True

    async def _fire(self) -> None:
        """Fire the schedules that are due."""
        if not self._declared:
            await self.app.schedules.declare()
            self._declared = True
        if not self._store.notices.has_schedules:
            return
        for _ in range(self.limit):
            await self._firing.fire_due()
            if self._firing.next_at is None or self._firing.next_at > self.clock.now():
                return
        raise RuntimeError(
            f"schedules at {self.now.isoformat()} are still due after {self.limit:,} looks; use using(app, limit=…) if so many are meant"
        )

    async def _carry_out(self) -> None:
        """Carry out the cancels and edits of transactions that were committed."""
        if not self._store.notices.has_intents:
            return
        while await self._store.carry_out(INTENTS_AT_ONCE):
            pass
        for attempt in await self._store.attempts_of(self._worker):
            if attempt.cancelling:
                self._executor.cancel(attempt.id)

    async def _claim_probe(self) -> list[ClaimedTask]:
        """Claim a task that passes an automatic gate, if its probe is due."""
        starts, ready = self._executor.starts, self._executor.ready()
        probing = {gate.handler for gate in starts.gates if gate.probe_at is not None} & ready.keys()
        gate, self._probe_at = await self._store.take_probe(sorted(probing)) if probing else (None, None)
        if gate is None:
            return []
        spec = self._executor.queues.by_name[gate.handler].spec
        claim = await self._claim(self._store.claim_probe(self._worker, next(self._claims), (spec.name, *spec.aliases), gate))
        if claim.tasks:
            starts.probes.update(claimed.id for claimed in claim.tasks)
        else:
            await self._store.put_off_probe(gate, self.clock.now())
            self._probe_at = claim.next_at
        return claim.tasks

    async def _claim(self, claim: Coroutine[Any, Any, Claim]) -> Claim:
        claiming = asyncio.ensure_future(claim)
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            for claimed in (await claiming).tasks:  # otherwise nobody would ever run it
                now = self.clock.now()
                released = conclude(claimed, Ended(Outcome.RELEASED), RetryPolicy(), started_at=None, now=now, chance=0.0)
                self._settler.put(released)
            await self._settler.run_once()
            raise

    async def _perform(self, claimed: ClaimedTask) -> Ran:
        at = self.now
        end = self._executor.expect(claimed)
        try:
            await asyncio.wait([end])
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # let it begin
            self._executor.release(claimed.id)
            await asyncio.wait([end], timeout=CLEAN_UP)
            await self._settler.run_once()
            raise
        ended, error = end.result()
        await self._settler.run_once()
        await self._target_watch.tell()
        if isinstance(ended, Accepted):
            self._accepted.add(claimed.id)
        if error is not None and not isinstance(error, Exception | asyncio.CancelledError | Suspended | Died | BaseExceptionGroup):
            raise error  # such as pytest.fail() in a handler, or an interrupt: not meant as an outcome
        [record] = await self._store.get([claimed.id])
        assert record is not None
        task = shown(record)
        if isinstance(ended, Accepted):
            return Ran(task=task, attempt=claimed.attempt, outcome=None, at=at)
        return Ran(task=task, attempt=claimed.attempt, outcome=ended.outcome, at=at, error=_exception(ended, error, claimed))

    # ---- looking ----

    @overload
    def submitted(self, handler: Handler[..., R, Callable[..., object]], /, **arguments: object) -> list[Task[R]]: ...
    @overload
    def submitted(self, handler: str, /, **arguments: object) -> list[Task[Any]]: ...
    def submitted(self, handler: str | AnyHandler, /, **arguments: object) -> list[Task[Any]]:
        """Return the tasks of a handler that were submitted with at least these arguments, live or finished, in that order."""
        spec = self._spec(handler)
        names = {name_of(handler)} if spec is None else {spec.name, *spec.aliases}
        if spec is not None:
            check_names(spec, arguments)
        return [shown(record) for record in self._store.look(Query()) if record.handler in names and has_arguments(record, spec, arguments)]

    @overload
    def assert_submitted(self, handler: Handler[..., R, Callable[..., object]], /, **arguments: object) -> Task[R]: ...
    @overload
    def assert_submitted(self, handler: str, /, **arguments: object) -> Task[Any]: ...
    def assert_submitted(self, handler: str | AnyHandler, /, **arguments: object) -> Task[Any]:
        """Fail unless such a task was submitted. Return it, the latest one if there are several."""
        __tracebackhide__ = True
        found = self.submitted(handler, **arguments)
        if not found:
            raise AssertionError(f"{as_call(name_of(handler), arguments)} was not submitted.\n{self._overview(name_of(handler))}")
        return found[-1]

    def assert_not_submitted(self, handler: str | AnyHandler, /, **arguments: object) -> None:
        """Fail if such a task was submitted."""
        __tracebackhide__ = True
        found = self.submitted(handler, **arguments)
        if found:
            times = "once" if len(found) == 1 else f"{len(found)} times"
            listed = "\n".join(f"  {as_line(task)}" for task in found[:SHOWN_TASKS])
            raise AssertionError(f"{as_call(name_of(handler), arguments)} was submitted {times}:\n{listed}")

    def tasks(self, **filters: Unpack[Filters]) -> list[Task[Any]]:
        """Return all tasks that match the filters of `app.tasks`, in the order of submitting."""
        return [shown(record) for record in self._store.look(query_of(filters))]

    @overload
    def task(self, task: Task[R], /) -> Task[R]: ...
    @overload
    def task(self, task: str, /) -> Task[Any]: ...
    def task(self, task: AnyTask, /) -> Task[Any]:
        """Return a task as it is now."""
        task_id = task.id if isinstance(task, Task) else task
        record = self._store.look_at(task_id)
        if record is None:
            raise TaskNotFound(f"there is no task {task_id} in this test's store")
        return shown(record)

    def _overview(self, handler: str) -> str:
        tasks = self.tasks()
        own = [task for task in tasks if task.handler == handler]
        others = [task for task in tasks if task.handler != handler]
        lines = [f"Tasks of {handler}: {len(own) or 'none'}", *(f"  {as_line(task)}" for task in own[:SHOWN_TASKS])]
        if others:
            lines += [f"Tasks of other handlers: {len(others)}", *(f"  {as_line(task)}" for task in others[:SHOWN_TASKS])]
        return "\n".join(lines)

    # ---- faults ----

    def fail_next(self, handler: str | AnyHandler, error: BaseException, *, times: int = 1) -> None:
        """Let the next attempts of a handler raise an error instead of running. Middleware sees it too."""
        self._executor.failures.setdefault(self._known(handler).name, deque()).extend([error] * times)

    def crash_next(self, handler: str | AnyHandler, *, times: int = 1, after: str | None = None) -> None:
        """Let the worker die at the end of the handler's next attempts: their work is done, but not recorded.

        Each of them ends as Lost and the task runs again: at-least-once. With `after` it dies as soon as the step of that name is saved.
        """
        if after is not None:
            self._executor.deaths.extend([(self._known(handler).name, check_step(after))] * times)
            return
        crashes = self._executor.crashes
        name = self._known(handler).name
        crashes[name] = crashes.get(name, 0) + times

    def answer_next(
        self,
        handler: str | AnyHandler,
        *,
        status: int | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        exit: int | None = None,
        output: str | bytes = "",
        result: object = None,
        broker: BrokerAnswer | None = None,
        times: int = 1,
    ) -> None:
        """Answer the next requests of an HTTP handler, the next messages of one that publishes, or say how the next commands end.

        The handler is one that the App declares, or the name of a stored target. Nothing is sent over the network and no process is
        started; what has no answer fails the test. `status`, `body` and `headers` answer a request; a `body` is bytes or text as it is,
        anything else becomes JSON. `exit`, `output` and `result` end a command; a negative `exit` is a signal. To a message a `broker` says
        "confirmed" (also if nothing is said), "refused" or "unreachable".
        """
        answer = PreparedAnswer(status=status, body=body, headers=headers, exit=exit, output=output, result=result, broker=broker)
        answer.prepare(self._known(handler), self._requests, self._messages, times)

    async def complete(self, task: AnyTask, /, *, result: object = None, error: Exception | None = None) -> Task[Any]:
        """End work that was accepted elsewhere (202), as whoever does it would report: with a result, or with an error. Return the task.

        A `Fatal` error is not tried again.
        """
        task_id = task.id if isinstance(task, Task) else task
        attempts = [each for each in await self._store.open_attempts([task_id]) if each.deadline_at is not None]
        if not attempts:
            state = self.task(task_id).state
            raise InvalidValue(f"nobody outside works on task {task_id}, which is {state}; answer_next(…, status=202) accepts it")
        claimed, now = attempts[0].task, self.clock.now()
        policy = msgspec.structs.replace(self._known(claimed.handler).retry, jitter=0.0)
        policy = policy if claimed.retry is None else policy.with_numbers(claimed.retry)
        ended = succeeded(result) if error is None else failed(error, policy)
        await self._store.complete([conclude(claimed, ended, policy, started_at=claimed.claimed_at, now=now, chance=0.0)])
        return self.task(task_id)

    def requests(self, handler: str | AnyHandler) -> list[SentRequest]:
        """Return the requests or messages that a handler has sent, or the commands that were run, in order."""
        name = self._known(handler).name
        return [sent for sent in self._requests.sent if sent.handler == name]

    def _known(self, handler: str | AnyHandler) -> HandlerSpec:
        name = name_of(handler)
        spec = self._spec(handler) or self._stored.spec(name)
        if spec is None:
            declared = ", ".join(self.app.specs) or "none"
            raise UnknownHandler(f"this App declares no handler {name!r} and no target is stored under that name; it declares {declared}")
        return spec

    def _spec(self, handler: str | AnyHandler) -> HandlerSpec | None:
        return self.app.specs.get(name_of(handler))

    async def notices(self) -> list[Notice]:
        """Evaluate the rules of alerts as of now, also those that the app declares, and return the notices that are new. None is sent."""
        await self.app.declare_alerts()
        await self._figures.write()
        return await new_notices(self._store)

    # ---- the worker's parts ----

    @contextlib.asynccontextmanager
    async def _running(self, resources: Sequence[object] | None) -> AsyncIterator[None]:
        """Assemble the parts of a worker, without its background services."""
        alarms = Alarms()
        self._settler = Settler(self._store, self._worker, alarms)
        self._sweeper = Sweeper(self._store, alarms)
        self._deadlines = Deadlines(self._store, alarms, chance=lambda: 0.0)
        self._waits = Waits(self._store, alarms)
        self._firing = Firing(self._store, alarms)
        advice = 'In a test, give its value: t.secrets["name"] = "value"'
        secrets = GivenSecrets(self.secrets, self.app.secret_reader(self._store), advice)
        self._executor = SteppedExecutor(self._store, alarms, self._settler, self._requests, self._messages, secrets)
        self._executor.host.steps = MortalDoor(self._store, self._worker, self.app.specs, self.app.submit_many, self._executor)
        self._figures = FigureWriter(self._store, f"worker {self._worker}", alarms, self._totals)
        self._permits = Permits(self._store, self._worker, (), alarms, more=lambda: None)
        self._executor.permits, self._settler.on_handed_over = self._permits, self._permits.handed_over
        self._target_watch = TargetWatch(self._store, self._worker, self._executor.starts, alarms)
        self._executor.target_watch = self._target_watch
        self._stored = StoredTargets(
            self._store, self._executor, alarms, own=self.app.specs, serving=Serving(allow=("command",)), changed=self._register
        )
        self._store.notices.apply_gates, self._store.notices.stop = self._apply_gates, self._executor.cancel
        self._store.notices.serve_targets = self._stored.run_once
        self.app.client.wait = self._wait  # type: ignore[method-assign]  # no hints arrive here
        self.app.flows.wait = self._wait_for_flow  # type: ignore[method-assign]
        lifespan = AsyncExitStack()
        try:
            if resources is not None:
                self._executor.resources = Resources(resources)
            elif self.app.lifespan is not None:
                self._executor.resources = Resources(await lifespan.enter_async_context(self.app.lifespan()))
            await self._register_new_handlers()
            await self._stored.run_once()
            # a schedule with a calendar can only be stored once the test has put that; the first move of the clock tries again
            with contextlib.suppress(InvalidValue):
                await self._fire()
            yield
        finally:
            try:
                await self._stop_attempts()
                await self._settler.drain()
                await self._executor.close()
                alarms.close()
            finally:
                await lifespan.aclose()
        await self._store.unregister(self._worker)

    def _totals(self) -> dict[FigureKey, int]:
        return {key: count for name, tally in self._executor.tallies().items() for key, count in tally.totals(name)}

    async def _register_new_handlers(self) -> None:
        """Take up handlers that were declared meanwhile, and register as a worker again, so that it is listed and confirms gates."""
        if self._executor.learn(self.app):
            self._declared = False
            await self._register()
            self._permits.bound(self._executor.queues.by_name.values())
            await self._store.declare_counted(*counted_limits(self._executor.queues.by_name.values()))
        while self._permits.limits and await self._permits.run_once() == 0.0:
            pass

    async def _register(self) -> None:
        slots = {name: queue.concurrency for name, queue in self._executor.queues.by_name.items() if queue.concurrency}
        await self._store.register(NewWorker(id=self._worker, host=socket.gethostname(), pid=os.getpid(), slots=slots))
        await self._apply_gates()

    async def _apply_gates(self) -> None:
        gates = await self._store.gates()
        self._executor.starts.gates = gates
        self._executor.release_queued()
        await self._store.confirm_gates(self._worker, gates.version)

    async def _stop_attempts(self) -> None:
        """Release what still runs at the end of the block."""
        runners = [attempt.runner for attempt in self._executor.running.values() if attempt.runner is not None]
        self._executor.stop_all(Stop.RELEASE)
        if runners:
            await asyncio.wait(runners, timeout=CLEAN_UP)
        for attempt in self._executor.running.values():
            logger.error("an attempt of %s was told to stop but its code does not end", attempt.spec.name)

    async def _wait(self, task: AnyTask, *, timeout: Seconds | None = None) -> TaskRecord:
        """Replace waiting (`app.result`): run what is due until the task is final, because nobody else does."""
        record = await self.app.client.record(task)
        while record.state not in FINAL:
            if record.state is State.RUNNING:
                return await self._wait_for_hints(task, timeout=timeout)
            ran = await self._step()
            record = await self.app.client.record(task)
            if ran is None and record.state not in FINAL:
                if timeout is not None:
                    return record
                raise TimeoutError(
                    f"task {record.id} of {record.handler} is {record.state} and due at {to_datetime(record.due_at).isoformat()}; it is "
                    f"{self.now.isoformat()} and nothing more can run: move the clock with `await t.advance(…)` first, or ask app.why(task)"
                )
        return record

    async def _wait_for_flow(self, flow: AnyFlow, *, timeout: Seconds | None = None) -> Flow[Any]:
        """Replace waiting for a flow: run what is due until it has ended."""
        found = await self.app.flows.get(flow)
        while not found.final:
            ran = await self._step()
            found = await self.app.flows.get(flow)
            if ran is None and not found.final:
                break
        return found


def _inside_handler() -> bool:
    try:
        current()
    except InvalidValue:
        return False
    return True


def _exception(ended: Ended, error: BaseException | None, claimed: ClaimedTask) -> BaseException | None:
    """Return the exception for an outcome: the handler's own, or one that describes what happened."""
    info = ended.error
    if ended.outcome is Outcome.TIMED_OUT:
        return TimeoutError(f"{claimed.handler} {info.message if info else 'ran too long'}")
    if ended.outcome in FAILURES and error is None:
        text = f"{info.type}: {info.message}" if info else ended.outcome.value
        message = f"attempt {claimed.attempt} of {claimed.handler} ended {ended.outcome}: {text}"
        return TaskFailed(message, task_id=claimed.id, state=ended.outcome.value, error_type=info.type if info else None)
    return error if ended.outcome in (*FAILURES, Outcome.RETRY_LATER) else None
