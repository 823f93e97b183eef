"""A handler as it is declared: its target, its parameters and its policies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from duetime.model.disabling import Disabling
from duetime.model.fairness import Fair
from duetime.model.limit import Limit
from duetime.model.quota import Quota
from duetime.model.retry import RetryPolicy
from duetime.model.task import State

if TYPE_CHECKING:
    from duetime.targets.host import TargetHost
    from duetime.targets.target import Target

DEFAULT_TIMEOUT = 300.0
DEFAULT_CONCURRENCY = 50
DEFAULT_PROCESSES = os.cpu_count() or 1  # of a handler in sub-processes: more of them at once only take longer


class Payloads(Protocol):
    """A handler's parameters: binds calls when submitting, decodes payloads when running."""

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
        """Validate a call and return its payload, a JSON object of the given arguments."""
        ...

    def decode(self, payload: bytes | str) -> dict[str, Any]:
        """Validate a stored payload and return the keyword arguments; UnfitPayload if it does not fit."""
        ...

    def decode_result(self, result: bytes | None) -> Any:
        """Return a stored result in its declared type, or as plain JSON if it does not fit that."""
        ...

    def positional_decoder(self) -> Callable[[str], tuple[Any, ...]] | None:
        """Return a function that decodes into positional arguments, which is quicker; None if the handler cannot be called with such."""
        ...

    def takes_results(self, name: str) -> bool:
        """Return whether a parameter may be a stream of results: `Results[…]`."""
        ...

    def schema(self) -> bytes:
        """Return the JSON Schema of the payload."""
        ...

    def upgrades(self) -> str:
        """Return a text that changes with the code that reads payloads of former schemas; empty if there is none."""
        ...


class TargetSpec(Protocol):
    """How a handler's attempts are performed, as it is declared; the same in every process."""

    @property
    def kind(self) -> str:
        """What the handler's declaration says of it, for people."""
        ...

    def open(self, handler: HandlerSpec, host: TargetHost) -> Target:
        """Return what performs the attempts in one worker, whose targets share `host`."""
        ...


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One declared handler. `keep`: for how many seconds its finished tasks are kept, by state; of others the settings say it.

    `disabling`: its target is watched, because it may break as a whole. `limits` of the whole fleet, which it may share with others.
    `reserve`: how many slots are kept for tasks of at least that priority. `fair`: what shares its starts, by weight.
    `quota`: how much of it may be submitted. `start_within`: how many seconds after being due its tasks should start at the latest.
    """

    name: str
    target: TargetSpec
    payloads: Payloads
    timeout: float = DEFAULT_TIMEOUT
    retry: RetryPolicy = RetryPolicy()
    concurrency: int = DEFAULT_CONCURRENCY
    priority: int = 5
    aliases: tuple[str, ...] = ()
    keep: Mapping[State, float] = {}
    disabling: Disabling | None = None
    limits: tuple[Limit, ...] = ()
    reserve: Mapping[int, int] = {}
    fair: Fair | None = None
    quota: Quota | None = None
    start_within: float | None = None
    doc: str = ""
