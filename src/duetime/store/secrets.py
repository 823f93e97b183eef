"""The role of the seam that is about secrets; a part of `store.control`. A store sees sealed values only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from duetime.clock import Instant
from duetime.model.secrets import SealedSecret, SecretVersion


class SecretStore(Protocol):
    """Where sealed secrets live. A version is live until its `until_at` by the store's clock; the others are never returned."""

    async def put_secret(self, secret: SealedSecret, old_until_at: Instant) -> bool:
        """Store the next version of a secret: 1 if none of its name is live, otherwise one more than the newest.

        Return True then, and also if exactly this sealed value is stored as this version: a repeat. False otherwise, and nothing is
        changed: somebody else has put or deleted it. Former versions stay until `old_until_at`, or until they end before that; of more
        than MOST_VERSIONS the oldest are removed.
        """
        ...

    async def secrets(self) -> list[SecretVersion]:
        """Return the live versions of all secrets without their values, by name, the newest version first."""
        ...

    async def sealed_secrets(self, names: Sequence[str]) -> list[list[SealedSecret]]:
        """Return the live versions of each of these secrets, the newest first; none of an unknown one."""
        ...

    async def reseal_secrets(self, changes: Sequence[tuple[SealedSecret, SealedSecret]]) -> list[bool]:
        """Replace sealed values and their keys, each only where exactly the former one of the pair is stored; return which were."""
        ...

    async def remove_secret(self, name: str) -> bool:
        """Remove all versions of a secret; return whether one was live."""
        ...

    async def prune_secrets(self) -> int:
        """Remove versions that are no longer live; return how many."""
        ...
