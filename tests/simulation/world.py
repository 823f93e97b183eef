"""One simulated world of ours: several workers, a client with its operations, faults, and what must hold at the end."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import msgspec

from duetime import App, DuplicateKey, ScheduleNotFound, StoreUnavailable, Task
from duetime.clock import SECOND
from duetime.errors import Conflict, DuetimeError, TaskNotFound
from duetime.model.operation import OperationState
from duetime.model.task import Edge, NewTask, State, TaskRecord
from duetime.store.sqlite.gates import read_gates
from duetime.store.sqlite.records import records_by_id
from duetime.store.values import CancelVerdict
from duetime.testing.simulation import faults as fault_plans
from duetime.testing.simulation.cluster import BEGINS_AT, Cluster, Line, Settings
from duetime.testing.simulation.faults import CLIENT, Fault
from duetime.testing.simulation.loop import Deadlock, Endless
from duetime.testing.simulation.process import Process
from tests.simulation import fleet as fleets
from tests.simulation import fleet_checker, keyed_checker, stories_checker, workload
from tests.simulation import keyed as keyed_limits
from tests.simulation import stories as stories_of_clients
from tests.simulation.checker import Cancelled, Facts, violations
from tests.simulation.fleet import Fleet
from tests.simulation.journal import journal
from tests.simulation.outside import PULLER, AcceptingServer, Puller, Requests
from tests.simulation.programs import VERSIONS, program
from tests.simulation.stories import Stories, Told
from tests.simulation.workload import Operation

PATIENCE = 240.0  # seconds after which a task counts as lost, once nothing goes wrong any more


class Shape(msgspec.Struct, frozen=True):
    """How large worlds are: the seconds in which operations and faults begin, and the most of both."""

    seconds: float
    operations: int
    faults: int


# Most worlds are short: a bug needs few tasks and few faults, and thousands of short worlds have more orders of events than hundreds of
# long ones. Some bugs need many of either at once, or time: one world in 32 is dense, two are long. None of `make test` is sparse.
SHAPES = {
    "short": Shape(2.0, 20, 4),
    "long": Shape(8.0, 130, 8),
    "dense": Shape(8.0, 400, 8),
    "sparse": Shape(600.0, 40, 4),
}


def shape_of(seed: int) -> Shape:
    return SHAPES["dense" if seed % 32 == 31 else "long" if seed % 16 == 7 else "short"]


class Plan(msgspec.Struct, frozen=True):
    """All that makes a world; shortening it leaves the rest as it is.

    `outside`: with a pull worker and a server that accepts work. `fleet`: with flows, limits and locks. `stories`: with steps, signals and
    submissions that are merged. `keyed`: with limits by key and by rate.
    """

    seed: int
    seconds: float
    outside: bool
    fleet: bool
    stories: bool
    keyed: bool
    settings: Settings
    faults: Sequence[Fault]
    operations: Sequence[Operation]


class Outcome(msgspec.Struct, frozen=True):
    """What came of a world."""

    plan: Plan
    violations: list[str]
    tasks: int
    attempts: int
    seconds: float  # of virtual time
    lines: Sequence[Line]

    @property
    def history(self) -> list[str]:
        return [str(line) for line in self.lines]


def plan(seed: int, shape: Shape | None = None) -> Plan:
    """Return the world of a seed, which also says its shape unless that is given."""
    chance = random.Random(seed)
    shape = shape or shape_of(seed)
    settings = Settings(
        workers=chance.choice((1, 2, 2, 3)),
        lease=chance.choice((4.0, 6.0)),
        grace=chance.choice((0.5, 3.0)),
        concurrency=chance.choice((None, None, 4)),
        on_lease_lost=chance.choice(("exit", "exit", "cancel")),
        claim_ahead=chance.choice((0, 0, 10_000)),
    )
    faults = fault_plans.plan(chance, workers=settings.workers, seconds=shape.seconds, lease=settings.lease, most=shape.faults)
    operations = workload.plan(chance, seconds=shape.seconds, most=shape.operations)
    fleet = seed % 8 == 5
    outside = seed % 8 == 1 or seed % 16 == 13 or shape.operations > SHAPES["short"].operations
    if outside:
        operations = sorted(
            [*operations, *workload.outside(chance, seconds=shape.seconds, most=shape.operations)], key=lambda operation: operation.at
        )
        at, lasts = round(chance.uniform(0.0, shape.seconds), 3), settings.lease * chance.choice((0.5, 1.3))
        faults += chance.choice(
            (
                [],
                [Fault(kind="kill", at=at, process=PULLER)],
                [Fault(kind="freeze", at=at, process=PULLER, seconds=lasts)],
            )
        )
    if fleet:
        more = fleets.operations(chance, seconds=shape.seconds, most=shape.operations, accepting=outside)
        wrong = fleets.faults(
            chance, workers=settings.workers, seconds=shape.seconds, most=shape.faults // 2, lease=settings.lease, alone=not outside
        )
        operations = sorted([*operations, *more, *fleets.around_freezes(chance, wrong)], key=lambda operation: operation.at)
        faults += wrong
    stories = seed % 8 == 3
    if stories:
        operations = sorted(
            [*operations[::2], *stories_of_clients.operations(chance, seconds=shape.seconds, most=shape.operations)],
            key=lambda operation: operation.at,
        )
        faults += stories_of_clients.faults(chance, workers=settings.workers, seconds=shape.seconds, most=shape.faults // 2)
    keyed = seed % 8 == 6
    if keyed:
        operations = sorted(
            [*operations[::2], *keyed_limits.operations(chance, seconds=shape.seconds, most=shape.operations)],
            key=lambda operation: operation.at,
        )
        faults += keyed_limits.faults(chance, workers=settings.workers, seconds=shape.seconds, most=shape.faults // 2)
    return Plan(seed, shape.seconds, outside, fleet, stories, keyed, settings, sorted(faults, key=lambda fault: fault.at), operations)


def simulate(chosen: Plan) -> Outcome:
    """Run a world to its end and check it."""
    return World(chosen).run()


class Complaints(logging.Handler):
    """Collects what the product logs of its own errors: exceptions that nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.levelno >= logging.ERROR and not hasattr(record, "duetime_task"):
            self.lines.append(f"log: {record.getMessage()}: {record.exc_info[1]!r}")


class World:
    """One world. The client is a process like the workers, whose operations are asyncio tasks of it."""

    def __init__(self, chosen: Plan) -> None:
        self.plan = chosen
        self._program = partial(program, fleet=chosen.fleet, stories=chosen.stories, keyed=chosen.keyed)
        self.cluster = Cluster(chosen.seed, self._program, chosen.faults, chosen.settings)
        self.cluster.loop.ends_at = self.cluster.began_at + chosen.seconds + 3 * PATIENCE
        self.cluster.died = self._note_death
        self.cluster.stepped = self._note_step
        self.app: App = self._program(0)
        self.submitted: list[str] = []  # ids, in the order of submitting
        self.facts = Facts()
        self._pids: dict[Process, int] = {}
        self._frozen: set[Process] = set()
        self._gates: dict[tuple[str, str | None], int] = {}
        self._highest_offset = 0
        self.healed = False
        self.fleet = Fleet(self)
        self.stories = Stories(self)
        self.requests = Requests(self)
        if chosen.outside:
            self.cluster.requests = AcceptingServer(self, self.requests)

    @property
    def wall(self) -> float:
        """The true time of day, by which the store's clock may be off."""
        return BEGINS_AT / SECOND + self.cluster.now

    def pid(self, process: Process) -> int:
        return self._pids.setdefault(process, len(self._pids) + 1)

    def overstays(self, process: Process, handler: str) -> bool:
        """Return whether an attempt may go on past its worker's lease: nobody could stop it, and no kernel kills its process."""
        if self.plan.settings.on_lease_lost == "exit" and process.number != PULLER:
            return False
        return process.frozen_until > 0 or handler == "hangs"

    def _note_death(self, process: Process) -> None:
        self.facts.server_died |= process.number == CLIENT
        journal.write("killed", pid=self.pid(process))

    # ---- running ----

    def run(self) -> Outcome:
        journal.open(self)
        journal.told = Told()
        complaints, logger = Complaints(), logging.getLogger("duetime")
        logger.addHandler(complaints)
        propagates, logger.propagate = logger.propagate, False
        try:
            found = self.cluster.run(self._main)
        except (Deadlock, Endless) as error:
            found = [f"lost: {error}"]
        finally:
            logger.removeHandler(complaints)
            logger.propagate = propagates
        errors = [f"log: {error}" for error in self.cluster.errors]
        tasks = len(self.submitted) + self.facts.others
        return Outcome(self.plan, found + complaints.lines + errors, tasks, journal.attempts, self.cluster.now, self.cluster.history)

    async def _main(self) -> list[str]:
        loop, doing = asyncio.get_running_loop(), list[tuple[Process, asyncio.Task[None]]]()
        began_at = loop.time()
        pulling = loop.create_task(self._pull()) if self.plan.outside else None
        for operation in self.plan.operations:
            await asyncio.sleep(began_at + operation.at - loop.time())
            client = await self.cluster.client()
            doing.append((client, client.begin(self._perform(operation, client))))
        await asyncio.sleep(max(0.0, began_at + self.plan.seconds - loop.time()))
        while True:
            client = await self.cluster.client()
            healing = client.begin(self._heal())
            await asyncio.wait((healing, loop.create_task(client.ended.wait())), return_when=asyncio.FIRST_COMPLETED)
            if healing.done():  # otherwise a fault that was on its way has killed the client
                break
        healing.result()
        while pending := [task for process, task in doing if not process.dead and not task.done()]:
            await asyncio.wait(pending, timeout=1.0)
        await self._until_all_is_final()
        if pulling is not None:
            pulling.cancel()
            self.cluster.kill(self.cluster.present[PULLER])
            await asyncio.sleep(2.0)  # its last claim ends
        client = await self.cluster.client()  # a fault that was on its way may have killed the one that healed
        return cast(list[str], await client.begin(self._check(client)))

    async def _pull(self) -> None:
        """Keep a pull worker running."""
        while True:
            process = self.cluster.new_process(PULLER)
            process.begin(Puller(self, self.requests).main())
            await process.ended.wait()
            await asyncio.sleep(0.5)

    async def _perform(self, operation: Operation, client: Process) -> None:
        self.cluster.note(client, "client", str(operation)[9:])
        try:
            own = getattr(self, f"_{operation.kind}", None)
            if own is None:
                own = getattr(self.stories if operation.kind in ("signal", "merge") else self.fleet, operation.kind)
            await own(operation)
        except (StoreUnavailable, DuplicateKey, Conflict, TaskNotFound) as error:
            self.cluster.note(client, "client", f"{operation.kind} is answered {type(error).__name__}")

    def _note_step(self, offset: int) -> None:
        self._highest_offset = max(self._highest_offset, offset)
        self.facts.stepped = True
        journal.write("stepped", offset=offset / SECOND)

    async def _heal(self) -> None:
        """Let nothing go wrong any more: what was put off must now come to its end."""
        cluster, self.healed = self.cluster, True
        cluster.heal()
        if self.facts.stepped:
            cluster.set_clock(self._highest_offset + 3_600 * SECOND)
        while True:
            try:
                await self.app.schedules.pause("tick")
                break
            except ScheduleNotFound:  # no worker has come so far as to declare it
                await asyncio.sleep(0.5)
        for handler, collection in list(self._gates):
            await self._open(handler, collection)
        if self.plan.fleet:
            await self.fleet.reset()
        if cluster.version:  # a payload of the newest version fits no other
            await asyncio.sleep(2 * self.plan.settings.lease)
            for process in list(cluster.present.values()):
                if process.worker is not None and not process.dead and process.version < cluster.version:
                    cluster.stop(process)

    async def _until_all_is_final(self) -> None:
        end = self.cluster.now + PATIENCE
        while self.cluster.now < end:
            for handler, collection in self._execute("select handler, collection from duetime_gate"):
                # closed by a message of a client that has died, which came after all gates were opened
                self._gates[handler, collection or None] = 1
                await (await self.cluster.client()).begin(self._open(handler, collection or None))
            live = "select 1 from duetime_task where state is null union all select 1 from duetime_flow where state = 'running'"
            if not self._execute(f"{live} limit 1"):
                now = asyncio.get_running_loop().time()
                thawed_at = max((each.frozen_until for each in self.cluster.present.values() if not each.dead), default=0.0)
                await asyncio.sleep(
                    max(3.0 if self.plan.keyed else 1.0, thawed_at + 2.0 - now)
                )  # for the last answers, also to those who were frozen until now
                return
            await asyncio.sleep(1.0)

    def _execute(self, sql: str) -> list[Any]:
        return self.cluster.memory.connection.execute(sql).fetchall()

    def record(self, task: str) -> TaskRecord | None:
        """Return a task as it is in the database at this instant."""
        return self.cluster.memory.execute(partial(records_by_id, ids=[task])).get(task)

    # ---- operations ----

    async def add(self, new: NewTask[Any], app: App) -> Task[Any] | None:
        """Submit, as a client would that asks again when it got no answer; None if it never got one."""
        journal.perhaps(new.id)
        self.facts.asked_at[new.id] = self.cluster.now
        if new.if_exists == "replace":
            self.facts.replaced.add((new.handler, new.key))  # also if no answer comes
        for _ in range(3):
            try:
                task = await app.submit(new, allow_unknown=True)
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                continue
            journal.write("submitted", task=task.id, handler=task.handler)
            if task.id not in self.facts.submitted:
                self.submitted.append(task.id)
                self.facts.submitted.add(task.id)
            return task
        return None

    async def _submit(self, operation: Operation) -> None:
        app = self._program(min(self.cluster.version, VERSIONS - 1)) if operation.handler == "versioned" else self.app
        payload = dict(operation.payload)
        if operation.handler == "versioned" and self.cluster.version and operation.pick < 0.5:
            payload["color"] = "blue"
        self.cluster.app(min(self.cluster.version, VERSIONS - 1))
        new = app.handler(operation.handler).options(**operation.options).new(**payload)
        await self.add(new.after(operation.delay) if operation.delay else new, app)

    async def _family(self, operation: Operation) -> None:
        how = {"seconds": 0.3} if operation.handler == "quick" else {"how": "later" if operation.pick < 0.5 else "fatal"}
        parent = self.app.handler(operation.handler).new(**how)
        edges = (Edge(parent.id, operation.payload["needs"]),)
        children = [
            msgspec.structs.replace(self.app.handler("quick").new(seconds=0.1), edges=edges) for _ in range(operation.payload["children"])
        ]
        for each in (parent, *children):
            for edge in each.edges:
                self.facts.parents[each.id] = (edge.parent, edge.needs)
            if await self.add(each, self.app) is None:
                return

    def _picked(self, operation: Operation) -> str | None:
        return self.submitted[int(operation.pick * len(self.submitted))] if self.submitted else None

    async def _cancel(self, operation: Operation) -> None:
        task = self._picked(operation)
        if task is None or task in self.facts.retried:
            return
        self.facts.cancelled.add(task)
        verdict = await self.app.cancel(task)
        record = self.record(task)
        if verdict is CancelVerdict.CANCELLED:
            journal.write("cancelled", task=task)
        elif verdict is CancelVerdict.CANCELLING and record is not None:
            self.facts.cancelling.setdefault(task, (self.cluster.now, record.attempt))

    async def _edit(self, operation: Operation) -> None:
        task = self._picked(operation)
        if task is not None:
            journal.told.edited.add(task)
            await self.app.client.edit(task, delay=operation.delay, priority=operation.options["priority"])

    async def _retry(self, operation: Operation) -> None:
        records = self.cluster.memory.execute(partial(records_by_id, ids=self.submitted))
        failed = [task for task in self.submitted if task not in self.facts.cancelled and records[task].state is State.FAILED]
        if failed:
            task = failed[int(operation.pick * len(failed))]
            self.facts.retried.add(task)
            await self.app.retry(task)

    async def _pause(self, operation: Operation) -> None:
        await self._gate(operation, self.app.gates.pause)

    async def _drop(self, operation: Operation) -> None:
        await self._gate(operation, self.app.gates.drop)

    async def _gate(self, operation: Operation, close: Any) -> None:
        gate = (operation.handler, operation.collection)
        if gate in self._gates:
            return
        self._gates[gate] = 1
        answer = await close(operation.handler, collection=operation.collection, allow_unknown=True)
        if answer.in_force and gate in self._gates and not self.healed:
            journal.write("gate", handler=gate[0], collection=gate[1])
        self._gates.setdefault(gate, 1)  # it may have come into force after all gates were opened
        await asyncio.sleep(operation.seconds)
        await self._open(*gate)

    async def _open(self, handler: str, collection: str | None) -> None:
        if (handler, collection) not in self._gates:
            return
        journal.write("opened", handler=handler, collection=collection)
        while True:
            try:
                await self.app.gates.open(handler, collection=collection)
                break
            except StoreUnavailable:
                await asyncio.sleep(0.2)
        self._gates.pop((handler, collection), None)  # not before: a call that is late would open the next gate

    async def _why(self, operation: Operation) -> None:
        task = self._picked(operation)
        if task is None:
            return
        before, offset = self.record(task), self.cluster.clock.offset
        if before is None:
            return
        gated = self._is_gated(before)
        reasons = await self.app.why(task)
        after = self.record(task)
        if before == after and offset == self.cluster.clock.offset:
            self.facts.judge_why(after, reasons, self.cluster.clock.now(), gated=gated and self._is_gated(after))

    async def _operation(self, operation: Operation) -> None:
        """Cancel all tasks of a handler."""
        chosen = {} if operation.collection is None else {"collection": operation.collection}
        there = Cancelled(operation.handler, operation.collection, set(self.facts.submitted))
        self.facts.operated.append(there)
        started = await self.app.operations.start("cancel", handler=operation.handler, **chosen)  # type: ignore[arg-type]
        there.started_at = self.cluster.now
        with contextlib.suppress(TimeoutError):
            ended = await self.app.operations.wait(started, timeout=20.0)
            if ended.state is OperationState.DONE:
                there.answers = dict(ended.answers)
                self.facts.judge_operation(there, {task: self.record(task) for task in sorted(there.submitted)}, self.cluster.now)

    def _is_gated(self, record: TaskRecord) -> bool:
        now = self.cluster.clock.now()
        return read_gates(self.cluster.memory.connection, now).holding(record.handler, record.collection, now) is not None

    async def _counts(self, operation: Operation) -> None:
        await self.app.stats()

    async def _wait(self, operation: Operation) -> None:
        task = self._picked(operation)
        if task is not None:
            with contextlib.suppress(DuetimeError, TimeoutError):
                await self.app.result(task, timeout=3.0)

    async def _trigger(self, operation: Operation) -> None:
        with contextlib.suppress(DuetimeError):
            journal.perhaps((await self.app.schedules.trigger("tick")).id)

    # ---- the end ----

    async def _check(self, client: Process) -> list[str]:
        unproved = {fault.process for fault in self.plan.faults if fault.verb == "renew"}
        self.facts.cut_off = {pid for process, pid in self._pids.items() if process.frozen_until or process.number in (*unproved, PULLER)}
        self.facts.read(self.cluster, self._execute)
        self.facts.retried.update(task for flow in sorted(self.fleet.retried) for task, _, _ in self.fleet.members(flow))
        found = violations(journal, self.facts, self.cluster)
        if self.plan.fleet:
            found += fleet_checker.violations(self.fleet, journal, self.facts, self.cluster, self._execute)
        if self.plan.stories:
            found += stories_checker.violations(journal.told, journal, self.facts, self.plan, self._execute)
        if self.plan.keyed:
            found += keyed_checker.violations(journal, self.facts, self.plan.settings, self.plan.faults, self._execute)
        inspected = await client.store.inspect(repair=False)
        return found + [f"state: {problem}" for problem in inspected]
