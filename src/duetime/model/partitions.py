"""Limits that the store counts: by key, by rate, or with another answer than to wait.

Each value of the key is a *partition*. A row for each admitted attempt says what it takes, so nothing is counted that could be counted
wrong: a row counts only as long as its attempt is open. A claim admits what fits, under the lock of the limit; the rest is *parked* under
its partition. When an attempt ends, the next one of its partition may go on: it is due again with a row of its own, which nobody who comes
later can take. So the order within a partition is kept.

A parked task that a rate holds goes on at the instant of its token. A token is void GRACE after that: a worker that stood still starts no
heap of tasks at once. In any time W at most `count * (W + GRACE) / period + burst` attempts are admitted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from duetime.clock import SECOND, Instant
from duetime.model.limit import DAY, Over, RateRule

GRACE = SECOND // 10
WHOLE_FOR = 60 * SECOND  # what is spent of a rate is forgotten so long after nothing is: a clock that is set back by less changes nothing
HORIZON = 2 * SECOND  # tokens so far ahead are handed out: the duty that repeats all looks comes every second
AT_ONCE = 500  # parked tasks of a partition that one look lets go on
LONGEST_NAME = 200

TaskKey = int | str  # how a store knows a task
Spot = tuple[str, str]  # a limit, and one of its partitions


class Need(NamedTuple):
    """What an attempt takes of a limit."""

    limit: str
    partition: str
    takes: int

    @property
    def spot(self) -> Spot:
        return self.limit, self.partition


class Candidate(NamedTuple):
    """A task that a worker would have."""

    task: TaskKey
    attempt: int
    needs: Sequence[Need]


class Usage(NamedTuple):
    """A limit of a handler, and what its attempts take of it."""

    limit: str
    by: str | None
    takes: int


_decode = msgspec.json.Decoder().decode


def partition_of(by: str | None, payload: str | bytes, collection: str | None, meta: Mapping[str, str]) -> str:
    """Return the partition of a task. One that lacks the field is in the partition without a name."""
    if by is None:
        return ""
    if by == "collection":
        return _named(collection)
    if by.startswith("meta."):
        return _named(meta.get(by.removeprefix("meta.")))
    value = _decode(payload)
    for part in (by,) if "." not in by else by.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return str(value) if type(value) is int else _named(value)


def _named(value: object) -> str:
    """Return a value as the name of a partition: 7 and "7" are the same one, and what is long is cut."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = text.replace("\0", "\ufffd")
    if len(text) <= LONGEST_NAME:
        return text
    return f"{text[: LONGEST_NAME - 33]}#{hashlib.blake2b(text.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


class Spent(NamedTuple):
    """What is spent of a rate: when its next start would be without a burst; or how many starts of the day that begins `at`."""

    at: Instant = 0
    used: int = 0


def next_token(rules: Sequence[RateRule], spent: Sequence[Spent], now: Instant) -> Instant:
    """Return when the next attempt may start, now or later."""
    at = now
    for _ in range(2 if len(rules) > 1 else 1):  # a later instant can be in another day
        for rule, used in zip(rules, spent, strict=True):
            if rule.period:
                at = max(at, used.at - (rule.burst - 1) * _interval(rule))
            elif used.at > _day(at):
                at = used.at if used.used < rule.count else used.at + DAY
            elif used.at == _day(at) and used.used >= rule.count:
                at = used.at + DAY
    return at


def spend(rules: Sequence[RateRule], spent: Sequence[Spent], at: Instant) -> list[Spent]:
    """Return what is spent after a start at an instant."""
    after = []
    for rule, used in zip(rules, spent, strict=True):
        if rule.period:
            after.append(Spent(max(used.at, at) + _interval(rule)))
        else:
            after.append(Spent(_day(at), used.used + 1) if used.at == _day(at) else Spent(_day(at), 1))
    return after


def as_of(rules: Sequence[RateRule], spent: Sequence[Spent], now: Instant) -> list[Spent]:
    """Return what is spent, where the store's clock was set back: then all of a burst is spent, and no more than that."""
    known = []
    for rule, used in zip(rules, spent, strict=True):
        whole = rule.burst * _interval(rule) if rule.period else 0
        is_ahead = rule.period and used.at > now + whole + HORIZON + _interval(rule)  # tokens are handed out up to HORIZON ahead
        known.append(Spent(now + whole) if is_ahead else used)
    return known


def _interval(rule: RateRule) -> int:
    return -(-rule.period // rule.count)


def _day(at: Instant) -> Instant:
    return at // DAY * DAY


class Waiting(NamedTuple):
    """A parked task."""

    task: TaskKey
    takes: int
    due_at: Instant


class Partition:
    """What is known of a partition under the lock of its limit. `running` 0: as many as come. `taken` counts rows of attempts.

    `waiting` are the first parked ones; `running_tasks` is known only where the newest replaces what runs.
    """

    __slots__ = ("changed", "over", "rules", "running", "running_tasks", "spent", "taken", "waiting", "waits")

    def __init__(
        self,
        running: int,
        taken: int,
        *,
        over: Over = "wait",
        rules: Sequence[RateRule] = (),
        spent: Sequence[Spent] = (),
        waits: bool = False,
        waiting: Iterable[Waiting] = (),
        running_tasks: Iterable[TaskKey] = (),
    ) -> None:
        self.running, self.taken, self.over = running, taken, over
        self.rules, self.spent = rules, [*spent, *[Spent()] * (len(rules) - len(spent))][: len(rules)]
        self.waiting = list(waiting)
        self.waits = waits or bool(self.waiting)
        self.running_tasks = list(running_tasks)
        self.changed = False  # what is spent

    def fits(self, takes: int) -> bool:
        return not self.running or self.taken + takes <= self.running

    def next_at(self, now: Instant) -> Instant:
        if not self.rules:
            return now
        known = as_of(self.rules, self.spent, now)
        if known != self.spent:
            self.spent, self.changed = known, True
        return next_token(self.rules, self.spent, now)

    def take(self, takes: int, at: Instant) -> None:
        self.taken += takes
        if self.rules:
            self.spent, self.changed = spend(self.rules, self.spent, at), True


class Row(NamedTuple):
    """The row of a task: it may go on at an instant (`attempt` None), or its last attempt, which has ended since, has left it."""

    need: Need
    attempt: int | None
    at: Instant


class Admission(NamedTuple):
    """What a claim does: who may start, who is parked under which need, who is dropped, whose attempts are stopped.

    `given_back` are rows that count no more. `freed`: partitions in which others may go on now. `replaced`: parked tasks that a newer one
    has replaced, all of these partitions that are parked already.
    """

    admitted: list[Candidate]
    parked: list[tuple[Candidate, Need]]
    dropped: list[Candidate]
    stopped: list[TaskKey]
    given_back: list[tuple[TaskKey, str]]
    freed: set[Spot]
    replaced: set[Spot]


def admit(
    candidates: Sequence[Candidate], partitions: Mapping[Spot, Partition], rows: Mapping[TaskKey, Sequence[Row]], now: Instant
) -> Admission:
    """Say which of these may start, in their order. Whoever waits holds nothing."""
    done = Admission([], [], [], [], [], set(), set())
    for candidate in candidates:
        found = rows.get(candidate.task)
        own = {row.need.limit: row for row in found} if found else _NO_ROWS
        going_on = _going_on(candidate, own, partitions, now) if own else _NOWHERE
        needed = [(need, partitions[need.limit, need.partition]) for need in candidate.needs]
        refused = next((need for need, there in needed if not _may_start(there, need, need.spot in going_on, now)), None)
        if refused is None:
            for need, there in needed:
                if need.spot in going_on:
                    there.taken += need.takes
                else:
                    there.take(need.takes, now)
                if there.over == "cancel_running":
                    there.running_tasks.append(candidate.task)
            done.admitted.append(candidate)
            if own:
                done.given_back.extend((candidate.task, limit) for limit in own.keys() - {need.limit for need in candidate.needs})
            continue
        done.given_back.extend((candidate.task, limit) for limit in own)
        done.freed.update(row.need.spot for row in own.values())
        _refuse(done, candidate, refused, partitions[refused.spot])
    return done


_NO_ROWS: Mapping[str, Row] = {}  # most tasks have none
_NOWHERE: frozenset[Spot] = frozenset()


def _going_on(candidate: Candidate, own: Mapping[str, Row], partitions: Mapping[Spot, Partition], now: Instant) -> set[Spot]:
    """Take back what the rows of a task take, and return the partitions in which it may go on."""
    going_on = set()
    for row in own.values():
        there = partitions.get(row.need.spot)
        if there is not None:
            there.taken -= row.need.takes
        same = any(row.need.spot == need.spot for need in candidate.needs)
        if row.attempt is None and same and (there is None or not there.rules or now <= row.at + GRACE):
            going_on.add(row.need.spot)
    return going_on


def _may_start(partition: Partition, need: Need, goes_on: bool, now: Instant) -> bool:
    if not partition.fits(need.takes):
        return False
    return goes_on or (not partition.waits and partition.next_at(now) <= now)


def _refuse(done: Admission, candidate: Candidate, need: Need, partition: Partition) -> None:
    match partition.over:
        case "drop":
            done.dropped.append(candidate)
        case "cancel_running":
            done.stopped.extend(partition.running_tasks)
            partition.running_tasks.clear()
            older = [each for each in done.parked if each[1].spot == need.spot]
            done.dropped.extend(each[0] for each in older)
            done.parked[:] = [each for each in done.parked if each[1].spot != need.spot]
            done.replaced.add(need.spot)
            done.parked.append((candidate, need))
            partition.waits = True
        case _:
            done.parked.append((candidate, need))
            partition.waits = True


class Onward(NamedTuple):
    """A parked task that goes on, not before an instant."""

    task: TaskKey
    need: Need
    at: Instant


def let_go_on(partitions: Mapping[Spot, Partition], now: Instant) -> list[Onward]:
    """Say which parked tasks go on, the first of each partition first. One that takes more than is left is waited for."""
    onward = []
    for (limit, name), partition in partitions.items():
        for each in partition.waiting:
            at = partition.next_at(now)
            if not partition.fits(each.takes) or at > now + HORIZON:
                break
            partition.take(each.takes, at)
            onward.append(Onward(each.task, Need(limit, name, each.takes), at))
    return onward


def needs_of(usages: Sequence[Usage], payload: str | bytes, collection: str | None, meta: Mapping[str, str]) -> list[Need]:
    """Return what an attempt needs of the limits of its handler."""
    return [Need(usage.limit, partition_of(usage.by, payload, collection, meta), usage.takes) for usage in usages]


class Counted(msgspec.Struct, frozen=True):
    """What a store has read of the limits that it counts, and at which version of its gates: declaring one changes that."""

    version: int = -1
    usages: Mapping[str, Sequence[Usage]] = {}


def usages_of(rows: Iterable[tuple[str, str | None, Mapping[str, int]]]) -> dict[str, list[Usage]]:
    """Return the limits of each handler, of (limit, by, uses)."""
    usages: dict[str, list[Usage]] = {}
    for limit, by, uses in sorted(rows, key=lambda row: row[0]):
        for handler, takes in uses.items():
            usages.setdefault(handler, []).append(Usage(limit, by, takes))
    return usages
