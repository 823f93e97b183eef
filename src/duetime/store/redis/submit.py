"""Adding tasks: the script stores what is new; what meets a task with its key is decided here."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duetime.clock import LATEST, Instant
from duetime.errors import StoreUnavailable, TaskNotFound
from duetime.model.task import NewTask, State, accepted, due_of, expiry_of
from duetime.store.redis.database import ROUNDS, OpenServer, refused
from duetime.store.redis.keys import collection_of, handler_of
from duetime.store.redis.link import Word
from duetime.store.redis.records import Stored, content_of, encode, lane_of
from duetime.store.redis.scripts import ADD
from duetime.store.values import MAX_COLLECTIONS, Added, AddVerdict, HintKind, TooManyCollections

ADDED_AT_ONCE = 500  # tasks of one script
PENDING, STORED, BLOCKED, IN_VAIN = range(4)  # what the script says of a task


def check_plain(tasks: Sequence[NewTask[object]]) -> None:
    """Refuse what this store cannot do, before anything is stored."""
    for task in tasks:
        if task.if_exists == "queue_one":
            raise refused('if_exists="queue_one"')
        if task.pace is not None:
            raise refused("debounce and throttle")
        due_of(task, 0)


class Submitting(OpenServer):
    """How tasks get in."""

    async def add(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        check_plain(tasks)
        await self._check_collections(tasks)
        added: list[Added] = []
        earliest: Instant | None = None
        for start in range(0, len(tasks), ADDED_AT_ONCE):
            some = tasks[start : start + ADDED_AT_ONCE]
            now, *verdicts = await self._add_new(some)
            for task, verdict in zip(some, verdicts, strict=True):
                added.append(await self._answer(task, verdict, now))
        for each in added:
            if each.verdict in (AddVerdict.ADDED, AddVerdict.REPLACED):
                position = max(each.record.due_at, each.record.submitted_at)
                earliest = position if earliest is None else min(earliest, position)
        if earliest is not None:
            self._hint(HintKind.DUE, earliest)
        return added

    async def _add_new(self, tasks: Sequence[NewTask[object]]) -> list[int | bytes]:
        lanes: dict[str, int] = {}
        words: list[Word] = [LATEST]
        for task in tasks:
            lane = lane_of(task)
            number = lanes.setdefault(lane, len(lanes) + 1)
            fields: list[str] = [] if task.key is None else self._key_fields(task.handler, task.key)
            words += [
                task.id,
                encode(content_of(task)),
                lane,
                number,
                "" if task.due_at is None else task.due_at,
                task.delay,
                "" if task.expires_at is None or task.expires_in is not None else task.expires_at,
                "" if task.expires_in is None else task.expires_in,
                len(fields),
                *fields,
                len(task.edges),
                *(word for edge in task.edges for word in (edge.parent, "s" if edge.needs == "success" else "e")),
            ]
        replies: list[int | bytes] = await self._run(ADD, [self._keys.lane(lane) for lane in lanes], words)
        if replies[1:2] == [b"unknown"]:
            parent = bytes(replies[2]).decode()
            raise TaskNotFound(f"no task {parent} to wait for; it was never submitted, or it has been pruned")
        self._lanes = self._lanes.union(lanes)
        return replies

    async def _answer(self, task: NewTask[object], verdict: int | bytes, now: int | bytes) -> Added:
        """Return the answer to a new task by what the script said of it: added, stored before, or who has its key."""
        for _ in range(ROUNDS):
            if verdict in (PENDING, BLOCKED):
                state = State.PENDING if verdict == PENDING else State.BLOCKED
                return Added(AddVerdict.ADDED, accepted(task, state, int(now), due_of(task, int(now))))
            if verdict == IN_VAIN:
                return Added(AddVerdict.ADDED, (await self._records([task.id]))[task.id])
            if verdict == STORED:
                stored = (await self._records([task.id])).get(task.id)
                if stored is not None:
                    return Added(AddVerdict.REPEATED, stored)
            elif isinstance(verdict, bytes):
                met = await self._meet_holder(task, verdict.decode())
                if met is not None:
                    return met
            now, verdict = await self._add_new([task])  # what was there is gone by now
        raise StoreUnavailable(f"others change the task with this key again and again in {self.url}; repeat the call")

    async def _meet_holder(self, task: NewTask[object], holder: str) -> Added | None:
        """Handle a new task whose key a live one has; None if that one has ended meanwhile."""
        for _ in range(ROUNDS):
            now, found = await self._read_tasks([holder])
            stored = found.get(holder)
            if stored is None or stored.facts.f is not None:
                return None
            if task.if_exists == "replace" and stored.facts.s != "r":
                if not await self._replace(task, stored, now):
                    continue
                return Added(AddVerdict.REPLACED, (await self._records([holder]))[holder])
            verdict = AddVerdict.KEPT if task.if_exists == "keep" else AddVerdict.DUPLICATE
            return Added(verdict, (await self._records_of([stored]))[holder])
        raise StoreUnavailable(f"others change the task with this key again and again in {self.url}; repeat the call")

    async def _replace(self, task: NewTask[object], stored: Stored, now: Instant) -> bool:
        """Give a task that waits a new submission; return False if it was changed meanwhile."""
        facts = msgspec.structs.replace(stored.facts, t=0, p=0, r=None)
        changes = self._changes()
        changes.seen(stored)
        changes.leave(stored)
        facts.l, facts.d = lane_of(task), due_of(task, now)
        facts.i, facts.e = facts.d, expiry_of(task, facts.d)
        field = f"{task.handler}\0{task.key}"
        if facts.h is not None and facts.h != field:  # it was submitted by another name of the handler
            changes.do("HDEL", self._keys.holders, facts.h)
            changes.do("HSET", self._keys.holders, field, stored.id)
            facts.h = field
        changes.do("ZREM", self._keys.expiry, stored.id)
        if facts.e is not None:
            changes.do("ZADD", self._keys.expiry, facts.e, stored.id)
        content = content_of(task)
        changes.put_content(stored.id, msgspec.structs.replace(content, schedule=stored.content.schedule))
        if facts.s == "b":
            changes.block(stored.id, facts)
        else:
            changes.wait(stored.id, facts, now)
        return await self._write(changes)

    async def _check_collections(self, tasks: Sequence[NewTask[object]]) -> None:
        """Refuse the whole call if a handler would have too many collections."""
        asked = {lane for task in tasks if task.collection and (lane := lane_of(task)) not in self._lanes}
        if not asked:
            return
        await self._learn_lanes()
        for handler in {handler_of(lane) for lane in asked - self._lanes}:
            used = {collection_of(lane) for lane in self._lanes if handler_of(lane) == handler} - {None}
            new = {collection for lane in asked if handler_of(lane) == handler and (collection := collection_of(lane)) not in used}
            if len(used) + len(new) > MAX_COLLECTIONS:
                left = max(0, MAX_COLLECTIONS - len(used))
                raise TooManyCollections(handler, sorted(each for each in new if each)[left:])
