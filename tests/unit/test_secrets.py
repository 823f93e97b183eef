"""Keys, sealed values, and the blanking of values in everything that is kept."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import re
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.config import Masked
from duetime.errors import InvalidValue, MissingExtra, SecretNotFound, SecretUnreadable, StoreUnavailable
from duetime.model.outcome import Ended, Outcome
from duetime.model.secrets import MAX_SECRET, SealedSecret, Secret, SecretKey, check_value, read_keys, write_key
from duetime.model.task import ErrorInfo
from duetime.secrets.keys import KeyRing
from duetime.secrets.reading import KEEP, KEEP_WITHOUT_STORE, TRY_AGAIN, StoredSecrets
from duetime.secrets.redacting import BLANK, SHORTEST, Redactor

OLD, NEW = SecretKey("2026a", bytes(range(32))), SecretKey("2026b", bytes(range(64, 96)))
VALUE = 'p"ä\\ss/w+ö?d & <7>'


def sealed(ring: KeyRing, value: str = VALUE, name: str = "billing", version: int = 1) -> SealedSecret:
    key, text = ring.seal(name, version, value)
    return SealedSecret(name=name, version=version, key=key, sealed=text, created_at=0, created_by="anna")


# ---- keys ----


def test_keys_are_read_as_they_are_written_and_the_first_one_seals() -> None:
    ring = KeyRing.of(Masked(f" {write_key(NEW)}\n{write_key(OLD)} "))
    assert ring is not None
    assert ring.first == "2026b"
    assert "2026a" in ring
    assert ring.open(sealed(KeyRing([OLD]))) == VALUE
    assert sealed(ring).key == "2026b"
    assert KeyRing.of(None) is None


def test_a_key_may_be_written_in_the_alphabet_of_urls() -> None:
    key = SecretKey("a", b"\xfb\xff" * 16)
    assert read_keys(f"a:{base64.urlsafe_b64encode(key.data).decode()}") == (key,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no key"),
        ("c2hvcnQ=", "key 1 has no id"),
        (f"{write_key(OLD)} :abc", "key 2 has no id"),
        (f"{'x' * 41}:abc", "key 1 has no id"),
        ("ä:abc", "key 1 has no id"),
        ("a:", "key 1 has no id"),
        ("a:c2hvcnQ=", "the key a is not 32 bytes in base64"),
        ("a:!!!!", "the key a is not 32 bytes in base64"),
        ("a:" + base64.b64encode(bytes(33)).decode(), "the key a is not 32 bytes in base64"),
        (f"{write_key(OLD)} {write_key(OLD)}", "two keys have the id 2026a"),
    ],
)
def test_a_wrong_key_is_refused_without_showing_it(text: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said) as refused:
        read_keys(text, "DUETIME_SECRET_KEYS")
    assert "DUETIME_SECRET_KEYS" in str(refused.value)
    assert "duetime secrets new-key" in str(refused.value) or "its own" in str(refused.value)
    for part in text.split():
        assert part.partition(":")[2] in ("", "abc") or part.partition(":")[2] not in str(refused.value)


def test_neither_keys_nor_rings_show_what_they_hold() -> None:
    shown = f"{OLD!r} {KeyRing([OLD])!r} {Masked(write_key(OLD))!r}"
    assert "2026a" in shown
    assert repr(OLD.data) not in shown
    assert write_key(OLD).partition(":")[2] not in shown


# ---- sealing ----


@given(st.text(min_size=1, max_size=200).filter(lambda text: not any(0xD800 <= ord(each) < 0xE000 for each in text)))
def test_every_text_opens_as_it_was_sealed(value: str) -> None:
    ring = KeyRing([NEW, OLD])
    assert ring.open(sealed(ring, value)) == value


def test_a_value_is_sealed_differently_every_time_and_shows_nothing() -> None:
    ring = KeyRing([NEW])
    texts = {sealed(ring, "hunter2-hunter2").sealed for _ in range(100)}
    assert len(texts) == 100
    assert not any(b"hunter2" in base64.b64decode(text) for text in texts)


@pytest.mark.parametrize(
    "moved", [{"name": "other"}, {"version": 2}, {"name": 'billing",1', "version": 1}, {"key": "2026a"}, {"key": "nobody"}]
)
def test_a_row_that_was_moved_does_not_open(moved: dict[str, Any]) -> None:
    ring = KeyRing([NEW, OLD])
    with pytest.raises(SecretUnreadable, match="put the secret again") as refused:
        ring.open(msgspec.structs.replace(sealed(ring), **moved))
    assert VALUE not in str(refused.value)


def test_rows_that_were_swapped_between_names_do_not_open() -> None:
    ring = KeyRing([NEW])
    one, other = sealed(ring, name="one"), sealed(ring, name="other")
    for row, foreign in ((one, other), (other, one)):
        with pytest.raises(SecretUnreadable, match="the stored row was changed"):
            ring.open(msgspec.structs.replace(row, sealed=foreign.sealed))


@pytest.mark.parametrize("text", ["", "AAAA", "not base64 §", base64.b64encode(bytes(28)).decode()])
def test_a_damaged_row_does_not_open(text: str) -> None:
    ring = KeyRing([NEW])
    with pytest.raises(SecretUnreadable):
        ring.open(msgspec.structs.replace(sealed(ring), sealed=text))


def test_another_key_of_the_same_id_does_not_open() -> None:
    with pytest.raises(SecretUnreadable, match="another key of that id"):
        KeyRing([SecretKey(OLD.id, bytes(32))]).open(sealed(KeyRing([OLD])))


def test_without_the_package_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    row = sealed(KeyRing([NEW]))
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(MissingExtra, match=r"pip install 'duetime\[secrets\]'"):
        KeyRing([NEW]).seal("billing", 1, VALUE)
    with pytest.raises(MissingExtra, match="the package cryptography"):
        KeyRing([NEW]).open(row)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "1 to 65,536 bytes in UTF-8, got 0"),
        ("x" * (MAX_SECRET + 1), "got 65,537"),
        ("ä" * MAX_SECRET, "got 131,072"),
        ("a\ud800", "UTF-8"),
        (b"bytes", "must be text, got bytes"),
    ],
)
def test_a_value_out_of_bounds_is_refused(value: Any, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        check_value(value)
    assert check_value("x" * MAX_SECRET)


@pytest.mark.parametrize("name", ["", " ", "a\n", "a\0b", "x" * 201, 7])
def test_a_reference_needs_a_name(name: Any) -> None:
    with pytest.raises(InvalidValue, match="the name of a secret"):
        Secret(name)
    assert repr(Secret("billing")) == "Secret('billing')"


# ---- blanking ----


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent": lambda value: quote(value, safe=""),
    "percent in lower case": lambda value: re.sub("%..", lambda escape: escape[0].lower(), quote(value)),
    "form": quote_plus,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 of urls, without padding": lambda value: base64.urlsafe_b64encode(value.encode()).decode().rstrip("="),
    "json": lambda value: json.dumps(value)[1:-1],
    "json in UTF-8": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "msgspec": lambda value: msgspec.json.encode(value).decode()[1:-1],
    "repr": lambda value: repr(value)[1:-1],
    "repr of bytes": lambda value: repr(value.encode())[2:-1],
    "html": html.escape,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [VALUE, "sixsix", "\N{SNOWMAN}" * 6, "a'b\"c\\d", "0123456789" * 100, "x" * MAX_SECRET])
def test_a_value_is_blanked_in_every_form(value: str, form: str) -> None:
    written = FORMS[form](value)
    redactor = Redactor.of([value])
    assert redactor.text(f"before {written} after {written}") == f"before {BLANK} after {BLANK}"
    assert redactor.lines(f"before {written} after".encode()) == f"before {BLANK} after".encode()


@pytest.mark.parametrize("user", ["", "a", "ab", "abc", "somebody"])
@pytest.mark.parametrize("value", ["secret", "hunter2", "hunter22", "p/w+ö?d~~>>"])
def test_a_value_is_blanked_inside_basic_authentication(user: str, value: str) -> None:
    redactor = Redactor.of([value])
    for after in ("", "!", "!!"):
        header = base64.b64encode(f"{user}:{value}{after}".encode()).decode()
        blanked = redactor.text(f"Basic {header}")
        assert BLANK in blanked
        left = blanked.removeprefix("Basic ").split(BLANK)
        # no more than the characters in which a neighbour has a part: at most 4 bits of the value at each end
        assert sum(map(len, left)) <= len(base64.b64encode(f"{user}:".encode())) + 4 + 4


def test_what_was_cut_in_the_middle_of_a_value_is_blanked_at_the_ends() -> None:
    redactor = Redactor.of(["0123456789abcdef"])
    assert redactor.text("the key 0123456789") == f"the key {BLANK}"
    assert redactor.text("6789abcdef was the key") == f"{BLANK} was the key"
    assert redactor.text("6789abcdef, 0123456") == f"{BLANK}, {BLANK}"
    assert redactor.text("the number 01234") == "the number 01234", "five characters say little"


def test_cut_values_are_blanked_at_the_ends_of_every_line_that_is_complete() -> None:
    redactor = Redactor.of(["0123456789abcdef"])
    assert redactor.lines(b"key 01234567\n89abcdef more\n0123456") == b"key ***\n*** more\n***"
    assert redactor.lines(b"key 01234567\nkey 01234567", last=False) == b"key ***\nkey 01234567", "its end may come"


def test_short_values_are_left_alone() -> None:
    assert Redactor.of(["x" * (SHORTEST - 1)]).text("xxxxxxxx") == "xxxxxxxx"
    assert Redactor.of([]).text("anything") == "anything"


def test_every_line_of_a_value_is_blanked_and_white_space_around_it_does_not_matter() -> None:
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----\n"
    redactor = Redactor.of([pem])
    assert redactor.text(f"sent {pem}") == f"sent {BLANK}"
    assert redactor.text("line MIIEvQIBADANBg, line kqhkiG9w0BAQEF") == f"line {BLANK}, line {BLANK}"
    assert Redactor.of([" hunter22\n"]).text("is hunter22.") == f"is {BLANK}."


def test_two_redactors_blank_the_values_of_both() -> None:
    both = Redactor.of(["first-secret"]) | Redactor.of(["second-secret", "first-secret-and-more"])
    assert both.text("first-secret second-secret first-secret-and-more") == f"{BLANK} {BLANK} {BLANK}"
    assert "first" not in repr(both)


def test_json_stays_json() -> None:
    redactor = Redactor.of(["n12345", "987654", 'a"b\\c"d'])
    document = {"n12345": "\n12345", "numbers": [987654, 1987654.5, 7, True, None], "deep": {"text": 'x a"b\\c"d y'}}
    blanked = msgspec.json.decode(redactor.json(msgspec.json.encode(document)))
    assert blanked == {BLANK: "\n12345", "numbers": [BLANK, f"1{BLANK}.5", 7, True, None], "deep": {"text": f"x {BLANK} y"}}
    escaped = b'{"text":"\\u006e12345"}'
    assert redactor.json(escaped) == b'{"text":"' + BLANK.encode() + b'"}'
    untouched = b'{"spaces" : [1, 2.50, "n1234"]}'
    assert redactor.json(untouched) is untouched
    assert redactor.json(b"not json n12345") == f"not json {BLANK}".encode()


def test_an_end_is_blanked_in_all_its_parts() -> None:
    redactor = Redactor.of(["hunter22"])
    error = ErrorInfo("hunter22Error", "wrong: hunter22", "File hunter22.py\nhunter22", "hunter22.py:7")
    ended = redactor.ended(Ended(Outcome.FAILED, result=b'"hunter22"', error=error, delay=7.0))
    assert b"hunter22" not in msgspec.json.encode(ended)
    assert (ended.outcome, ended.delay) == (Outcome.FAILED, 7.0)
    plain = Ended(Outcome.SUCCEEDED)
    assert redactor.ended(plain) is plain


@given(st.text(min_size=SHORTEST, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_no_form_of_a_value_is_left_in_any_text(value: str, before: str, after: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return
    redactor = Redactor.of([value])
    for form in FORMS.values():
        assert value.strip() == "" or len(value.strip()) < SHORTEST or form(value) not in redactor.text(f"{before}{form(value)}{after}")


# ---- reading ----


class Rows:
    """The stored secrets, and how often they were read."""

    def __init__(self, *rows: SealedSecret) -> None:
        self.rows = list(rows)
        self.reads = 0
        self.down = False
        self.gate: asyncio.Event | None = None

    async def sealed_secrets(self, names: list[str]) -> list[list[SealedSecret]]:
        self.reads += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.down:
            raise StoreUnavailable("the store is away")
        return [[row for row in self.rows if row.name == name] for name in names]


class Time:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def reading(rows: Rows, keys: KeyRing | None, time: Time) -> StoredSecrets:
    return StoredSecrets(rows, keys, now=time)  # type: ignore[arg-type]  # it reads nothing else of a store


async def test_a_value_is_read_once_and_again_after_some_seconds() -> None:
    ring, time = KeyRing([NEW]), Time()
    rows = Rows(sealed(ring, "first-value"))
    reader = reading(rows, ring, time)
    assert [(await reader.reveal("billing")).values for _ in range(100)] == [("first-value",)] * 100
    assert rows.reads == 1
    rows.rows = [sealed(ring, "second-value", version=2), *rows.rows]
    time.now += KEEP
    assert (await reader.reveal("billing")).values == ("second-value", "first-value")
    assert rows.reads == 2


async def test_an_unchanged_value_keeps_what_was_made_of_it() -> None:
    ring, time = KeyRing([NEW]), Time()
    reader = reading(rows := Rows(sealed(ring)), ring, time)
    before = await reader.reveal("billing")
    time.now += KEEP
    assert await reader.reveal("billing") is before
    assert rows.reads == 2
    assert VALUE not in repr(before)


async def test_many_attempts_at_once_read_once() -> None:
    ring, time = KeyRing([NEW]), Time()
    rows = Rows(sealed(ring))
    rows.gate = asyncio.Event()
    reader = reading(rows, ring, time)
    attempts = [asyncio.ensure_future(reader.reveal("billing")) for _ in range(50)]
    await asyncio.sleep(0)
    rows.gate.set()
    assert {(await attempt).values for attempt in attempts} == {(VALUE,)}
    assert rows.reads == 1


async def test_what_is_missing_or_unreadable_is_looked_for_again_at_once() -> None:
    ring, time = KeyRing([NEW]), Time()
    reader = reading(rows := Rows(), ring, time)
    with pytest.raises(SecretNotFound, match="there is no secret 'billing'; put it with `duetime secrets put`"):
        await reader.reveal("billing")
    rows.rows = [sealed(KeyRing([OLD]))]
    with pytest.raises(SecretUnreadable, match="sealed with the key 2026a, and this process has 2026b"):
        await reader.reveal("billing")
    rows.rows = [sealed(ring)]
    assert (await reader.reveal("billing")).values == (VALUE,)


async def test_a_secret_that_was_deleted_is_used_no_longer() -> None:
    ring, time = KeyRing([NEW]), Time()
    reader = reading(rows := Rows(sealed(ring)), ring, time)
    await reader.reveal("billing")
    rows.rows = []
    time.now += KEEP
    with pytest.raises(SecretNotFound):
        await reader.reveal("billing")


async def test_without_keys_nothing_is_read() -> None:
    reader = reading(Rows(sealed(KeyRing([NEW]))), None, Time())
    with pytest.raises(SecretUnreadable, match="DUETIME_SECRET_KEYS"):
        await reader.reveal("billing")


async def test_a_former_version_whose_key_is_gone_does_not_matter() -> None:
    ring = KeyRing([NEW])
    reader = reading(Rows(sealed(ring, "new-value", version=2), sealed(KeyRing([OLD]), "old-value")), ring, Time())
    assert (await reader.reveal("billing")).values == ("new-value",)


async def test_known_values_are_used_for_a_minute_while_the_store_is_away() -> None:
    ring, time = KeyRing([NEW]), Time()
    reader = reading(rows := Rows(sealed(ring)), ring, time)
    await reader.reveal("billing")
    rows.down = True
    time.now += KEEP
    assert [(await reader.reveal("billing")).values for _ in range(10)] == [(VALUE,)] * 10
    assert rows.reads == 2, "the store is left alone for a second"
    time.now += TRY_AGAIN
    await reader.reveal("billing")
    assert rows.reads == 3
    time.now += KEEP_WITHOUT_STORE
    with pytest.raises(StoreUnavailable):
        await reader.reveal("billing")


async def test_a_store_that_hangs_does_not_hold_up_attempts_whose_secret_is_known() -> None:
    ring, time = KeyRing([NEW]), Time()
    reader = reading(rows := Rows(sealed(ring)), ring, time)
    await reader.reveal("billing")
    rows.gate = asyncio.Event()
    time.now += KEEP
    hanging = asyncio.ensure_future(reader.reveal("billing"))
    await asyncio.sleep(0)
    assert (await reader.reveal("billing")).values == (VALUE,)
    rows.gate.set()
    assert (await hanging).values == (VALUE,)
