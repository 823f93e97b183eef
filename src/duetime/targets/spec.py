"""A handler as the worker needs it: the code, how to call it, and its policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from duetime.model.retry import RetryPolicy

Isolation: TypeAlias = Literal["auto", "thread", "process"]

DEFAULT_TIMEOUT = 300.0
DEFAULT_CONCURRENCY = 50


class Payloads(Protocol):
    """A handler's parameters: binds calls when submitting, decodes payloads when running."""

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
        """Validate a call and give its payload, a JSON object of the given arguments."""
        ...

    def decode(self, payload: bytes | str) -> dict[str, Any]:
        """Validate a stored payload and give the keyword arguments; InvalidPayload if it does not fit."""
        ...

    def in_places(self) -> Callable[[str], tuple[Any, ...]] | None:
        """Give a way to decode into positional arguments, which is quicker, where the function may be called with such."""
        ...

    def schema(self) -> bytes:
        """Give the JSON Schema of the payload."""
        ...


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One declared handler. `function` takes the context first if `takes_context`; then only keyword arguments."""

    name: str
    function: Callable[..., Any]
    payloads: Payloads
    takes_context: bool
    is_async: bool
    isolation: Isolation = "auto"
    timeout: float = DEFAULT_TIMEOUT
    retry: RetryPolicy = RetryPolicy()
    concurrency: int = DEFAULT_CONCURRENCY
    priority: int = 5
    aliases: tuple[str, ...] = ()
    doc: str = ""
