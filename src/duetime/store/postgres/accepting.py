"""Accepted attempts in the database: each stands in a claim of its own that no worker holds, with a row that says when it times out."""

from __future__ import annotations

from collections.abc import Sequence

from duetime.clock import SECOND, Instant
from duetime.model.outcome import Acceptance, Outcome, Settlement, SettleVerdict
from duetime.store.accepting import CANCEL_WITHIN, Heard, OpenAttempt, Report, Withdrawal
from duetime.store.postgres.records import is_uuid, known_form
from duetime.store.postgres.runner import Runner
from duetime.store.postgres.work import Working, columns
from duetime.store.rows.extras import read_running_task
from duetime.store.values import HintKind

ROUNDS = 3  # an attempt moves once between two looks: from its worker to nobody, or to its end


class Accepting(Working):
    """Attempts whose work somebody outside has accepted."""

    async def accept(self, worker: str, acceptances: Sequence[Acceptance]) -> list[SettleVerdict]:
        said = {(each.id, each.attempt): each for each in acceptances if is_uuid(each.id)}
        taken: set[tuple[str, int]] = set()
        before: set[tuple[str, int]] = set()
        if said:
            ids, attempts = [id for id, _ in said], [attempt for _, attempt in said]
            silences = [None if each.silence is None else round(each.silence * SECOND) for each in said.values()]
            deadlines = [each.deadline_at for each in said.values()]
            locations = [each.location for each in said.values()]
            parameters = [self._clock.parameter, worker, ids, attempts, deadlines, silences, locations, CANCEL_WITHIN]
            [[indexes]] = await self._opened.rows(self._sql.accept, parameters)
            self._claims.forget_attempts(worker, ids)
            taken = {key for index, key in enumerate(said, 1) if index in set(indexes)}
            if len(taken) < len(acceptances):
                rows = await self._opened.rows(self._sql.accepted_from, [worker, ids, attempts])
                outcomes = [Outcome.SUCCEEDED.value] * len(ids)
                rows += await self._opened.rows(self._sql.settled_before, [worker, ids, attempts, outcomes])
                before = {(row[0], row[1]) for row in rows}
        return _verdicts([(each.id, each.attempt) for each in acceptances], taken, before)

    async def complete(self, settlements: Sequence[Settlement], *, overdue: bool = False) -> list[SettleVerdict]:
        said = {(each.id, each.attempt): each for each in settlements if is_uuid(each.id)}
        taken: set[tuple[str, int]] = set()
        before: set[tuple[str, int]] = set()
        finals, earliest = 0, None
        for _ in range(ROUNDS if not overdue else 1):
            left = [each for key, each in said.items() if key not in taken]
            if not left:
                break

            async def job(run: Runner, left: list[Settlement] = left) -> tuple[set[tuple[str, int]], int, Instant | None]:
                return await self._end(run, left, overdue=overdue)

            ended, more, at = await self._opened.transaction(job)
            taken |= ended
            finals += more
            earliest = at if earliest is None else min(earliest, at if at is not None else earliest)
            left = [each for each in left if (each.id, each.attempt) not in taken]
            if not left or overdue or not await self.open_attempts([each.id for each in left]):
                break
        if earliest is not None:
            self._hint(HintKind.DUE, earliest)
        if finals:
            self._hint(HintKind.DONE)
        if taken:
            await self.leave_limits_of(sorted(taken))
        if len(taken) < len(settlements) and said and not overdue:
            parameters = [[id for id, _ in said], [attempt for _, attempt in said]]
            before = {(row[0], row[1]) for row in await self._opened.rows(self._sql.settled_by_report, parameters)}
        return _verdicts([(each.id, each.attempt) for each in settlements], taken, before)

    async def _end(
        self, run: Runner, settlements: Sequence[Settlement], *, overdue: bool
    ) -> tuple[set[tuple[str, int]], int, Instant | None]:
        """End attempts in one transaction, each as the end of the worker that has it or handed it over."""
        now = self._clock.parameter
        [[now_at]] = await run.rows(self._sql.begin_adding, [now])
        ids, attempts = [each.id for each in settlements], [each.attempt for each in settlements]
        rows = list(await run.rows(self._sql.give_back, [now, ids, attempts, overdue]))
        missing = {each.id for each in settlements} - {row[0] for row in rows}
        if missing and not overdue:
            rows += await run.rows(self._sql.claims_of_attempts, [sorted(missing)])
        holders = {(row[0], row[1]): (row[2], row[3]) for row in rows}
        by_worker: dict[str, list[Settlement]] = {}
        for each in settlements:
            if (each.id, each.attempt) in holders:
                by_worker.setdefault(holders[each.id, each.attempt][0], []).append(each)
        ended: set[tuple[str, int]] = set()
        finals, earliest = 0, None
        for worker in sorted(by_worker):
            group = by_worker[worker]
            numbers = sorted({holders[each.id, each.attempt][1] for each in group})
            [[accepted, more, at]] = await run.rows(self._sql.settle, [now_at, worker, numbers, *columns(group)])
            indexes = range(1, len(group) + 1) if accepted is None else set(accepted)
            ended |= {(each.id, each.attempt) for index, each in enumerate(group, 1) if index in indexes}
            finals += more
            earliest = at if earliest is None else min(earliest, at if at is not None else earliest)
        return ended, finals, earliest

    async def hear(self, reports: Sequence[Report]) -> list[Heard]:
        said = {(each.id, each.attempt): each for each in reports if is_uuid(each.id)}
        heard: dict[tuple[str, int], Heard] = {}
        if said:
            newest = said.values()
            extends = [None if each.extend is None else round(each.extend * SECOND) for each in newest]
            facts = [[each.id for each in newest], [each.attempt for each in newest], extends, [each.fraction for each in newest]]
            rows = await self._opened.rows(self._sql.hear_accepted, [self._clock.parameter, *facts, [each.text for each in newest]])
            heard = {(row[0], row[1]): Heard(SettleVerdict.ACCEPTED, row[3], row[2]) for row in rows}
        return [heard.get((each.id, each.attempt), Heard(SettleVerdict.STALE)) for each in reports]

    async def open_attempts(self, ids: Sequence[str]) -> list[OpenAttempt]:
        wanted = known_form(ids)
        rows = await self._opened.rows(self._sql.open_by_id, [wanted]) if wanted else []
        return [OpenAttempt(read_running_task(row[:-2]), *row[-2:]) for row in rows]

    async def take_withdrawals(self, handlers: Sequence[str], limit: int) -> list[Withdrawal]:
        return [Withdrawal(*row) for row in await self._opened.rows(self._sql.take_withdrawals, [list(handlers), limit])]

    async def overdue(self, limit: int) -> list[OpenAttempt]:
        rows = await self._opened.rows(self._sql.overdue_ids, [self._clock.parameter, limit])
        ids = {row[0]: index for index, row in enumerate(rows)}
        return sorted(await self.open_attempts(list(ids)), key=lambda each: ids[each.task.id])


def _verdicts(said: Sequence[tuple[str, int]], taken: set[tuple[str, int]], before: set[tuple[str, int]]) -> list[SettleVerdict]:
    """Answer in the order of the batch; what is said twice in one call counts once."""
    verdicts, left = [], set(taken)
    for key in said:
        if key in left:
            left.remove(key)
            verdicts.append(SettleVerdict.ACCEPTED)
        else:
            verdicts.append(SettleVerdict.ALREADY if key in taken or key in before else SettleVerdict.STALE)
    return verdicts
