"""Scopes, handlers, secrets and the bucket that bounds the rate of requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.errors import InvalidValue
from duetime.model.access import (
    BAD_TOKEN,
    Bucket,
    Caller,
    Denial,
    Scope,
    TokenRecord,
    TokenText,
    admit,
    burst_of,
    caller_of,
    check_rate,
    digest,
    fits,
    included,
    parse_handlers,
    parse_scopes,
    read_token,
    rotated,
    take,
)

ID, SECRET, OTHER = "0123456789abcdef", "a1" * 32, "b2" * 32
SUBMIT = (Scope.SUBMIT,)


def token(**facts: Any) -> TokenRecord:
    return TokenRecord(
        **{"id": ID, "name": "shop", "scopes": SUBMIT, "digest": digest(SECRET), "created_at": 0, "created_by": "anna", **facts}
    )


# ---- scopes and handlers ----


def test_every_scope_includes_reading_and_only_admin_includes_all() -> None:
    assert all(Scope.READ in included((scope,)) for scope in Scope if scope is not Scope.OWN)
    assert included((Scope.OWN,)) == {Scope.OWN}
    assert [scope for scope in Scope if included((scope,)) == frozenset(Scope)] == [Scope.ADMIN]
    assert included((Scope.OPERATE,)) == {Scope.READ, Scope.SUBMIT, Scope.OPERATE}
    assert included((Scope.SUBMIT, Scope.WORK)) == {Scope.READ, Scope.SUBMIT, Scope.WORK}
    assert included(()) == frozenset()


def test_scopes_are_kept_once_and_in_one_order() -> None:
    assert parse_scopes(["work", "read", "work"]) == (Scope.READ, Scope.WORK)
    assert parse_scopes("admin") == (Scope.ADMIN,)


@pytest.mark.parametrize(("scopes", "message"), [([], "at least one scope"), (["root"], "scope must be one of own"), (["READ"], "'READ'")])
def test_wrong_scopes_are_refused(scopes: list[str], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        parse_scopes(scopes)


@pytest.mark.parametrize(
    ("patterns", "handler", "fitting"),
    [
        ((), "anything", True),
        (("work",), "work", True),
        (("work",), "work2", False),
        (("shop.*",), "shop.expire", True),
        (("shop.*",), "shop", False),
        (("shop.*",), "shopping", False),
        (("*",), "anything", True),
        (("a", "b*"), "bc", True),
    ],
)
def test_a_handler_fits_a_name_or_a_prefix(patterns: tuple[str, ...], handler: str, fitting: bool) -> None:
    assert fits(patterns, handler) is fitting


@pytest.mark.parametrize(
    ("handlers", "scopes", "message"),
    [
        (["a*b"], SUBMIT, "one \\*"),
        (["**"], SUBMIT, "one \\*"),
        ([""], SUBMIT, "empty"),
        (["work"], (Scope.ADMIN,), "admin token cannot be restricted"),
        ([f"h{n}" for n in range(101)], SUBMIT, "at most 100"),
    ],
)
def test_wrong_restrictions_are_refused(handlers: list[str], scopes: tuple[Scope, ...], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        parse_handlers(handlers, scopes)


def test_a_caller_may_do_what_its_scopes_and_handlers_allow() -> None:
    caller = caller_of(token(handlers=("shop.*",)), "10.0.0.1")
    assert (caller.name, caller.submitted_by, caller.token, caller.origin) == ("shop", "shop", ID, "10.0.0.1")
    assert caller.may(Scope.SUBMIT, "shop.x")
    assert caller.may(Scope.READ)
    refused = {(scope, handler): caller.refusal(scope, handler) for scope, handler in ((Scope.OPERATE, "shop.x"), (Scope.SUBMIT, "mail"))}
    assert [refusal and refusal.why for refusal in refused.values()] == [Denial.SCOPE, Denial.HANDLER]
    assert all(Caller(name="anna").may(scope, "anything") for scope in Scope)


# ---- secrets ----


def test_the_text_of_a_token_can_be_taken_apart() -> None:
    text = TokenText(ID, SECRET)
    assert str(text) == f"dt_{ID}_{SECRET}"
    assert read_token(f" {text}\n") == text


@pytest.mark.parametrize("text", ["", "dt_", f"dt_{ID}", f"dt_{ID}_", f"{ID}_{SECRET}", f"dt_{ID}_{SECRET}0", f"dt_{ID.upper()}_{SECRET}"])
def test_what_is_no_token_is_told_apart(text: str) -> None:
    assert read_token(text) is None


@given(st.text(max_size=120))
def test_no_text_breaks_the_reading_of_tokens(text: str) -> None:
    assert read_token(text) is None
    assert read_token(f"dt_{text}") is None


def test_a_digest_tells_nothing_of_the_secret() -> None:
    assert SECRET not in digest(SECRET)
    assert len(digest(SECRET)) == 64
    assert SECRET not in repr(token())


def test_only_the_right_secret_is_admitted() -> None:
    assert admit(token(), SECRET, 1) is None
    assert admit(token(), OTHER, 1) is BAD_TOKEN
    assert admit(None, SECRET, 1) is BAD_TOKEN


def test_an_expired_token_says_so_only_to_who_has_its_secret() -> None:
    expiring = token(expires_at=10)
    assert admit(expiring, SECRET, 9) is None
    refusal = admit(expiring, SECRET, 10)
    assert refusal is not None
    assert refusal.why is Denial.EXPIRED
    assert admit(expiring, OTHER, 10) is BAD_TOKEN


def test_after_a_rotation_the_old_secret_is_good_for_the_grace_and_no_longer() -> None:
    once = rotated(token(), digest(OTHER), now=5, old_until_at=10, expires_at=None)
    assert (once.version, once.rotated_at) == (2, 5)
    assert [once.has_secret(SECRET, now) for now in (9, 10)] == [True, False]
    assert once.has_secret(OTHER, 10)
    twice = rotated(once, digest("c3" * 32), now=6, old_until_at=10, expires_at=None)
    assert [twice.has_secret(secret, 7) for secret in (SECRET, OTHER, "c3" * 32)] == [False, True, True]


def test_without_grace_the_old_secret_is_forgotten() -> None:
    once = rotated(token(), digest(OTHER), now=5, old_until_at=5, expires_at=7)
    assert (once.old_digest, once.old_until_at, once.expires_at) == (None, None, 7)
    assert not once.has_secret(SECRET, 0)


# ---- the bucket ----

rates = st.floats(0.01, 1_000)
bursts = st.floats(1, 1_000)
pauses = st.lists(st.floats(0, 100) | st.just(0.0), min_size=1, max_size=60)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 2_000_000, True, "5"])
def test_a_rate_that_means_nothing_is_refused(rate: Any) -> None:
    with pytest.raises(InvalidValue, match="rate must be a number of requests a second"):
        check_rate(rate)


def test_rates_are_numbers_or_none() -> None:
    assert (check_rate(None), check_rate(5), burst_of(5), burst_of(0.1)) == (None, 5.0, 10.0, 1.0)


@given(rate=rates, burst=bursts, pauses=pauses)
def test_never_more_pass_than_the_burst_and_what_flowed_in(rate: float, burst: float, pauses: list[float]) -> None:
    bucket: Bucket | None = None
    now, passed = 0.0, 0
    for pause in pauses:
        now += pause
        taken = take(bucket, rate, burst, now)
        bucket = taken.bucket
        passed += taken.wait == 0
        assert -1e-9 <= bucket.level <= burst
    assert passed <= burst + rate * now + 1e-6


@given(rate=rates, burst=bursts, cost=st.floats(1, 5_000), level=st.floats(-1_000, 1_000))
def test_who_waits_as_long_as_told_passes_and_who_comes_sooner_does_not(rate: float, burst: float, cost: float, level: float) -> None:
    first = take(Bucket(min(level, burst), 0.0), rate, burst, 0.0, cost)
    if first.wait:
        assert take(first.bucket, rate, burst, first.wait * 1.000001 + 1e-5, cost).wait == 0
        assert take(first.bucket, rate, burst, first.wait * 0.99, cost).wait > 0 or first.wait < 1e-3


@given(rate=rates, burst=bursts, cost=st.floats(1, 5_000))
def test_a_request_larger_than_the_bucket_passes_once_and_is_paid_for_afterwards(rate: float, burst: float, cost: float) -> None:
    first = take(None, rate, burst, 0.0, cost)
    assert first.wait == 0
    assert first.bucket.level == burst - cost
    following = take(first.bucket, rate, burst, 0.0)
    if cost > burst:
        assert following.wait * rate >= cost - burst


def test_a_clock_that_goes_back_fills_nothing_and_takes_nothing() -> None:
    empty = take(take(None, 1, 1, 100.0).bucket, 1, 1, 100.0)
    assert empty.wait > 0
    back = take(empty.bucket, 1, 1, 50.0)
    assert back.wait > 0
    assert take(back.bucket, 1, 1, 100.5).wait > 0
    assert take(back.bucket, 1, 1, 101.0).wait == 0
