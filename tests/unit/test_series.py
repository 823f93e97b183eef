"""Values in equal steps of time, read from buckets: counts, quantiles and samples, with gaps where nothing is known."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.client.series import span_of
from duetime.clock import DAY, SECOND, to_instant
from duetime.errors import InvalidValue
from duetime.model.figures import ATTEMPTS, LATENESS, STALE_WRITES, FigureKey
from duetime.model.outcome import Outcome
from duetime.model.series import (
    ALL,
    KEPT,
    STEPS,
    Buckets,
    Load,
    Piece,
    Reading,
    Sample,
    SeriesName,
    Step,
    add,
    beginnings,
    bucket_of,
    chosen_step,
    folded,
    piece_of,
    piece_of_sample,
    read_names,
)

START = 1_800_000_000 * SECOND
HOUR = 3_600 * SECOND

instants = st.integers(START - 2 * HOUR, START + 2 * HOUR)
counts = st.dictionaries(
    st.sampled_from([FigureKey(ATTEMPTS, "a", "failed"), FigureKey(ATTEMPTS, "b", "failed"), FigureKey(STALE_WRITES)]),
    st.integers(1, 1_000),
    min_size=1,
)
pieces = st.lists(st.tuples(instants, counts.map(piece_of)), max_size=20)


def sampled(*loads: tuple[int, Load], handler: str = "work") -> list[tuple[int, Piece]]:
    """Return pieces of samples at instants, each after the one before."""
    found, last = [], None
    for at, load in loads:
        sample = Sample(at, {} if load == Load() else {handler: load})
        found.append((at, piece_of_sample(sample, last)))
        last = sample
    return found


def reading(written: list[tuple[int, Piece]], *, step: Step = 10, now: int = START + HOUR, last: Sample | None = None) -> Reading:
    return Reading(buckets=folded(written, step), last=last, step=step, now=now)


def test_there_is_a_series_of_every_outcome() -> None:
    assert {outcome.value for outcome in Outcome} <= {name.value for name in SeriesName}


@given(pieces, st.sampled_from(STEPS))
def test_the_sum_over_all_buckets_is_what_was_written(written: list[tuple[int, Piece]], step: Step) -> None:
    buckets = folded(written, step)
    for handler in ("a", "b"):
        expected = sum(piece.get(handler, {}).get(ATTEMPTS, {}).get("failed", 0) for _, piece in written)
        assert sum(counted[ATTEMPTS]["failed"] for (_, name), counted in buckets.items() if name == handler) == expected
    everything = sum(count for _, piece in written for counted in piece.values() for parts in counted.values() for count in parts.values())
    assert sum(count for (_, name), c in buckets.items() if name == ALL for parts in c.values() for count in parts.values()) == everything


@given(pieces, st.integers(0, 20))
def test_folding_in_two_goes_is_the_same_as_in_one(written: list[tuple[int, Piece]], cut: int) -> None:
    stepwise: Buckets = folded(written[:cut], 300)
    for key, counted in folded(written[cut:], 300).items():
        add(stepwise.setdefault(key, {}), counted)
    assert stepwise == folded(written, 300)


def test_counts_are_zero_where_nothing_happened_and_unknown_where_nothing_is_kept() -> None:
    now = START + 25 * SECOND
    values = reading([(START, piece_of({FigureKey(ATTEMPTS, "work", "failed"): 3, FigureKey(ATTEMPTS, "work", "succeeded"): 4}))], now=now)
    at = beginnings(START, START + 40 * SECOND, 10)
    assert values.values(SeriesName.FAILED, "work", at) == [3, 0, 0, None]
    assert values.values(SeriesName.ATTEMPTS, ALL, at) == [7, 0, 0, None]
    old = beginnings(START - HOUR - 10 * SECOND, START - HOUR + 40 * SECOND, 10)
    assert values.values(SeriesName.FAILED, ALL, old) == [None, None, None, 0, 0]


def test_lateness_is_unknown_without_attempts() -> None:
    late = {FigureKey(LATENESS, "work", str(10_000)): 90, FigureKey(LATENESS, "work", str(SECOND)): 10}
    values = reading([(START, piece_of(late))])
    at = beginnings(START, START + 20 * SECOND, 10)
    for name, least, most in [("lateness_p50", 0.0, 0.01), ("lateness_p95", 0.5, 1.0), ("lateness_p99", 0.5, 1.0)]:
        first, second = values.values(SeriesName(name), "work", at)
        assert first is not None
        assert least < first <= most
        assert second is None


def test_samples_are_averaged_and_the_oldest_counts() -> None:
    written = sampled((START, Load(due=2, running=1, oldest_due=5 * SECOND)), (START + 10 * SECOND, Load(due=6, oldest_due=9 * SECOND)))
    values = reading(written, step=300)
    for handler in ("work", ALL):
        assert values.values(SeriesName.DUE, handler, [bucket_of(START, 300)]) == [4]
        assert values.values(SeriesName.RUNNING, handler, [bucket_of(START, 300)]) == [0.5]
        assert values.values(SeriesName.OLDEST_DUE, handler, [bucket_of(START, 300)]) == [9]
    assert values.values(SeriesName.DUE, "another", [bucket_of(START, 300)]) == [0]


def test_a_gap_follows_a_busy_sample_and_zeros_follow_a_quiet_one() -> None:
    at = beginnings(START - 10 * SECOND, START + 50 * SECOND, 10)
    busy = reading(sampled((START, Load(due=2, later=7))))
    assert busy.values(SeriesName.DUE, "work", at) == [None, 2, None, None, None, None]
    quiet = reading(sampled((START, Load(due=2, later=7)), (START + 10 * SECOND, Load(later=6))))
    assert quiet.values(SeriesName.DUE, "work", at) == [None, 2, 0, 0, 0, 0]
    assert quiet.values(SeriesName.LATER, "work", at) == [None, 7, 6, 6, 6, 6]
    assert quiet.values(SeriesName.LATER, ALL, at) == [None, 7, 6, 6, 6, 6]
    ended = reading(sampled((START, Load(later=7)), (START + 10 * SECOND, Load())))
    assert ended.values(SeriesName.LATER, "work", at) == [None, 7, 0, 0, 0, 0]


def test_a_quiet_sample_from_before_the_span_holds_within_it() -> None:
    at = beginnings(START, START + 20 * SECOND, 10)
    last = Sample(START - HOUR, {"work": Load(later=3)})
    assert reading([], last=last).values(SeriesName.LATER, "work", at) == [3, 3]
    assert reading([], last=last).values(SeriesName.DUE, ALL, at) == [0, 0]
    assert reading([], last=Sample(START - HOUR, {"work": Load(due=3)})).values(SeriesName.DUE, ALL, at) == [None, None]
    assert reading([], last=None).values(SeriesName.DUE, ALL, at) == [None, None]


def test_a_bucket_that_ended_quiet_is_followed_by_zeros_although_it_was_busy() -> None:
    start = bucket_of(START, 300)
    values = reading(sampled((start, Load(running=4)), (start + 10 * SECOND, Load())), step=300)
    assert values.values(SeriesName.RUNNING, "work", beginnings(start, start + 600 * SECOND, 300)) == [2, 0]


def test_the_step_is_the_finest_that_is_kept() -> None:
    now = START
    assert [chosen_step(now - ago, now) for ago in (0, HOUR, HOUR + 1, 2 * DAY, 2 * DAY + 1, 400 * DAY)] == [10, 10, 300, 300, 3600, 3600]
    assert chosen_step(now, now, 3600) == 3600
    with pytest.raises(InvalidValue, match="step must be 10, 300 or 3600 seconds, got 60"):
        chosen_step(now, now, 60)


def test_all_that_is_kept_of_a_step_can_be_read_at_once_but_for_the_finest_over_long_times() -> None:
    for step in STEPS:
        assert len(beginnings(START - KEPT[step], START, step)) <= KEPT[step] // (step * SECOND) + 1
    with pytest.raises(InvalidValue, match="values of 10 seconds are too many"):
        beginnings(START - 10 * DAY, START, 10)


def test_daylight_saving_time_moves_no_bucket() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    before, after = datetime(2026, 10, 25, 2, 30, tzinfo=berlin), datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=berlin)
    at = beginnings(to_instant(before), to_instant(after) + 1, 3600)
    assert len(at) == 2
    assert {each % (3_600 * SECOND) for each in at} == {0}


def test_a_span_reaches_back_fifteen_minutes_and_needs_a_beginning_before_its_end() -> None:
    span = span_of(START, None, None, None)
    assert (span.until - span.since, span.step, len(span.at)) == (900 * SECOND, 10, 91)
    with pytest.raises(InvalidValue, match="since must lie before until"):
        span_of(START, datetime(2027, 1, 15, 9, tzinfo=UTC), datetime(2027, 1, 15, 8, tzinfo=UTC), None)


def test_names_are_checked_and_none_means_all() -> None:
    assert read_names([]) == list(SeriesName)
    assert read_names(["failed", "due", "failed"]) == [SeriesName.FAILED, SeriesName.DUE]
    with pytest.raises(InvalidValue, match="there is no series 'started'; there are attempts, succeeded"):
        read_names(["started"])
