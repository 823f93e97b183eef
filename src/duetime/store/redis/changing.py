"""What operators and callers do to single tasks, and ending tasks that nobody will claim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from duetime.clock import Instant
from duetime.errors import StoreUnavailable
from duetime.model.gate import GateAction
from duetime.model.task import State
from duetime.store.redis.changes import Changes
from duetime.store.redis.database import ROUNDS
from duetime.store.redis.keys import collection_of, handler_of, lane_name
from duetime.store.redis.ledger import Ledger
from duetime.store.redis.records import Stored, encode
from duetime.store.values import CancelVerdict, ChangeVerdict, DeleteVerdict, Edit, HintKind

T = TypeVar("T")
CHANGED_AT_ONCE = 200


class Changing(Ledger):
    """What operators and callers do to single tasks. Each call reads, decides, and writes if nothing has changed meanwhile."""

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        async def decide(changes: Changes, now: Instant, found: dict[str, Stored], ids: Sequence[str]) -> list[CancelVerdict]:
            verdicts = []
            for id in ids:
                stored = found.get(id)
                if stored is None:
                    verdicts.append(CancelVerdict.UNKNOWN)
                elif stored.facts.f is not None:
                    verdicts.append(CancelVerdict.FINISHED)
                elif stored.facts.s == "r":
                    if not stored.facts.x:
                        stored.facts.x = 1
                        changes.put(id, stored.facts)
                    verdicts.append(CancelVerdict.CANCELLING)
                else:
                    changes.leave(stored)
                    stored.facts.f = now
                    changes.finish(id, stored.facts, State.CANCELLED, now)
                    verdicts.append(CancelVerdict.CANCELLED)
            return verdicts

        verdicts = await self._in_parts(ids, decide)
        if CancelVerdict.CANCELLING in verdicts:
            self._hint(HintKind.CANCEL)
        if CancelVerdict.CANCELLED in verdicts:
            self._hint(HintKind.DONE)
        return verdicts

    async def delete(self, ids: Sequence[str]) -> list[DeleteVerdict]:
        async def decide(changes: Changes, now: Instant, found: dict[str, Stored], ids: Sequence[str]) -> list[DeleteVerdict]:
            verdicts = []
            for id in ids:
                stored = found.get(id)
                if stored is None:
                    verdicts.append(DeleteVerdict.UNKNOWN)
                elif stored.facts.s == "r":
                    verdicts.append(DeleteVerdict.RUNNING)
                else:
                    del found[id]
                    if stored.facts.f is None:
                        past = None if stored.facts.h is None else await self._opened.call("HGET", self._keys.latest, stored.facts.h)
                        changes.leave(stored)
                        changes.finish(id, stored.facts, State.CANCELLED, now)
                        if stored.facts.h is not None:
                            changes.do("HDEL", self._keys.latest, stored.facts.h)
                        if stored.facts.h is not None and past is not None:
                            changes.do("HSET", self._keys.latest, stored.facts.h, past)
                        stored.facts.s, stored.facts.f, stored.facts.h = "C", now, None
                    await self._forget(changes, stored)
                    verdicts.append(DeleteVerdict.DELETED)
            return verdicts

        verdicts = await self._in_parts(ids, decide)
        if DeleteVerdict.DELETED in verdicts:
            self._hint(HintKind.DONE)
        return verdicts

    async def _forget(self, changes: Changes, stored: Stored) -> None:
        """Remove all that is stored of a task that stands in no lane."""
        id, facts, keys = stored.id, stored.facts, self._keys
        for key in (keys.facts, keys.records, keys.ends, keys.progress, keys.output):
            changes.do("HDEL", key, id)
        for key in (keys.live, keys.all, keys.expiry):
            changes.do("ZREM", key, id)
        if facts.m:
            changes.do("ZREMRANGEBYLEX", keys.children, f"[{id}:", f"({id};")
        for parent in {**(facts.q or {}), **(facts.y or {})}:
            changes.do("ZREM", keys.children, f"{parent}:{id}")
        changes.do("DEL", keys.attempts(id))
        changes.do("DEL", keys.chunks(id))
        if facts.f is not None:
            changes.do("ZREM", keys.ended(facts.state), id)
            changes.do("HINCRBY", keys.tallies, f"{facts.s}{facts.l}", -1)
        if facts.h is not None:
            for key in (keys.holders, keys.latest):
                holder = await self._opened.call("HGET", key, facts.h)
                if holder == id.encode():
                    changes.expect(key, facts.h, holder)
                    changes.do("HDEL", key, facts.h)

    async def retry(self, ids: Sequence[str]) -> list[ChangeVerdict]:
        async def decide(changes: Changes, now: Instant, found: dict[str, Stored], ids: Sequence[str]) -> list[ChangeVerdict]:
            verdicts = []
            taken: set[str] = set()
            for id in ids:
                stored = found.get(id)
                if stored is None:
                    verdicts.append(ChangeVerdict.UNKNOWN)
                elif stored.facts.f is None or stored.facts.s == "S":
                    verdicts.append(ChangeVerdict.REFUSED)
                elif await self._key_is_taken(changes, stored, taken):
                    verdicts.append(ChangeVerdict.DUPLICATE)
                else:
                    self._revive(changes, stored, now)
                    verdicts.append(ChangeVerdict.CHANGED)
                    if stored.facts.m:
                        await self._revive_children(changes, stored, found, taken, now)
            return verdicts

        verdicts = await self._in_parts(ids, decide)
        self._hint(HintKind.DUE)
        return verdicts

    async def _key_is_taken(self, changes: Changes, stored: Stored, taken: set[str]) -> bool:
        if stored.facts.h is None or stored.content.key is None:
            return False
        for field in self._key_fields(stored.facts.handler, stored.content.key):
            if field in taken or await self._opened.call("HGET", self._keys.holders, field) is not None:
                return True
            changes.expect(self._keys.holders, field, None)
        taken.add(stored.facts.h)
        return False

    async def _revive_children(self, changes: Changes, parent: Stored, known: dict[str, Stored], taken: set[str], now: Instant) -> None:
        """Let children wait again that were cancelled in vain, and their children likewise, unless something else of what they need has
        failed. `known` are tasks as they will be.
        """
        revived = [parent]
        while revived:
            id = revived.pop().id
            links: list[bytes] = await self._opened.call("ZRANGEBYLEX", self._keys.children, f"[{id}:", f"({id};")
            for child in await self._learned(changes, known, [link.decode().partition(":")[2] for link in links]):
                needs = child.facts.y or {}
                if child.facts.s != "C" or id not in needs:
                    continue
                await self._learned(changes, known, list(needs))
                if any(needs[each] == "s" and self._has_failed(known.get(each)) for each in needs):
                    continue
                if await self._key_is_taken(changes, child, taken):
                    continue
                self._revive(changes, child, now)
                child.facts.q = {each: need for each, need in needs.items() if each in known and known[each].facts.f is None}
                changes.leave(child)
                changes.block(child.id, child.facts)
                revived.append(child)

    async def _learned(self, changes: Changes, known: dict[str, Stored], ids: Sequence[str]) -> list[Stored]:
        """Return tasks as they will be; those that are new here must be as they were read when the changes are made."""
        _, found = await self._read_tasks([id for id in ids if id not in known])
        for stored in found.values():
            changes.seen(stored)
        known |= found
        return [known[id] for id in ids if id in known]

    @staticmethod
    def _has_failed(stored: Stored | None) -> bool:
        return stored is None or (stored.facts.f is not None and stored.facts.s != "S")

    def _revive(self, changes: Changes, stored: Stored, now: Instant) -> None:
        """Let a finished task live again; how it ended becomes the last of its attempts so far."""
        facts, keys, id = stored.facts, self._keys, stored.id
        changes.do("ZREM", keys.ended(facts.state), id)
        changes.do("HINCRBY", keys.tallies, f"{facts.s}{facts.l}", -1)
        if stored.end is not None:
            changes.keep_attempt(id, stored.end.attempt, encode(msgspec.structs.replace(stored.end, result=None)))
            changes.do("HDEL", keys.ends, id)
        if facts.h is not None:
            changes.do("HSET", keys.holders, facts.h, id)
        changes.do("ZADD", keys.live, facts.n, id)
        facts.f, facts.t, facts.k, facts.d, facts.i, facts.y, facts.z = None, 0, 0, now, now, None, None
        if facts.e is not None and facts.e <= now:  # it would end again before it could start
            facts.e = None
        if facts.e is not None:
            changes.do("ZADD", keys.expiry, facts.e, id)
        changes.wait(id, facts, now)

    async def edit(self, edits: Sequence[Edit]) -> list[ChangeVerdict]:
        verdicts: list[ChangeVerdict] = []
        for change in edits:
            for _ in range(ROUNDS):
                verdict = await self._edit(change)
                if verdict is not None:
                    verdicts.append(verdict)
                    break
        if edits:
            self._hint(HintKind.DUE)
        return verdicts

    async def _edit(self, change: Edit) -> ChangeVerdict | None:
        """Edit one task; None if it was changed meanwhile."""
        now, found = await self._read_tasks([change.id])
        stored = found.get(change.id)
        if stored is None:
            return None if await self._moved([change.id]) else ChangeVerdict.UNKNOWN
        if change.seen is not None and (await self._records_of([stored]))[change.id] != change.seen:
            return ChangeVerdict.OUTDATED
        facts, content = stored.facts, stored.content
        changes = self._changes()
        changes.seen(stored)
        if change.payload is not None:
            content = msgspec.structs.replace(content, payload=change.payload.decode())
        if facts.f is not None:
            if facts.s == "S" or not change.repairs:
                return ChangeVerdict.REFUSED
            changes.put_content(change.id, content)
            changes.put(change.id, facts)
            return ChangeVerdict.CHANGED if await self._write(changes) else None
        if facts.s == "r":
            return ChangeVerdict.REFUSED
        changes.leave(stored)
        facts.l = lane_name(
            facts.handler,
            facts.collection if change.collection is None else change.collection,
            facts.priority if change.priority is None else change.priority,
        )
        if change.due_at is not None:
            facts.d = facts.i = change.due_at
        if change.payload is not None:
            facts.p, facts.r = 0, None
            changes.put_content(change.id, content)
        if facts.s == "b":
            changes.block(change.id, facts)
        else:
            changes.wait(change.id, facts, now)
        return ChangeVerdict.CHANGED if await self._write(changes) else None

    # ---- what nobody will claim ----

    async def expire(self, limit: int) -> int:
        await self._release()  # what a process freed that died before it could do this
        await self.move_ledger()  # of a process that died before it could, and of callers' transactions
        ids: list[bytes] = await self._opened.call("ZRANGEBYSCORE", self._keys.expiry, "-inf", self.now(), "LIMIT", 0, limit)
        return await self._end_waiting([id.decode() for id in ids], State.EXPIRED, lambda stored, now: (stored.facts.e or now + 1) <= now)

    async def drop(self, limit: int) -> int:
        await self._learn_gates()
        now = self.now()
        if not any(gate.action is GateAction.DROP for gate in self._gates):
            return 0
        await self._learn_lanes()

        def drops(lane: str, now: Instant) -> bool:
            gate = self._gates.holding(handler_of(lane), collection_of(lane), now)
            return gate is not None and gate.action is GateAction.DROP

        ids: list[bytes] = []
        for lane in sorted(self._lanes):
            if len(ids) < limit and drops(lane, now):
                ids += await self._opened.call("ZRANGEBYSCORE", self._keys.lane(lane), "-inf", now, "LIMIT", 0, limit - len(ids))
        if len(ids) < limit:
            parked = await self._opened.call("ZRANGEBYSCORE", self._keys.parked, "-inf", now)
            _, found = await self._read_tasks([id.decode() for id in parked])
            ids += [stored.id.encode() for stored in found.values() if drops(stored.facts.l, now)][: limit - len(ids)]
        return await self._end_waiting(
            [id.decode() for id in ids], State.DROPPED, lambda stored, now: stored.facts.d <= now and drops(stored.facts.l, now)
        )

    async def _end_waiting(self, ids: Sequence[str], state: State, still: Callable[[Stored, Instant], bool]) -> int:
        """End tasks that wait, if that still holds; return how many."""

        async def decide(changes: Changes, now: Instant, found: dict[str, Stored], ids: Sequence[str]) -> list[int]:
            ended = []
            for id in ids:
                stored = found.get(id)
                if stored is None or stored.facts.f is not None or stored.facts.s == "r" or not still(stored, now):
                    ended.append(0)
                    continue
                changes.leave(stored)
                changes.finish(id, stored.facts, state, now)
                ended.append(1)
            return ended

        count = sum(await self._in_parts(ids, decide))
        if count:
            self._hint(HintKind.DONE)
        return count

    async def _in_parts(
        self, ids: Sequence[str], decide: Callable[[Changes, Instant, dict[str, Stored], Sequence[str]], Awaitable[list[T]]]
    ) -> list[T]:
        """Read tasks, decide, and write in one step if nothing has changed meanwhile; otherwise begin again."""
        answers: list[T] = []
        for start in range(0, len(ids), CHANGED_AT_ONCE):
            some = ids[start : start + CHANGED_AT_ONCE]
            for _ in range(ROUNDS):
                now, found = await self._read_tasks(list(dict.fromkeys(some)))
                if len(found) < len(some) and await self._moved([id for id in some if id not in found]):
                    continue
                changes = self._changes()
                for stored in found.values():
                    changes.seen(stored)
                decided = await decide(changes, now, found, some)
                if await self._write(changes):
                    answers += decided
                    break
            else:
                raise StoreUnavailable(f"others change the same tasks again and again in {self.url}; repeat the call")
        return answers
