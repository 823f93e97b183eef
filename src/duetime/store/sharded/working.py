"""What workers do: register, claim, settle. A worker is registered at control and at every shard, with a lease at each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from duetime.errors import StoreUnavailable
from duetime.model.claim_order import Below
from duetime.model.gate import Gate
from duetime.model.outcome import Acceptance, Settlement, SettleVerdict
from duetime.model.sharding import CONTROL
from duetime.store import Store
from duetime.store.accepting import Heard, OpenAttempt, Report, Withdrawal
from duetime.store.pull_workers import PullWorker, RunningTask
from duetime.store.shard import AsTheyCome, Grouping, Lease
from duetime.store.sharded.routing import Routing, same
from duetime.store.values import Claim, ClaimedTask, NewWorker, Progress, Renewal, RunningAttempt, RunningCount, WorkerRecord

ClaimAt = Callable[[Store, Mapping[str, int], int], Awaitable[Claim]]


class ShardedLease:
    """The leases of one worker. It has proved that it lives when all of them were renewed; they are renewed at the same time."""

    def __init__(self, leases: Mapping[str, Lease]) -> None:
        self.leases = leases
        self._threads = ThreadPoolExecutor(len(leases), thread_name_prefix="duetime-lease")

    def renew(self) -> Renewal:
        renewals = dict(zip(self.leases, self._threads.map(_renew, self.leases.values()), strict=True))
        control: Renewal = renewals[CONTROL]
        return msgspec.structs.replace(
            control,
            known=all(each.known for each in renewals.values()),
            draining=any(each.draining for each in renewals.values()),
            attempts=[attempt for each in renewals.values() for attempt in each.attempts],
        )

    def inheritable(self) -> Sequence[int]:
        return [descriptor for lease in self.leases.values() for descriptor in lease.inheritable()]

    def close(self) -> None:
        self._threads.shutdown()
        for lease in self.leases.values():
            lease.close()


class Working(Routing):
    """Verbs of workers."""

    # ---- registering ----

    async def register(self, worker: NewWorker) -> Lease:
        return ShardedLease(await self.everywhere(lambda store: store.register(worker)))

    async def change_slots(self, worker: NewWorker) -> bool:
        return all((await self.everywhere(lambda store: store.change_slots(worker))).values())

    async def drain(self, worker: str, draining: bool) -> bool:
        return (await self.everywhere(lambda store: store.drain(worker, draining)))[CONTROL]

    async def unregister(self, worker: str) -> None:
        await self.everywhere(lambda store: store.unregister(worker))

    async def attempts_of(self, worker: str) -> list[RunningAttempt]:
        found = await self.everywhere(lambda store: store.attempts_of(worker))
        return [attempt for attempts in found.values() for attempt in attempts]

    async def running_counts(self) -> list[RunningCount]:
        sums: dict[tuple[str, str], int] = {}
        for counts in (await self.everywhere(lambda store: store.running_counts())).values():
            for each in counts:
                sums[each.worker, each.handler] = sums.get((each.worker, each.handler), 0) + each.count
        return [RunningCount(worker, handler, count) for (worker, handler), count in sums.items()]

    async def workers(self) -> list[WorkerRecord]:
        """A worker's beat is the sum of its beats: it changes whenever one of them does, and each only grows."""
        merged: dict[str, WorkerRecord] = {}
        for records in (await self.everywhere(lambda store: store.workers())).values():
            for record in records:
                known = merged.get(record.id)
                merged[record.id] = record if known is None else _both(known, record)
        return list(merged.values())

    async def reap(self, worker: str, beat: int) -> int | None:
        """Every shard compares its own beat once more, in the step in which it takes the attempts."""
        beats: dict[str, int] = {}
        for shard, records in (await self.everywhere(lambda store: store.workers())).items():
            beats |= {name: record.beat for name, record in ((shard, each) for each in records) if record.id == worker}
        if not beats or sum(beats.values()) != beat:
            return None
        counts = []
        for shard in reversed(beats):
            async with self.visit(shard) as store:
                count = await store.reap(worker, beats[shard])
            counts += [] if count is None else [count]
        return sum(counts) if counts else None

    # ---- claiming ----

    async def claim(
        self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0, below: Below | None = None
    ) -> Claim:
        left = {handler: dict(bounds) for handler, bounds in below.items()} if below else None

        async def at(store: Store, wants: Mapping[str, int], total: int) -> Claim:
            return await store.claim(worker, claim, wants, total, ahead=ahead, below=left)

        def taken(task: ClaimedTask) -> None:
            for priority in (left or {}).get(task.handler, {}):
                if left is not None and task.priority < priority:
                    left[task.handler][priority] -= 1

        return await self._one_after_another(wants, total, at, taken)

    async def claim_parked(self, worker: str, claim: int, declared: Mapping[str, str], wants: Mapping[str, int]) -> Claim:
        return await self._one_after_another(
            wants, sum(wants.values()), lambda store, wants, total: store.claim_parked(worker, claim, declared, wants)
        )

    async def claim_probe(self, worker: str, claim: int, names: Collection[str], gate: Gate) -> Claim:
        wants = dict.fromkeys(names, 1)
        return await self._one_after_another(wants, 1, lambda store, wants, total: store.claim_probe(worker, claim, names, gate))

    async def claim_for(self, worker: str, claim: int, wants: Mapping[str, int], total: int) -> Claim:
        running = await self.running_tasks(worker, payloads=False)
        if any(task.claim == claim for task in running):
            total = 0  # a repeat: no shard that has not answered the first one may hand out more
        return await self._one_after_another(wants, total, lambda store, wants, total: store.claim_for(worker, claim, wants, total))

    async def _one_after_another(
        self, wants: Mapping[str, int], total: int, claim: ClaimAt, taken: Callable[[ClaimedTask], None] = lambda task: None
    ) -> Claim:
        """Ask one shard after another, another one first each time, until nothing more is wanted."""
        await self.current()
        names = self.names()
        self._claims += 1
        first = self._claims % len(names)
        left, tasks, nexts, nows, failures = dict(wants), list[ClaimedTask](), list[int](), list[int](), list[StoreUnavailable]()
        for shard in (*names[first:], *names[:first]):
            if len(tasks) >= total and nows:
                break
            try:
                async with self.visit(shard) as store:
                    found = await claim(store, left, total - len(tasks))
            except StoreUnavailable as failure:
                failures.append(failure)
                continue
            for task in found.tasks:
                left[task.handler] -= 1
                self._held[task.id] = shard
                taken(task)
            left = {handler: count for handler, count in left.items() if count > 0}
            tasks += found.tasks
            nows.append(found.now)
            if found.next_at is not None:
                nexts.append(found.next_at)
            if not left:
                break
        if failures and not nows:
            raise failures[0]
        return Claim(tasks, min(nows), min(nexts, default=None))

    # ---- settling ----

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        verdicts = await self.route(settlements, _id, lambda store, some: store.settle(worker, some), _is_stale)
        for settlement, verdict in zip(settlements, verdicts, strict=True):
            if verdict is not SettleVerdict.STALE:
                self._held.pop(settlement.id, None)
        return verdicts

    def grouping(self, worker: str) -> Grouping:
        return AsTheyCome()

    async def progress(self, worker: str, marks: Sequence[Progress]) -> None:
        async def note(store: Store, some: list[Progress]) -> list[None]:
            await store.progress(worker, some)
            return [None] * len(some)

        await self.route(marks, lambda mark: mark.id, note, lambda answer: False)

    # ---- accepted attempts ----

    async def accept(self, worker: str, acceptances: Sequence[Acceptance]) -> list[SettleVerdict]:
        return await self.route(acceptances, lambda each: each.id, lambda store, some: store.accept(worker, some), _is_stale)

    async def open_attempts(self, ids: Sequence[str]) -> list[OpenAttempt]:
        async def read(store: Store, some: list[str]) -> list[OpenAttempt | None]:
            found = {each.task.id: each for each in await store.open_attempts(some)}
            return [found.get(id) for id in some]

        found = await self.route(ids, same, read, lambda attempt: attempt is None)
        return [attempt for attempt in found if attempt is not None]

    async def complete(self, settlements: Sequence[Settlement], *, overdue: bool = False) -> list[SettleVerdict]:
        return await self.route(settlements, _id, lambda store, some: store.complete(some, overdue=overdue), _is_stale)

    async def hear(self, reports: Sequence[Report]) -> list[Heard]:
        return await self.route(
            reports, lambda each: each.id, lambda store, some: store.hear(some), lambda heard: heard.verdict is SettleVerdict.STALE
        )

    async def take_withdrawals(self, handlers: Sequence[str], limit: int) -> list[Withdrawal]:
        return await self.one_by_one(limit, lambda store, left: store.take_withdrawals(handlers, left))

    async def overdue(self, limit: int) -> list[OpenAttempt]:
        found = await self.everywhere(lambda store: store.overdue(limit))
        late = [attempt for attempts in found.values() for attempt in attempts]
        return sorted(late, key=lambda attempt: attempt.deadline_at or 0)[:limit]

    # ---- pull workers ----

    async def register_pull_worker(self, worker: PullWorker) -> None:
        await self.everywhere(lambda store: store.register_pull_worker(worker))

    async def renew_pull_worker(self, id: str) -> bool:
        return all((await self.everywhere(lambda store: store.renew_pull_worker(id))).values())

    async def running_tasks(self, worker: str, ids: Sequence[str] | None = None, *, payloads: bool = True) -> list[RunningTask]:
        found = await self.everywhere(lambda store: store.running_tasks(worker, ids, payloads=payloads))
        return sorted((task for tasks in found.values() for task in tasks), key=lambda task: (task.claim, -task.priority, task.due_at))


def _renew(lease: Lease) -> Renewal:
    return lease.renew()


def _id(settlement: Settlement) -> str:
    return settlement.id


def _is_stale(verdict: SettleVerdict) -> bool:
    return verdict is SettleVerdict.STALE


def _both(one: WorkerRecord, other: WorkerRecord) -> WorkerRecord:
    alive = True if one.alive or other.alive else None if None in (one.alive, other.alive) else False
    return msgspec.structs.replace(one, beat=one.beat + other.beat, running=one.running + other.running, alive=alive)
