"""Flows in the database.

Whoever ends members looks after the commit whether their flows can go on. The verbs that end tasks are repeated here for that.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

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
from duetime.store.postgres.accepting import Accepting
from duetime.store.postgres.callers import CallersTransactions, callers_transaction
from duetime.store.postgres.control import Sweeping, retry, write_time
from duetime.store.postgres.lanes import Lanes, keys_of
from duetime.store.postgres.operations import Operations
from duetime.store.postgres.records import is_uuid, write_json
from duetime.store.postgres.runner import Runner
from duetime.store.postgres.steps import Steps, sent
from duetime.store.postgres.submit import Submission
from duetime.store.postgres.workers import Registering
from duetime.store.sql import Statements
from duetime.store.values import CancelVerdict, ChangeVerdict, DeleteVerdict, HintKind, Inconsistency

T = TypeVar("T")

SWEPT_AT_ONCE = 500
ROUNDS = 5  # a step finds lanes missing that another process has made: once, unless they are made all the time


class LanesMissing(Exception):
    """The lanes of tasks that are to be made are not known to this process; nothing was written."""

    def __init__(self, tasks: Sequence[NewTask[Any]]) -> None:
        super().__init__("lanes are missing")
        self.tasks = tasks


class Tables:
    """The tables of flows, inside of one transaction."""

    def __init__(self, run: Runner, sql: Statements, lanes: Lanes, now: Instant, *, lock_parents: bool = True) -> None:
        self._run = run
        self._sql = sql
        self._lanes = lanes
        self._now = now
        self._lock_parents = lock_parents
        self.earliest: Instant | None = None
        self._floor: str | None = None  # all that earlier transactions have written had arrived when that was read last

    async def lock(self, ids: Sequence[str]) -> list[Held]:
        """Lock flows and read them by statements of their own, which see what was committed until the locks were there."""
        await self._run.rows(self._sql.lock_flows, [list(ids)])
        return await self.read(ids)

    async def read(self, ids: Sequence[str]) -> list[Held]:
        asked = [list(ids)]
        nodes: defaultdict[str, list[Sequence[Any]]] = defaultdict(list)
        arrivals: defaultdict[str, list[Arrival]] = defaultdict(list)
        for flow, *arrival, floor in await self._run.rows(self._sql.flow_arrivals, asked):
            arrivals[flow].append(Arrival(*arrival))
            self._floor = floor
        for flow, *node in await self._run.rows(self._sql.flow_nodes, asked):
            nodes[flow].append(node)
        values: defaultdict[str, dict[int, KeptValue]] = defaultdict(dict)
        for flow, number, data, items in await self._run.rows(self._sql.single_values, asked):
            values[flow][number] = KeptValue(0, data.encode(), items)
        rows = await self._run.rows(self._sql.read_flows, asked)
        return [Held(read_flow(row, nodes[row[0]], values[row[0]]), arrivals[row[0]]) for row in rows]

    async def insert(self, flow: NewFlow) -> FlowRecord | None:
        """Store a flow without its members; None if it is stored already, or its key is taken."""
        record = new_record(flow, self._now)
        meta = None if flow.meta is None else write_json(dict(flow.meta))
        graph = msgspec.json.encode(flow.graph).decode()
        row = [flow.id, flow.name, graph, self._now, flow.submitted_by, record.deadline_at, meta, flow.key]
        if not await self._run.rows(self._sql.insert_flow, row):
            return None
        await self._run.rows(self._sql.insert_nodes, [flow.id, len(flow.graph.nodes)])
        drafts = portions(flow)
        if drafts:
            await self._run.rows(self._sql.insert_drafts, [list(column) for column in zip(*drafts, strict=True)])
        return record

    async def running(self, after: str | None, limit: int) -> list[tuple[Held, bool]]:
        rows = await self._run.rows(self._sql.running_flows, [after, limit])
        busy = {row[0]: row[1] for row in rows}
        return [(each, busy[each.record.id]) for each in await self.read(list(busy))]

    async def ends(self, flows: Sequence[str]) -> dict[tuple[str, int], Ends]:
        rows = await self._run.rows(self._sql.ends_of_members, [list(flows)])
        return {(flow, node): Ends(live, failed) for flow, node, live, failed in rows}

    async def correct(self, corrections: Sequence[Correction]) -> None:
        await self._run.rows(self._sql.lock_flows, [sorted({each.flow for each in corrections})])
        if corrections:
            await self._run.rows(self._sql.correct_nodes, [list(column) for column in zip(*corrections, strict=True)])

    async def wake(self, flows: Sequence[str]) -> None:
        await self._run.rows(self._sql.wake_flows, [list(flows)])

    async def strays(self, *, remove: bool) -> list[str]:
        found = [row[0] for row in await self._run.rows(self._sql.strays_of_flows)]
        if remove and found:
            await self._run.rows(self._sql.remove_strays, [found])
        return found

    async def count(self, seqs: Sequence[int]) -> None:
        await self._run.rows(self._sql.count_arrivals, [list(seqs)])

    async def write(self, changes: Sequence[Change]) -> None:
        columns = [[c.flow for c in changes], [c.state for c in changes], [c.stopping for c in changes], [c.more for c in changes]]
        await self._run.rows(self._sql.write_flows, [*columns, [c.finished_at for c in changes], self._floor])
        nodes = [(c.flow, number, k.opened, k.ended, k.failed, k.error, k.members) for c in changes for number, k in c.nodes]
        if nodes:
            await self._run.rows(self._sql.write_nodes, [list(column) for column in zip(*nodes, strict=True)])

    async def drafts(self, opens: Sequence[tuple[str, int, int]]) -> list[Draft]:
        rows = await self._run.rows(self._sql.read_drafts, [list(column) for column in zip(*opens, strict=True)])
        return [Draft(*row) for row in rows]

    async def key_holder(self, name: str, key: str | None) -> str | None:
        rows = [] if key is None else await self._run.rows(self._sql.key_of_flow, [name, key])
        return rows[0][0] if rows else None

    async def values(self, flow: str, node: int, round: int) -> list[KeptValue]:
        return [_read_value(row) for row in await self._run.rows(self._sql.values_of, [flow, node, round])]

    async def pieces(self, flow: str, node: int, round: int, position: int, first: int) -> list[Piece]:
        rows = await self._run.rows(self._sql.pieces_of, _pieces_asked(flow, node, round, position, first))
        return [_read_piece(row) for row in rows]

    async def tell(self, signals: Sequence[NewSignal]) -> None:
        await self._run.rows(self._sql.put_signals, [self._now, *sent(signals)])

    async def make(self, tasks: Sequence[NewTask[Any]], members: Sequence[NewMember]) -> None:
        if not self._lanes.know(keys_of(tasks)):
            raise LanesMissing(tasks)
        submission = Submission(self._run, self._sql, self._lanes, self._now, lock_parents=self._lock_parents)
        await submission.add(tasks)
        if submission.earliest is not None:
            self.earliest = submission.earliest if self.earliest is None else min(self.earliest, submission.earliest)
        await self._run.rows(self._sql.insert_members, [list(column) for column in zip(*members, strict=True)])


_VERDICTS = (PieceVerdict.STALE, PieceVerdict.KEPT, PieceVerdict.UNREAD)


def _read_value(row: Sequence[Any]) -> KeptValue:
    return KeptValue(row[0], row[1].encode(), row[2])


def _read_piece(row: Sequence[Any]) -> Piece:
    return Piece(row[0], row[1], row[2].encode())


def _pieces_asked(flow: str, node: int, round: int, position: int, first: int) -> list[Any]:
    return [flow, node, round, position, first - PIECE_ITEMS, first, PIECES_AT_ONCE]


async def add_to(tables: Tables, flow: NewFlow, now: Instant) -> tuple[FlowRecord, Conducted]:
    """Store a flow and take its first step."""
    record = await tables.insert(flow)
    if record is not None:
        conducted = await carry_on(tables, [Held(record, ())], now)
        return counted(*(await tables.read([flow.id]))[0]), conducted
    known = await tables.read([flow.id]) or await tables.read([kept_by_key(flow, await tables.key_holder(flow.name, flow.key))])
    return counted(*known[0]), Conducted([], [])


class FlowKeeping(CallersTransactions, Registering, Accepting, Operations, Sweeping, Steps):
    """Where flows live, and the verbs that end tasks."""

    _after_flow = ENDED

    async def add_flow(self, flow: NewFlow) -> FlowRecord:
        await self.prepare([task for tasks in flow.tasks for task in tasks])

        async def job(tables: Tables, now: Instant) -> tuple[FlowRecord, Conducted]:
            return await add_to(tables, flow, now)

        record, conducted = await self._with_tables(job)
        await self._follow_up(conducted)
        return record

    async def add_flow_on(self, connection: object, flow: NewFlow) -> FlowRecord:
        async with callers_transaction(connection, self._sql, self.url, self._whereabouts) as run:
            await self.prepare([task for tasks in flow.tasks for task in tasks])
            now = await write_time(run, self._sql, self._clock.parameter)
            tables = Tables(run, self._sql, self._lanes, now, lock_parents=False)
            record, _ = await add_to(tables, flow, now)
            if self._address.notify and tables.earliest is not None:
                await run.rows(self._sql.notify, [self._wakeups.channel, self._wakeups.caught])
            return record

    async def flows(self, ids: Sequence[str]) -> list[FlowRecord | None]:
        asked = [id for id in ids if is_uuid(id)]
        if not asked:
            return [None] * len(ids)

        async def job(run: Runner) -> list[Held]:
            await run.rows(self._sql.one_view)
            return await Tables(run, self._sql, self._lanes, 0).read(asked)

        found = {record.id: counted(record, arrivals) for record, arrivals in await self._opened.transaction(job)}
        return [found.get(id) for id in ids]

    async def flow_page(
        self, *, state: FlowState | None = None, name: str | None = None, before: str | None = None, limit: int = 50
    ) -> FlowPage:
        ids = [row[0] for row in await self._opened.rows(self._sql.flow_ids, [state, name, before, limit + 1])]
        found = await self.flows(ids[:limit])
        return FlowPage([each for each in found if each is not None], ids[limit - 1] if len(ids) > limit else None)

    async def flow_counts(self) -> list[FlowCount]:
        return [FlowCount(*row) for row in await self._opened.rows(self._sql.flow_counts)]

    async def flow_members(self, flow: str, node: int, *, after: int = -1, limit: int = 100) -> list[Member]:
        [found] = await self.flows([flow])
        if found is None or not 0 <= node < len(found.rounds):
            return []
        rows = await self._opened.rows(self._sql.members_of, [flow, node, found.rounds[node], after, limit])
        return [Member(*row) for row in rows]

    async def flow_values(
        self, flow: str, node: int, *, round: int | None = None, after: int = -1, limit: int = VALUES_AT_ONCE
    ) -> list[KeptValue]:
        known = await self._round(flow, node, round)
        rows = await self._opened.rows(self._sql.next_values, [flow, node, known, after, limit, PAGE_BYTES]) if known else []
        return [_read_value(row) for row in rows]

    async def flow_pieces(self, flow: str, node: int, position: int, *, round: int | None = None, first: int = 0) -> list[Piece]:
        known = await self._round(flow, node, round)
        if not known or not await self._opened.rows(self._sql.has_yielded, [flow, node, known, position]):
            return []
        rows = await self._opened.rows(self._sql.pieces_of, _pieces_asked(flow, node, known, position, first))
        return [_read_piece(row) for row in rows]

    async def _round(self, flow: str, node: int, round: int | None) -> int:
        """Return the round that is asked for, which is the present one if none is given; 0 if there is none."""
        if not is_uuid(flow):
            return 0
        if round is not None:
            return round
        rows = await self._opened.rows(self._sql.round_of, [flow, node])
        return int(rows[0][0]) if rows else 0

    async def flow_of(self, task: str) -> str | None:
        rows = await self._opened.rows(self._sql.flow_of, [task]) if is_uuid(task) else []
        return str(rows[0][0]) if rows else None

    async def save_pieces(self, worker: str, pieces: Sequence[NewPiece]) -> list[PieceVerdict]:
        if not pieces:
            return []
        columns = [[p.task for p in pieces], [p.attempt for p in pieces], [p.first for p in pieces], [p.items for p in pieces]]
        [[said]] = await self._opened.rows(self._sql.save_pieces, [worker, *columns, [p.data.decode() for p in pieces]])
        return [_VERDICTS[number] for number in said]

    async def stop_flow(self, flow: str, why: Stopping) -> FlowVerdict:
        if not is_uuid(flow):
            return FlowVerdict.UNKNOWN

        async def job(run: Runner) -> FlowVerdict:
            tables = Tables(run, self._sql, self._lanes, 0)
            held = await tables.lock([flow])
            if not held:
                return FlowVerdict.UNKNOWN
            if held[0].record.state != "running":
                return FlowVerdict.REFUSED
            await run.rows(self._sql.stop_flow, [flow, why])
            return FlowVerdict.CHANGED

        verdict = await self._opened.transaction(job)
        if verdict is FlowVerdict.CHANGED:
            await self._sweep_flow(flow)
        return verdict

    async def retry_flow(self, flow: str) -> FlowVerdict:
        return await self._resumed(flow, self._take_back)

    async def rerun_flow(self, flow: str, node: int) -> FlowVerdict:
        async def begin(run: Runner, found: FlowRecord) -> FlowVerdict:
            again = check_rerun(found, node)
            if not again:
                return FlowVerdict.REFUSED
            await run.rows(self._sql.begin_round, [found.id, again])
            await run.rows(self._sql.undo_again if found.graph.nodes[node].undoes else self._sql.resume_flow, [found.id])
            return FlowVerdict.CHANGED

        return await self._resumed(flow, begin)

    async def _resumed(self, flow: str, change: Callable[[Runner, FlowRecord], Awaitable[FlowVerdict]]) -> FlowVerdict:
        """Change a locked flow so that it goes on."""

        async def job(run: Runner) -> FlowVerdict:
            tables = Tables(run, self._sql, self._lanes, 0)
            held = await tables.lock([flow])
            if not held:
                return FlowVerdict.UNKNOWN
            found = counted(*held[0])
            if await tables.key_holder(found.name, found.key) not in (None, found.id):
                return FlowVerdict.DUPLICATE
            return await change(run, found)

        verdict = await self._opened.transaction(job) if is_uuid(flow) else FlowVerdict.UNKNOWN
        if verdict is FlowVerdict.CHANGED:
            self._hint(HintKind.DUE)
            await self._go_on([flow])
        return verdict

    async def _take_back(self, run: Runner, found: FlowRecord) -> FlowVerdict:
        """Retry the members of a locked flow that ended without success."""
        if found.state == "succeeded":
            return FlowVerdict.REFUSED
        verdicts: list[ChangeVerdict] = []
        for number in retried_nodes(found):
            rows = await run.rows(self._sql.members_of, [found.id, number, found.rounds[number], -1, found.nodes[number].opened])
            verdicts += await retry(run, self._sql, [task for task, _ in rows], self._clock.parameter)
        undone = is_undone(found.graph, found.nodes)
        helps = not undone and (found.stopping is not None or any(known.error for known in found.nodes))
        if ChangeVerdict.CHANGED not in verdicts and not helps:
            return FlowVerdict.REFUSED
        if not undone:
            await run.rows(self._sql.forget_errors, [found.id])
        await run.rows(self._sql.undo_again if undone else self._sql.resume_flow, [found.id])
        return FlowVerdict.CHANGED

    async def advance_flows(self, limit: int = FLOWS_AT_ONCE) -> int:
        late = [row[0] for row in await self._opened.rows(self._sql.late_flows, [self._clock.now(), limit])]
        for flow in late:
            await self.stop_flow(flow, "deadline")
        busy = await self._opened.rows(self._sql.busy_flows, [limit])
        for flow, _, unswept in busy:
            if unswept:
                await self._sweep_flow(flow)
        ready = [row[0] for row in await self._opened.rows(self._sql.ready_flows, [None, 0, limit])]
        await self._go_on(sorted({*ready, *(flow for flow, more, _ in busy if more)}))
        lost = await self._stop_lost(limit)
        return len({*late, *ready, *(row[0] for row in busy)}) + lost

    async def inspect_flows(self, *, repair: bool) -> list[Inconsistency]:
        async def job(run: Runner) -> list[Inconsistency]:
            await run.rows(self._sql.one_moment if repair else self._sql.one_view)
            return await inspect_flows(Tables(run, self._sql, self._lanes, 0), repair=repair)

        problems = await self._opened.transaction(job)
        while repair and problems and await self.advance_flows():
            pass
        return problems

    async def prune_flows(self, before: Instant, limit: int) -> int:
        return len(await self._opened.rows(self._sql.prune_flows, [before, limit]))

    # ---- looks ----

    async def _with_tables(self, job: Callable[[Tables, Instant], Awaitable[T]]) -> T:
        """Run a job on the tables of flows in a transaction, again if lanes were missing."""
        earliest: Instant | None = None

        async def inside(run: Runner) -> T:
            nonlocal earliest
            now = await write_time(run, self._sql, self._clock.parameter)
            tables = Tables(run, self._sql, self._lanes, now)
            done = await job(tables, now)
            earliest = tables.earliest
            return done

        for _ in range(ROUNDS):
            try:
                done = await self._with_lanes(lambda: self._opened.transaction(inside))
            except LanesMissing as missing:
                await self.prepare(missing.tasks)
            else:
                if earliest is not None:
                    self._hint(HintKind.DUE, earliest)
                return done
        raise StoreUnavailable("the lanes of a flow's tasks were missing again and again; try again")

    async def _go_on(self, flows: Sequence[str]) -> None:
        """Take steps in flows until nothing more is to be done at once."""
        if flows:
            await self._follow_up(await self._step(flows))

    async def _step(self, flows: Sequence[str]) -> Conducted:
        async def job(tables: Tables, now: Instant) -> Conducted:
            return await conduct(tables, flows, now)

        return await self._with_tables(job)

    async def _follow_up(self, conducted: Conducted) -> None:
        while True:
            if conducted.ended:
                self._hint(HintKind.DONE)
            if conducted.told:
                with contextlib.suppress(StoreUnavailable):  # they are stored; a duty looks again
                    await self._look_for_waits(conducted.told)
            for flow in conducted.stopped:
                await self._sweep_flow(flow)
            if not conducted.more:
                return
            conducted = await self._step(conducted.more)

    async def _sweep_flow(self, flow: str) -> None:
        """Tell all that is under way in a stopped flow to end."""
        [found] = await self.flows([flow])
        if found is None or found.stopping is None:
            return
        for number, plan in enumerate(found.graph.nodes):
            after = -1
            while is_stopped(plan, found.stopping) and found.nodes[number].opened > after + 1:
                rows = await self._opened.rows(self._sql.members_of, [flow, number, found.rounds[number], after, SWEPT_AT_ONCE])
                if not rows:
                    break
                await super().cancel([row[0] for row in rows])
                await self._stop_running([row[0] for row in rows])
                after = rows[-1][1]
        await self._opened.rows(self._sql.swept_flow, [flow])
        await self._go_on([flow])

    async def _stop_running(self, ids: Sequence[str]) -> None:
        """Stop flows of which the tasks with the same ids are over, or told to end."""
        for row in await self._opened.rows(self._sql.running_of, [list(ids)]):
            await self.stop_flow(row[0], "cancel")

    async def _stop_lost(self, limit: int) -> int:
        """Stop flows for whose ends no task waits any more, which had been submitted by that; return how many waits there were."""
        rows = await self._opened.rows(self._sql.awaited_flows, [self._after_flow, f"{ENDED}~", limit])
        asked = [row[0] for row in rows]
        self._after_flow = f"{ENDED}{asked[-1]}" if len(asked) == limit else ENDED
        living = {row[0] for row in await self._opened.rows(self._sql.living_of, [asked])} if asked else set()
        lost = [id for id in asked if id not in living]
        if lost:
            await self._stop_running(lost)
            await self._opened.rows(self._sql.close_awaiting, [[f"{ENDED}{id}" for id in lost]])
        return len(lost)

    async def _look(self, flows: Sequence[str] | None = None) -> None:
        """Look whether flows can go on, after the commit of a verb that has ended members. What fails here is repeated by a duty."""
        with contextlib.suppress(StoreUnavailable, InvalidValue):
            asked = None if flows is None else list(flows)
            rows = await self._opened.rows(self._sql.ready_flows, [asked, SUMMED_FROM, FLOWS_AT_ONCE])
            await self._go_on([row[0] for row in rows])

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        verdicts = await super().settle(worker, settlements)
        flows = self._claims.flows_of(settlements)
        if flows:
            await self._look(sorted(flows))
        return verdicts

    async def complete(self, settlements: Sequence[Settlement], *, overdue: bool = False) -> list[SettleVerdict]:
        verdicts = await super().complete(settlements, overdue=overdue)
        if settlements:
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
