"""Writes the schedules that a program declares, all together, while others may change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from duetime.client.schedules.declaring import Difference, SchedulePlan, compare, fingerprint, surplus
from duetime.client.schedules.writes import MAX_RETRIES, Known, back_off, every_schedule, given_up, look
from duetime.errors import DuetimeError
from duetime.model.firing import Step
from duetime.model.schedule import ScheduleRecord, ScheduleSpec
from duetime.runtime.slices import off_loop
from duetime.store import Store
from duetime.store.schedules import ScheduleFilter, ScheduleWrite

# Tries that write all declarations or nothing. Thousands of schedules that fire all the time may never let one succeed; after that,
# those that others have changed meanwhile are written one try later than the rest.
TOGETHER = 30

Refuse: TypeAlias = Callable[[str], DuetimeError | None]  # why the caller may not change a handler's schedules, None if it may


class Reconciliation:
    """Compares the declarations of one revision with what is stored, and writes the difference. `put` makes the step for a changed spec."""

    def __init__(self, store: Store, revision: int, *, put: Callable[[str, ScheduleSpec, Known], Step], refuse: Refuse) -> None:
        self._store = store
        self._revision = revision
        self._put = put
        self._refuse = refuse

    async def plan(self, specs: Mapping[str, ScheduleSpec], *, prefix: str) -> SchedulePlan:
        """Return what `apply` would do."""
        stored = dict(zip(specs, await self._store.schedules(list(specs)), strict=True))
        self._check(stored)
        return SchedulePlan(await off_loop(self._differences, specs, stored, await self._surplus(specs, prefix)))

    async def apply(self, specs: Mapping[str, ScheduleSpec], *, remove: bool, prefix: str) -> SchedulePlan:
        """Write what differs, and try again while others change it."""
        names = list(specs)
        if remove:
            names += [each.name for each in await self._surplus(specs, prefix)]
        done: dict[str, Difference] = {}
        for retry in range(MAX_RETRIES):
            known = await look(self._store, names)
            self._check(known.records)
            gone = [record for name, record in known.records.items() if name not in specs and record is not None]
            differences = await off_loop(self._differences, specs, known.records, gone)
            if await self._write(differences, specs, known, done, together=retry < TOGETHER):
                outcome = {**{each.name: each for each in differences}, **done}
                return SchedulePlan(list(outcome.values()))
            await back_off(retry)
        raise given_up(f"some of {len(names)} schedules")

    async def _write(
        self,
        differences: Sequence[Difference],
        specs: Mapping[str, ScheduleSpec],
        known: Known,
        done: dict[str, Difference],
        *,
        together: bool,
    ) -> bool:
        """Write differences, add the written ones to `done`, and return whether all were written."""
        # adoptions change nothing that runs: they need not be atomic, and would only make the rest harder to write
        marks = [each for each in differences if each.action == "adopt"]
        for chosen, at_once in (([each for each in differences if each.effective], together), (marks, False)):
            writes = await off_loop(self._declarations, chosen, specs, known)
            written = await self._store.write_schedules(writes, together=at_once) if writes else []
            done.update({each.name: each for each, stored in zip(chosen, written, strict=True) if stored})
            if not all(written):
                return False
        return True

    def _declarations(self, chosen: Sequence[Difference], specs: Mapping[str, ScheduleSpec], known: Known) -> list[ScheduleWrite]:
        return [self._declaration(each, specs, known) for each in chosen]

    def _declaration(self, difference: Difference, specs: Mapping[str, ScheduleSpec], known: Known) -> ScheduleWrite:
        name = difference.name
        old = known.records[name]
        expected = old.version if old else 0
        if difference.action == "remove":
            return ScheduleWrite(name=name, expected=expected, record=None)
        adopted = difference.action == "adopt" and old is not None
        step = Step(record=old) if adopted and old is not None else self._put(name, specs[name], known)
        state = replace(step.record.state, declaration=fingerprint(specs[name]))
        record = replace(step.record, declared=self._revision, state=state)
        return ScheduleWrite(name=name, expected=expected, record=record, tasks=step.tasks, skips=step.skips)

    def _differences(
        self, specs: Mapping[str, ScheduleSpec], stored: Mapping[str, ScheduleRecord | None], going: Sequence[ScheduleRecord]
    ) -> list[Difference]:
        declared = [compare(name, spec, stored[name], self._revision) for name, spec in specs.items()]
        return [*declared, *(Difference(name=record.name, action="remove") for record in going)]

    async def _surplus(self, specs: Mapping[str, ScheduleSpec], prefix: str) -> list[ScheduleRecord]:
        found = await every_schedule(self._store, ScheduleFilter(declared=True, prefix=prefix or None))
        allowed = [record for record in found if self._refuse(record.spec.handler) is None]
        return surplus(allowed, specs, self._revision)

    def _check(self, records: Mapping[str, ScheduleRecord | None]) -> None:
        for record in records.values():
            refusal = None if record is None else self._refuse(record.spec.handler)
            if refusal is not None:
                raise refusal
