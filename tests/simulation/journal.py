"""What handlers and clients of a simulation write down, as events of `tests.chaos.journal`, in memory."""

from typing import Any

from duetime import Context
from duetime.testing.simulation.process import Process
from tests.chaos.journal import Event, Kind


class Journal:
    """The events of one simulation, in order."""

    def __init__(self) -> None:
        self.open(None)

    def open(self, world: Any) -> None:
        """Begin anew, for another world."""
        self.world = world
        self.events: list[Event] = []
        self.running: dict[str, tuple[Process, int]] = {}
        self.excused: set[tuple[str, int]] = set()  # (task, fence) of attempts that a worker without a dead-man timer could not stop
        self.unfit_results: set[tuple[str, int]] = set()
        self.attempts = 0

    def write(self, kind: Kind, **fields: Any) -> None:
        world = self.world
        self.events.append(Event(kind=kind, at=world.cluster.now, wall=world.wall, **fields))

    def start(self, ctx: Context, process: Process) -> None:
        task = ctx.task
        self.attempts += 1
        pid = self.world.pid(process)
        facts = {"task": task.id, "fence": ctx.fence, "pid": pid, "worker": pid}
        for name in (task.id,) if task.key is None else (task.id, f"{task.handler} {task.key}"):
            other, fence = self.running.get(name, (None, 0))
            if other is not None and not other.dead and not self.world.overstays(other, task.handler):
                self.write("overlap", **facts)
            elif other is not None and not other.dead:
                self.excused.add((task.id, fence))
            self.running[name] = (process, ctx.fence)
        if self.world.overstays(process, task.handler):
            self.excused.add((task.id, ctx.fence))
        due = task.due_at.timestamp()
        self.write("start", **facts, handler=task.handler, collection=task.collection, key=task.key, due=due)

    def end(self, ctx: Context, process: Process, how: str) -> None:
        if process.dead:
            return
        task = ctx.task
        for name in (task.id,) if task.key is None else (task.id, f"{task.handler} {task.key}"):
            if self.running.get(name) == (process, ctx.fence):
                del self.running[name]
        if (task.id, ctx.fence) in self.unfit_results:
            how = "unfit"
        pid = self.world.pid(process)
        self.write("end", task=task.id, fence=ctx.fence, pid=pid, worker=pid, how=how)

    def unfit(self, ctx: Context) -> None:
        """Note that what an attempt is about to return cannot be stored."""
        self.unfit_results.add((ctx.task.id, ctx.fence))

    def perhaps(self, task: str) -> None:
        """Note a task that may be submitted."""
        self.write("perhaps", task=task)
