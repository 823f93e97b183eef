"""Claiming, settling and reaping, each inside one write transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from duetime.clock import Instant
from duetime.model.claim_order import Below, ClaimOrder, most_of
from duetime.model.fences import next_epoch
from duetime.model.gate import Gate
from duetime.model.lifecycle import as_cancelled, conclude, unmet
from duetime.model.outcome import (
    FIRST_ATTEMPTS_KEPT,
    LAST_ATTEMPTS_KEPT,
    MOST_ATTEMPTS_KEPT,
    Ended,
    Outcome,
    Running,
    Settlement,
    SettleVerdict,
)
from duetime.model.retry import RetryPolicy
from duetime.model.task import FINAL, ErrorInfo, State
from duetime.store.shard import AsTheyCome, Grouping
from duetime.store.sqlite import failures, fairness, lanes, output
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.gates import read_gates
from duetime.store.sqlite.records import write_detail, write_error, write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import (
    Claim,
    ClaimedTask,
    HintKind,
    Progress,
)

_decode = msgspec.json.Decoder().decode
_decode_claimed = msgspec.json.Decoder(list[ClaimedTask]).decode


class Admit(Protocol):
    """Returns those of the chosen tasks that limits let start which the store counts; the others are in their lanes no more."""

    def __call__(self, connection: sqlite3.Connection, chosen: Sequence[int], version: int, now: Instant) -> Sequence[int]: ...


def _all_may_start(connection: sqlite3.Connection, chosen: Sequence[int], version: int, now: Instant) -> Sequence[int]:
    return chosen


def hand_out(
    connection: sqlite3.Connection,
    worker: str,
    number: int,
    wants: Mapping[str, int],
    total: int,
    ahead: int,
    now: Instant,
    order: ClaimOrder,
    most_bytes: int | None = None,
    through: Gate | None = None,
    below: Below | None = None,
    *,
    admit: Admit = _all_may_start,
) -> Claim:
    """Hand due tasks to a worker; see the contract in `store.shard`. `most_bytes` bounds their payloads."""
    if connection.execute(SQL.worker_may_claim, (worker,)).fetchone() is None:
        return Claim([], now, None)
    until = now + ahead
    gates = read_gates(connection, now)
    open_lanes, opens_at = lanes.open_lanes(connection, wants, gates, now, until, through)
    if below:
        open_lanes = {id: lane for id, lane in open_lanes.items() if most_of(lane.priority, below.get(lane.handler), 1) > 0}
    fairness.learn(connection, order, gates.version)
    fair: frozenset[str] = frozenset()
    among = open_lanes
    if order.fairness and through is None:
        among, fair = fairness.divided(connection, open_lanes, wants, total, until, order, gates, now)
    chosen, exhausted = lanes.choose_tasks(connection, among, wants, total, until, order, below or {}, fair)
    if connection.execute(SQL.expired_tasks, (now, 1)).fetchone():
        chosen = _without_expired(connection, chosen, now)
    fitting = chosen if most_bytes is None else _fitting(connection, chosen, most_bytes)
    is_cut = len(fitting) < len(chosen)
    if is_cut:
        chosen, exhausted = fitting, []  # what is left out stays due in its lane
    admitted = admit(connection, chosen, gates.version, now)
    refused = len(chosen) - len(admitted)
    chosen = list(admitted)
    tasks = _take(connection, worker, number, chosen, now)
    if order.fairness:
        order.fairness.count((task.handler, task.collection) for task in tasks)
    if exhausted:
        lanes.raise_next(connection, exhausted)
    # of a road whose lanes a gate tells apart nothing is known but of its lanes
    unfinished = {lane.id for lane in open_lanes.values() if lane.is_on_road} | (open_lanes.keys() - set(exhausted))
    next_at = lanes.next_at(connection, wants, until, unfinished)
    instants = [at for at in (None if next_at is None else next_at - ahead, opens_at, now if is_cut or refused else None) if at is not None]
    return Claim(tasks, now, min(instants, default=None))


def _fitting(connection: sqlite3.Connection, chosen: Sequence[int], most_bytes: int) -> list[int]:
    """Return the first of these tasks, at least one, whose payloads have so many bytes together."""
    sizes = dict(connection.execute(SQL.payload_sizes, (write_json(chosen),)).fetchall())
    fitting: list[int] = []
    for task in chosen:
        most_bytes -= sizes[task]
        if fitting and most_bytes < 0:
            break
        fitting.append(task)
    return fitting


def _take(connection: sqlite3.Connection, worker: str, number: int, chosen: Sequence[int], now: Instant) -> list[ClaimedTask]:
    """Move tasks from their due entries into claims and read what their attempts need.

    Each of these statements does its work in one step. SQLite releases the GIL during a step, so the event loop runs meanwhile; stepping
    row by row would hand the GIL back and forth for every task.
    """
    if not chosen:
        return []
    tasks = write_json(chosen)
    connection.execute(SQL.insert_running, {"worker": worker, "claim": number, "now": now, "tasks": tasks})
    connection.execute(SQL.delete_due, (tasks,))
    return read_claimed(connection, chosen, now)


def read_claimed(connection: sqlite3.Connection, chosen: Sequence[int], now: Instant) -> list[ClaimedTask]:
    """Read claimed tasks in one step; payloads that are too large together for one text are read in halves."""
    try:
        tasks = _decode_claimed(connection.execute(SQL.claimed_tasks, (write_json(chosen),)).fetchone()[0])
    except sqlite3.DataError:
        half = len(chosen) // 2
        return read_claimed(connection, chosen[:half], now) + read_claimed(connection, chosen[half:], now)
    epoch = current_epoch(connection, now)
    return [msgspec.structs.replace(task, epoch=epoch) for task in tasks] if epoch else tasks


def current_epoch(connection: sqlite3.Connection, now: Instant) -> int:
    """Return the store's epoch. In a copy of a store (`backup`) it is below zero until the first claim begins one."""
    epoch: int
    (epoch,) = connection.execute(SQL.epoch).fetchone()
    if epoch < 0:
        epoch = next_epoch(-epoch, now)
        connection.execute(SQL.begin_epoch, (epoch,))
    return epoch


def _read_rows(cursor: sqlite3.Cursor) -> list[Any]:
    """Read an answer that comes as one JSON array."""
    rows: list[Any] = _decode(cursor.fetchone()[0])
    return rows


class Final(NamedTuple):
    """The end of a task and what its last attempt left, in the order of the statement `finish_task`."""

    state: str
    outcome: str | None
    attempt: int
    tries: int
    crashes: int
    worker: str | None
    started_at: Instant | None
    finished_at: Instant
    result: bytes | None
    detail: str | None
    error: str | None
    task: int


def unstarted(task: int, state: State, attempt: int, tries: int, crashes: int, now: Instant, error: ErrorInfo | None = None) -> Final:
    """Return the end of a task that ends while it waits."""
    return Final(state.value, None, attempt, tries, crashes, None, None, now, None, None, write_error(error), task)


def finish(connection: sqlite3.Connection, finals: Sequence[Final], now: Instant, *, succeeded: Sequence[int] = ()) -> Instant | None:
    """Write ends of tasks that no longer wait or run; free keys and children, and cancel children whose edges cannot be met.

    The ends of those in `succeeded` are written already. Return the earliest position that a freed child took.
    """
    earliest = None
    ended = dict.fromkeys(succeeded, State.SUCCEEDED)
    while finals or ended:
        connection.executemany(SQL.finish_task, finals)
        ended.update({final.task: State(final.state) for final in finals})
        connection.execute(SQL.free_keys, (write_json(list(ended)),))
        if connection.execute(SQL.member_between, (min(ended), max(ended))).fetchone():  # one look-up, not one for each
            _count_members(connection, write_json(list(ended)))
        finals, freed = _follow_edges(connection, ended, now)
        earliest = freed if earliest is None else earliest
        ended = {}
    return earliest


def _count_members(connection: sqlite3.Connection, ended: str) -> None:
    """Tell the flows of ended tasks that these have arrived, and keep what they returned if somebody reads it."""
    connection.execute(SQL.insert_arrivals, (ended,))
    connection.execute(SQL.insert_values, (ended,))
    if connection.execute(SQL.any_piece).fetchone():
        connection.execute(SQL.forget_pieces, (ended,))


def remove(connection: sqlite3.Connection, ended: Sequence[int]) -> None:
    """Remove tasks that have ended, with their attempts and output."""
    tasks = write_json(ended)
    connection.execute(SQL.forget_members, (tasks,))
    connection.execute(SQL.forget_hopeless, {"tasks": tasks})
    connection.execute(SQL.forget_vain_parents, (tasks,))
    output.remove(connection, tasks)
    connection.execute(SQL.delete_steps, (tasks,))
    connection.execute(SQL.delete_attempts, (tasks,))
    connection.execute(SQL.delete_tasks, (tasks,))


def release_children(connection: sqlite3.Connection, parent: int, state: State, now: Instant) -> None:
    """Free the children of one ended task, or cancel those whose edges cannot be met."""
    finish(connection, _follow_edges(connection, {parent: state}, now)[0], now)


def _follow_edges(connection: sqlite3.Connection, states: Mapping[int, State], now: Instant) -> tuple[list[Final], Instant | None]:
    """Free children whose last edge is met, and return the ends of those whose edges can no longer be met.

    Also return the earliest position that a freed child took.
    """
    if not connection.execute(SQL.edge_between, (min(states), max(states))).fetchone():  # one look-up, not one for each
        return [], None
    edges = connection.execute(SQL.take_edges, (write_json(list(states)),)).fetchall()
    met: dict[int, int] = {}
    vain: dict[int, int] = {}
    for parent, child, needs in edges:
        if needs == "success" and states[parent] is not State.SUCCEEDED:
            vain[child] = parent
            connection.execute(SQL.insert_vain, (child, parent, needs))
        else:
            met[child] = met.get(child, 0) + 1
    finals = []
    freed = []
    for child, parent in vain.items():
        held = connection.execute(SQL.take_held, (child,)).fetchall()
        connection.execute(SQL.keep_open_edges, (child,))
        connection.execute(SQL.drop_edges_to, (child,))
        for _, _, attempt, tries, crashes in held:
            (parent_id,) = connection.execute(SQL.id_of, (parent,)).fetchone() or (f"number {parent}",)
            finals.append(unstarted(child, State.CANCELLED, attempt, tries, crashes, now, unmet(parent_id)))
    if met:
        connection.execute(SQL.promote, (write_json([child for child in met if child not in vain]),))
    for child, count in met.items():
        if child in vain:
            continue
        rows = connection.execute(SQL.lower_waiting, (count, child)).fetchall()
        if rows and rows[0][0] <= 0:
            for lane, due_at, attempt, tries, crashes in connection.execute(SQL.take_held, (child,)).fetchall():
                freed.append((lane, child, due_at, attempt, tries, crashes))
    return finals, put_due(connection, freed, now) if freed else None


def put_due(connection: sqlite3.Connection, entries: Sequence[tuple[int, int, Instant, int, int, int]], now: Instant) -> Instant | None:
    """Make due entries of tasks (lane, task, due_at, attempt, tries, crashes) in their lanes; return the earliest position."""
    lowest: dict[int, Instant] = {}
    rows = []
    for lane, task, due_at, attempt, tries, crashes in entries:
        position = max(due_at, now)
        rows.append((lane, position, task, due_at, attempt, tries, crashes))
        lowest[lane] = min(position, lowest.get(lane, position))
    connection.executemany(SQL.insert_due, rows)
    for statement, lower in lanes.lowering(lowest):
        connection.executemany(statement, lower)
    return min(lowest.values(), default=None)


def _without_expired(connection: sqlite3.Connection, chosen: Sequence[int], now: Instant) -> list[int]:
    """Record the chosen tasks that are past their expiry as expired, and return the others."""
    late = {seq for (seq,) in connection.execute(SQL.expired_among, (now, write_json(chosen)))}
    _expire(connection, late, now)
    return [seq for seq in chosen if seq not in late]


def expire(connection: sqlite3.Connection, limit: int, now: Instant) -> int:
    """Record waiting tasks past their expiry as expired."""
    return _expire(connection, [seq for (seq,) in connection.execute(SQL.expired_tasks, (now, limit))], now)


def _expire(connection: sqlite3.Connection, tasks: Iterable[int], now: Instant) -> int:
    finals = []
    for seq in tasks:
        waiting = connection.execute(SQL.take_due, (seq,)).fetchall() or connection.execute(SQL.take_held, (seq,)).fetchall()
        connection.execute(SQL.drop_edges_to, (seq,))
        for _, _, attempt, tries, crashes in waiting:
            finals.append(unstarted(seq, State.EXPIRED, attempt, tries, crashes, now))
    finish(connection, finals, now)
    return len(finals)


class Settled(NamedTuple):
    """What a settle did: a verdict per settlement, whether anything ended for good, the earliest new position, whether any was parked.

    `arrived`: whether a flow may go on.
    """

    verdicts: list[SettleVerdict]
    finished: bool
    earliest: Instant | None
    parked: bool
    arrived: bool


def settle(connection: sqlite3.Connection, worker: str, settlements: Sequence[Settlement], now: Instant) -> Settled:
    """Record how attempts ended, if the worker runs exactly these attempts."""
    held = held_by(connection, worker, [settlement.id for settlement in settlements])
    verdicts: list[SettleVerdict] = []
    accepted: list[tuple[Sequence[Any], Settlement]] = []
    ended: set[tuple[str, int]] = set()
    for settlement in settlements:
        row = held.get(settlement.id)
        if row is not None and row[5] == settlement.attempt:
            del held[settlement.id]
            accepted.append((row, as_cancelled(settlement) if row[6] else settlement))
            ended.add((settlement.id, settlement.attempt))
            verdicts.append(SettleVerdict.ACCEPTED)
        elif (settlement.id, settlement.attempt) in ended or _settled_before(connection, worker, settlement):
            verdicts.append(SettleVerdict.ALREADY)
        else:
            verdicts.append(SettleVerdict.STALE)
    earliest = _apply(connection, worker, accepted, now)
    finished = any(done.state in FINAL for _, done in accepted)
    arrived = finished and connection.execute(SQL.any_arrival).fetchone() is not None
    return Settled(verdicts, finished, earliest, any(done.outcome is Outcome.PARKED for _, done in accepted), arrived)


def held_by(connection: sqlite3.Connection, worker: str, ids: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Return the worker's attempts of these tasks: (id, task, lane, due_at, claimed_at, attempt, cancelling) by id."""
    return {row[0]: row for row in _read_rows(connection.execute(SQL.held_by_worker, (worker, write_json(ids))))}


def _settled_before(connection: sqlite3.Connection, worker: str, settlement: Settlement) -> bool:
    facts = {"id": settlement.id, "attempt": settlement.attempt, "worker": worker, "outcome": settlement.outcome.value}
    return connection.execute(SQL.settled_before, facts).fetchone() is not None


def _apply(
    connection: sqlite3.Connection, worker: str, accepted: Sequence[tuple[Sequence[Any], Settlement]], now: Instant
) -> Instant | None:
    """Write accepted settlements; each comes with its row (id, task, lane, due_at, claimed_at, …). Return the earliest new position."""
    if not accepted:
        return None
    plain, detailed, finals, again, attempts = [], [], [], [], []
    parked: list[tuple[int, int, Instant, Settlement]] = []
    failing: list[Settlement] = []
    suspended: list[tuple[int, int, Instant, Settlement]] = []
    for row, settlement in accepted:
        task = row[1]
        if settlement.state is State.SUCCEEDED and settlement.result is None:
            if settlement.detail is None:
                plain.append((task, settlement.started_at, settlement.finished_at))
            else:
                detailed.append((task, settlement.started_at, settlement.finished_at, write_detail(settlement.detail)))
            continue
        if settlement.error is not None:
            failing.append(settlement)
        if settlement.state is State.PENDING or settlement.state is State.BLOCKED:
            due_at = now if settlement.due_at is None else settlement.due_at
            if row[3] > max(row[4], now):  # claimed before it was due, and it still is not
                due_at = max(due_at, row[3])
            if settlement.outcome is Outcome.PARKED:
                parked.append((task, row[2], due_at, settlement))
            elif settlement.state is State.BLOCKED:
                suspended.append((task, row[2], due_at, settlement))
            else:
                again.append((row[2], task, due_at, settlement.attempt, settlement.tries, settlement.crashes))
            attempts.append(
                (
                    *(task, settlement.attempt, settlement.outcome.value, worker, settlement.started_at),
                    *(settlement.finished_at, write_detail(settlement.detail), write_error(settlement.error)),
                )
            )
        else:
            finals.append(
                Final(
                    settlement.state.value,
                    settlement.outcome.value,
                    settlement.attempt,
                    settlement.tries,
                    settlement.crashes,
                    worker,
                    settlement.started_at,
                    settlement.finished_at,
                    settlement.result,
                    write_detail(settlement.detail),
                    write_error(settlement.error),
                    task,
                )
            )
    if plain:
        connection.execute(SQL.finish_succeeded, (write_json(plain),))
    if detailed:
        connection.execute(SQL.finish_detailed, (write_json(detailed),))
    connection.execute(SQL.delete_running, (write_json([settlement.id for _, settlement in accepted]),))
    connection.executemany(SQL.insert_attempt, attempts)
    for task, number, *_ in attempts:
        if number > MOST_ATTEMPTS_KEPT:
            _leave_out(connection, task, number - LAST_ATTEMPTS_KEPT)
    for each in parked:
        _park(connection, *each)
    if failing:
        failures.count(connection, failing, now)
    for each in suspended:
        _suspend(connection, *each)
    positions = [
        wake(connection, [each[0] for each in suspended], now)[1],
        put_due(connection, again, now),
        finish(connection, finals, now, succeeded=[row[0] for row in plain] + [row[0] for row in detailed]),
    ]
    return min((position for position in positions if position is not None), default=None)


def _leave_out(connection: sqlite3.Connection, task: int, last: int) -> None:
    """Remove attempts of a task between its first and its last ones: one of them, unless output came late."""
    connection.execute(SQL.leave_out_attempts, (task, FIRST_ATTEMPTS_KEPT, last))
    output.remove_between(connection, task, FIRST_ATTEMPTS_KEPT, last)


def _park(connection: sqlite3.Connection, task: int, lane: int, due_at: Instant, settlement: Settlement) -> None:
    """Let a task wait that the declaration `refused_by` does not fit."""
    if settlement.refused_by is not None:
        connection.execute(SQL.refuse, (task, settlement.refused_by))
    counts = {"attempt": settlement.attempt, "tries": settlement.tries, "crashes": settlement.crashes}
    connection.execute(SQL.insert_parked, {"task": task, "lane": lane, "due_at": due_at, **counts})


def _suspend(connection: sqlite3.Connection, task: int, lane: int, due_at: Instant, settlement: Settlement) -> None:
    """Let a task wait for the end of one of its steps: a signal, or the children of it that live."""
    suspension = settlement.suspension
    assert suspension is not None
    rows = connection.execute(SQL.parents, (write_json(list(suspension.children)),)).fetchall() if suspension.children else []
    children = [seq for _, seq, state in rows if state is None]
    connection.executemany(SQL.insert_edge, [(child, task, "end") for child in children])
    counts = (settlement.attempt, settlement.tries, settlement.crashes)
    connection.execute(SQL.hold_suspended, (task, lane, max(1, len(children)), due_at, *counts, suspension.name))


def wake(connection: sqlite3.Connection, tasks: Sequence[int], now: Instant) -> tuple[int, Instant | None]:
    """Let those of these tasks go on that are suspended and have nothing to wait for; return how many, and the earliest position."""
    if not tasks:
        return 0, None
    named = write_json(tasks)
    entries = []
    for (task,) in connection.execute(SQL.wakeable, (named,)).fetchall():
        for lane, due_at, *counts in connection.execute(SQL.take_held, (task,)).fetchall():
            entries.append((lane, task, due_at, *counts))
    connection.execute(SQL.mark_woken, (named,))
    return len(entries), put_due(connection, entries, now) if entries else None


_NO_POLICY = RetryPolicy()


def take_from(connection: sqlite3.Connection, worker: str, rows: Sequence[tuple[Any, ...]], ended: Ended, now: Instant) -> Instant | None:
    """End attempts on behalf of a worker that cannot: rows of `running_of_worker`."""
    accepted = []
    for row in rows:
        task_id, _, _, due_at, claimed_at, attempt, tries, crashes, cancelling, since_at, expires_at, handler = row[:12]
        running = Running(task_id, handler, attempt, tries, crashes, since_at, expires_at)
        settlement = conclude(running, ended, _NO_POLICY, started_at=max(claimed_at, due_at), now=now, chance=0.0)
        accepted.append((row, as_cancelled(settlement) if cancelling else settlement))
    return _apply(connection, worker, accepted, now)


def reap(connection: sqlite3.Connection, worker: str, now: Instant) -> int:
    """Take everything from a dead worker."""
    rows = connection.execute(SQL.running_of_worker, (worker,)).fetchall()
    error = ErrorInfo("WorkerDied", f"worker {worker} died while it ran this task")
    take_from(connection, worker, rows, Ended(Outcome.LOST, error=error, crashed=True, alone=len(rows) == 1), now)
    connection.execute(SQL.mark_lost, (now, worker))
    connection.execute(SQL.delete_permits, (worker,))
    connection.execute(SQL.delete_worker, (worker,))
    return len(rows)


def unregister(connection: sqlite3.Connection, worker: str, now: Instant) -> int:
    """Forget a worker that stopped by itself; what it still holds goes back."""
    rows = connection.execute(SQL.running_of_worker, (worker,)).fetchall()
    take_from(connection, worker, rows, Ended(Outcome.RELEASED), now)
    connection.execute(SQL.delete_permits, (worker,))
    connection.execute(SQL.delete_worker, (worker,))
    return len(rows)


def left_by(settlements: Sequence[Settlement], settled: Settled) -> list[tuple[str, int]]:
    """Return the attempts that have ended, now or before."""
    return [(s.id, s.attempt) for s, verdict in zip(settlements, settled.verdicts, strict=True) if verdict is not SettleVerdict.STALE]


def _earlier(*instants: Instant | None) -> Instant | None:
    return min((at for at in instants if at is not None), default=None)


class Working(OpenFile):
    """How a worker gets tasks and reports on them."""

    async def claim(
        self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0, below: Below | None = None
    ) -> Claim:
        # urgent: the claimed tasks can run while waiting outcomes are written
        def job(connection: sqlite3.Connection) -> Claim:
            now, order = self._clock.now(), self._claim_order
            return hand_out(connection, worker, claim, wants, total, ahead, now, order, below=below, admit=self._admit)

        claimed = await self._write(job, urgent=True)
        if self._replaced:
            await self._stop_replaced()
        return claimed

    async def claim_probe(self, worker: str, claim: int, names: Collection[str], gate: Gate) -> Claim:
        wants = dict.fromkeys(names, 1)
        return await self._write(
            lambda connection: hand_out(
                connection, worker, claim, wants, 1, 0, self._clock.now(), self._claim_order, through=gate, admit=self._admit
            )
        )

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        if not settlements:
            return []

        def job(connection: sqlite3.Connection) -> Settled:
            settled = settle(connection, worker, settlements, now := self._clock.now())
            if not self._counted.usages:
                return settled
            return settled._replace(earliest=_earlier(settled.earliest, self._leave(connection, left_by(settlements, settled), now)))

        settled = await self._write(job)
        self._arrived = self._arrived or settled.arrived
        if settled.earliest is not None:
            self._hint(HintKind.DUE, settled.earliest)
        if settled.finished:
            self._hint(HintKind.DONE)
        if settled.parked:
            self._hint(HintKind.PARKED)
        return settled.verdicts

    def grouping(self, worker: str) -> Grouping:
        return AsTheyCome()

    async def progress(self, worker: str, marks: Sequence[Progress]) -> None:
        if marks:
            rows = [(mark.fraction, mark.text, mark.id, mark.attempt, worker) for mark in marks]
            await self._write(lambda connection: connection.executemany(SQL.mark_progress, rows).close())
