"""What happened when, in the file."""

from __future__ import annotations

import sqlite3

import msgspec

from duetime.clock import SECOND, Instant
from duetime.model.series import ALL, KEPT, STEPS, Buckets, Counted, Piece, Sample, Step, add, folded, piece_of_sample
from duetime.store.series import SeriesPage, sample_of
from duetime.store.sqlite.database import OpenFile
from duetime.store.sqlite.gates import read_names
from duetime.store.sqlite.read import lane_counts
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL

FOLDED_AT_ONCE = 2_000  # pieces: a minute of a hundred busy processes

_read_piece = msgspec.json.Decoder(Piece).decode
_read_counted = msgspec.json.Decoder(Counted).decode
_read_sample = msgspec.json.Decoder(Sample).decode


def take_sample(connection: sqlite3.Connection, now: Instant) -> Sample:
    return sample_of(lane_counts(connection, now), read_names(connection), now)


def last_sample(connection: sqlite3.Connection) -> Sample | None:
    row = connection.execute(SQL.last_sample).fetchone()
    return None if row is None else _read_sample(row[0])


def keep_sample(connection: sqlite3.Connection, sample: Sample) -> None:
    piece = piece_of_sample(sample, last_sample(connection))
    connection.execute(SQL.add_piece, (sample.at, write_json(piece)))
    connection.execute(SQL.put_sample, (write_json(sample),))


def read(connection: sqlite3.Connection, step: Step, since: Instant, until: Instant, handler: str | None, now: Instant) -> SeriesPage:
    span = (step, since, until)
    rows = connection.execute(SQL.buckets_of_all, span) if handler is None else connection.execute(SQL.buckets_of, (*span, handler))
    buckets: Buckets = {(at, name): _read_counted(counts) for at, name, counts in rows}
    pieces = connection.execute(SQL.pieces_between, (since, until + step * SECOND)).fetchall()
    for key, counted in folded([(at, _read_piece(counts)) for at, counts in pieces], step).items():
        if since <= key[0] < until and (handler is None or key[1] in (ALL, handler)):
            add(buckets.setdefault(key, {}), counted)
    return SeriesPage(buckets, last_sample(connection), now)


def fold(connection: sqlite3.Connection, now: Instant) -> int:
    rows = connection.execute(SQL.first_pieces, (FOLDED_AT_ONCE,)).fetchall()
    if not rows:
        return 0
    pieces = [(at, _read_piece(counts)) for _, at, counts in rows]
    for step in STEPS:
        for (at, handler), counted in folded(pieces, step).items():
            stored = connection.execute(SQL.bucket, (step, at, handler)).fetchone()
            sums: Counted = {} if stored is None else _read_counted(stored[0])
            add(sums, counted)
            connection.execute(SQL.put_bucket, (step, at, handler, write_json(sums)))
        connection.execute(SQL.delete_buckets, (step, now - KEPT[step] - step * SECOND))
    connection.execute(SQL.delete_pieces, (rows[-1][0],))
    return len(rows)


class SeriesKeeping(OpenFile):
    """What happened when."""

    async def sample(self) -> Sample:
        return await self._read(lambda connection: take_sample(connection, self._clock.now()))

    async def keep_sample(self, sample: Sample) -> None:
        await self._write(lambda connection: keep_sample(connection, sample))

    async def last_sample(self) -> Sample | None:
        return await self._read(last_sample)

    async def series(self, step: Step, since: Instant, until: Instant, handler: str | None = None) -> SeriesPage:
        return await self._read(lambda connection: read(connection, step, since, until, handler, self._clock.now()))

    async def fold_series(self) -> int:
        if not await self._read(lambda connection: connection.execute(SQL.any_pieces).fetchone()[0]):
            return 0
        return await self._write(lambda connection: fold(connection, self._clock.now()))
