"""What is stored of a target: the same words in Python, in JSON and on the command line.

A definition names secrets and never has their values: whoever may read handlers may read it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from duetime.clock import Seconds
from duetime.errors import InvalidValue
from duetime.model.artifacts import Reference, read_reference
from duetime.model.disabling import DisableAfter
from duetime.model.retry import RetryPolicy, StoredRetry
from duetime.model.secrets import Secret
from duetime.model.targets import MAX_DEFINITION
from duetime.targets.command.command import DEFAULT_GRACE, DEFAULT_KEEP_ENV, PAYLOAD, Exit, Sandbox
from duetime.targets.http.auth import Basic, Bearer
from duetime.targets.http.callbacks import Callback
from duetime.targets.http.redirects import Redirects
from duetime.targets.policies import DisableScope
from duetime.targets.publish.address import read_address
from duetime.targets.spec import DEFAULT_CONCURRENCY, DEFAULT_TIMEOUT

HTTP_TIMEOUT = 30.0
CONNECT = 5.0
KEEP = 16_384
NOTICE_TIMEOUT = 60.0

_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie", "api-key", "auth-token", "access-token", "secret", "password")
_SECRET_VARIABLES = ("PASSWORD", "PASSWD", "SECRET", "TOKEN", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY")
_NAME_IT = 'write {"secret": NAME}, in Python Secret(NAME), and store the value: duetime secrets put NAME'


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """What all kinds have. `retry` has the numbers of a RetryPolicy; `concurrency` are the slots in each worker process.

    `disable_after` and `keep_succeeded` and the like are those of `app.http`.
    """

    retry: StoredRetry | None = None
    concurrency: int = DEFAULT_CONCURRENCY
    priority: int = 5
    keep_succeeded: Seconds | None = None
    keep_failed: Seconds | None = None
    keep_cancelled: Seconds | None = None
    keep_dropped: Seconds | None = None
    keep_expired: Seconds | None = None
    disable_after: int | DisableAfter | None = None
    disable: DisableScope = "handler"
    doc: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.retry, RetryPolicy) and (self.retry.only or self.retry.never):
            raise InvalidValue("retry: the exception types of a policy live in code and cannot be stored; leave only= and never= out")


class StoredHttp(_Stored, frozen=True, kw_only=True, tag="http"):
    """A stored target whose attempts are requests to a URL; `app.http` explains its fields.

    Without a `body`, POST, PUT and PATCH send the payload; null sends nothing.
    """

    url: str
    method: str = "POST"
    body: Any = UNSET
    headers: Mapping[str, str | Secret] = {}
    hosts: Sequence[str] = ()
    auth: Basic | Bearer | None = None
    sign: Secret | Sequence[Secret] = ()
    timeout: Seconds = HTTP_TIMEOUT
    connect: Seconds = CONNECT
    redirects: Redirects = "none"
    fatal: Sequence[int] = ()
    certificate: Secret | None = None
    callback: Callback | None = None
    keep: int = KEEP

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_plain_auth(self.auth)
        for name, value in self.headers.items():
            if not isinstance(value, Secret) and name.lower().endswith(_SECRET_HEADERS):
                better = "give `auth` instead, or " if name.lower() == "authorization" else ""
                raise InvalidValue(f"headers: {name} is a credential, and a stored target has none: {better}{_NAME_IT}")
        for each in (self.sign,) if isinstance(self.sign, Secret) else self.sign:
            if not isinstance(each, Secret):
                raise InvalidValue(f"sign: a stored target names the secret that signs: {_NAME_IT}")
        if self.certificate is not None and not isinstance(self.certificate, Secret):
            raise InvalidValue(f"certificate: a stored target names the secret with certificate and key: {_NAME_IT}")


class StoredPublish(_Stored, frozen=True, kw_only=True, tag="publish"):
    """A stored target whose attempts are messages to a broker; `app.publish` explains its fields. Kafka can only be used in code."""

    url: str
    to: str
    body: Any = UNSET
    headers: Mapping[str, str] = {}
    auth: Basic | None = None
    max_length: int | None = None
    exchange: str | None = None
    retain: bool | None = None
    timeout: Seconds = HTTP_TIMEOUT

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_plain_auth(self.auth)
        address = read_address(self.url)
        if address.password is not None:
            raise InvalidValue(f"url: it has a password, and a stored target has none: give `auth` with user and password; {_NAME_IT}")
        if address.kind == "kafka":
            raise InvalidValue(
                "url: a Kafka cluster tells its clients further addresses, and nothing judges those, so kafka:// cannot be stored; "
                "declare the handler in code with app.publish"
            )


class StoredCommand(_Stored, frozen=True, kw_only=True, tag="command"):
    """A stored target whose attempts run a program; `app.command` explains its fields.

    It has `argv`, or an `artifact` that says what to run, or both. It runs on workers only that were started with
    `--targets --allow command`.
    """

    argv: Sequence[str] | None = None
    artifact: str | None = None
    stdin: Any = PAYLOAD
    env: Mapping[str, str | Secret] = {}
    keep_env: Sequence[str] = DEFAULT_KEEP_ENV
    sandbox: Sandbox | None = None
    exits: Mapping[int, Exit] = {}
    stop: str | int = "SIGTERM"
    grace: Seconds = DEFAULT_GRACE
    timeout: Seconds = DEFAULT_TIMEOUT

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.env.items():
            if not isinstance(value, Secret) and name.upper().endswith(_SECRET_VARIABLES):
                raise InvalidValue(f"env: {name} is a credential, and a stored target has none: {_NAME_IT}")


class StoredNotices(_Stored, frozen=True, kw_only=True, tag="notices"):
    """What sends the notices of alerts to their channels. It is stored with the first channel."""

    timeout: Seconds = NOTICE_TIMEOUT


class _Naming(msgspec.Struct, frozen=True):
    """Of a definition, what it names. Other fields may be those of a newer Duetime."""

    artifact: str | None = None


Definition: TypeAlias = StoredHttp | StoredPublish | StoredCommand | StoredNotices

KINDS = ("http", "publish", "command")

_read: Callable[[bytes | str], Definition] = msgspec.json.Decoder(Definition).decode
_read_naming: Callable[[bytes], _Naming] = msgspec.json.Decoder(_Naming).decode
_MISFIT = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)


def _refuse_plain_auth(auth: Basic | Bearer | None) -> None:
    given = auth.password if isinstance(auth, Basic) else None if auth is None else auth.token
    if isinstance(given, str):
        what = "the password" if isinstance(auth, Basic) else "the token"
        raise InvalidValue(f"auth: a stored target names the secret that has {what}: {_NAME_IT}")


def kind_of(definition: Definition) -> str:
    """Return what a definition is: http, publish or command."""
    kind = definition.__struct_config__.tag
    assert isinstance(kind, str)
    return kind


def read_definition(data: bytes | str) -> Definition:
    """Read a definition from JSON. Raises InvalidValue, whose message begins with the field that does not fit."""
    try:
        return _read(data)
    except msgspec.ValidationError as error:
        found = _MISFIT.fullmatch(str(error))
        assert found is not None
        what, path = found["what"], found["path"] or ""
        first = re.match(r"\w*", path.removeprefix("."))
        field = "" if first is None else first[0]
        match field:
            case "kind":
                what = f"must be {', '.join(KINDS[:-1])} or {KINDS[-1]}"
            case "sign":
                what = f"must name the secret that signs, or several of them: {_NAME_IT}"
            case "certificate":
                what = f"must name the secret with certificate and key: {_NAME_IT}"
            case "auth":
                what = f'must be {{"type": "bearer", "token": {{"secret": NAME}}}}, or "basic" with user and password ({what})'
        if not field:
            what = what.replace("Object missing required field", "the target lacks the field").replace(
                "Object contains", "the target has an"
            )
        inside = f", at {path[1:]}" if path[1:] != field and field not in ("sign", "auth", "certificate") else ""
        raise InvalidValue(f"{field}: {what}{inside}" if field else what) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValue(f"the target is not JSON: {error}") from None


def artifact_of(command: bytes) -> Reference | None:
    """Return which artifact a stored command names, in a definition that need not be one that this Duetime can read as a whole."""
    try:
        named = _read_naming(command).artifact
        return None if named is None else read_reference(named)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidValue):
        return None


def write_definition(definition: Definition) -> bytes:
    """Return a definition as JSON, without what is left out. Raises InvalidValue if it is too large, or no JSON can say it."""
    try:
        data = msgspec.json.encode(definition)
        _read(data)  # what a program has made without a type checker may not be what the next one can read
    except (TypeError, msgspec.MsgspecError) as error:
        raise InvalidValue(f"the target cannot be stored: {error}") from None
    if len(data) > MAX_DEFINITION:
        raise InvalidValue(f"the target has {len(data):,} bytes as JSON, and at most {MAX_DEFINITION:,} are stored; shorten it")
    return data
