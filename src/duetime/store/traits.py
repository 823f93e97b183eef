"""How stores differ. Code that uses a store checks a trait, never the store's type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from duetime.model.task import State

Atomicity: TypeAlias = Literal["call", "shard"]
Liveness: TypeAlias = Literal["lock", "lease"]


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What a store promises, and how to use it best.

    `atomic`: all items of one call are written together ("call"), or those of each shard ("shard"), and then a call that failed may have
    done a part of it; a repeat with the same arguments does the rest. `durability`: what a returned write survives, in one honest
    sentence. `liveness`: how a dead worker is noticed: by a lock that the kernel frees, or by a lease that it must renew. `claim_ahead`:
    how many microseconds before tasks are due a worker should claim them, because a claim takes time; 0: not at all. `settles_at_once`:
    how many concurrent settles of one worker are worthwhile. `output_batch`: how many bytes one `keep_output` should have at most, so
    that other writers do not wait long. `retention_steps`: by final state, in which steps of microseconds finished tasks are removed
    cheaply.
    """

    atomic: Atomicity
    durability: str
    liveness: Liveness
    claim_ahead: int = 0
    settles_at_once: int = 1
    output_batch: int = 1 << 20
    retention_steps: Mapping[State, int] = {}

    def retention_step(self, state: State) -> int:
        """Return in which steps of microseconds tasks in a final state are removed cheaply; 1 where it makes no difference."""
        return self.retention_steps.get(state, 1)
