"""What operators and callers change: cancels, retries, edits, drops and declarations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from duetime.clock import Instant
from duetime.errors import StoreUnavailable
from duetime.model.gate import GateAction
from duetime.model.task import FINAL, State, TaskRecord
from duetime.store.accepting import CANCEL_WITHIN
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.fairness import declare_fair
from duetime.store.postgres.gates import next_version, read_gates, read_names
from duetime.store.postgres.records import all_records_by_id, known_form, records_by_id, since, write_json
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements
from duetime.store.values import CancelVerdict, ChangeVerdict, Declaration, DeleteVerdict, Edit, HintKind

_decode_declaration = msgspec.json.Decoder(Declaration).decode
T = TypeVar("T")

RETRIABLE = FINAL - {State.SUCCEEDED}
# How often to look again at a task that moves on between two looks. After that the verb raises StoreUnavailable.
ROUNDS = 50


class Transact(Protocol):
    """Runs a job in a transaction of its own, and again from the start if the server asks for that."""

    async def __call__(self, job: Callable[[Runner], Awaitable[T]]) -> T: ...


class Location(NamedTuple):
    """Where a task is, with the lane of a live one. Waiting for other tasks counts as pending here."""

    state: State
    lane: int
    handler: str
    collection: str
    priority: int


async def locations_of(run: Runner, sql: Statements, ids: Iterable[str]) -> dict[str, Location]:
    """Look where tasks are. Those that are not found are looked for in all tables: the clock of their ids may have been wrong."""
    found: dict[str, Location] = {}
    wanted = known_form(ids)
    for finished_since in dict.fromkeys([since(wanted), 0]):
        missing = [task_id for task_id in wanted if task_id not in found]
        if missing:
            rows = await run.rows(sql.task_locations, [missing, finished_since])
            found |= {row[0]: Location(State(row[1]), *row[2:]) for row in rows}
    return found


async def write_time(run: Runner, sql: Statements, now: Instant | None) -> Instant:
    """Return the time of a write, after its transaction got its number (I4)."""
    [[at]] = await run.rows(sql.begin_adding, [now])
    return int(at)


async def cancel(transact: Transact, sql: Statements, ids: Sequence[str], now: Instant | None) -> list[CancelVerdict]:
    """Cancel what waits and mark what runs, each in a transaction of its own: locks are never carried from one to the other.

    A task may move between the two, so tasks that neither has found are looked up again.
    """
    verdicts: dict[str, CancelVerdict] = {}
    open_ids = known_form(ids)

    async def end(run: Runner) -> set[str]:
        return {row[0] for row in await run.rows(sql.end_waiting, [now, State.CANCELLED.value, open_ids])}

    async def mark(run: Runner) -> set[str]:
        return await mark_cancelling(run, sql, open_ids, now)

    async def look(run: Runner) -> dict[str, Location]:
        return await locations_of(run, sql, open_ids)

    for _ in range(ROUNDS):
        for verdict, job in ((CancelVerdict.CANCELLED, end), (CancelVerdict.CANCELLING, mark)):
            if open_ids:
                verdicts |= dict.fromkeys(await transact(job), verdict)
                open_ids = [task_id for task_id in open_ids if task_id not in verdicts]
        if not open_ids:
            break
        locations = await transact(look)
        verdicts |= {task_id: CancelVerdict.FINISHED for task_id in open_ids if task_id in locations and locations[task_id].state in FINAL}
        open_ids = [task_id for task_id in open_ids if task_id in locations and task_id not in verdicts]
        if not open_ids:
            break
    else:
        raise _restless(open_ids[0])
    return _answers(ids, verdicts, CancelVerdict.UNKNOWN, repeated=(CancelVerdict.CANCELLED, CancelVerdict.FINISHED))


async def mark_cancelling(run: Runner, sql: Statements, ids: Sequence[str], now: Instant | None) -> set[str]:
    """Tell running attempts to stop, and let accepted ones time out soon; return which run."""
    if not await run.rows(sql.lock_claims, [ids]):
        return set()
    marked = {row[0] for row in await run.rows(sql.mark_cancelling, [ids])}
    await run.rows(sql.hurry_accepted, [now, CANCEL_WITHIN, sorted(marked)])
    return marked


async def delete(transact: Transact, sql: Statements, ids: Sequence[str], now: Instant | None) -> list[DeleteVerdict]:
    """Remove what has ended and what waits, and leave what runs. What waits is cancelled first, so that its children go on or end.

    A task may move meanwhile, so tasks that were not removed are looked up, and tried again unless they run.
    """
    verdicts: dict[str, DeleteVerdict] = {}
    open_ids = known_form(ids)

    async def remove(run: Runner) -> set[str]:
        await run.rows(sql.end_waiting, [now, State.CANCELLED.value, open_ids])
        return {row[0] for row in await run.rows(sql.delete_finals, [open_ids])}

    async def look(run: Runner) -> dict[str, Location]:
        return await locations_of(run, sql, open_ids)

    for _ in range(ROUNDS):
        if not open_ids:
            break
        verdicts |= dict.fromkeys(await transact(remove), DeleteVerdict.DELETED)
        open_ids = [task_id for task_id in open_ids if task_id not in verdicts]
        locations = await transact(look)
        verdicts |= {
            task_id: DeleteVerdict.RUNNING for task_id in open_ids if task_id in locations and locations[task_id].state is State.RUNNING
        }
        open_ids = [task_id for task_id in open_ids if task_id in locations and task_id not in verdicts]
    else:
        raise _restless(open_ids[0])
    return _answers(ids, verdicts, DeleteVerdict.UNKNOWN, repeated=(DeleteVerdict.DELETED, DeleteVerdict.UNKNOWN))


V = TypeVar("V", CancelVerdict, ChangeVerdict, DeleteVerdict)


def _answers(ids: Sequence[str], verdicts: dict[str, V], unknown: V, *, repeated: tuple[V, V] | None = None) -> list[V]:
    """Answer in the order of the batch. An id that is named again meets what was done for it before: (done, then)."""
    answers = []
    for task_id in ids:
        answers.append(verdicts.get(task_id, unknown))
        if repeated is not None and answers[-1] == repeated[0]:
            verdicts[task_id] = repeated[1]
    return answers


def _restless(task_id: str) -> StoreUnavailable:
    return StoreUnavailable(f"task {task_id} was met nowhere, however often it was looked for; try again, or run `duetime doctor`")


async def retry(run: Runner, sql: Statements, ids: Sequence[str], now: Instant | None) -> list[ChangeVerdict]:
    """Let finished tasks live again, and those that were cancelled because they did not succeed."""
    at = await write_time(run, sql, now)
    live_again: list[str] = []
    verdicts: dict[str, ChangeVerdict] = {}
    open_ids = known_form(ids)
    for _ in range(ROUNDS):
        locations = await locations_of(run, sql, open_ids)
        finals = [task_id for task_id in open_ids if task_id in locations and locations[task_id].state in RETRIABLE]
        verdicts |= {task_id: ChangeVerdict.REFUSED for task_id, location in locations.items() if location.state not in RETRIABLE}
        if finals and await run.rows(sql.lock_flows_of, [finals]):
            passed = {row[0] for row in await run.rows(sql.passed_members, [finals])}
            verdicts |= dict.fromkeys(passed, ChangeVerdict.REFUSED)
            finals = [task_id for task_id in finals if task_id not in passed]
        if finals:
            # those that somebody else takes back at this moment are not locked, and are live when we look again
            locked = {row[0]: row[1] for row in await run.rows(sql.lock_finals, [finals, 0])}
            chosen = [task_id for task_id in finals if task_id in locked]
            oldest = min(locked.values(), default=0)
            revived = {row[0] for row in await run.rows(sql.revive, [at, chosen, oldest])} if chosen else set()
            live_again += revived
            if revived:
                await run.rows(sql.insert_returns, [sorted(revived)])
            verdicts |= {task_id: ChangeVerdict.CHANGED if task_id in revived else ChangeVerdict.DUPLICATE for task_id in chosen}
        open_ids = [task_id for task_id in finals if task_id not in verdicts]
        if not open_ids:
            break
    else:
        raise _restless(open_ids[0])
    while live_again:
        await run.rows(sql.forget_vain, [live_again])
        live_again = await _revive_children(run, sql, live_again, at)
    return _answers(ids, verdicts, ChangeVerdict.UNKNOWN, repeated=(ChangeVerdict.CHANGED, ChangeVerdict.REFUSED))


async def _revive_children(run: Runner, sql: Statements, parents: Sequence[str], at: Instant) -> list[str]:
    """Let children wait again that were cancelled in vain, if nothing else of what they need has failed; return their ids."""
    rows = await run.rows(sql.lock_vain, [parents])
    needed = sorted({row[1] for row in rows})
    live = {row[0] for row in await run.rows(sql.lock_parents, [needed])} if needed else set()
    ended = await records_by_id(run, sql, [parent for parent in needed if parent not in live])
    for record in ended.values():
        if record.finished_at is None:
            raise _restless(record.id)
    waits: dict[str, dict[str, str]] = {}
    hopeless: set[str] = set()
    for child, parent, needs in rows:
        open_edges = waits.setdefault(child, {})
        if parent in live:
            open_edges[parent] = needs
        elif needs == "success" and (parent not in ended or ended[parent].state is not State.SUCCEEDED):
            hopeless.add(child)
    chosen = sorted(waits.keys() - hopeless)
    locked = {row[0]: row[1] for row in await run.rows(sql.lock_finals, [chosen, 0])} if chosen else {}
    oldest = min(locked.values(), default=0)
    revived = sorted(row[0] for row in await run.rows(sql.revive, [at, sorted(locked), oldest])) if locked else []
    if revived:
        await run.rows(sql.hold, [revived, [len(waits[child]) for child in revived]])
        edges = [(child, parent, needs) for child in revived for parent, needs in waits[child].items()]
        await run.rows(sql.add_edges, [list(column) for column in zip(*edges, strict=True)])
    return revived


class Move(NamedTuple):
    """An edit of one waiting task: the lane it was chosen for, the new lane, and new due time and payload if there are any."""

    id: str
    former: int
    lane: int
    due_at: Instant | None
    payload: str | None


async def edit(
    transact: Transact, sql: Statements, edits: Sequence[Edit], now: Instant | None, lane: Callable[[str, str, int], Awaitable[int]]
) -> list[ChangeVerdict]:
    """Move waiting tasks in time or to another lane, and give others another payload.

    Lanes are found, and made, before the transaction begins: a lane must exist whatever becomes of it, and a verb that
    waits for a second connection while it holds one can wait for ever. A task that changed its lane meanwhile is tried again.
    """
    changes: dict[str, Edit] = {}
    for change in edits:
        changes[change.id] = both(changes.get(change.id), change)
    if len(changes) < len(edits) and any(change.seen is not None for change in edits):
        # what the second edit of a task meets is what the first has made of it, so they cannot be joined
        return [(await edit(transact, sql, [change], now, lane))[0] for change in edits]
    seen = {change.id: change.seen for change in edits if change.seen is not None}
    verdicts: dict[str, ChangeVerdict] = {}
    open_ids = known_form(changes)
    moves: list[Move] = []
    ended: list[str] = []

    async def look(run: Runner) -> tuple[dict[str, Location], set[str]]:
        locations = await locations_of(run, sql, open_ids)
        return locations, await _outdated(run, sql, {task_id: seen[task_id] for task_id in locations if task_id in seen})

    async def write(run: Runner) -> dict[str, ChangeVerdict]:
        return await write_moves(run, sql, moves, seen, now)

    async def repair(run: Runner) -> dict[str, ChangeVerdict]:
        return await repair_payloads(run, sql, {task_id: changes[task_id] for task_id in ended}, seen)

    for _ in range(ROUNDS):
        locations, outdated = await transact(look)
        ended = [task_id for task_id in locations if locations[task_id].state in RETRIABLE and changes[task_id].repairs]
        refused = (task_id for task_id, location in locations.items() if location.state is not State.PENDING and task_id not in ended)
        verdicts |= dict.fromkeys(refused, ChangeVerdict.REFUSED) | dict.fromkeys(outdated, ChangeVerdict.OUTDATED)
        ended = [task_id for task_id in ended if task_id not in verdicts]
        waiting = [task_id for task_id in open_ids if task_id in locations and task_id not in verdicts and task_id not in ended]
        moves = [await move_of(changes[task_id], locations[task_id], lane) for task_id in waiting]
        if moves:
            verdicts |= await transact(write)
        if ended:
            verdicts |= await transact(repair)
        open_ids = [task_id for task_id in (*waiting, *ended) if task_id not in verdicts]
        if not open_ids:
            break
    else:
        raise _restless(open_ids[0])
    return _answers([change.id for change in edits], verdicts, ChangeVerdict.UNKNOWN)


async def write_moves(
    run: Runner, sql: Statements, moves: Sequence[Move], seen: dict[str, TaskRecord], now: Instant | None
) -> dict[str, ChangeVerdict]:
    """Change waiting tasks that are still in the lanes they were seen in; those without a verdict are not."""
    at = await write_time(run, sql, now)
    ids = [move.id for move in moves]
    locked = {row[0] for row in await run.rows(sql.lock_waiting, [ids])}
    # a statement that waited for a lock does not see what its holder has written; the next statement does
    outdated = await _outdated(run, sql, {task_id: seen[task_id] for task_id in ids if task_id in seen})
    # one that was seen and has moved away from under the lock is looked at again
    chosen = [move for move in moves if move.id not in outdated and (move.id not in seen or move.id in locked)]
    columns = [list(column) for column in zip(*chosen, strict=True)]
    changed = await run.rows(sql.edit_waiting, [at, *columns]) if chosen else []
    others = [move.id for move in chosen if move.payload is not None]
    if others:
        await run.rows(sql.unpark, [at, others])
    return dict.fromkeys(outdated, ChangeVerdict.OUTDATED) | {row[0]: ChangeVerdict.CHANGED for row in changed}


async def repair_payloads(run: Runner, sql: Statements, changes: dict[str, Edit], seen: dict[str, TaskRecord]) -> dict[str, ChangeVerdict]:
    """Give tasks that have ended another payload; those without a verdict are live again."""
    locked = {row[0]: row[1] for row in await run.rows(sql.lock_finals, [list(changes), 0])}
    outdated = await _outdated(run, sql, {task_id: seen[task_id] for task_id in locked if task_id in seen})
    chosen = [task_id for task_id in locked if task_id not in outdated]
    payloads = [_text(changes[task_id].payload) for task_id in chosen]
    await run.rows(sql.edit_finals, [chosen, payloads, min(locked.values(), default=0)])
    return dict.fromkeys(outdated, ChangeVerdict.OUTDATED) | dict.fromkeys(chosen, ChangeVerdict.CHANGED)


async def _outdated(run: Runner, sql: Statements, seen: dict[str, TaskRecord]) -> set[str]:
    """Return which tasks are not as they were seen."""
    found = await all_records_by_id(run, sql, seen) if seen else {}
    return {task_id for task_id, record in seen.items() if found.get(task_id) != record}


def both(first: Edit | None, then: Edit) -> Edit:
    """Return the edit that does what two edits of the same task do."""
    if first is None:
        return then
    return Edit(
        id=then.id,
        due_at=first.due_at if then.due_at is None else then.due_at,
        priority=first.priority if then.priority is None else then.priority,
        collection=first.collection if then.collection is None else then.collection,
        payload=first.payload if then.payload is None else then.payload,
    )


async def move_of(change: Edit, location: Location, lane: Callable[[str, str, int], Awaitable[int]]) -> Move:
    collection = location.collection if change.collection is None else change.collection
    priority = location.priority if change.priority is None else change.priority
    same = (collection, priority) == (location.collection, location.priority)
    chosen = location.lane if same else await lane(location.handler, collection, priority)
    return Move(change.id, location.lane, chosen, change.due_at, _text(change.payload))


def _text(payload: bytes | None) -> str | None:
    return None if payload is None else payload.decode()


async def drop(run: Runner, sql: Statements, limit: int, now: Instant | None) -> int:
    """Record due tasks under drop gates as dropped, at most `limit`."""
    gates = await read_gates(run, sql, now)
    handlers = sorted({gate.handler for gate in gates if gate.action is GateAction.DROP})
    if not handlers:
        return 0
    at = await write_time(run, sql, now)
    lanes = []
    for lane, handler, collection in await run.rows(sql.lanes_of_handlers, [handlers]):
        gate = gates.holding(handler, collection or None, at)
        if gate is not None and gate.action is GateAction.DROP:
            lanes.append(lane)
    taken = await run.rows(sql.take_due, [at, lanes, limit]) if lanes else []
    doubtful = [row[0] for row in taken if row[4]]
    if doubtful:
        repeats = {row[0] for row in await run.rows(sql.forget_repeats, [doubtful])}
        taken = [row for row in taken if row[0] not in repeats]
    if taken:
        columns = [[row[column] for row in taken] for column in range(4)]
        await run.rows(sql.end_taken, [at, State.DROPPED.value, *columns])
    parked = [row[0] for row in await run.rows(sql.parked_in, [at, lanes, limit - len(taken)])] if lanes else []
    return len(taken) + (len(await run.rows(sql.end_waiting, [at, State.DROPPED.value, parked])) if parked else 0)


async def expire(run: Runner, sql: Statements, limit: int, now: Instant | None) -> int:
    """Record waiting tasks past their expiry as expired."""
    at = await write_time(run, sql, now)
    late = [row[0] for row in await run.rows(sql.expired_tasks, [at, limit])]
    if not late:
        return 0
    locked = [row[0] for statement in (sql.lock_expired_held, sql.lock_expired_due) for row in await run.rows(statement, [at, late])]
    return len(await run.rows(sql.end_waiting, [at, State.EXPIRED.value, locked])) if locked else 0


async def declare(run: Runner, sql: Statements, declarations: Sequence[Declaration], now: Instant) -> bool:
    """Record what is new; return whether a handler has other names now, which gates depend on, or is fair now and was not."""
    stamped = {(each.name, each.digest): msgspec.structs.replace(each, declared_at=now) for each in declarations}
    columns = [[name for name, _ in stamped], [digest for _, digest in stamped], [write_json(each) for each in stamped.values()]]
    new = [row[0] for row in await run.rows(sql.put_handlers, columns)]
    if not new:
        return False
    await run.rows(sql.forget_handlers, [new])
    names = await read_names(run, sql)
    renamed = [each for each in declarations if each.name in new and {*names.all(each.name)} != {each.name, *each.aliases}]
    for each in renamed:
        await run.rows(sql.lock_gates)
        await run.rows(sql.forget_aliases, [each.name])
        await run.rows(sql.put_aliases, [each.name, list(each.aliases)])
        await run.rows(sql.move_weights, [each.name, list(each.aliases)])
    changed = await declare_fair(run, sql, {each.name: each.fair for each in declarations if each.name in new}) or bool(renamed)
    if changed:
        await next_version(run, sql)
    return changed


class Changing(OpenSchema):
    """Changes tasks that were added."""

    async def cancel(self, ids: Sequence[str]) -> list[CancelVerdict]:
        if not ids:
            return []
        verdicts = await cancel(self._opened.transaction, self._sql, ids, self._clock.parameter)
        if CancelVerdict.CANCELLING in verdicts:
            self._hint(HintKind.CANCEL)
        if CancelVerdict.CANCELLED in verdicts:
            self._hint(HintKind.DONE)
            self._hint(HintKind.DUE)  # a child may have waited only for its end
        return verdicts

    async def retry(self, ids: Sequence[str]) -> list[ChangeVerdict]:
        if not ids:
            return []
        verdicts = await self._opened.transaction(lambda run: retry(run, self._sql, ids, self._clock.parameter))
        self._hint(HintKind.DUE)
        return verdicts

    async def delete(self, ids: Sequence[str]) -> list[DeleteVerdict]:
        if not ids:
            return []
        verdicts = await delete(self._opened.transaction, self._sql, ids, self._clock.parameter)
        if DeleteVerdict.DELETED in verdicts:
            self._hint(HintKind.DONE)
            self._hint(HintKind.DUE)  # a child may have waited only for its end
        return verdicts

    async def edit(self, edits: Sequence[Edit]) -> list[ChangeVerdict]:
        if not edits:
            return []
        verdicts = await edit(self._opened.transaction, self._sql, edits, self._clock.parameter, self._lane_id)
        self._hint(HintKind.DUE)
        return verdicts

    async def _lane_id(self, handler: str, collection: str, priority: int) -> int:
        await self._lanes.ensure([(handler, collection, priority)])
        return self._lanes[handler, collection, priority].id


class Sweeping(OpenSchema):
    """Ends tasks that nobody is going to run."""

    async def drop(self, limit: int) -> int:
        return await self._sweep(lambda run: drop(run, self._sql, limit, self._clock.parameter))

    async def expire(self, limit: int) -> int:
        return await self._sweep(lambda run: expire(run, self._sql, limit, self._clock.parameter))

    async def _sweep(self, job: Callable[[Runner], Awaitable[int]]) -> int:
        changed = await self._opened.transaction(job)
        if changed:
            self._hint(HintKind.DONE)
            self._hint(HintKind.DUE)  # a child may have waited only for its end
        return changed


class Declarations(OpenSchema):
    """Where the declarations of handlers live."""

    async def declare(self, declarations: Sequence[Declaration]) -> None:
        if not declarations:
            return
        renamed = await self._opened.transaction(lambda run: declare(run, self._sql, declarations, self._clock.now()))
        if renamed:
            self._hint(HintKind.GATES)

    async def declarations(self, *, former: bool = False) -> list[Declaration]:
        return [_decode_declaration(text) for (text,) in await self._opened.rows(self._sql.all_handlers, [former])]
