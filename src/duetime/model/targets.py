"""Targets that are stored under a handler's name, as a store keeps them: it does not look into their definitions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from duetime.clock import Instant

MAX_DEFINITION = 65_536  # bytes of a definition in JSON


class NewTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target to store. `definition` is JSON, and `kind` what it says of itself: http, publish or command."""

    name: str
    kind: str
    definition: bytes
    changed_by: str


class StoredTarget(NewTarget, frozen=True, kw_only=True):
    """A stored target. `version` is a number that no other state of any target has.

    `shadowed`: a program declares a handler of that name, and workers leave the target alone.
    """

    version: int
    changed_at: Instant
    shadowed: bool = False


class TargetVersions(msgspec.Struct, frozen=True):
    """The version of every target that is not shadowed, by name, and of all together: it grows with every change, also a removal."""

    version: int
    targets: Mapping[str, int]
