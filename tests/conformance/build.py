"""Small builders: a task to be added, the end of an attempt, a worker that numbers its claims, a task in any state."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from duetime.clock import SECOND, Instant
from duetime.duties.reaper import LOOK_EVERY, Reaper
from duetime.ids import key_shard, new_id
from duetime.model.gate import Gate, GateAction
from duetime.model.outcome import Acceptance, Outcome, Settlement, SettleVerdict
from duetime.model.task import Edge, ErrorInfo, NewTask, State, TaskRecord
from duetime.store import Store
from duetime.store.shard import Lease
from duetime.store.values import Added, AddVerdict, Claim, ClaimedTask
from tests.servers.waiting import PATIENCE

PLENTY = 100_000
USUAL_OUTCOME = {
    State.PENDING: Outcome.FAILED,
    State.SUCCEEDED: Outcome.SUCCEEDED,
    State.FAILED: Outcome.FATAL,
    State.CANCELLED: Outcome.CANCELLED,
}


def new_task(handler: str = "work", payload: bytes = b"{}", **options: Any) -> NewTask[object]:
    """Make a task to be added, with an id of its own; a keyed one lies in the shard of its key, as every client does it.

    All others lie in one shard: over shards, too, what a test says of them must not depend on chance.
    """
    if "id" not in options:
        options["id"] = new_id(_cell(handler, options.get("key")))
    return NewTask(handler=handler, payload=payload, **options)


def _cell(handler: str, key: str | None) -> int:
    return 7 if key is None else key_shard(handler, key)


def needs(parent: TaskRecord | NewTask[object], *, end: bool = False) -> Edge:
    return Edge(parent.id, "end" if end else "success")


def ended(task: ClaimedTask, state: State, *, at: Instant, outcome: Outcome | None = None, **facts: Any) -> Settlement:
    """Make the settlement of a claimed attempt; a task that goes back is tried again at once and has used up a try."""
    outcome = outcome or USUAL_OUTCOME.get(state, Outcome.FAILED)
    facts.setdefault("tries", task.tries + (outcome in (Outcome.FAILED, Outcome.TIMED_OUT)))
    facts.setdefault("crashes", task.crashes)
    facts.setdefault("started_at", at)
    if state is State.PENDING:
        facts.setdefault("due_at", at)
    return Settlement(id=task.id, attempt=task.attempt, outcome=outcome, state=state, finished_at=at, **facts)


def error(kind: str = "ValueError", message: str = "no such order") -> ErrorInfo:
    return ErrorInfo(kind, message, f"Traceback …\n{kind}: {message}")


class Worker:
    """A registered worker. It never uses a claim number twice."""

    def __init__(self, store: Store, id: str, lease: Lease) -> None:
        self.store = store
        self.id = id
        self.lease = lease
        self._numbers = itertools.count(1)

    async def claim(self, *handlers: str, wants: Mapping[str, int] | None = None, total: int = PLENTY) -> Claim:
        """Claim of the named handlers without limit, or of `wants`."""
        if wants is None:
            wants = dict.fromkeys(handlers or ("work",), PLENTY)
        return await self.store.claim(self.id, next(self._numbers), wants, total)

    async def take(self, *handlers: str, wants: Mapping[str, int] | None = None, total: int = PLENTY) -> list[ClaimedTask]:
        return (await self.claim(*handlers, wants=wants, total=total)).tasks

    async def take_one(self, handler: str = "work") -> ClaimedTask:
        [task] = await self.take(wants={handler: 1}, total=1)
        return task

    async def take_parked(self, digest: str, handler: str = "work", *, limit: int = PLENTY) -> list[ClaimedTask]:
        """Claim parked tasks of a handler with the declaration of this digest."""
        claim = await self.store.claim_parked(self.id, next(self._numbers), {handler: digest}, {handler: limit})
        return claim.tasks

    async def probe(self, *handlers: str) -> list[ClaimedTask]:
        """Send a task of the named handlers through an automatic gate, if a probe is due."""
        names = handlers or ("work",)
        gate = (await self.store.take_probe(names)).gate
        return [] if gate is None else await self.take_through(gate, *names)

    async def take_through(self, gate: Gate, *handlers: str) -> list[ClaimedTask]:
        return (await self.store.claim_probe(self.id, next(self._numbers), handlers or ("work",), gate)).tasks

    async def end(self, task: ClaimedTask, state: State, **facts: Any) -> SettleVerdict:
        """Settle one attempt now."""
        [verdict] = await self.store.settle(self.id, [ended(task, state, at=self.store.now(), **facts)])
        return verdict

    async def hand_over(
        self, task: ClaimedTask, within: float = 3_600.0, silence: float | None = None, location: str | None = None
    ) -> SettleVerdict:
        """Say that somebody else has accepted the work of an attempt."""
        deadline_at = self.store.now() + round(within * SECOND)
        [verdict] = await self.store.accept(self.id, [Acceptance(task.id, task.attempt, deadline_at, silence, location)])
        return verdict

    async def run(self, state: State, handler: str = "work", **facts: Any) -> ClaimedTask:
        """Claim one task of a handler and settle it."""
        task = await self.take_one(handler)
        assert await self.end(task, state, **facts) is SettleVerdict.ACCEPTED
        return task


async def add(store: Store, handler: str = "work", payload: bytes = b"{}", **options: Any) -> TaskRecord:
    """Add one task that must be new."""
    [added] = await store.add([new_task(handler, payload, **options)])
    assert added.verdict is AddVerdict.ADDED
    return added.record


async def put(store: Store, handler: str = "work", payload: bytes = b"{}", **options: Any) -> Added:
    """Add one task, whatever the verdict."""
    [added] = await store.add([new_task(handler, payload, **options)])
    return added


async def get(store: Store, task: TaskRecord | NewTask[object] | ClaimedTask | str) -> TaskRecord:
    """Read one task that must exist."""
    [record] = await store.get([task if isinstance(task, str) else task.id])
    assert record is not None
    return record


async def state_of(store: Store, task: TaskRecord | NewTask[object] | ClaimedTask | str) -> State:
    return (await get(store, task)).state


async def task_in(store: Store, worker: Worker, state: State, handler: str = "work", **options: Any) -> TaskRecord:
    """Bring a new task into a state by the verbs that lead there. The handler must have no other due task."""
    if state is State.EXPIRED:
        options["expires_at"] = store.now() - 1
    if state is State.BLOCKED:
        key = options.get("key")  # a task waits for tasks of its own shard only
        parent = await add(store, "parent", id=new_id(_cell(handler, key)))
        options["edges"] = (needs(parent),)
    record = await add(store, handler, **options)
    match state:
        case State.RUNNING:
            assert (await worker.take_one(handler)).id == record.id
        case State.SUCCEEDED | State.FAILED:
            assert (await worker.run(state, handler)).id == record.id
        case State.CANCELLED:
            await store.cancel([record.id])
        case State.DROPPED:
            await store.put_gate(Gate(handler=handler, action=GateAction.DROP))
            await store.drop(PLENTY)
            await store.remove_gate(handler, None)
        case State.EXPIRED:
            await store.expire(PLENTY)
        case State.BLOCKED | State.PENDING:
            pass
    record = await get(store, record)
    assert record.state is state
    return record


async def watch(reaper: Reaper, since: float, until: float) -> int:
    """Let a reaper look again and again from one instant of its clock to another, as it does by itself; give how much it took back."""
    taken = await reaper.reap(since)
    while since < until:
        since = min(since + LOOK_EVERY, until)
        taken += await reaper.reap(since)
    return taken


async def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Poll for what another thread brings about; `what` completes the sentence "timed out waiting for …"."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  an event would have to be set by the code under test
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"timed out waiting for {what}") from None
