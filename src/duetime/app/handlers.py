"""Handlers as their callers see them: typed ways to submit, and the options of one call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeAlias, TypeVar, cast, get_args

import msgspec

from duetime.client.activity import USUAL_UPCOMING
from duetime.client.client import HANDLERS_OWN
from duetime.client.insight import HandlerDetails
from duetime.clock import LATEST, SECOND, Instant, Seconds, to_instant, to_micros, to_seconds
from duetime.errors import InvalidHandler, InvalidPayload, InvalidValue
from duetime.ids import key_shard, new_id
from duetime.model.flow_values import holds_values, is_stream, marked
from duetime.model.merging import Pace
from duetime.model.needs import Need, edges_of
from duetime.model.retry import RetryPolicy
from duetime.model.task import (
    Edge,
    IfExists,
    NewTask,
    Task,
    check_meta,
    check_name,
    check_priority,
    delay_micros,
    due_instant,
)
from duetime.targets.payload import FunctionPayloads, OpenPayloads
from duetime.targets.python.function import function_of
from duetime.targets.spec import HandlerSpec, Payloads
from duetime.targets.upgrades import Upgrade

P = ParamSpec("P")
R = TypeVar("R")
F_co = TypeVar("F_co", bound=Callable[..., object], covariant=True)


class Submitter(Protocol):
    """What a handler submits through: the App or the group that declared it."""

    user: str

    async def handler_info(self, name: str) -> HandlerDetails: ...

    async def upcoming(self, handler: str, limit: int) -> list[Task[Any]]: ...

    def submit(
        self, task: NewTask[R], /, *, connection: object | None = None, allow_unknown: bool = False
    ) -> Coroutine[Any, Any, Task[R]]: ...


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How one task differs from its handler's defaults; checked, and in the units of a NewTask."""

    key: str | None = None
    if_exists: IfExists = "error"
    collection: str | None = None
    timeout: float | None = None
    retry: bytes | None = None
    expires_at: Instant | None = None
    expires_in: int | None = None
    meta: Mapping[str, str] | None = None
    edges: tuple[Edge, ...] = ()
    pace: Pace | None = None
    connection: object | None = None
    allow_unknown: bool = False


_NO_OPTIONS = Options()

AnyHandler: TypeAlias = "Handler[..., Any, Callable[..., Any]]"


class Handler(Generic[P, R, F_co]):
    """A declared handler: call it as the function that it is, or submit tasks to it.

    `P` are the function's parameters without the context, `R` its result without the coroutine, `F` the function as written.
    """

    def __init__(self, name: str, payloads: Payloads, home: Submitter, *, spec: HandlerSpec | None = None) -> None:
        self.name = name
        self.spec = spec
        self._payloads = payloads
        self._home = home
        self._options = _NO_OPTIONS
        self._chosen: dict[
            str, Any
        ] = {}  # the options that tasks carry, where they were chosen: to name all takes as long as the rest of a task
        self._priority = HANDLERS_OWN if spec is None else spec.priority
        function = None if spec is None else function_of(spec)
        if function is not None:
            functools.update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        return f"<handler {self.name}>"

    @property
    def __call__(self) -> F_co:
        """Call the function itself, here and now; no task is made."""
        function = None if self.spec is None else function_of(self.spec)
        if function is None:
            what = "known by name only" if self.spec is None else "not a Python function"
            raise InvalidHandler(f"{self.name} is {what} and cannot be called here; submit it with .now(…), .after(…) or .at(…)")
        return cast(F_co, function)

    def now(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Task[R]]:
        """Submit a task that is due at once."""
        return self._submit(self._new_task(args, kwargs))

    def after(self, delay: Seconds, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Task[R]]:
        """Submit a task that is due `delay` after it is stored."""
        return self._submit(self._new_task(args, kwargs, delay=delay_micros(delay)))

    def at(self, when: datetime, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Task[R]]:
        """Submit a task that is due at an instant; a past instant means at once."""
        return self._submit(self._new_task(args, kwargs, due_at=due_instant(when)))

    def new(self, /, *args: P.args, **kwargs: P.kwargs) -> NewTask[R]:
        """Make a task without submitting it, for `app.submit` and `app.submit_many`. Its `.at` and `.after` set the due time."""
        if self._options.connection is not None or self._options.allow_unknown:
            raise InvalidValue("a new task carries neither connection nor allow_unknown; give them to app.submit or app.submit_many")
        try:
            return self._new_task(args, kwargs)
        except (InvalidPayload, TypeError):  # asked only then: nearly all tasks have none
            if not holds_values(kwargs) and not holds_values(args):
                raise
        return self._with_values(args, kwargs)

    def _with_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewTask[R]:
        """Make a task of a flow that takes values from other nodes; it is checked against its handler when they are known."""
        if args:
            raise InvalidPayload(f"{self.name}: arguments beside values of other nodes must be named")
        schema = msgspec.json.decode(self._payloads.schema())
        known, needed = schema.get("properties", {}), schema.get("required", [])
        wrong = [name for name in kwargs if known and name not in known] or [name for name in needed if name not in kwargs]
        if wrong:
            raise InvalidPayload(f"{self.name}: {wrong[0]} is {'missing' if wrong[0] not in kwargs else 'no parameter'}", field=wrong[0])
        listed = [name for name, value in kwargs.items() if is_stream(value) and not self._payloads.takes_results(name)]
        if listed:
            raise InvalidPayload(
                f"{self.name}: {listed[0]} takes no stream; annotate it as Results[…], or give it .values", field=listed[0]
            )
        payload = msgspec.json.encode(kwargs, enc_hook=marked)
        return self._made(payload)

    def options(
        self,
        *,
        key: str | None = None,
        if_exists: IfExists | None = None,
        collection: str | None = None,
        priority: int | None = None,
        timeout: Seconds | None = None,
        retry: RetryPolicy | None = None,
        expires: Seconds | datetime | None = None,
        meta: Mapping[str, str] | None = None,
        needs: Sequence[Need] | None = None,
        debounce: Seconds | None = None,
        max_wait: Seconds | None = None,
        throttle: Seconds | None = None,
        connection: object | None = None,
        allow_unknown: bool | None = None,
    ) -> Self:
        """Return the same handler with other options for the tasks submitted through it; options that are left out stay as they are.

        `expires` as a duration counts from the due time. `needs` are tasks that must succeed before it starts, or only end: `ended(task)`;
        if one cannot succeed any more, it is cancelled. `connection` is the caller's own, with an open transaction.

        `debounce`: the task starts once nothing with its key was submitted for so long, with the newest arguments, but at the latest
        `max_wait` after the first one. `throttle`: within so long one task with this key is stored; others are answered with it.
        """
        changes: dict[str, Any] = {}
        if key is not None:
            changes["key"] = check_name(key, "key")
        if if_exists is not None:
            changes["if_exists"] = one_of("if_exists", if_exists, get_args(IfExists))
        if collection is not None:
            changes["collection"] = check_name(collection, "collection")
        if timeout is not None:
            changes["timeout"] = positive(timeout, "timeout")
        if retry is not None:
            changes["retry"] = stored_policy(retry)
        if isinstance(expires, datetime):
            changes.update(expires_at=to_instant(expires, "expires"), expires_in=None)
        elif expires is not None:
            positive(expires, "expires")
            changes.update(expires_at=None, expires_in=to_micros(expires, "expires"))
        if meta is not None:
            changes["meta"] = check_meta({**(self._options.meta or {}), **meta})
        if needs is not None:
            changes["edges"] = edges_of(needs)
        if debounce is not None or max_wait is not None or throttle is not None:
            changes["pace"] = pace_of(self._options.pace, debounce, max_wait, throttle)
        if connection is not None:
            changes["connection"] = connection
        if allow_unknown is not None:
            changes["allow_unknown"] = allow_unknown
        other = object.__new__(type(self))
        other.__dict__ = self.__dict__.copy()
        other._options = options = _paced(msgspec.structs.replace(self._options, **changes))
        other._chosen = {**self._chosen, **changes}
        if options.pace is not None:
            other._chosen["if_exists"] = options.if_exists
        if connection is not None or allow_unknown is not None:  # they are not the task's
            other._chosen = {name: value for name, value in other._chosen.items() if name not in ("connection", "allow_unknown")}
        if priority is not None:
            other._priority = check_priority(priority)
        return other

    async def info(self) -> HandlerDetails:
        """Return what the handler does: what runs, when its last attempt began and ended, where and how, and when its next task is due.

        Raises UnknownHandler if no process has declared it.
        """
        return await self._home.handler_info(self.name)

    async def upcoming(self, limit: int = USUAL_UPCOMING) -> list[Task[R]]:
        """Return its waiting tasks in the order in which they are due: what has been due longest is first."""
        return await self._home.upcoming(self.name, limit)

    def upgrade(self, function: Upgrade) -> Upgrade:
        """Declare a function that turns a payload from before a change of the parameters into a present one: `@handler.upgrade`.

        It is given a stored payload that does not fit, as a dict, and returns the payload to run with. Several are tried in the order in
        which they are declared, each with the payload as it was stored; the first whose payload fits is taken. One that raises does
        not apply. What is stored does not change.
        """
        payloads = self._payloads
        if not isinstance(payloads, FunctionPayloads):
            raise InvalidHandler(f"{self.name} is known by name only; declare its upgrades where its function is")
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise InvalidHandler(f"{self.name}: an upgrade is a function from the former payload, a dict, to the new one, got {function!r}")
        payloads.upgrade_with(function)
        return function

    def _new_task(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, due_at: Instant | None = None, delay: int = 0) -> NewTask[R]:
        return self._made(self._payloads.bind(args, kwargs), due_at=due_at, delay=delay)

    def _made(self, payload: bytes, *, due_at: Instant | None = None, delay: int = 0) -> NewTask[R]:
        options = self._options
        if options is _NO_OPTIONS:
            return NewTask(
                id=new_id(),
                handler=self.name,
                payload=payload,
                due_at=due_at,
                delay=delay,
                priority=self._priority,
                submitted_by=self._home.user,
            )
        if options.pace is not None:
            check_paced(options.key, options.pace, whole=due_at is None and not delay)
        return NewTask(
            id=new_id(None if options.key is None else key_shard(self.name, options.key)),
            handler=self.name,
            payload=payload,
            due_at=due_at,
            delay=delay,
            priority=self._priority,
            submitted_by=self._home.user,
            **self._chosen,
        )

    def _submit(self, task: NewTask[R]) -> Coroutine[Any, Any, Task[R]]:
        return self._home.submit(task, connection=self._options.connection, allow_unknown=self._options.allow_unknown)


def by_name(name: str, home: Submitter) -> AnyHandler:
    """Return a handler of which only the name is known."""
    return Handler(check_name(name, "the name of a handler"), OpenPayloads(name), home)


def one_of(what: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise InvalidValue(f"{what} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def positive(duration: Seconds, what: str) -> float:
    seconds = to_seconds(duration, what)
    if seconds <= 0:
        raise InvalidValue(f"{what} must be positive, got {duration}")
    return seconds


def not_negative(duration: Seconds, what: str) -> float:
    seconds = to_seconds(duration, what)
    if seconds < 0:
        raise InvalidValue(f"{what} must not be negative, got {duration}")
    return seconds


def pace_of(before: Pace | None, debounce: Seconds | None, max_wait: Seconds | None, throttle: Seconds | None) -> Pace:
    """Return how often a key starts tasks, checked; what is left out stays as it was before."""
    given = {"debounce": debounce, "max_wait": max_wait, "throttle": throttle}
    micros = {name: round(positive(value, name) * SECOND) for name, value in given.items() if value is not None}
    pace = msgspec.structs.replace(before or Pace(), **micros)
    if max(pace.debounce, pace.max_wait, pace.throttle) > LATEST:
        raise InvalidValue("debounce, max_wait and throttle must not lead beyond the year 9999")
    if pace.debounce and pace.throttle:
        raise InvalidValue("debounce and throttle exclude each other: the last of many submissions counts, or the first; choose one")
    if pace.max_wait and not pace.debounce:
        raise InvalidValue("max_wait says how long debounce may put a task off; give debounce too")
    if pace.max_wait and pace.max_wait < pace.debounce:
        raise InvalidValue(f"max_wait must be at least debounce, got {pace.max_wait / SECOND:g} and {pace.debounce / SECOND:g} seconds")
    return pace


def check_paced(key: str | None, pace: Pace, *, whole: bool = True) -> None:
    """Refuse a pace of tasks without a key, and a due time beside debounce."""
    if key is None:
        raise InvalidValue(f"{'debounce' if pace.debounce else 'throttle'} is about submissions with one key; give key= too")
    if pace.debounce and not whole:
        raise InvalidValue("debounce says when the task is due: submit it with .now(…)")


def _paced(options: Options) -> Options:
    """Return options with what their pace asks for when a live task has the key."""
    if options.pace is None or options.if_exists == "queue_one":
        return options
    if options.if_exists == "error":
        return msgspec.structs.replace(options, if_exists="queue_one" if options.pace.debounce else "keep")
    if options.pace.debounce:
        raise InvalidValue(f'debounce lets the newest arguments win, so if_exists="{options.if_exists}" cannot be kept; leave it out')
    return options


def policy_or_default(retry: RetryPolicy | None) -> RetryPolicy:
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidValue(f"retry must be a RetryPolicy, for example RetryPolicy(tries=3), got {retry!r}")
    return retry or RetryPolicy()


def stored_policy(retry: RetryPolicy) -> bytes:
    if policy_or_default(retry).only or retry.never:
        raise InvalidValue("the exception types of a retry policy live in code and are not stored: name them in @app.task(retry=…)")
    return retry.numbers()


def slots(concurrency: int) -> int:
    return whole_number(concurrency, "concurrency, the slots in each worker process,")


def whole_number(value: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidValue(f"{what} must be a whole number of at least 1, got {value!r}")
    return value


def aliases_of(aliases: Sequence[str]) -> Sequence[str]:
    if isinstance(aliases, str):
        raise InvalidValue(f"aliases is a list of names, got the text {aliases!r}")
    return aliases
