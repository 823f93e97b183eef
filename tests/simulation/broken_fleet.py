"""Guards of flows, limits and locks that are taken away on purpose."""

from functools import partial
from typing import Any

import msgspec

from duetime.client import locks as client_locks
from duetime.client.locks import Locks
from duetime.clock import monotonic
from duetime.model import flow as flow_rule
from duetime.store.flows import KeptValue
from duetime.store.sqlite import limits, work
from duetime.store.sqlite import locks as stored_locks
from duetime.store.sqlite.flows import FlowKeeping, Tables
from duetime.worker.permits import Permits
from tests.simulation.guards import GUARDS, Replacements, guard

fleet = partial(guard, worlds="fleet")

__all__ = ["GUARDS"]


# ---- flows ----


@fleet("the end of a member is counted in the transaction that ends it", "flow", "lost")
def ends_of_members_are_counted() -> Replacements:
    return [(work, "_count_members", lambda connection, ended: None)]


@fleet("a join waits for all members of a node", "flow", "value")
def joins_wait_for_all() -> Replacements:
    progress = flow_rule._progress

    def first(plan: Any, known: Any, stopping: Any) -> Any:
        return progress(msgspec.structs.replace(plan, members=min(1, known.ended) or plan.members), known, stopping)

    return [(flow_rule, "_progress", first)]


@fleet("what followed is undone before what it followed from", "flow")
def undone_backwards() -> Replacements:
    def alone(graph: Any, node: int) -> list[int]:
        return [node]

    return [(flow_rule, "after", alone)]


@fleet("what undoes others is not stopped", "flow")
def undoing_goes_on() -> Replacements:
    stopped = flow_rule.is_stopped

    def all_stopped(plan: Any, stopping: Any) -> bool:
        return stopped(msgspec.structs.replace(plan, undoes=""), stopping)

    return [(flow_rule, "is_stopped", all_stopped)]


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

    async def backwards(self: Tables, flow: str, node: int, round: int) -> list[KeptValue]:
        return list(reversed(await values(self, flow, node, round)))

    return [(Tables, "values", backwards)]


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


@fleet("fences grow although nobody holds a lock in between", "lock")
def fences_grow() -> Replacements:
    take = stored_locks.take

    def anew(connection: Any, *args: Any) -> Any:
        if connection.execute("select 1 from duetime_lock").fetchone() is None:
            connection.execute("update duetime_fact set value = 0 where name = 'lock_number'")
        return take(connection, *args)

    return [(stored_locks, "take", anew)]
