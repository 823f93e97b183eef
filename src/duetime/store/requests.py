"""The role of the seam that is about requests with a name of the caller's own (`Idempotency-Key`); a part of `store.control`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from duetime.clock import Instant
from duetime.model.task import NewTask
from duetime.store.values import Added, AddVerdict


class NamedRequest(msgspec.Struct, frozen=True):
    """A request to submit a task. `key` is the caller's name for it, `digest` the hash of its body, `task` the id of its task.

    `met`: it was answered with a task that was there already, because a key was kept or replaced.
    """

    caller: str
    key: str
    digest: str
    task: str
    met: bool = False


Requested: TypeAlias = tuple[NewTask[object], NamedRequest | None]
"""A new task and its request, which has the task's id; None for tasks without an Idempotency-Key."""


class RequestStore(Protocol):
    """Where named requests live. No task of a request is stored without the row of its request, which holds the task's id."""

    async def add_requested(self, requested: Sequence[Requested]) -> Sequence[Added | NamedRequest]:
        """Add tasks as `add` does, each with its request; of several requests with one caller and key, also at once, the first one wins.

        A repeat with the same digest is answered with the task of the first request. One with another digest
        adds nothing and is answered with the stored request. A request that is answered with another task, because a key is kept or
        replaced, belongs to that task from then on, and its repeats are told so (`met`); one whose key is held by another task is
        forgotten.
        """
        ...

    async def note_requests(self, requests: Sequence[NamedRequest]) -> list[NamedRequest]:
        """Store requests alone, unless their caller has used the key before; return what is stored under each.

        For a store whose tasks are elsewhere: it adds them afterwards, and a repeat of the request adds what a crash has left out.
        """
        ...

    async def correct_requests(self, moved: Sequence[NamedRequest], forgotten: Sequence[NamedRequest]) -> None:
        """Let requests belong to the tasks that they name now, and forget others."""
        ...

    async def prune_requests(self, before: Instant, limit: int) -> int:
        """Remove up to `limit` of the oldest requests from before an instant; return how many."""
        ...


class Decided(msgspec.Struct, frozen=True):
    """What a call of `add_requested` adds, after its requests were compared with what is stored; for stores."""

    tasks: list[NewTask[object]]
    indexes: list[int]  # of these tasks in the call
    answers: dict[int, Added | NamedRequest]  # of the others
    own: dict[int, NamedRequest]  # requests that were stored just now, by the index of their task
    met: set[int]  # repeats of requests that were answered with a task that was there already
    repeats: dict[int, int]  # repeats of a request of the same call: the index of that one

    def answered(self, added: Sequence[Added]) -> list[Added | NamedRequest]:
        """Return the answers to the whole call."""
        answers = self.answers | dict(zip(self.indexes, added, strict=True))
        for index in self.met:
            answers[index] = msgspec.structs.replace(answers[index], met=True)
        for index, first in self.repeats.items():
            answers[index] = _repeated(answers[first])
        return [answers[index] for index in range(len(answers))]

    def corrected(self, added: Sequence[Added]) -> tuple[list[NamedRequest], list[NamedRequest]]:
        """Return the stored requests that stand for another task than their own, with that one's id, and those to be forgotten."""
        moved, forgotten = [], []
        for index, answer in zip(self.indexes, added, strict=True):
            request = self.own.get(index)
            if request is None or answer.record.id == request.task:
                continue
            if answer.verdict is AddVerdict.DUPLICATE:
                forgotten.append(request)
            else:
                moved.append(msgspec.structs.replace(request, task=answer.record.id, met=True))
        return moved, forgotten


def decide(requested: Sequence[Requested], stored: Sequence[NamedRequest]) -> Decided:
    """Compare requests with what is stored under their callers and keys, in the order of those that are named."""
    decided = Decided([], [], {}, {}, set(), {})
    firsts: dict[str, int] = {}  # the index of each new request, by the id of its task
    known = iter(stored)
    for index, (task, request) in enumerate(requested):
        if request is not None:
            found = next(known)
            if found.digest != request.digest:
                decided.answers[index] = found
                continue
            if found.task in firsts:
                decided.repeats[index] = firsts[found.task]
                continue
            if found.task == request.task:
                decided.own[index] = request
                firsts[request.task] = index
            else:
                task = msgspec.structs.replace(task, id=found.task)
            if found.met:
                decided.met.add(index)
        decided.tasks.append(task)
        decided.indexes.append(index)
    return decided


def _repeated(first: Added | NamedRequest) -> Added | NamedRequest:
    """Return the answer to a repeat of a request of the same call."""
    if isinstance(first, NamedRequest) or first.verdict is AddVerdict.DUPLICATE:
        return first
    return Added(AddVerdict.REPEATED, first.record, met=first.met or first.verdict in (AddVerdict.KEPT, AddVerdict.REPLACED))
