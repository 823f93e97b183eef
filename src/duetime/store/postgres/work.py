"""Claiming, settling and reaping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from duetime.clock import SECOND, Instant
from duetime.model.gate import Gates
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome, Running, Settlement, Verdict
from duetime.model.retry import RetryPolicy
from duetime.model.task import ErrorInfo, State
from duetime.model.turns import LaneFacts, Place, Turns, choose
from duetime.store.postgres import arrays
from duetime.store.postgres import gates as gating
from duetime.store.postgres.clock import ServerClock, monotonic
from duetime.store.postgres.connection import Database, Link
from duetime.store.postgres.lanes import Lane, Lanes
from duetime.store.postgres.records import read_meta, write_error
from duetime.store.postgres.runner import Runner
from duetime.store.protocol import Claim, ClaimedTask, NewWorker
from duetime.store.sql import Statements

CLAIM_WITHIN = 15.0  # seconds for which the reply to a claim is waited for; a claim whose reply is lost is found by the next renewals
TURNS = 6
FIRST_POLL, LONGEST_POLL = SECOND // 20, SECOND  # without wake-ups: how soon to look again after work was found, and at the latest


class _How(IntEnum):
    """How a claim went, as the function `claim` tells it."""

    DONE = 0
    OUTDATED = 1
    UNKNOWN_WORKER = 2
    CLOSED = 3


class Claims:
    """Claims of one store object: remembers gates, lanes, whose turn it is, and which claim holds a running task."""

    def __init__(self, database: Database, sql: Statements, lanes: Lanes, clock: ServerClock, *, polls: bool) -> None:
        self._database = database
        self._sql = sql
        self._lanes = lanes
        self._clock = clock
        self._polls = polls
        self._poll = FIRST_POLL
        self._gates = Gates(-1, [])
        self._incarnation: str | None = None  # of the server that the floors were proved on
        self._turns = Turns()
        self._numbers: dict[str, dict[str, int]] = {}  # worker → task → number of its claim

    async def claim(self, worker: str, number: int, wants: Mapping[str, int], total: int) -> Claim:
        """Hand due tasks to a worker; see the contract in `store.protocol`."""
        wants = {name: want for name, want in wants.items() if want > 0}
        for _ in range(TURNS):
            lanes, opens_at = self._open_lanes(wants, self._clock.now())
            order, quotas = await self._plan(lanes, wants, total)
            how, claim = await self._take(worker, number, lanes, order, quotas)
            if how is _How.OUTDATED:
                self._gates = await gating.read_gates(self._database, self._sql, self._clock.parameter)
                await self._lanes.load()
            else:
                break
        instants = [at for at in (claim.next_at, opens_at) if at is not None]
        if self._polls and how is _How.DONE:
            self._poll = FIRST_POLL if claim.tasks else min(LONGEST_POLL, self._poll * 2)
            instants.append(claim.now + self._poll)
        if self._lanes.due_for_look() and lanes:
            await self._lanes.look(self._clock.parameter, lanes)
        return Claim(claim.tasks, claim.now, min(instants, default=None))

    def _open_lanes(self, wants: Mapping[str, int], now: Instant) -> tuple[list[Lane], Instant | None]:
        """Give the lanes of the asked handlers, and when the first of the gates in the way opens by itself."""
        by_handler, gates = self._lanes.by_handler, self._gates
        if not gates:
            return [lane for name in wants for lane in by_handler.get(name, ())], None
        lanes: list[Lane] = []
        opens_at: Instant | None = None
        for name in wants:
            for lane in by_handler.get(name, ()):
                gate = gates.holding(name, lane.collection or None, now)
                if gate is None:
                    lanes.append(lane)
                elif gate.until_at is not None:
                    opens_at = gate.until_at if opens_at is None else min(opens_at, gate.until_at)
        return lanes, opens_at

    async def _plan(self, lanes: Sequence[Lane], wants: Mapping[str, int], total: int) -> tuple[list[int], dict[int, int]]:
        """Say how many tasks to take from each lane, and in which order of lanes to start them.

        One lane needs no plan, and that is by far the most frequent case. Several are looked into first.
        """
        if len(lanes) <= 1:
            return [], {lane.id: min(wants[lane.handler], total) for lane in lanes}
        limit = min(total, max(wants.values()))
        parameters = [self._clock.parameter, [lane.id for lane in lanes], [lane.floor for lane in lanes], limit + 1]
        heads: dict[int, list[Place]] = {
            row[0]: [(place,) for place in row[1]] for row in await self._database.rows(self._sql.peek, parameters)
        }

        def scan(lane: int, limit: int) -> Iterator[Place]:
            return iter(heads[lane][:limit])

        facts = [LaneFacts(lane.id, lane.handler, lane.priority) for lane in lanes if lane.id in heads]
        order = [lane for lane, _ in choose(facts, wants, total, self._turns, scan).places]
        return order, dict(Counter(order))

    async def _take(
        self,
        worker: str,
        number: int,
        lanes: Sequence[Lane],
        order: Sequence[int],
        quotas: Mapping[int, int],
    ) -> tuple[_How, Claim]:
        by_id = self._lanes.by_id
        chosen = [by_id[lane] for lane in quotas]
        alone = len(chosen) == 1 and not order
        asked = sum(quotas.values())

        async def send(link: Link) -> tuple[int, list[Sequence[Any]]]:
            if link.incarnation != self._incarnation:
                # a fail-over may have taken claims back, so that places stand again where all were gone
                if self._incarnation is not None:
                    self._lanes.forget()
                self._incarnation = link.incarnation
            parameters = [
                *(self._clock.parameter, worker, number, [lane.id for lane in chosen]),
                *([lane.start if alone else lane.floor for lane in chosen], [lane.floor for lane in chosen]),
                *([quotas[lane.id] for lane in chosen], asked, [lane.id for lane in lanes]),
                *(self._gates.version, self._lanes.version, link.incarnation),
            ]
            sent_at = monotonic()
            return sent_at, await link.rows(self._sql.claim, parameters, CLAIM_WITHIN)

        sent_at, rows = await self._database.once(send)
        header = rows.pop()
        how, now, next_at = _How(header[1]), header[6], header[7]
        if self._clock.heard(now, sent_at):
            self._lanes.forget()
            if not rows and how is _How.DONE:
                how = _How.OUTDATED  # what was added since the clock was set back lies below the floors of before
        if how is not _How.DONE:
            return how, Claim([], now, next_at if how is _How.CLOSED else None)
        if alone:
            self._lanes.taken(chosen[0], rows[-1][7] if rows else 0, full=len(rows) >= asked)
            self._turns.count(chosen[0].handler, len(rows))
        if len(set(order)) > 1:
            rows = _in_order(rows, order)
        held = self._numbers.setdefault(worker, {})
        tasks = []
        for row in rows:
            lane = by_id[row[1]]
            held[row[0]] = number
            tasks.append(_claimed(row, lane))
        return how, Claim(tasks, now, next_at)

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> Settled:
        """Record how attempts ended; only those that the worker holds at this very number."""
        said = {(settlement.id, settlement.attempt): settlement for settlement in settlements}
        once = settlements if len(said) == len(settlements) else list(said.values())
        held = self._numbers.get(worker, {})
        numbers = {held.pop(settlement.id, None) for settlement in once}
        claims = None if None in numbers else sorted(number for number in numbers if number is not None)
        parameters = [self._clock.parameter, worker, claims, *columns(once)]
        [[accepted, finals, earliest]] = await self._database.rows(self._sql.settle, parameters)
        if accepted is None and once is settlements:
            return Settled([Verdict.ACCEPTED] * len(settlements), finals > 0, earliest)
        taken = range(1, len(once) + 1) if accepted is None else set(accepted)
        by_place = {(s.id, s.attempt): place in taken for place, s in enumerate(once, 1)}
        before = await self._settled_before(worker, [s for s in once if not by_place[s.id, s.attempt]])
        verdicts = []
        for settlement in settlements:
            place = (settlement.id, settlement.attempt)
            if by_place.get(place):
                verdicts.append(Verdict.ACCEPTED)
                by_place[place] = False
                before.add(place)  # said twice in one call
            else:
                verdicts.append(Verdict.ALREADY if place in before else Verdict.STALE)
        return Settled(verdicts, finals > 0, earliest)

    async def _settled_before(self, worker: str, settlements: Sequence[Settlement]) -> set[tuple[str, int]]:
        """Tell which of these attempts this worker has ended already; what a reaper wrote for one is another's word."""
        if not settlements:
            return set()
        outcomes = [settlement.outcome.value for settlement in settlements]
        parameters = [worker, [s.id for s in settlements], [s.attempt for s in settlements], outcomes]
        return {(row[0], row[1]) for row in await self._database.rows(self._sql.settled_before, parameters)}

    def forget(self, worker: str) -> None:
        self._numbers.pop(worker, None)


def _claimed(row: Sequence[Any], lane: Lane) -> ClaimedTask:
    return ClaimedTask(
        id=row[0],
        handler=lane.handler,
        payload=row[2],
        attempt=row[3],
        tries=row[4],
        crashes=row[5],
        due_at=row[6],
        since_at=row[8],
        submitted_at=row[9],
        submitted_by=row[10],
        expires_at=row[11],
        timeout=row[12],
        retry=row[13],
        meta=read_meta(row[14]),
        key=row[15],
        collection=lane.collection or None,
        priority=lane.priority,
        schedule=row[16],
        planned_at=row[17],
    )


def _in_order(rows: Sequence[Sequence[Any]], order: Sequence[int]) -> list[Sequence[Any]]:
    """Put tasks that came lane by lane into the order in which their lanes take turns."""
    by_lane: dict[int, Iterator[Sequence[Any]]] = {}
    for lane in set(order):
        by_lane[lane] = iter([row for row in rows if row[1] == lane])
    return [row for lane in order if (row := next(by_lane[lane], None)) is not None]


class Settled(NamedTuple):
    """What a settle did: a verdict per settlement, whether anything ended for good, and the earliest new position."""

    verdicts: list[Verdict]
    finished: bool
    earliest: Instant | None


def columns(settlements: Sequence[Settlement]) -> list[Any]:
    """Give settlements as columns; what plain successes all share is left to the server to know."""
    parts: list[Any] = [
        arrays.plain([s.id for s in settlements]),
        arrays.numbers([s.attempt for s in settlements]),
        arrays.numbers([s.started_at for s in settlements]),
        arrays.numbers([s.finished_at for s in settlements]),
    ]
    if all(s.state is State.SUCCEEDED and s.result is None for s in settlements):
        return [*parts, None, None, None, None, None, None, None]
    return [
        *parts,
        arrays.plain([s.state.value for s in settlements]),
        arrays.plain([s.outcome.value for s in settlements]),
        arrays.numbers([s.tries for s in settlements]),
        arrays.numbers([s.crashes for s in settlements]),
        arrays.numbers([s.due_at for s in settlements]),
        arrays.texts([None if s.result is None else s.result.decode() for s in settlements]),
        arrays.texts([write_error(s.error) for s in settlements]),
    ]


_NO_POLICY = RetryPolicy()


async def take_from(run: Runner, sql: Statements, worker: str, ended: Ended, now: Instant) -> int:
    """End all attempts of a worker that cannot do so itself; its row is locked by the caller. Gives how many there were."""
    rows = await run.rows(sql.open_attempts, [worker])
    settlements = []
    said = msgspec.structs.replace(ended, alone=len(rows) == 1)
    for task_id, attempt, tries, crashes, claimed_at, since_at, expires_at in rows:
        running = Running(task_id, attempt, tries, crashes, since_at, expires_at)
        settlements.append(conclude(running, said, _NO_POLICY, started_at=claimed_at, now=now, chance=0.0))
    if settlements:
        await run.rows(sql.settle, [now, worker, None, *columns(settlements)])
    return len(settlements)


async def reap(run: Runner, sql: Statements, worker: str, beat: int, now: Instant | None) -> int | None:
    """Take everything from a dead worker; its row is locked first, so that it can neither claim nor beat meanwhile."""
    if not await run.rows(sql.lock_worker, [worker, beat]):
        return None
    [[_, at]] = await run.rows(sql.begin_adding, [now])
    error = ErrorInfo("WorkerDied", f"worker {worker} died while it ran this task")
    taken = await take_from(run, sql, worker, Ended(Outcome.LOST, error=error, crashed=True), at)
    await run.rows(sql.delete_worker, [worker])
    return taken


async def register(run: Runner, sql: Statements, worker: NewWorker, now: Instant | None) -> None:
    slots = msgspec.json.encode(dict(worker.slots)).decode()
    await run.rows(sql.insert_worker, [now, worker.id, worker.host, worker.pid, slots, worker.lease])


async def unregister(run: Runner, sql: Statements, worker: str, now: Instant | None) -> int:
    """Forget a worker that stopped by itself; what it still holds goes back."""
    if not await run.rows(sql.lock_worker, [worker, None]):
        return 0
    [[_, at]] = await run.rows(sql.begin_adding, [now])
    released = await take_from(run, sql, worker, Ended(Outcome.RELEASED), at)
    await run.rows(sql.delete_worker, [worker])
    return released
