"""Filters over tasks as one line of text, which addresses, commands and the pages share:

    state:failed handler:shop.* due:<1h priority:>=7 error:"timed out" meta.tenant:acme payload.order.id:7

A term is a name, a colon and a value; all terms must hold. A value with spaces or quotation marks stands between quotation marks, in which
a backslash comes before a quotation mark or another backslash.

| term | value |
| --- | --- |
| `TEXTS` | a text; `handler` may have a `*` |
| `state` | one or several, with commas between them |
| `priority` | a number, `>=7`, `<3`, or `3..5` with both ends |
| `due` | `<1h`: before an hour from now, `>2030-01-31`, `1h..2h`; `-1h` is an hour ago |
| `submitted`, `finished` | `<1h`: less than an hour ago, `>2d`: longer ago, `>=2030-01-31T07:00+01:00`, `1h..2h` |
| `retrying`, `parked`, `mine` | yes or no |
| `meta.NAME`, `payload.PATH` | a text |

An instant without a zone is in UTC. Whatever cannot be read is refused with its position and what was expected there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from duetime.clock import EARLIEST, LATEST, SECOND, Instant, to_datetime, to_instant
from duetime.errors import InvalidValue
from duetime.model.query import MIN_ID_PREFIX, Query, is_id_prefix
from duetime.model.rules.reading import read_duration
from duetime.model.task import State

LONGEST: Final = 4_000  # characters
TEXTS: Final = {  # names of terms that are texts, and the field of each
    "handler": "handler",
    "collection": "collection",
    "key": "key",
    "schedule": "schedule",
    "worker": "worker",
    "submitted_by": "submitted_by",
    "id": "id_prefix",
    "error": "error",
    "fingerprint": "fingerprint",
    "logs": "logs",
}
TIMES: Final = ("due", "submitted", "finished")
FLAGS: Final = ("retrying", "parked", "mine")
MAPS: Final = ("meta", "payload")
NAMES: Final = ("state", *TEXTS, "priority", *TIMES, *FLAGS, *(f"{name}.…" for name in MAPS))

_STATES = {state.value: state for state in State}
_YES_NO = {"yes": True, "true": True, "no": False, "false": False}
_BARE = re.compile(r'[^\s":]+')
_VALUE = re.compile(r'[^\s"]+')
_SPACE = re.compile(r"\s*")
_COMPARISON = re.compile(r"(<=|>=|<|>)")
_LIKE_ID = re.compile(r"[0-9a-f-]{8,36}")


class Term(NamedTuple):
    """A term, and where it, its value and its end are in the text. `quoted`: the value was between quotation marks."""

    name: str
    inner: str
    value: str
    at: int
    value_at: int
    quoted: bool


# ---- reading ----


def read_query(text: str, now: Instant) -> Query:
    """Return the filter that a text says. What it says relative to the present is counted from `now`."""
    if len(text) > LONGEST:
        raise InvalidValue(f"a query must have at most {LONGEST:,} characters, got {len(text):,}")
    reading = _Reading(text, now)
    for term in _terms(text):
        reading.take(term)
    try:
        return Query(**reading.parts)
    except InvalidValue as error:
        raise InvalidValue(f"the query cannot be read: {error}") from None


class _Reading:
    """Gathers the parts of a query, term by term."""

    def __init__(self, text: str, now: Instant) -> None:
        self._text = text
        self._now = now
        self.parts: dict[str, Any] = {}
        self._states: list[State] = []

    def take(self, term: Term) -> None:
        if term.name in MAPS:
            self._put_entry(term)
        elif not term.name:
            self._take_bare(term)
        elif term.inner:
            self._refuse(term.at, f"{term.name} has no parts; only {' and '.join(MAPS)} have")
        elif not term.value:
            self._refuse(term.value_at, f"{term.name} needs a value")
        elif term.name in TEXTS:
            self._take_text(term)
        elif term.name == "state":
            self._take_states(term)
        elif term.name == "priority":
            self._take_priority(term)
        elif term.name in TIMES:
            self._take_time(term)
        elif term.name in FLAGS:
            self._take_flag(term)
        else:
            self._refuse(term.at, f"there is no term {term.name[:80]!r}; there are {', '.join(NAMES)}")

    def _take_bare(self, term: Term) -> None:
        if term.quoted or not (_LIKE_ID.fullmatch(term.value) and is_id_prefix(term.value)):
            self._refuse(term.at, 'expected a term such as state:failed; to search for a text write error:"…" or logs:"…"')
        self._put(term, "id_prefix", term.value)

    def _take_text(self, term: Term) -> None:
        if term.name == "id" and not is_id_prefix(term.value):
            self._refuse(term.value_at, f"expected how a task id begins, {MIN_ID_PREFIX} characters or more")
        self._put(term, TEXTS[term.name], term.value)

    def _put_entry(self, term: Term) -> None:
        if not term.inner:
            self._refuse(term.at, f"{term.name} needs the name of an entry: {term.name}.tenant:acme")
        entries: dict[str, str] = self.parts.setdefault(term.name, {})
        if term.inner in entries:
            self._refuse(term.at, f"{term.name}.{term.inner[:80]} is given twice")
        entries[term.inner] = term.value

    def _take_states(self, term: Term) -> None:
        at = term.value_at + term.quoted
        for name in term.value.split(","):
            state = _STATES.get(name)
            if state is None:
                self._refuse(at, f"expected one of {', '.join(State)}")
            self._states.append(state)
            at += len(name) + 1
        states = tuple(state for state in State if state in self._states)
        self.parts.pop("states", None)
        self.parts.pop("state", None)
        self.parts |= {"state": states[0]} if len(states) == 1 else {"states": states}

    def _take_flag(self, term: Term) -> None:
        if term.value.lower() not in _YES_NO:
            self._refuse(term.value_at, "expected yes or no")
        self._put(term, term.name, _YES_NO[term.value.lower()])

    def _take_priority(self, term: Term) -> None:
        low, high = self._bounds(term, self._priority)
        if low is None and high is None:
            low = high = self._priority(term.value, term.value_at)
        for name, bound in (("priority_min", low), ("priority_max", high)):
            if bound is not None:
                if not 0 <= bound <= 9:
                    self._refuse(term.value_at, "no priority is beyond 0–9")
                self._put(term, name, bound)

    def _priority(self, text: str, at: int) -> int:
        if len(text) != 1 or text not in "0123456789":
            self._refuse(at, "expected a priority from 0 to 9, >=7, <3, or 3..5")
        return int(text)

    def _bounds(self, term: Term, read: Callable[[str, int], int]) -> tuple[int | None, int | None]:
        """Return both ends of a comparison or a range of whole numbers, each included."""
        at = term.value_at + term.quoted
        first, dots, last = term.value.partition("..")
        if dots:
            return read(first, at), read(last, at + len(first) + 2)
        comparison = _COMPARISON.match(term.value)
        if comparison is None:
            return None, None
        number = read(term.value[comparison.end() :], at + comparison.end())
        match comparison[1]:
            case "<":
                return None, number - 1
            case "<=":
                return None, number
            case ">":
                return number + 1, None
            case _:
                return number, None

    def _take_time(self, term: Term) -> None:
        aged = term.name != "due"
        at = term.value_at + term.quoted
        first, dots, last = term.value.partition("..")
        if dots:
            ends = sorted([self._instant(first, at, aged)[0], self._instant(last, at + len(first) + 2, aged)[0]])
            self._put(term, f"{term.name}_after", ends[0])
            self._put(term, f"{term.name}_before", ends[1])
            return
        comparison = _COMPARISON.match(term.value)
        if comparison is None:
            self._refuse(at, f"expected {term.name}:<1h, {term.name}:>=2030-01-31, or a range such as {term.name}:1h..2h")
        instant, relative = self._instant(term.value[comparison.end() :], at + comparison.end(), aged)
        later = (comparison[1][0] == ">") is not (aged and relative)  # less than an hour ago is later than that instant
        exact = 0 if relative else int(comparison[1] in ("<=", ">"))  # `after` includes its instant, `before` does not
        self._put(term, f"{term.name}_{'after' if later else 'before'}", instant + exact)

    def _instant(self, text: str, at: int, aged: bool) -> tuple[Instant, bool]:
        """Return the instant that a text means, and whether it is one relative to the present."""
        relative = re.match(r"\d{4}-\d\d-\d\d", text) is None
        try:
            if relative:
                seconds = 0.0 if text == "now" else read_duration(text.lstrip("+-"), "the duration")
                instant = self._now + round(seconds * SECOND) * (-1 if text.startswith("-") is not aged else 1)
            else:
                when = datetime.fromisoformat(text)
                instant = to_instant(when if when.tzinfo is not None else when.replace(tzinfo=UTC), "the instant")
        except (ValueError, OverflowError, InvalidValue):
            instant = LATEST + 1
        if EARLIEST <= instant <= LATEST:
            return instant, relative
        return self._refuse(at, "expected a duration such as 30m, 2h or 1d, or an instant such as 2030-01-31 or 2030-01-31T07:00:00Z")

    def _put(self, term: Term, field: str, value: object) -> None:
        if field in self.parts:
            self._refuse(term.at, f"{term.name or 'id'} is given twice")
        self.parts[field] = value

    def _refuse(self, at: int, what: str) -> NoReturn:
        _refuse(self._text, at, what)


def _refuse(text: str, at: int, what: str) -> NoReturn:
    shown = f" ({text[at : at + 20]!r})" if at < len(text) else ", the end"
    raise InvalidValue(f"the query cannot be read at character {at + 1}{shown}: {what}")


def _terms(text: str) -> Iterator[Term]:
    at = _end(_SPACE, text, 0)
    while at < len(text):
        start = at
        name, inner, value, quoted = "", "", "", False
        if text[at] == '"':
            value, at = _quoted(text, at)
            yield Term("", "", value, start, start, True)
        else:
            at = _end(_BARE, text, at)
            name = text[start:at]
            if name.endswith(".") and text[at : at + 1] == '"':
                inner, at = _quoted(text, at)
                name = name[:-1]
            else:
                name, _, inner = name.partition(".")
            if text[at : at + 1] != ":":
                if at == start or text[at : at + 1] == '"':
                    _refuse(text, at, "expected a term such as state:failed")
                yield Term("", "", text[start:at], start, start, False)
            else:
                value_at = at = at + 1
                if text[at : at + 1] == '"':
                    quoted = True
                    value, at = _quoted(text, at)
                else:
                    at = _end(_VALUE, text, at)
                    value = text[value_at:at]
                yield Term(name, inner, value, start, value_at, quoted)
        after = _end(_SPACE, text, at)
        if after == at and at < len(text):
            _refuse(text, at, "expected a space before the next term; a value with quotation marks stands between quotation marks")
        at = after


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return what is between quotation marks, and where the text goes on after them."""
    letters: list[str] = []
    index = at + 1
    while index < len(text):
        letter = text[index]
        if letter == '"':
            return "".join(letters), index + 1
        if letter == "\\" and text[index + 1 : index + 2] in ('"', "\\"):
            index += 1
            letter = text[index]
        letters.append(letter)
        index += 1
    _refuse(text, at, "there is no closing quotation mark")


# ---- writing ----


def write_query(query: Query) -> str:
    """Return a text that `read_query` reads as the same filter; limit, cursor, brief and scan are no part of it."""
    if query.nothing:
        raise InvalidValue("a query that no state can match cannot be written")
    terms = [f"state:{','.join(query.wanted)}"] if query.wanted else []
    for name, field in TEXTS.items():
        value = getattr(query, field)
        if value is not None:
            terms.append(f"{name}:{_written(value)}")
    terms += _written_priority(query.priority_min, query.priority_max)
    for name in TIMES:
        for bound, comparison in (("after", ">="), ("before", "<")):
            instant = getattr(query, f"{name}_{bound}")
            if instant is not None:
                terms.append(f"{name}:{comparison}{to_datetime(instant).isoformat().replace('+00:00', 'Z')}")
    for name in FLAGS:
        flag = getattr(query, name)
        if flag is not None:
            terms.append(f"{name}:{'yes' if flag else 'no'}")
    for name in MAPS:
        for inner, value in getattr(query, name).items():
            plain = re.fullmatch(_BARE, inner) is not None
            terms.append(f"{name}.{inner if plain else _in_quotes(inner)}:{_written(value)}")
    return " ".join(terms)


def _written_priority(low: int | None, high: int | None) -> list[str]:
    if low is not None and high is not None:
        return [f"priority:{low}..{high}" if low != high else f"priority:{low}"]
    return ([] if low is None else [f"priority:>={low}"]) + ([] if high is None else [f"priority:<={high}"])


def _written(value: str) -> str:
    return value if re.fullmatch(_VALUE, value) else _in_quotes(value)


def _in_quotes(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def both(query: Query, other: Query) -> Query:
    """Return what both ask for. Raises InvalidValue if both say something of the same part."""
    usual = Query()
    given = {name: getattr(query, name) for name in Query.__struct_fields__ if getattr(query, name) != getattr(usual, name)}
    for name, value in given.items():
        if getattr(other, name) != getattr(usual, name) and getattr(other, name) != value:
            raise InvalidValue(f"{name} is given both in the query and beside it; leave one of them out")
    return msgspec.structs.replace(other, **given)
