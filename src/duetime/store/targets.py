"""The role of the seam that is about stored targets; a part of `store.control`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from duetime.model.targets import NewTarget, StoredTarget, TargetVersions
from duetime.store.values import Declaration


class TargetStore(Protocol):
    """Where targets live that are stored under a handler's name. One version counts the changes of all; listeners are woken at each."""

    async def put_target(self, target: NewTarget, declaration: Declaration, seen: int | None = None) -> StoredTarget | None:
        """Store a target in place of an earlier one, with the declaration of its handler, which becomes the present one.

        Return it as it is stored now; None if it is not as the caller has `seen` it, and nothing is changed: a version, or 0 if there must
        be none. What is stored already is returned unchanged, whatever was seen: a repeat. A target that was shadowed no longer is.
        """
        ...

    async def targets(self, names: Collection[str] | None = None) -> list[StoredTarget]:
        """Return the targets of these names, or all, by name; unknown names are left out."""
        ...

    async def target_versions(self) -> TargetVersions:
        """Return which targets there are in which version, without those that are shadowed, and the version of all together."""
        ...

    async def remove_target(self, name: str, seen: int | None = None) -> bool | None:
        """Remove a target with the declaration that came with it; return whether there was one.

        None if it is not in the version that was `seen`, and nothing is changed.
        """
        ...

    async def shadow_targets(self, names: Sequence[str]) -> list[str]:
        """Let workers leave these targets alone, because code has handlers of their names; return those of which that is new.

        Their own declarations are removed, so that those of the code are the present ones.
        """
        ...
