"""Filters as one line of text: what each term means, what is refused and where, and that nothing is lost on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.clock import EARLIEST, LATEST, SECOND
from duetime.errors import InvalidValue
from duetime.model.query import OF_THE_PAGE, Query
from duetime.model.query_text import LONGEST, MAPS, TEXTS, both, read_query, write_query
from duetime.model.task import State

NOW = 1_800_000_000 * SECOND  # 2027-01-15T08:00:00Z
HOUR = 3_600 * SECOND

texts = st.text(min_size=1, max_size=20)
some = st.none() | texts
instants = st.none() | st.integers(EARLIEST, LATEST)
priorities = st.none() | st.integers(0, 9)
flags = st.none() | st.booleans()
entries = st.dictionaries(texts, st.text(max_size=20), max_size=3)
queries = st.builds(
    Query,
    states=st.lists(st.sampled_from(State), unique=True, max_size=4).map(tuple),
    handler=some,
    collection=some,
    key=some,
    schedule=some,
    worker=some,
    submitted_by=some,
    error=some,
    logs=some,
    id_prefix=st.none() | st.from_regex(r"\A[0-9a-f]{4,8}\Z"),
    priority_min=priorities,
    priority_max=priorities,
    due_after=instants,
    due_before=instants,
    submitted_after=instants,
    submitted_before=instants,
    finished_after=instants,
    finished_before=instants,
    retrying=flags,
    parked=flags,
    meta=entries,
    payload=entries,
)


def usual(query: Query) -> Query:
    """Return a query in the form in which it is read: its states in order, a single one alone."""
    parts = {name: getattr(query, name) for name in Query.__struct_fields__}
    return Query(**{**parts, "state": query.only_state, "states": () if query.only_state else query.wanted})


@given(queries)
def test_what_is_written_is_read_as_the_same(query: Query) -> None:
    text = write_query(query)
    if len(text) <= LONGEST:
        assert read_query(text, NOW) == usual(query)


pieces = st.sampled_from([*TEXTS, ":", '"', "meta.", "state", "<", "1h", "..", " ", "\\"])


@given(st.text(max_size=60) | st.lists(pieces, max_size=12).map("".join))
def test_whatever_is_read_is_a_query_or_refused_with_a_message(text: str) -> None:
    try:
        query = read_query(text, NOW)
    except InvalidValue as error:
        message = str(error)
    else:
        message = ""
        assert read_query(write_query(query), NOW) == usual(query)
    assert message.startswith("the query cannot be read") or not message


def test_every_part_of_a_query_can_be_said() -> None:
    said = {*TEXTS.values(), *MAPS, "state", "states", "retrying", "parked", "mine", "priority_min", "priority_max"}
    said |= {f"{name}_{bound}" for name in ("due", "submitted", "finished") for bound in ("after", "before")}
    assert set(Query.__struct_fields__) - said == OF_THE_PAGE


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", Query()),
        ("  ", Query()),
        ("state:failed", Query(state=State.FAILED)),
        ("state:failed,pending", Query(states=(State.PENDING, State.FAILED))),
        ("state:failed state:pending", Query(states=(State.PENDING, State.FAILED))),
        ("handler:shop.* key:order-7", Query(handler="shop.*", key="order-7")),
        ("key:a:b collection:eu", Query(key="a:b", collection="eu")),
        ('error:"timed out" logs:"stock \\"zero\\" \\\\"', Query(error="timed out", logs='stock "zero" \\')),
        ("schedule:nightly worker:ab12 submitted_by:anna@shop", Query(schedule="nightly", worker="ab12", submitted_by="anna@shop")),
        ("meta.tenant:acme payload.order.lines.0.sku:a", Query(meta={"tenant": "acme"}, payload={"order.lines.0.sku": "a"})),
        ('meta."my key":""', Query(meta={"my key": ""})),
        ("id:01a1e112 ", Query(id_prefix="01a1e112")),
        ("01a1e112-c0d3-7403-88d7-6b1eec5cb647", Query(id_prefix="01a1e112-c0d3-7403-88d7-6b1eec5cb647")),
        ("mine:yes", Query(mine=True)),
        ("priority:7", Query(priority_min=7, priority_max=7)),
        ("priority:>=7", Query(priority_min=7)),
        ("priority:>7", Query(priority_min=8)),
        ("priority:<7", Query(priority_max=6)),
        ("priority:<=7", Query(priority_max=7)),
        ("priority:3..5", Query(priority_min=3, priority_max=5)),
        ("due:<1h", Query(due_before=NOW + HOUR)),
        ("due:>=1h30m", Query(due_after=NOW + HOUR * 3 // 2)),
        ("due:<-1h", Query(due_before=NOW - HOUR)),
        ("due:<now", Query(due_before=NOW)),
        ("due:1h..2h", Query(due_after=NOW + HOUR, due_before=NOW + 2 * HOUR)),
        ("due:>=2027-01-15", Query(due_after=NOW - 8 * HOUR)),
        ("due:>2027-01-15T08:00:00Z", Query(due_after=NOW + 1)),
        ("due:<=2027-01-15T09:00:00+01:00", Query(due_before=NOW + 1)),
        ("submitted:<1h", Query(submitted_after=NOW - HOUR)),
        ("submitted:>1h", Query(submitted_before=NOW - HOUR)),
        ("finished:1h..2h", Query(finished_after=NOW - 2 * HOUR, finished_before=NOW - HOUR)),
        ("finished:>=2027-01-15T08:00", Query(finished_after=NOW)),
        ("retrying:yes parked:no", Query(retrying=True, parked=False)),
    ],
)  # fmt: skip
def test_what_a_text_says(text: str, query: Query) -> None:
    assert read_query(text, NOW) == query


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("state:fialed", 7, "expected one of blocked, pending, running"),
        ("state:failed,fialed", 14, "expected one of blocked"),
        ("stat:failed", 1, "there is no term 'stat'; there are state, handler, collection"),
        ("state:failed handler:", 22, "handler needs a value"),
        ("state:failed timeout", 14, 'to search for a text write error:"…" or logs:"…"'),
        ("priority:high", 10, "expected a priority from 0 to 9"),
        ("priority:3..12", 13, "expected a priority from 0 to 9"),
        ("priority:>9", 10, "no priority is beyond 0–9"),
        ("due:1h", 5, "expected due:<1h"),
        ("due:<soon", 6, "expected a duration such as 30m"),
        ("due:<2027-13-01", 6, "expected a duration such as 30m"),
        ("due:<99999999999h", 6, "expected a duration such as 30m"),
        ("parked:maybe", 8, "expected yes or no"),
        ('error:"timed out', 7, "there is no closing quotation mark"),
        ('error:"a"b', 10, "expected a space before the next term"),
        ('key:a"b', 6, "expected a space before the next term"),
        ("handler:a handler:b", 11, "handler is given twice"),
        ("meta.a:1 meta.a:2", 10, "meta.a is given twice"),
        ("due:<1h due:<2h", 9, "due is given twice"),
        ("meta:acme", 1, "meta needs the name of an entry: meta.tenant:acme"),
        ('payload."":7', 1, "payload needs the name of an entry"),
        ("state.x:failed", 1, "state has no parts; only meta and payload have"),
        ("id:xyz", 4, "expected how a task id begins"),
        (":a", 1, "expected a term such as state:failed"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_position(text: str, at: int, what: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        read_query(text, NOW)
    assert str(refused.value).startswith(f"the query cannot be read at character {at}{', the end' if at > len(text) else ' ('}")
    assert what in str(refused.value)


def test_a_query_that_is_too_long_or_impossible_is_refused() -> None:
    with pytest.raises(InvalidValue, match="at most 4,000 characters, got 4,005"):
        read_query("key:a" + "a" * 4_000, NOW)
    with pytest.raises(InvalidValue, match="no state can match"):
        write_query(Query(state=State.FAILED, states=(State.PENDING,)))


def test_a_text_and_filters_beside_it_are_put_together() -> None:
    assert both(Query(handler="a"), Query(key="k", limit=5)) == Query(handler="a", key="k", limit=5)
    with pytest.raises(InvalidValue, match="handler is given both in the query and beside it"):
        both(Query(handler="a"), Query(handler="b"))
