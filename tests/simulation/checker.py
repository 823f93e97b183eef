"""What must hold at the end of a simulated world: the rules of `tests.chaos.history`, by the handlers' own journal, and some more.

| rule       | what it finds                                                                                                    |
| ---------- | ---------------------------------------------------------------------------------------------------------------- |
| occurrence | two tasks of one planned instant, or none                                                                        |
| edge       | a task that began before the one that it waits for had ended, or although it needed a success that did not come  |
| tries      | a count of tries other than that of the attempts that failed or timed out, or more attempts than the policy allows |
| cancelling | an attempt of a task that began after `cancelling` had been answered for an earlier one                          |
| expired    | a start after the expiry                                                                                         |
| unstarted  | an attempt that uses up a try although nobody began it                                                            |
| timeout    | an attempt of a pull worker that went on long after its time                                                      |
| operation  | a task that a cancel of all has left out, or that was cancelled although it came later                           |
| why        | a reason that was not the true one                                                                               |
| counts     | counts that are not those of the rows                                                                            |
| leak       | rows, attempts, listeners or outcomes that are left although all tasks are final                                  |
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from duetime.clock import SECOND, Instant, to_datetime
from duetime.model.outcome import AttemptRecord, Outcome
from duetime.model.task import FINAL, State, TaskRecord
from duetime.model.why import Reason, ReasonKind
from duetime.store.sqlite import read
from duetime.store.sqlite.records import records_by_id
from duetime.testing.simulation.cluster import Cluster
from tests.chaos.history import History
from tests.simulation.journal import Journal
from tests.simulation.programs import SLOTS, TICK, TRIES

LATE = 0.05  # seconds by which a start may come after the expiry: the callbacks of others that come first
UNSTARTED = {
    ReasonKind.READY,
    ReasonKind.SLOTS_FULL,
    ReasonKind.WORKER_FULL,
    ReasonKind.NO_WORKER,
    ReasonKind.GATE,
    ReasonKind.PARKED,
    ReasonKind.LIMIT,
}


OUTSIDE = {"pulled", "handed", "billed"}  # handlers whose attempts others perform and report


class Cancelled:
    """An operation that cancels all tasks of a handler: those that were there when it was asked for."""

    def __init__(self, handler: str, collection: str | None, submitted: set[str]) -> None:
        self.handler = handler
        self.collection = collection
        self.submitted = submitted
        self.started_at: float | None = None  # when its start was answered
        self.done_at = 0.0
        self.attempts: dict[str, int] = {}  # of the tasks that it cancelled, by then
        self.answers: dict[str, int] = {}

    def matches(self, record: TaskRecord) -> bool:
        return record.handler == self.handler and (self.collection is None or record.collection == self.collection)


class Facts:
    """What the client did, and what the database says at the end."""

    def __init__(self) -> None:
        self.submitted: set[str] = set()
        self.parents: dict[str, tuple[str, str]] = {}  # of a child: its parent and what it needs of it
        self.cancelled: set[str] = set()  # a cancel was tried
        self.cancelling: dict[str, tuple[float, int]] = {}  # since when, and the number of its attempt then
        self.retried: set[str] = set()
        self.replaced: set[tuple[str, str | None]] = set()  # handlers and keys whose tasks may have been replaced by other submissions
        self.asked_at: dict[str, float] = {}  # when the client first asked to submit a task
        self.operated: list[Cancelled] = []
        self.reported: set[tuple[str, int]] = set()  # (task, fence) of successes outside whose report was answered as counted
        self.server_died = False
        self.stepped = False
        self.cut_off: set[int] = set()  # workers that may have been unable to renew their lease although the store was there
        self.wrong: list[str] = []
        self.members: set[str] = set()  # tasks of flows
        self.records: dict[str, TaskRecord] = {}
        self.attempts: dict[str, list[AttemptRecord]] = {}

    @property
    def others(self) -> int:
        """How many tasks there are that the client did not submit."""
        return len(self.records.keys() - self.submitted)

    def read(self, cluster: Cluster, execute: Callable[[str], list[Any]]) -> None:
        """Read everything from the database."""
        connection = cluster.memory.connection
        names = [name for (name,) in execute("select id from duetime_task order by seq")]
        self.records = records_by_id(connection, names)
        self.members = {task for (task,) in execute("select t.id from duetime_member m join duetime_task t on t.seq = m.task")}
        self.attempts = {name: read.attempts(connection, name, 0, None) for name in names if self.records[name].attempt > 1}

    def judge_operation(self, done: Cancelled, records: Mapping[str, TaskRecord | None], now: float) -> None:
        """Look whether a cancel of all that was there has left something out."""
        done.done_at = now
        for task, record in records.items():
            if record is None or not done.matches(record) or self.unclear(record):
                continue
            done.attempts[task] = record.attempt
            if record.state not in FINAL and not (record.state is State.RUNNING and record.cancelling) and not self.stepped:
                self.wrong.append(f"operation: {task} is {record.state} although a cancel of all {done.handler} is done")

    def unclear(self, record: TaskRecord) -> bool:
        """Return whether a task may have begun anew, by a retry or as another submission of its key."""
        began_again = record.id in self.retried or self.parents.get(record.id, ("", ""))[0] in self.retried
        return began_again or (record.handler, record.key) in self.replaced

    def judge_why(self, record: TaskRecord, reasons: Sequence[Reason], now: Instant, *, gated: bool) -> None:
        """Compare the reasons of a task, which was the same before and after they were given, with what is known of it."""
        kinds = {reason.kind for reason in reasons}
        if gated and record.state is State.PENDING and ReasonKind.GATE not in kinds:
            self.wrong.append(f"why: {record.id} is behind a gate, but the reasons were {', '.join(sorted(kinds)) or 'nothing'}")
        expected: set[ReasonKind]
        if record.state in FINAL:
            expected = {ReasonKind.FINISHED}
        elif record.state is State.RUNNING:
            expected = {ReasonKind.RUNNING, ReasonKind.ACCEPTED} if record.handler in OUTSIDE else {ReasonKind.RUNNING}
        elif record.state is State.BLOCKED:
            expected = {ReasonKind.SUSPENDED if record.handler == "story" and record.attempt else ReasonKind.BLOCKED}
        elif record.due_at > now + SECOND:
            expected = {ReasonKind.RETRY} if record.tries else {ReasonKind.LATER, ReasonKind.RETRY}
            expected |= {ReasonKind.SUSPENDED} if record.handler == "story" and record.attempt else set()
        elif record.due_at < now - SECOND:
            expected = UNSTARTED
        else:
            return
        if not kinds & expected:
            names = ", ".join(sorted(kinds)) or "nothing"
            self.wrong.append(f"why: {record.id} is {record.state}, due at {to_datetime(record.due_at)}, but the reasons were {names}")


class Simulated(History):
    """The history of a simulated world. Attempts that no worker could have stopped are left out where they may overlap."""

    def __init__(self, journal: Journal, facts: Facts) -> None:
        super().__init__(journal.events)
        self._facts = facts
        self._excused = journal.excused
        self.events = [event for event in self.events if (event.task, event.fence) not in self._excused or event.kind != "start"]

    def _overlaps(self) -> Iterator[str]:
        whole = self.attempts
        kept = {task: [each for each in attempts if (task, each.start.fence) not in self._excused] for task, attempts in whole.items()}
        self.attempts = defaultdict(list, kept)
        yield from super()._overlaps()
        self.attempts = whole

    def _unknown(self) -> Iterator[str]:
        made = {task for task, record in self._facts.records.items() if record.schedule is not None} | self._facts.members
        for found in super()._unknown():
            if found.split()[1] not in made:
                yield found

    def _again(self) -> Iterator[str]:
        for found in super()._again():
            task = found.partition(" of ")[2].split()[0]
            if self._facts.records[task].handler in OUTSIDE:
                if any((task, attempt.start.fence) in self._facts.reported for attempt in self.attempts[task][:-1]):
                    yield found
                continue
            # a worker that could not tell in time how it ended, because it was frozen or its renewals failed, is taken for dead
            cut_off = any(attempt.start.pid in self._facts.cut_off for attempt in self.attempts[task])
            lost = cut_off and any(each.outcome is Outcome.LOST for each in self._facts.attempts.get(task, []))
            if not lost and not any((task, attempt.start.fence) in self._excused for attempt in self.attempts[task]):
                yield found

    def _fences(self) -> Iterator[str]:
        for found in super()._fences():
            task = found.split()[1]
            if not any(name == task for name, _ in self._excused):
                yield found

    # ---- rules of simulations ----

    def more(self, cluster: Cluster) -> Iterator[str]:
        facts = self._facts
        yield from facts.wrong
        yield from self._occurrences()
        yield from self._edges()
        yield from self._tries()
        yield from self._cancelling()
        yield from self._expired()
        yield from self._unstarted()
        yield from self._timeouts()
        yield from self._operations()
        yield from _counts(cluster, facts)
        yield from _leaks(cluster)

    def _occurrences(self) -> Iterator[str]:
        planned = sorted(
            record.planned_at
            for record in self._facts.records.values()
            if record.schedule == "tick" and record.planned_at is not None and record.planned_at % (TICK * SECOND) == 0
        )
        twice = [instant for instant, number in Counter(planned).items() if number > 1]
        for instant in twice:
            yield f"occurrence: {to_datetime(instant)} has several tasks"
        if not self._facts.stepped:
            for first, second in itertools.pairwise(sorted(set(planned))):
                if second - first != TICK * SECOND:
                    yield f"occurrence: nothing between {to_datetime(first)} and {to_datetime(second)}"

    def _edges(self) -> Iterator[str]:
        for child, (parent, needs) in self._facts.parents.items():
            record, before = self._facts.records.get(child), self._facts.records.get(parent)
            attempts = self.attempts.get(child, [])
            if record is None or before is None or not attempts:
                continue
            if needs == "success" and before.state is not State.SUCCEEDED and parent not in self._facts.retried:
                yield f"edge: {child} began although {parent}, whose success it needed, is {before.state}"
            last = max(
                (self._over_at(each) or 0.0 for each in self.attempts.get(parent, []) if (parent, each.start.fence) not in self._excused),
                default=0.0,
            )
            if last > attempts[0].start.at and parent not in self._facts.retried:
                yield f"edge: {child} began before {parent} had ended"

    def _tries(self) -> Iterator[str]:
        for task, record in self._facts.records.items():
            if task in self._facts.retried or (record.handler, record.key) in self._facts.replaced:
                continue
            stored = self._facts.attempts.get(task, [])
            tries = sum(each.outcome in (Outcome.FAILED, Outcome.TIMED_OUT) for each in stored)
            if stored and tries != record.tries:
                yield f"tries: {task} counts {record.tries}, but {tries} of its attempts failed or timed out"
            if record.tries > TRIES:
                yield f"tries: {task} was tried {record.tries} times, but {TRIES} are allowed"
            began, numbers = Counter(each.start.number for each in self.attempts.get(task, [])), {each.attempt for each in stored}
            if stored and not began.keys() <= numbers:
                yield f"tries: {task} began attempts {sorted(began)}, but the store knows {sorted(numbers)}"

    def _cancelling(self) -> Iterator[str]:
        for task, (since, number) in self._facts.cancelling.items():
            for attempt in self.attempts.get(task, []):
                if attempt.start.at > since and attempt.start.number > number and (task, attempt.start.fence) not in self._excused:
                    yield f"cancelling: attempt {attempt.start.number} of {task} began after `cancelling` was answered for {number}"

    def _expired(self) -> Iterator[str]:
        if self._facts.stepped:
            return
        for task, record in self._facts.records.items():
            if record.expires_at is None or record.handler == "pulled" or self._facts.unclear(record):
                continue
            for attempt in self.attempts.get(task, []):
                late = attempt.start.wall - record.expires_at / SECOND
                if late > LATE and (task, attempt.start.fence) not in self._excused:
                    yield f"expired: attempt {attempt.start.number} of {task} began {late:.3f} s after its expiry"

    def _unstarted(self) -> Iterator[str]:
        """A try is used up only by an attempt that began.

        Where the store's clock is set, or the server has died, an attempt of a pull worker may time out before it arrives.
        """
        if self._facts.stepped or self._facts.server_died:
            return
        for task, stored in self._facts.attempts.items():
            began = {each.start.number for each in self.attempts.get(task, [])}
            for each in stored:
                if each.outcome in (Outcome.FAILED, Outcome.TIMED_OUT) and each.attempt not in began:
                    yield f"unstarted: attempt {each.attempt} of {task} counts as {each.outcome}, but nobody began it"

    def _timeouts(self) -> Iterator[str]:
        """Servers end what a pull worker runs for too long, at its next renewal."""
        for task, attempts in self.attempts.items():
            for each in attempts:
                over_at = self._over_at(each)
                lasted = 0.0 if over_at is None else over_at - each.start.at
                if each.start.handler == "pulled" and lasted > 30.0 and (task, each.start.fence) not in self._excused:
                    yield f"timeout: attempt {each.start.number} of {task} ran for {lasted:.1f} s"

    def _operations(self) -> Iterator[str]:
        facts = self._facts
        if facts.stepped:  # an operation is for tasks that were submitted before it, by the store's clock
            return
        for done in facts.operated:
            for task, number in done.attempts.items():
                for attempt in self.attempts.get(task, []):
                    if attempt.start.at > done.done_at and attempt.start.number > number and not facts.unclear(facts.records[task]):
                        yield f"operation: attempt {attempt.start.number} of {task} began after all {done.handler} were cancelled"
        for task, record in facts.records.items():
            if record.state is not State.CANCELLED or task in facts.cancelled or task in facts.parents or facts.unclear(record):
                continue
            asked_at, matching = facts.asked_at.get(task), [each for each in facts.operated if each.matches(record)]
            if asked_at is not None and all(each.started_at is not None and each.started_at < asked_at for each in matching):
                yield f"operation: {task} is cancelled, but nobody asked for that after it was submitted"


def _counts(cluster: Cluster, facts: Facts) -> Iterator[str]:
    counts = read.counts(cluster.memory.connection, cluster.clock.now())
    counted: Counter[tuple[str, State]] = Counter()
    for final in counts.finals:
        counted[final.handler, final.state] += final.count
    for lane in counts.lanes:
        counted[lane.handler, State.PENDING] += lane.due + lane.later + lane.parked
        counted[lane.handler, State.BLOCKED] += lane.blocked
        counted[lane.handler, State.RUNNING] += lane.running
    rows = Counter((record.handler, record.state) for record in facts.records.values())
    if +counted != +rows:
        yield f"counts: {dict(+counted - +rows)} are counted but not there, {dict(+rows - +counted)} are there but not counted"


def _leaks(cluster: Cluster) -> Iterator[str]:
    for table in ("duetime_running", "duetime_due", "duetime_held", "duetime_edge"):
        ((rows,),) = cluster.memory.connection.execute(f"select count(*) from {table}").fetchall()
        if rows:
            yield f"leak: {rows} rows in {table}"
    for process in cluster.present.values():
        worker = process.worker
        if process.dead or worker is None or process.frozen:
            continue
        if worker.executor.running or worker.executor._behind or worker.executor.queues.queued:
            yield f"leak: {process.name} has attempts although all tasks are final"
        if len(worker.settler):
            yield f"leak: {process.name} has outcomes that it has not written"
        if worker.executor.starts.cancels or worker.executor.starts.beginning:
            yield f"leak: {process.name} remembers cancels or starts of tasks that have ended"
    client = cluster.present[-1]
    listeners = client.store.listeners
    if listeners:
        yield f"leak: the client has {listeners} listeners although it waits for nothing"


def violations(journal: Journal, facts: Facts, cluster: Cluster) -> list[str]:
    """Return everything that broke a promise."""
    history = Simulated(journal, facts)
    finals = {task: record.state.value for task, record in facts.records.items()}
    ended_by = {task: record.attempt for task, record in facts.records.items() if record.state in FINAL and task not in facts.retried}
    return [*history.violations(finals, ended_by, SLOTS), *history.more(cluster)]
