"""Adding tasks, finding them and changing them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from duetime.clock import monotonic
from duetime.errors import InvalidValue, StoreUnavailable, TaskNotFound
from duetime.model.names import HandlerNames
from duetime.model.outcome import AttemptRecord
from duetime.model.sharding import CONTROL, ShardMap, cell_of, cell_of_key
from duetime.model.task import FINAL, Edge, NewTask, TaskRecord
from duetime.store import Store
from duetime.store.intents import Intent
from duetime.store.requests import NamedRequest, Requested, decide
from duetime.store.sharded.routing import MAP_EVERY, Routing, same
from duetime.store.values import Added, AddVerdict, CancelVerdict, ChangeVerdict, DeleteVerdict, Edit

MOVING_PAUSE = 0.2  # seconds between two looks whether a change of the map has come to count


class Tasks(Routing):
    """Verbs on single tasks. A task is where its id says, except one that was stored in a transaction of control: that is in control."""

    # ---- adding ----

    async def add(self, tasks: Sequence[NewTask[object]]) -> list[Added]:
        if not tasks:
            return []
        map = await self._refreshed()
        while any(task.key is not None and map.moves(cell_of_key(task.handler, task.key)) for task in tasks):
            await asyncio.sleep(MOVING_PAUSE)
            map = await self.read_map()
        where = await self._destinations(tasks, map)
        groups: dict[str, list[int]] = {}
        for index, shard in enumerate(where):
            groups.setdefault(shard, []).append(index)
        answers: dict[int, Added] = {}
        parts = [self._add_at(shard, [(index, tasks[index]) for index in indexes], answers) for shard, indexes in groups.items()]
        failures = [each for each in await asyncio.gather(*parts, return_exceptions=True) if isinstance(each, BaseException)]
        for failure in failures:
            if not isinstance(failure, StoreUnavailable):
                raise failure
        if failures:
            rest = (
                ""
                if len(groups) == 1
                else "; tasks of other shards were stored. Repeating the same call stores the rest and doubles nothing"
            )
            raise StoreUnavailable(f"{failures[0]}{rest}") from failures[0]
        return [answers[index] for index in range(len(tasks))]

    async def _add_at(self, shard: str, tasks: Sequence[tuple[int, NewTask[object]]], answers: dict[int, Added]) -> None:
        try:
            added = await self.at(shard, lambda store: store.add([task for _, task in tasks]))
        except StoreUnavailable:
            # it may be stored there all the same: a repeat must not go anywhere else
            self._sent.update((task.id, shard) for _, task in tasks)
            raise
        for (index, task), answer in zip(tasks, added, strict=True):
            self._sent.pop(task.id, None)
            answers[index] = await self._moved_on(shard, task, answer)

    async def _moved_on(self, shard: str, task: NewTask[object], answer: Added) -> Added:
        """Let a task be where it belongs that went to a former shard for a live one with its key which has ended meanwhile."""
        if task.key is None or answer.verdict is not AddVerdict.ADDED:
            return answer
        present = self._home_of_key(task, self.map, self._known_names)
        if present == shard or task.edges:
            return answer
        [deleted] = await self.at(shard, lambda store: store.delete([task.id]))
        if deleted is not DeleteVerdict.DELETED:
            return answer
        [again] = await self.at(present, lambda store: store.add([task]))
        return again

    async def _destinations(self, tasks: Sequence[NewTask[object]], map: ShardMap) -> list[str]:
        """Return where each task is to be stored. Raises before anything is stored if that cannot be."""
        where = [self._sent.get(task.id) or map.shard_of(cell_of(task.id)) for task in tasks]
        await self._follow_parents(tasks, where)
        repeats = await self._follow_repeats(tasks, where, map)
        for index, task in enumerate(tasks):
            if task.key is not None and not task.edges and index not in repeats and task.id not in self._sent:
                where[index] = await self._shard_for_key(task, map)
        return where

    async def _follow_parents(self, tasks: Sequence[NewTask[object]], where: list[str]) -> None:
        """Let a task that waits for others be stored where these are: what ends one frees the other in one step."""
        parents = sorted({edge.parent for task in tasks for edge in task.edges})
        if not parents:
            return
        own = {task.id: index for index, task in enumerate(tasks)}
        found = await self._whereabouts([parent for parent in parents if parent not in own])
        for index, task in enumerate(tasks):
            names = {where[own[edge.parent]] if edge.parent in own else found.get(edge.parent) for edge in task.edges}
            if None in names:
                unknown = next(edge.parent for edge in task.edges if edge.parent not in own and edge.parent not in found)
                raise TaskNotFound(f"task {unknown}, which another one waits for, does not exist")
            if not names:
                continue
            if len(names) > 1 or (task.key is not None and names != {where[index]}):
                raise InvalidValue(
                    "a task cannot wait for tasks of another shard; submit them as a flow (app.group, app.chain), which lives in control"
                )
            [shard] = names
            where[index] = shard or CONTROL

    async def _whereabouts(self, ids: Sequence[str]) -> dict[str, str]:
        """Return where tasks are; unknown ones are left out."""
        if not ids:
            return {}
        found = await self.everywhere(lambda store: store.get(ids))
        return {record.id: shard for shard, records in found.items() for record in records if record is not None}

    async def _follow_repeats(self, tasks: Sequence[NewTask[object]], where: list[str], map: ShardMap) -> set[int]:
        """Send what is stored already where it is: a repeat is no second task. Return which these are.

        Asked are former shards, of ids that may be so old, and the id's own shard if the key belongs to another one.
        """
        asked: dict[str, list[int]] = {}
        for index, task in enumerate(tasks):
            if task.id in self._sent:
                continue
            if task.key is not None and cell_of_key(task.handler, task.key) != cell_of(task.id):
                asked.setdefault(where[index], []).append(index)
            if map.may_be_older(task.id):
                for former in map.formers(cell_of(task.id)):
                    asked.setdefault(former, []).append(index)
        repeats = set()
        for shard, indexes in asked.items():
            ids = [tasks[index].id for index in indexes]
            async with self.visit(shard) as store:
                records = await store.get(ids)
            for index, record in zip(indexes, records, strict=True):
                if record is not None:
                    where[index] = shard
                    repeats.add(index)
        return repeats

    async def _shard_for_key(self, task: NewTask[object], map: ShardMap) -> str:
        """Return where a keyed task belongs: where the live task is that has its key, otherwise where its key's cell is.

        The live one may be elsewhere if the shard of the cell has changed, or the handler was renamed: then its present name decides.
        """
        key = task.key or ""
        known = await self._names()
        present = self._home_of_key(task, map, known)
        cells = {cell_of_key(name, key) for name in known.all(task.handler)}
        for shard in dict.fromkeys(shard for cell in cells for shard in (map.shard_of(cell), *map.formers(cell))):
            if shard != present:
                async with self.visit(shard) as store:
                    record = await store.find(task.handler, key)
                if record is not None and record.state not in FINAL:
                    return shard
        return present

    @staticmethod
    def _home_of_key(task: NewTask[object], map: ShardMap, names: HandlerNames) -> str:
        return map.shard_of(cell_of_key(names.present(task.handler), task.key or ""))

    async def _names(self) -> HandlerNames:
        """Return the handlers' names, as control has had them a moment ago."""
        if monotonic() - self._names_at >= MAP_EVERY:
            self._names_at = monotonic()
            declared = await self.control.declarations()
            self._known_names = HandlerNames({alias: each.name for each in declared for alias in each.aliases})
        return self._known_names

    _names_at = -MAP_EVERY
    _known_names = HandlerNames()

    async def add_requested(self, requested: Sequence[Requested]) -> list[Added | NamedRequest]:
        if not requested:
            return []
        noted = await self.control.note_requests([request for _, request in requested if request is not None])
        decided = decide(requested, noted)
        added = await self.add(decided.tasks)
        await self.control.correct_requests(*decided.corrected(added))
        return decided.answered(added)

    # ---- in a caller's transaction: in control ----

    async def add_on(self, connection: object, tasks: Sequence[NewTask[object]]) -> Sequence[Added]:
        if any(task.key is not None for task in tasks):
            raise InvalidValue(
                "a key cannot be checked in a caller's transaction while the store has shards: the task that has it may be in any of them. "
                "Leave out key= or connection="
            )
        return await self.control.add_on(connection, tasks)

    async def get_on(self, connection: object, ids: Sequence[str]) -> list[TaskRecord | None]:
        return await self.control.get_on(connection, ids)

    async def find_on(self, connection: object, handler: str, key: str) -> TaskRecord | None:
        raise InvalidValue("a key cannot be looked up in a caller's transaction while the store has shards; use the task's id")

    async def intend(self, connection: object, intents: Sequence[Intent]) -> None:
        ids = [intent.task for intent in intents]
        for id, record in zip(ids, await self.control.get_on(connection, ids), strict=True):
            if record is None:
                raise InvalidValue(
                    f"task {id} is not in control but in a shard, so no transaction of yours reaches it; leave out connection="
                )
        await self.control.intend(connection, intents)

    # ---- looking up ----

    async def get(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        return await self.route(ids, same, lambda store, some: store.get(some), lambda record: record is None)

    async def find(self, handler: str, key: str) -> TaskRecord | None:
        found = await self.everywhere(lambda store: store.find(handler, key))
        records = [record for record in found.values() if record is not None]
        live = [record for record in records if record.state not in FINAL]
        return live[0] if live else max(records, key=lambda record: record.finished_at or 0, default=None)

    async def unmet_edges(self, task: str) -> list[Edge]:
        found = await self.everywhere(lambda store: store.unmet_edges(task))
        return next((edges for edges in found.values() if edges), [])

    async def attempts(self, task: str, *, after: int = 0, limit: int | None = None) -> list[AttemptRecord]:
        async def read(store: Store, ids: list[str]) -> list[list[AttemptRecord]]:
            return [await store.attempts(id, after=after, limit=limit) for id in ids]

        [found] = await self.route([task], same, read, lambda some: not some)
        return found

    # ---- changing ----

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        return await self.route(ids, same, lambda store, some: store.cancel(some), lambda verdict: verdict is CancelVerdict.UNKNOWN)

    async def retry(self, ids: Sequence[str]) -> list[ChangeVerdict]:
        taken = await self._keys_taken(ids)
        allowed = [id for id in ids if id not in taken]
        verdicts = await self.route(allowed, same, lambda store, some: store.retry(some), lambda verdict: verdict is ChangeVerdict.UNKNOWN)
        answers = dict(zip(allowed, verdicts, strict=True))
        return [answers.get(id, ChangeVerdict.DUPLICATE) for id in ids]

    async def _keys_taken(self, ids: Sequence[str]) -> set[str]:
        """Return those whose key a live task has in another shard, because the key's shard has changed since."""
        await self.current()
        if len(self.map.epochs) == 1 and not await self._names():
            return set()
        taken = set()
        for record in await self.get(ids):
            if record is not None and record.key is not None and record.state in FINAL:
                holder = await self.find(record.handler, record.key)
                if holder is not None and holder.state not in FINAL and holder.id != record.id:
                    taken.add(record.id)
        return taken

    async def delete(self, ids: Sequence[str]) -> list[DeleteVerdict]:
        return await self.route(ids, same, lambda store, some: store.delete(some), lambda verdict: verdict is DeleteVerdict.UNKNOWN)

    async def edit(self, edits: Sequence[Edit]) -> list[ChangeVerdict]:
        return await self.route(
            edits, lambda edit: edit.id, lambda store, some: store.edit(some), lambda verdict: verdict is ChangeVerdict.UNKNOWN
        )
