"""Whether waiting tasks fit the parameters of their handlers: as code has them, or as they are declared."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from duetime.errors import DuetimeError
from duetime.model.query import MAX_PAGE, Query
from duetime.model.task import State
from duetime.runtime.service import Alarms, Service
from duetime.runtime.slices import Slices
from duetime.store import Store
from duetime.store.control import Listing
from duetime.store.values import Declaration
from duetime.targets.payload import UnfitPayload
from duetime.targets.schema import TooLong, misfit
from duetime.targets.spec import HandlerSpec

logger = logging.getLogger("duetime.worker")

LOOK_AFTER = 2.0  # seconds after the start
AT_START = 5_000  # waiting tasks that a worker looks at when it starts, the newest
MOST_MISFITS = 100  # kinds of misfits that are told apart

# Says what is wrong with a handler's payload; None if it fits. KeyError: the handler is not known.
Judge: TypeAlias = Callable[[str, bytes], str | None]


class Misfits(msgspec.Struct, frozen=True):
    """Waiting tasks of one handler that do not fit its parameters for one reason."""

    handler: str
    count: int
    problem: str

    def __str__(self) -> str:
        tasks, do = ("task", "does") if self.count == 1 else ("tasks", "do")
        return f"{self.count:,} pending {tasks} of {self.handler} {do} not fit its parameters ({self.problem})"


class FitReport(msgspec.Struct, frozen=True):
    """What a look at waiting tasks found. `more`: there are others that were not looked at. `others`: those of unknown handlers."""

    checked: int
    more: bool
    others: int
    misfits: Sequence[Misfits]


async def report(store: Listing, judge: Judge, limit: int) -> FitReport:
    """Judge waiting tasks, the newest first and at most `limit`."""
    found: Counter[tuple[str, str]] = Counter()
    checked, others, more = 0, 0, False
    slices = Slices()  # a server looks too, and goes on answering meanwhile
    for state in (State.PENDING, State.BLOCKED):
        query = Query(state=state, limit=MAX_PAGE)
        while True:
            page = await store.page(msgspec.structs.replace(query, limit=min(MAX_PAGE, max(1, limit - checked))))
            if page.items and checked >= limit:
                more = True
                break
            for record in page.items:
                await slices.pause()
                try:
                    problem = judge(record.handler, record.payload)
                except KeyError:
                    others += 1
                    continue
                if problem is not None:
                    kind = (record.handler, problem)
                    found[kind if kind in found or len(found) < MOST_MISFITS else (record.handler, "other reasons")] += 1
            checked += len(page.items)
            if page.next is None:
                break
            query = msgspec.structs.replace(query, cursor=page.next)
    return FitReport(checked, more, others, [Misfits(handler, count, problem) for (handler, problem), count in sorted(found.items())])


def by_code(specs: Mapping[str, HandlerSpec]) -> Judge:
    """Judge payloads as a worker with these handlers would, upgrades included."""

    def judge(handler: str, payload: bytes) -> str | None:
        try:
            specs[handler].payloads.decode(payload)
        except UnfitPayload as error:
            return error.problem
        except DuetimeError as error:
            return str(error)
        return None

    return judge


def by_declaration(declarations: Iterable[Declaration]) -> Judge:
    """Judge payloads by what is declared. Handlers with upgrades fit anything, because only their code knows what it can read."""
    schemas: dict[str, Any] = {}
    for each in declarations:
        schema = {} if each.upgrades else msgspec.json.decode(each.schema)
        schemas |= dict.fromkeys((each.name, *each.aliases), schema)

    def judge(handler: str, payload: bytes) -> str | None:
        try:
            found = misfit(schemas[handler], msgspec.json.decode(payload))
        except TooLong:
            return None
        return None if found is None else f"{found.path}: {found.problem}"

    return judge


class FitLook(Service):
    """Looks once, soon after a worker has started, whether the tasks that wait for it fit its code, and says which do not.

    Not at once: what is due at the start is claimed first, and thousands of tasks that are read beside that delay it.
    """

    name = "fits"

    def __init__(self, store: Store, specs: Mapping[str, HandlerSpec], alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._specs = specs
        self._begun = False

    async def run_once(self) -> float | None:
        if not self._begun:
            self._begun = True
            self.skipped()
            return LOOK_AFTER
        found = await report(self._store, by_code(self._specs), AT_START)
        for each in found.misfits:
            logger.warning("%s; they will be parked. See `duetime tasks --parked` and docs/deploying.md", each)
        return None
