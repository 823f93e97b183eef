"""The executor: slots, starts, stops and ends of attempts.

A runner is an asyncio task that takes attempts from the queues and performs them one after another. As long as handlers do
not wait for anything, one runner does all the work in bursts and no further task is made. When a handler waits, its runner
waits with it and another one goes on with the queues. A runner that comes back from waiting goes on with the queues too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

from duetime.clock import DAY, LATEST, SECOND, Instant
from duetime.errors import AttemptCancelled
from duetime.model.gate import Gates
from duetime.model.lifecycle import conclude, succeed
from duetime.model.outcome import Ended, Outcome, Settlement
from duetime.model.task import ErrorInfo
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.values import ClaimedTask, Progress
from duetime.targets.context import Context, Resources
from duetime.targets.output import OutputFiles
from duetime.targets.process import ChildPool
from duetime.targets.python import NOTHING, Middleware, around, failed, positional, succeeded
from duetime.targets.spec import HandlerSpec
from duetime.worker.attempt import Attempt, Current, Interrupted, Stop, drive, has_ended
from duetime.worker.beginning import Begin, called, of_coroutine, of_work
from duetime.worker.metrics import Tally
from duetime.worker.queues import HandlerQueue, HandlerQueues
from duetime.worker.threads import ThreadRoom

logger = logging.getLogger("duetime.worker")

BURST = 2_000  # microseconds that runners may keep the event loop to themselves
IN_A_ROW = 8  # attempts of one handler in a row while others have some queued too
MOST_SUSPECTS = 4  # sub-processes for tasks whose process died; one poisonous task may have made hundreds of suspects
THROW_AFTER = 1.0  # a thread that was told to stop is interrupted after so many seconds
STUCK_AFTER = 10.0  # and given up after so many more

_SUCCEEDED = Outcome.SUCCEEDED


class Waiting(NamedTuple):
    """An attempt whose first step is done but not its work: what it waits for, or what interrupted it."""

    attempt: Attempt
    queue: HandlerQueue
    work: Coroutine[Any, Any, Any]
    variables: Variables
    awaited: Any
    thrown: Interrupted | None
    begun: Begin  # the way it was begun, which has to be kept


class Executor:
    """Performs attempts; knows which wait in the middle of their work, and tells the settler how they ended."""

    def __init__(
        self,
        store: Store,
        specs: Mapping[str, HandlerSpec],
        alarms: Alarms,
        *,
        concurrency: int | None,
        middleware: Sequence[Middleware],
        output: OutputFiles | None,
        settle: Callable[..., asyncio.Future[None] | None],
        expect: Callable[[str, str], None],
        mark: Callable[[Progress], None],
        freed: Callable[[], None],
        stuck: Callable[[Attempt], None],
    ) -> None:
        self._store = store
        self._now = store.now
        self._alarms = alarms
        self._middleware = list(middleware)
        self.output = output
        self._settle = settle
        self._expect = expect
        self._mark = mark
        self._freed = freed
        self._stuck = stuck
        self._watcher: Callable[[Attempt, Settlement], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        own = {spec.name: self._queue_of(spec) for spec in specs.values()}
        self._queues = HandlerQueues(own.values(), {name: own[spec.name] for name, spec in specs.items()}, concurrency)
        self._begin = of_work(lambda attempt: self._work(attempt))
        self._active = 0  # runners that do not wait
        self._runners: set[asyncio.Task[None]] = set()
        self._burst_began: Instant | None = None
        self._hold: asyncio.Future[None] | None = None  # the settler cannot keep up: nothing is begun until this is resolved
        self._lead_handle: asyncio.Handle | None = None
        self._ahead_handle: asyncio.TimerHandle | None = None
        self._threads = ThreadRoom()
        self._suspects = asyncio.Semaphore(MOST_SUSPECTS)
        self._may_start = True
        self._handed: dict[str, ClaimedTask] = {}  # what a child was given and has not begun yet
        self.on_begun: Callable[[], None] | None = None  # called when a child has begun one of those, or will not
        self.children: ChildPool | None = None
        self.resources = Resources()
        self.gates = Gates()
        self.running: dict[str, Attempt] = {}
        self.cancels: set[str] = set()
        self.current = Current()
        self.finished = 0

    def _queue_of(self, spec: HandlerSpec) -> HandlerQueue:
        queue = HandlerQueue(spec, spec.concurrency)
        queue.direct = True
        if spec.is_async and spec.isolation != "process" and not self._middleware:
            queue.begin = of_coroutine(spec)
        return queue

    @property
    def gates(self) -> Gates:
        return self._gates

    @gates.setter
    def gates(self, gates: Gates) -> None:
        self._gates, self._gated = gates, bool(gates)

    # ---- what to claim ----

    def wants(self) -> tuple[dict[str, int], int]:
        """Give how many attempts each handler could take, and all together; empty while nothing is worth a claim."""
        if not self._may_start:
            return {}, 0
        for queue in self._queues.stalled(self._now()):
            while queue.tasks:
                self._give_back(queue.tasks.popleft(), Outcome.RELEASED)
        return self._queues.wants()

    def expect_more(self) -> None:
        """Note that there may be due tasks for any handler."""
        self._queues.expect_more()

    def note_claimed(self, wants: Mapping[str, int], tasks: Iterable[ClaimedTask], *, full: bool) -> None:
        """Learn from a claim which handlers may have more."""
        self._queues.note_claimed(wants, tasks, full=full)

    @property
    def busy(self) -> int:
        """How many attempts run or are about to."""
        return len(self.running) + self._queues.queued

    def attempts(self) -> dict[str, int]:
        """Give all tasks that this worker has, started or not, with their attempt numbers."""
        running = (attempt.claimed for attempt in self.running.values())
        return {claimed.id: claimed.attempt for claimed in (*running, *self._queues.waiting())}

    def watch(self, watcher: Callable[[Attempt, Settlement], None]) -> None:
        """Have the end of every attempt told, as it is about to be stored; for people, so no success takes the short way any more."""
        self._watcher = watcher
        for queue in self._queues.by_name.values():
            queue.direct = False

    def tallies(self) -> dict[str, Tally]:
        """Give what was counted of each handler."""
        return {queue.spec.name: queue.tally for queue in self._queues.by_name.values()}

    # ---- starting ----

    def offer(self, tasks: Sequence[ClaimedTask]) -> None:
        """Take claimed tasks and start what can start; those that are not due yet wait for that."""
        if self._store.traits.claim_ahead:
            tasks = self._queues.ahead.filter_due(tasks, self._store.reached())
            self._await_ahead()
        self._queues.put(tasks, self._now())
        self._lead()

    def _await_ahead(self) -> None:
        first_at = self._queues.ahead.first_at
        if self._ahead_handle is not None:
            self._ahead_handle.cancel()
            self._ahead_handle = None
        if first_at is not None:
            left = first_at - self._store.reached()
            self._ahead_handle = self._loop.call_later(max(left, 0) / SECOND, self._start_due)

    def _start_due(self) -> None:
        """Start what is due by now."""
        reached = self._store.reached()
        ahead = self._queues.ahead
        if ahead.first_at is not None and ahead.first_at - reached > 2 * self._store.traits.claim_ahead:
            # the store's clock was set back; nobody knows for how long this would be held
            for claimed in ahead.take_due(LATEST):
                self._give_back(claimed, Outcome.RELEASED)
        else:
            self._queues.put(ahead.take_due(reached), self._now())
        self._await_ahead()
        self._lead()

    def _lead(self) -> None:
        """See to it that a runner serves the queues."""
        self._lead_handle = None
        if self._active == 0 and self._queues.startable:
            self._active += 1
            runner = self._loop.create_task(self._run(), name="duetime runner")
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)

    async def _run(self) -> None:
        """Take attempts and perform them until there is nothing to start, or another runner does so."""
        runner = asyncio.current_task()
        assert runner is not None
        try:
            while not runner.cancelling():
                if self._hold is not None:
                    await self._hold
                    self._hold = None
                waiting = self._burst(runner)
                if waiting is not None:
                    await self._wait(waiting)
                elif not runner.cancelling():
                    if self._active > 1 or not self._queues.startable:
                        break
                    await asyncio.sleep(0)
        finally:
            self._active -= 1
        if runner.cancelling():
            # the cancel may not have arrived yet, and must not hit the next attempt: another runner goes on
            self._lead()

    def _burst(self, runner: asyncio.Task[None]) -> Waiting | None:
        """Perform attempts until one waits, none may start, or the burst is over."""
        now = self._now()
        if self._burst_began is None:
            self._burst_began = now
            self._loop.call_soon(self._end_burst)
        waiting = None
        settled: list[Settlement] = []
        try:
            while waiting is None and self._in_burst(now) and not runner.cancelling() and (queue := self._queues.next()) is not None:
                waiting, now = self._serve(queue, runner, now, settled)
        finally:
            if settled:
                self._hold = self._settle(*settled)
        return waiting

    def _in_burst(self, now: Instant) -> bool:
        """Tell whether runners may go on; not beyond a step of the clock either, because nobody knows how long that took."""
        return self._burst_began is not None and self._burst_began <= now <= self._burst_began + BURST

    def _end_burst(self) -> None:
        """Runs once the event loop has served everybody: runners may go on."""
        self._burst_began = None

    def _serve(
        self, queue: HandlerQueue, runner: asyncio.Task[None], now: Instant, settled: list[Settlement]
    ) -> tuple[Waiting | None, Instant]:
        """Perform some of a handler's attempts; give the one that waits, if one does, and the time.

        This is the hottest loop of the worker. An attempt that ends without ever waiting is known to nobody but the keeper
        (`current`), takes no slot that anyone could miss, and needs one look at the clock: its end is the next one's start.
        """
        tasks, spec, allowed, direct, current, clock = queue.tasks, queue.spec, queue.allowed, queue.direct, self.current, self._now
        left = IN_A_ROW if self._queues.several else len(tasks)
        began_at, ends_at, count = now, (self._burst_began or now) + BURST, 0
        begin_one = queue.begin or self._begin
        begin = begin_one()
        waiting: Waiting | None = None
        due: list[Instant] = []  # of those that succeeded
        while left and tasks and began_at <= now <= ends_at and not runner.cancelling():
            left -= 1
            claimed = tasks.popleft()
            if (self.cancels or self._gated or not self._may_start) and not self._checked(claimed):
                continue
            deadline_at = now + (allowed if claimed.timeout is None else int(claimed.timeout * SECOND))
            attempt = Attempt(claimed, spec, self, runner, now, deadline_at)
            # a task whose process died before runs alone in a child, so that the next death can be blamed on the right one
            way = self._begin() if claimed.crashes else begin
            variables = copy_context()
            current.attempt = attempt
            try:
                try:
                    value = variables.run(way, attempt)
                finally:
                    current.attempt = None
            except BaseException as error:
                if isinstance(error, Interrupted) and attempt.work is not None and not has_ended(attempt.work):
                    waiting = Waiting(attempt, queue, attempt.work, variables, None, error, way)
                    break
                begin = begin_one()
                value = self._ended_by(attempt, _odd(error))
            else:
                if attempt.work is not None:
                    waiting = Waiting(attempt, queue, attempt.work, variables, value, None, way)
                    break
            attempt.end()
            ended = NOTHING if value is None else value if type(value) is Ended else succeeded(value)
            now = clock()
            count += 1
            if direct and ended.outcome is _SUCCEEDED:
                settled.append(succeed(claimed, ended.result, attempt.started_at, now))
                due.append(claimed.due_at)
                if claimed.schedule is not None:
                    self._expect(claimed.id, claimed.schedule)
            else:
                self._conclude(attempt, ended, attempt.started_at, now)
                now = clock()  # describing an error takes its time
        self.finished += count
        queue.served_at = now
        if count:
            queue.measure((now - began_at) / count, count, waited=False)
        if due:
            queue.tally.note_successes(settled[-len(due) :], due, began_at if len(due) == count else None)
        if queue.more and len(tasks) <= queue.low:
            self._freed()
        return waiting, now

    def _checked(self, claimed: ClaimedTask) -> bool:
        """Check in memory, in the thread that starts it, whether an attempt may start; if not, give it back."""
        if claimed.id in self.cancels:
            self.cancels.discard(claimed.id)
            self._give_back(claimed, Outcome.CANCELLED)
        elif self._held_back(claimed):
            self._give_back(claimed, Outcome.RELEASED)
        else:
            return True
        return False

    def _held_back(self, claimed: ClaimedTask) -> bool:
        return not self._may_start or (self._gated and self._gates.holding(claimed.handler, claimed.collection, self._now()) is not None)

    @property
    def handing(self) -> bool:
        """Whether a child may any moment now begin an attempt that may not start any more."""
        return any(map(self._held_back, self._handed.values()))

    def _begun(self, task: str) -> None:
        if self._handed.pop(task, None) is not None and self.on_begun is not None:
            self.on_begun()

    def _give_back(self, claimed: ClaimedTask, outcome: Outcome) -> None:
        """End an attempt that never started."""
        self._conclude(Attempt(claimed, self._queues.by_name[claimed.handler].spec, self, None, 0, 0), Ended(outcome), None)

    # ---- performing ----

    async def _wait(self, waiting: Waiting) -> None:
        """See an attempt that waits to its end; meanwhile it takes a slot, its time is bounded, and another runner goes on."""
        attempt, queue, work, variables, awaited, thrown, _ = waiting
        self._queues.take_slot(queue)
        self.running[attempt.claimed.id] = attempt
        left = (attempt.deadline_at - self._now()) / SECOND
        attempt.timer = self._alarms.after(max(left, 0.0), partial(self.stop, attempt, Stop.TIMEOUT))
        self._active -= 1
        if self._active == 0 and self._lead_handle is None and self._queues.startable:
            # not at once: a runner that comes back from waiting until then spares us a new one
            self._lead_handle = self._loop.call_soon(self._lead)
        try:
            value = await drive(work, variables, attempt, self.current, awaited, thrown)
            ended = NOTHING if value is None else value if type(value) is Ended else succeeded(value)
        except GeneratorExit:
            raise
        except BaseException as error:
            ended = self._ended_by(attempt, error)
        finally:
            self._active += 1
        self._end(attempt, queue, ended)

    def _work(self, attempt: Attempt) -> Coroutine[Any, Any, Any]:
        """Give the coroutine of an attempt: the handler's own if nothing lies between."""
        claimed, spec = attempt.claimed, attempt.spec
        if spec.isolation == "process" or (claimed.crashes and self.children is not None):
            return self._in_child(attempt)
        if spec.is_async and not self._middleware:
            return called(spec, attempt)
        return self._in_layers(attempt, attempt.context)

    async def _in_layers(self, attempt: Attempt, context: Context) -> object:
        """Perform a handler that is a thread's, or has middleware around it."""
        spec = attempt.spec
        arguments = spec.payloads.decode(attempt.claimed.payload)

        async def innermost() -> object:
            if spec.is_async:
                return await spec.function(*positional(spec, context), **arguments)
            attempt.call = self._threads.start(spec.function, *positional(spec, context), **arguments)
            try:
                return await attempt.call.future
            finally:
                attempt.call = None

        if not self._middleware:
            return await innermost()
        return await around(self._middleware, context, innermost)

    async def _in_child(self, attempt: Attempt) -> Ended:
        if self.children is None:
            text = "isolation='process' needs an app that can be imported: start the worker with `duetime worker module:app`"
            return Ended(Outcome.FAILED, error=ErrorInfo("NotImportable", text))
        claimed = attempt.claimed
        path = None if self.output is None else str(self.output.path(claimed.id, claimed.attempt))
        if attempt.sink is not None:
            attempt.sink.expect()
        attempt.deadline_at += DAY  # its time begins when its process is ready
        async with contextlib.nullcontext() if attempt.spec.isolation == "process" else self._suspects:
            failure = await self.children.prepare()
            if failure is not None:
                return failure
            if self._held_back(claimed):  # since it was claimed: a process takes its time to start
                return Ended(Outcome.RELEASED)
            self._begin_now(attempt)
            self._handed[claimed.id] = claimed
            try:
                return await self.children.perform(
                    claimed,
                    started_at=attempt.started_at,
                    deadline_at=attempt.deadline_at,
                    output_path=path,
                    progress=partial(self.progress, attempt),
                    began=partial(self._begun, claimed.id),
                )
            finally:
                self._begun(claimed.id)

    def _begin_now(self, attempt: Attempt) -> None:
        """Count an attempt's time from here."""
        attempt.started_at = now = self._now()
        attempt.deadline_at = now + int(attempt.timeout * SECOND)
        if attempt.timer is not None:
            self._alarms.remove(attempt.timer)
            attempt.timer = self._alarms.after(attempt.timeout, partial(self.stop, attempt, Stop.TIMEOUT))

    def progress(self, attempt: Attempt, fraction: float, text: str) -> None:
        """Pass on how far an attempt says it is, from whatever thread it says so."""
        mark = Progress(attempt.claimed.id, attempt.claimed.attempt, fraction, text[:500])
        if threading.get_ident() == self._thread:
            self._mark(mark)
        else:
            self._loop.call_soon_threadsafe(self._mark, mark)

    # ---- stopping ----

    def stop(self, attempt: Attempt, why: Stop) -> None:
        """Tell a running attempt to stop. It ends when its code has ended; then `why` decides what that means."""
        if attempt.claimed.id not in self.running or (attempt.stop is not None and why is not Stop.LOST):
            return
        attempt.tell_to_stop(why)
        if self.current.attempt is not attempt:
            self._deliver(attempt)

    def _deliver(self, attempt: Attempt) -> None:
        if attempt.call is not None:
            call = attempt.call
            self._alarms.after(THROW_AFTER, partial(call.throw, AttemptCancelled))
            self._alarms.after(THROW_AFTER + STUCK_AFTER, partial(self._check_stuck, attempt))
        elif attempt.runner is not None:
            attempt.runner.cancel()
            self._alarms.after(STUCK_AFTER, partial(self._check_stuck, attempt))

    def _check_stuck(self, attempt: Attempt) -> None:
        if self.running.get(attempt.claimed.id) is attempt:
            self._stuck(attempt)

    def cancel(self, task_id: str) -> None:
        """Stop an attempt because its task was cancelled; one that has not started never will."""
        attempt = self.running.get(task_id)
        if attempt is not None:
            self.stop(attempt, Stop.CANCEL)
        elif any(claimed.id == task_id for claimed in self._queues.waiting()):
            self.cancels.add(task_id)
            self._queues.ahead.retain(self._checked)

    def lose(self, task_id: str) -> None:
        """Stop an attempt that the store has taken from this worker; nothing is written for it."""
        attempt = self.running.get(task_id)
        if attempt is not None:
            self.stop(attempt, Stop.LOST)
        self._queues.retain(lambda claimed: claimed.id != task_id)

    def hold_starts(self) -> None:
        """Start nothing more and give back what has not started."""
        self._may_start = False
        self.release_queued()

    def allow_starts(self) -> None:
        """Start again, after `hold_starts`."""
        self._may_start = True

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs, and nothing may start until that is allowed again."""
        return not self.running and not self._may_start

    def release_queued(self) -> None:
        """Give back queued attempts that may not start (any more)."""
        self._queues.retain(self._checked)

    def stop_all(self, why: Stop) -> None:
        for attempt in list(self.running.values()):
            self.stop(attempt, why)

    async def close(self) -> None:
        if self._ahead_handle is not None:
            self._ahead_handle.cancel()
        self._threads.close()
        if self.children is not None:
            await self.children.close()

    # ---- ending ----

    def _ended_by(self, attempt: Attempt, error: BaseException) -> Ended:
        """Tell what an exception means, given that the attempt may have been told to stop."""
        if isinstance(error, Interrupted):
            attempt.stop = attempt.stop or Stop.TIMEOUT
        match attempt.stop:
            case Stop.TIMEOUT:
                return Ended(Outcome.TIMED_OUT, error=ErrorInfo("TimedOut", f"ran longer than its timeout of {attempt.timeout:g} s"))
            case Stop.CANCEL:
                return Ended(Outcome.CANCELLED)
            case Stop.RELEASE | Stop.LOST:
                return Ended(Outcome.RELEASED)
            case None:
                return failed(error, self._policy(attempt))

    def _policy(self, attempt: Attempt) -> Any:
        stored = attempt.claimed.retry
        return attempt.spec.retry if stored is None else attempt.spec.retry.with_numbers(stored)

    def _end(self, attempt: Attempt, queue: HandlerQueue, ended: Ended) -> None:
        """Free what an attempt had that waited, and pass its outcome on."""
        if attempt.timer is not None:
            self._alarms.remove(attempt.timer)
        attempt.end()
        del self.running[attempt.claimed.id]
        self.cancels.discard(attempt.claimed.id)
        self._queues.free_slot(queue)
        self.finished += 1
        now = self._now()
        queue.measure(now - attempt.started_at, 1, waited=True)
        # whether it is still ours only the store can say: a worker in doubt may keep its lease after all, and its success must not be lost
        if attempt.stop is not Stop.LOST or ended.outcome is _SUCCEEDED:
            self._conclude(attempt, ended, attempt.started_at, now)
        if queue.more and len(queue.tasks) <= queue.low:
            self._freed()

    def _conclude(self, attempt: Attempt, ended: Ended, started_at: Instant | None, now: Instant | None = None) -> None:
        policy = attempt.spec.retry if ended.outcome is Outcome.SUCCEEDED else self._policy(attempt)
        now = self._now() if now is None else now
        if attempt.claimed.schedule is not None:
            self._expect(attempt.claimed.id, attempt.claimed.schedule)
        settlement = conclude(attempt.claimed, ended, policy, started_at=started_at, now=now, chance=random.random())
        self._queues.by_name[attempt.claimed.handler].tally.note(settlement, attempt.claimed.due_at)
        self._hold = self._settle(settlement)
        if self._watcher is not None:
            self._watcher(attempt, settlement)


def _odd(error: BaseException) -> BaseException:
    """Give the error that stands for one which would mean something else where it arrives."""
    if isinstance(error, StopIteration | GeneratorExit):
        odd = RuntimeError(f"the handler raised {type(error).__name__}")
        odd.__cause__ = error
        return odd
    return error
