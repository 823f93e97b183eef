"""What happens to new tasks before they are stored: handler and payload are checked, submitter and hooks' meta added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from duetime.client.quotas import OwnQuota, Quotas
from duetime.errors import DuetimeError, InvalidPayload, InvalidValue, PayloadTooLarge, UnknownHandler
from duetime.model.task import DEFAULT_PRIORITY, MAX_PAYLOAD, NewTask, check_meta
from duetime.runtime.slices import Slices, off_loop
from duetime.store.values import Declaration
from duetime.targets.declaring import declaration_of
from duetime.targets.hooks import note_chain
from duetime.targets.schema import MOST_STEPS, Steps, TooLong, misfit
from duetime.targets.spec import HandlerSpec

R = TypeVar("R")
Schemas: TypeAlias = tuple[Mapping[str, Any], ...]  # of one handler, the present one first
SubmitHook: TypeAlias = Callable[[NewTask[Any]], Mapping[str, str] | None]

# In a new task this means "the priority that the handler declares", for callers that do not have the handler's code.
HANDLERS_OWN = -1

ON_LOOP = 5_000  # steps of a check that the event loop takes itself, about 10 ms; a longer one is repeated in a thread
MOST_STEPS_AT_ONCE = 2 * MOST_STEPS  # for all payloads of a batch
MOST_HINTS, MOST_COMPARED = 3, 300  # unknown handlers of a batch that get a hint, and names that each is compared with


class Declarations(Protocol):
    """Where declared handlers are looked up: a store, or a server."""

    async def declarations(self, *, former: bool = False) -> Sequence[Declaration]: ...

    async def declare(self, declarations: Sequence[Declaration]) -> None: ...


class Admission:
    """Checks and completes new tasks. Suspends only when it must read from the store, never for what it has read before."""

    def __init__(self, known: Declarations, *, user: str, own: Callable[[str], bool], hooks: Sequence[SubmitHook]) -> None:
        self._known = known
        self._user = user
        self._own = own
        self._hooks = hooks
        self.quotas: Quotas | None = None  # on a store; a server keeps them for who asks it
        self.suggests = True  # whether the refusal of an unknown handler may name another one
        self._declared: dict[str, Declaration] = {}
        self._kept: dict[str, tuple[Declaration, ...]] = {}  # with former ones that workers hold, the present one first
        self._schemas: dict[str, Schemas] = {}  # theirs, decoded when they are first needed
        self._tolerated: set[str] = set()

    async def check(self, tasks: Sequence[NewTask[Any]], *, allow_unknown: bool, on_loop: bool = False) -> None:
        """Raise for the first task that may not be stored. Unless all is to be done `on_loop`, a long check is done in a thread."""
        refuse_others(tasks)
        foreign = [task for task in tasks if not self._own(task.handler)]
        if foreign:
            await self._check_foreign(foreign, allow_unknown, on_loop)

    async def check_handlers(self, tasks: Sequence[NewTask[Any]]) -> None:
        """Raise for the first task whose handler nobody has declared, whatever its payload."""
        refuse_others(tasks)
        for handler in dict.fromkeys(task.handler for task in tasks if not self._own(task.handler)):
            await self.declaration(handler)

    async def admit(self, task: NewTask[R], *, allow_unknown: bool = False, on_loop: bool = False) -> NewTask[R]:
        """Check and complete one task, and take it from its handler's quota unless it is part of the caller's transaction (`on_loop`)."""
        await self.check([task], allow_unknown=allow_unknown, on_loop=on_loop)
        if self.quotas is not None and not on_loop:
            await self.quotas.take([task])
        return self.complete(task)

    async def faults(self, tasks: Sequence[NewTask[Any]]) -> dict[int, DuetimeError]:
        """Return what is wrong with tasks that may not be stored, by index. Reads from the store at most once, however many are wrong."""
        foreign = [index for index, task in enumerate(tasks) if not self._own(task.handler)]
        found = await self._misfits(tasks, foreign)
        if found:
            known = self._declared
            await self._refresh()
            # checked again only if the handler was declared anew; the unknown get their hint by the names that are known now
            again = [
                index
                for index in found
                if (now := self._declared.get(tasks[index].handler)) is None or now != known.get(tasks[index].handler)
            ]
            for index in again:
                del found[index]
            found |= await self._misfits(tasks, again)
        return found

    async def _misfits(self, tasks: Sequence[NewTask[Any]], indexes: Sequence[int]) -> dict[int, DuetimeError]:
        unknown: dict[str, UnknownHandler] = {}
        found: dict[int, DuetimeError] = {}
        slices, steps = Slices(), Steps(MOST_STEPS_AT_ONCE)
        for index in indexes:
            await slices.pause()
            task = tasks[index]
            declared = self._declared.get(task.handler)
            if declared is None:
                if task.handler not in unknown:
                    unknown[task.handler] = self._unknown(task.handler, hint=len(unknown) < MOST_HINTS)
                found[index] = unknown[task.handler]
                continue
            try:
                await self._examine(task, declared, steps)
            except InvalidPayload as error:
                found[index] = error
        return found

    async def _examine(self, task: NewTask[Any], declared: Declaration, left: Steps, *, on_loop: bool = False) -> None:
        """Raise InvalidPayload for a payload that does not match its handler's schema, or whose check takes more steps than there are.

        It may match that of a former declaration: during a deploy there are workers of both.
        """
        schemas = self._schemas.get(task.handler)
        if schemas is None:
            schemas = tuple(msgspec.json.decode(each.schema) for each in self._kept.get(task.handler, (declared,)))
            self._schemas[task.handler] = schemas
        most = min(left.left, MOST_STEPS)
        at_first = most if on_loop else min(most, ON_LOOP)
        try:
            try:
                error, spent = _judge(task.handler, schemas, task.payload, at_first)
            except TooLong:
                if at_first == most:
                    raise
                error, spent = await off_loop(_judge, task.handler, schemas, task.payload, most)
        except TooLong:
            error, spent = InvalidPayload(_too_long(declared, most)), most
        left.left -= spent
        if error is not None:
            raise error

    def complete(self, task: NewTask[R]) -> NewTask[R]:
        """Return a checked task with everything filled in that its caller left open."""
        changes: dict[str, Any] = {}
        if not task.submitted_by:
            changes["submitted_by"] = self._user
        if task.priority == HANDLERS_OWN:
            changes["priority"] = self.priority_of(task.handler)
        meta_with_hooks = note_chain(task.meta)
        if meta_with_hooks is not task.meta:
            changes["meta"] = meta_with_hooks
        if self._hooks:
            meta = dict(meta_with_hooks or {})
            for hook in self._hooks:
                meta.update(hook(task) or {})
            changes["meta"] = check_meta(meta) or None
        return msgspec.structs.replace(task, **changes) if changes else task

    def priority_of(self, handler: str) -> int:
        """Return the priority that a handler declares. The handler must have been checked before."""
        declared = self._declared.get(handler)
        return DEFAULT_PRIORITY if declared is None else declared.priority

    def quota_of(self, handler: str) -> OwnQuota | None:
        """Return the quota that a handler declares. The handler must have been checked before."""
        declared = self._declared.get(handler)
        return None if declared is None or declared.quota is None else OwnQuota(declared.name, declared.quota)

    async def declaration(self, handler: str) -> Declaration:
        """Return the declaration of a handler. Raises UnknownHandler, with the most similar name, if there is none."""
        if handler not in self._declared:
            await self._refresh()
        try:
            return self._declared[handler]
        except KeyError:
            raise self._unknown(handler) from None

    async def declare(self, specs: Iterable[HandlerSpec]) -> None:
        """Store the declarations of handlers, except those that are stored already."""
        known = {(each.name, each.digest) for each in await self._known.declarations(former=True)}
        mine = [declaration_of(spec) for spec in specs]
        await self._known.declare([each for each in mine if (each.name, each.digest) not in known])

    def forget(self) -> None:
        """Forget what was read of handlers, because it has changed."""
        self._declared, self._kept, self._schemas = {}, {}, {}

    def _unknown(self, handler: str, *, hint: bool = True) -> UnknownHandler:
        what = (self._meant(handler) if hint else "") or "start a worker that declares it, or allow_unknown=True"
        return UnknownHandler(f"no process that opened this store has declared a handler {handler!r}; {what}")

    def _meant(self, handler: str) -> str:
        if not self.suggests:
            return ""
        import difflib  # every program would pay for it

        near = sorted(self._declared, key=lambda name: abs(len(name) - len(handler)))[:MOST_COMPARED]
        meant = difflib.get_close_matches(handler, near, 1)
        return f"did you mean {meant[0]}?" if meant else ""

    async def _refresh(self) -> None:
        self.forget()
        for each in await self._known.declarations(former=True):
            self._declared[each.name] = each
            self._kept[each.name] = (each, *self._kept.get(each.name, ()))
        for each in list(self._declared.values()):
            for alias in each.aliases:  # a former name stands for the handler, also where its old code is still declared
                self._kept[alias] = (*self._kept[each.name], *self._kept.get(alias, ()))
                self._declared.setdefault(alias, each)

    async def _check_foreign(self, tasks: Sequence[NewTask[Any]], allow_unknown: bool, on_loop: bool) -> None:
        missing = {task.handler for task in tasks} - self._declared.keys()
        if missing and not (allow_unknown and missing <= self._tolerated):
            await self._refresh()
            if allow_unknown:
                self._tolerated |= missing
        try:
            await self._fit(tasks, allow_unknown, on_loop)
        except InvalidPayload:
            # the handler may have been declared again, with other parameters, since it was read
            known = self._declared
            await self._refresh()
            if all(self._declared.get(task.handler) == known.get(task.handler) for task in tasks):
                raise
            await self._fit(tasks, allow_unknown, on_loop)

    async def _fit(self, tasks: Sequence[NewTask[Any]], allow_unknown: bool, on_loop: bool) -> None:
        for task in tasks:
            if len(task.payload) > MAX_PAYLOAD:
                raise PayloadTooLarge(
                    f"{task.handler}: the payload has {len(task.payload):,} bytes and at most {MAX_PAYLOAD:,} are allowed"
                )
            if task.handler in self._declared or not allow_unknown:
                await self._examine(task, await self.declaration(task.handler), Steps(MOST_STEPS), on_loop=on_loop)
            elif (wrong := _judge(task.handler, ({},), task.payload, MOST_STEPS)[0]) is not None:
                raise wrong


def refuse_others(tasks: Sequence[object]) -> None:
    """Raise for anything that is not a new task."""
    if set(map(type, tasks)) <= {NewTask}:  # it has no subclasses
        return
    for task in tasks:
        if not isinstance(task, NewTask):
            raise InvalidValue(f"only new tasks can be submitted, as handler.new(…) makes them; got {type(task).__name__}")


def _judge(handler: str, schemas: Schemas, payload: bytes, most: int) -> tuple[InvalidPayload | None, int]:
    """Return what is wrong with a payload, and how many steps it took to know. Raises TooLong if `most` are not enough."""
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return InvalidPayload(f"{handler}: the payload is not JSON: {error}"), 0
    if not isinstance(value, dict):
        return InvalidPayload(f"{handler}: the payload must be a JSON object of named arguments"), 0
    steps = Steps(most)
    found = misfit(schemas[0], value, steps)
    if found is not None and any(misfit(schema, value, steps) is None for schema in schemas[1:]):
        found = None
    wrong = None if found is None else InvalidPayload(f"{handler}: {found.path} {found.problem}", field=found.path)
    return wrong, most - steps.left


def _too_long(declared: Declaration, steps: int) -> str:
    if steps < MOST_STEPS:
        return f"{declared.name}: the payloads of this batch take too long to check; send fewer of them at a time"
    owner = "its pull workers declare" if declared.isolation == "pull" else "its program declares"
    return (
        f"{declared.name}: the payload cannot be checked within {steps:,} steps against the schema that {owner}; "
        "send a smaller payload, or let the owner of the handler declare a simpler schema"
    )
