"""Guards that are taken away on purpose: the simulation must notice each of them.

Each entry says what is taken away and which rules may show it. `python -m tests.simulation.broken` prints
the table of docs/design/simulation.md.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from duetime.client import gates as client_gates
from duetime.duties import firing, operations
from duetime.duties.deadlines import Deadlines
from duetime.duties.reaper import Reaper
from duetime.ids import new_id
from duetime.model import lifecycle
from duetime.model.firing import step
from duetime.model.gate import Gates
from duetime.model.operation import next_page, planned
from duetime.model.outcome import Outcome, Settlement
from duetime.model.task import State
from duetime.store.sqlite import control, pull_workers, work
from duetime.store.sqlite.control import Changing
from duetime.store.sqlite.shared import SharedStore
from duetime.store.values import CancelVerdict, WorkerRecord
from duetime.testing.simulation.keeper import SimulatedDeadMan
from duetime.worker import executor as executors
from duetime.worker import starts
from duetime.worker import worker as workers
from duetime.worker.claim_timing import ClaimTiming
from duetime.worker.claimed_ahead import AheadTimer
from duetime.worker.feeder import Feeder, ParkedLooks
from duetime.worker.keeper import Keeper
from duetime.worker.pull.service import PullService
from duetime.worker.queues import HandlerQueues
from duetime.worker.reconciler import Reconciler
from duetime.worker.settler import Settler
from duetime.worker.starts import Starts
from tests.chaos.history import rules
from tests.simulation import broken_fleet as broken_fleet
from tests.simulation import broken_keyed as broken_keyed
from tests.simulation import broken_stories as broken_stories
from tests.simulation.guards import GUARDS, Guard, guard
from tests.simulation.world import Plan, plan, simulate


@contextmanager
def taken_away(name: str) -> Iterator[None]:
    """Take a guard away within the block."""
    with ExitStack() as stack:
        for owner, attribute, replacement in GUARDS[name].replace():
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield


def concerns(guard: Guard, chosen: Plan) -> bool:
    """Return whether a world has what a guard is about."""
    return {"all": True, "fleet": chosen.fleet, "stories": chosen.stories, "keyed": chosen.keyed}[guard.worlds]


def first_seed(name: str, most: int) -> tuple[int, list[str]] | None:
    """Return the first seed that shows that a guard is missing, and what it shows."""
    with taken_away(name):
        for seed in range(most):
            chosen = plan(seed)
            found = simulate(chosen).violations if concerns(GUARDS[name], chosen) else []
            if found and rules(found).keys() & GUARDS[name].shows:
                return seed, found
    return None


# ---- who may have a task ----


@guard("a settlement counts only for the attempt and the worker that run the task", "stale", "overlap", "again", "fence", "lost", "tries")
def settlements_are_checked() -> list[tuple[Any, str, Any]]:
    settle = work.settle

    def unchecked(connection: Any, worker: str, settlements: Any, now: int) -> work.Settled:
        verdicts = []
        for each in settlements:
            row = connection.execute(
                "select r.worker, r.attempt from duetime_running r join duetime_task t on t.seq = r.task where t.id = ?", (each.id,)
            ).fetchone()
            owner, attempt = row or (worker, each.attempt)
            verdicts.append(settle(connection, owner, [msgspec.structs.replace(each, attempt=attempt)], now))
        return work.Settled([v for each in verdicts for v in each.verdicts], True, now, False, False)

    return [(work, "settle", unchecked)]


@guard("a worker is dead only when its beat has not changed for a whole lease", "overlap", "again", "stale", "edge")
def leases_are_awaited() -> list[tuple[Any, str, Any]]:
    is_dead = Reaper._is_dead

    def hasty(self: Reaper, worker: WorkerRecord) -> bool:
        beat, since = self._seen.get(worker.id, (-1, 0.0))
        return is_dead(self, worker) or (beat == worker.beat and self._watched - since >= 0.15 * worker.lease)

    return [(Reaper, "_is_dead", hasty)]


@guard("dead workers are reaped", "lost")
def the_dead_are_reaped() -> list[tuple[Any, str, Any]]:
    return [(Reaper, "_is_dead", lambda self, worker: False)]


@guard("a worker that cannot renew its lease stops its attempts, or is killed", "overlap", "again", "edge", "gate", "cancel")
def lost_leases_stop_attempts() -> list[tuple[Any, str, Any]]:
    return [(Keeper, "fence", lambda self: None), (SimulatedDeadMan, "arm", lambda self, seconds, since=None: None)]


@guard("the kernel kills a worker that is frozen past its lease", "overlap", "again", "edge", "gate", "cancel", "fence")
def the_dead_man_kills() -> list[tuple[Any, str, Any]]:
    return [(SimulatedDeadMan, "arm", lambda self, seconds, since=None: None)]


@guard("a worker that stops gives back what it has not ended", "lost", "leak")
def stopped_workers_give_back() -> list[tuple[Any, str, Any]]:
    async def unregister(self: SharedStore, worker: str) -> None:
        await self._write(lambda connection: connection.execute("delete from duetime_worker where id = ?", (worker,)).close())

    put = Settler.put

    def put_ends(self: Settler, *settlements: Settlement) -> Any:
        return put(self, *(each for each in settlements if each.outcome is not Outcome.RELEASED))

    return [(SharedStore, "unregister", unregister), (Settler, "put", put_ends)]


# ---- lost answers ----


@guard("a claim whose answer was lost is given back after two renewals", "lost")
def strays_go_back() -> list[tuple[Any, str, Any]]:
    return [(Reconciler, "compare", lambda self, counted, ours, settling, answered: ([], []))]


@guard("an outcome that could not be written is written again", "lost", "again", "leak")
def outcomes_are_kept() -> list[tuple[Any, str, Any]]:
    return [(Settler, "_again", lambda self, batch, error: [])]


@guard("polling suffices: a worker looks for work without any hint", "lost")
def polling_suffices() -> list[tuple[Any, str, Any]]:
    return [
        (ClaimTiming, "pause", lambda self, now, seconds: 10_000.0),
        (ParkedLooks, "run_once", _never),
        (Feeder, "freed", lambda self: None),
    ]


async def _never(self: Any) -> float | None:
    return None


# ---- starting ----


@guard("a gate is acknowledged when every live worker has confirmed it", "gate")
def gates_are_confirmed() -> list[tuple[Any, str, Any]]:
    async def at_once(store: Any, version: int) -> client_gates.GateBarrier:
        return client_gates.GateBarrier(confirmed=[], waiting=[])

    return [(client_gates, "barrier", at_once)]


@guard("a worker checks the gates at each start", "gate")
def gates_are_checked_at_starts() -> list[tuple[Any, str, Any]]:
    return [
        (Starts, "held_back", lambda self, claimed: not self.allowed),
        (work, "read_gates", lambda connection, now: Gates()),
    ]


@guard("what was claimed ahead waits for its due time", "early")
def nothing_starts_early() -> list[tuple[Any, str, Any]]:
    return [(AheadTimer, "filter_due", lambda self, tasks: list(tasks))]


@guard("a handler has no more attempts in a worker than slots", "slots")
def slots_are_counted() -> list[tuple[Any, str, Any]]:
    return [(HandlerQueues, "take_slot", lambda self, queue: None), (HandlerQueues, "free_slot", lambda self, queue: None)]


# ---- the life of a task ----


@guard("a cancelled task does not go back to pending when its attempt fails", "cancelling")
def cancels_outlast_attempts() -> list[tuple[Any, str, Any]]:
    return [(work, "as_cancelled", lambda settlement: settlement)]


@guard("a lost worker uses up no try", "tries")
def losses_are_no_tries() -> list[tuple[Any, str, Any]]:
    conclude = lifecycle.conclude

    def counted(running: Any, ended: Any, *args: Any, **kwargs: Any) -> Settlement:
        settlement = conclude(running, ended, *args, **kwargs)
        lost = ended.outcome in (Outcome.LOST, Outcome.RELEASED)
        return msgspec.structs.replace(settlement, tries=settlement.tries + 1) if lost else settlement

    return [(work, "conclude", counted), (workers, "conclude", counted)]


@guard("a child whose parent failed does not start", "edge")
def children_need_success() -> list[tuple[Any, str, Any]]:
    follow = work._follow_edges

    def always(connection: Any, states: Any, now: int) -> Any:
        return follow(connection, dict.fromkeys(states, State.SUCCEEDED), now)

    return [(work, "_follow_edges", always)]


@guard("a due entry lowers the next instant of its lane", "lost")
def lanes_are_lowered() -> list[tuple[Any, str, Any]]:
    put_due = work.put_due

    def forgetful(connection: Any, entries: Any, now: int) -> int | None:
        before = connection.execute("select id, next_at from duetime_lane").fetchall()
        earliest = put_due(connection, entries, now)
        connection.executemany("update duetime_lane set next_at = ? where id = ?", [(at, lane) for lane, at in before])
        return earliest

    return [(work, "put_due", forgetful)]


@guard("the end of a task frees its key", "state", "lost", "leak")
def keys_are_freed() -> list[tuple[Any, str, Any]]:
    finish = work.finish

    def keeping(connection: Any, finals: Any, now: int, *, succeeded: Any = ()) -> int | None:
        kept = connection.execute("select * from duetime_key").fetchall()
        earliest = finish(connection, finals, now, succeeded=succeeded)
        marks = ", ".join("?" * len(kept[0])) if kept else ""
        if kept:
            connection.executemany(f"insert or ignore into duetime_key values ({marks})", kept)
        return earliest

    return [(work, "finish", keeping)]


@guard("what is answered `cancelled` is cancelled in the store", "cancel")
def cancels_are_stored() -> list[tuple[Any, str, Any]]:
    async def said_only(self: Changing, ids: Any) -> list[CancelVerdict]:
        return [CancelVerdict.CANCELLED for _ in ids]

    return [(Changing, "cancel", said_only)]


@guard("each occurrence has a task of its own", "occurrence")
def occurrences_are_fired_once() -> list[tuple[Any, str, Any]]:
    def twice(record: Any, facts: Any, now: int) -> Any:
        chosen = step(record, facts, now)
        again = [msgspec.structs.replace(task, id=new_id()) for task in chosen.tasks]
        return msgspec.structs.replace(chosen, tasks=[*chosen.tasks, *again])

    return [(firing, "step", twice)]


@guard("what was claimed in time and waits in memory does not start after its expiry", "expired")
def expiries_are_checked_at_starts() -> list[tuple[Any, str, Any]]:
    return [(executors, "has_expired", lambda claimed, now: False), (starts, "has_expired", lambda claimed, now: False)]


# ---- outside ----


@guard("what is claimed for a pull worker reaches it: by repeating the claim, or it goes back", "unstarted")
def pull_claims_arrive() -> list[tuple[Any, str, Any]]:
    renew, look = PullService.renew, PullService._look

    async def forgetful(self: PullService, worker: Any, *, running: Any = None, answered: Any = None) -> Any:
        return await renew(self, worker, running=running)

    async def once(self: PullService, worker: Any, limit: int, number: int | None, waiting: Any) -> Any:
        known = await self._store().running_tasks(worker.id, payloads=False)
        return [] if any(task.claim == number for task in known) else await look(self, worker, limit, number, waiting)

    return [(PullService, "renew", forgetful), (PullService, "_look", once)]


@guard("the renewals of a pull worker are stored", "overlap", "lost", "again", "fence")
def pull_leases_are_renewed() -> list[tuple[Any, str, Any]]:
    return [(pull_workers, "renew", lambda connection, id, now: True)]


@guard("an attempt of a pull worker that runs for too long is ended", "timeout")
def pull_attempts_time_out() -> list[tuple[Any, str, Any]]:
    async def patient(self: PullService, worker: Any) -> Any:
        running = await self._store().running_tasks(worker.id, payloads=False)
        await self._know([task.handler for task in running])
        return [self._bounded(task) for task in running], []

    return [(PullService, "_in_time", patient)]


@guard("work that was accepted and is never reported on times out", "lost")
def accepted_work_times_out() -> list[tuple[Any, str, Any]]:
    async def never(self: Deadlines) -> int:
        return 0

    return [(Deadlines, "sweep", never)]


@guard("an attempt whose work was accepted is nobody's stray", "lost", "leak", "again")
def handovers_are_stored() -> list[tuple[Any, str, Any]]:
    return [(Settler, "hand_over", lambda self, acceptance: None)]


@guard("an operation touches only what was there at its start", "operation")
def operations_leave_later_tasks_alone() -> list[tuple[Any, str, Any]]:
    def endless(operation: Any) -> Any:
        page = next_page(operation)
        return msgspec.structs.replace(page, submitted_before=operation.spec.query.submitted_before)

    def slow(operation: Any, items: Any, cursor: Any, now: int) -> Any:
        """Look again until something has come later: a world's few tasks fit into one batch."""
        after = planned(operation, items, cursor, now)
        through = after.progress.planned and now < operation.started_at + 2_000_000
        return msgspec.structs.replace(after, progress=operation.progress) if through and not after.batch else after

    return [(operations, "next_page", endless), (operations, "planned", slow)]


@guard("what an operation counts as cancelled is cancelled", "operation")
def operations_act() -> list[tuple[Any, str, Any]]:
    return [(control, "cancel", lambda connection, ids, now: [CancelVerdict.CANCELLED for _ in ids])]


def table(most: int) -> Iterator[str]:
    """Yield the rows of the table of guards."""
    for name, each in GUARDS.items():
        found = first_seed(name, most)
        shown = "not found" if found is None else f"seed {found[0]} | {', '.join(sorted(rules(found[1]).keys()))}"
        yield f"| `{name}` | {each.text} | {shown} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.broken")
    parser.add_argument("names", nargs="*", help="some of the guards; all if left out")
    parser.add_argument("--seeds", type=int, default=1_000)
    chosen = parser.parse_args()
    for name in [each for each in GUARDS if chosen.names and each not in chosen.names]:
        del GUARDS[name]
    print("| guard | what it says | first seed | broken rules |\n| --- | --- | --- | --- |")
    missing = 0
    for row in table(chosen.seeds):
        print(row, flush=True)
        missing += "not found" in row
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
