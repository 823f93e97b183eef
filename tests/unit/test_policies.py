"""Policies for missed and overlapping occurrences: a few words, read in one way and written in one way."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from duetime.clock import SECOND
from duetime.errors import InvalidValue
from duetime.model.policies import Missed, Overlap, read_missed, read_overlap


@pytest.mark.parametrize(
    ("text", "policy", "written"),
    [
        ("skip", Missed("skip"), "skip"),
        ("latest", Missed("latest"), "latest"),
        (" Earliest ", Missed("earliest"), "earliest"),
        ("all", Missed("all"), "all"),
        ("all at most 1000", Missed("all"), "all"),
        ("all within 6h", Missed("all", within=21_600.0), "all within 6h"),
        ("all within 90 minutes", Missed("all", within=5_400.0), "all within 1h30m"),
        ("all  at most 50", Missed("all", at_most=50), "all at most 50"),
        ("all at most 10,000", Missed("all", at_most=10_000), "all at most 10000"),
        ("all at 10/min", Missed("all", rate=10), "all at 10/min"),
        ("all at 2 / s", Missed("all", rate=2, per="s"), "all at 2/s"),
        (
            "all within 2d at most 5 at 100/h",
            Missed("all", within=172_800.0, at_most=5, rate=100, per="h"),
            "all within 2d at most 5 at 100/h",
        ),
    ],
)
def test_what_is_done_about_missed_occurrences_is_read_and_written(text: str, policy: Missed, written: str) -> None:
    assert read_missed(text) == policy
    assert str(policy) == written
    assert read_missed(written) == policy


@pytest.mark.parametrize(
    ("text", "policy", "written"),
    [
        ("skip", Overlap("skip"), "skip"),
        ("queue one", Overlap("queue one"), "queue one"),
        ("Queue  ALL", Overlap("queue all"), "queue all"),
        ("cancel", Overlap("cancel"), "cancel"),
        ("cancel the other", Overlap("cancel"), "cancel"),
        ("allow", Overlap("allow"), "allow"),
        ("allow 3", Overlap("allow", 3), "allow 3"),
    ],
)
def test_what_is_done_about_overlaps_is_read_and_written(text: str, policy: Overlap, written: str) -> None:
    assert read_overlap(text) == policy
    assert str(policy) == written
    assert read_overlap(written) == policy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "missed must be skip, latest, earliest or all"),
        ("some", "'some'; for example"),
        ("latest at most 5", "missed must be"),
        ("all within", "missed must be"),
        ("all within soon", "missed: within must be a duration"),
        ("all within 0s", "between 1 ms and ten years"),
        ("all within 100000d", "between 1 ms and ten years"),
        ("all at most 0", "missed: at most must be a whole number from 1 to 100,000, got '0'"),
        ("all at most 1000000", "from 1 to 100,000"),
        ("all at most many", "got 'many'; for example"),
        ("all at 0/min", "missed: a rate must be a whole number"),
        ("all at 10/day", "a rate is per s, min or h, got 'day'"),
        ("all at 10/min at most 3", "missed"),
        (None, "missed must be"),
    ],
)
def test_a_policy_for_missed_occurrences_that_cannot_be_is_refused_with_an_example(text: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        read_missed(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "overlap must be skip, queue one, queue all, cancel, allow or allow N"),
        ("queue", "got 'queue'; for example \"queue one\""),
        ("allow 0", "overlap: allow must be a whole number from 1 to 1,000, got '0'"),
        ("allow 1001", "from 1 to 1,000"),
        ("allow some", "got 'some'"),
        (3, "overlap must be"),
    ],
)
def test_a_policy_for_overlaps_that_cannot_be_is_refused_with_an_example(text: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        read_overlap(text)


@given(
    within=some.none() | some.integers(1, 10**9).map(lambda millis: millis / 1_000),
    at_most=some.integers(1, 100_000),
    rate=some.none() | some.tuples(some.integers(1, 1_000_000), some.sampled_from(["s", "min", "h"])),
)
def test_whatever_is_written_is_read_again(within: float | None, at_most: int, rate: tuple[int, str] | None) -> None:
    policy = Missed("all", within, at_most, *(rate or (None, "min")))
    assert read_missed(str(policy)) == policy


def test_a_rate_is_an_interval_between_due_times() -> None:
    assert read_missed("all at 10/min").interval == 6 * SECOND
    assert read_missed("all at 4/s").interval == SECOND // 4
    assert read_missed("all").interval == 0
