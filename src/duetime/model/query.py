"""Filters over tasks, and the cursors of their pages."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.ids import id_bounds
from duetime.model.failures import check_fingerprint
from duetime.model.task import FINAL, State, TaskRecord

MAX_PAGE = 1_000
MAX_PAGE_BYTES = 8 * 1_024 * 1_024  # of payloads, results and errors: a thousand tasks can have two gigabytes of them

MIN_ID_PREFIX = 4
USUAL_SCAN = 20_000  # tasks that a page looks at one by one: about half a second
MOST_SCANNED = 1_000_000
MOST_COUNTED = 1_000_000
USUAL_COUNT = 100_000
BRIEF = 300  # characters of a payload
OF_THE_PAGE = frozenset({"limit", "cursor", "brief", "scan", "each"})  # fields that say how matches are shown, not what matches

T = TypeVar("T")


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A filter over tasks; all given parts must hold. Bounds in time are `after` inclusive, `before` exclusive.

    `states`: any of these. `handler` may have a `*` for any characters. `id_prefix` is how their ids begin: a range of ids, which stores
    look up and do not search for. Bounds of priority are inclusive. `worker` is how the id of the worker begins that runs them or ran
    them last. `meta` has entries that theirs must have. `payload` has texts by path (`order.lines.0.sku`): that of a text is itself, of
    anything else its JSON. `mine`: those that whoever asks has submitted. `fingerprint` is the kind of failure that finished tasks
    ended with (`model.failures`).

    Tasks are looked at one by one for `error`, `worker`, `submitted_by`, `meta` and `payload`, and for live and final states together. A
    page then ends after `scan` of them, whether or not it is full. `brief`: payloads are cut, results and tracebacks left out.
    `each`: the page says what the cursor after each of its tasks is.
    """

    state: State | None = None
    states: tuple[State, ...] = ()
    handler: str | None = None
    collection: str | None = None
    key: str | None = None
    schedule: str | None = None
    retrying: bool | None = None
    parked: bool | None = None
    due_after: Instant | None = None
    due_before: Instant | None = None
    submitted_after: Instant | None = None
    submitted_before: Instant | None = None
    finished_after: Instant | None = None
    finished_before: Instant | None = None
    error: str | None = None
    fingerprint: str | None = None
    logs: str | None = None
    id_prefix: str | None = None
    priority_min: int | None = None
    priority_max: int | None = None
    worker: str | None = None
    submitted_by: str | None = None
    mine: bool | None = None
    meta: dict[str, str] = {}
    payload: dict[str, str] = {}
    limit: int = 100
    cursor: str | None = None
    brief: bool = False
    scan: int = USUAL_SCAN
    each: bool = False

    def __post_init__(self) -> None:
        for bound in (self.priority_min, self.priority_max):
            if bound is not None and not 0 <= bound <= 9:
                raise InvalidValue(f"priority must be 0–9, got {bound}")
        if not 1 <= self.scan <= MOST_SCANNED:
            raise InvalidValue(f"scan must lie between 1 and {MOST_SCANNED:,}, got {self.scan}")
        if not 1 <= self.limit <= MAX_PAGE:
            raise InvalidValue(f"limit must lie between 1 and {MAX_PAGE}, got {self.limit}")
        if self.fingerprint is not None:
            check_fingerprint(self.fingerprint)
        if self.id_prefix is not None and not is_id_prefix(self.id_prefix):
            raise InvalidValue(f"id_prefix must be how a task id begins, {MIN_ID_PREFIX} characters or more, got {self.id_prefix[:80]!r}")

    def by(self, user: str) -> Query:
        """Return the query for a user: `mine` becomes what they have submitted. Stores know no user, and find nothing by `mine`."""
        if not self.mine:
            return self if self.mine is None else msgspec.structs.replace(self, mine=None)
        if self.submitted_by not in (None, user):
            raise InvalidValue(f"these are the tasks of {user} only, not those of {self.submitted_by}; leave submitted_by out")
        return msgspec.structs.replace(self, mine=None, submitted_by=user)

    @property
    def wanted(self) -> tuple[State, ...]:
        """The states that match, in the order of the life cycle; none if every state does."""
        if not self.states:
            return () if self.state is None else (self.state,)
        return tuple(each for each in State if each in self.states and self.state in (None, each))

    @property
    def nothing(self) -> bool:
        """Whether no task can match, by the states alone."""
        return bool(self.states) and not self.wanted

    @property
    def only_state(self) -> State | None:
        """The one state that matches, if it is one."""
        return self.wanted[0] if len(self.wanted) == 1 else None

    @property
    def by_end(self) -> bool:
        """Whether the list is by end, the latest first: so it is if only final states match."""
        return bool(self.wanted) and all(state in FINAL for state in self.wanted)

    @property
    def mixed(self) -> bool:
        """Whether some live and some final states match. They are in different tables, or along different indexes."""
        return len({state in FINAL for state in self.wanted}) > 1

    @property
    def walks(self) -> bool:
        """Whether tasks have to be looked at one by one to see if they match."""
        return self.mixed or bool(self.mine or self.error or self.worker or self.submitted_by or self.meta or self.payload)

    @property
    def id_bounds(self) -> tuple[str, str] | None:
        """The least and the greatest id that match; None without `id_prefix`."""
        return None if self.id_prefix is None else id_bounds(self.id_prefix)


def check_count(limit: int) -> int:
    if not 0 <= limit <= MOST_COUNTED:
        raise InvalidValue(f"counting goes up to a limit of at most {MOST_COUNTED:,}, got {limit}")
    return limit


def is_id_prefix(text: str) -> bool:
    """Return whether ids can be looked for by how they begin; with too few characters nearly all would match."""
    return len(text) >= MIN_ID_PREFIX and id_bounds(text) is not None


class Page(msgspec.Struct, frozen=True):
    """Some tasks and the cursor of the next page, None on the last.

    `looked` is at how many tasks it was looked one by one, if that ended the page before it was full: more may match further on.
    `cursors` are those after each task, if they were asked for.
    """

    items: list[TaskRecord]
    next: str | None
    looked: int | None = None
    cursors: Sequence[str] = ()


class TaskCount(msgspec.Struct, frozen=True):
    """How many tasks match. `more`: counting ended at its bound, and there are more, or may be."""

    count: int
    more: bool


def page_of(rows: Iterable[T], limit: int, size: Callable[[T], int]) -> tuple[list[T], bool]:
    """Return the rows that fit into a page, at least one, and whether more follow. Takes no row beyond the first that does not fit."""
    page: list[T] = []
    left = MAX_PAGE_BYTES
    for row in rows:
        left -= size(row)
        if len(page) == limit or (page and left < 0):
            return page, True
        page.append(row)
    return page, False


def fits_pattern(pattern: str, name: str) -> bool:
    """Return whether a name fits a pattern, in which `*` stands for any characters."""
    first, *parts = pattern.split("*")
    if not parts:
        return name == pattern
    if not name.startswith(first):
        return False
    at = len(first)
    for part in parts[:-1]:
        at = name.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return len(name) - at >= len(parts[-1]) and name.endswith(parts[-1])


def parse_state(text: str) -> State:
    try:
        return State(text)
    except ValueError:
        raise InvalidValue(f"state must be one of {', '.join(State)}, got {text!r}") from None


def write_cursor(*position: int | str) -> str:
    """Encode a position in a list as opaque text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def read_cursor(cursor: str, *kinds: type) -> list[Any]:
    """Decode a cursor. It comes from outside, so everything that `write_cursor` cannot have written is refused."""
    position: list[Any] | None
    try:
        position = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError, msgspec.DecodeError):
        position = None
    if (
        not isinstance(position, list)
        or [type(part) for part in position] != list(kinds)
        or any(isinstance(part, int) and not 0 <= part < 2**63 for part in position)
    ):
        raise InvalidValue(f"cursor is not one that this list gave out: {cursor[:80]!r}; begin again without it")
    return position
