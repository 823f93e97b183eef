"""The queues of a worker, one per handler: its slots, the tasks that wait for them, and how many more to claim."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from duetime.clock import SECOND, Instant
from duetime.model.claim_order import Below
from duetime.model.task import DEFAULT_PRIORITY, PRIORITIES
from duetime.store.values import ClaimedTask
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import HandedOver, Target
from duetime.worker.claimed_ahead import ClaimedAhead
from duetime.worker.held_limit import HeldLimit
from duetime.worker.metrics import Tally

LARGEST_CLAIM = 2_000
LARGEST_BUFFER = 2 * LARGEST_CLAIM  # one claim's worth waits while the next one is under way
BUFFERED_TIME = 50_000  # microseconds of work that may wait in memory
STALE_AFTER = SECOND  # tasks that have waited here so long, because attempts became slow, go back: another worker may have slots

NO_PRIORITY = len(PRIORITIES)  # above all

_handler_of = attrgetter("handler")


class HandlerQueue:
    """One handler's slots in this process, its queue, and how long its attempts take."""

    __slots__ = (
        "begun",
        "concurrency",
        "duration",
        "free",
        "handed_over",
        "limits",
        "low",
        "more",
        "names",
        "nothing_from",
        "pace",
        "reserve",
        "running",
        "served_at",
        "settles_directly",
        "spec",
        "tally",
        "target",
        "tasks",
        "timeout",
    )

    def __init__(self, spec: HandlerSpec, target: Target) -> None:
        self.spec = spec
        self.serve_with(target)
        self.concurrency = spec.concurrency
        self.free = spec.concurrency
        self.timeout = int(spec.timeout * SECOND)  # microseconds for one attempt, unless its task says otherwise
        self.tasks: deque[ClaimedTask] = deque()
        self.names: dict[str, bool] = {}  # its name and aliases, and whether the last claim had tasks of that name
        self.settles_directly = spec.disabling is None  # whether a plain success needs nothing but its settlement
        self.duration: float | None = None  # microseconds from start to end, of recent attempts
        self.pace = 0.0  # microseconds from one start to the next, if all goes as it went lately
        self.more = True  # whether the store may have due tasks for it
        self.low = 0  # with so few attempts queued it is time to claim more
        self.served_at: Instant = 0  # when the queue was last known to move
        self.tally = Tally()
        self.limits: tuple[tuple[HeldLimit, int], ...] = ()  # limits of the fleet, and what an attempt takes of each
        self.begun = 0  # attempts; counted only with such limits
        self.reserve = spec.reserve  # slots that are kept for tasks of so high a priority
        self.running: Counter[int] = Counter()  # attempts in the slots by priority; counted only with a reserve
        self.nothing_from = NO_PRIORITY  # nothing is due with such a priority or a higher one, as far as is known

    def serve_with(self, target: Target) -> None:
        self.target = target
        self.handed_over = target if isinstance(target, HandedOver) else None

    def buffer(self) -> int:
        """Return how many attempts may wait beyond the slots: at most 50 ms of work, so none of a slow handler."""
        if self.duration is None or self.duration > BUFFERED_TIME or not self.concurrency or self.reserve:
            return 0
        buffer = min(LARGEST_BUFFER, int(BUFFERED_TIME / max(self.pace, 1.0)))
        if self.limits:  # only so many run at once, whatever slots there are
            at_once = min(min(limit.held, limit.target) // each for limit, each in self.limits)
            buffer = min(buffer, int(at_once * BUFFERED_TIME / max(self.duration, 1.0)))
        return buffer

    @property
    def startable(self) -> int:
        """How many attempts could begin now: slots, and permits of every limit."""
        if not self.limits:
            return self.free
        return max(0, min(self.free, *(limit.free_for(self) // each for limit, each in self.limits)))

    def begin(self, count: int = 1) -> None:
        """Note that attempts of a handler with limits begin."""
        self.begun += count
        for limit, _ in self.limits:
            limit.begin(self)

    def startable_below(self, ahead: Iterable[ClaimedTask]) -> dict[int, int]:
        """Return how many more tasks could begin with a lower priority than each that has a reserve, besides those that were claimed."""
        taken = self.running + Counter(claimed.priority for claimed in chain(self.tasks, ahead))
        allowed = {}
        for least in self.reserve:
            kept = sum(slots for priority, slots in self.reserve.items() if priority >= least)
            allowed[least] = max(0, self.concurrency - kept - sum(n for priority, n in taken.items() if priority < least))
        return allowed

    def learn(self, tasks: Collection[ClaimedTask], want: int, below: Mapping[int, int], *, full: bool) -> None:
        """Learn from a claim that brought less than was wanted: lower priorities may have more, higher ones have not."""
        if full or len(tasks) >= want:
            return
        bound = [least for least, most in below.items() if sum(claimed.priority < least for claimed in tasks) >= most]
        self.more = bool(bound)
        self.nothing_from = max(bound, default=NO_PRIORITY)

    def measure(self, duration: float, count: int, *, waited: bool) -> None:
        """Learn how long attempts take. Attempts that never waited ran one after the other, however many slots there are."""
        weight = 1 - 0.9 ** min(count, 100)
        pace = duration / (self.concurrency or 1) if waited else duration
        if self.duration is None:
            self.duration, self.pace = duration, pace
        else:
            self.duration += (duration - self.duration) * weight
            self.pace += (pace - self.pace) * weight

    def has_stalled(self, now: Instant) -> bool:
        """Return whether queued tasks have waited too long; if so, expect attempts to stay that slow."""
        if not self.tasks or now - self.served_at <= STALE_AFTER:
            return False
        self.duration = max(self.duration or 0.0, STALE_AFTER)
        return True


def shares(names: Mapping[str, bool], want: int) -> dict[str, int]:
    """Divide what one queue wants among its names: one each, the rest among those that had tasks last time.

    A claim bounds tasks by name, but the names share their slots.
    """
    if len(names) == 1:
        return dict.fromkeys(names, want)
    busy: Collection[str] = [name for name, had_some in names.items() if had_some] or [next(iter(names))]
    rest = max(want - len(names), 0)
    return {name: 1 + (rest // len(busy) if name in busy else 0) for name in names}


class HandlerQueues:
    """The queues of all handlers in one worker, and the slots of the process that they share. Queues are served round robin.

    Most of a thousand handlers are idle, so only *active* queues are looked at for each claim: those that have tasks or running attempts,
    have just had some, or may have more due tasks. An idle one wants what it wanted when it was last active.
    """

    def __init__(self, queues: Iterable[HandlerQueue], by_name: dict[str, HandlerQueue], slots: int | None) -> None:
        self._own = list(queues)
        self._active = set(self._own)
        self._more_for_buffers = self._more_for_others = True  # whether there may be due tasks for idle queues, with and without a buffer
        self._with_tasks: OrderedDict[HandlerQueue, None] = OrderedDict()  # queues that may hold tasks, the next one to serve first
        self._wants: dict[str, int] = {}  # of all queues that want some
        self._buffers: dict[HandlerQueue, int] = {}  # of those among them that have a buffer
        self._startable_below: dict[HandlerQueue, dict[int, int]] = {}  # of those that have a reserve
        self.ahead = ClaimedAhead()
        self.on_lack: Callable[[], None] | None = None  # called when permits of a limit keep a handler from claiming
        self.by_name = by_name  # an alias shares its handler's queue
        self._most = slots
        self.slots = self.free = self._slots()
        for name, queue in by_name.items():
            queue.names[name] = False

    def _slots(self) -> int:
        of_all = sum(queue.concurrency for queue in self._own)
        return of_all if self._most is None else min(self._most, of_all)

    def add(self, queue: HandlerQueue) -> None:
        """Add the queue of a handler that this worker did not have when it started."""
        self._own.append(queue)
        self.by_name[queue.spec.name] = queue
        queue.names[queue.spec.name] = False
        self._resized(queue)

    def change(self, queue: HandlerQueue, spec: HandlerSpec, target: Target, slots: int) -> None:
        """Let a queue's next attempts be performed in another way, in so many slots; without any it claims nothing more."""
        queue.spec, queue.timeout = spec, int(spec.timeout * SECOND)
        queue.serve_with(target)
        queue.free += slots - queue.concurrency
        queue.concurrency = slots
        self._resized(queue)

    def _resized(self, queue: HandlerQueue) -> None:
        before, self.slots = self.slots, self._slots()
        self.free += self.slots - before
        queue.more = True
        self._active.add(queue)

    # ---- what to claim ----

    def wants(self) -> tuple[Mapping[str, int], int]:
        """Return how many attempts each handler could take, and all together; empty while nothing is worth a claim.

        Handlers that may have due tasks decide whether to claim: half an empty buffer, or an idle slot, is worth a round trip. The claim is
        then for all handlers, so that none waits for another; but if no slot of the process is left, only for those with a buffer.
        """
        queued = self.queued + len(self.ahead)
        slots_left = self.free > queued
        worth_it = self._more_for_buffers and not self._active.issuperset(self._buffers)
        if slots_left and self._more_for_others:
            worth_it = worth_it or len(self._active.union(self._buffers)) < len(self._own)
        lacks = False
        for queue in tuple(self._active):
            waiting, buffer = len(queue.tasks) + self._ahead_of(queue), queue.buffer()
            queue.low = buffer // 2
            want = queue.startable + buffer - waiting
            if queue.reserve:
                self._startable_below[queue] = allowed = queue.startable_below(self._tasks_ahead_of(queue))
                worth_it_for = min(want, allowed.get(queue.nothing_from, want))
            else:
                worth_it_for = want
            lacks = lacks or (queue.more and queue.startable < queue.free)
            self._note_want(queue, want, buffer)
            if queue.more:
                enough = waiting > queue.low if buffer else queue.startable <= waiting or not slots_left
                worth_it = worth_it or (worth_it_for > 0 and not enough)
            elif not waiting and queue.free == queue.concurrency and not queue.limits and not queue.reserve:
                self._active.remove(queue)
        if lacks and self.on_lack is not None:
            self.on_lack()
        total = min(LARGEST_CLAIM, self.free + max(self._buffers.values(), default=0) - queued)
        if not worth_it or total <= 0:
            return {}, 0
        return (self._wants if slots_left else {name: self._wants[name] for queue in self._buffers for name in queue.names}), total

    def below(self, wants: Mapping[str, int]) -> dict[str, dict[int, int]]:
        """Return how many of the tasks that a claim brings may have a lower priority than those that have a reserve, by name."""
        below: dict[str, dict[int, int]] = {}
        for queue, allowed in self._startable_below.items():
            names = [name for name in queue.names if name in wants]
            for index, name in enumerate(names):  # they share the slots
                below[name] = {least: (most + len(names) - 1 - index) // len(names) for least, most in allowed.items()}
        return below

    def _tasks_ahead_of(self, queue: HandlerQueue) -> Iterator[ClaimedTask]:
        return (claimed for claimed in self.ahead if claimed.handler in queue.names)

    def _ahead_of(self, queue: HandlerQueue) -> int:
        return sum(self.ahead.by_handler.get(name, 0) for name in queue.names) if len(self.ahead) else 0

    def _note_want(self, queue: HandlerQueue, want: int, buffer: int) -> None:
        if want > 0:
            self._wants |= shares(queue.names, want)
        else:
            for name in queue.names:
                self._wants.pop(name, None)
        if want > 0 and buffer:
            self._buffers[queue] = buffer
        else:
            self._buffers.pop(queue, None)

    def free_slots(self) -> dict[str, int]:
        """Return how many attempts could start now or soon, by name; the names of a handler share its slots."""
        ahead, free = self.ahead.by_handler, self.free - self.queued - len(self.ahead)
        slots: dict[str, int] = {}
        for queue in self._own:
            waiting, buffer = len(queue.tasks) + sum(ahead[name] for name in queue.names), queue.buffer()
            left = min(queue.startable + buffer - waiting, free + buffer)
            if queue.reserve:  # whoever asks for free slots does not choose among priorities
                left = min(left, *queue.startable_below(self._tasks_ahead_of(queue)).values())
            if left > 0:
                slots |= dict.fromkeys(queue.names, left)
        return slots

    def expect_more(self) -> None:
        """Note that there may be due tasks for any handler."""
        self._more_for_buffers = self._more_for_others = True
        for queue in self._active:
            queue.more, queue.nothing_from = True, NO_PRIORITY

    def note_claimed(self, wants: Mapping[str, int], tasks: Sequence[ClaimedTask], *, full: bool, below: Below | None = None) -> None:
        """Learn from a claim which handlers may have more tasks: those that got all they wanted, and those it was not for.

        A claim serves handlers round robin. If it ended at its total, a handler that got some may have more; one that got none has none.
        """
        taken = Counter(map(_handler_of, tasks))
        self._active.update(self.by_name[name] for name in taken)
        for queue in self._active:
            queue.names = {name: taken[name] > 0 for name in queue.names}
            queue.more = any(taken[name] >= wants.get(name, 0) or (full and taken[name] > 0) for name in queue.names)
            if queue.reserve and below:
                allowed = {least: sum(below[name][least] for name in queue.names if name in below) for least in queue.reserve}
                mine = [claimed for claimed in tasks if claimed.handler in queue.names]
                queue.learn(mine, sum(wants.get(name, 0) for name in queue.names), allowed, full=full)
        self._more_for_buffers, self._more_for_others = False, wants is not self._wants

    def stalled(self, now: Instant) -> list[HandlerQueue]:
        """Return the queues whose tasks wait for slots that do not become free."""
        return [queue for queue in self._with_tasks if (queue.startable <= 0 or self.free <= 0) and queue.has_stalled(now)]

    # ---- queues and slots ----

    def put(self, tasks: Iterable[ClaimedTask], now: Instant) -> None:
        """Queue claimed tasks."""
        name, queue = "", None
        for claimed in tasks:
            if queue is None or claimed.handler != name:
                name = claimed.handler
                queue = self.by_name[name]
                if not queue.tasks:
                    queue.served_at = now
                    self._active.add(queue)
                    self._with_tasks.setdefault(queue)
            queue.tasks.append(claimed)

    def next(self) -> HandlerQueue | None:
        """Return the next queue that has a task and a slot for it."""
        queues = self._with_tasks
        for _ in range(len(queues)):
            queue = next(iter(queues))
            if not queue.tasks:
                del queues[queue]
                continue
            queues.move_to_end(queue)
            if queue.startable > 0 and self.free > 0:
                return queue
        return None

    @property
    def startable(self) -> bool:
        """Whether something is queued that has a slot."""
        return self.free > 0 and any(queue.tasks and queue.startable > 0 for queue in self._with_tasks)

    @property
    def several(self) -> bool:
        """Whether more than one handler may have something queued."""
        return len(self._with_tasks) > 1

    @property
    def queued(self) -> int:
        return sum(len(queue.tasks) for queue in self._with_tasks)

    def waiting(self) -> Iterator[ClaimedTask]:
        """Return all tasks that are queued or wait for their due time."""
        return chain(self.ahead, *(queue.tasks for queue in self._with_tasks))

    def retain(self, wanted: Callable[[ClaimedTask], bool]) -> None:
        """Remove all tasks that are not wanted."""
        self.ahead.retain(wanted)
        for queue in self._with_tasks:
            waiting = list(queue.tasks)
            queue.tasks.clear()
            queue.tasks.extend(claimed for claimed in waiting if wanted(claimed))

    def take_slot(self, queue: HandlerQueue, priority: int = DEFAULT_PRIORITY) -> None:
        """Take a slot, and permits of the handler's limits."""
        self._active.add(queue)
        queue.free -= 1
        self.free -= 1
        if queue.limits:
            for limit, each in queue.limits:
                limit.used += each
            queue.begin()
        if queue.reserve:
            queue.running[priority] += 1

    def free_slot(self, queue: HandlerQueue, priority: int = DEFAULT_PRIORITY) -> None:
        """Free a slot."""
        if queue.reserve:
            queue.running[priority] -= 1
        queue.free += 1
        self.free += 1
