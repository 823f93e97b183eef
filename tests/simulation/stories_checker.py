"""What must hold of steps, signals, merged submissions and reserved slots at the end of a simulated world.

| rule    | what it finds                                                                                                    |
| ------- | ---------------------------------------------------------------------------------------------------------------- |
| step    | a step that ran again although it was saved, or that returned another value than before; a pause or a wait that   |
|         | ended too early; a call whose results are not those of its tasks                                                 |
| signal  | one that reached two waits, or none although one was there; a wait that got what nobody has sent                  |
| orphan  | a task that was called, and began long after who called it had ended                                              |
| merge   | a submission that no attempt stands for; more submissions counted than there were; a throttled key that began     |
|         | twice within its time; a debounced one that began before its key was quiet                                        |
| reserve | more attempts of low priority at once in a worker than slots are left for them                                    |
| leak    | steps of tasks that are not there, waits of tasks that have ended                                                 |
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from duetime.clock import MILLISECOND, SECOND
from duetime.model.task import FINAL, State, TaskRecord
from tests.simulation.checker import Facts
from tests.simulation.journal import Journal
from tests.simulation.stories import MERGING, RESERVE, SLOTS, THROTTLE, Merge, Part, Told

SOON = 6.0  # seconds within which a process that died is replaced, and its successor has looked at all waits

Execute = Callable[[str], list[Any]]


def violations(told: Told, journal: Journal, facts: Facts, plan: Any, execute: Execute) -> Iterator[str]:
    trouble = SOON + sum(fault.seconds for fault in plan.faults if fault.kind in ("away", "freeze", "slow"))
    yield from _steps(told, facts)
    yield from _signals(told, facts, execute)
    if not facts.stepped:
        yield from _orphans(journal, facts, trouble)
    skewed = facts.stepped or any(fault.kind == "skew" and fault.process < 0 for fault in plan.faults)
    yield from _merges(told, journal, facts, skewed=skewed)
    yield from _reserved(told, journal)
    for what, sql in (
        ("steps of tasks that are not there", "select count(*) from duetime_step where task not in (select seq from duetime_task)"),
        (
            "waits of tasks that have ended",
            "select count(*) from duetime_step s join duetime_task t on t.seq = s.task "
            "where s.done = 0 and s.kind = 'call' and t.state is not null",
        ),
    ):
        ((rows,),) = execute(sql)
        if rows:
            yield f"leak: {rows} {what}"


# ---- steps ----


def _steps(told: Told, facts: Facts) -> Iterator[str]:
    for step, returned in told.returned.items():
        part, saved_at = told.parts[step], returned[0][0]
        values = {str(value) for _, value in returned}
        if len(values) > 1:
            yield f"step: {step.name} of {step.task} returned {', '.join(sorted(values))}"
        later = [at for at in told.ran.get(step, []) if at > saved_at]
        if later:
            yield f"step: {step.name} of {step.task} ran again at {later[0]:.6f} s although it was saved at {saved_at:.6f} s"
        lasted = saved_at - told.began[step]
        if not facts.stepped and part.do == "sleep" and lasted < part.seconds - 0.001:
            yield f"step: {step.name} of {step.task} ended after {lasted:.6f} s instead of {part.seconds} s"
        if not facts.stepped and part.do == "wait" and returned[0][1] == "nothing came" and lasted < part.seconds - 0.001:
            yield f"step: {step.name} of {step.task} gave up after {lasted:.6f} s instead of {part.seconds} s"
        if part.do == "call":
            yield from _called(step.name, step.task, part, returned[0][1])


def _called(name: str, task: str, part: Part, value: Any) -> Iterator[str]:
    expected = {str(list(range(part.children)))} if part.how != "fatal" else set()
    if str(value) not in expected | {"TaskFailed", "TaskCancelled"}:
        yield f"step: {name} of {task} returned {value} of {part.children} tasks"


def _orphans(journal: Journal, facts: Facts, trouble: float) -> Iterator[str]:
    for event in journal.events:
        record = facts.records.get(event.task) if event.kind == "start" and event.handler == "called" else None
        parent = None if record is None else facts.records.get(_caller(record))
        if parent is None or parent.id in facts.retried or parent.state not in FINAL or parent.finished_at is None:
            continue
        late = event.wall - parent.finished_at / SECOND
        if late > trouble:
            yield f"orphan: {event.task} began {late:.3f} s after {parent.id}, which had called it, had ended"


def _caller(record: TaskRecord) -> str:
    return (record.meta or {}).get("called_by", "")


# ---- signals ----


def _signals(told: Told, facts: Facts, execute: Execute) -> Iterator[str]:
    asked = {(name, value) for name, _, value in told.sent}
    got: defaultdict[tuple[str, Any], set[tuple[str, str]]] = defaultdict(set)
    for step, returned in told.returned.items():
        signal = told.parts[step].signal
        for _, value in returned if signal else []:
            if value == "nothing came":
                continue
            got[signal, value].add(step)
            if (signal, value) not in asked:
                yield f"signal: {step.name} of {step.task} got {value!r} of {signal}, which nobody has sent"
    ids = {(name, value): id for name, id, value in told.sent}
    reached: Counter[tuple[str, str]] = Counter()
    for (signal, value), steps in got.items():
        reached[signal, ids.get((signal, value), "")] += len(steps)
    for (signal, id), number in reached.items():
        if number > 1:
            yield f"signal: {id!r} of {signal} reached {number} waits"
    yield from _stored_signals(told, facts, execute)


def _stored_signals(told: Told, facts: Facts, execute: Execute) -> Iterator[str]:
    kept = execute("select name, id, data, sent_at, task from duetime_signal")
    there = {(name, id) for name, id, *_ in kept}
    for name, id, value in told.sent:
        _, acknowledged_at = told.sent[name, id, value]
        if acknowledged_at is not None and (name, id) not in there and not id.startswith("id of "):
            yield f"signal: {id!r} of {name} was acknowledged, but is not in the store"
    waits = execute(
        "select t.id, s.name, s.signal, s.data, s.late, s.wake_at, s.done, t.finished_at "
        "from duetime_step s join duetime_task t on t.seq = s.task where s.kind = 'signal'"
    )
    data = Counter((task, signal, value) for task, _, signal, value, late, _, done, _ in waits if done and not late)
    for name, id, value, sent_at, task in kept:
        if task is not None and not data[task, name, value]:
            yield f"signal: {id!r} of {name} is taken by {task}, which has no wait that got it"
        if task is not None or facts.stepped:
            continue
        for waiting, step, signal, _, late, at, _, finished_at in waits:
            if signal == name and late and sent_at < at <= (finished_at or at):
                yield f"signal: {id!r} of {name} was there {(at - sent_at) / SECOND:.3f} s before {step} of {waiting} gave up, and is free"


# ---- submissions that are merged ----


def _merges(told: Told, journal: Journal, facts: Facts, *, skewed: bool) -> Iterator[str]:
    by_key: defaultdict[str, list[Merge]] = defaultdict(list)
    for merge in told.merges:
        by_key[merge.key].append(merge)
    tasks: defaultdict[str, list[TaskRecord]] = defaultdict(list)
    for record in facts.records.values():
        if record.handler == "merged" and record.key is not None:
            tasks[record.key].append(record)
    for key, merges in by_key.items():
        counted = sum(1 if record.merged is None else record.merged.submissions for record in tasks[key])
        if counted > len(merges):
            yield f"merge: tasks of {key} stand for {counted} submissions, but there were {len(merges)}"
        touched = any(
            record.state is not State.SUCCEEDED or record.id in facts.retried | facts.cancelled | told.edited for record in tasks[key]
        )
        if touched or skewed:
            continue
        how = MERGING[key.split()[0]]
        if "throttle" in how:
            yield from _throttled(key, tasks[key])
        else:
            yield from _newest(key, merges, tasks[key], told, journal, quiet=how.get("debounce", 0.0))


def _throttled(key: str, records: Sequence[TaskRecord]) -> Iterator[str]:
    stored = sorted(record.submitted_at for record in records)
    for first, second in itertools.pairwise(stored):
        if second - first < THROTTLE * SECOND:
            yield f"merge: two tasks of {key} were stored within {(second - first) / SECOND:.3f} s"


def _newest(
    key: str, merges: Sequence[Merge], records: Sequence[TaskRecord], told: Told, journal: Journal, *, quiet: float
) -> Iterator[str]:
    asked = {merge.number: merge for merge in merges}
    names = {record.id for record in records}
    starts = [(event.at, asked[told.numbers[event.task, event.fence]]) for event in _starts(journal, names)]
    for merge in merges:
        if merge.acknowledged_at is None:
            continue
        made = merge.asked_at - MILLISECOND / SECOND * 2  # ids tell milliseconds
        if not any(at > merge.asked_at and (given is merge or given.asked_at >= made) for at, given in starts):
            yield f"merge: submission {merge.number} of {key} was acknowledged, but no attempt was given it or a newer one"
    for at, given in starts if quiet else []:
        if at < given.asked_at + quiet - 0.001 and "max_wait" not in MERGING[key.split()[0]]:
            yield f"merge: {key} began {at - given.asked_at:.3f} s after submission {given.number} instead of {quiet} s"


def _starts(journal: Journal, names: set[str]) -> list[Any]:
    return [event for event in journal.events if event.kind == "start" and event.task in names]


# ---- reserved slots ----


def _reserved(told: Told, journal: Journal) -> Iterator[str]:
    [(above, kept)] = RESERVE.items()
    low: Mapping[tuple[str, int], int] = {each: priority for each, priority in told.priorities.items() if priority < above}
    running: Counter[int] = Counter()
    for event in journal.events:
        if (event.task, event.fence) not in low:
            continue
        if event.kind in ("start", "end"):
            running[event.pid] += 1 if event.kind == "start" else -1
        if running[event.pid] > SLOTS["kept"] - kept:
            yield f"reserve: worker {event.pid} ran {running[event.pid]} attempts of low priority at {event.at:.3f} s"
