"""Claiming, settling and reaping, each inside one write transaction."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from duetime.clock import Instant
from duetime.model.gate import Gates
from duetime.model.lifecycle import as_cancelled, conclude
from duetime.model.outcome import Ended, Outcome, Running, Settlement, Verdict
from duetime.model.retry import RetryPolicy
from duetime.model.task import ErrorInfo, State
from duetime.store.protocol import Claim, ClaimedTask
from duetime.store.sqlite.gates import read_gates
from duetime.store.sqlite.records import read_meta, write_error, write_json
from duetime.store.sqlite.statements import SQL

# Of so many places of a handler one goes to the task that has waited longest, whatever its priority.
FAIR_PLACE = 16


class _Lane(NamedTuple):
    id: int
    handler: str
    collection: str
    priority: int


_Place = tuple[int, int, int, int, int, int, int]  # lane, pos, task, due_at, attempt, tries, crashes


class Turns:
    """Whose turn it is: places given per handler, and which handler was served last. Memory of one store object."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.last_handler = ""


def claim(
    connection: sqlite3.Connection, worker: str, number: int, wants: Mapping[str, int], total: int, now: Instant, turns: Turns
) -> Claim:
    """Hand due tasks to a worker; see the contract in `store.protocol`."""
    if connection.execute(SQL.worker_known, (worker,)).fetchone() is None:
        return Claim([], now, None)
    gates = read_gates(connection, now)
    lanes, opens_at = _open_lanes(connection, wants, gates, now)
    places, exhausted = _choose(connection, lanes, wants, total, now, turns)
    tasks = _take(connection, worker, number, places, lanes, now)
    connection.executemany(SQL.raise_lane, [(lane,) for lane in exhausted])
    unfinished = lanes.keys() - set(exhausted)
    return Claim(tasks, now, _next_at(connection, wants, now, opens_at, unfinished))


def _open_lanes(
    connection: sqlite3.Connection, wants: Mapping[str, int], gates: Gates, now: Instant
) -> tuple[dict[int, _Lane], Instant | None]:
    """Give the lanes that may have due work for us, and when the first of the gates in the way opens by itself."""
    lanes, opens_at = {}, None
    for row in connection.execute(SQL.lanes_with_work, (now,)):
        lane = _Lane(*row)
        if wants.get(lane.handler, 0) <= 0:
            continue
        gate = gates.holding(lane.handler, lane.collection or None, now)
        if gate is None:
            lanes[lane.id] = lane
        elif gate.until_at is not None:
            opens_at = gate.until_at if opens_at is None else min(opens_at, gate.until_at)
    return lanes, opens_at


class _Heads:
    """The next due place of each lane of one handler, handed out by priority and now and then by age."""

    def __init__(self, connection: sqlite3.Connection, lanes: Iterable[_Lane], limit: int, now: Instant) -> None:
        self._scans: dict[int, Iterator[_Place]] = {}
        self._heads: list[tuple[int, int, int, _Place]] = []  # minus priority, pos, task, place
        self.exhausted: list[int] = []
        for lane in lanes:
            self._scans[lane.id] = iter(connection.execute(SQL.scan_lane, (lane.id, now, limit + 1)))
            self._advance(lane.id, -lane.priority)

    def _advance(self, lane: int, rank: int) -> None:
        place = next(self._scans[lane], None)
        if place is None:
            self.exhausted.append(lane)
        else:
            heapq.heappush(self._heads, (rank, place[1], place[2], place))

    def pop(self, *, oldest: bool) -> _Place | None:
        if not self._heads:
            return None
        if oldest and len(self._heads) > 1:
            head = min(self._heads, key=lambda entry: entry[1:3])
            self._heads.remove(head)
            heapq.heapify(self._heads)
        else:
            head = heapq.heappop(self._heads)
        self._advance(head[3][0], head[0])
        return head[3]


def _choose(
    connection: sqlite3.Connection, lanes: Mapping[int, _Lane], wants: Mapping[str, int], total: int, now: Instant, turns: Turns
) -> tuple[list[_Place], list[int]]:
    """Choose places: within a handler by priority and age, between handlers in turn. Also tell which lanes are empty now."""
    if len(lanes) == 1:
        # by far the most frequent case, worth its own path: no heap, one fetch
        (lane,) = lanes.values()
        limit = min(wants[lane.handler], total)
        places = connection.execute(SQL.scan_lane, (lane.id, now, limit)).fetchall()
        turns.places[lane.handler] = turns.places.get(lane.handler, 0) + len(places)
        return places, [lane.id] if len(places) < limit else []
    by_handler: dict[str, list[_Lane]] = {}
    for lane in lanes.values():
        by_handler.setdefault(lane.handler, []).append(lane)
    # the handler after the one that was served last goes first
    order = sorted(by_handler, key=lambda name: (name <= turns.last_handler, name))
    heads = {name: _Heads(connection, by_handler[name], min(wants[name], total), now) for name in order}
    left = {name: wants[name] for name in order}
    places = []
    while order and len(places) < total:
        for name in list(order):
            count = turns.places.get(name, 0)
            place = heads[name].pop(oldest=count % FAIR_PLACE == FAIR_PLACE - 1) if left[name] else None
            if place is None:
                order.remove(name)
                continue
            turns.places[name] = count + 1
            turns.last_handler = name
            left[name] -= 1
            places.append(place)
            if len(places) == total:
                break
    return places, [lane for head in heads.values() for lane in head.exhausted]


def _take(
    connection: sqlite3.Connection, worker: str, number: int, places: Sequence[_Place], lanes: Mapping[int, _Lane], now: Instant
) -> list[ClaimedTask]:
    """Move places into claims and read what their attempts need."""
    if not places:
        return []
    rows = {row[0]: row for row in connection.execute(SQL.claimed_tasks, (write_json([place[2] for place in places]),))}
    claimed: list[ClaimedTask] = []
    running: list[tuple[object, ...]] = []
    expired: list[_Place] = []
    for place in places:
        lane_id, _, seq, due_at, attempt, tries, crashes = place
        _, task_id, key, payload, since_at, submitted_at, submitted_by, expires_at, timeout, retry, meta, schedule, planned_at = rows[seq]
        if expires_at is not None and expires_at <= now:
            expired.append(place)
            continue
        lane = lanes[lane_id]
        running.append((task_id, seq, lane_id, worker, number, attempt + 1, tries, crashes, due_at, now))
        claimed.append(
            ClaimedTask(
                id=task_id,
                handler=lane.handler,
                payload=payload,
                attempt=attempt + 1,
                tries=tries,
                crashes=crashes,
                due_at=due_at,
                since_at=since_at,
                submitted_at=submitted_at,
                submitted_by=submitted_by,
                expires_at=expires_at,
                timeout=timeout,
                retry=retry,
                meta=None if meta is None else read_meta(meta),
                key=key,
                collection=lane.collection or None,
                priority=lane.priority,
                schedule=schedule,
                planned_at=planned_at,
            )
        )
    connection.executemany(SQL.delete_due, [place[:3] for place in places])
    connection.executemany(SQL.insert_running, running)
    if expired:
        finish(connection, [Final(place[2], State.EXPIRED, place[4], place[5], place[6], now) for place in expired], now)
    return claimed


def _next_at(
    connection: sqlite3.Connection, wants: Mapping[str, int], now: Instant, opens_at: Instant | None, unfinished: Iterable[int]
) -> Instant | None:
    """Tell when to look again: the first place after now, in lanes that are empty until then and in those that are not."""
    instants = [] if opens_at is None else [opens_at]
    for handler, next_at in connection.execute(SQL.lanes_later, (now,)):
        if wants.get(handler, 0) > 0:
            instants.append(next_at)
            break
    for lane in unfinished:
        (next_at,) = connection.execute(SQL.next_in_lane, (lane, now)).fetchone()
        if next_at is not None:
            instants.append(next_at)
    return min(instants, default=None)


class Final(NamedTuple):
    """The end of a task: its number, state and counters, and what its last attempt left."""

    task: int
    state: State
    attempt: int
    tries: int
    crashes: int
    finished_at: Instant
    outcome: Outcome | None = None
    worker: str | None = None
    started_at: Instant | None = None
    result: bytes | None = None
    error: ErrorInfo | None = None


def unmet(parent: str) -> ErrorInfo:
    """Say why a task was cancelled that waited for another's success."""
    return ErrorInfo("PredecessorFailed", f"task {parent}, whose success it needed, ended otherwise")


def finish(connection: sqlite3.Connection, finals: Sequence[Final], now: Instant) -> Instant | None:
    """Write ends of tasks that have left their places; free keys and children, and cancel children in vain.

    Gives the earliest position that a freed child took.
    """
    earliest = None
    while finals:
        connection.executemany(
            SQL.finish_task,
            [
                (
                    *(final.state.value, final.outcome.value if final.outcome else None, final.attempt, final.tries, final.crashes),
                    *(final.worker, final.started_at, final.finished_at, final.result, write_error(final.error), final.task),
                )
                for final in finals
            ],
        )
        connection.execute(SQL.free_keys, (write_json([final.task for final in finals]),))
        finals, freed = _follow_edges(connection, {final.task: final.state for final in finals}, now)
        earliest = freed if earliest is None else earliest
    return earliest


def release_children(connection: sqlite3.Connection, parent: int, state: State, now: Instant) -> None:
    """Let the children of one ended task go on, or end them in vain."""
    finish(connection, _follow_edges(connection, {parent: state}, now)[0], now)


def _follow_edges(connection: sqlite3.Connection, states: Mapping[int, State], now: Instant) -> tuple[list[Final], Instant | None]:
    """Free children whose last edge went, and give the ends of those whose edge can no longer be met.

    Also gives the earliest position that a freed child took.
    """
    edges = connection.execute(SQL.take_edges, (write_json(list(states)),)).fetchall()
    met: dict[int, int] = {}
    vain: dict[int, int] = {}
    for parent, child, needs in edges:
        if needs == "success" and states[parent] is not State.SUCCEEDED:
            vain[child] = parent
        else:
            met[child] = met.get(child, 0) + 1
    finals = []
    freed = []
    for child, parent in vain.items():
        held = connection.execute(SQL.take_held, (child,)).fetchall()
        connection.execute(SQL.drop_edges_to, (child,))
        for _, _, attempt, tries, crashes in held:
            (parent_id,) = connection.execute(SQL.id_of, (parent,)).fetchone() or (f"number {parent}",)
            finals.append(Final(child, State.CANCELLED, attempt, tries, crashes, now, error=unmet(parent_id)))
    for child, count in met.items():
        if child in vain:
            continue
        rows = connection.execute(SQL.lower_waiting, (count, child)).fetchall()
        if rows and rows[0][0] <= 0:
            for lane, due_at, attempt, tries, crashes in connection.execute(SQL.take_held, (child,)).fetchall():
                freed.append((lane, child, due_at, attempt, tries, crashes))
    return finals, put_due(connection, freed, now) if freed else None


def put_due(connection: sqlite3.Connection, entries: Sequence[tuple[int, int, Instant, int, int, int]], now: Instant) -> Instant | None:
    """Give tasks (lane, task, due_at, attempt, tries, crashes) a place in their lanes; tell the earliest position."""
    lowest: dict[int, Instant] = {}
    rows = []
    for lane, task, due_at, attempt, tries, crashes in entries:
        position = max(due_at, now)
        rows.append((lane, position, task, due_at, attempt, tries, crashes))
        lowest[lane] = min(position, lowest.get(lane, position))
    connection.executemany(SQL.insert_due, rows)
    connection.executemany(SQL.lower_lane, [(position, lane, position) for lane, position in lowest.items()])
    return min(lowest.values(), default=None)


class Settled(NamedTuple):
    """What a settle did: a verdict per settlement, whether anything ended for good, and the earliest new position."""

    verdicts: list[Verdict]
    finished: bool
    earliest: Instant | None


def settle(connection: sqlite3.Connection, worker: str, settlements: Sequence[Settlement], now: Instant) -> Settled:
    """Record how attempts ended; only those that the worker holds at this very number."""
    ids = write_json([settlement.id for settlement in settlements])
    held = {row[0]: row for row in connection.execute(SQL.held_by_worker, (worker, ids))}
    verdicts: list[Verdict] = []
    accepted: list[tuple[tuple[Any, ...], Settlement]] = []
    ended: set[tuple[str, int]] = set()
    for settlement in settlements:
        row = held.get(settlement.id)
        if row is not None and row[3] == settlement.attempt:
            del held[settlement.id]
            accepted.append((row, as_cancelled(settlement) if row[4] else settlement))
            ended.add((settlement.id, settlement.attempt))
            verdicts.append(Verdict.ACCEPTED)
        elif (settlement.id, settlement.attempt) in ended or _settled_before(connection, worker, settlement):
            verdicts.append(Verdict.ALREADY)
        else:
            verdicts.append(Verdict.STALE)
    earliest = _apply(connection, worker, accepted, now)
    return Settled(verdicts, any(done.state is not State.PENDING for _, done in accepted), earliest)


def _settled_before(connection: sqlite3.Connection, worker: str, settlement: Settlement) -> bool:
    facts = {"id": settlement.id, "attempt": settlement.attempt, "worker": worker, "outcome": settlement.outcome.value}
    return connection.execute(SQL.settled_before, facts).fetchone() is not None


def _apply(
    connection: sqlite3.Connection, worker: str, accepted: Sequence[tuple[tuple[Any, ...], Settlement]], now: Instant
) -> Instant | None:
    """Write accepted settlements; each comes with its row (id, task, lane, …, claimed_at last)."""
    if not accepted:
        return None
    connection.execute(SQL.delete_running, (write_json([settlement.id for _, settlement in accepted]),))
    finals, again, attempts = [], [], []
    for row, settlement in accepted:
        task, lane = row[1], row[2]
        if settlement.state is State.PENDING:
            due_at = now if settlement.due_at is None else settlement.due_at
            again.append((lane, task, due_at, settlement.attempt, settlement.tries, settlement.crashes))
            attempts.append(
                (
                    *(task, settlement.attempt, settlement.outcome.value, worker, settlement.started_at),
                    *(settlement.finished_at, write_error(settlement.error)),
                )
            )
        else:
            finals.append(
                Final(
                    *(task, settlement.state, settlement.attempt, settlement.tries, settlement.crashes, settlement.finished_at),
                    *(settlement.outcome, worker, settlement.started_at, settlement.result, settlement.error),
                )
            )
    if attempts:
        connection.executemany(SQL.insert_attempt, attempts)
    positions = [put_due(connection, again, now) if again else None, finish(connection, finals, now)]
    return min((position for position in positions if position is not None), default=None)


_NO_POLICY = RetryPolicy()


def take_from(connection: sqlite3.Connection, worker: str, rows: Sequence[tuple[Any, ...]], ended: Ended, now: Instant) -> Instant | None:
    """End attempts on behalf of a worker that cannot: rows of `running_of_worker`."""
    accepted = []
    for row in rows:
        task_id, _, _, attempt, tries, crashes, cancelling, claimed_at, since_at, expires_at = row[:10]
        running = Running(task_id, attempt, tries, crashes, since_at, expires_at)
        settlement = conclude(running, ended, _NO_POLICY, started_at=claimed_at, now=now, chance=0.0)
        accepted.append((row, as_cancelled(settlement) if cancelling else settlement))
    return _apply(connection, worker, accepted, now)


def reap(connection: sqlite3.Connection, worker: str, now: Instant) -> int:
    """Take everything from a dead worker."""
    rows = connection.execute(SQL.running_of_worker, (worker,)).fetchall()
    error = ErrorInfo("WorkerDied", f"worker {worker} died while it ran this task")
    take_from(connection, worker, rows, Ended(Outcome.LOST, error=error, crashed=True, alone=len(rows) == 1), now)
    connection.execute(SQL.delete_worker, (worker,))
    return len(rows)


def unregister(connection: sqlite3.Connection, worker: str, now: Instant) -> int:
    """Forget a worker that stopped by itself; what it still holds goes back."""
    rows = connection.execute(SQL.running_of_worker, (worker,)).fetchall()
    take_from(connection, worker, rows, Ended(Outcome.RELEASED), now)
    connection.execute(SQL.delete_worker, (worker,))
    return len(rows)
