"""Accepted attempts in the file: they stand among the running ones, held by nobody, with a row that says when they time out."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from duetime.clock import SECOND, Instant
from duetime.model.outcome import Acceptance, Outcome, Settlement, SettleVerdict
from duetime.store.accepting import CANCEL_WITHIN, NO_WORKER, Heard, OpenAttempt, Report, Withdrawal
from duetime.store.rows.extras import read_running_task
from duetime.store.sqlite import work
from duetime.store.sqlite.records import write_json
from duetime.store.sqlite.statements import SQL
from duetime.store.values import HintKind


def accept(connection: sqlite3.Connection, worker: str, acceptances: Sequence[Acceptance], now: Instant) -> list[SettleVerdict]:
    """Take attempts from a worker, if it runs exactly these."""
    return [_accept_one(connection, worker, acceptance, now) for acceptance in acceptances]


def _accept_one(connection: sqlite3.Connection, worker: str, acceptance: Acceptance, now: Instant) -> SettleVerdict:
    held = work.held_by(connection, worker, [acceptance.id]).get(acceptance.id)
    facts = {"id": acceptance.id, "attempt": acceptance.attempt, "worker": worker, "outcome": Outcome.SUCCEEDED.value}
    if held is None or held[5] != acceptance.attempt:
        before = connection.execute(SQL.accepted_from, facts).fetchone() or connection.execute(SQL.settled_before, facts).fetchone()
        return SettleVerdict.STALE if before is None else SettleVerdict.ALREADY
    silence = None if acceptance.silence is None else round(acceptance.silence * SECOND)
    deadline_at = min(acceptance.deadline_at, now + CANCEL_WITHIN) if held[6] else acceptance.deadline_at
    report_at = deadline_at if silence is None else min(deadline_at, now + silence)
    connection.execute(SQL.accept_running, {"id": acceptance.id})
    row = {"task": held[1], "sender": worker, "deadline_at": deadline_at, "silence": silence, "report_at": report_at}
    withdrawing = bool(held[6]) and acceptance.location is not None
    connection.execute(SQL.insert_accepted, row | {"location": acceptance.location, "withdrawing": withdrawing})
    return SettleVerdict.ACCEPTED


def complete(connection: sqlite3.Connection, settlements: Sequence[Settlement], now: Instant, *, overdue: bool) -> work.Settled:
    """Record ends, each as the end of the worker that has the attempt or handed it over."""
    verdicts, finished = [], False
    earliest: list[Instant] = []
    for settlement in settlements:
        sender = _take_back(connection, settlement, now, overdue=overdue)
        if sender is None:
            before = connection.execute(SQL.settled_by_report, {"id": settlement.id, "attempt": settlement.attempt}).fetchone()
            verdicts.append(SettleVerdict.STALE if before is None or overdue else SettleVerdict.ALREADY)
            continue
        settled = work.settle(connection, sender, [settlement], now)
        verdicts += settled.verdicts
        finished = finished or settled.finished
        earliest += [] if settled.earliest is None else [settled.earliest]
    return work.Settled(verdicts, finished, min(earliest, default=None), False, False)


def _take_back(connection: sqlite3.Connection, settlement: Settlement, now: Instant, *, overdue: bool) -> str | None:
    """Return the worker whose attempt this is; an accepted one is its sender's again. None: it is nobody's, or not overdue."""
    row = connection.execute(SQL.holder_of, (settlement.id, settlement.attempt)).fetchone()
    if row is None:
        return None
    worker, sender, report_at, task = row
    if overdue and (report_at is None or report_at > now):
        return None
    if worker != NO_WORKER:
        return str(worker)
    connection.execute(SQL.delete_deadline, (task,))
    connection.execute(SQL.give_back_accepted, (sender, task))
    return str(sender)


def hear(connection: sqlite3.Connection, reports: Sequence[Report], now: Instant) -> list[Heard]:
    return [_hear_one(connection, report, now) for report in reports]


def _hear_one(connection: sqlite3.Connection, report: Report, now: Instant) -> Heard:
    extend = None if report.extend is None else round(report.extend * SECOND)
    facts = {"id": report.id, "attempt": report.attempt, "extend": extend, "now": now}
    row = connection.execute(SQL.hear_accepted, facts).fetchone()
    if row is None:
        return Heard(SettleVerdict.STALE)
    task, report_at = row
    marks = {"task": task, "fraction": report.fraction, "text": report.text}
    (cancelling,) = connection.execute(SQL.mark_accepted, marks).fetchone()
    return Heard(SettleVerdict.ACCEPTED, bool(cancelling), report_at)


def open_attempts(connection: sqlite3.Connection, ids: Sequence[str]) -> list[OpenAttempt]:
    rows = connection.execute(SQL.open_attempts, (write_json(list(ids)),)).fetchall()
    return [OpenAttempt(read_running_task(row[:-2]), *row[-2:]) for row in rows]


def overdue(connection: sqlite3.Connection, limit: int, now: Instant) -> list[OpenAttempt]:
    ids = [id for (id,) in connection.execute(SQL.overdue_ids, (now, limit)).fetchall()]
    return open_attempts(connection, ids)


def withdrawals(connection: sqlite3.Connection, handlers: Sequence[str], limit: int) -> list[tuple[Withdrawal, int]]:
    rows = connection.execute(SQL.withdrawals, (write_json(list(handlers)), limit)).fetchall()
    return [(Withdrawal(id, attempt, location), task) for id, attempt, location, task in rows]


def take_withdrawals(connection: sqlite3.Connection, handlers: Sequence[str], limit: int) -> list[Withdrawal]:
    found = withdrawals(connection, handlers, limit)
    connection.executemany(SQL.forget_location, [(task,) for _, task in found])
    return [each for each, _ in found]


class Accepting(work.Working):
    """Attempts whose work somebody outside has accepted."""

    async def accept(self, worker: str, acceptances: Sequence[Acceptance]) -> list[SettleVerdict]:
        if not acceptances:
            return []
        return await self._write(lambda connection: accept(connection, worker, acceptances, self._clock.now()))

    async def complete(self, settlements: Sequence[Settlement], *, overdue: bool = False) -> list[SettleVerdict]:
        if not settlements:
            return []

        def job(connection: sqlite3.Connection) -> work.Settled:
            settled = complete(connection, settlements, now := self._clock.now(), overdue=overdue)
            earliest = self._leave(connection, work.left_by(settlements, settled), now)
            return settled if earliest is None else settled._replace(earliest=min(earliest, settled.earliest or earliest))

        settled = await self._write(job)
        if settled.earliest is not None:
            self._hint(HintKind.DUE, settled.earliest)
        if settled.finished:
            self._hint(HintKind.DONE)
        return settled.verdicts

    async def hear(self, reports: Sequence[Report]) -> list[Heard]:
        if not reports:
            return []
        return await self._write(lambda connection: hear(connection, reports, self._clock.now()))

    async def open_attempts(self, ids: Sequence[str]) -> list[OpenAttempt]:
        if not ids:
            return []
        return await self._read(lambda connection: open_attempts(connection, ids))

    async def take_withdrawals(self, handlers: Sequence[str], limit: int) -> list[Withdrawal]:
        # mostly there are none, and then nobody should wait for the file's write lock
        if not await self._read(lambda connection: withdrawals(connection, handlers, 1)):
            return []
        return await self._write(lambda connection: take_withdrawals(connection, handlers, limit))

    async def overdue(self, limit: int) -> list[OpenAttempt]:
        return await self._read(lambda connection: overdue(connection, limit, self._clock.now()))
