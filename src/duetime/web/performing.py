"""How a handler's attempts are performed, as its page shows it: the kind of target, where it leads, and what it needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from duetime.client.insight import AttemptInfo, HandlerInfo
from duetime.targets.stored.definitions import Definition, StoredCommand, StoredHttp, StoredPublish

PHASES = {"dns": "name", "connect": "connect", "tls": "TLS", "first_byte": "wait", "body": "body", "confirmed": "confirmed"}
SHAPES = {"dns": "pending", "connect": "cancelled", "tls": "blocked", "first_byte": "running", "body": "succeeded", "confirmed": "running"}
IN_CODE = {
    "auto": "code: a coroutine, or a function in a thread",
    "thread": "code: a function in a thread",
    "process": "code: a process of its own",
    "http": "a request, declared in code",
    "command": "a program, declared in code",
    "publish": "a message to a broker, declared in code",
}
STORED = {"http": "a request, stored", "command": "a program, stored", "publish": "a message to a broker, stored"}


class Phase(msgspec.Struct, frozen=True):
    """A part of a request, in seconds. `share` is its width of 24."""

    name: str
    kind: str
    seconds: float
    share: int


def kind_of(info: HandlerInfo) -> str:
    """Return in words how attempts are performed."""
    if info.target is not None and not info.target.shadowed:
        return STORED.get(info.target.kind, info.target.kind)
    return IN_CODE.get(info.isolation, info.isolation)


def leads_to(definition: Definition | None) -> str:
    """Return in one line what a stored target does."""
    match definition:
        case StoredHttp():
            return f"{definition.method} {definition.url}"
        case StoredPublish():
            return f"{definition.to} at {definition.url}"
        case StoredCommand():
            return " ".join(definition.argv or ()) or f"what {definition.artifact} says"
        case _:
            return ""


def artifact_name(definition: Definition | None) -> str | None:
    return definition.artifact if isinstance(definition, StoredCommand) else None


def secret_names(definition: Definition | None) -> list[str]:
    """Return the names of the secrets that a stored target uses, wherever they stand in it."""
    return [] if definition is None else sorted(set(_named(msgspec.to_builtins(definition))))


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if set(value) == {"secret"} and isinstance(value["secret"], str):
            yield value["secret"]
        for each in value.values():
            yield from _named(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _named(each)


def phases_of(attempt: AttemptInfo | None) -> list[Phase]:
    """Return the phases of an attempt that said them, in their order."""
    said = {} if attempt is None or attempt.detail is None else attempt.detail.get("phases")
    if not isinstance(said, dict):
        return []
    known = {name: float(said[name]) for name in PHASES if isinstance(said.get(name), int | float)}
    longest = max(known.values(), default=0.0) or 1.0
    return [Phase(PHASES[name], SHAPES[name], seconds, max(1, round(24 * seconds / longest))) for name, seconds in known.items()]
