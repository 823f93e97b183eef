"""What clients do in a simulation: a list of operations, made from the seed before it begins, so that it can be shortened."""

import random
from typing import Any, Literal

import msgspec

Common = Literal["submit", "family", "cancel", "edit", "retry", "pause", "drop", "why", "counts", "wait", "trigger", "operation"]
Kind = Common | Literal["flow", "cancel_flow", "retry_flow", "limit", "lock", "signal", "merge"]
KEYS = 4


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a client at an instant. `pick`, between 0 and 1, chooses among the tasks that were submitted before."""

    kind: Kind
    at: float
    pick: float = 0.0
    handler: str = ""
    payload: dict[str, Any] = {}
    options: dict[str, Any] = {}
    delay: float = 0.0
    seconds: float = 0.0
    collection: str | None = None

    def __str__(self) -> str:
        more = ", ".join(f"{name}={value!r}" for name, value in (*self.payload.items(), *self.options.items()))
        return f"{self.at:7.3f}  {self.kind} {self.handler} {more}".rstrip()


def plan(chance: random.Random, *, seconds: float, most: int) -> list[Operation]:
    """Return operations for so many seconds."""
    operations = [_one(chance, round(chance.uniform(0.0, seconds), 3)) for _ in range(chance.randint(most // 10, most))]
    return sorted(operations, key=lambda operation: operation.at)


def outside(chance: random.Random, *, seconds: float, most: int) -> list[Operation]:
    """Return operations that involve a pull worker and a server that accepts work, and operations on many tasks at once."""
    return [_one_outside(chance, round(chance.uniform(0.0, seconds), 3)) for _ in range(chance.randint(2, max(4, most // 4)))]


def _one_outside(chance: random.Random, at: float) -> Operation:
    seconds = chance.choice((0.0, 0.3, 1.0, 3.0))
    payload: dict[str, Any]
    match chance.choice(("pulled", "pulled", "handed", "handed", "operation")):
        case "pulled":
            payload = {"how": chance.choice(("works", "works", "works", "fails", "hangs")), "seconds": seconds}
            return Operation(kind="submit", at=at, handler="pulled", payload=payload, options=_options(chance))
        case "handed":
            payload = {"how": chance.choice(("works", "works", "silent")), "seconds": seconds, "silence": chance.choice((None, 1.5))}
            return Operation(kind="submit", at=at, handler="handed", payload=payload, options=_options(chance))
        case _:
            handler = chance.choice(("quick", "quick", "pulled", "handed"))
            return Operation(kind="operation", at=at, handler=handler, collection=chance.choice((None, "eu")))


_KINDS: tuple[Common, ...] = (
    *("submit",) * 24,
    *(
        "cancel",
        "cancel",
        "cancel",
        "edit",
        "edit",
        "retry",
        "why",
        "why",
        "counts",
        "family",
        "family",
        "pause",
        "drop",
        "wait",
        "trigger",
    ),
)


def _one(chance: random.Random, at: float) -> Operation:
    kind = chance.choice(_KINDS)
    common: dict[str, Any] = {"kind": kind, "at": at, "pick": chance.random()}
    match kind:
        case "submit":
            handler = chance.choice(("quick", "quick", "quick", "quick", "stumbles", "odd", "hangs", "parent", "versioned"))
            delay = chance.choice((0.0, 0.0, 0.0, chance.uniform(0.0, 3.0), 1.0))
            return Operation(**common, handler=handler, payload=_payload(chance, handler), options=_options(chance), delay=round(delay, 3))
        case "pause" | "drop":
            handler, collection = chance.choice(("quick", "stumbles", "versioned")), chance.choice((None, None, "eu"))
            return Operation(**common, handler=handler, collection=collection, seconds=round(chance.uniform(0.5, 6.0), 3))
        case "edit":
            return Operation(**common, delay=round(chance.uniform(0.0, 3.0), 3), options={"priority": chance.randint(0, 9)})
        case "family":
            needs = chance.choice(("success", "end"))
            return Operation(**common, handler=chance.choice(("quick", "odd")), payload={"needs": needs, "children": chance.randint(1, 3)})
        case _:
            return Operation(**common)


def _payload(chance: random.Random, handler: str) -> dict[str, Any]:
    match handler:
        case "quick":
            return {"seconds": chance.choice((0.0, 0.0, 0.05, 0.5, 2.0, 4.0))}
        case "stumbles":
            return {"times": chance.randint(0, 4), "seconds": chance.choice((0.0, 0.2))}
        case "odd":
            return {"how": chance.choice(("fatal", "later", "cancelled", "stop", "exit", "unfit"))}
        case "hangs":
            return {"stubborn": chance.random() < 0.3}
        case "parent":
            return {"children": chance.randint(1, 3)}
        case _:
            return {"size": chance.randint(1, 9)}


def _options(chance: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if chance.random() < 0.25:
        options |= {"key": f"key {chance.randrange(KEYS)}", "if_exists": chance.choice(("error", "keep", "replace"))}
    if chance.random() < 0.2:
        options["collection"] = chance.choice(("eu", "us"))
    if chance.random() < 0.3:
        options["priority"] = chance.randint(0, 9)
    if chance.random() < 0.15:
        options["expires"] = chance.choice((0.5, 2.0, 8.0))
    return options
