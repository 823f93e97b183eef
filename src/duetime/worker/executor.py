"""The executor: slots, starts, stops and ends of attempts. An attempt is performed by its target.

A runner is an asyncio task that takes attempts from the queues and performs them one after another. As long as handlers do not wait for
anything, one runner does all the work in bursts and no further task is made. When a handler waits, its runner waits with it and another
one continues with the queues. A runner that comes back from waiting continues with the queues too.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial

from duetime.clock import SECOND, Instant
from duetime.model.lifecycle import conclude, succeed, without_parking
from duetime.model.outcome import Acceptance, Ended, Outcome, Settlement
from duetime.model.retry import RetryPolicy
from duetime.runtime.service import Alarms
from duetime.store import Store
from duetime.store.values import ClaimedTask, Progress
from duetime.targets.context import Resources
from duetime.targets.endings import succeeded
from duetime.targets.host import TargetHost
from duetime.targets.output import OutputFiles, current_attempt
from duetime.targets.python import threads
from duetime.targets.spawned import Spawned
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import Accepted, HandedOver, Stop, Target
from duetime.worker.attempt import Attempt, Current, Interrupted
from duetime.worker.claimed_ahead import AheadTimer
from duetime.worker.disabling import TargetWatch
from duetime.worker.failures import FailureLog
from duetime.worker.metrics import Tally
from duetime.worker.parked import ToldParked
from duetime.worker.permits import Permits
from duetime.worker.queues import HandlerQueue, HandlerQueues
from duetime.worker.settler import Settler
from duetime.worker.starts import Starts, has_expired
from duetime.worker.steps import Waiting, drive, end_of, first_step, has_ended, raising, returning, unambiguous

logger = logging.getLogger("duetime.worker")

BURST = 2_000  # microseconds that runners may keep the event loop to themselves
IN_A_ROW = 8  # attempts of one handler in a row while others have some queued too
STUCK_AFTER = 10.0  # seconds after which the worker gives up on code that continues although it was interrupted
REST_AFTER = 2.0  # seconds for interrupted code to end what it has started, before that is killed and interrupted too
LOOK_AGAIN = 0.05  # seconds, at most, between looks whether what an attempt has started is gone

_SUCCEEDED = Outcome.SUCCEEDED


class Executor:
    """Starts, stops and ends attempts, and passes their ends on to the settler."""

    def __init__(
        self,
        store: Store,
        specs: Mapping[str, HandlerSpec],
        alarms: Alarms,
        host: TargetHost,
        settler: Settler,
        *,
        concurrency: int | None,
        output: OutputFiles | None,
        freed: Callable[[], None],
        stuck: Callable[[Attempt], None],
    ) -> None:
        self._store = store
        self._now = store.now
        self._alarms = alarms
        self._settler = settler
        self._freed = freed
        self._stuck = stuck
        self._failures = FailureLog(alarms.after)
        self._watcher: Callable[[Attempt, Settlement], None] | None = None
        self._told_parked = ToldParked()
        self.target_watch: TargetWatch | None = None
        self.permits: Permits | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        own = {spec.name: HandlerQueue(spec, spec.target.open(spec, host)) for spec in specs.values()}
        self.queues = HandlerQueues(own.values(), {name: own[spec.name] for name, spec in specs.items()}, concurrency)
        self._ahead = AheadTimer(self.queues.ahead, store, self._start, self._give_back)
        self._active = 0  # runners that do not wait
        self._runners: set[asyncio.Task[None]] = set()
        self._runner_handle: asyncio.Handle | None = None
        self._burst_began: Instant | None = None
        self._settled: asyncio.Future[None] | None = None  # the settler cannot keep up: nothing is begun until this is resolved
        self.host = host
        self.output = output
        self.resources = Resources()
        self.starts = Starts(store.now)
        self.running: dict[str, Attempt] = {}
        self.former: dict[str, Target] = {}  # of running attempts whose handler has another target now
        self._behind: dict[str, ClaimedTask] = {}  # claimed again while an attempt still runs that the store took away
        self.current = Current(alarms.original)
        self.finished = 0

    # ---- what to claim ----

    def wants(self) -> tuple[Mapping[str, int], int]:
        """Return how many attempts each handler could take, and all together; empty while nothing is worth a claim."""
        if not self.starts.allowed:
            return {}, 0
        for queue in self.queues.stalled(self._now()):
            while queue.tasks:
                self._give_back(queue.tasks.popleft(), Outcome.RELEASED)
        return self.queues.wants()

    def free_slots(self) -> dict[str, int]:
        """Return how many attempts of each handler could start now; empty while nothing may."""
        return self.queues.free_slots() if self.starts.allowed else {}

    @property
    def busy(self) -> int:
        """How many attempts run or are about to."""
        return len(self.running) + self.queues.queued

    def attempts(self) -> dict[str, int]:
        """Return all tasks that this worker has, started or not, with their attempt numbers."""
        running = (attempt.claimed for attempt in self.running.values())
        return {claimed.id: claimed.attempt for claimed in (*running, *self.queues.waiting(), *self._behind.values())}

    def watch(self, watcher: Callable[[Attempt, Settlement], None]) -> None:
        """Call a function at the end of every attempt, as it is about to be stored. This is for people: every attempt gets slower."""
        self._watcher = watcher
        if self.output is not None:
            self.output.journal = None  # it wants to read what an attempt printed, whole, after its end
        for queue in self.queues.by_name.values():
            queue.settles_directly = False

    def serve(self, spec: HandlerSpec, target: Target, slots: int) -> None:
        """Run a handler from now on, or in another way, or no more (no slots). Running attempts go on as they began."""
        queue = self.queues.by_name.get(spec.name)
        if queue is None:
            queue = HandlerQueue(spec, target)
            queue.settles_directly = queue.settles_directly and self._watcher is None
            self.queues.add(queue)
        else:
            self.former |= {
                each.claimed.id: queue.target
                for each in self.running.values()
                if each.claimed.handler == spec.name and each.claimed.id not in self.former
            }
            self.queues.change(queue, spec, target, slots)
        if not slots:
            self.queues.retain(lambda claimed: claimed.handler != spec.name or self._returned(claimed))
        self._freed()

    def _returned(self, claimed: ClaimedTask) -> bool:
        self._give_back(claimed, Outcome.RELEASED)
        return False

    def tallies(self) -> dict[str, Tally]:
        """Return what was counted of each handler."""
        return {queue.spec.name: queue.tally for queue in self.queues.by_name.values()}

    # ---- runners ----

    def offer(self, tasks: Sequence[ClaimedTask]) -> None:
        """Take claimed tasks and start what can start; those that are not due yet wait for that."""
        again = [claimed for claimed in tasks if claimed.attempt > 1]
        if again:
            self._drop_older(again)
            tasks = [claimed for claimed in tasks if claimed.id not in self._behind]
        self._start(self._ahead.filter_due(tasks) if self._store.traits.claim_ahead else tasks)

    def _drop_older(self, again: Sequence[ClaimedTask]) -> None:
        """Drop what this worker still has of earlier attempts: the store would not have handed these out if it counted those.

        An attempt whose code still runs is stopped, and the next one waits for its end.
        """
        ids = {claimed.id for claimed in again}
        self.starts.cancels -= ids
        self.queues.retain(lambda older: older.id not in ids)
        for claimed in again:
            older = self.running.get(claimed.id)
            if older is not None:
                logger.error("task %s is claimed again while attempt %d runs here: it waits", claimed.id, older.claimed.attempt)
                self._behind[claimed.id] = claimed
                self.stop(older, Stop.LOST)

    def _start(self, tasks: Iterable[ClaimedTask]) -> None:
        self.queues.put(tasks, self._now())
        self._ensure_runner()

    def go_on(self) -> None:
        """Start what can start: there are more permits."""
        self._ensure_runner()
        self._freed()

    def _ensure_runner(self) -> None:
        """Make a runner if something can start and no runner is at work."""
        self._runner_handle = None
        if self._active == 0 and self.queues.startable:
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
                if self._settled is not None:
                    await self._settled
                    self._settled = None
                waiting = self._burst(runner)
                if waiting is not None:
                    await self._wait(waiting)
                elif not runner.cancelling():
                    if self._active > 1 or not self.queues.startable:
                        break
                    await asyncio.sleep(0)
        finally:
            self._active -= 1
        if runner.cancelling():
            # the cancel may not have arrived yet, and must not hit the next attempt: another runner goes on
            self._ensure_runner()

    def _burst(self, runner: asyncio.Task[None]) -> Waiting | None:
        """Perform attempts until one waits, none may start, or the burst is over."""
        if self.current.original.copied:
            self.current.original.leave()
        now = self._now()
        if self._burst_began is None:
            self._burst_began = now
            self._loop.call_soon(self._end_burst)
        waiting = None
        settled: list[Settlement] = []
        try:
            while waiting is None and self._in_burst(now) and not runner.cancelling() and (queue := self.queues.next()) is not None:
                handed_over = queue.handed_over
                if handed_over is not None and not queue.tasks[0].crashes:
                    now = self._hand_over(queue, handed_over, runner, now)
                else:
                    waiting, now = self._serve(queue, runner, now, settled)
        finally:
            if settled:
                self._settled = self._settler.put(*settled)
        return waiting

    def _in_burst(self, now: Instant) -> bool:
        """Return whether runners may go on; not beyond a step of the clock either, because nobody knows how long that took."""
        return self._burst_began is not None and self._burst_began <= now <= self._burst_began + BURST

    def _end_burst(self) -> None:
        """Runs once the event loop has served everybody: runners may go on."""
        self._burst_began = None

    def _serve(
        self, queue: HandlerQueue, runner: asyncio.Task[None], now: Instant, settled: list[Settlement]
    ) -> tuple[Waiting | None, Instant]:
        """Perform some of a handler's attempts; return the one that waits, if one does, and the time.

        This is the hottest loop of the worker. An attempt that ends without ever waiting is known to nobody but the keeper
        (`current`), takes no slot that anyone could miss, and needs one look at the clock: its end is the next one's start.
        """
        tasks, target, spec, timeout = queue.tasks, queue.target, queue.spec, queue.timeout
        starts, current, clock, settles_directly = self.starts, self.current, self._now, queue.settles_directly
        original = current.original
        left = IN_A_ROW if self.queues.several else len(tasks)
        began_at, ends_at, count = now, (self._burst_began or now) + BURST, 0
        directly = target.direct_call is not None
        begin = usual = first_step(target, direct=directly)
        waiting: Waiting | None = None
        due: list[Instant] = []  # of those that succeeded
        while left and tasks and began_at <= now <= ends_at and not runner.cancelling():
            left -= 1
            claimed = tasks.popleft()
            late = claimed.expires_at is not None and has_expired(claimed, now)
            if (late or starts.cancels or starts.gated or not starts.allowed) and not self._checked(claimed):
                continue
            deadline_at = now + (timeout if claimed.timeout is None else int(claimed.timeout * SECOND))
            attempt = Attempt(claimed, spec, self, runner, now, deadline_at)
            begin = first_step(target, direct=False) if claimed.crashes else usual
            variables = copy_context()
            current.attempt = attempt
            try:
                try:
                    ended = variables.run(begin, attempt)
                finally:
                    current.attempt = None
                    if original.copied:
                        original.leave(sys.exception())
            except BaseException as error:
                if isinstance(error, Interrupted) and attempt.work is not None and not has_ended(attempt.work):
                    waiting = Waiting(attempt, queue, attempt.work, begin, directly and begin is usual, variables, None, error)
                    break
                usual = first_step(target, direct=directly)
                if attempt.spawned is not None:  # its threads and processes have to end first
                    waiting = Waiting(attempt, queue, raising(unambiguous(error)), begin, False, variables, None, None)
                    break
                ended = self._ended_by(attempt, unambiguous(error))
            else:
                if attempt.work is not None:
                    waiting = Waiting(attempt, queue, attempt.work, begin, directly and begin is usual, variables, ended, None)
                    break
                if attempt.spawned is not None:
                    waiting = Waiting(attempt, queue, returning(ended), begin, False, variables, None, None)
                    break
            attempt.end()
            if starts.beginning:
                starts.begun(claimed.id)
            now = clock()
            count += 1
            if settles_directly and ended.outcome is _SUCCEEDED:
                settled.append(succeed(claimed, ended.result, ended.detail, attempt.started_at, now))
                due.append(claimed.due_at)
                if claimed.schedule is not None:
                    self._settler.expect(claimed.id, claimed.schedule)
            else:
                self._conclude(attempt, ended, attempt.started_at, now)
                now = clock()  # describing an error takes its time
        self.finished += count
        queue.served_at = now
        if count:
            queue.measure((now - began_at) / count, count, waited=False)
            if queue.limits:
                queue.begin(count)
        if due:
            queue.tally.note_successes(settled[-len(due) :], due, began_at if len(due) == count else None)
        if queue.more and len(tasks) <= queue.low:
            self._freed()
        return waiting, now

    def _hand_over(self, queue: HandlerQueue, target: HandedOver, runner: asyncio.Task[None], now: Instant) -> Instant:
        """Hand a handler's attempts over to threads, as many as there are slots for. They take their slots now; nothing waits for them."""
        tasks, spec, timeout, starts = queue.tasks, queue.spec, queue.timeout, self.starts
        ends_at, calls = (self._burst_began or now) + BURST, []
        left = IN_A_ROW if self.queues.several else len(tasks)
        while left and tasks and queue.startable > 0 and self.queues.free > 0 and now <= ends_at and not runner.cancelling():
            left -= 1
            if tasks[0].crashes:
                break
            claimed = tasks.popleft()
            if (starts.cancels or starts.gated or not starts.allowed) and not self._checked(claimed):
                continue
            seconds = spec.timeout if claimed.timeout is None else claimed.timeout
            attempt = Attempt(claimed, spec, self, None, now, now + (timeout if claimed.timeout is None else int(seconds * SECOND)))
            variables = copy_context()
            variables.run(current_attempt.set, attempt)
            self.queues.take_slot(queue, attempt.claimed.priority)
            self.running[claimed.id] = attempt
            try:
                call = target.call(attempt, variables, partial(self._called, attempt, queue))
            except Exception as error:
                self._end(attempt, queue, self._ended_by(attempt, error))
                now = self._now()
                continue
            attempt.timer = self._alarms.after(seconds, partial(self.stop, attempt, Stop.TIMEOUT))
            attempt.call = call
            calls.append(call)
        if calls:
            target.hand_over(calls)
        queue.served_at = now = self._now()
        return now

    def _called(self, attempt: Attempt, queue: HandlerQueue, value: object, failure: BaseException | None) -> None:
        """End an attempt whose code has ended in a thread."""
        attempt.call = None
        if failure is None:
            ended = attempt.blanked(succeeded(value))
        else:
            ended = self._ended_by(attempt, unambiguous(failure))
        if attempt.spawned is None:
            self._end(attempt, queue, ended)
        else:
            rest = self._loop.create_task(self._end_later(attempt, attempt.spawned, queue, ended))
            self._runners.add(rest)
            rest.add_done_callback(self._runners.discard)
        if self._active == 0 and self._runner_handle is None and self.queues.startable:
            self._runner_handle = self._loop.call_soon(self._ensure_runner)

    async def _end_later(self, attempt: Attempt, spawned: Spawned, queue: HandlerQueue, ended: Ended) -> None:
        try:
            await self._until_over(spawned, succeeded=ended.outcome is _SUCCEEDED)
        finally:
            self._end(attempt, queue, ended)
            self._ensure_runner()

    async def _wait(self, waiting: Waiting) -> None:
        """Drive an attempt that waits to its end. Meanwhile it takes a slot, its time is bounded, and another runner goes on."""
        attempt, queue = waiting.attempt, waiting.queue
        self.queues.take_slot(queue, attempt.claimed.priority)
        self.running[attempt.claimed.id] = attempt
        left = (attempt.deadline_at - self._now()) / SECOND
        attempt.timer = self._alarms.after(max(left, 0.0), partial(self.stop, attempt, Stop.TIMEOUT))
        self._active -= 1
        if self._active == 0 and self._runner_handle is None and self.queues.startable:
            # not at once: a runner that comes back from waiting until then spares us a new one
            self._runner_handle = self._loop.call_soon(self._ensure_runner)
        ended: Ended | Accepted
        try:
            try:
                ended = attempt.blanked(end_of(await drive(waiting, self.current), waiting.direct))
            except GeneratorExit:
                raise
            except BaseException as error:
                ended = self._ended_by(attempt, error)
            if attempt.spawned is not None:
                await self._until_over(attempt.spawned, succeeded=ended.outcome in (_SUCCEEDED, None))
        finally:
            self._active += 1
        self._end(attempt, queue, ended)

    async def _until_over(self, spawned: Spawned, *, succeeded: bool) -> None:
        """Wait until nothing runs that an attempt's code has started, however often the waiting is cancelled meanwhile.

        After a success its threads may finish, and its processes are left alone; otherwise the one is interrupted and the other killed.
        """
        interrupt = None if succeeded else self._loop.call_later(threads.THROW_AFTER, spawned.interrupt)
        pause = 0.001
        try:
            while spawned.calling if succeeded else spawned.end():
                try:
                    await asyncio.sleep(pause)
                except asyncio.CancelledError:
                    if self.host.threads.closed:  # nobody waits for the end of code any more
                        raise
                pause = min(2 * pause, LOOK_AGAIN)
        finally:
            if interrupt is not None:
                interrupt.cancel()

    # ---- starting ----

    def _checked(self, claimed: ClaimedTask) -> bool:
        """Return whether an attempt may start; if not, give it back."""
        refusal = self.starts.refusal(claimed)
        if refusal is not None:
            self._give_back(claimed, refusal)
        return refusal is None

    def _give_back(self, claimed: ClaimedTask, outcome: Outcome) -> None:
        """End an attempt that never started."""
        self.starts.cancels.discard(claimed.id)  # or an operator's retry of the cancelled task would be cancelled by this worker
        self._conclude(Attempt(claimed, self.queues.by_name[claimed.handler].spec, self, None, 0, 0), Ended(outcome), None)

    def may_begin(self, attempt: Attempt) -> bool:
        """Count an attempt's time from now, unless it has been held back since it was claimed."""
        if self.starts.held_back(attempt.claimed):
            return False
        attempt.started_at = now = self._now()
        attempt.deadline_at = now + int(attempt.timeout * SECOND)
        if attempt.timer is not None:
            self._alarms.remove(attempt.timer)
            attempt.timer = self._alarms.after(attempt.timeout, partial(self.stop, attempt, Stop.TIMEOUT))
        self.starts.begin(attempt.claimed)
        return True

    def has_begun(self, attempt: Attempt) -> None:
        """Note that an attempt's code runs."""
        self.starts.begun(attempt.claimed.id)

    def report(self, attempt: Attempt, fraction: float, text: str) -> None:
        """Pass on the progress of an attempt, from any thread."""
        mark = Progress(attempt.claimed.id, attempt.claimed.attempt, fraction, text[:500])
        if threading.get_ident() == self._thread:
            self._settler.mark(mark)
        else:
            self._loop.call_soon_threadsafe(self._settler.mark, mark)

    def hold_starts(self) -> None:
        """Start nothing more and give back what has not started."""
        self.starts.allowed = False
        self.release_queued()

    def release_queued(self) -> None:
        """Give back queued attempts that may not start (any more), those that wait for threads too."""
        self.queues.retain(self._checked)
        for attempt in self.running.values():
            call = attempt.call if attempt.stop is None else None
            if call is not None and self.starts.held_back(attempt.claimed) and call.prevent():
                attempt.stop = Stop.RELEASE

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs, and nothing may start until that is allowed again."""
        return not self.running and not self.starts.allowed

    # ---- stopping ----

    def stop(self, attempt: Attempt, why: Stop) -> None:
        """Make a running attempt stop. It ends when its code has ended; then `why` decides what that means."""
        if attempt.claimed.id not in self.running or (attempt.stop is not None and why is not Stop.LOST):
            return
        attempt.tell_to_stop(why)
        if self.current.attempt is not attempt:
            try:
                target = self.former.get(attempt.claimed.id) or self.queues.by_name[attempt.claimed.handler].target
                interrupted_in = target.stop(attempt, why)
            except Exception:  # it must not keep others from being stopped; if the code goes on, it is found stuck
                claimed = attempt.claimed
                logger.exception("the target of %s failed to stop attempt %d of task %s", claimed.handler, claimed.attempt, claimed.id)
                interrupted_in = 0.0
            self._alarms.after(interrupted_in + REST_AFTER, partial(self._stop_spawned, attempt))
            self._alarms.after(interrupted_in + STUCK_AFTER, partial(self._check_stuck, attempt))

    def _stop_spawned(self, attempt: Attempt) -> None:
        """Interrupt and kill what an attempt's code has started: the code may wait for that, and had its time to end it."""
        if self.running.get(attempt.claimed.id) is attempt and attempt.spawned is not None:
            attempt.spawned.interrupt()
            attempt.spawned.kill()

    def kill_processes(self) -> None:
        """Kill all processes that attempts have started, and all sub-processes; from any thread."""
        self.host.kill()
        for attempt in tuple(self.running.values()):
            if attempt.spawned is not None:
                attempt.spawned.kill()

    def _check_stuck(self, attempt: Attempt) -> None:
        if self.running.get(attempt.claimed.id) is attempt:
            self._stuck(attempt)

    def cancel(self, task_id: str) -> None:
        """Stop an attempt because its task was cancelled; one that has not started never will."""
        attempt = self.running.get(task_id)
        if task_id in self._behind:
            self.starts.cancels.add(task_id)
        elif attempt is not None:
            self.stop(attempt, Stop.CANCEL)
        elif any(claimed.id == task_id for claimed in self.queues.waiting()):
            self.starts.cancels.add(task_id)
            self.queues.ahead.retain(self._checked)

    def lose(self, task_id: str) -> None:
        """Stop an attempt that the store has taken from this worker; nothing is written for it."""
        self._behind.pop(task_id, None)
        self.starts.cancels.discard(task_id)
        self.starts.probes.discard(task_id)
        attempt = self.running.get(task_id)
        if attempt is not None:
            self.stop(attempt, Stop.LOST)
        self.queues.retain(lambda claimed: claimed.id != task_id)

    def stop_all(self, why: Stop) -> None:
        for attempt in list(self.running.values()):
            self.stop(attempt, why)

    async def close(self) -> None:
        self._ahead.close()
        self._failures.tell()
        await self.host.close()

    # ---- ending ----

    def _ended_by(self, attempt: Attempt, error: BaseException) -> Ended:
        """Return what an exception means, given that the attempt may have been told to stop."""
        return attempt.ended_by(error, self._policy(attempt))

    def _policy(self, attempt: Attempt) -> RetryPolicy:
        stored = attempt.claimed.retry
        return attempt.spec.retry if stored is None else attempt.spec.retry.with_numbers(stored)

    def _end(self, attempt: Attempt, queue: HandlerQueue, ended: Ended | Accepted) -> None:
        """Free the slot of an attempt that waited, and pass its end on."""
        if attempt.timer is not None:
            self._alarms.remove(attempt.timer)
        attempt.end()
        del self.running[attempt.claimed.id]
        if self.former:
            self.former.pop(attempt.claimed.id, None)
        behind = self._behind.pop(attempt.claimed.id, None)
        if behind is None:
            self.starts.cancels.discard(attempt.claimed.id)
        self.starts.begun(attempt.claimed.id)
        self.queues.free_slot(queue, attempt.claimed.priority)
        if queue.limits and self.permits is not None:
            if isinstance(ended, Accepted) and (attempt.stop is not Stop.LOST or ended.outcome is None):
                self.permits.hand_over(attempt.claimed.id, queue)
            else:
                self.permits.free(queue)
        self.finished += 1
        now = self._now()
        queue.measure(now - attempt.started_at, 1, waited=True)
        # only the store knows whether the attempt is still ours: the lease may have held after all, and then a success must not be lost
        if attempt.stop is not Stop.LOST or ended.outcome in (_SUCCEEDED, None):
            self._conclude(attempt, ended, attempt.started_at, now)
        if behind is not None:
            self._start([behind])
        if queue.more and len(queue.tasks) <= queue.low:
            self._freed()

    def _conclude(self, attempt: Attempt, ended: Ended | Accepted, started_at: Instant | None, now: Instant | None = None) -> None:
        watch = None if attempt.spec.disabling is None else self.target_watch
        if isinstance(ended, Accepted):  # it goes on elsewhere: nothing is counted before its end
            if watch is not None:
                watch.accepted(attempt.claimed, attempt.spec)
            claimed = attempt.claimed
            self._settler.hand_over(Acceptance(claimed.id, claimed.attempt, ended.deadline_at, ended.silence, ended.location))
            return
        if ended.outcome is Outcome.PARKED:
            ended = without_parking(ended, attempt.claimed.meta)
        policy = attempt.spec.retry if ended.outcome is Outcome.SUCCEEDED else self._policy(attempt)
        now = self._now() if now is None else now
        if attempt.claimed.schedule is not None:
            self._settler.expect(attempt.claimed.id, attempt.claimed.schedule)
        probe = watch is not None and watch.spares(attempt.claimed, attempt.spec)
        settlement = conclude(attempt.claimed, ended, policy, started_at=started_at, now=now, chance=random.random(), probe=probe)
        if watch is not None:
            watch.note(attempt.claimed, attempt.spec, ended, settlement)
        if settlement.outcome is Outcome.PARKED:
            self._told_parked.tell(attempt.claimed, settlement)
        self.queues.by_name[attempt.claimed.handler].tally.note(settlement, attempt.claimed.due_at)
        self._settled = self._settler.put(settlement)
        if settlement.error is not None:
            self._failures.note(attempt.claimed.handler, settlement, attempt.raised)
            attempt.raised = None
        if self._watcher is not None:
            self._watcher(attempt, settlement)
