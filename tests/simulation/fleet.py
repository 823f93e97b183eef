"""Flows, limits and locks in simulated worlds: what clients do with them, and what is noted of it for `fleet_checker`."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from duetime import Plan, StoreUnavailable, any_of
from duetime.model.flow import Graph
from duetime.testing.simulation.faults import CLIENT, Fault, Kind
from duetime.testing.simulation.process import current
from tests.simulation.journal import journal
from tests.simulation.programs import ERP
from tests.simulation.workload import Operation

# Verbs of flows, limits and locks; the last three are calls of the client.
VERBS = ("settle", "accept", "_look", "_go_on", "_sweep_flow", "flow_members", "advance_flows", "allot", "allot", "take_lock", "renew_lock")
ASKED = ("add_flow", "stop_flow", "stop_flow", "retry_flow", "_sweep_flow", "_set")
KINDS: tuple[Kind, ...] = ("crash", "crash", "kill", "lose", "lose", "fail", "slow")
SURE_WITHIN = 10.0  # seconds to look whether a lower limit is in force


# ---- before a world begins ----


def faults(chance: random.Random, *, workers: int, seconds: float, most: int, lease: float, alone: bool) -> list[Fault]:
    """Return more faults, at the verbs of flows, limits and locks. `alone`: nobody outside asks the client, so it may be frozen."""
    more = []
    if alone and chance.random() < 0.3:
        at, lasts = round(chance.uniform(0.5, seconds), 3), lease * chance.choice((0.8, 1.3, 2.0))
        more.append(Fault(kind="freeze", at=at, process=CLIENT, seconds=lasts))
    for _ in range(chance.randint(0, most)):
        asked = chance.random() < 0.4
        kind = chance.choice(KINDS)
        more.append(
            Fault(
                kind=kind,
                at=round(chance.uniform(0.0, seconds), 3),
                process=CLIENT if asked else chance.randrange(workers),
                verb=chance.choice(ASKED if asked else VERBS),
                seconds=chance.choice((0.3, 2.0)) if kind == "slow" else 0.0,
            )
        )
    return more


def operations(chance: random.Random, *, seconds: float, most: int, accepting: bool) -> list[Operation]:
    """Return operations for so many seconds. `accepting`: with a server that accepts work."""
    return [_one(chance, round(chance.uniform(0.0, seconds), 3), accepting) for _ in range(chance.randint(3, max(6, most // 6)))]


def around_freezes(chance: random.Random, faults: Sequence[Fault]) -> list[Operation]:
    """Return operations for clients that will be frozen: they take a lock before, and a task in a worker waits for it meanwhile."""
    more = []
    for fault in faults:
        if fault.kind == "freeze" and fault.process == CLIENT:
            held = {"name": "stock", "seconds": 8.0, "max_hold": None}
            wanted = {"name": "stock", "seconds": 3.0, "max_hold": None, "wait": 8.0}
            delay = round(chance.uniform(0.0, 2.0), 3)
            more.append(Operation(kind="submit", at=round(fault.at - 0.45, 3), handler="locking", payload=wanted, delay=delay))
            more.append(Operation(kind="lock", at=round(fault.at - 0.4, 3), payload=held))
    return more


def _one(chance: random.Random, at: float, accepting: bool) -> Operation:
    kinds = ("flow", "flow", "flow", "cancel_flow", "retry_flow", *("limited",) * 4, "locking", "locking", "lock", "limit")
    seconds = chance.choice((0.0, 0.3, 1.0, 2.0))
    payload: dict[str, Any]
    match chance.choice(kinds):
        case "flow":
            shape = chance.choice(("chain", "group", "branches", "handled"))
            hows = [chance.choice(("works", "works", "works", "fatal", "stumbles")) for _ in range(chance.choice((2, 3, 6)))]
            options = {"on_failure": chance.choice(("continue", "continue", "stop")), "deadline": chance.choice((None, None, None, 1.5))}
            payload = {"shape": shape, "hows": hows, "tolerate": chance.choice((0, 1, 0.5)), "seconds": chance.choice((0.0, 0.1, 0.7))}
            return Operation(kind="flow", at=at, payload=payload, options=options)
        case "cancel_flow":
            return Operation(kind="cancel_flow", at=at, pick=chance.random())
        case "retry_flow":
            return Operation(kind="retry_flow", at=at, pick=chance.random())
        case "limit":
            return Operation(kind="limit", at=at, payload={"running": chance.choice((1, 2, 2, 5))})
        case "locking" | "lock" as kind:
            payload = {"name": chance.choice(("stock", "stock", "till")), "seconds": seconds, "max_hold": chance.choice((None, None, 0.5))}
            if kind == "lock":
                return Operation(kind="lock", at=at, payload=payload | {"seconds": chance.choice((1.0, 8.0))})
            return Operation(kind="submit", at=at, handler="locking", payload=payload | {"wait": chance.choice((0.0, 1.0, 8.0))})
        case _ if accepting and chance.random() < 0.3:
            payload = {"how": chance.choice(("works", "works", "silent")), "seconds": seconds, "silence": chance.choice((None, 1.5))}
            return Operation(kind="submit", at=at, handler="billed", payload=payload)
        case _:
            return Operation(kind="submit", at=at, handler=chance.choice(("capped", "capped", "heavy")), payload={"seconds": seconds})


# ---- while it runs ----


class Submitted(msgspec.Struct):
    """A flow that a client asked for: its graph, and the numbers that its members return, by node."""

    graph: Graph
    acknowledged: bool = False


class Stopped(msgspec.Struct, frozen=True):
    """A cancel that was answered: when, and the members that were there, by their latest attempt."""

    at: float
    attempts: dict[str, int]


class Bound(msgspec.Struct):
    """What may run under the limit: since somebody asked for it, and since when nothing higher from before can be in force."""

    running: int
    asked_at: float
    sure_at: float | None = None


class Fleet:
    """What the client does with flows and limits, and what is known of it."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.flows: dict[str, Submitted] = {}
        self.retried: set[str] = set()
        self.stopped: dict[str, Stopped] = {}
        self.stop_asked: set[str] = set()
        self.bounds = [Bound(ERP.running or 0, 0.0, 0.0)]

    async def flow(self, operation: Operation) -> None:
        """Submit a flow, as a client would that asks again when it got no answer."""
        new = planned(self._world.app, operation).new_flow(**operation.options)
        self.flows[new.id] = Submitted(new.graph)
        for _ in range(3):
            try:
                await self._world.app.flows.submit(new)
            except StoreUnavailable:
                await asyncio.sleep(0.5)
                continue
            self.flows[new.id].acknowledged = True
            return

    def _picked(self, operation: Operation) -> str | None:
        known = [flow for flow, submitted in self.flows.items() if submitted.acknowledged]
        return known[int(operation.pick * len(known))] if known else None

    async def cancel_flow(self, operation: Operation) -> None:
        flow = self._picked(operation)
        if flow is None or flow in self.retried:
            return
        self.stop_asked.add(flow)
        await self._world.app.flows.cancel(flow)
        attempts = {task: self._world.record(task).attempt for task, _, _ in self.members(flow)}
        self.stopped.setdefault(flow, Stopped(self._world.cluster.now, attempts))

    async def retry_flow(self, operation: Operation) -> None:
        flow = self._picked(operation)
        if flow is not None:
            self.retried.add(flow)
            await self._world.app.flows.retry(flow)

    def members(self, flow: str) -> list[tuple[str, int, int]]:
        """Return the tasks of a flow as they are in the database at this instant, with node and position."""
        sql = "select t.id, m.node, m.position from duetime_member m join duetime_task t on t.seq = m.task where m.flow = ? order by 2, 3"
        return list(self._world.cluster.memory.connection.execute(sql, (flow,)))

    async def limit(self, operation: Operation) -> None:
        """Change the limit, one change at a time, and look until it is in force."""
        if self.bounds[-1].sure_at is None:
            return
        await self._change(operation.payload["running"])

    async def lock(self, operation: Operation) -> None:
        """Hold a lock in the client, which no kernel kills when it is frozen, until it is lost or long enough held."""
        here, chosen = current(), operation.payload
        assert here is not None
        lock = await self._world.app.locks.take(chosen["name"], wait=2.0, max_hold=chosen["max_hold"])
        if lock is None:
            return
        journal.took(lock, here)
        for _ in range(int(chosen["seconds"] * 10)):
            if lock.lost or self._world.healed:
                break
            await asyncio.sleep(0.1)
        await lock.release()

    async def reset(self) -> None:
        """Let the limit be what code declares."""
        while True:
            try:
                await self._change(None)
                break
            except StoreUnavailable:
                await asyncio.sleep(0.2)

    async def _change(self, running: int | None) -> None:
        cluster, store = self._world.cluster, self._world.cluster.present[CLIENT].store
        bound = Bound((ERP.running or 0) if running is None else running, cluster.now)
        self.bounds.append(bound)
        if running is None:
            await store.reset_limit(ERP.name)
            return
        version = await store.put_limit(ERP.name, running, until_at=None, note="", set_by="")
        if version is None:  # no worker has declared it yet
            self.bounds.remove(bound)
            return
        until = cluster.now + SURE_WITHIN
        while cluster.now < until and not self._world.healed:
            [found] = await store.limits()
            if found.version == version and found.out <= running and all(each.seen >= version for each in found.holders):
                bound.sure_at = cluster.now
                return
            await asyncio.sleep(0.1)


def planned(app: Any, operation: Operation) -> Plan:
    """Return the plan of a flow. Members return their numbers; what reads values of others notes them."""
    chosen = operation.payload
    plan, member = Plan(chosen["shape"]), app.handler("member")
    hows, seconds = chosen["hows"], chosen["seconds"]
    match chosen["shape"]:
        case "chain":
            before: Any = None
            for number, how in enumerate(hows):
                given = {} if before is None else {"given": before.value}
                undo = member.new(number=60 + number, how="fatal" if len(hows) == 6 and number == 0 else "works")
                undone = {"undo": undo} if chosen["tolerate"] == 1 else {}
                before = plan.add(member.new(number=number, how=how, seconds=seconds, **given), name=f"link {number}", **undone)
        case "group":
            many = [member.new(number=number, how=how, seconds=seconds) for number, how in enumerate(hows)]
            group = plan.group(many, name="all", tolerate=chosen["tolerate"])
            plan.add(member.new(number=50, given=group.values), name="sum")
            plan.add(member.new(number=51), needs=[group.failed], name="alarm")
            plan.add(member.new(number=52), needs=[group.ended], name="close")
        case "branches":
            first = plan.add(member.new(number=len(hows), how=hows[0], seconds=seconds), name="first")
            left = plan.add(member.new(number=1, how=hows[1]), needs=[first.returned(2)], name="left")
            right = plan.add(member.new(number=2, seconds=seconds), needs=[first.returned(3)], name="right")
            plan.add(member.new(number=3), needs=[any_of(left, right)], name="either")
            plan.add(member.new(number=4), needs=[left.not_failed, right.ended], name="both")
        case _:
            one = plan.add(member.new(number=1, how=hows[0], seconds=seconds), name="one")
            other = plan.add(member.new(number=2, how=hows[1]), name="other")
            repair = plan.add(member.new(number=3), needs=[one.failed], name="repair")
            plan.add(member.new(number=4, given=other.value), needs=[any_of(one, repair)], name="end")
    return plan
