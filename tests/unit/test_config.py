"""Settings: argument, then environment, then default; wrong ones are named."""

from datetime import timedelta
from ipaddress import IPv4Address
from typing import Any

import pytest

from duetime import App, InvalidValue
from duetime.config import SETTINGS, Config, Masked, Settings, load, parse_duration, parse_size
from duetime.model.addresses import AddressList
from duetime.model.hiding import Hiding
from duetime.model.task import FINAL
from duetime.model.urls import Endpoint

KEY = "2026a:" + "A" * 43 + "="


def test_an_argument_comes_before_the_environment_and_that_before_the_default() -> None:
    environment = {"DUETIME_URL": "sqlite:///b.db", "DUETIME_LEASE": "20s"}
    assert load({}, {}).url == "sqlite:///duetime.db"
    assert load({}, environment).url == "sqlite:///b.db"
    assert load({"url": "sqlite:///a.db"}, environment).url == "sqlite:///a.db"
    assert (load({}, {}).lease, load({}, environment).lease, load({"lease": timedelta(seconds=30)}, environment).lease) == (15, 20, 30)


def test_the_table_names_every_setting_once() -> None:
    names = [setting.name for setting in SETTINGS]
    assert names == list(Config.__struct_fields__)
    assert {"url", *Settings.__annotations__} == set(names)
    assert all(setting.meaning for setting in SETTINGS)
    assert len({setting.variable for setting in SETTINGS}) == len(SETTINGS)


def test_every_setting_can_be_given_in_the_environment() -> None:
    values: dict[str, tuple[str, object]] = {
        "url": ("sqlite:///x.db", "sqlite:///x.db"),
        "token": ("dt_0_1", Masked("dt_0_1")),
        "app": ("shop:app", "shop:app"),
        "user": ("anna", "anna"),
        "lease": ("5", 5.0),
        "grace": ("1m", 60.0),
        "concurrency": ("7", 7),
        "keep_succeeded": ("1h", 3600.0),
        "keep_failed": ("1d", 86400.0),
        "keep_cancelled": ("2w", 1209600.0),
        "keep_dropped": ("0", 0.0),
        "keep_expired": ("1h30m", 5400.0),
        "output": ("/var/log/out", "/var/log/out"),
        "output_cap": ("64kB", 64000),
        "migrate": ("off", False),
        "revision": ("12", 12),
        "http_allow": ("10.0.0.7", AddressList(addresses=frozenset([IPv4Address("10.0.0.7")]))),
        "http_deny": ("shop.example:80", AddressList(endpoints=frozenset([Endpoint("shop.example", 80)]))),
        "secret_keys": (KEY, Masked(KEY)),
        "public_url": ("https://duetime.example/api/", "https://duetime.example/api"),
        "public_status": ("shop.*, nightly", ("shop.*", "nightly")),
        "heartbeat_url": ("https://monitor.example/7", Masked("https://monitor.example/7")),
        "trace_url": ("https://traces.example/{trace}?tab=1", "https://traces.example/{trace}?tab=1"),
        "artifacts": ("s3://bucket/prefix", "s3://bucket/prefix"),
        "hide": ("payload.card.*, meta.*", Hiding(payload=(("card", "*"),), meta=(("*",),))),
        "artifact_cap": ("10MB", 10_000_000),
        "artifact_cache": ("/var/cache/duetime", "/var/cache/duetime"),
        "artifact_cache_cap": ("1GB", 1_000_000_000),
    }
    assert set(values) == {setting.name for setting in SETTINGS}
    config = load({}, {f"DUETIME_{name.upper()}": text for name, (text, _) in values.items()})
    assert {name: getattr(config, name) for name in values} == {name: value for name, (_, value) in values.items()}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_variable_is_refused(setting: Any, empty: str) -> None:
    with pytest.raises(InvalidValue, match=f"{setting.variable} is set but empty"):
        load({}, {setting.variable: empty})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DUETIME_LEASE", "soon"),
        ("DUETIME_LEASE", "0"),
        ("DUETIME_LEASE", "2h"),
        ("DUETIME_LEASE", "nan"),
        ("DUETIME_GRACE", "-1"),
        ("DUETIME_GRACE", "1x"),
        ("DUETIME_CONCURRENCY", "0"),
        ("DUETIME_CONCURRENCY", "many"),
        ("DUETIME_CONCURRENCY", "1.5"),
        ("DUETIME_KEEP_FAILED", "1 fortnight"),
        ("DUETIME_OUTPUT_CAP", "big"),
        ("DUETIME_OUTPUT_CAP", "-5"),
        ("DUETIME_USER", "a\nb"),
        ("DUETIME_HTTP_ALLOW", "10.0.0.1/8"),
        ("DUETIME_HTTP_DENY", "intranet.example"),
        ("DUETIME_TRACE_URL", "https://traces.example/"),
        ("DUETIME_TRACE_URL", "javascript:alert({trace})"),
    ],
)
def test_a_malformed_variable_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(InvalidValue, match=variable):
        load({}, {variable: value})


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": ""},
        {"url": 7},
        {"lease": True},
        {"concurrency": 1.0},
        {"concurrency": True},
        {"user": ""},
        {"http_allow": 7},
        {"http_deny": ["::1", 80]},
    ],
)
def test_a_malformed_argument_is_refused_by_name(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(arguments))):
        load(arguments, {})


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(InvalidValue, match="leese is not a setting; there are url, token, app"):
        load({"leese": 1}, {})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("30s", 30),
        ("10 m", 600),
        ("1h30m", 5400),
        ("1H 30M", 5400),
        ("7d", 604800),
        ("1w", 604800),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("64kB", 64_000), ("10MB", 10_000_000), ("1.5gb", 1_500_000_000), (7, 7)])
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_size(text) == size


def test_retention_is_told_for_every_final_state() -> None:
    retention = load({"keep_failed": 5}, {}).retention()
    assert retention.keys() == FINAL
    assert retention[next(state for state in FINAL if state == "failed")] == timedelta(seconds=5)


def test_an_app_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_URL", "sqlite:///:memory:")
    monkeypatch.setenv("DUETIME_USER", "anna@shop")
    assert App().store.url == "sqlite:///:memory:"
    assert App().user == "anna@shop"


@pytest.mark.parametrize(
    "url", ["", "duetime.db", "mysql://x/y", "sqlite://", "sqlite://host/x.db", "sqlite:///", "sqlite:///x.db?synchronous=off"]
)
def test_a_malformed_url_is_refused_when_the_app_is_made(url: str) -> None:
    with pytest.raises(InvalidValue):
        App(url)


def test_a_token_is_never_shown() -> None:
    config = load({}, {"DUETIME_URL": "https://duetime.example", "DUETIME_TOKEN": " dt_hush "})
    assert config.token is not None
    assert config.token.reveal() == "dt_hush"
    assert "hush" not in repr(config) + str(config.token)
    assert (config.token == Masked("dt_hush"), config.token == Masked("dt_other"), config.token == "dt_hush") == (True, False, False)
    with pytest.raises(InvalidValue, match="DUETIME_TOKEN must be a token as `duetime tokens create` prints it") as refused:
        load({}, {"DUETIME_TOKEN": "dt_hush dt_hush"})
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["duetime.example", "ftp://x.example", "https://", "https://x.example/?a=1", "https://u@x.example", "http://[", "http://a b"]
)
def test_a_public_address_is_an_http_url_of_a_host(text: str) -> None:
    with pytest.raises(InvalidValue, match="public_url must be the address of the HTTP API"):
        load({"public_url": text}, {})
