"""What workers count, in the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from duetime.clock import Instant
from duetime.model.figures import FigureKey
from duetime.model.series import piece_of
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL


def add(connection: sqlite3.Connection, source: str, number: int, increments: Mapping[FigureKey, int], now: Instant) -> None:
    begun = connection.execute(SQL.note_figure_source, {"source": source, "number": number, "now": now})
    if begun.rowcount:
        connection.executemany(SQL.add_figure, [(source, *key, count) for key, count in increments.items()]).close()
        connection.execute(SQL.add_piece, (now, write_json(piece_of(increments))))


def sums(connection: sqlite3.Connection) -> dict[FigureKey, int]:
    return {FigureKey(name, handler, part): count for name, handler, part, count in connection.execute(SQL.sum_figures)}


def fold(connection: sqlite3.Connection, before: Instant) -> int:
    connection.execute(SQL.fold_figures, (before,))
    connection.execute(SQL.delete_folded, (before,))
    return connection.execute(SQL.delete_silent, (before,)).rowcount


class Figures(OpenFile):
    """What workers count."""

    async def add_figures(self, source: str, number: int, increments: Mapping[FigureKey, int]) -> None:
        if increments:
            await self._write(lambda connection: add(connection, source, number, increments, self._clock.now()))

    async def figures(self) -> dict[FigureKey, int]:
        return await self._read(sums)

    async def fold_figures(self, before: Instant) -> int:
        return await self._write(lambda connection: fold(connection, before))
