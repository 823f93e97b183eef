"""What happens to new tasks before they are stored: handler and payload are checked, submitter and hooks' meta added."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from duetime.errors import DuetimeError, InvalidHandler, InvalidPayload, InvalidValue, PayloadTooLarge, UnknownHandler
from duetime.model.task import DEFAULT_PRIORITY, MAX_PAYLOAD, NewTask, check_meta
from duetime.store.values import Declaration
from duetime.targets.schema import misfit
from duetime.targets.spec import HandlerSpec

_logger = logging.getLogger("duetime")

R = TypeVar("R")
SubmitHook: TypeAlias = Callable[[NewTask[Any]], Mapping[str, str] | None]

# In a new task this means "the priority that the handler declares", for callers that do not have the handler's code.
HANDLERS_OWN = -1


class Declarations(Protocol):
    """Where declared handlers are looked up: a store, or a server."""

    async def declarations(self) -> Sequence[Declaration]: ...

    async def declare(self, declarations: Sequence[Declaration]) -> None: ...


class Admission:
    """Checks and completes new tasks. Suspends only when it must read from the store, never for what it has read before."""

    def __init__(self, known: Declarations, *, user: str, own: Callable[[str], bool], hooks: Sequence[SubmitHook]) -> None:
        self._known = known
        self._user = user
        self._own = own
        self._hooks = hooks
        self._declared: dict[str, Declaration] = {}
        self._tolerated: set[str] = set()

    async def check(self, tasks: Sequence[NewTask[Any]], *, allow_unknown: bool) -> None:
        """Raise for the first task that may not be stored."""
        refuse_others(tasks)
        foreign = [task for task in tasks if not self._own(task.handler)]
        if foreign:
            await self._check_foreign(foreign, allow_unknown)

    async def admit(self, task: NewTask[R], *, allow_unknown: bool = False) -> NewTask[R]:
        """Check and complete one task."""
        await self.check([task], allow_unknown=allow_unknown)
        return self.complete(task)

    async def faults(self, tasks: Sequence[NewTask[Any]]) -> dict[int, DuetimeError]:
        """Return what is wrong with tasks that may not be stored, by index. Reads from the store at most once, however many are wrong."""
        foreign = [index for index, task in enumerate(tasks) if not self._own(task.handler)]
        found = self._misfits(tasks, foreign)
        if found:
            await self._refresh()
            found = self._misfits(tasks, list(found))
        return found

    def _misfits(self, tasks: Sequence[NewTask[Any]], indexes: Sequence[int]) -> dict[int, DuetimeError]:
        schemas: dict[str, Mapping[str, Any] | UnknownHandler] = {}
        found: dict[int, DuetimeError] = {}
        for index in indexes:
            task = tasks[index]
            schema = schemas.get(task.handler)
            if schema is None:
                declared = self._declared.get(task.handler)
                schema = self._unknown(task.handler) if declared is None else msgspec.json.decode(declared.schema)
                schemas[task.handler] = schema
            if isinstance(schema, UnknownHandler):
                found[index] = schema
                continue
            try:
                _check(task.handler, schema, task.payload)
            except InvalidPayload as error:
                found[index] = error
        return found

    def complete(self, task: NewTask[R]) -> NewTask[R]:
        """Return a checked task with everything filled in that its caller left open."""
        changes: dict[str, Any] = {}
        if not task.submitted_by:
            changes["submitted_by"] = self._user
        if task.priority == HANDLERS_OWN:
            changes["priority"] = self.priority_of(task.handler)
        if self._hooks:
            meta = dict(task.meta or {})
            for hook in self._hooks:
                meta.update(hook(task) or {})
            changes["meta"] = check_meta(meta) or None
        return msgspec.structs.replace(task, **changes) if changes else task

    def priority_of(self, handler: str) -> int:
        """Return the priority that a handler declares. The handler must have been checked before."""
        declared = self._declared.get(handler)
        return DEFAULT_PRIORITY if declared is None else declared.priority

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
        known = {each.name: each for each in await self._known.declarations()}
        mine = [_declaration(spec, known.get(spec.name)) for spec in specs]
        await self._known.declare([each for each in mine if each != known.get(each.name)])

    def _unknown(self, handler: str) -> UnknownHandler:
        hint = self._meant(handler) or "start a worker that declares it, or allow_unknown=True"
        return UnknownHandler(f"no process that opened this store has declared a handler {handler!r}; {hint}")

    def _meant(self, handler: str) -> str:
        meant = difflib.get_close_matches(handler, self._declared, 1)
        return f"did you mean {meant[0]}?" if meant else ""

    async def _refresh(self) -> None:
        self._declared = {declaration.name: declaration for declaration in await self._known.declarations()}

    async def _check_foreign(self, tasks: Sequence[NewTask[Any]], allow_unknown: bool) -> None:
        missing = {task.handler for task in tasks} - self._declared.keys()
        if missing and not (allow_unknown and missing <= self._tolerated):
            await self._refresh()
            if allow_unknown:
                self._tolerated |= missing
        try:
            await self._fit(tasks, allow_unknown)
        except InvalidPayload:
            # the handler may have been declared again, with other parameters, since it was read
            await self._refresh()
            await self._fit(tasks, allow_unknown)

    async def _fit(self, tasks: Sequence[NewTask[Any]], allow_unknown: bool) -> None:
        schemas: dict[str, Mapping[str, Any]] = {}
        for task in tasks:
            if len(task.payload) > MAX_PAYLOAD:
                raise PayloadTooLarge(
                    f"{task.handler}: the payload has {len(task.payload):,} bytes and at most {MAX_PAYLOAD:,} are allowed"
                )
            if task.handler not in schemas:
                known = task.handler in self._declared or not allow_unknown
                schemas[task.handler] = msgspec.json.decode((await self.declaration(task.handler)).schema) if known else {}
            _check(task.handler, schemas[task.handler], task.payload)


def refuse_others(tasks: Sequence[object]) -> None:
    """Raise for anything that is not a new task."""
    for task in tasks:
        if not isinstance(task, NewTask):
            raise InvalidValue(f"only new tasks can be submitted, as handler.new(…) makes them; got {type(task).__name__}")


def _declaration(spec: HandlerSpec, known: Declaration | None) -> Declaration:
    try:
        schema = spec.payloads.schema()
    except InvalidHandler as error:  # an error only matters once that handler is used
        _logger.warning("handler %s is declared without a payload schema: %s", spec.name, error)
        schema = b"{}"
    return Declaration(
        name=spec.name,
        schema=schema,
        doc=spec.doc,
        timeout=spec.timeout,
        priority=spec.priority,
        concurrency=spec.concurrency,
        isolation=spec.target.kind,
        retry=spec.retry.numbers(),
        declared_at=0 if known is None else known.declared_at,
    )


def _check(handler: str, schema: Mapping[str, Any], payload: bytes) -> None:
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidPayload(f"{handler}: the payload is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidPayload(f"{handler}: the payload must be a JSON object of named arguments")
    found = misfit(schema, value)
    if found is not None:
        raise InvalidPayload(f"{handler}: {found.path} {found.problem}", field=found.path)
