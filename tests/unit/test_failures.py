"""Failures of the same kind share a fingerprint, and what is known of a kind is added up."""

from __future__ import annotations

import msgspec
import pytest

from duetime.clock import DAY, SECOND
from duetime.model.failures import (
    BARS,
    MAX_SAMPLE,
    NEW_FOR,
    QUIET_FOR,
    Bucket,
    GroupFacts,
    Kind,
    Tally,
    blanked,
    fingerprint,
    fold,
    is_again,
    is_failing,
    is_new,
    origin,
    trend,
)
from duetime.model.lifecycle import as_cancelled, conclude
from duetime.model.outcome import Ended, Outcome, Running
from duetime.model.retry import RetryPolicy
from duetime.model.task import ErrorInfo, State

NOW = 1_800_000_000 * SECOND
KIND = Kind("charge", "ValueError", "no order #", "shop.py:7 in charge")
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 40, in charge
    gateway.pay(order)
  File "/usr/lib/python3.12/site-packages/gateway/client.py", line 7, in pay
    raise Refused
Refused: card 4111
"""


def error(
    type: str = "ValueError", message: str = "no order 7", location: str = "shop/tasks.py:42 in charge", trace: str = ""
) -> ErrorInfo:
    return ErrorInfo(type, message, trace, location)


def tally(at: int, *, attempts: int = 1, tasks: int = 0, sample: str = "t", kind: Kind = KIND) -> Tally:
    return Tally("f", at, attempts, tasks, sample, kind)


def test_the_same_failure_has_the_same_fingerprint_whatever_the_line_and_the_numbers() -> None:
    first = fingerprint("charge", error(), None)
    assert first == fingerprint("charge", error(message="no order 8", location="shop/tasks.py:43 in charge"), None)
    assert len(first) == 16
    assert int(first, 16) >= 0


def test_another_handler_type_file_or_function_is_another_kind() -> None:
    kinds = [
        fingerprint("charge", error(), None),
        fingerprint("refund", error(), None),
        fingerprint("charge", error("KeyError"), None),
        fingerprint("charge", error(location="shop/other.py:42 in charge"), None),
        fingerprint("charge", error(location="shop/tasks.py:42 in refund"), None),
    ]
    assert len(set(kinds)) == len(kinds)


def test_parts_that_run_together_are_told_apart() -> None:
    assert fingerprint("ab", error("c"), None) != fingerprint("a", error("bc"), None)


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ({"exit_code": 3, "cpu_seconds": 0.1}, "3"),
        ({"signal": "SIGKILL", "cpu_seconds": 2.0}, "SIGKILL"),
        ({"status": 503, "address": "10.0.0.1"}, ""),
        ({"broker": "nats://x", "to": "orders"}, ""),
    ],
)
def test_a_command_is_known_by_its_exit_and_the_type_says_the_rest(detail: dict[str, object], expected: str) -> None:
    said = ErrorInfo("Status503", "https://x answered 503: order 7 of today", "Traceback printed by the command")
    assert origin(said, msgspec.json.encode(detail)) == expected


def test_a_reported_traceback_tells_the_innermost_frame_of_own_code() -> None:
    assert origin(ErrorInfo("Refused", "card 4111", TRACEBACK)) == "/srv/shop/tasks.py:charge"
    libraries = TRACEBACK.replace("/srv/shop", "/usr/lib/python3.12/site-packages/shop")
    assert origin(ErrorInfo("Refused", "card 4111", libraries)).endswith("gateway/client.py:pay"), "if there is only that of libraries"


def test_without_a_location_the_message_tells_kinds_apart() -> None:
    kinds = {origin(ErrorInfo("Error", message)) for message in ("no order 7", "no order 8", "no stock")}
    assert kinds == {"no order #", "no stock"}


def test_a_location_in_other_words_is_blanked() -> None:
    assert origin(error(location="charge.go line 42")) == "charge.go line #"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no order 7 of customer 4711", "no order # of customer #"),
        ("took 12.5 s, more than 10,000 ms", "took # s, more than # ms"),
        ("task 0198f2a1-7c3e-7abc-8def-0123456789ab is gone", "task # is gone"),
        ("since 2026-11-18T10:00:00Z", "since #"),
        ("since 2026-11-18 10:00:00+01:00 or so", "since # or so"),
        ("<Order object at 0x7f3a2b>", "<Order object at #>"),
        ("token 9f86d081884c7d65 refused", "token # refused"),
        ("utf8 and s3 stay, as do ordinary words", "utf8 and s3 stay, as do ordinary words"),
        ("host 10.1.2.3:8080 refused", "host # refused"),
        ("größe 7 zu groß 💥", "größe # zu groß 💥"),
        ("first line 1\nsecond line 2", "first line #"),
        ("", ""),
    ],
)
def test_numbers_dates_and_ids_are_blanked(message: str, expected: str) -> None:
    assert blanked(message) == expected


def test_a_huge_message_is_cut() -> None:
    text = blanked("x y " * 1_000_000)
    assert len(text) == MAX_SAMPLE
    assert text.endswith("…")


@pytest.mark.parametrize("outcome", Outcome)
def test_failures_are_what_failed_timed_out_or_was_lost_and_whatever_ended_a_task_as_failed(outcome: Outcome) -> None:
    expected = outcome in (Outcome.FAILED, Outcome.FATAL, Outcome.TIMED_OUT, Outcome.LOST)
    assert is_failing(outcome, State.PENDING) is expected
    assert is_failing(outcome, State.FAILED)


def test_the_end_of_a_failing_attempt_carries_its_fingerprint_and_handler() -> None:
    running = Running("t", "charge", 1, 0, 0, NOW, None)

    def end(outcome: Outcome) -> str | None:
        ended = Ended(outcome, error=error(), delay=1.0)
        settlement = conclude(running, ended, RetryPolicy(tries=3), started_at=NOW, now=NOW, chance=0.0)
        assert as_cancelled(settlement).fingerprint == settlement.fingerprint
        assert settlement.handler == "charge"
        return settlement.fingerprint

    assert end(Outcome.FAILED) == end(Outcome.TIMED_OUT) == end(Outcome.LOST) == fingerprint("charge", error(), None)
    assert end(Outcome.RETRY_LATER) is None
    assert end(Outcome.PARKED) is None


def test_what_is_known_is_the_same_in_whatever_order_and_portions_tallies_come() -> None:
    tallies = [tally(NOW + each * DAY, sample=str(each)) for each in (0, 1, 5, 6)]
    at_once = fold(None, reversed(tallies))
    in_steps = fold(fold(None, tallies[:2]), tallies[2:])
    assert at_once == in_steps
    assert at_once == GroupFacts(kind=KIND, first_at=NOW, last_at=NOW + 6 * DAY, sample="6", again_at=NOW + 5 * DAY)


def test_a_kind_is_seen_again_after_three_days_of_quiet() -> None:
    before = fold(None, [tally(NOW)])
    assert fold(before, [tally(NOW + QUIET_FOR - 1)]).again_at is None
    again = fold(before, [tally(NOW + QUIET_FOR)])
    assert again.again_at == NOW + QUIET_FOR
    assert is_again(again, NOW + QUIET_FOR + NEW_FOR - 1)
    assert not is_again(again, NOW + QUIET_FOR + NEW_FOR)
    assert not is_again(before, NOW)


def test_a_kind_is_new_for_a_day() -> None:
    facts = fold(None, [tally(NOW)])
    assert is_new(facts, NOW + NEW_FOR - 1)
    assert not is_new(facts, NOW + NEW_FOR)


def test_a_late_tally_moves_the_first_sight_and_not_the_last() -> None:
    facts = fold(fold(None, [tally(NOW)]), [tally(NOW - DAY)])
    assert (facts.first_at, facts.last_at) == (NOW - DAY, NOW)


def test_a_trend_has_a_bar_for_each_part_of_the_span_and_loses_nothing() -> None:
    since, until = NOW - DAY, NOW
    buckets = [Bucket(since - 1, 1, 0), Bucket(since, 2, 0), Bucket(since + DAY // 2, 3, 1), Bucket(until, 4, 0)]
    bars = trend(buckets, since, until)
    assert len(bars) == BARS
    assert (bars[0], bars[12], bars[-1], sum(bars)) == (3, 3, 4, 10)
    assert trend(buckets, NOW, NOW)[0] + trend(buckets, NOW, NOW)[-1] == 10, "also of a span without length"
