"""Random verbs against a store and against a dictionary; after each step both must tell the same."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from duetime.clock import SECOND, ManualClock
from duetime.ids import new_id
from duetime.model.gate import Gate, GateAction
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome, Running, Settlement, SettleVerdict
from duetime.model.query import Query
from duetime.model.retry import RetryPolicy
from duetime.model.task import FINAL, Edge, IfExists, NewTask, State
from duetime.store import Store
from duetime.store.shard import Lease
from duetime.store.values import AddVerdict, Counts, Edit, NewWorker
from tests.conformance.build import PLENTY, new_task
from tests.conformance.dictionary import Dictionary, Entry
from tests.conformance.stores import StoreKind

T = TypeVar("T")

HANDLERS = ("a", "b")
CHILDREN = "after"  # a handler without gates and expiries: which of two rules ends a child is left open by the contract
POLICY = RetryPolicy(tries=3, base=1, factor=2, cap=10, jitter=0)
DIGESTS = ("old", "new")
STEPS = 50
PARTS = 3  # tests that share the examples of a store, so that one of them does not run on alone when all others are done

handlers = st.sampled_from(HANDLERS)
collections = st.sampled_from([None, "eu", "us"])
priorities = st.sampled_from([0, 5, 9])
seconds = st.sampled_from([-3600, -1, 0, 0, 0, 1, 5, 60])
payloads = st.sampled_from([None, None, b'{"n": 1}', b'{"n": 2}'])
picks = st.integers(0, 1_000)
limits = st.sampled_from([1, 2, PLENTY])


class Wanted(NamedTuple):
    """A task to be submitted: a new one, or a child of `parents`, or the repeat of an earlier one."""

    handler: str
    key: str | None
    if_exists: IfExists
    collection: str | None
    priority: int
    due: int
    expires: int | None
    parents: list[tuple[int, Literal["end", "success"]]]
    again: int | None


wanted = st.builds(
    Wanted,
    handler=handlers,
    key=st.sampled_from([None, "k1", "k2"]),
    if_exists=st.sampled_from(["error", "keep", "replace", "queue_one", "queue_one"]),
    collection=collections,
    priority=priorities,
    due=seconds,
    expires=st.sampled_from([None, None, -1, 2, 30]),
    parents=st.just([]) | st.just([]) | st.lists(st.tuples(picks, st.sampled_from(["end", "success"])), min_size=1, max_size=2),
    again=st.none() | st.none() | st.none() | picks,
)
endings = st.builds(
    Ended,
    outcome=st.sampled_from([each for each in Outcome if each is not Outcome.SUSPENDED]),  # those are in test_steps.py
    delay=st.sampled_from([0, 1, 30]),
    retriable=st.booleans(),
    crashed=st.booleans(),
    alone=st.booleans(),
    refused_by=st.sampled_from(DIGESTS),
)


class StoreMachine(RuleBasedStateMachine):
    """One store, two workers, one clock. Expiries end in half a second, so that no instant meets one exactly."""

    def __init__(self, kind: StoreKind, folder: Path) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.clock = ManualClock()
        self.model = Dictionary(self.clock)
        self.has_queue_one = "test_queue_one" not in kind.lacks
        kind.prepare(folder)
        self.store: Store = kind.store(folder, self.clock, one_connection=True)
        self.claims = itertools.count(1)
        self.workers: dict[str, Lease] = {}
        self.touched: set[str] = set()
        self.agreed = False
        self.run(self.store.open())
        for _ in range(2):
            self.hire()

    def run(self, verb: Awaitable[T]) -> T:
        self.agreed = False
        return self.loop.get_loop().run_until_complete(_await(verb))

    def hire(self) -> None:
        id = f"w-{new_id()}"
        self.workers[id] = self.run(self.store.register(NewWorker(id=id, host="here", pid=1, slots={})))

    def worker(self, pick: int) -> str:
        return list(self.workers)[pick % len(self.workers)]

    def task(self, pick: int) -> Entry:
        """Choose a task, later ones first, so that shrinking has few to choose from."""
        entries = list(self.model.tasks.values())
        return entries[-1 - pick % len(entries)]

    def follow(self, candidates: list[Entry], count: int, limit: int, state: State) -> None:
        """Accept the store's choice among tasks that an upkeep may end, if it took as many as it could."""
        assert count == min(limit, len(candidates))
        records = self.run(self.store.get([entry.task.id for entry in candidates]))
        chosen = [entry for entry, record in zip(candidates, records, strict=True) if record and record.state is state]
        assert len(chosen) == count
        for entry in chosen:
            self.model.finish(entry, state)

    @initialize(wanted=st.lists(wanted, min_size=2, max_size=6))
    def begin(self, wanted: list[Wanted]) -> None:
        self.submit(wanted)

    @rule(wanted=st.lists(wanted, min_size=1, max_size=4))
    def submit(self, wanted: list[Wanted]) -> None:
        """Add several tasks in one call: new ones, children of earlier ones, and repeats."""
        new_tasks, meant = [], []
        for each in wanted:
            new_tasks.append(self.new_task(each))
            meant.append(self.model.add(new_tasks[-1]))
        added = self.run(self.store.add(new_tasks))
        assert [(one.verdict, one.record.id) for one in added] == meant
        self.touched.update(one.record.id for one in added)

    def new_task(self, wanted: Wanted) -> NewTask[object]:
        now = self.clock.now()
        payload = b"%d" % len(self.model.tasks)
        if wanted.again is not None and self.model.tasks:
            return self.task(wanted.again).task
        if wanted.parents and self.model.tasks:
            edges = {self.task(pick).task.id: needs for pick, needs in wanted.parents}
            due_at = now + wanted.due * SECOND
            return new_task(CHILDREN, payload, due_at=due_at, edges=tuple(Edge(*edge) for edge in edges.items()))
        when: dict[str, int] = {"due_at": now + wanted.due * SECOND} if wanted.due < 0 else {"delay": wanted.due * SECOND}
        return new_task(
            wanted.handler,
            payload,
            key=wanted.key,
            if_exists="keep" if wanted.if_exists == "queue_one" and not self.has_queue_one else wanted.if_exists,
            collection=wanted.collection,
            priority=wanted.priority,
            expires_at=None if wanted.expires is None else now + wanted.expires * SECOND + SECOND // 2,
            **when,
        )

    @rule(pick=picks, want=st.sampled_from([1, 3, PLENTY]), total=st.sampled_from([1, 4, PLENTY]), asked=st.sets(handlers))
    def claim(self, pick: int, want: int, total: int, asked: set[str]) -> None:
        self.claim_for(self.worker(pick), dict.fromkeys([*sorted(asked), CHILDREN], want), total)

    def claim_for(self, worker: str, wants: dict[str, int], total: int) -> None:
        due = {handler: self.model.due(handler) for handler in wants}
        claim = self.run(self.store.claim(worker, next(self.claims), wants, total))
        assert claim.now == self.clock.now()
        assert claim.next_at is None or claim.next_at > claim.now
        late = [entry for entries in due.values() for entry in entries if self.model.expired(entry)]
        for entry, record in zip(late, self.run(self.store.get([entry.task.id for entry in late])), strict=True):
            if record is not None and record.state is State.EXPIRED:
                self.model.finish(entry, State.EXPIRED)
        for task in claim.tasks:
            self.model.claim(task.id, task.attempt, worker)
            self.touched.add(task.id)
        assert len(claim.tasks) <= total
        for handler, count in Counter(task.handler for task in claim.tasks).items():
            assert count <= wants[handler]
        if not late:
            assert len(claim.tasks) == min(total, sum(min(wants[handler], len(entries)) for handler, entries in due.items()))

    @rule(pick=picks, want=st.sampled_from([1, 3, PLENTY]), digest=st.sampled_from(DIGESTS), asked=st.sets(handlers))
    def claim_parked(self, pick: int, want: int, digest: str, asked: set[str]) -> None:
        wants = dict.fromkeys([*sorted(asked), CHILDREN], want)
        fitting = {handler: len(self.model.fitting(handler, digest)) for handler in wants}
        worker = self.worker(pick)
        claim = self.run(self.store.claim_parked(worker, next(self.claims), dict.fromkeys(wants, digest), wants))
        for task in claim.tasks:
            self.model.claim(task.id, task.attempt, worker, digest)
            self.touched.add(task.id)
        assert Counter(task.handler for task in claim.tasks) == +Counter({handler: min(want, count) for handler, count in fitting.items()})

    def running(self, worker: str | None = None) -> list[Entry]:
        entries = (entry for entry in self.model.tasks.values() if entry.state is State.RUNNING)
        return [entry for entry in entries if worker in (None, entry.worker)]

    @rule(pick=picks, passing=st.sampled_from([0, 0.001, 1, 10]), endings=st.lists(endings, min_size=1, max_size=5))
    def work(self, pick: int, passing: float, endings: list[Ended]) -> None:
        """Let a worker claim all that it can get and end some of its attempts in one call."""
        worker = self.worker(pick)
        self.claim_for(worker, dict.fromkeys((*HANDLERS, CHILDREN), PLENTY), PLENTY)
        self.clock.advance(passing)
        settlements = [
            conclude(
                Running(entry.task.id, entry.task.handler, entry.attempt, entry.tries, entry.crashes, entry.due_at, entry.expires_at),
                ended,
                POLICY,
                started_at=None,
                now=self.clock.now(),
                chance=0,
            )
            for entry, ended in zip(self.running(worker), endings, strict=False)
        ]
        self.say(worker, settlements)

    def say(self, worker: str, settlements: list[Settlement]) -> None:
        meant = [self.model.settle(worker, settlement) for settlement in settlements]
        assert self.run(self.store.settle(worker, settlements)) == meant
        self.touched.update(settlement.id for settlement in settlements)

    @precondition(lambda self: self.model.tasks)
    @rule(pick=picks, back=st.integers(0, 2), other=picks, state=st.sampled_from([State.SUCCEEDED, State.FAILED, State.PENDING]))
    def say_something_wrong(self, pick: int, back: int, other: int, state: State) -> None:
        """Settle an attempt that is over, was never claimed or is another worker's."""
        entry = self.task(pick)
        attempt, worker = max(0, entry.attempt - back), self.worker(other)
        released = (attempt, worker) in {(number, who) for number, _, who in entry.history} - entry.words.keys()
        if (entry.state is State.RUNNING and (entry.attempt, entry.worker) == (attempt, worker)) or released:
            return
        now = self.clock.now()
        settlement = Settlement(entry.task.id, attempt, Outcome.SUCCEEDED, state, 0, 0, now, now, now)
        assert self.model.settle(worker, settlement) is not SettleVerdict.ACCEPTED
        self.say(worker, [settlement])

    @precondition(lambda self: self.model.tasks)
    @rule(pick=picks, rather_running=st.booleans())
    def cancel(self, pick: int, rather_running: bool) -> None:
        entries = self.running()
        entry = entries[pick % len(entries)] if entries and rather_running else self.task(pick)
        id = entry.task.id
        assert self.run(self.store.cancel([id])) == [self.model.cancel(id)]
        self.touched.add(id)

    @precondition(lambda self: self.model.tasks)
    @rule(pick=picks)
    def retry(self, pick: int) -> None:
        id = self.task(pick).task.id
        blocked = (entry for entry in self.model.tasks.values() if entry.state is State.BLOCKED)
        if any(edge.parent == id for entry in blocked for edge in entry.task.edges):
            return  # whether a met edge counts as unmet again is left open by the contract
        assert self.run(self.store.retry([id])) == [self.model.retry(id)]
        self.touched.add(id)

    @precondition(lambda self: self.model.tasks)
    @rule(pick=picks, due=st.none() | seconds, priority=st.none() | priorities, collection=collections, payload=payloads)
    def edit(self, pick: int, due: int | None, priority: int | None, collection: str | None, payload: bytes | None) -> None:
        due_at = None if due is None else self.clock.now() + due * SECOND
        change = Edit(id=self.task(pick).task.id, due_at=due_at, priority=priority, collection=collection, payload=payload)
        assert self.run(self.store.edit([change])) == [self.model.edit(change)]

    @rule(handler=handlers, collection=collections, action=st.sampled_from(GateAction), lasting=st.sampled_from([None, 1, 30]))
    def put_gate(self, handler: str, collection: str | None, action: GateAction, lasting: int | None) -> None:
        until_at = None if lasting is None else self.clock.now() + lasting * SECOND
        gate = Gate(handler=handler, collection=collection, action=action, until_at=until_at)
        self.run(self.store.put_gate(gate))
        self.model.gates[handler, collection] = gate

    @precondition(lambda self: self.model.gates)
    @rule(pick=picks)
    def remove_gate(self, pick: int) -> None:
        lane = list(self.model.gates)[pick % len(self.model.gates)]
        closed = self.model.gates.pop(lane).closed(self.clock.now())
        version = self.run(self.store.remove_gate(*lane))
        assert version is not None or not closed

    @rule(limit=limits)
    def drop(self, limit: int) -> None:
        self.follow(self.model.droppable(), self.run(self.store.drop(limit)), limit, State.DROPPED)

    @rule(limit=limits)
    def expire(self, limit: int) -> None:
        self.follow(self.model.expirable(), self.run(self.store.expire(limit)), limit, State.EXPIRED)

    @rule(state=st.sampled_from(sorted(FINAL)), age=st.sampled_from([0, 5]), limit=limits)
    def prune(self, state: State, age: int, limit: int) -> None:
        before = self.clock.now() - age * SECOND
        prunable = {entry.task.id: entry for entry in self.model.prunable(state, before)}
        pruned = self.run(self.store.prune(state, before, limit))
        assert len(pruned) == min(limit, len(prunable))
        for gone in pruned:
            assert gone.attempt == prunable.pop(gone.id).attempt
            self.model.forget(gone.id)
            self.touched.discard(gone.id)
            assert self.run(self.store.attempts(gone.id)) == []

    @rule(seconds=st.sampled_from([0.001, 1, 10, 3600]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(pick=picks)
    def unregister(self, pick: int) -> None:
        worker = self.worker(pick)
        self.run(self.store.unregister(worker))
        self.workers.pop(worker).close()
        now = self.clock.now()
        for entry in self.running():
            if entry.worker == worker:
                back = Settlement(entry.task.id, entry.attempt, Outcome.RELEASED, State.PENDING, entry.tries, entry.crashes, None, now, now)
                self.model.end(entry, back)
                self.touched.add(entry.task.id)
        self.hire()

    @invariant()
    def the_store_tells_the_same(self) -> None:
        self.run(self.compare())
        self.agreed = True

    async def compare(self) -> None:
        ids = list(self.model.tasks)
        touched, self.touched = self.touched, set()
        # asked together, because what costs most here is the way to the store's thread and back
        histories = asyncio.gather(*(self.compare_history(id) for id in touched))
        records, counts, _ = await asyncio.gather(self.store.get(ids), self.store.counts(), histories)
        for id, record in zip(ids, records, strict=True):
            entry = self.model.tasks[id]
            assert record is not None, f"lost {id}"
            told = (record.state, record.attempt, record.tries, record.crashes, record.priority, record.collection, record.payload)
            meant = (entry.state, entry.attempt, entry.tries, entry.crashes, entry.priority, entry.collection, entry.payload)
            assert told == meant, entry
            told_marks = (record.cancelling, record.parked, record.finished_at)
            assert told_marks == (entry.cancelling, entry.parked, entry.finished_at), entry
            if entry.state not in FINAL:
                assert (record.due_at, record.worker, record.expires_at) == (entry.due_at, entry.worker, entry.expires_at), entry
        self.compare_counts(counts)

    def compare_counts(self, counts: Counts) -> None:
        lanes = {
            (lane.handler, lane.collection, lane.priority): +Counter(
                due=lane.due, later=lane.later, blocked=lane.blocked, parked=lane.parked, running=lane.running
            )
            for lane in counts.lanes
        }
        assert {lane: count for lane, count in lanes.items() if count} == self.model.lanes()
        finals = Counter((entry.task.handler, entry.state) for entry in self.model.tasks.values() if entry.state in FINAL)
        assert {(final.handler, final.state): final.count for final in counts.finals if final.count} == finals

    async def compare_history(self, id: str) -> None:
        entry = self.model.tasks[id]
        attempts = [(attempt.attempt, attempt.outcome, attempt.worker) for attempt in await self.store.attempts(id)]
        running = [(entry.attempt, None, entry.worker)] if entry.state is State.RUNNING else []
        assert attempts == entry.history + running
        if entry.task.key is not None:
            await self.compare_holder(entry.task.handler, entry.task.key)

    async def compare_holder(self, handler: str, key: str) -> None:
        found = await self.store.find(handler, key)
        holder = self.model.holder(handler, key)
        if holder is not None:
            assert found is not None
            assert found.id == holder.task.id
            return
        ended = {
            id: entry.finished_at or 0 for id, entry in self.model.tasks.items() if (entry.task.handler, entry.task.key) == (handler, key)
        }
        assert (found is None) == (not ended)
        if found is not None:
            assert ended[found.id] == max(ended.values())

    async def compare_at_the_end(self) -> None:
        for handler, key in itertools.product(HANDLERS, ("k1", "k2")):
            await self.compare_holder(handler, key)
        for id in self.model.tasks:
            await self.compare_history(id)
        for worker in self.workers:
            held = {(attempt.id, attempt.attempt, attempt.cancelling) for attempt in await self.store.attempts_of(worker)}
            own = (entry for entry in self.running() if entry.worker == worker)
            assert held == {(entry.task.id, entry.attempt, entry.cancelling) for entry in own}
        await self.compare_pages()
        assert await self.store.inspect(repair=False) == []

    async def compare_pages(self) -> None:
        for state in (None, State.PENDING, State.FAILED):
            listed: list[str] = []
            cursor = None
            while cursor is not None or not listed:
                page = await self.store.page(Query(state=state, limit=3, cursor=cursor))
                listed += [record.id for record in page.items]
                cursor = page.next
                if cursor is None:
                    break
            matching = [id for id, entry in self.model.tasks.items() if state in (None, entry.state)]
            assert sorted(listed) == sorted(matching)

    def teardown(self) -> None:
        try:
            if self.agreed:  # what failed already must not be hidden by what follows from it
                self.run(self.compare_at_the_end())
        finally:
            for lease in self.workers.values():
                lease.close()
            self.run(self.store.close())
            self.loop.close()


async def _await(verb: Awaitable[T]) -> T:
    return await verb


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_store_does_what_a_dictionary_would(kind: StoreKind, tmp_path: Path, request: pytest.FixtureRequest, part: int) -> None:
    folders = itertools.count()

    class Machine(StoreMachine):
        def __init__(self) -> None:
            folder = tmp_path / str(next(folders))
            folder.mkdir()
            super().__init__(kind, folder)

        def teardown(self) -> None:
            try:
                super().teardown()
            finally:
                kind.databases.clear()  # while hypothesis shrinks a failure there may be thousands of examples

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=-(-kind.examples[request.config.getoption("--scope")] // PARTS),
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_dictionary_itself_knows_its_verdicts() -> None:
    """Guard the guard: a model that accepts everything would prove nothing."""
    model = Dictionary(ManualClock())
    first = new_task("a", key="k")
    assert model.add(first) == (AddVerdict.ADDED, first.id)
    assert model.add(new_task("a", key="k"))[0] is AddVerdict.DUPLICATE
    with pytest.raises(AssertionError, match="without a gap"):
        model.claim(first.id, 2, "w")
