"""Tasks that are suspended: how they come to wait for a step, and go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duetime.clock import Instant
from duetime.errors import StoreUnavailable
from duetime.model.outcome import Settlement
from duetime.store.postgres.connection import Database
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements

ROUNDS = 50  # looks at children that are just moving


async def put_edges(database: Database, sql: Statements, suspended: Sequence[Settlement]) -> dict[str, int]:
    """Let tasks that are about to be suspended be told of the ends of their children; return how many of these live, by task.

    In a transaction of its own, before the tasks wait: children are locked here, and a settle holds the locks of claims.
    """
    parents = {child: each.id for each in suspended if each.suspension is not None for child in each.suspension.children}
    if not parents:
        return {}

    async def job(run: Runner) -> list[str]:
        ids = sorted(parents)
        for _ in range(ROUNDS):
            locked = [row[0] for row in await run.rows(sql.lock_parents, [ids])]
            if {row[0] for row in await run.rows(sql.living_of, [ids])} <= set(locked):
                children = sorted(set(locked))
                await run.rows(sql.put_call_edges, [children, [parents[child] for child in children]])
                return children
        raise StoreUnavailable("the tasks that a suspended one waits for move too fast; try again")

    counts: dict[str, int] = {}
    for child in await database.transaction(job):
        counts[parents[child]] = counts.get(parents[child], 0) + 1
    return counts


async def hold(run: Runner, sql: Statements, suspended: Sequence[Settlement], waiting: Mapping[str, int]) -> None:
    """Let tasks wait whose ends this transaction has written."""
    steps = ["" if each.suspension is None else each.suspension.name for each in suspended]
    await run.rows(sql.suspend, [[each.id for each in suspended], steps, [waiting.get(each.id, 0) for each in suspended]])


async def wake(database: Database, sql: Statements, ids: Sequence[str], now: Instant | None) -> tuple[int, Instant | None]:
    """Let those of these tasks go on that have nothing to wait for; return how many, and the earliest position that they took."""
    if not ids:
        return 0, None
    [[woken, earliest]] = await database.rows(sql.wake, [now, list(ids)])
    return woken, earliest
