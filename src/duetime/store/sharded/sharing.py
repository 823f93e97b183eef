"""What control decides and every shard must know: handlers and gates. What belongs to a task and goes where the task is: output, steps."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping, Sequence

import msgspec

from duetime.clock import monotonic
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.model.disabling import Observed
from duetime.model.gate import Gate, Gates
from duetime.model.limit import CountedLimit
from duetime.model.operation import Operation, OperationState, Verb, acted
from duetime.model.sharding import CONTROL
from duetime.model.steps import NewStep, StepRecord
from duetime.store import Store
from duetime.store.operations import Acted
from duetime.store.output import KeptOutput, OutputChunk, OutputHit, OutputHits, OutputPosition, OutputSearch
from duetime.store.rows.operations import edits_of
from duetime.store.sharded.reading import Reading
from duetime.store.sharded.routing import ShardConnection, same
from duetime.store.sharded.tasks import Tasks
from duetime.store.steps import Looked
from duetime.store.values import Declaration

SYNC_WITHIN = 2.0  # seconds that one shard may hold up a change of gates
SYNC_AGAIN = 15.0

logger = logging.getLogger("duetime.store")


class Sharing(Tasks, Reading):
    """Verbs of control that concern the shards."""

    # ---- handlers and gates: in control, with copies in the shards ----

    async def declare(self, declarations: Sequence[Declaration]) -> None:
        await self.control.declare(declarations)
        for shard in self._shards.values():
            shard.declared = False
        await self._sync()

    async def put_gate(self, gate: Gate) -> int:
        version = await self.control.put_gate(gate)
        await self._sync()
        return version

    async def remove_gate(self, handler: str, collection: str | None) -> int | None:
        version = await self.control.remove_gate(handler, collection)
        await self._sync()
        return version

    async def observe(self, worker: str, observed: Sequence[Observed]) -> bool:
        changed = await self.control.observe(worker, observed)
        if changed:
            await self._sync()
        return changed

    async def declare_counted(self, handlers: Sequence[str], limits: Sequence[CountedLimit]) -> None:
        if limits:
            names = ", ".join(sorted({limit.name for limit in limits}))
            raise InvalidValue(
                f"limits by key, by rate, or that drop or stop what is above them cannot hold while the store has shards: {names}. Use "
                "Limit(name, running=…), or leave the tasks in one store"
            )
        await self.control.declare_counted(handlers, limits)

    async def put_weights(self, handler: str, weights: Mapping[str, float], *, note: str, set_by: str) -> None:
        await self.everywhere(lambda store: store.put_weights(handler, weights, note=note, set_by=set_by))

    async def _sync(self) -> None:
        """Copy handlers and gates to the shards that do not have them. One that does not answer gets them when it does.

        Until then no gate is broken: workers obey those of control when they start an attempt, and confirm them there.
        """
        gates = await self.control.gates()
        now = monotonic()
        behind = [
            each for each in self._shards.values() if now >= each.sync_after and (each.synced_gates != gates.version or not each.declared)
        ]
        if behind:
            declared = await self.control.declarations() if any(not each.declared for each in behind) else []
            await asyncio.gather(*(self._sync_shard(shard, gates, declared) for shard in behind))

    async def _sync_shard(self, shard: ShardConnection, gates: Gates, declared: Sequence[Declaration]) -> None:
        try:
            async with asyncio.timeout(SYNC_WITHIN):
                store = await shard.ready()
                if not shard.declared:
                    await store.declare(declared)
                    shard.declared = True
                await _copy_gates(gates, store)
            shard.synced_gates = gates.version
        except (StoreUnavailable, TimeoutError) as error:
            shard.sync_after = monotonic() + SYNC_AGAIN  # it may be frozen: nobody must wait for it again at once
            logger.warning("shard %s does not answer and has not got the newest gates: %s", shard.name, error)

    # ---- output and steps: where the task is ----

    async def keep_output(self, chunks: Sequence[OutputChunk]) -> list[int | None]:
        return await self.route(chunks, lambda chunk: chunk.task, lambda store, some: store.keep_output(some), lambda size: size is None)

    async def kept_output(self, task: str) -> list[KeptOutput]:
        async def read(store: Store, ids: list[str]) -> list[list[KeptOutput]]:
            return [await store.kept_output(id) for id in ids]

        [found] = await self.route([task], same, read, lambda kept: not kept)
        return found

    async def output(self, task: str, attempt: int | None, after: OutputPosition, limit: int) -> list[OutputChunk]:
        async def read(store: Store, ids: list[str]) -> list[list[OutputChunk]]:
            return [await store.output(id, attempt, after, limit) for id in ids]

        [found] = await self.route([task], same, read, lambda chunks: not chunks)
        return found

    async def search_output(self, search: OutputSearch) -> OutputHits:
        """Search one shard after the other: within a shard the latest come first."""
        await self.current()
        names = self.names()
        shard, cursor = _read_search(search.cursor, names)
        items: list[OutputHit] = []
        for name in names[names.index(shard) :]:
            async with self.visit(name) as store:
                part = msgspec.structs.replace(search, cursor=cursor, limit=search.limit - len(items))
                hits = await store.search_output(part)
            items += hits.items
            if hits.next is not None:
                return OutputHits(items, _write_search(name, hits.next))
            cursor = None
            if len(items) == search.limit and name != names[-1]:
                return OutputHits(items, _write_search(names[names.index(name) + 1], None))
        return OutputHits(items, None)

    async def steps(self, task: str) -> list[StepRecord]:
        async def read(store: Store, ids: list[str]) -> list[list[StepRecord]]:
            return [await store.steps(id) for id in ids]

        [found] = await self.route([task], same, read, lambda steps: not steps)
        return found

    async def save_steps(self, worker: str, steps: Sequence[NewStep]) -> list[StepRecord | None]:
        for step in steps:
            if (step.signal is not None or step.children) and self.shard_of(step.task) != CONTROL:
                what = "wait for signals" if step.signal is not None else "call other handlers (ctx.call)"
                raise InvalidValue(
                    f"steps of tasks in shards cannot {what} yet; run this handler as a flow (app.chain, app.flow), which lives in control"
                )
        return await self.route(
            steps, lambda step: step.task, lambda store, some: store.save_steps(worker, some), lambda step: step is None
        )

    async def look_at_waits(self) -> Looked:
        looked = list((await self.everywhere(lambda store: store.look_at_waits())).values())
        return Looked(
            sum(each.woken for each in looked), any(each.more for each in looked), tuple(id for each in looked for id in each.orphans)
        )

    # ---- operations: in control, on tasks that are anywhere ----

    async def act(self, operation: str) -> Acted | None:
        """Each verdict is that of the shard. If a process dies between the shards and control, tasks are acted on again and counted once,
        with the verdict of the second time."""
        found = await self.control.operation(operation)
        if found is None or found.state is not OperationState.RUNNING or not found.batch:
            return None if found is None else Acted(found, {})
        answers = await self._acted_on(found)
        done = acted(found, answers)
        if await self.control.save_operation(done):
            return Acted(done, answers)
        stored = await self.control.operation(operation)
        return None if stored is None else Acted(stored, {})

    async def _acted_on(self, operation: Operation) -> dict[str, str]:
        match operation.spec.verb:
            case Verb.CANCEL:
                return {id: each.value for id, each in zip(operation.batch, await self.cancel(operation.batch), strict=True)}
            case Verb.RETRY:
                return {id: each.value for id, each in zip(operation.batch, await self.retry(operation.batch), strict=True)}
            case Verb.EDIT:
                verdicts = await self.edit(edits_of(operation))
                return {id: each.value for id, each in zip(operation.batch, verdicts, strict=True)}

    # ---- events ----

    async def follow_events(self, follower: str, seconds: float, *, remember: bool = False) -> str:
        raise InvalidValue(
            "events cannot be followed while the store has shards: each shard has its own. Take hooks (@app.on) and event streams out, "
            "or leave the tasks in one store; lists, metrics and alerts work over shards"
        )


async def _copy_gates(gates: Gates, store: Store) -> None:
    """Let a shard have the gates that control has."""
    wanted = {(gate.handler, gate.collection): gate for gate in gates.as_set}
    present = {(gate.handler, gate.collection): gate for gate in (await store.gates()).as_set}
    for name, gate in wanted.items():
        if present.get(name) != gate:
            await store.put_gate(gate)
    for handler, collection in present.keys() - wanted.keys():
        await store.remove_gate(handler, collection)


def _read_search(cursor: str | None, names: Sequence[str]) -> tuple[str, str | None]:
    if cursor is None:
        return names[0], None
    try:
        shard, inner = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=tuple[str, str | None])
    except (ValueError, RecursionError, msgspec.DecodeError):
        shard, inner = "", None
    if shard not in names:
        raise InvalidValue(f"cursor is not one that this list gave out: {cursor[:80]!r}; begin again without it")
    return shard, inner


def _write_search(shard: str, cursor: str | None) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((shard, cursor))).decode().rstrip("=")
