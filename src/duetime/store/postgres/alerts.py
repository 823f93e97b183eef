"""Rules of alerts, their states and channels in the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from duetime.ids import token
from duetime.store.alerts import Document, DocumentChange, DocumentKind
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements


async def change_documents(run: Runner, sql: Statements, changes: Sequence[DocumentChange]) -> bool:
    await run.rows(sql.lock_alerting)
    [[unseen]] = await run.rows(
        sql.count_unseen, [[each.kind for each in changes], [each.name for each in changes], [each.seen for each in changes]]
    )
    if unseen:
        return False
    put = [each for each in changes if each.body is not None]
    over = [each for each in changes if each.body is None]
    if put:
        names = [[each.kind for each in put], [each.name for each in put]]
        await run.rows(sql.put_alert_documents, [*names, [token(8) for _ in put], [each.body for each in put]])
    if over:
        await run.rows(sql.delete_alert_documents, [[each.kind for each in over], [each.name for each in over]])
    return True


class Alerts(OpenSchema):
    """Where rules of alerts, their states and channels live."""

    async def alert_documents(self, kind: DocumentKind, names: Collection[str] | None = None) -> list[Document]:
        rows = await self._opened.rows(self._sql.alert_documents, [kind, None if names is None else list(names)])
        return [Document(DocumentKind(kind), name, version, bytes(body)) for kind, name, version, body in rows]

    async def change_alert_documents(self, changes: Sequence[DocumentChange]) -> bool:
        return await self._opened.transaction(lambda run: change_documents(run, self._sql, changes))
