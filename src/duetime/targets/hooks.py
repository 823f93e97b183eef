"""Hooks: functions of the program that are called with events, after the fact."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

from duetime.errors import InvalidHandler
from duetime.model.event import Event, EventFilter

HOOKS = "duetime.hooks"  # in the meta of a task that a hook has submitted
LONGEST_CHAIN = 16

_CHAIN: ContextVar[tuple[str, ...]] = ContextVar("duetime_hooks", default=())


class Hook(msgspec.Struct, frozen=True):
    """A function for some events. Where it stands in the stream is kept under its name."""

    name: str
    filter: EventFilter
    function: Callable[[Any], Any]

    @property
    def follower(self) -> str:
        return f"hook {self.name}"

    async def call(self, event: Event, chain: Sequence[str] = ()) -> None:
        """Call the function: an `async def` here, a `def` in a thread. `chain` names the hooks that have led to the event's task."""
        token = _CHAIN.set((*chain, self.name))
        try:
            if inspect.iscoroutinefunction(self.function):
                await self.function(event)
            else:
                await asyncio.to_thread(self.function, event)
        finally:
            _CHAIN.reset(token)


def note_chain(meta: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return the meta of a task that is submitted now: inside a hook it names the hooks that have led to it."""
    chain = _CHAIN.get()
    return {**(meta or {}), HOOKS: msgspec.json.encode(chain[-LONGEST_CHAIN:]).decode()} if chain else meta


def chain_of(meta: Mapping[str, str] | None) -> list[str]:
    """Return the hooks that have led to a task. One that is among them is not called again for it: that would never end."""
    try:
        return msgspec.json.decode((meta or {}).get(HOOKS, "[]"), type=list[str])
    except msgspec.DecodeError:
        return []


def hook_name(function: Callable[..., Any]) -> str:
    """Return the name of a hook that was given none: where its function is defined."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        raise InvalidHandler(f"a hook of {function!r} needs a name: @app.on(…, name=…)")
    return f"{getattr(function, '__module__', '?')}.{name}"


def check_function(function: Callable[..., Any]) -> None:
    """Refuse what cannot be called with one event."""
    if not callable(function):
        raise InvalidHandler(f"a hook must be a function of one event, got {function!r}")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise InvalidHandler(f"a hook must be a function of one event, such as `async def note(event): …`, got {function!r}") from None
