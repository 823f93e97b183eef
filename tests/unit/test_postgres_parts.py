"""Parts of the PostgreSQL store that need no server: its URL, its clock, and the name of its schema in statements."""

from __future__ import annotations

import pytest

from duetime.clock import SECOND, ManualClock
from duetime.errors import InvalidValue
from duetime.store.postgres import clock
from duetime.store.postgres.address import OPTIONS, Address
from duetime.store.postgres.clock import ServerClock
from duetime.store.postgres.statements import in_schema, statements, steps
from duetime.store.postgres.wakeups import Wakeups, channel_of
from duetime.store.protocol import HintKind


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
    assert wakeups.turn()
    assert not wakeups.turn(), "at most one in 20 ms"
    wakeups._sent_at = 0.0
    for at in (5, 3, 7):
        wakeups._await(HintKind.DUE, at)
    assert wakeups._waiting == {HintKind.DUE: 3}
    wakeups._await(HintKind.DUE, None)
    wakeups._await(HintKind.DUE, 9)
    assert wakeups._waiting == {HintKind.DUE: None}, "none means at once"
    assert not wakeups.turn()
