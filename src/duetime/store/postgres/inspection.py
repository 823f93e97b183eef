"""Finding and repairing impossible states."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from duetime.clock import Instant
from duetime.model.outcome import Ended, Outcome
from duetime.store.postgres import workers
from duetime.store.postgres.control import write_time
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.retention import HISTORY, partitions
from duetime.store.postgres.runner import Runner
from duetime.store.postgres.upkeep import release_orphans
from duetime.store.sql import Statements
from duetime.store.values import Inconsistency


async def inspect(run: Runner, sql: Statements, now: Instant | None, *, repair: bool) -> list[Inconsistency]:
    """Look for impossible states; the order matters, later checks rely on earlier repairs.

    Each check is one statement, so that it sees one moment of a database that others are writing to. A repair says its
    condition again, where others may have changed what was found.
    """
    at = await write_time(run, sql, now) if repair else 0  # a check without repair blocks nobody
    inspection = _Inspection(run, sql, at, repair)
    problems: list[Inconsistency] = []
    for check in (
        *(
            inspection.two_bodies,
            inspection.ghost_locations,
            inspection.doubled,
            inspection.twice_told,
            inspection.claims,
            inspection.ownerless,
            inspection.accepted,
        ),
        *(inspection.homeless, inspection.edges, inspection.waiting, inspection.strays, inspection.floors, inspection.tally),
        inspection.output,
    ):
        problems += [problem async for problem in check()]
    return problems


class _Inspection:
    """One round of checks at one instant."""

    def __init__(self, run: Runner, sql: Statements, at: Instant, repair: bool) -> None:
        self._run = run
        self._sql = sql
        self._at = at
        self._repair = repair

    async def _rows(self, statement: str, *parameters: object) -> list[Sequence[Any]]:
        return await self._run.rows(statement, parameters)

    async def two_bodies(self) -> AsyncIterator[Inconsistency]:
        for location, task_id in await self._rows(self._sql.two_bodies):
            if self._repair:
                await self._rows(self._sql.empty_due if location == "due" else self._sql.forget_row, task_id)
            yield Inconsistency(
                "task stored twice",
                task_id,
                f"has a row of its own and is also stored whole in {location}; one of them is removed",
                self._repair,
            )

    async def ghost_locations(self) -> AsyncIterator[Inconsistency]:
        for location, task_id in await self._rows(self._sql.ghost_locations):
            if self._repair:
                await self._leave(task_id, location)
            yield Inconsistency("orphaned entry", task_id, f"is in {location} but is finished or gone; the entry is removed", self._repair)

    async def _leave(self, task_id: str, location: str) -> None:
        match location:
            case "due":
                await self._rows(self._sql.delete_due, [task_id])
            case "held" | "parked":
                await self._rows(self._sql.delete_held, [task_id])
            case _:
                await self._rows(self._sql.close_attempts, task_id, None, None)

    async def doubled(self) -> AsyncIterator[Inconsistency]:
        for task_id, running, held in await self._rows(self._sql.doubled_locations):
            if self._repair:
                if not running:
                    await self._rows(self._sql.write_out, task_id)  # or what is left of it would have no body
                await self._leave(task_id, "due")
                if running and held:
                    await self._leave(task_id, "held")
            yield Inconsistency(
                "task in two locations", task_id, "is in more than one of claim, held and due; the first of these is kept", self._repair
            )
        for task_id, worker, number in await self._rows(self._sql.doubled_claims):
            if self._repair:
                await self._rows(self._sql.close_attempts, task_id, worker, number)
            yield Inconsistency(
                "task in two claims", task_id, f"also runs in claim {number} of worker {worker}; that one is ended", self._repair
            )

    async def twice_told(self) -> AsyncIterator[Inconsistency]:
        for task_id, state in await self._rows(self._sql.twice_told):
            if self._repair:
                await self._rows(self._sql.forget_finals, [task_id])
            yield Inconsistency(
                "task live and finished", task_id, f"lives and is also recorded as {state}; the record is removed", self._repair
            )

    async def claims(self) -> AsyncIterator[Inconsistency]:
        for worker, number in await self._rows(self._sql.wrong_bounds):
            if self._repair:
                await self._rows(self._sql.set_bounds, worker, number)
            yield Inconsistency(
                "wrong claim bounds", f"claim {number} of worker {worker}", "holds ids beyond its bounds; put right", self._repair
            )
        for worker, number, told, counted in await self._rows(self._sql.wrong_claims):
            if self._repair:
                await self._rows(self._sql.recount_claim, worker, number)
            detail = f"says that {told} of its attempts run, but {counted} do; put right"
            yield Inconsistency("wrong claim count", f"claim {number} of worker {worker}", detail, self._repair)
        if self._repair:
            await self._rows(self._sql.delete_ended_claims)

    async def ownerless(self) -> AsyncIterator[Inconsistency]:
        rows = await self._rows(self._sql.ownerless_claims)
        if self._repair:
            for worker in dict.fromkeys(row[0] for row in rows):
                await workers.take_from(self._run, self._sql, worker, Ended(Outcome.LOST), self._at)
        for worker, task_id in rows:
            yield Inconsistency(
                "attempt without a worker",
                task_id,
                f"runs for worker {worker}, which is not registered; goes back to pending",
                self._repair,
            )

    async def accepted(self) -> AsyncIterator[Inconsistency]:
        for (task_id,) in await self._rows(self._sql.unbounded_attempts):
            if self._repair:
                await self._rows(self._sql.bound_attempts, self._at, [task_id])
            detail = "would wait for its end for ever; it times out now"
            yield Inconsistency("accepted attempt without a deadline", task_id, detail, self._repair)
        for (task_id,) in await self._rows(self._sql.stray_deadlines):
            if self._repair:
                await self._rows(self._sql.delete_deadlines, [task_id])
            yield Inconsistency("deadline without an attempt", task_id, "is not accepted any more; it is removed", self._repair)

    async def homeless(self) -> AsyncIterator[Inconsistency]:
        for (task_id,) in await self._rows(self._sql.homeless_tasks):
            if self._repair:
                await self._rows(self._sql.house_task, self._at, [task_id])
            yield Inconsistency("task without a location", task_id, "is live but waits nowhere; goes back to pending", self._repair)

    async def output(self) -> AsyncIterator[Inconsistency]:
        for (task_id,) in await self._rows(self._sql.ghost_output):
            if self._repair:
                await self._rows(self._sql.delete_output, [task_id])
            yield Inconsistency("orphaned logs", task_id, "has logs but is gone; they are removed", self._repair)

    async def edges(self) -> AsyncIterator[Inconsistency]:
        parents = [row[0] for row in await self._rows(self._sql.orphaned, 1_000_000)]
        if self._repair and parents:
            while await release_orphans(self._run, self._sql, self._at):
                pass
        for parent in parents:
            yield Inconsistency("ended parent", parent, "has ended but others still wait for it; they go on", self._repair)

    async def waiting(self) -> AsyncIterator[Inconsistency]:
        for task_id, waiting, edges in await self._rows(self._sql.wrong_waiting):
            if self._repair:
                await self._rows(self._sql.set_waiting, [task_id])
                await self._rows(self._sql.free_held, self._at, [task_id])
            yield Inconsistency(
                "wrong number of parents", task_id, f"waits for {waiting} tasks, but {edges} are recorded; put right", self._repair
            )

    async def strays(self) -> AsyncIterator[Inconsistency]:
        for (task_id,) in await self._rows(self._sql.stray_entries):
            if self._repair:
                await self._rows(self._sql.settle_strays, self._at, [task_id])
            yield Inconsistency("wrong lane", task_id, "waits in another lane than its own; goes to its own", self._repair)

    async def floors(self) -> AsyncIterator[Inconsistency]:
        for task_id, handler, collection, priority in await self._rows(self._sql.low_entries):
            if self._repair:
                await self._rows(self._sql.raise_entries, self._at, [task_id])
            name = f"{handler} {collection or '-'} {priority}"
            yield Inconsistency(
                "unreachable entry", task_id, f"is in lane {name} below where claims begin; goes to the present", self._repair
            )

    async def tally(self) -> AsyncIterator[Inconsistency]:
        leaving = [table for table in await partitions(self._run, self._sql, HISTORY) if table.detaching is not False]
        counts = [self._sql.counted_tasks, *(table.put_into(self._sql.counted_leaving) for table in leaving)]
        counted_tasks = "\nunion all\n".join(counts)
        rows = await self._rows(self._sql.wrong_tally.replace("%counted", counted_tasks))
        if self._repair and rows:
            await self._rows(self._sql.correct_tally.replace("%counted", counted_tasks))
        for handler, collection, priority, state, counted, told in rows:
            name = f"{handler or 'unknown'} {collection or '-'} {priority if priority is not None else '-'}"
            yield Inconsistency("wrong tally", name, f"has {counted} {state} tasks, but {told} are tallied; put right", self._repair)


class Inspecting(OpenSchema):
    """Finds and repairs impossible states."""

    async def inspect(self, *, repair: bool) -> list[Inconsistency]:
        return await self._opened_patiently.transaction(lambda run: inspect(run, self._sql, self._clock.parameter, repair=repair))
