"""What handlers and clients of a simulation write down, as events of `tests.chaos.journal`, in memory."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from duetime import Context
from duetime.client.locks import Lock
from duetime.testing.simulation.process import Process, current
from tests.chaos.journal import Event, Kind


class Work(NamedTuple):
    """An attempt of a task; `due` is in seconds."""

    task: str
    handler: str
    key: str | None
    collection: str | None
    due: float
    fence: int

    @classmethod
    def of(cls, ctx: Context) -> "Work":
        task = ctx.task
        return cls(task.id, task.handler, task.key, task.collection, task.due_at.timestamp(), ctx.fence)

    @property
    def names(self) -> tuple[str, ...]:
        """What no other attempt may have at the same time: its task, and its key."""
        return (self.task,) if self.key is None else (self.task, f"{self.handler} {self.key}")


class Journal:
    """The events of one simulation, in order."""

    def __init__(self) -> None:
        self.open(None)

    def open(self, world: Any) -> None:
        """Begin anew, for another world."""
        self.world = world
        self.events: list[Event] = []
        self.running: dict[str, tuple[Process, int, Work]] = {}
        self.excused: set[tuple[str, int]] = set()  # (task, fence) of attempts that a worker without a dead-man timer could not stop
        self.unfit_results: set[tuple[str, int]] = set()
        self.attempts = 0
        self.given: dict[str, Any] = {}  # what members of flows were given of other nodes, by task
        self.holders: dict[str, list[tuple[Process, Lock]]] = {}  # of locks, by name
        self.wrong: list[str] = []
        self.told: Any = None  # what is noted of steps, signals and merged submissions

    def now(self) -> float:
        """Return the virtual time of the world."""
        now: float = self.world.cluster.now
        return now

    def write(self, kind: Kind, **fields: Any) -> None:
        world = self.world
        self.events.append(Event(kind=kind, at=world.cluster.now, wall=world.wall, **fields))

    def start(self, work: Work, process: Process) -> None:
        self.attempts += 1
        pid = self.world.pid(process)
        facts = {"task": work.task, "fence": work.fence, "pid": pid, "worker": pid}
        for name in work.names:
            other, fence, _ = self.running.get(name, (None, 0, None))
            if other is not None and not other.dead and not self.world.overstays(other, work.handler):
                self.write("overlap", **facts)
            elif other is not None and not other.dead:
                self.excused.add((work.task, fence))
            self.running[name] = (process, work.fence, work)
        if self.world.overstays(process, work.handler):
            self.excused.add((work.task, work.fence))
        self.write("start", **facts, handler=work.handler, collection=work.collection, key=work.key, due=work.due)

    def end(self, work: Work, process: Process, how: str) -> None:
        if process.dead:
            return
        for name in work.names:
            if self.running.get(name, ())[:2] == (process, work.fence):
                del self.running[name]
        if (work.task, work.fence) in self.unfit_results:
            how = "unfit"
        pid = self.world.pid(process)
        self.write("end", task=work.task, fence=work.fence, pid=pid, worker=pid, how=how)

    def unfit(self, ctx: Context) -> None:
        """Note that what an attempt is about to return cannot be stored."""
        self.unfit_results.add((ctx.task.id, ctx.fence))

    def perhaps(self, task: str) -> None:
        """Note a task that may be submitted."""
        self.write("perhaps", task=task)

    def took(self, lock: Lock, process: Process) -> None:
        """Note who has a lock. Nobody else may count it as held, by its own clock and knowledge: `check` would let its code go on."""
        if lock.lost:  # the answer came to a process that was frozen meanwhile, and others may have had the lock since
            return
        before = self.holders.setdefault(lock.name, [])
        if any(not other.dead and not held.lost for other, held in before):
            self.wrong.append(
                f"lock: {process.name} took {lock.name} at {self.world.cluster.now:.3f} s while another holder counts it as held"
            )
        if any(held.fence >= lock.fence for _, held in before):
            self.wrong.append(f"lock: {lock.name} was taken with fence {lock.fence}, which is not higher than all before")
        before.append((process, lock))


journal = Journal()  # of the world that is simulated now


@contextlib.contextmanager
def attempt(ctx: Context) -> Iterator[Process]:
    """Write down one attempt from its first to its last instruction, unless its process dies in between."""
    process = current()
    assert process is not None
    work = Work.of(ctx)
    journal.start(work, process)
    try:
        yield process
    except BaseException as error:
        journal.end(work, process, type(error).__name__)
        raise
    journal.end(work, process, "returned")
