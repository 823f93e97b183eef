"""Guests in the file: workers in other languages, whose beats are kept in their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from duetime.clock import Instant
from duetime.model.turns import Turns
from duetime.store.guests import Guest, Holding
from duetime.store.protocol import Claim
from duetime.store.sqlite import work
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL

_decode_slots = msgspec.json.Decoder(dict[str, int]).decode
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode
_FIELDS = Holding.__struct_fields__


def admit(connection: sqlite3.Connection, guest: Guest, now: Instant) -> None:
    slots = msgspec.json.encode(dict(guest.slots)).decode()
    connection.execute(SQL.insert_guest, {"id": guest.id, "name": guest.name, "slots": slots, "lease": guest.lease, "now": now})


def by_id(connection: sqlite3.Connection, id: str) -> Guest | None:
    row = connection.execute(SQL.guest_by_id, (id,)).fetchone()
    return None if row is None else Guest(id=id, name=row[0], slots=_decode_slots(row[1]), lease=row[2])


def renew(connection: sqlite3.Connection, id: str, now: Instant) -> bool:
    return connection.execute(SQL.renew_guest, (now, id)).rowcount > 0


def beat(connection: sqlite3.Connection, id: str) -> int | None:
    """Give a guest's beat; None if no guest has this id."""
    row = connection.execute(SQL.guest_beat, (id,)).fetchone()
    return None if row is None else int(row[0])


def claim(
    connection: sqlite3.Connection, guest: str, number: int, wants: Mapping[str, int], total: int, now: Instant, turns: Turns
) -> Claim:
    """Claim for a guest, unless it holds attempts under this number; in one write transaction, so that no repeat comes in between."""
    if connection.execute(SQL.claim_in_use, (guest, number)).fetchone() is not None:
        return Claim([], now, None)
    return work.claim(connection, guest, number, wants, total, 0, now, turns)


def holdings(connection: sqlite3.Connection, worker: str, ids: Sequence[str] | None) -> list[Holding]:
    among = "" if ids is None else SQL.holdings_among
    values = {"worker": worker, "ids": write_json(list(ids or ()))}
    rows = connection.execute(f"{SQL.holdings_head} {among} {SQL.holdings_order}", values)
    return [_holding(dict(zip(_FIELDS, row, strict=True))) for row in rows]


def _holding(values: dict[str, object]) -> Holding:
    meta = values["meta"]
    return Holding(**{**values, "cancelling": bool(values["cancelling"]), "meta": _decode_meta(meta) if isinstance(meta, str) else None})  # type: ignore[arg-type]
