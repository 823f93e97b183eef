"""What people write who come from elsewhere: accepted where it is clear, otherwise the message names the right way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duetime import App, Cron, Every, RetryPolicy
from duetime.errors import InvalidHandler, InvalidValue
from duetime.store.open import store_from_url


@pytest.fixture
def app() -> App:
    return App("sqlite:///:memory:")


@pytest.mark.parametrize("name", ["max_attempts", "max_retries", "attempts"])
def test_a_retry_policy_says_what_the_number_of_tries_is_called(name: str) -> None:
    options: dict[str, Any] = {name: 3}
    with pytest.raises(TypeError, match=f"RetryPolicy has no option '{name}': write tries=, which counts the first try too"):
        RetryPolicy(**options)


def test_the_rule_of_a_schedule_may_come_first(app: App) -> None:
    @app.schedule("0 9 * * *", tz="Europe/Berlin")
    async def sweep() -> None: ...

    @app.schedule(Every(600))
    async def look() -> None: ...

    assert {each.name: each.rule for each in app.declared_schedules()} == {
        "sweep": Cron("0 9 * * *", tz="Europe/Berlin"),
        "look": Every(600),
    }


def test_a_rule_is_given_once_and_not_left_out(app: App) -> None:
    with pytest.raises(InvalidValue, match="the rule is given twice, by position and as rule="):
        app.schedule("0 9 * * *", rule=Every(60))
    with pytest.raises(InvalidValue, match="give exactly one of cron=, every=, at=, after_end= and rule=, got cron, rule"):
        app.schedule("0 9 * * *", cron="0 9 * * *")
    function: Any = len
    with pytest.raises(InvalidHandler, match=r'a schedule needs a rule: write @app.schedule\("0 9 \* \* \*"\)'):
        app.schedule(function)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("30m", r"got str '30m'; write 1800 or timedelta\(minutes=30\)"),
        ("1.5h", r"got str '1.5h'; write 5400 or timedelta\(hours=1.5\)"),
        ("2 d", r"got str '2 d'; write 172800 or timedelta\(days=2\)"),
        ("soon", "got str$"),
    ],
)
def test_a_duration_as_text_is_refused_with_the_right_way_to_write_it(app: App, text: Any, right: str) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(InvalidValue, match=f"delay must be seconds or a timedelta, {right}"):
        work.new().after(text)
    with pytest.raises(InvalidValue, match=f"interval must be seconds or a timedelta, {right}"):
        app.schedule(every=text)


@pytest.mark.parametrize(
    "url", ["postgresql+asyncpg://me@host/shop", "postgresql+psycopg://me@host/shop", "postgres+psycopg2://me@host/shop"]
)
def test_the_driver_in_a_url_of_sqlalchemy_is_left_out(url: str) -> None:
    assert type(store_from_url(url)) is type(store_from_url("postgresql://me@host/shop"))


async def test_a_sqlite_url_of_sqlalchemy_names_the_same_file(tmp_path: Path) -> None:
    async with App(f"sqlite+aiosqlite:///{tmp_path}/store.db"):
        assert (tmp_path / "store.db").exists()


@pytest.mark.parametrize("url", ["sqlite:/x.db", "sqlite:x.db", "sqlite://x.db", "sqlite:///", "sqlite:"])
def test_a_sqlite_url_with_too_few_slashes_is_refused_instead_of_meaning_another_file(url: str) -> None:
    with pytest.raises(
        InvalidValue, match=r"names no file; write sqlite:///relative.db, sqlite:////absolute/path.db or sqlite:///:memory:"
    ):
        store_from_url(url)
