"""What keeps the server small and sound: removing finished tasks, and finding states that cannot be."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from duetime.clock import Instant
from duetime.model.task import State
from duetime.store.redis.changes import Changes
from duetime.store.redis.changing import Changing
from duetime.store.redis.keys import LETTERS, handler_of
from duetime.store.redis.records import Stored
from duetime.store.values import HintKind, Inconsistency, Pruned

WALKED_AT_ONCE = 1_000
INSPECTED_AT_ONCE = 500


class Upkeep(Changing):
    """Retention and inspection."""

    async def prune(
        self, state: State, before: Instant, limit: int, *, only: Collection[str] | None = None, but: Collection[str] = ()
    ) -> list[Pruned]:
        chosen: list[str] = []
        start = 0
        while len(chosen) < limit:
            ids: list[bytes] = await self._opened.call(
                "ZRANGEBYSCORE", self._keys.ended(state), "-inf", f"({before}", "LIMIT", start, WALKED_AT_ONCE
            )
            raws = await self._opened.call("HMGET", self._keys.facts, *ids) if ids else []
            found = (await self._read_tasks([id.decode() for id, raw in zip(ids, raws, strict=True) if raw is not None]))[1]
            for id, stored in found.items():
                handler = handler_of(stored.facts.l)
                if (only is None or handler in only) and handler not in but and len(chosen) < limit:
                    chosen.append(id)
            start += len(ids)
            if len(ids) < WALKED_AT_ONCE:
                break

        async def decide(changes: Changes, now: Instant, found: dict[str, Stored], ids: Sequence[str]) -> list[Pruned]:
            removed = []
            for id in ids:
                stored = found.get(id)
                if stored is not None and stored.facts.f is not None and stored.facts.state is state:
                    await self._forget(changes, stored)
                    removed.append(Pruned(id, stored.facts.a))
            return removed

        return await self._in_parts(chosen, decide)

    async def tidy(self) -> None:
        await self.move_ledger()
        await self._mirror_gates()  # of a process that died between control's commit and the copy
        await self._mirror_targets()
        await self._control.tidy()

    async def inspect(self, *, repair: bool) -> list[Inconsistency]:
        """Compare what is known of each task with where it stands. What looks wrong is looked at again: tasks move meanwhile."""
        await self._learn_lanes()
        problems: list[Inconsistency] = []
        ids: list[bytes] = await self._opened.call("HKEYS", self._keys.facts)
        for start in range(0, len(ids), INSPECTED_AT_ONCE):
            some = [id.decode() for id in ids[start : start + INSPECTED_AT_ONCE]]
            for _ in range(2):
                some = [id for id, _, _ in await self._misplaced(some)]
            for id, where, wrong in await self._misplaced(some):
                repaired = repair and await self._put_back(id)
                problems.append(Inconsistency("task in the wrong location", id, f"should be in {where}; {wrong}", repaired))
        problems += await self._ghosts(repair=repair)
        return problems + await self._control.inspect(repair=repair)

    async def _misplaced(self, ids: Sequence[str]) -> list[tuple[str, str, str]]:
        """Return tasks that do not stand exactly where their facts say: the id, where that is, and what is wrong."""
        found = (await self._read_tasks(ids))[1] if ids else {}
        commands: list[tuple[str, ...]] = []
        for id, stored in found.items():
            facts = stored.facts
            commands += [
                ("ZSCORE", self._keys.lane(facts.l), id),
                ("ZSCORE", self._keys.parked, id),
                ("SISMEMBER", self._keys.running(facts.w or ""), id),
                ("ZSCORE", self._keys.blocked, id),
                ("ZSCORE", self._keys.live, id),
                ("HGET", self._keys.holders, facts.h or ""),
                ("HEXISTS", self._keys.workers, f"row:{facts.w}"),
                *(("ZSCORE", self._keys.ended(state), id) for state in LETTERS),
            ]
        replies = await self._opened.call_all(commands) if commands else []
        width = 7 + len(LETTERS)
        problems = []
        for index, (id, stored) in enumerate(found.items()):
            due, parked, runs, blocked, live, holder, registered, *ended = replies[width * index : width * (index + 1)]
            facts = stored.facts
            locations = {
                "its lane": due is not None,
                "the parked ones": parked is not None,
                "its worker's attempts": bool(runs),
                "the blocked ones": blocked is not None,
                **{f"the {state.value} ones": score is not None for state, score in zip(LETTERS, ended, strict=True)},
            }
            where = f"the {facts.state.value} ones" if facts.f is not None else "its lane"
            if facts.f is None and facts.s == "r":
                where = "its worker's attempts"
            elif facts.f is None and facts.s == "b":
                where = "the blocked ones"
            elif facts.f is None and facts.p:
                where = "the parked ones"
            others = [location for location, is_there in locations.items() if is_there and location != where]
            if not locations[where]:
                problems.append((id, where, "it is not there"))
            elif others:
                problems.append((id, where, f"it is in {' and '.join(others)} too"))
            elif (live is None) is (facts.f is None):
                problems.append((id, where, "whether it is live is noted wrongly"))
            elif facts.h is not None and facts.f is None and holder != id.encode():
                problems.append((id, where, "it does not have its key"))
            elif facts.s == "r" and facts.w and not registered:
                problems.append((id, where, f"its worker {facts.w} is not registered"))
        return problems

    async def _put_back(self, id: str) -> bool:
        """Let a task stand where its facts say and nowhere else; an attempt whose worker is gone goes back."""
        now, found = await self._read_tasks([id])
        if id not in found:
            return True
        stored = found[id]
        facts, keys, changes = stored.facts, self._keys, self._changes()
        changes.seen(stored)
        registered = facts.s == "r" and bool(await self._opened.call("HEXISTS", keys.workers, f"row:{facts.w}"))
        for key in (keys.lane(facts.l), keys.parked, keys.blocked, keys.live, *map(keys.ended, LETTERS)):
            changes.do("ZREM", key, id)
        changes.do("SREM", keys.running(facts.w or ""), id)
        if facts.f is not None:
            changes.do("ZADD", keys.ended(facts.state), facts.f, id)
        else:
            changes.do("ZADD", keys.live, facts.n, id)
            if facts.h is not None:
                changes.do("HSETNX", keys.holders, facts.h, id)
            if facts.s == "b":
                changes.block(id, facts)
            elif registered:
                changes.do("SADD", keys.running(facts.w or ""), id)
            else:
                changes.wait(id, facts, now)
        done = await self._write(changes)
        self._hint(HintKind.DUE)
        return done

    async def _ghosts(self, *, repair: bool) -> list[Inconsistency]:
        """Find entries of tasks that there are not, and keys that such tasks have."""
        problems = []
        keys = self._keys
        sets = [keys.parked, keys.blocked, keys.live, keys.all, keys.expiry, *(keys.ended(state) for state in LETTERS)]
        for key in [*sets, *(keys.lane(lane) for lane in self._lanes)]:
            for id in await self._unknown(await self._opened.call("ZRANGE", key, 0, -1)):
                if repair:
                    await self._opened.call("ZREM", key, id)
                problems.append(Inconsistency("orphaned entry", id, f"is in {key} but there is no such task; the entry is removed", repair))
        words: list[bytes] = await self._opened.call("HGETALL", keys.holders)
        unknown = set(await self._unknown(words[1::2]))
        for field, holder in zip(words[::2], words[1::2], strict=True):
            if (id := holder.decode()) in unknown:
                if repair:
                    await self._opened.call("HDEL", keys.holders, field)
                problems.append(Inconsistency("orphaned key", id, "has a key but there is no such task; the key is freed", repair))
        return problems

    async def _unknown(self, ids: Sequence[bytes]) -> list[str]:
        unknown = []
        for start in range(0, len(ids), INSPECTED_AT_ONCE):
            some = ids[start : start + INSPECTED_AT_ONCE]
            facts = await self._opened.call("HMGET", self._keys.facts, *some)
            unknown += [id.decode() for id, raw in zip(some, facts, strict=True) if raw is None]
        return unknown
