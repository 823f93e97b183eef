"""Reading: tasks by id, key and filter, attempts, counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.outcome import AttemptRecord, Outcome
from duetime.model.query import (
    BRIEF,
    MAX_PAGE,
    MAX_PAGE_BYTES,
    USUAL_COUNT,
    Page,
    Query,
    TaskCount,
    fits_pattern,
    page_of,
    read_cursor,
    write_cursor,
)
from duetime.model.scan import NOTHING, Found, Scan, counted
from duetime.model.task import Edge, State, TaskRecord
from duetime.model.text_search import read_terms
from duetime.store.postgres import output
from duetime.store.postgres.database import OpenSchema
from duetime.store.postgres.gates import read_names
from duetime.store.postgres.records import all_records_by_id, is_uuid, live_tasks, read_detail, read_error, read_record, since
from duetime.store.postgres.runner import Runner
from duetime.store.sql import Statements
from duetime.store.values import MOST_COUNTED, MOST_IN_LANE, Counts, FinalCount, HandlerLoad, LaneCount, RunningAttempt


class _Source(NamedTuple):
    """Where some live tasks are found, and what tells their id, lane, due time, tries and time of submitting there.

    Where two tables have the id both are named: the planner does not see that what bounds the one bounds the other.
    """

    picked: str
    ids: tuple[str, ...]
    due: str
    tries: str
    lane: str = "t.lane"
    submitted: str = "t.submitted_at"
    opened: bool = False

    def put_into(self, text: str) -> str:
        names = {
            "$id": self.ids[0],
            "$task": self.ids[0],
            "$due": self.due,
            "$tries": self.tries,
            "$lane": self.lane,
            "$submitted": self.submitted,
        }
        for name, column in names.items():
            text = text.replace(name, column)
        return text


_WAITING_TRIES = "coalesce(d.tries, h.tries, 0)"
_ROWS = _Source("picked_rows", ("t.id",), "", _WAITING_TRIES)
_ROWS_BY_DUE = _Source("picked_rows_open", ("t.id",), "coalesce(d.due_at, h.due_at, r.due_at)", _WAITING_TRIES, opened=True)
_RETRYING = _Source("picked_retrying", ("t.id",), "d.due_at", "d.tries")
_DUE = _Source("picked_due", ("d.id",), "d.due_at", "d.tries", "d.lane", "coalesce(d.submitted_at, t.submitted_at)")
_DUE_ROWS = _Source("picked_due_rows", ("t.id", "d.id"), "d.due_at", "d.tries", "d.lane")
_HELD = _Source("picked_held", ("t.id", "h.id"), "h.due_at", "h.tries")
_PARKED = _Source("picked_parked", ("t.id", "h.id"), "h.due_at", "h.tries")
_OPEN = _Source("picked_open", ("r.id",), "r.due_at", "0", "r.lane", "coalesce(t.submitted_at, r.submitted_at)", opened=True)
_ALL_WHOLE = _Source("picked_all_whole", ("r.id",), "r.due_at", "0", "r.lane", "r.submitted_at")
_WHOLE = _Source("picked_whole", ("r.id",), "r.due_at", "0", "r.lane", "r.submitted_at")
_FINISHED = _Source("", ("t.id",), "", "")
_BY_STATE = {State.PENDING: _DUE, State.BLOCKED: _HELD, State.RUNNING: _OPEN}
_FINALS = {
    State.SUCCEEDED: "final_succeeded",
    State.FAILED: "final_failed",
    State.CANCELLED: "final_cancelled",
    State.DROPPED: "final_dropped",
    State.EXPIRED: "final_expired",
}
_FILTERS = {
    "key": "only_key",
    "schedule": "only_schedule",
    "submitted_after": "only_submitted_after",
    "submitted_before": "only_submitted_before",
}
_LIVE_FILTERS = _FILTERS | {
    "due_after": "only_place_due_after",
    "due_before": "only_place_due_before",
}
_FINAL_FILTERS = _FILTERS | {
    "due_after": "only_due_after",
    "due_before": "only_due_before",
    "finished_after": "only_finished_after",
    "finished_before": "only_finished_before",
    "fingerprint": "only_fingerprint",
}
_ONLY_FINAL = ("finished_after", "finished_before", "error", "fingerprint")


def _sources(query: Query) -> list[_Source]:
    """Return where to look for live tasks; a task that two sources have is told once."""
    rows_only = query.key is not None or query.schedule is not None  # a task that is stored whole in one table has neither
    if query.wanted:
        found = [_BY_STATE[state] for state in query.wanted if state is not State.PENDING]
        if State.PENDING not in query.wanted:
            return found
        due = _DUE_ROWS if rows_only else _DUE
        return [*found, *([_PARKED] if query.parked else [due] if query.parked is False else [due, _PARKED])]
    if query.parked:
        return [_PARKED]
    if query.retrying:
        return [_RETRYING]
    rows = _ROWS if query.due_after is None and query.due_before is None else _ROWS_BY_DUE
    return [rows] if rows_only else [rows, _DUE]


class _Composition:
    """A page's statement, put together from named parts: a filter that is not given must not keep an index from being used.

    Parts have gaps: `$value` and `$instant` become numbers of parameters; `$id`, `$lane`, `$submitted`, `$due` and `$tries` become
    columns of the source that the part is put into (`_Source.put_into`); `$kinds`, `$whole` and `$page` become whole selects; `$limit` and
    `$bytes` become numbers in the text. (Elsewhere `$tasks` is the columns of new tasks, `%partition` and `%parent` are names of tables,
    `%counted` is a select.) To run a page by hand, take its text from the server's log.
    """

    def __init__(self, sql: Statements, query: Query, lanes: list[int] | None, handlers: list[str] | None = None) -> None:
        self._sql = sql
        self._query = query
        self._lanes = lanes
        self._handlers = handlers
        self._numbers: dict[str, int] = {}
        self.parameters: list[Any] = []
        self.by_end = query.by_end
        self._after = self._read_cursor(query.cursor)
        self._terms = [] if query.logs is None else read_terms(query.logs)

    def _read_cursor(self, cursor: str | None) -> list[Any] | None:
        if cursor is None:
            return None
        after = read_cursor(cursor, int, str) if self.by_end else read_cursor(cursor, str)
        if not is_uuid(after[-1]):
            raise InvalidValue(f"cursor is not one that this list gave out: {cursor[:80]!r}; begin again without it")
        return after

    def _number(self, name: str, value: object) -> str:
        """Return the parameter that carries a value; both halves of a statement may use it."""
        if name not in self._numbers:
            self.parameters.append(value)
            self._numbers[name] = len(self.parameters)
        return f"${self._numbers[name]}"

    def _part(self, part: str, name: str, value: object) -> str:
        text: str = getattr(self._sql, part)
        return text.replace("$value", self._number(name, value))

    def _conditions(self, filters: dict[str, str], any_part: str, ids: Sequence[str] = ("t.id",)) -> list[str]:
        conditions = []
        if self._lanes is not None:
            conditions += [self._part(part, "lanes", self._lanes) for part in (any_part, "only_lanes")]
        if self._handlers is not None:
            conditions.append(self._part("only_handlers", "handlers", self._handlers))
        for name, part in filters.items():
            value = getattr(self._query, name)
            if value is not None:
                conditions.append(self._part(part, name, value))
        if self._query.submitted_before is not None and not self.by_end:  # in the order of ends it would not say where to begin
            before = self._part("only_ids_before", "submitted_before", self._query.submitted_before)
            conditions += [before.replace("$id", each) for each in ids]
        if self._query.id_bounds is not None:
            for part, bound in zip(("only_ids_from", "only_ids_to"), self._query.id_bounds, strict=True):
                conditions += [self._part(part, part, bound).replace("$id", each) for each in ids]
        for number, term in enumerate(self._terms):
            conditions.append(self._part("only_logs", f"logs {number}", output.query(term)))
        if self._after is not None and self.by_end:
            conditions.append(self._part("beyond_instant", "instant", self._after[0]))
            beyond = self._part("beyond_finished", "id", self._after[1])
            conditions.append(beyond.replace("$instant", self._number("instant", self._after[0])))
        elif self._after is not None:
            beyond = self._part("beyond_id", "id", self._after[0])
            conditions += [beyond.replace("$id", each) for each in ids]
        return conditions

    @property
    def text(self) -> str:
        """Return a statement that walks one index of each table from the newest task on, and stops after a page."""
        sql = self._sql
        if self.by_end:
            halves = [f"{sql.final_records}\n{part}\n{sql.by_finish}" for part in self._finals()]
            if len(halves) == 1:
                return halves[0]
            return "select * from (\n(" + ")\nunion all\n(".join(halves) + f")\n) as t\n{sql.merged_by_finish}"
        head, halves = "", []
        if self._some_live:
            head = self._live_head()
            halves.append(f"({sql.live_records})")
        if self._some_final:
            halves.append(f"({sql.final_records}\n{sql.final_all}\n{self._final_where()}\n{_FINISHED.put_into(sql.by_id)})")
        if not halves:
            return ""
        return f"{head}\nselect * from (\n" + "\nunion all\n".join(halves) + f"\n) as t\n{sql.merged_by_id}"

    @property
    def count(self) -> str:
        """Return a statement that counts what a list would have, up to the limit, without reading it."""
        sql = self._sql
        if self.by_end:
            finals = [f"(select t.id {part} limit $limit)" for part in self._finals()]
            return sql.count_matches.replace("$matches", "\nunion all\n".join(finals))
        head, halves = "", []
        if self._some_live:
            sources = _sources(self._query)
            if not self._query.wanted and len(sources) > 1:
                sources = [*sources, _ALL_WHOLE]
            head = f"with {sql.open}\n" if any(source.opened for source in sources) else ""
            halves += [f"({self._picked(source)})" for source in sources]
        if self._some_final:
            halves.append(f"(select t.id {sql.final_all}\n{self._final_where()}\nlimit $limit)")
        return head + sql.count_matches.replace("$matches", "\nunion\n".join(halves)) if halves else ""

    @property
    def _some_live(self) -> bool:
        return all(getattr(self._query, name) is None for name in _ONLY_FINAL)

    @property
    def _some_final(self) -> bool:
        return not self._query.wanted and self._query.retrying is not True and not self._query.parked

    def _finals(self) -> list[str]:
        """Return where to look for tasks in each of the final states."""
        where = self._final_where()
        return [f"{getattr(self._sql, _FINALS[state])}\n{where}" for state in self._query.wanted]

    def _live_head(self) -> str:
        sql, sources = self._sql, _sources(self._query)
        kinds = [self._picked(source) for source in sources]
        before = [sql.open] if any(source.opened for source in sources) else []
        if len(kinds) == 1:
            return live_tasks(sql, kinds[0], *before)
        if self._query.wanted:
            return live_tasks(sql, sql.either.replace("$kinds", "\nunion all\n".join(f"({kind})" for kind in kinds)), *before)
        # what has neither a row nor a due entry runs, and is sought only as far back as a page of the others goes
        firsts = sql.firsts.replace("$kinds", "\nunion all\n".join(f"({kind})" for kind in kinds))
        return live_tasks(sql, sql.anywhere.replace("$whole", self._picked(_WHOLE)), *before, firsts)

    def _picked(self, source: _Source) -> str:
        conditions = self._conditions(_LIVE_FILTERS, "any_live", source.ids)
        if self._query.retrying is not None:
            conditions.append(self._sql.only_retrying if self._query.retrying else self._sql.only_untried)
        if self._query.parked is False and not self._query.wanted:
            conditions.append(self._sql.only_unparked)
        return source.put_into(f"{getattr(self._sql, source.picked)}\n{_where(conditions)}\n{self._sql.by_id}")

    def _final_where(self) -> str:
        conditions = self._conditions(_FINAL_FILTERS, "any_final")
        if self._query.error is not None:  # what is in it is looked at one by one
            conditions.append(self._sql.only_with_error)
        return _FINISHED.put_into(_where(conditions))


def _where(conditions: Sequence[str]) -> str:
    return "where " + "\nand ".join(conditions) if conditions else ""


async def attempts_of(run: Runner, sql: Statements, worker: str) -> list[RunningAttempt]:
    return [RunningAttempt(*row) for row in await run.rows(sql.attempts_of_worker, [worker])]


async def find_by_key(run: Runner, sql: Statements, handler: str, key: str) -> TaskRecord | None:
    """Return the live task that has a key, or the latest finished one that had it."""
    text = f"{live_tasks(sql, sql.picked_key)}\n({sql.live_records})\nunion all\n({sql.final_records}\n{sql.final_by_key})"
    rows = await run.rows(text, [handler, key])
    return read_record(rows[0]) if rows else None


class LookingUp(OpenSchema):
    """Finds single tasks."""

    async def get(self, ids: Sequence[str]) -> list[TaskRecord | None]:
        if not ids:
            return []
        found = await all_records_by_id(self._opened, self._sql, ids)
        return [found.get(task_id) for task_id in ids]

    async def find(self, handler: str, key: str) -> TaskRecord | None:
        return await find_by_key(self._opened, self._sql, handler, key)

    async def unmet_edges(self, task: str) -> list[Edge]:
        return [Edge(*row) for row in await self._opened.rows(self._sql.unmet_edges, [task])] if is_uuid(task) else []

    async def attempts(self, task: str, *, after: int = 0, limit: int | None = None) -> list[AttemptRecord]:
        database = self._opened
        if not is_uuid(task) or after >= 2**31:
            return []
        limit = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
        found = await database.rows(self._sql.attempts_of_task, [task, since([task]), after, limit, MAX_PAGE_BYTES])
        if (not found or found[0][0] != after + 1) and since([task]):
            # the clock that its id was made by may have been far ahead; see `all_records_by_id`
            found = await database.rows(self._sql.attempts_of_task, [task, 0, after, limit, MAX_PAGE_BYTES])
        rows, _ = page_of(found, limit, lambda row: len(row[-1] or "") + len(row[-2] or ""))
        return [
            AttemptRecord(
                *(attempt, None if outcome is None else Outcome(outcome), worker, started_at, finished_at),
                *(read_error(error), read_detail(detail)),
            )
            for attempt, outcome, worker, started_at, finished_at, detail, error in rows
        ]


class Listing(OpenSchema):
    """Lists and counts tasks."""

    async def page(self, query: Query) -> Page:
        """Return a page by id, which begins with the millisecond of submitting; those of one millisecond may be in any order.

        An id never changes, so a task that moves from a lane into history between two pages is met once.
        """
        scan = Scan(query)
        while (wanted := scan.next_query()) is not None:
            scan.take(await self._read_page(wanted))
        return scan.page

    async def _read_page(self, query: Query) -> Found:
        """Return a page by what the statements can tell of a filter; `Scan` does the rest."""
        composition = await self._compose(query)
        if composition is None or not (text := composition.text):
            return NOTHING
        text = text.replace("$limit", str(int(query.limit) + 1))
        whole = (self._sql.brief_page if query.brief else self._sql.bounded_page).replace("$brief", str(BRIEF + 1))
        text = whole.replace("$page", text).replace("$bytes", str(MAX_PAGE_BYTES))
        rows, more = page_of(await self._opened.rows(text, composition.parameters), query.limit, lambda row: row[-3])
        items = [read_record(row[:-3]) for row in rows]

        def after(index: int) -> str:
            last = items[index]
            return write_cursor(last.finished_at or 0, last.id) if query.by_end else write_cursor(last.id)

        return Found(items, after(-1) if more else None, after)

    async def _compose(self, query: Query) -> _Composition | None:
        """Look up lanes first: they are never removed, and the server plans better for those that it knows. None: nothing matches."""
        database, sql = self._opened, self._sql
        if (query.retrying and query.by_end) or (query.parked and query.wanted and State.PENDING not in query.wanted):
            return None
        lanes = handlers = pattern = None
        handler = query.handler
        if handler is not None and "*" in handler:
            names = await read_names(database, sql)
            every = [row[0] for row in await database.rows(sql.handlers_of, [None])]
            pattern, handler = [name for name in every if fits_pattern(handler, names.present(name))], None
        bounds = (query.collection, pattern, query.priority_min, query.priority_max)
        if handler is not None or any(bound is not None for bound in bounds):
            lanes = [row[0] for row in await database.rows(sql.lanes_of, [handler, *bounds])]
            if not lanes:
                return None
        if query.key is not None:
            handlers = pattern or [row[0] for row in await database.rows(sql.handlers_of, [handler])]
        return _Composition(sql, query, lanes, handlers)

    async def count(self, query: Query, limit: int = USUAL_COUNT) -> TaskCount:
        if query.walks:
            return await counted(self.page, query, limit)
        composition = None if query.nothing else await self._compose(msgspec.structs.replace(query, cursor=None))
        if composition is None or not (text := composition.count):
            return TaskCount(0, False)
        [[number]] = await self._opened_patiently.rows(text.replace("$limit", str(int(limit) + 1)), composition.parameters)
        return TaskCount(min(number, limit), number > limit)

    async def counts(self, limit: int = MOST_IN_LANE) -> Counts:
        rows = await self._opened_patiently.rows(self._sql.counts, [self._clock.parameter, limit + 1])
        now_at: Instant = 0
        lanes, finals = [], []
        for kind, number, handler, collection, priority, due, later, blocked, running, oldest, state, parked, accepted in rows:
            match kind:
                case "now":
                    now_at = number
                case "lane":
                    lanes.append(
                        LaneCount(
                            handler=handler,
                            collection=collection or None,
                            priority=priority,
                            due=min(due, limit),
                            later=later,
                            blocked=blocked,
                            running=running,
                            oldest_due_at=oldest,
                            parked=parked,
                            accepted=accepted,
                            more=due > limit,
                        )
                    )
                case _:
                    finals.append(FinalCount(handler, State(state), number))
        lanes.sort(key=lambda lane: (lane.handler, lane.collection or "", lane.priority))
        finals.sort(key=lambda final: (final.handler, final.state))
        return Counts(now_at, lanes, finals)

    async def handler_load(self, handler: str) -> HandlerLoad:
        [[due, oldest]] = await self._opened.rows(self._sql.handler_load, [self._clock.parameter, handler, MOST_COUNTED + 1])
        return HandlerLoad(due=min(due, MOST_COUNTED), more=due > MOST_COUNTED, oldest_due_at=oldest)

    async def upcoming(self, handler: str, limit: int) -> list[TaskRecord]:
        ids = [task_id for (task_id,) in await self._opened.rows(self._sql.upcoming, [handler, limit])]
        found = await all_records_by_id(self._opened, self._sql, ids) if ids else {}
        return [found[each] for each in ids if each in found and found[each].state is State.PENDING]  # some may have been claimed meanwhile
