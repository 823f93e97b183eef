"""Guards of flows, limits and locks that are taken away on purpose."""

from functools import partial
from typing import Any

import msgspec

from duetime.client import locks as client_locks
from duetime.client.locks import Locks
from duetime.clock import monotonic
from duetime.duties.flows import Flows
from duetime.model import flow as flow_rule
from duetime.store import conducting
from duetime.store.sqlite import limits, work
from duetime.store.sqlite import locks as stored_locks
from duetime.store.sqlite.flows import FlowKeeping, Tables
from duetime.store.sqlite.statements import SQL
from duetime.worker.permits import Permits
from tests.simulation.guards import GUARDS, Replacements, guard

fleet = partial(guard, fleet=True)

__all__ = ["GUARDS"]


# ---- flows ----


@fleet("the end of a member is counted in the transaction that ends it", "flow", "lost")
def ends_of_members_are_counted() -> Replacements:
    return [(work, "_count_members", lambda connection, ended: None)]


@fleet("a duty repeats the looks that somebody did not come to", "lost", "flow", "leak")
def looks_at_flows_are_repeated() -> Replacements:
    async def never(self: Flows) -> int:
        return 0

    return [(Flows, "look", never)]


@fleet("a join waits for all members of a node", "flow", "value")
def joins_wait_for_all() -> Replacements:
    progress = flow_rule._progress

    def first(plan: Any, known: Any, stopping: Any) -> Any:
        return progress(msgspec.structs.replace(plan, members=min(1, known.ended) or plan.members), known, stopping)

    return [(flow_rule, "_progress", first)]


@fleet("of a stopped flow nothing more is made", "flow", "stop")
def stopped_flows_make_nothing() -> Replacements:
    return [(flow_rule, "is_stopped", lambda plan, stopping: False)]


@fleet("what waits in a stopped flow is cancelled before the cancel is answered", "stop")
def stops_are_carried_out() -> Replacements:
    async def later(self: FlowKeeping, flow: str) -> None:
        await self._write(lambda connection: connection.execute("update duetime_flow set swept = 1 where id = ?", (flow,)).close())

    return [(FlowKeeping, "_sweep_flow", later)]


@fleet("arrivals are removed by the step that counts them", "flow", "lost", "leak")
def arrivals_count_once() -> Replacements:
    async def keep(self: Tables, seqs: Any) -> None:
        return None

    return [(Tables, "count", keep)]


@fleet("a task reads the values of the node that it names, in the order of its members", "value")
def values_are_in_order() -> Replacements:
    values = Tables.values

    async def backwards(self: Tables, flow: str, node: int) -> list[bytes]:
        return list(reversed(await values(self, flow, node)))

    return [(Tables, "values", backwards)]


@fleet("a flow that is submitted again is stored once", "flow", "state", "counts")
def repeated_flows_are_stored_once() -> Replacements:
    portions = conducting.portions

    async def insert(self: Tables, flow: Any) -> Any:
        record = conducting.new_record(flow, self._now)
        await self._run.many("delete from duetime_flow where id = ?", [(flow.id,)])
        await self._run.many("delete from duetime_node where flow = ?", [(flow.id,)])
        await self._run.many("delete from duetime_draft where flow = ?", [(flow.id,)])
        row = (flow.id, flow.name, msgspec.json.encode(flow.graph).decode(), self._now, "", record.deadline_at, None)
        await self._run.rows(SQL.insert_flow, row)
        await self._run.many(SQL.insert_node, [(flow.id, number) for number in range(len(flow.graph.nodes))])
        await self._run.many(SQL.insert_draft, portions(flow))
        return record

    return [(Tables, "insert", insert)]


# ---- limits ----


@fleet("permits are given only as far as some are left", "limit")
def permits_are_bounded() -> Replacements:
    apply = Permits._apply

    def trusting(self: Permits, limit: Any, allotment: Any, number: int) -> bool:
        return apply(self, limit, msgspec.structs.replace(allotment, out=0), number)  # it does not notice that more are out than may be

    return [(limits, "granted", lambda running, others, ask: max(ask.held, ask.want)), (Permits, "_apply", trusting)]


@fleet("work that was accepted elsewhere keeps its part of a limit", "limit")
def accepted_work_has_permits() -> Replacements:
    return [(limits, "_taken", lambda uses, accepted: 0)]


@fleet("permits go with the worker that had them", "leak", "lost")
def permits_of_the_dead_are_free() -> Replacements:
    reap = work.reap

    def keeping(connection: Any, worker: str, now: int) -> int:
        kept = connection.execute("select * from duetime_permit where worker = ?", (worker,)).fetchall()
        taken = reap(connection, worker, now)
        connection.executemany("insert into duetime_permit values (?, ?, ?, ?, ?, ?)", kept)
        return taken

    return [(work, "reap", keeping)]


@fleet("an attempt that ends gives back what it took of a limit", "leak", "lost")
def ended_attempts_free_permits() -> Replacements:
    free = Permits.free

    def some(self: Permits, queue: Any) -> None:
        if self._number % 7:
            free(self, queue)

    return [(Permits, "free", some)]


# ---- locks ----


@fleet("a holder that cannot renew counts its lock as lost before others may have it", "lock")
def lost_locks_are_noticed() -> Replacements:
    return [(client_locks, "LOST_AFTER", 100.0)]


@fleet("a lock is taken over only when its holder was silent for a whole lease", "lock")
def silence_lasts_a_lease() -> Replacements:
    def hasty(self: Locks, name: str) -> Any:
        known = self._seen.get(name)
        return known[0] if known is not None and monotonic() - known[1] > 0.1 * known[2] else None

    return [(Locks, "_dead", hasty)]


@fleet("a holder gives back only what it still has", "lock")
def only_the_holder_frees() -> Replacements:
    def anyones(connection: Any, name: str, holder: str, rest: int, now: int) -> bool:
        return bool(connection.execute("delete from duetime_lock where name = ?", (name,)).rowcount)

    return [(stored_locks, "free", anyones)]


@fleet("fences grow although nobody holds a lock in between", "lock")
def fences_grow() -> Replacements:
    take = stored_locks.take

    def anew(connection: Any, *args: Any) -> Any:
        if connection.execute("select 1 from duetime_lock").fetchone() is None:
            connection.execute("update duetime_fact set value = 0 where name = 'lock_number'")
        return take(connection, *args)

    return [(stored_locks, "take", anew)]
