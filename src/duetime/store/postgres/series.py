"""What happened when, in the database."""

from __future__ import annotations

from operator import itemgetter

import msgspec

from duetime.clock import SECOND, Instant
from duetime.model.series import ALL, KEPT, STEPS, Buckets, Counted, Piece, Sample, Step, add, folded, piece_of_sample
from duetime.store.postgres.gates import read_names
from duetime.store.postgres.read import Listing
from duetime.store.postgres.records import write_json
from duetime.store.postgres.runner import Runner
from duetime.store.series import SeriesPage, sample_of
from duetime.store.sql import Statements

FOLDED_AT_ONCE = 2_000  # pieces: a minute of a hundred busy processes

_read_piece = msgspec.json.Decoder(Piece).decode
_read_counted = msgspec.json.Decoder(Counted).decode
_read_sample = msgspec.json.Decoder(Sample).decode


async def last_sample(run: Runner, sql: Statements) -> Sample | None:
    rows = await run.rows(sql.last_sample)
    return _read_sample(rows[0][0]) if rows else None


async def keep_sample(run: Runner, sql: Statements, sample: Sample) -> None:
    piece = piece_of_sample(sample, await last_sample(run, sql))
    await run.rows(sql.keep_sample, [sample.at, write_json(piece), write_json(sample)])


async def fold(run: Runner, sql: Statements, now: Instant) -> int:
    """Add up pieces in one transaction: they are gone if, and only if, they are in the buckets."""
    rows = sorted(await run.rows(sql.take_pieces, [FOLDED_AT_ONCE]), key=itemgetter(0))
    pieces = [(at, _read_piece(counts)) for _, at, counts in rows]
    for step in STEPS if pieces else ():
        more = folded(pieces, step)
        keys = [[at for at, _ in more], [handler for _, handler in more]]
        stored = await run.rows(sql.buckets_stored, [step, *keys])
        buckets: Buckets = {(at, handler): _read_counted(counts) for at, handler, counts in stored}
        for key, counted in more.items():
            add(buckets.setdefault(key, {}), counted)
        await run.rows(sql.put_buckets, [step, *keys, [write_json(buckets[key]) for key in more]])
        await run.rows(sql.delete_buckets, [step, now - KEPT[step] - step * SECOND])
    return len(pieces)


class SeriesKeeping(Listing):
    """What happened when."""

    async def sample(self) -> Sample:
        counts = await self.counts()
        return sample_of(counts.lanes, await read_names(self._opened, self._sql), counts.now)

    async def keep_sample(self, sample: Sample) -> None:
        await self._opened.transaction(lambda run: keep_sample(run, self._sql, sample))

    async def last_sample(self) -> Sample | None:
        return await last_sample(self._opened, self._sql)

    async def series(self, step: Step, since: Instant, until: Instant, handler: str | None = None) -> SeriesPage:
        now, last = 0, None
        buckets: Buckets = {}
        pieces = []
        for kind, at, name, text, _ in await self._opened.rows(self._sql.read_series, [self._clock.parameter, step, since, until, handler]):
            match kind:
                case "now":
                    now = at
                case "sample":
                    last = _read_sample(text)
                case "bucket":
                    buckets[at, name] = _read_counted(text)
                case _:
                    pieces.append((at, _read_piece(text)))
        for key, counted in folded(pieces, step).items():
            if since <= key[0] < until and (handler is None or key[1] in (ALL, handler)):
                add(buckets.setdefault(key, {}), counted)
        return SeriesPage(buckets, last, now)

    async def fold_series(self) -> int:
        [[some]] = await self._opened.rows(self._sql.any_pieces)
        return await self._opened.transaction(lambda run: fold(run, self._sql, self._clock.now())) if some else 0
