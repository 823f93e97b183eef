"""Steps: saved parts of one handler's work, and what a suspended task waits for. Signals are what it may wait for from outside."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.ids import key_shard
from duetime.model.task import check_name

MOST_STEPS = 1_000  # of one task
MOST_CHILDREN = 10_000  # of one `ctx.call`
KEPT = 86_400.0  # seconds that a signal is kept for who comes later
LONGEST_KEPT = 366 * 86_400.0


class StepKind(StrEnum):
    """What a step is: the value of a function, a pause, a wait for a signal, or other tasks whose results it waits for."""

    VALUE = "value"
    SLEEP = "sleep"
    SIGNAL = "signal"
    CALL = "call"


class Suspension(msgspec.Struct, frozen=True, gc=False):
    """What a suspended task waits for: the step `name`, until `wake_at` or, without that, until somebody ends the wait.

    `children`: the tasks whose ends it waits for.
    """

    name: str
    wake_at: Instant | None = None
    children: tuple[str, ...] = ()


class NewStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step as an attempt saves it. `done` is False for a wait that begins; `wake_at` is when a pause or a wait ends by itself."""

    task: str
    attempt: int
    name: str
    kind: StepKind
    done: bool = True
    data: bytes | None = None
    signal: str | None = None
    wake_at: Instant | None = None
    children: tuple[str, ...] = ()


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored step of a task. `late`: its wait ended by its time-out. `attempt` is the one that saved it last, `at` when."""

    name: str
    kind: StepKind
    attempt: int
    at: Instant
    done: bool
    late: bool = False
    data: bytes | None = None
    signal: str | None = None
    wake_at: Instant | None = None
    children: tuple[str, ...] = ()


CALLED_BY = "called_by"  # in the meta of a task: the id of the one whose step waits for it


class NewSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal as it is sent. A second one of the same name and id is the same one, as long as it is kept."""

    name: str
    id: str
    data: bytes
    sent_by: str = ""
    keep: float = KEPT


class SignalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored signal. `task`: who got it, None as long as nobody has."""

    number: int
    name: str
    id: str
    data: bytes
    sent_at: Instant
    sent_by: str
    keep_until: Instant
    task: str | None = None


def check_step(name: str) -> str:
    """Return the name of a step; raise InvalidValue if it is none."""
    return check_name(name, "the name of a step")


def check_signal(name: str) -> str:
    return check_name(name, "the name of a signal")


def check_kept(seconds: float) -> float:
    if not 1 <= seconds <= LONGEST_KEPT:
        raise InvalidValue(f"keep must be from 1 second to {LONGEST_KEPT / 86_400:g} days, got {seconds:g} seconds")
    return seconds


def child_id(parent: str, step: str, position: int, key: tuple[str, str] | None = None) -> str:
    """Return the id of a task that a step of another submits: always the same, so that submitting it twice is a repeat.

    It has the time of the parent's id; a keyed one lies in the shard of its (handler, key).
    """
    digest = hashlib.blake2b(f"{parent}\0{step}\0{position}".encode(), digest_size=10).hexdigest()
    shard = f"{key_shard(*key):03x}" if key is not None else digest[:3]
    return f"{parent[:13]}-7{shard}-{0x8000 | int(digest[4:8], 16) & 0x3FFF:04x}-{digest[8:20]}"
