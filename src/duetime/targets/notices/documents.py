"""What the documents of alerts have, read and written with their types; for the client, and for the duty that evaluates rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from duetime.clock import Instant
from duetime.model.alerts.course import AlertState, Pace
from duetime.model.alerts.rule import StoredRule
from duetime.store.alerts import AlertStore, DocumentChange, DocumentKind
from duetime.targets.notices.channels import Channel
from duetime.targets.notices.notice import Notice

T = TypeVar("T")


class StoredChannel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A channel as it is stored, under its name."""

    channel: Channel
    changed_at: Instant
    changed_by: str


class Kept(msgspec.Struct, Generic[T], frozen=True):
    """A document with its content. `version` says what was seen when it is changed."""

    name: str
    version: str
    value: T


_TYPES: Mapping[DocumentKind, Any] = {
    DocumentKind.RULE: StoredRule,
    DocumentKind.ALERT: AlertState,
    DocumentKind.CHANNEL: StoredChannel,
    DocumentKind.PACE: Pace,
    DocumentKind.MESSAGE: Notice,
    DocumentKind.CERTIFICATE: int,
}
_READERS = {kind: msgspec.json.Decoder(kept) for kind, kept in _TYPES.items()}


async def rules_of(store: AlertStore, names: Collection[str] | None = None) -> list[Kept[StoredRule]]:
    return await _kept(store, DocumentKind.RULE, names)


async def states_of(store: AlertStore) -> list[Kept[AlertState]]:
    return await _kept(store, DocumentKind.ALERT)


async def channels_of(store: AlertStore, names: Collection[str] | None = None) -> list[Kept[StoredChannel]]:
    return await _kept(store, DocumentKind.CHANNEL, names)


async def paces_of(store: AlertStore) -> list[Kept[Pace]]:
    return await _kept(store, DocumentKind.PACE)


async def messages_of(store: AlertStore) -> list[Kept[Notice]]:
    return await _kept(store, DocumentKind.MESSAGE)


async def certificates_of(store: AlertStore) -> list[Kept[Instant]]:
    """Return when the certificates of HTTP handlers' servers end, by handler, as the last calls have seen them."""
    return await _kept(store, DocumentKind.CERTIFICATE)


async def _kept(store: AlertStore, kind: DocumentKind, names: Collection[str] | None = None) -> list[Kept[Any]]:
    read = _READERS[kind].decode
    return [Kept(each.name, each.version, read(each.body)) for each in await store.alert_documents(kind, names)]


def change(kind: DocumentKind, name: str, before: Kept[Any] | None, value: object | None) -> DocumentChange:
    """Return what writes a document in place of the one that was seen, or removes it if there is no value."""
    body = None if value is None else msgspec.json.encode(value)
    return DocumentChange(kind, name, "" if before is None else before.version, body)


def state_name(rule: str, subject: str) -> str:
    """Return the name of the document of a rule and a subject; a rule's name has no slash."""
    return f"{rule}/{subject}"
