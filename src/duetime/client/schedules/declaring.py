"""Schedules as code: how the declarations of a program differ from what is stored.

A stored schedule remembers a fingerprint of the declaration that made it. A declaration with the same fingerprint changes nothing, so
what an operator has changed stays changed until the code itself changes. An older revision never overwrites a newer one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from duetime.errors import InvalidValue
from duetime.model.schedule import ScheduleRecord, ScheduleSpec, encode

Action: TypeAlias = Literal["add", "change", "adopt", "keep", "older", "remove"]


class FieldChange(msgspec.Struct, frozen=True):
    """One field of a schedule that differs: the stored value and the declared one."""

    field: str
    stored: Any
    declared: Any


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What declaring or applying does to one schedule.

    `add`: it is not stored. `change`: the declaration differs. `adopt`: it is stored exactly so, and only marked as declared. `keep`: the
    declaration has not changed; `fields` then shows what operators have changed since. `older`: a newer revision has declared it.
    `remove`: code no longer declares it; only `apply` does that.
    """

    name: str
    action: Action
    fields: list[FieldChange] = []

    @property
    def effective(self) -> bool:
        """Whether it changes what runs."""
        return self.action in ("add", "change", "remove")


class SchedulePlan(msgspec.Struct, frozen=True):
    """What applying a program's declarations does."""

    differences: list[Difference]

    @property
    def added(self) -> list[str]:
        return self._named("add")

    @property
    def changed(self) -> list[str]:
        return self._named("change")

    @property
    def removed(self) -> list[str]:
        return self._named("remove")

    @property
    def unchanged(self) -> list[str]:
        return self._named("keep", "adopt", "older")

    def __bool__(self) -> bool:
        """Return whether there is anything to do."""
        return any(difference.effective for difference in self.differences)

    def _named(self, *actions: Action) -> list[str]:
        return [difference.name for difference in self.differences if difference.action in actions]


def fingerprint(spec: ScheduleSpec) -> str:
    """Return a hash of a declaration."""
    return hashlib.blake2b(encode(spec), digest_size=16).hexdigest()


def compare(name: str, spec: ScheduleSpec, stored: ScheduleRecord | None, revision: int) -> Difference:
    """Compare one declaration with the stored schedule."""
    if stored is None:
        return Difference(name=name, action="add")
    fields = changes(stored.spec, spec)
    if stored.declared is not None and stored.declared > revision:
        return Difference(name=name, action="older", fields=fields)
    if stored.state.declaration == fingerprint(spec):
        return Difference(name=name, action="keep" if stored.declared == revision else "adopt", fields=fields)
    return Difference(name=name, action="change" if fields else "adopt", fields=fields)


def changes(stored: ScheduleSpec, declared: ScheduleSpec) -> list[FieldChange]:
    """Return the fields in which two specs differ, as JSON values."""
    before, after = _shown(stored), _shown(declared)
    return [FieldChange(name, before[name], after[name]) for name in after if before[name] != after[name]]


def surplus(stored: Sequence[ScheduleRecord], declared: Mapping[str, object], revision: int) -> list[ScheduleRecord]:
    """Return the stored schedules that code no longer declares. Schedules made at run time are never among them."""
    return [each for each in stored if each.declared is not None and each.declared <= revision and each.name not in declared]


def refuse_twice(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise InvalidValue(f"a schedule called {twice[0]} is declared twice; give one of them another name")


def _shown(spec: ScheduleSpec) -> dict[str, Any]:
    return {name: msgspec.to_builtins(_plain(getattr(spec, name))) for name in spec.__struct_fields__}


def _plain(value: Any) -> Any:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value
