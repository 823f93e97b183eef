"""Rules of alerts, their states and channels in the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from duetime.ids import token
from duetime.store.alerts import Document, DocumentChange, DocumentKind
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL


def read_documents(connection: sqlite3.Connection, kind: DocumentKind, names: Collection[str] | None) -> list[Document]:
    listed = None if names is None else write_json(list(names))
    rows = connection.execute(SQL.alert_documents, {"kind": kind, "names": listed})
    return [Document(DocumentKind(kind), name, version, body) for kind, name, version, body in rows]


def change_documents(connection: sqlite3.Connection, changes: Sequence[DocumentChange]) -> bool:
    for each in changes:
        row = connection.execute(SQL.alert_version, (each.kind, each.name)).fetchone()
        if ("" if row is None else row[0]) != each.seen:
            return False
    for each in changes:
        if each.body is None:
            connection.execute(SQL.delete_alert_document, (each.kind, each.name))
        else:
            connection.execute(SQL.put_alert_document, (each.kind, each.name, token(8), each.body))
    return True


class Alerts(OpenFile):
    """Where rules of alerts, their states and channels live."""

    async def alert_documents(self, kind: DocumentKind, names: Collection[str] | None = None) -> list[Document]:
        return await self._read(lambda connection: read_documents(connection, kind, names))

    async def change_alert_documents(self, changes: Sequence[DocumentChange]) -> bool:
        return await self._write(lambda connection: change_documents(connection, changes))
