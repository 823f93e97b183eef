"""What workers count, in the database."""

from __future__ import annotations

from collections.abc import Mapping

from duetime.clock import Instant
from duetime.model.figures import FigureKey
from duetime.model.series import piece_of
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.records import write_json
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements


async def add(run: Runner, sql: Statements, source: str, number: int, increments: Mapping[FigureKey, int], now: Instant | None) -> None:
    # the source is locked first, in the same order as when counters of silent processes are merged
    if await run.rows(sql.note_figure_source, [source, number, now]):
        columns = zip(*((*key, count) for key, count in increments.items()), strict=True)
        piece = write_json(piece_of(increments))
        await run.rows(sql.add_figures, [source, *(list(column) for column in columns), now, piece])


async def fold(run: Runner, sql: Statements, before: Instant) -> int:
    silent = [source for (source,) in await run.rows(sql.take_silent, [before])]
    if silent:
        await run.rows(sql.fold_figures, [silent])
    return len(silent)


class Figures(OpenSchema):
    """Where the sums of what workers count live."""

    async def add_figures(self, source: str, number: int, increments: Mapping[FigureKey, int]) -> None:
        if increments:
            now = self._clock.parameter
            await self._opened.transaction(lambda run: add(run, self._sql, source, number, increments, now))

    async def figures(self) -> dict[FigureKey, int]:
        rows = await self._opened.rows(self._sql.sum_figures)
        return {FigureKey(name, handler, part): count for name, handler, part, count in rows}

    async def fold_figures(self, before: Instant) -> int:
        return await self._opened.transaction(lambda run: fold(run, self._sql, before))
