"""The role of the seam that is about alerts; a part of `store.control`. Rules: `model/alerts`. What documents have: `client/alerts.py`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

MAP = "map"  # of shards: the document in control


class DocumentKind(StrEnum):
    """What a document is: a rule, the state of an alert, a channel, how much it was told lately, a message that is to be submitted, when a
    certificate ends, or what a store knows of shards.
    """

    RULE = "rule"
    ALERT = "alert"
    CHANNEL = "channel"
    PACE = "pace"
    MESSAGE = "message"
    CERTIFICATE = "certificate"
    SHARDS = "shards"


class Document(msgspec.Struct, frozen=True):
    """A document, JSON. `version` is random and new at each change."""

    kind: DocumentKind
    name: str
    version: str
    body: bytes


class DocumentChange(msgspec.Struct, frozen=True):
    """A document to write, or to remove if `body` is None, if it is still in the version that was `seen`; "" if there was none."""

    kind: DocumentKind
    name: str
    seen: str
    body: bytes | None


class AlertStore(Protocol):
    """Where rules of alerts, their states and channels live, as documents. Few are read and fewer are written."""

    async def alert_documents(self, kind: DocumentKind, names: Collection[str] | None = None) -> list[Document]:
        """Return the documents of a kind with these names, or all, by name; unknown names are left out."""
        ...

    async def change_alert_documents(self, changes: Sequence[DocumentChange]) -> bool:
        """Write documents, all or none: none if any is not in the version that was seen. Return whether they were written.

        Of several calls at once that have seen the same version, one writes.
        """
        ...
