"""Settings: an argument of App, or else the environment, or else the default.

`SETTINGS` is the table of all of them; the documentation prints it.
"""

from __future__ import annotations

import getpass
import hmac
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict
from urllib.parse import urlsplit

import msgspec

from duetime.clock import Seconds, to_seconds
from duetime.errors import InvalidValue
from duetime.model.addresses import AddressList, AddressRules, endpoint_of, read_address_list
from duetime.model.artifacts import check_blobs_url
from duetime.model.callbacks import callback_keys
from duetime.model.hiding import Hiding, read_hiding
from duetime.model.secrets import read_keys
from duetime.model.task import FINAL, State

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])")
_SIZES = {"": 1, "b": 1, "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?b)?", re.IGNORECASE)


class Settings(TypedDict, total=False):
    """The settings as arguments of App."""

    token: str
    app: str
    user: str
    lease: Seconds
    grace: Seconds
    concurrency: int
    keep_succeeded: Seconds
    keep_failed: Seconds
    keep_cancelled: Seconds
    keep_dropped: Seconds
    keep_expired: Seconds
    output: str
    output_cap: int | str
    migrate: bool | str
    revision: int
    http_allow: str | Sequence[str]
    http_deny: str | Sequence[str]
    secret_keys: str
    public_url: str
    public_status: str | Sequence[str]
    heartbeat_url: str
    trace_url: str
    artifacts: str
    hide: str
    artifact_cap: int | str
    artifact_cache: str
    artifact_cache_cap: int | str


class Masked:
    """Text that `repr` does not show."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Masked) and hmac.compare_digest(self._text, other._text)

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Masked(…)"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, checked; durations in seconds, sizes in bytes."""

    url: str
    token: Masked | None
    app: str | None
    user: str
    lease: float
    grace: float
    concurrency: int | None
    keep_succeeded: float
    keep_failed: float
    keep_cancelled: float
    keep_dropped: float
    keep_expired: float
    output: str | None
    output_cap: int
    migrate: bool
    revision: int
    http_allow: AddressList | None
    http_deny: AddressList | None
    secret_keys: Masked | None
    public_url: str | None
    public_status: tuple[str, ...] | None
    heartbeat_url: Masked | None
    trace_url: str | None
    artifacts: str | None
    hide: Hiding | None
    artifact_cap: int
    artifact_cache: str | None
    artifact_cache_cap: int

    def retention(self) -> dict[State, timedelta]:
        """Return how long tasks are kept in each final state."""
        return {state: timedelta(seconds=getattr(self, f"keep_{state}")) for state in FINAL}

    def callback_keys(self) -> tuple[bytes, ...]:
        """Return the keys for callback tokens, the one that makes them first."""
        return callback_keys("" if self.secret_keys is None else self.secret_keys.reveal())

    def addresses(self, *, loopback: bool = False, own: Iterable[tuple[str, int]] = ()) -> AddressRules:
        """Return where HTTP handlers may connect to. `loopback`: also to this machine; `own`: where this process itself listens."""
        return AddressRules(
            allow=self.http_allow or AddressList(),
            deny=self.http_deny or AddressList(),
            loopback=loopback,
            own=frozenset(endpoint_of(host, port) for host, port in own),
        )


def parse_duration(value: Seconds | str, name: str = "duration") -> float:
    """Read seconds, a timedelta, or text such as 90, 30s, 1h30m or 7d."""
    if not isinstance(value, str):
        return to_seconds(value, name)
    text = value.strip().lower()
    try:
        return to_seconds(float(text), name)
    except ValueError:
        pass
    parts = list(_PART.finditer(text))
    if not parts or _PART.sub("", text).strip():
        raise InvalidValue(f"{name} must be a duration such as 90, 30s, 10m, 1h30m or 7d, got {value!r}")
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)


def parse_size(value: int | str, name: str = "size") -> int:
    """Read bytes, or text such as 64kB or 10MB."""
    match = _SIZE.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    if match is None:
        raise InvalidValue(f"{name} must be a size such as 65536, 64kB or 10MB, got {value!r}")
    return int(float(match[1]) * _SIZES[(match[2] or "").lower()])


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(f"{name} must be text and not empty, got {value!r}")
    return value.strip()


def _token(value: Any, name: str) -> Masked:
    # the message must not show it
    text = value.strip() if isinstance(value, str) else ""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidValue(f"{name} must be a token as `duetime tokens create` prints it: printable ASCII without spaces")
    return Masked(text)


def _secret_keys(value: Any, name: str) -> Masked:
    text = value if isinstance(value, str) else ""
    read_keys(text, name)
    return Masked(text)


def _user(value: Any, name: str) -> str:
    text = _text(value, name)
    if len(text) > 200 or not text.isprintable():
        raise InvalidValue(f"{name} must have at most 200 characters and none that cannot be printed")
    return text


def _duration(value: Any, name: str) -> float:
    seconds = parse_duration(value, name)
    if seconds < 0:
        raise InvalidValue(f"{name} must not be negative, got {value!r}")
    return seconds


def _lease(value: Any, name: str) -> float:
    seconds = parse_duration(value, name)
    if not 0.5 <= seconds <= 3_600:
        raise InvalidValue(f"{name} must lie between half a second and 1 hour, got {value!r}")
    return seconds


def _count(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1 or isinstance(value, bool | float):
        raise InvalidValue(f"{name} must be a whole number of at least 1, got {value!r}")
    return number


def _revision(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 2**53 or isinstance(value, bool | float):
        raise InvalidValue(f"{name} must be a whole number from 0 that grows with each deployment, got {value!r}")
    return number


_SWITCH = {"on": True, "true": True, "1": True, "yes": True, "off": False, "false": False, "0": False, "no": False}


def _switch(value: Any, name: str) -> bool:
    switched = value if isinstance(value, bool) else _SWITCH.get(str(value).strip().lower())
    if switched is None:
        raise InvalidValue(f"{name} must be on or off, got {value!r}")
    return switched


def default_user() -> str:
    """Return user@host of this process, as far as it is known."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user id without a name
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"


def _patterns(value: Any, name: str) -> tuple[str, ...]:
    found = tuple(value.replace(",", " ").split() if isinstance(value, str) else value)
    for pattern in found or ("",):
        if not isinstance(pattern, str) or not pattern or "*" in pattern[:-1]:
            raise InvalidValue(f"{name} lists names, or prefixes that end with one *, got {pattern!r}")
    return found


def _heartbeat(value: Any, name: str) -> Masked:
    text = value.reveal() if isinstance(value, Masked) else value
    parts = urlsplit(text) if isinstance(text, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidValue(f"{name} must be a URL such as https://monitor.example/ping/7; it is not shown here")
    return Masked(text)


def _trace_url(value: Any, name: str) -> str:
    text = _text(value, name)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or text.count("{trace}") != 1 or "{" in text.replace("{trace}", ""):
        raise InvalidValue(f"{name} must be a URL with {{trace}} in it, such as https://traces.example/trace/{{trace}}, got {text!r}")
    return text


def _public_url(value: Any, name: str) -> str:
    text = _text(value, name).rstrip("/")
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment or parts.username)
    except ValueError:
        good = False
    if not good or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidValue(f"{name} must be the address of the HTTP API as others reach it, such as https://duetime.example, got {value!r}")
    return text


def _artifacts(value: Any, name: str) -> str:
    return check_blobs_url(_text(value, name), name)


class Setting(msgspec.Struct, frozen=True):
    """One row of the table. `default` is a function where it depends on the machine."""

    name: str
    default: object
    meaning: str
    read: Callable[[Any, str], Any] = _text

    @property
    def variable(self) -> str:
        return f"DUETIME_{self.name.upper()}"


SETTINGS = (
    Setting("url", "sqlite:///duetime.db", "the store, or a server (`https://…`)"),
    Setting("token", None, "what a server knows this program by; a store needs none", _token),
    Setting("app", None, "where the command line finds the App: module:name"),
    Setting("user", default_user, "who submits, cancels and sets gates; by default user@host", _user),
    Setting("lease", timedelta(seconds=15), "how long a worker that cannot reach the store counts as alive", _lease),
    Setting("grace", timedelta(seconds=30), "how long a stopping worker lets its attempts finish", _duration),
    Setting("concurrency", None, "slots of one worker process over all handlers; by default the sum of theirs", _count),
    Setting("keep_succeeded", timedelta(days=7), "how long succeeded tasks are kept", _duration),
    Setting("keep_failed", timedelta(days=90), "how long failed tasks are kept", _duration),
    Setting("keep_cancelled", timedelta(days=7), "how long cancelled tasks are kept", _duration),
    Setting("keep_dropped", timedelta(days=30), "how long dropped tasks are kept", _duration),
    Setting("keep_expired", timedelta(days=30), "how long expired tasks are kept", _duration),
    Setting("output", None, "the folder where workers gather what attempts print and log, until it is in the store; off: it is not kept"),
    Setting("output_cap", 1_048_576, "how much of an attempt's output is kept", parse_size),
    Setting(
        "migrate", True, "whether the store's tables are made and updated at the first use; off: only `duetime migrate` does it", _switch
    ),
    Setting("revision", 0, "the number of this deployment: an older one never rewrites schedules that a newer one declared", _revision),
    Setting(
        "http_allow",
        None,
        "where HTTP handlers may connect to besides public addresses: networks, addresses, host:port, separated by spaces",
        read_address_list,
    ),
    Setting("http_deny", None, "where HTTP handlers may never connect to, in the same form; comes before `http_allow`", read_address_list),
    Setting("secret_keys", None, "the keys of stored secrets: `id:base64` of 32 bytes each, the one that encrypts first", _secret_keys),
    Setting("public_url", None, "the HTTP API as servers outside reach it, for `app.http(callback=…)`", _public_url),
    Setting(
        "public_status", None, "handlers and schedules whose status is public at `/status/NAME`: names, or prefixes with `*`", _patterns
    ),
    Setting("heartbeat_url", None, "what is called each minute, for a monitor outside: its silence tells that all is down", _heartbeat),
    Setting("trace_url", None, "where the dashboard finds the trace of a task: `https://traces.example/trace/{trace}`", _trace_url),
    Setting(
        "artifacts",
        None,
        "where the bytes of artifacts are: `file:///folder` or `s3://bucket/prefix`; by default a folder beside a SQLite file",
        _artifacts,
    ),
    Setting("hide", None, "parts of tasks that only admins see: `payload.password, result.token, meta.*`", read_hiding),
    Setting("artifact_cap", "500MB", "how large an artifact may be", parse_size),
    Setting("artifact_cache", None, "the folder where a worker unpacks artifacts; by default one in the user's cache"),
    Setting("artifact_cache_cap", "10GB", "how much is kept there; the least recently used artifacts go first", parse_size),
)


def read_setting(name: str, value: object, called: str | None = None) -> Any:
    """Check the value of one setting. `called` is its name in the message, such as that of an option."""
    [setting] = (each for each in SETTINGS if each.name == name)
    return setting.read(value, called or name)


def load(arguments: Mapping[str, object], environment: Mapping[str, str] | None = None) -> Config:
    """Return all settings; raise InvalidValue with the name of a wrong argument or variable, empty ones included."""
    environment = os.environ if environment is None else environment
    surplus = arguments.keys() - {setting.name for setting in SETTINGS}
    if surplus:
        raise InvalidValue(f"{min(surplus)} is not a setting; there are {', '.join(setting.name for setting in SETTINGS)}")
    return Config(**{setting.name: _value_of(setting, arguments, environment) for setting in SETTINGS})


def _value_of(setting: Setting, arguments: Mapping[str, object], environment: Mapping[str, str]) -> Any:
    if arguments.get(setting.name) is not None:
        return setting.read(arguments[setting.name], setting.name)
    if setting.variable in environment:
        value = environment[setting.variable]
        if not value.strip():
            raise InvalidValue(f"{setting.variable} is set but empty; give it a value or unset it")
        return setting.read(value, setting.variable)
    default = setting.default() if callable(setting.default) else setting.default
    return None if default is None else setting.read(default, setting.name)
