"""Flows in the file.

Whoever ends members looks after the commit whether their flows can go on. The verbs that end tasks are repeated here for that.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.model.flow import ENDED, FlowState, Stopping, is_stopped, is_undone
from duetime.model.outcome import Settlement, SettleVerdict
from duetime.model.steps import NewSignal
from duetime.model.task import NewTask
from duetime.store.conducting import (
    Arrival,
    Change,
    Conducted,
    Draft,
    Held,
    NewMember,
    carry_on,
    check_rerun,
    conduct,
    counted,
    kept_by_key,
    new_record,
    portions,
    read_flow,
    retried_nodes,
)
from duetime.store.flow_inspection import Correction, Ends, inspect_flows
from duetime.store.flows import (
    FLOWS_AT_ONCE,
    PAGE_BYTES,
    PIECE_ITEMS,
    PIECES_AT_ONCE,
    SUMMED_FROM,
    VALUES_AT_ONCE,
    FlowCount,
    FlowPage,
    FlowRecord,
    FlowVerdict,
    KeptValue,
    Member,
    NewFlow,
    NewPiece,
    Piece,
    PieceVerdict,
)
from duetime.store.sqlite import control
from duetime.store.sqlite.accepting import Accepting
from duetime.store.sqlite.control import Changing
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.runner import Runner, SyncRunner, drive
from duetime.store.sqlite.statements import NEVER, SQL
from duetime.store.sqlite.steps import match, write_signal
from duetime.store.sqlite.submit import Submission, Submitting, callers_transaction
from duetime.store.sqlite.upkeep import Upkeep
from duetime.store.sqlite.workers import Registering
from duetime.store.values import CancelVerdict, ChangeVerdict, DeleteVerdict, HintKind, Inconsistency

SWEPT_AT_ONCE = 500
REMAINS = (SQL.delete_yielded, SQL.delete_values, SQL.delete_arrivals, SQL.delete_members, SQL.delete_drafts, SQL.delete_nodes)


class Tables:
    """The tables of flows, inside of one transaction."""

    def __init__(self, run: Runner, now: Instant) -> None:
        self._run = run
        self._now = now
        self.earliest: Instant = NEVER

    async def lock(self, ids: Sequence[str]) -> list[Held]:
        """Read flows; the transaction is the only one that writes."""
        asked = (write_json(ids),)
        nodes: defaultdict[str, list[Sequence[Any]]] = defaultdict(list)
        for flow, *node in await self._run.rows(SQL.flow_nodes, asked):
            nodes[flow].append(node)
        arrivals: defaultdict[str, list[Arrival]] = defaultdict(list)
        for flow, *arrival in await self._run.rows(SQL.flow_arrivals, asked):
            arrivals[flow].append(Arrival(*arrival))
        values: defaultdict[str, dict[int, KeptValue]] = defaultdict(dict)
        for flow, number, data, items in await self._run.rows(SQL.single_values, asked):
            values[flow][number] = KeptValue(0, data.encode(), items)
        rows = await self._run.rows(SQL.read_flows, asked)
        return [Held(read_flow(row, nodes[row[0]], values[row[0]]), arrivals[row[0]]) for row in rows]

    async def insert(self, flow: NewFlow) -> FlowRecord | None:
        """Store a flow without its members; None if it is stored already, or its key is taken."""
        record = new_record(flow, self._now)
        meta = None if flow.meta is None else write_json(dict(flow.meta))
        graph = msgspec.json.encode(flow.graph).decode()
        row = (flow.id, flow.name, graph, self._now, flow.submitted_by, record.deadline_at, meta, flow.key, flow.key is not None)
        if not await self._run.rows(SQL.insert_flow, row):
            return None
        await self._run.many(SQL.insert_node, [(flow.id, number) for number in range(len(flow.graph.nodes))])
        await self._run.many(SQL.insert_draft, portions(flow))
        await Submission(self._run, self._now).reserve([task for tasks in flow.tasks for task in tasks])
        return record

    async def running(self, after: str | None, limit: int) -> list[tuple[Held, bool]]:
        rows = await self._run.rows(SQL.running_flows, (after or "", limit))
        busy = {row[0]: bool(row[1]) for row in rows}
        return [(each, busy[each.record.id]) for each in await self.lock(list(busy))]

    async def ends(self, flows: Sequence[str]) -> dict[tuple[str, int], Ends]:
        rows = await self._run.rows(SQL.ends_of_members, (write_json(flows),))
        return {(flow, node): Ends(live, failed) for flow, node, live, failed in rows}

    async def correct(self, corrections: Sequence[Correction]) -> None:
        await self._run.many(SQL.correct_node, [(c.ended, c.failed, c.flow, c.node) for c in corrections])

    async def wake(self, flows: Sequence[str]) -> None:
        await self._run.many(SQL.wake_flow, [(flow,) for flow in flows])

    async def strays(self, *, remove: bool) -> list[str]:
        found = [row[0] for row in await self._run.rows(SQL.strays_of_flows)]
        for statement in REMAINS if remove and found else ():
            await self._run.rows(statement, (write_json(found),))
        return found

    async def count(self, seqs: Sequence[int]) -> None:
        await self._run.rows(SQL.count_arrivals, (write_json(seqs),))

    async def write(self, changes: Sequence[Change]) -> None:
        await self._run.many(SQL.write_flow, [(c.state, c.stopping, c.more, c.finished_at, c.flow) for c in changes])
        nodes = [(k.opened, k.ended, k.failed, k.error, k.members, c.flow, number) for c in changes for number, k in c.nodes]
        await self._run.many(SQL.write_node, nodes)

    async def drafts(self, opens: Sequence[tuple[str, int, int]]) -> list[Draft]:
        found = []
        for each in opens:
            [[tasks]] = await self._run.rows(SQL.read_draft, each)
            found.append(Draft(*each, tasks))
        return found

    async def key_holder(self, name: str, key: str | None) -> str | None:
        rows = [] if key is None else await self._run.rows(SQL.key_of_flow, (name, key))
        return rows[0][0] if rows else None

    async def values(self, flow: str, node: int, round: int) -> list[KeptValue]:
        return [_read_value(row) for row in await self._run.rows(SQL.values_of, (flow, node, round))]

    async def pieces(self, flow: str, node: int, round: int, position: int, first: int) -> list[Piece]:
        rows = await self._run.rows(SQL.pieces_of, _pieces_asked(flow, node, round, position, first))
        return [_read_piece(row) for row in rows]

    async def tell(self, signals: Sequence[NewSignal]) -> None:
        for each in signals:
            await self._run.rows(SQL.put_signal, write_signal(each, self._now, looked=False))

    async def make(self, tasks: Sequence[NewTask[Any]], members: Sequence[NewMember]) -> None:
        submission = Submission(self._run, self._now, told=False)
        await submission.add(tasks)
        self.earliest = min(self.earliest, submission.earliest)
        await self._run.many(SQL.insert_member, [(m.flow, m.node, m.round, m.position, m.keeps, m.task) for m in members])


def _read_value(row: Sequence[Any]) -> KeptValue:
    return KeptValue(row[0], row[1].encode(), row[2])


def _read_piece(row: Sequence[Any]) -> Piece:
    return Piece(row[0], row[1], row[2].encode())


def _pieces_asked(flow: str, node: int, round: int, position: int, first: int) -> tuple[Any, ...]:
    return (flow, node, round, position, first - PIECE_ITEMS, first, PIECES_AT_ONCE)


def _round(connection: sqlite3.Connection, flow: str, node: int, round: int | None) -> int:
    """Return the round that is asked for, which is the present one if none is given; 0 if there is none."""
    if round is not None:
        return round
    row = connection.execute(SQL.round_of, (flow, node)).fetchone()
    return 0 if row is None else int(row[0])


def _keep(connection: sqlite3.Connection, worker: str, piece: NewPiece) -> PieceVerdict:
    row = connection.execute(SQL.yielding, (piece.attempt, worker, piece.task)).fetchone()
    if row is None or not row[4]:
        return PieceVerdict.UNREAD
    *member, _, runs = row
    if not runs:
        return PieceVerdict.STALE
    connection.execute(SQL.put_piece, (*member, piece.first, piece.items, piece.attempt, piece.data.decode()))
    return PieceVerdict.KEPT


def _add(connection: sqlite3.Connection, flow: NewFlow, now: Instant) -> tuple[FlowRecord, Conducted, Instant]:
    tables = Tables(SyncRunner(connection), now)
    record, conducted = drive(add_to(tables, flow, now))
    return record, conducted, tables.earliest


async def add_to(tables: Tables, flow: NewFlow, now: Instant) -> tuple[FlowRecord, Conducted]:
    """Store a flow and take its first step."""
    record = await tables.insert(flow)
    if record is not None:
        conducted = await carry_on(tables, [Held(record, ())], now)
        [(stored, arrivals)] = await tables.lock([flow.id])
        return counted(stored, arrivals), conducted
    known = await tables.lock([flow.id]) or await tables.lock([kept_by_key(flow, await tables.key_holder(flow.name, flow.key))])
    return counted(*known[0]), Conducted([], [])


def _read(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, FlowRecord]:
    held = drive(Tables(SyncRunner(connection), 0).lock(ids))
    return {record.id: counted(record, arrivals) for record, arrivals in held}


def _stop(connection: sqlite3.Connection, flow: str, why: Stopping, now: Instant) -> FlowVerdict:
    found = _read(connection, [flow]).get(flow)
    if found is None:
        return FlowVerdict.UNKNOWN
    if found.state != "running":
        return FlowVerdict.REFUSED
    connection.execute(SQL.stop_flow, (why, flow))
    drive(conduct(Tables(SyncRunner(connection), now), [flow], now))
    return FlowVerdict.CHANGED


def _retry(connection: sqlite3.Connection, flow: str, now: Instant) -> FlowVerdict:
    found = _read(connection, [flow]).get(flow)
    if found is None:
        return FlowVerdict.UNKNOWN
    if found.state == "succeeded":
        return FlowVerdict.REFUSED
    if _key_taken(connection, found):
        return FlowVerdict.DUPLICATE
    verdicts: list[ChangeVerdict] = []
    for number in retried_nodes(found):
        rows = connection.execute(SQL.members_of, (flow, number, found.rounds[number], -1, found.nodes[number].opened)).fetchall()
        verdicts += control.retry(connection, [task for task, _ in rows], now)
    undone = is_undone(found.graph, found.nodes)
    helps = not undone and (found.stopping is not None or any(known.error for known in found.nodes))
    if ChangeVerdict.CHANGED not in verdicts and not helps:
        return FlowVerdict.REFUSED
    if not undone:
        connection.execute(SQL.forget_errors, (flow,))
    connection.execute(SQL.undo_again if undone else SQL.resume_flow, (flow,))
    drive(conduct(Tables(SyncRunner(connection), now), [flow], now))
    return FlowVerdict.CHANGED


def _key_taken(connection: sqlite3.Connection, found: FlowRecord) -> bool:
    """Return whether another live flow has the key of one that is to live again."""
    return drive(Tables(SyncRunner(connection), 0).key_holder(found.name, found.key)) not in (None, found.id)


def _rerun(connection: sqlite3.Connection, flow: str, node: int, now: Instant) -> FlowVerdict:
    found = _read(connection, [flow]).get(flow)
    if found is None:
        return FlowVerdict.UNKNOWN
    if _key_taken(connection, found):
        return FlowVerdict.DUPLICATE
    again = check_rerun(found, node)
    if not again:
        return FlowVerdict.REFUSED
    connection.execute(SQL.begin_round, (flow, write_json(again)))
    connection.execute(SQL.undo_again if found.graph.nodes[node].undoes else SQL.resume_flow, (flow,))
    return FlowVerdict.CHANGED


def _prune(connection: sqlite3.Connection, before: Instant, limit: int) -> int:
    ids = [row[0] for row in connection.execute(SQL.old_flows, (before, limit)).fetchall()]
    gone = (write_json(ids),)
    for statement in (*REMAINS, SQL.delete_flows):
        connection.execute(statement, gone)
    return len(ids)


class FlowKeeping(Submitting, Accepting, Registering, Changing, Upkeep):
    """Where flows live, and the verbs that end tasks."""

    async def add_flow(self, flow: NewFlow) -> FlowRecord:
        record, conducted, earliest = await self._write(lambda connection: _add(connection, flow, self._clock.now()))
        if conducted.made:
            self._hint(HintKind.DUE, None if earliest == NEVER else earliest)
        await self._go_on(conducted.more)
        return record

    async def add_flow_on(self, connection: object, flow: NewFlow) -> FlowRecord:
        async with callers_transaction(connection, self._path) as run:
            now = self._clock.now()
            return (await add_to(Tables(run, now), flow, now))[0]

    async def flows(self, ids: Sequence[str]) -> list[FlowRecord | None]:
        if not ids:
            return []
        found = await self._read(lambda connection: _read(connection, ids))
        return [found.get(id) for id in ids]

    async def flow_page(
        self, *, state: FlowState | None = None, name: str | None = None, before: str | None = None, limit: int = 50
    ) -> FlowPage:
        def job(connection: sqlite3.Connection) -> FlowPage:
            asked = {"state": state, "name": name, "before": before, "limit": limit + 1}
            ids = [row[0] for row in connection.execute(SQL.flow_ids, asked)]
            found = _read(connection, ids[:limit])
            return FlowPage([found[id] for id in ids[:limit]], ids[limit - 1] if len(ids) > limit else None)

        return await self._read(job)

    async def flow_counts(self) -> list[FlowCount]:
        return await self._read(lambda connection: [FlowCount(*row) for row in connection.execute(SQL.flow_counts)])

    async def flow_members(self, flow: str, node: int, *, after: int = -1, limit: int = 100) -> list[Member]:
        def job(connection: sqlite3.Connection) -> list[Member]:
            found = _read(connection, [flow]).get(flow)
            if found is None or not 0 <= node < len(found.rounds):
                return []
            rows = connection.execute(SQL.members_of, (flow, node, found.rounds[node], after, limit))
            return [Member(*row) for row in rows.fetchall()]

        return await self._read(job)

    async def flow_values(
        self, flow: str, node: int, *, round: int | None = None, after: int = -1, limit: int = VALUES_AT_ONCE
    ) -> list[KeptValue]:
        def job(connection: sqlite3.Connection) -> list[KeptValue]:
            found: list[KeptValue] = []
            size = 0
            rows = connection.execute(SQL.next_values, (flow, node, _round(connection, flow, node, round), after, limit))
            for row in rows:
                found.append(_read_value(row))
                size += len(found[-1].data)
                if size >= PAGE_BYTES:
                    break
            rows.close()
            return found

        return await self._read(job)

    async def flow_pieces(self, flow: str, node: int, position: int, *, round: int | None = None, first: int = 0) -> list[Piece]:
        def job(connection: sqlite3.Connection) -> list[Piece]:
            known = _round(connection, flow, node, round)
            if connection.execute(SQL.has_yielded, (flow, node, known, position)).fetchone() is None:
                return []
            rows = connection.execute(SQL.pieces_of, _pieces_asked(flow, node, known, position, first))
            return [_read_piece(row) for row in rows.fetchall()]

        return await self._read(job)

    async def flow_of(self, task: str) -> str | None:
        row = await self._read(lambda connection: connection.execute(SQL.flow_of, (task,)).fetchone())
        return None if row is None else str(row[0])

    async def save_pieces(self, worker: str, pieces: Sequence[NewPiece]) -> list[PieceVerdict]:
        if not pieces:
            return []
        return await self._write(lambda connection: [_keep(connection, worker, piece) for piece in pieces])

    async def stop_flow(self, flow: str, why: Stopping) -> FlowVerdict:
        verdict = await self._write(lambda connection: _stop(connection, flow, why, self._clock.now()))
        if verdict is FlowVerdict.CHANGED:
            await self._sweep_flow(flow)
        return verdict

    async def retry_flow(self, flow: str) -> FlowVerdict:
        verdict = await self._write(lambda connection: _retry(connection, flow, self._clock.now()))
        self._hint(HintKind.DUE)
        return verdict

    async def rerun_flow(self, flow: str, node: int) -> FlowVerdict:
        verdict = await self._write(lambda connection: _rerun(connection, flow, node, self._clock.now()))
        if verdict is FlowVerdict.CHANGED:
            await self._go_on([flow])
        return verdict

    async def advance_flows(self, limit: int = FLOWS_AT_ONCE) -> int:
        now = self._clock.now()

        def look(connection: sqlite3.Connection) -> list[list[str]]:
            asked = {"flows": None, "many": 0, "limit": limit}
            rows = (
                connection.execute(SQL.late_flows, (now, limit)),
                connection.execute(SQL.unswept_flows, (limit,)),
                connection.execute(SQL.ready_flows, asked),
                connection.execute(SQL.busy_flows, (limit,)),
            )
            return [[row[0] for row in found.fetchall()] for found in rows]

        late, unswept, ready, busy = await self._read(look)
        for flow in late:
            await self.stop_flow(flow, "deadline")
        for flow in unswept:
            await self._sweep_flow(flow)
        await self._go_on(sorted({*ready, *busy}))
        return len({*late, *unswept, *ready, *busy}) + await self._stop_lost(limit)

    async def inspect_flows(self, *, repair: bool) -> list[Inconsistency]:
        def job(connection: sqlite3.Connection) -> list[Inconsistency]:
            return drive(inspect_flows(Tables(SyncRunner(connection), 0), repair=repair))

        problems = await (self._write(job) if repair else self._read(job))
        while repair and problems and await self.advance_flows():
            pass
        return problems

    async def prune_flows(self, before: Instant, limit: int) -> int:
        return await self._write(lambda connection: _prune(connection, before, limit))

    # ---- looks ----

    async def _go_on(self, flows: Sequence[str]) -> None:
        """Take steps in flows until nothing more is to be done at once."""
        while flows:

            def job(connection: sqlite3.Connection, flows: Sequence[str] = flows) -> tuple[Conducted, Instant]:
                tables = Tables(SyncRunner(connection), self._clock.now())
                return drive(conduct(tables, flows, self._clock.now())), tables.earliest

            conducted, earliest = await self._write(job)
            if conducted.made:
                self._hint(HintKind.DUE, None if earliest == NEVER else earliest)
            if conducted.ended:
                self._hint(HintKind.DONE)
            if conducted.told:
                await self._look_for_waits(conducted.told)
            for flow in conducted.stopped:
                await self._sweep_flow(flow)
            flows = conducted.more

    async def _sweep_flow(self, flow: str) -> None:
        """Tell all that is under way in a stopped flow to end."""
        [found] = await self.flows([flow])
        if found is None or found.stopping is None:
            return
        for number, plan in enumerate(found.graph.nodes):
            after = -1
            while is_stopped(plan, found.stopping) and found.nodes[number].opened > after + 1:
                members = await self.flow_members(flow, number, after=after, limit=SWEPT_AT_ONCE)
                if not members:
                    break
                await super().cancel([member.task for member in members])
                await self._stop_running([member.task for member in members])
                after = members[-1].position
        await self._write(lambda connection: connection.execute(SQL.swept_flow, (flow,)).close())
        await self._go_on([flow])

    async def _look_for_waits(self, names: Sequence[str]) -> None:
        """Let tasks go on that wait for these signals, which are stored; if this fails a duty looks again."""

        def job(connection: sqlite3.Connection) -> Instant | None:
            earliest = match(connection, names, self._clock.now())[1]
            connection.execute(SQL.see_signals, (write_json(names),))
            return earliest

        with contextlib.suppress(StoreUnavailable):
            earliest = await self._write(job)
            if earliest is not None:
                self._hint(HintKind.DUE, earliest)

    async def _stop_running(self, ids: Sequence[str]) -> None:
        """Stop flows of which the tasks with the same ids are over, or told to end."""
        rows = await self._read(lambda connection: connection.execute(SQL.running_of, (write_json(ids),)).fetchall())
        for (flow,) in rows:
            await self.stop_flow(flow, "cancel")

    async def _stop_lost(self, limit: int) -> int:
        """Stop flows for whose ends no task waits any more, which had been submitted by that; return how many waits there were."""
        asked = (ENDED, f"{ENDED}~", limit)
        lost = [flow for (flow,) in await self._read(lambda connection: connection.execute(SQL.lost_flows, asked).fetchall())]
        if lost:
            await self._stop_running(lost)
            names = write_json([f"{ENDED}{flow}" for flow in lost])
            await self._write(lambda connection: connection.execute(SQL.close_awaiting, (names,)).close())
        return len(lost)

    async def _look(self) -> None:
        """Look whether flows can go on, after the commit of a verb that has ended members. What fails here is repeated by a duty."""
        with contextlib.suppress(StoreUnavailable, InvalidValue):
            asked = {"flows": None, "many": SUMMED_FROM, "limit": FLOWS_AT_ONCE}
            rows = await self._read(lambda connection: connection.execute(SQL.ready_flows, asked).fetchall())
            await self._go_on([row[0] for row in rows])

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        verdicts = await super().settle(worker, settlements)
        if self._arrived:
            self._arrived = False
            await self._look()
        return verdicts

    async def complete(self, settlements: Sequence[Settlement], *, overdue: bool = False) -> list[SettleVerdict]:
        verdicts = await super().complete(settlements, overdue=overdue)
        await self._look()
        return verdicts

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        verdicts = await super().cancel(ids)
        await self._look()
        return verdicts

    async def retry(self, ids: Sequence[str]) -> list[ChangeVerdict]:
        verdicts = await super().retry(ids)
        await self._look()
        return verdicts

    async def delete(self, ids: Sequence[str]) -> list[DeleteVerdict]:
        verdicts = await super().delete(ids)
        await self._look()
        return verdicts

    async def drop(self, limit: int) -> int:
        dropped = await super().drop(limit)
        if dropped:
            await self._look()
        return dropped

    async def expire(self, limit: int) -> int:
        expired = await super().expire(limit)
        if expired:
            await self._look()
        return expired

    async def reap(self, worker: str, beat: int) -> int | None:
        taken = await super().reap(worker, beat)
        if taken:
            await self._look()
        return taken
