"""What goes wrong in a simulation: a list of faults, made from the seed before it begins, so that it can be shown and shortened."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["kill", "freeze", "fail", "lose", "slow", "away", "step", "skew", "deaf", "echo", "restart", "crash"]

CLIENT = -1  # the number of the process that submits; workers have 0, 1, …

# Verbs at whose next call something may happen, so that rare ones are hit too.
VERBS = (
    "claim",
    "settle",
    "renew",
    "add",
    "register",
    "confirm_gates",
    "write_schedules",
    "take_duty",
    "reap",
    "cancel",
    "unregister",
    "gates",
)


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault. With a `verb` it happens at the first call of that verb by that process since `at`, otherwise at that instant.

    `kill`, `crash` (with `verb`: before, after the commit), `freeze`, `restart` (a graceful stop, then newer code) and `skew` (its clock)
    hit a process; `fail` (before the commit), `lose` (the answer) and `slow` one call; `away` and `step` (its clock) the store; `deaf` and
    `echo` lose and double the hints to a process for a while.
    """

    kind: Kind
    at: float
    process: int = 0
    verb: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        who = "the client" if self.process == CLIENT else f"worker {self.process}"
        where = f" at its next {self.verb}" if self.verb else ""
        what = {
            "kill": f"{who} is killed{where}, before the commit" if self.verb else f"{who} is killed",
            "crash": f"{who} is killed{where}, after the commit",
            "freeze": f"{who} is frozen for {self.seconds:.1f} s",
            "restart": f"{who} is stopped and started again with newer code",
            "skew": f"the clock of {who} is set by {self.seconds:+.0f} s",
            "fail": f"{who} cannot reach the store{where}",
            "lose": f"{who} gets no answer{where}, although it is committed",
            "slow": f"a call of {who}{where} takes {self.seconds:.1f} s longer",
            "away": f"the store is away for {self.seconds:.1f} s",
            "step": f"the store's clock is set by {self.seconds:+.0f} s",
            "deaf": f"{who} gets no hints for {self.seconds:.1f} s",
            "echo": f"{who} gets all hints twice, and late, for {self.seconds:.1f} s",
        }[self.kind]
        return f"{self.at:7.3f}  {what}"


def plan(
    chance: random.Random, *, workers: int, seconds: float, lease: float, most: int = 8, kinds: Iterable[Kind] | None = None
) -> list[Fault]:
    """Return faults for a simulation of so many seconds; some have none at all, so that plain errors are not blamed on faults."""
    allowed = tuple(kinds) if kinds is not None else _KINDS
    faults = [_one(chance, chance.choice(allowed), workers, seconds, lease) for _ in range(chance.randint(0, most))]
    return sorted(faults, key=lambda fault: fault.at)


_KINDS: Sequence[Kind] = (
    *("kill", "kill", "crash", "crash", "freeze", "freeze", "fail", "lose", "lose", "lose", "slow", "slow"),
    *("away", "step", "skew", "deaf", "echo", "restart"),
)


def _one(chance: random.Random, kind: Kind, workers: int, seconds: float, lease: float) -> Fault:
    at = round(chance.uniform(0.0, seconds), 3)
    process = chance.randrange(workers)
    verb = ""
    lasts = 0.0
    match kind:
        case "kill":
            verb = chance.choice(("", "", *VERBS))
        case "crash" | "fail" | "lose":
            verb = chance.choice((*VERBS, "claim", "settle", "settle"))
        case "slow":
            verb, lasts = chance.choice(("", *VERBS)), chance.choice((0.05, 0.5, 0.9 * lease, 3.0))
        case "freeze":
            lasts = lease * chance.choice((0.3, 0.75, 0.95, 1.3, 2.0))
        case "away":
            lasts = lease * chance.choice((0.1, 0.5, 1.0, 1.5))
        case "step":
            lasts = chance.choice((-3_600.0, -60.0, -2.0, 2.0, 60.0, 3_600.0))
        case "skew":
            lasts = chance.choice((-600.0, 600.0))
        case "deaf" | "echo":
            lasts = chance.choice((1.0, 10.0))
        case "restart":
            pass
    if verb in ("add", "cancel") or (kind in ("fail", "lose", "slow", "skew") and chance.random() < 0.15):
        process = CLIENT
        verb = verb if verb in ("add", "cancel", "gates", "") else "add"
    return Fault(kind=kind, at=at, process=process, verb=verb, seconds=round(lasts, 3))
