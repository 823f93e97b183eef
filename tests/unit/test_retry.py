"""Retry policies: when, how often and for which errors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.errors import InvalidValue
from duetime.model.retry import DEFAULT_TRIES, LONGEST_REPEAT_PAUSE, REPEATS_AS_ASKED, RetryPolicy, repeat_pause, retry_text

durations = st.floats(0, 1e6)
chances = st.floats(0, 1)
policies = st.builds(
    RetryPolicy,
    tries=st.none() | st.integers(1, 100),
    base=durations,
    factor=st.floats(1, 100),
    cap=durations,
    jitter=st.floats(0, 1),
    delays=st.none() | st.lists(durations, min_size=1, max_size=10),
    within=st.none() | st.floats(0.001, 1e6),
)


def test_delays_grow_by_the_factor_up_to_the_cap() -> None:
    policy = RetryPolicy(tries=8, base=1, factor=2, cap=20, jitter=0)
    assert [policy.delay(tries, 0.5) for tries in range(1, 9)] == [1, 2, 4, 8, 16, 20, 20, None]


def test_the_default_policy_tries_five_times() -> None:
    policy = RetryPolicy()
    assert policy.max_tries == DEFAULT_TRIES == 5
    assert [policy.delay(tries, 0) for tries in range(1, 6)] == [1, 2, 4, 8, None]


def test_the_first_try_counts() -> None:
    assert RetryPolicy(tries=1).delay(1, 0) is None
    assert RetryPolicy(tries=2).delay(1, 0) == 1
    assert RetryPolicy.none().delay(1, 0) is None
    assert RetryPolicy.none().max_tries == 1


def test_a_fixed_policy_waits_the_same_time_before_each_try() -> None:
    policy = RetryPolicy.fixed(7, tries=4)
    assert [policy.delay(tries, 0.9) for tries in range(1, 5)] == [7, 7, 7, None]
    assert RetryPolicy.fixed(timedelta(minutes=1)).max_tries == 5
    assert RetryPolicy.fixed(timedelta(minutes=1)).delay(1, 0.5) == 60


def test_a_ladder_waits_its_delays_and_gives_up() -> None:
    policy = RetryPolicy.ladder(1, timedelta(seconds=30), 300.5)
    assert policy.max_tries == 4
    assert [policy.delay(tries, 0.9) for tries in range(1, 5)] == [1, 30, 300.5, None]


def test_the_last_of_the_delays_repeats_when_more_tries_are_asked_for() -> None:
    policy = RetryPolicy(tries=6, delays=(1, 5), jitter=0)
    assert [policy.delay(tries, 0) for tries in range(1, 7)] == [1, 5, 5, 5, 5, None]


def test_fewer_tries_than_delays_end_the_ladder_early() -> None:
    policy = RetryPolicy(tries=2, delays=(1, 5, 10), jitter=0)
    assert [policy.delay(tries, 0) for tries in range(1, 4)] == [1, None, None]


def test_chance_takes_away_at_most_the_share_of_jitter() -> None:
    policy = RetryPolicy(base=10, jitter=0.5)
    assert [policy.delay(1, chance) for chance in (0, 0.5, 1)] == [10, 7.5, 5]
    assert RetryPolicy(base=10, jitter=1).delay(1, 1) == 0


@given(policies, st.integers(1, 200), chances)
def test_every_delay_lies_within_its_bounds(policy: RetryPolicy, tries: int, chance: float) -> None:
    delay = policy.delay(tries, chance)
    if tries >= policy.max_tries:
        assert delay is None
        return
    assert delay is not None
    longest = policy.delay(tries, 0)
    assert longest is not None
    assert longest * (1 - policy.jitter) - 1e-6 <= delay <= longest
    if policy.delays is None:
        assert longest <= float(policy.cap)  # type: ignore[arg-type]


@given(st.integers(1, 10_000), st.floats(1, 100))
def test_a_late_try_never_overflows(tries: int, factor: float) -> None:
    policy = RetryPolicy(tries=20_000, base=1, factor=factor, cap=300)
    delay = policy.delay(tries, 0)
    assert delay is not None
    assert 0 <= delay <= 300


@given(policies)
def test_delays_without_chance_never_shrink(policy: RetryPolicy) -> None:
    if policy.delays is None:
        delays = [delay for tries in range(1, 30) if (delay := policy.delay(tries, 0)) is not None]
        assert delays == sorted(delays)


@given(policies, chances)
def test_numbers_survive_the_way_through_a_store(policy: RetryPolicy, chance: float) -> None:
    again = RetryPolicy().with_numbers(policy.numbers())
    assert again.max_tries == policy.max_tries
    assert [again.delay(tries, chance) for tries in range(1, 12)] == [policy.delay(tries, chance) for tries in range(1, 12)]
    assert again.within == policy.within
    assert again.numbers() == policy.numbers()


def test_numbers_hold_no_names_and_durations_become_seconds() -> None:
    policy = RetryPolicy(tries=3, base=timedelta(minutes=1), cap=timedelta(hours=1), within=timedelta(days=1), only=(ValueError,))
    assert msgspec.json.decode(policy.numbers()) == {
        "tries": 3,
        "base": 60,
        "factor": 2,
        "cap": 3600,
        "jitter": 0.5,
        "delays": None,
        "within": 86_400,
    }


def test_stored_numbers_keep_the_filters_of_the_code() -> None:
    code = RetryPolicy(tries=9, only=(OSError,), never=(FileNotFoundError,))
    merged = code.with_numbers(RetryPolicy(tries=2, base=5).numbers())
    assert (merged.tries, merged.base, merged.only, merged.never) == (2, 5, (OSError,), (FileNotFoundError,))


@pytest.mark.parametrize(
    ("only", "never", "error", "accepted"),
    [
        ((), (), ValueError(), True),
        ((OSError,), (), ConnectionError(), True),
        ((OSError,), (), ValueError(), False),
        ((), (ValueError,), ValueError(), False),
        ((), (ValueError,), UnicodeDecodeError("utf-8", b"", 0, 1, "bad"), False),
        ((), (ValueError,), KeyError(), True),
        ((OSError,), (FileNotFoundError,), FileNotFoundError(), False),
        ((OSError,), (FileNotFoundError,), PermissionError(), True),
        ((ValueError, KeyError), (), KeyError(), True),
    ],
)
def test_only_and_never_choose_by_type(only: Any, never: Any, error: BaseException, accepted: bool) -> None:
    assert RetryPolicy(only=only, never=never).accepts(error) is accepted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tries": 0}, "tries must be a whole number of at least 1"),
        ({"tries": -1}, "got -1"),
        ({"tries": True}, "tries must be a whole number"),
        ({"tries": 2.5}, "got 2.5"),
        ({"base": -1}, "base and cap must not be negative"),
        ({"cap": -0.5}, "cap=-0.5"),
        ({"base": float("nan")}, "base must be finite"),
        ({"cap": float("inf")}, "cap must be finite"),
        ({"base": "1"}, "base must be seconds or a timedelta, got str"),
        ({"factor": 0.5}, "factor must lie between 1 and 100, got 0.5"),
        ({"factor": 101}, "factor must lie between 1 and 100"),
        ({"factor": float("nan")}, "factor must lie between 1 and 100"),
        ({"jitter": 1.1}, "jitter must lie between 0 and 1, got 1.1"),
        ({"jitter": -0.1}, "jitter must lie between 0 and 1"),
        ({"jitter": float("nan")}, "jitter must lie between 0 and 1"),
        ({"delays": ()}, "delays must name at least one delay"),
        ({"delays": (1, -1)}, "none negative"),
        ({"delays": (1, None)}, "delays must be seconds or a timedelta, got NoneType"),
        ({"within": 0}, "within must be positive, got 0"),
        ({"within": timedelta(seconds=-1)}, "within must be positive"),
        ({"only": (ValueError(),)}, "only and never take exception types"),
        ({"never": ("ValueError",)}, "only and never take exception types, got 'ValueError'"),
        ({"only": (int,)}, "only and never take exception types"),
    ],
)
def test_a_wrong_policy_says_what_was_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue) as problem:
        RetryPolicy(**options)
    assert message in str(problem.value)


def test_the_first_repeats_come_as_asked_and_later_ones_ever_later_up_to_a_minute() -> None:
    assert [repeat_pause(repeats) for repeats in range(REPEATS_AS_ASKED + 1)] == [0] * (REPEATS_AS_ASKED + 1)
    pauses = [repeat_pause(repeats) for repeats in range(REPEATS_AS_ASKED, 1_000)]
    assert pauses == sorted(pauses)
    assert pauses[1] == pytest.approx(0.1)
    assert pauses[-1] == LONGEST_REPEAT_PAUSE == 60


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (RetryPolicy(), "5 tries, the second after 1 second, doubling up to 8 seconds, each up to 50 % sooner"),
        (RetryPolicy(tries=12), "12 tries, the second after 1 second, doubling up to 5 minutes, each up to 50 % sooner"),
        (RetryPolicy(tries=2), "2 tries, the second after 1 second, up to 50 % sooner"),
        (RetryPolicy(tries=4, factor=3, jitter=0), "4 tries, the second after 1 second, each 3 times as long up to 9 seconds"),
        (RetryPolicy(tries=4, factor=1, jitter=0.25), "4 tries, each after 1 second, each up to 25 % sooner"),
        (RetryPolicy(tries=3, base=0), "3 tries, each at once"),
        (RetryPolicy(tries=1_000_000, cap=60, jitter=0), "1,000,000 tries, the second after 1 second, doubling up to 1 minute"),
        (RetryPolicy.none(), "1 try, no retry"),
        (RetryPolicy.fixed(10), "5 tries, each after 10 seconds"),
        (RetryPolicy.ladder(5, 60, timedelta(hours=1)), "4 tries, after 5 seconds, 1 minute, 1 hour"),
        (RetryPolicy(tries=9, delays=(0, 60), jitter=0), "9 tries, after 0 seconds, 1 minute, then 1 minute each time"),
        (
            RetryPolicy.ladder(*range(1, 10)),
            "10 tries, after 1 second, 2 seconds, 3 seconds, 4 seconds, 5 seconds, 6 seconds and so on, at last 9 seconds",
        ),
        (RetryPolicy(tries=2, jitter=0, within=3_600), "2 tries, the second after 1 second, none later than 1 hour after it was due"),
    ],
)
def test_a_policy_is_told_in_words(policy: RetryPolicy, said: str) -> None:
    assert retry_text(msgspec.json.decode(policy.numbers())) == said


@given(policies)
def test_every_policy_can_be_told(policy: RetryPolicy) -> None:
    assert retry_text(msgspec.json.decode(policy.numbers())).startswith(f"{policy.max_tries:,} tr")


def test_what_a_newer_program_has_stored_besides_is_left_out_of_the_words() -> None:
    assert retry_text({"tries": 2, "jitter": 0, "mood": "bad"}) == "2 tries, the second after 1 second"
    assert retry_text({}) == retry_text(msgspec.json.decode(RetryPolicy().numbers()))
