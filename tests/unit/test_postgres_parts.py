"""Parts of the PostgreSQL store that need no server: its URL, its clock, and the name of its schema in statements."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import asyncpg
import pytest

from duetime.clock import SECOND, ManualClock
from duetime.errors import InvalidValue
from duetime.store import server_clock as clock
from duetime.store.open import store_from_url
from duetime.store.postgres.address import OPTIONS, Address
from duetime.store.postgres.statements import functions, in_schema, statements, steps
from duetime.store.postgres.translation import translated
from duetime.store.postgres.wakeups import Wakeups, channel_of
from duetime.store.server_clock import ServerClock
from duetime.store.values import HintKind


def test_a_url_is_split_into_what_is_ours_and_what_is_the_drivers() -> None:
    address = Address.from_url("postgresql://shop:s3cret@db:6432/shop?schema=jobs&notify=off&connections=3&timeout=5&sslmode=require")
    assert address.dsn == "postgresql://shop:s3cret@db:6432/shop?sslmode=require"
    assert (address.schema, address.notify, address.connections, address.timeout) == ("jobs", False, 3, 5.0)


def test_what_is_shown_of_a_url_has_no_secret_in_it() -> None:
    assert Address.from_url("postgresql://shop:s3cret@db/shop").shown == "postgresql://db/shop"
    assert Address.from_url("postgres://shop:s3cret@db/shop?schema=jobs").shown == "postgresql://db/shop?schema=jobs"


def test_behind_a_pooler_nothing_of_a_session_is_used() -> None:
    address = Address.from_url("postgresql://db/shop?pooled=on&notify=on")
    assert address.pooled
    assert not address.notify


@pytest.mark.parametrize(
    "query",
    [
        "schema=",
        "schema=pg_own",
        "schema=information_schema",
        "schema=Information_Schema",
        "schema=a&schema=b",
        "timeout=1&timeout=1",
        "schema=a$$b",
        "schema=" + "x" * 64,
        "notify=perhaps",
        "connections=0",
        "connections=many",
        "timeout=-1",
        "pooled=2",
    ],
)
def test_a_wrong_option_is_refused_by_its_name(query: str) -> None:
    with pytest.raises(InvalidValue, match=query.partition("=")[0]):
        Address.from_url(f"postgresql://db/shop?{query}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://admin:hush/hush@db:5432/shop",
        "postgresql://admin:12/hush@db:5432/shop",
        "postgresql://admin:hush?hush@db/shop",
        "postgresql://admin:12?hush@db/shop",
        "postgresql://admin:12?hush=hush@db/shop",
        "postgresql://admin:hush#hush@db/shop",
        "postgresql://admin:12#hush@db/shop",
        "postgresql://admin:hu@hush/hush@db/shop",
        "postgresql://admin:hush@hush@db/shop",
        "postgresql://admin:hu[hush@db/shop",
        "postgresql://admin:hush@[::1/shop",
        "postgresql://admin:hush@[::1]5432/shop",
        "postgresql://admin:hush@db:abc/shop",
        "postgresql://admin:hush@db:99999/shop",
        "postgresql://admin:hush@db:0/shop",
        "postgresql://admin:hush@one:5432,two:x/shop",
        "postgresql://admin:hush@one,,two/shop",
        "postgresql://admin:hush@/shop?host=db&port=x",
    ],
)
def test_a_url_whose_parts_cannot_be_told_apart_is_refused_without_showing_the_secret(url: str) -> None:
    with pytest.raises(InvalidValue, match="percent-encode") as refused:
        store_from_url(url)
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None, "nor by what came before it"


def test_a_wrong_port_is_named_as_one() -> None:
    for url in ("postgresql://db:abc/shop", "postgresql://db:65536/shop", "postgresql://admin:pa/ss@127.0.0.1:5432/shop"):
        with pytest.raises(InvalidValue, match="port in a postgresql URL must be a number from 1 to 65535"):
            Address.from_url(url)


def test_a_second_at_sign_is_told_with_the_host_that_was_found() -> None:
    with pytest.raises(InvalidValue, match=r"more than one @ before its host db:5432; .*%40"):
        Address.from_url("postgresql://admin:p@ss@db:5432/shop")


def test_an_unknown_kind_of_store_is_refused_without_its_secret() -> None:
    for url in ("postgre://admin:hush/hush@db/shop", "mysql://admin:hush@[::1/shop"):
        with pytest.raises(InvalidValue, match="names no store") as refused:
            store_from_url(url)
        assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///shop",
        "postgresql://db",
        "postgresql://one:5432,two:5433,three/shop",
        "postgresql://admin@[::1]:5432/shop",
        "postgresql://admin@[::1]/shop",
        "postgresql://%2Fvar%2Frun/shop",
        "postgresql:///shop?host=/tmp&port=5433&user=me@here",
        "postgresql://admin:p%40%2F%3F%23s@db:5432/shop?application_name=me@here&search_path=a,b",
        "postgresql://db:/shop?sslmode=require&",
    ],
)
def test_an_address_that_the_driver_takes_is_left_as_it_is(url: str) -> None:
    given, passed_on = urlsplit(url), urlsplit(Address.from_url(url).dsn)
    assert (passed_on.netloc, passed_on.path) == (given.netloc, given.path)
    assert parse_qsl(passed_on.query) == parse_qsl(given.query)


# ---- what the driver raises ----

SHOP = Address.from_url("postgresql://shop:hush@db/shop?schema=jobs")


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        asyncpg.InterfaceError("cannot perform operation: another operation is in progress"),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        ConnectionError("unexpected connection_lost() call"),
    ],
)
def test_a_broken_connection_is_told_in_plain_words(error: Exception) -> None:
    assert str(translated(error, SHOP)) == "the connection to the store postgresql://db/shop?schema=jobs broke"


def test_what_the_server_said_last_is_told() -> None:
    error = asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation: terminating connection")
    assert str(translated(error, SHOP)).endswith("broke (terminating connection)")


def test_whether_a_change_was_done_is_unknown_only_if_its_answer_may_have_been_lost() -> None:
    lost = [
        TimeoutError(),
        ConnectionResetError("reset"),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.AdminShutdownError("bye"),
    ]
    for error in lost:
        assert "whether it was done is unknown" in str(translated(error, SHOP, under_way=True))
        assert "unknown" not in str(translated(error, SHOP)), "while connecting nothing was asked for"
    for refused in (
        asyncpg.TooManyConnectionsError("full"),
        asyncpg.QueryCanceledError("cancelled"),
        asyncpg.DeadlockDetectedError("dead"),
    ):
        assert "unknown" not in str(translated(refused, SHOP, under_way=True))


def test_every_option_is_documented(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "docs" / "postgres.md").read_text()
    assert [option for option in OPTIONS if f"| `{option}` |" not in text] == []


def test_the_schema_stands_wherever_a_statement_names_it() -> None:
    text = "select duetime.clock(), 'duetime' from duetime.task -- duetime is a scheduler"
    assert in_schema(text, "Jobs") == 'select "Jobs".clock(), \'Jobs\' from "Jobs".task -- duetime is a scheduler'
    assert in_schema(text, "duetime") == text
    assert in_schema("duetime.task", 'odd"name') == '"odd""name".task'


def test_no_statement_names_a_table_without_its_schema() -> None:
    for text in [
        *(getattr(statements("other"), name) for name in statements("other").names()),
        *(in_schema(step.text, "other") for step in steps()),
        in_schema(functions(), "other"),
    ]:
        code = "\n".join(line.partition("--")[0] for line in text.splitlines())
        assert " duetime." not in code


def test_a_channel_has_a_name_that_the_server_takes_whole() -> None:
    assert channel_of("duetime") == "duetime_duetime"
    assert max(len(channel_of(name * 30).encode()) for name in ("s", "ü", "sü")) <= 63
    assert channel_of("s" * 63) != channel_of("s" * 62)


class Hands:
    """A monotonic clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000 * SECOND
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    return Hands(monkeypatch)


def test_the_servers_time_is_known_to_half_of_the_fastest_answer(hands: Hands) -> None:
    known = ServerClock()
    for delay in (30_000, 400, 9_000):
        sent = hands.now
        hands.now += delay
        known.heard(5_000 * SECOND + sent + delay // 2, sent)
    assert abs(known.now() - (5_000 * SECOND + hands.now)) <= 200


def test_a_wall_clock_of_this_host_is_never_asked(hands: Hands) -> None:
    known = ServerClock()
    known.heard(7 * SECOND, hands.now)
    before = known.now()
    hands.now += 3 * SECOND
    assert known.now() == before + 3 * SECOND


@pytest.mark.parametrize("step", [-3_600 * SECOND, -50_000, 3_600 * SECOND, 0])
def test_a_step_of_the_servers_clock_is_followed(hands: Hands, step: int) -> None:
    known = ServerClock()
    known.heard(hands.now, hands.now - 200)
    hands.now += SECOND
    known.heard(hands.now + step, hands.now - 200)
    assert abs(known.now() - (hands.now + step)) <= 400


def test_a_clock_that_tests_give_is_the_only_one(hands: Hands) -> None:
    given = ManualClock()
    known = ServerClock(given)
    known.heard(5, hands.now)
    assert known.now() == known.parameter == given.now()


def test_hints_that_wait_keep_the_earlier_time_and_nothing_overtakes_them() -> None:
    wakeups = Wakeups(Address.from_url("postgresql://localhost/shop"))
    assert wakeups.may_send()
    assert not wakeups.may_send(), "at most one in 20 ms"
    wakeups._sent_at = 0.0
    for at in (5, 3, 7):
        wakeups._await(HintKind.DUE, at)
    assert wakeups._waiting == {HintKind.DUE: 3}
    wakeups._await(HintKind.DUE, None)
    wakeups._await(HintKind.DUE, 9)
    assert wakeups._waiting == {HintKind.DUE: None}, "none means at once"
    assert not wakeups.may_send()
