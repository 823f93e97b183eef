"""The executor: slots, starts, stops and ends of attempts.

A runner is an asyncio task that takes attempts from the queues and awaits them one after another. As long as handlers do
not wait for anything, one runner does all the work and no further task is made. When a handler waits, its runner waits with
it and another one goes on with the queues.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from duetime.clock import DAY, SECOND, Instant
from duetime.errors import AttemptCancelled
from duetime.model.gate import Gates
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome, Settlement
from duetime.model.task import ErrorInfo
from duetime.output import OutputFiles, Sink, current_sink
from duetime.service import Alarms
from duetime.store.protocol import ClaimedTask, Progress, Store
from duetime.targets.context import Context, Resources, _current
from duetime.targets.process import ChildPool
from duetime.targets.python import NOTHING, Middleware, around, failed, positional, succeeded
from duetime.targets.spec import HandlerSpec
from duetime.worker.attempt import Attempt, Current, Interrupted, Stop, drive
from duetime.worker.threads import ThreadRoom

logger = logging.getLogger("duetime.worker")

LARGEST_BUFFER = 1_000
BUFFERED_TIME = 50_000  # microseconds of work that may wait in memory
TURN = 0.002  # seconds that one runner may keep the event loop to itself
MOST_SUSPECTS = 4  # sub-processes for tasks whose process died; one poisonous task may have made hundreds of suspects
THROW_AFTER = 1.0  # a thread that was told to stop is interrupted after so many seconds
STUCK_AFTER = 10.0  # and given up after so many more


class Room:
    """One handler's slots in this process, its queue, and how long its attempts take."""

    __slots__ = ("average", "concurrency", "free", "low", "queue", "spec")

    def __init__(self, spec: HandlerSpec, concurrency: int) -> None:
        self.spec = spec
        self.concurrency = concurrency
        self.free = concurrency
        self.queue: deque[Attempt] = deque()
        self.average: float | None = None  # microseconds, of recent attempts
        self.low = 0  # with so few attempts queued it is time to claim more

    def buffer(self) -> int:
        """How many attempts may wait beyond the slots: at most 50 ms of work, so slow handlers have none."""
        if self.average is None or self.average > BUFFERED_TIME:
            return 0
        return min(LARGEST_BUFFER, int(self.concurrency * BUFFERED_TIME / max(self.average, 1.0)))

    def measure(self, duration: int) -> None:
        self.average = duration if self.average is None else self.average * 0.9 + duration * 0.1


class Executor:
    """Performs attempts; knows which run, and tells the settler how they ended."""

    def __init__(
        self,
        store: Store,
        specs: Mapping[str, HandlerSpec],
        alarms: Alarms,
        *,
        concurrency: int | None,
        middleware: Sequence[Middleware],
        output: OutputFiles | None,
        settle: Callable[[Settlement], None],
        mark: Callable[[Progress], None],
        freed: Callable[[], None],
        stuck: Callable[[Attempt], None],
    ) -> None:
        self._store = store
        self._now = store.now
        self._alarms = alarms
        self._middleware = list(middleware)
        self._output = output
        self._settle = settle
        self._mark = mark
        self._freed = freed
        self._stuck = stuck
        own = {spec.name: Room(spec, spec.concurrency) for spec in specs.values()}
        self._rooms = {name: own[spec.name] for name, spec in specs.items()}  # an alias shares its handler's room
        self._total = sum(room.concurrency for room in own.values()) if concurrency is None else concurrency
        self._free = self._total
        self._turns: deque[str] = deque()  # handlers with something queued, the next to serve first
        self._queued = 0
        self._leader: asyncio.Task[None] | None = None
        self._runners: set[asyncio.Task[None]] = set()
        self._threads = ThreadRoom()
        self._suspects = asyncio.Semaphore(MOST_SUSPECTS)
        self._may_start = True
        self.children: ChildPool | None = None
        self.resources = Resources()
        self.gates = Gates()
        self.running: dict[str, Attempt] = {}
        self.cancels: set[str] = set()
        self.current = Current()
        self.finished = 0

    # ---- what to claim ----

    def wants(self) -> tuple[dict[str, int], int]:
        """Give how many attempts each handler could take, and all together; empty while nothing is worth a claim."""
        wants: dict[str, int] = {}
        total, worthy = 0, False
        if not self._may_start:
            return {}, 0
        room_left = self._free - self._queued
        for name, room in self._rooms.items():
            queued, buffer = len(room.queue), room.buffer()
            room.low = buffer // 2
            want = room.free + buffer - queued
            if want > 0:
                wants[name] = want
                total += want
                # half a buffer, or a slot with nothing to do in it, is worth a round trip
                worthy = worthy or (room.free > queued and room_left > 0) or queued <= room.low
        if not worthy or (room_left <= 0 and all(self._rooms[name].buffer() == 0 for name in wants)):
            return {}, 0
        return wants, min(total, LARGEST_BUFFER, max(room_left, 0) + max((self._rooms[name].buffer() for name in wants), default=0))

    @property
    def handlers(self) -> int:
        """How many names of handlers there are to claim for."""
        return len(self._rooms)

    @property
    def busy(self) -> int:
        return len(self.running)

    def attempts(self) -> dict[str, int]:
        """Give all tasks that this worker has, started or not, with their attempt numbers."""
        queued = (attempt for name in self._turns for attempt in self._rooms[name].queue)
        return {attempt.claimed.id: attempt.claimed.attempt for attempt in (*self.running.values(), *queued)}

    # ---- starting ----

    def offer(self, tasks: Iterable[ClaimedTask]) -> None:
        """Take claimed tasks and start what can start."""
        for claimed in tasks:
            room = self._rooms[claimed.handler]
            if not room.queue:
                self._turns.append(claimed.handler)
            room.queue.append(Attempt(claimed, room.spec, self._progress))
            self._queued += 1
        self._lead()

    def _lead(self) -> None:
        if self._queued and self._leader is None and self._free > 0:
            self._leader = asyncio.create_task(self._run(), name="duetime runner")
            self._runners.add(self._leader)
            self._leader.add_done_callback(self._runners.discard)

    async def _run(self) -> None:
        """Take attempts and perform them until there is nothing to start, or another runner leads."""
        loop = asyncio.get_running_loop()
        runner = asyncio.current_task()
        assert runner is not None
        began = loop.time()
        try:
            while self._leader is runner and (attempt := self._next()) is not None:
                await self._perform(attempt, runner)
                if runner.cancelling():
                    # the cancel may not have arrived yet, and must not hit the next attempt: another runner goes on
                    self._leader = None if self._leader is runner else self._leader
                    self._lead()
                    return
                if self._leader is None:
                    self._leader = runner  # it waited, and nobody leads: go on
                if loop.time() - began > TURN:
                    await asyncio.sleep(0)
                    began = loop.time()
        finally:
            if self._leader is runner:
                self._leader = None

    def _next(self) -> Attempt | None:
        """Take the next attempt that may start, handler by handler, and a slot for it."""
        blocked = 0
        while self._free > 0 and blocked < len(self._turns):
            name = self._turns[0]
            room = self._rooms[name]
            if room.free <= 0:
                self._turns.rotate(-1)
                blocked += 1
                continue
            blocked = 0
            attempt = room.queue.popleft()
            self._queued -= 1
            if room.queue:
                self._turns.rotate(-1)
            else:
                self._turns.popleft()
            if (self._may_start and not self.cancels and not self.gates) or self._checked(attempt):
                room.free -= 1
                self._free -= 1
                return attempt
        return None

    def _checked(self, attempt: Attempt) -> bool:
        """Check in memory, in the thread that starts it, whether an attempt may start; if not, give it back."""
        claimed = attempt.claimed
        if claimed.id in self.cancels:
            self.cancels.discard(claimed.id)
            self._give_back(attempt, Outcome.CANCELLED)
        elif not self._may_start or (self.gates and self.gates.holding(claimed.handler, claimed.collection, self._now()) is not None):
            self._give_back(attempt, Outcome.RELEASED)
        else:
            return True
        return False

    def _give_back(self, attempt: Attempt, outcome: Outcome) -> None:
        """End an attempt that never started."""
        self._conclude(attempt, Ended(outcome), None)

    # ---- performing ----

    async def _perform(self, attempt: Attempt, runner: asyncio.Task[None]) -> None:
        claimed, spec = attempt.claimed, attempt.spec
        attempt.started_at = now = self._now()
        attempt.deadline_at = now + int(attempt.timeout * SECOND)
        attempt.runner = runner
        self.running[claimed.id] = attempt
        try:
            value = await drive(self._work(attempt), self._variables(attempt), attempt, self.current, self._suspended)
            ended = NOTHING if value is None else value if type(value) is Ended else succeeded(value)
        except GeneratorExit:
            raise
        except BaseException as error:
            ended = self._ended_by(attempt, error)
        self._end(attempt, spec, ended)

    def _variables(self, attempt: Attempt) -> contextvars.Context:
        """Make the attempt's own context variables: who runs, and where its output goes."""
        variables = contextvars.copy_context()
        if self._output is not None:
            attempt.sink = Sink(self._output, attempt.claimed.id, attempt.claimed.attempt)
        variables.run(_enter, attempt)
        return variables

    def _work(self, attempt: Attempt) -> Coroutine[Any, Any, Any]:
        """Give the coroutine of an attempt: the handler's own if nothing lies between."""
        claimed, spec = attempt.claimed, attempt.spec
        attempt.context = context = Context(
            claimed,
            started_at=attempt.started_at,
            deadline_at=attempt.deadline_at,
            resources=self.resources,
            progress=attempt.report,
        )
        # a task whose process died before runs alone in a child, so that the next death can be blamed on the right one
        if spec.isolation == "process" or (claimed.crashes and self.children is not None):
            return self._in_child(attempt)
        if spec.is_async and not self._middleware:
            try:
                arguments = spec.payloads.decode(claimed.payload)
                call = spec.function(context, **arguments) if spec.takes_context else spec.function(**arguments)
                return cast(Coroutine[Any, Any, Any], call)
            except Exception as error:
                return _raise(error)
        return self._in_layers(attempt, context)

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
        path = None if self._output is None else str(self._output.path(claimed.id, claimed.attempt))
        attempt.deadline_at += DAY  # its time begins when its process is ready
        async with contextlib.nullcontext() if attempt.spec.isolation == "process" else self._suspects:
            failure = await self.children.prepare()
            if failure is not None:
                return failure
            self._begin_now(attempt)
            return await self.children.perform(
                claimed,
                started_at=attempt.started_at,
                deadline_at=attempt.deadline_at,
                output_path=path,
                progress=attempt.report,
            )

    def _begin_now(self, attempt: Attempt) -> None:
        """Count an attempt's time from here."""
        attempt.started_at = now = self._now()
        attempt.deadline_at = now + int(attempt.timeout * SECOND)
        if attempt.timer is not None:
            self._alarms.remove(attempt.timer)
            attempt.timer = self._alarms.after(attempt.timeout, partial(self.stop, attempt, Stop.TIMEOUT))

    def _progress(self, attempt: Attempt, fraction: float, text: str) -> None:
        mark = Progress(attempt.claimed.id, attempt.claimed.attempt, fraction, text[:500])
        if attempt.call is None:
            self._mark(mark)
        elif attempt.runner is not None:
            attempt.runner.get_loop().call_soon_threadsafe(self._mark, mark)

    def _suspended(self, attempt: Attempt) -> None:
        """Note that an attempt waits: bound its time, and let another runner go on."""
        if attempt.stop is not None:  # told to stop while it ran: the cancel is delivered now that it waits
            self._deliver(attempt)
        left = (attempt.deadline_at - self._now()) / SECOND
        attempt.timer = self._alarms.after(max(left, 0.0), partial(self.stop, attempt, Stop.TIMEOUT))
        if self._leader is attempt.runner:
            self._leader = None
            self._lead()

    # ---- stopping ----

    def stop(self, attempt: Attempt, why: Stop) -> None:
        """Tell a running attempt to stop. It ends when its code has ended; then `why` decides what that means."""
        if attempt.claimed.id not in self.running or (attempt.stop is not None and why is not Stop.LOST):
            return
        attempt.stop = why
        if attempt.context is not None:
            attempt.context.tell_to_stop()
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
        elif task_id in self.attempts():
            self.cancels.add(task_id)

    def lose(self, task_id: str) -> None:
        """Stop an attempt that the store has taken from this worker; nothing is written for it."""
        attempt = self.running.get(task_id)
        if attempt is not None:
            self.stop(attempt, Stop.LOST)
        for name in list(self._turns):
            queue = self._rooms[name].queue
            kept = [waiting for waiting in queue if waiting.claimed.id != task_id]
            self._queued -= len(queue) - len(kept)
            queue.clear()
            queue.extend(kept)
        self._turns = deque(name for name in self._turns if self._rooms[name].queue)

    def hold_starts(self) -> None:
        """Start nothing more and give back what has not started."""
        self._may_start = False
        self.release_queued()

    def allow_starts(self) -> None:
        """Start again, after `hold_starts`."""
        self._may_start = True

    def release_queued(self) -> None:
        """Give back queued attempts that may not start (any more)."""
        for name in list(self._turns):
            room = self._rooms[name]
            waiting = list(room.queue)
            room.queue.clear()
            self._queued -= len(waiting)
            for attempt in waiting:
                if self._checked(attempt):
                    room.queue.append(attempt)
                    self._queued += 1
        self._turns = deque(name for name in self._turns if self._rooms[name].queue)

    def stop_all(self, why: Stop) -> None:
        for attempt in list(self.running.values()):
            self.stop(attempt, why)

    async def close(self) -> None:
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

    def _end(self, attempt: Attempt, spec: HandlerSpec, ended: Ended) -> None:
        if attempt.timer is not None:
            self._alarms.remove(attempt.timer)
        if attempt.sink is not None:
            attempt.sink.close()
        del self.running[attempt.claimed.id]
        self.cancels.discard(attempt.claimed.id)
        room = self._rooms[attempt.claimed.handler]
        room.free += 1
        self._free += 1
        self.finished += 1
        now = self._now()
        room.measure(now - attempt.started_at)
        if attempt.stop is not Stop.LOST:
            self._conclude(attempt, ended, attempt.started_at, now)
        if len(room.queue) <= room.low:
            self._freed()
        if self._queued and self._leader is None:
            self._lead()

    def _conclude(self, attempt: Attempt, ended: Ended, started_at: Instant | None, now: Instant | None = None) -> None:
        policy = attempt.spec.retry if ended.outcome is Outcome.SUCCEEDED else self._policy(attempt)
        now = self._now() if now is None else now
        self._settle(conclude(attempt.claimed, ended, policy, started_at=started_at, now=now, chance=random.random()))


def _enter(attempt: Attempt) -> None:
    """Set the context variables that handlers and their output are found by."""
    if attempt.context is not None:
        _current.set(attempt.context)
    if attempt.sink is not None:
        current_sink.set(attempt.sink)


async def _raise(error: Exception) -> None:
    raise error
