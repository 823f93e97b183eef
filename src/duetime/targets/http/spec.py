"""An HTTP handler as it is declared, and the requests that it makes. Nothing here needs an HTTP library."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from duetime import webhooks
from duetime.clock import Instant
from duetime.errors import Fatal, InvalidValue
from duetime.model.secrets import Secret
from duetime.model.trace_context import TRACEPARENT, TRACESTATE, read_headers
from duetime.model.urls import read_url
from duetime.store.values import ClaimedTask
from duetime.targets.http.auth import Auth, Credential, authorization, reveal, sendable
from duetime.targets.http.callbacks import Callback, CallbackDoor
from duetime.targets.http.messages import Request
from duetime.targets.http.redirects import Redirects
from duetime.targets.occurrence import since_of
from duetime.targets.templates import Facts, HeaderTemplate, JsonTemplate, UnfitReference, UrlTemplate, moment

if TYPE_CHECKING:
    from duetime.targets.host import TargetHost
    from duetime.targets.spec import HandlerSpec
    from duetime.targets.target import AttemptHandle, Target

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_WITH_BODY = ("POST", "PUT", "PATCH")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({"idempotency-key", TRACEPARENT, TRACESTATE})
_OF_THE_CONNECTION = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect"),
        *("accept-encoding", "proxy-authorization", "proxy-connection", "proxy-authenticate"),
    }
)


_NO_NAMES: frozenset[str] = frozenset()
_HARMLESS = frozenset({"content-type", "accept", "user-agent"})  # may go to another origin


class Payload:
    """Stands for the payload itself as the body."""


PAYLOAD: Final = Payload()
Body = JsonTemplate | Payload | None


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How a handler's attempts are requests: what is sent, and how the answer is read."""

    url: UrlTemplate
    method: str = "POST"
    body: Body = PAYLOAD
    headers: Mapping[str, HeaderTemplate | Secret] = {}
    auth: Auth | None = None
    sign: tuple[Credential, ...] = ()
    connect: float = 5.0
    redirects: Redirects = "none"
    fatal: frozenset[int] = frozenset()
    certificate: Credential | None = None
    keep: int = 16_384
    callback: Callback | None = None
    stored: bool = False  # nobody has written it into the program's code

    @property
    def kind(self) -> str:
        return "http"

    @property
    def trusted(self) -> tuple[tuple[str, int], ...]:
        """Host and port, if they are written in the program's code: it may call what is inside, such as a service beside it."""
        if self.stored or self.url.has_open_host:
            return ()
        there = read_url(self.url.example())
        return ((there.host, there.port),)

    def open(self, handler: HandlerSpec, host: TargetHost) -> Target:
        from duetime.targets.http.target import HttpTarget  # not before a worker needs it

        return HttpTarget(self, handler, host)

    async def build(self, attempt: AttemptHandle, payload: Mapping[str, Any], door: CallbackDoor | None = None) -> Request:
        """Return the request of an attempt. Raises what a template raises for a value that is missing or does not fit."""
        task, now = attempt.claimed, attempt.started_at
        facts = Facts(task, payload, now, uuid4)
        body = self._filled_body(payload, facts)
        own = await self._filled_headers(attempt, facts) if self.headers else {}
        if self.auth is not None:
            own["Authorization"] = await authorization(self.auth, attempt)
        if self.sign:
            keys = [key for secret in self.sign for key in await self._keys(secret, attempt)]
            own |= webhooks.sign(task.id, body or b"", keys, now=now)
        names = frozenset(name.lower() for name in own) if own else _NO_NAMES
        headers = _headers_of(task, attempt.deadline_at)
        headers.update(own)
        if self.callback is not None and door is not None:
            reports = door.headers(task, self.callback.deadline_at(now))
            headers.update(reports)
            names = names.union(name.lower() for name in reports)  # another origin must not get the token
        if "user-agent" not in names:
            headers["User-Agent"] = "duetime"
        if body is not None and "content-type" not in names:
            headers["Content-Type"] = "application/json"
        stored = self.certificate if isinstance(self.certificate, Secret) else None
        certificate = None if stored is None else (await attempt.reveal(stored))[0]
        url = self.url.fill(facts)
        return Request(method=self.method, url=url, headers=headers, body=body, own=names - _HARMLESS, certificate=certificate)

    async def _filled_headers(self, attempt: AttemptHandle, facts: Facts) -> dict[str, str]:
        return {
            name: await sendable(value, attempt) if isinstance(value, Secret) else value.fill(facts) for name, value in self.headers.items()
        }

    async def _keys(self, secret: Credential, attempt: AttemptHandle) -> tuple[str, ...]:
        """Return the keys of a secret to sign with: a receiver may know the newest or a former one."""
        keys = await reveal(secret, attempt)
        if isinstance(secret, Secret):
            try:
                webhooks.sign("task", b"", keys, now=0)
            except InvalidValue as error:
                raise Fatal(f"{secret!r} cannot sign requests: {error}; put such a one") from None
        return keys

    def _filled_body(self, payload: Mapping[str, Any], facts: Facts) -> bytes | None:
        if self.body is None:
            return None
        if isinstance(self.body, Payload):
            return msgspec.json.encode(payload)
        value = self.body.fill(facts)
        if self._sends_json:
            return msgspec.json.encode(value)
        if not isinstance(value, str):
            raise UnfitReference("the body must be text, because the handler's Content-Type is not JSON; it is " + type(value).__name__)
        return value.encode("utf-8", "replace")

    @property
    def _sends_json(self) -> bool:
        given = next((template for name, template in self.headers.items() if name.lower() == "content-type"), None)
        if given is None or isinstance(given, Secret):
            return True
        return "json" in "".join(part for part in given.parts if isinstance(part, str)).lower()


def _headers_of(task: ClaimedTask, deadline_at: Instant) -> dict[str, str]:
    """Return what tells the receiver which attempt of which task this is. The fence grows with each attempt; the key never changes."""
    headers = {
        "Accept-Encoding": "identity",
        "Idempotency-Key": f'"{task.id}"',
        "Duetime-Task": task.id,
        "Duetime-Handler": task.handler if task.handler.isascii() else _one_line(task.handler),
        "Duetime-Attempt": str(task.attempt),
        "Duetime-Fence": str(task.fence),
        "Duetime-Due-At": moment(task.since_at),
        "Duetime-Deadline": moment(deadline_at),
    }
    if task.planned_at is not None:
        headers["Duetime-Planned-At"] = moment(task.planned_at)
        headers["Duetime-Since"] = moment(since_of(task.meta) or task.planned_at)
    if task.extras is not None:
        headers |= read_headers(task.meta.get(TRACEPARENT), task.meta.get(TRACESTATE))
    return headers


def _one_line(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode()


def http_request(
    url: str,
    *,
    names: Sequence[str] | None,
    method: str = "POST",
    body: Any = PAYLOAD,
    headers: Mapping[str, str | Secret] | None = None,
    hosts: Sequence[str] = (),
    auth: Auth | None = None,
    sign: Credential | Sequence[Credential] = (),
    connect: float = 5.0,
    redirects: Redirects = "none",
    fatal: Sequence[int] = (),
    certificate: Credential | None = None,
    keep: int = 16_384,
    callback: Callback | None = None,
    stored: bool = False,
) -> HttpRequest:
    """Check a declaration and return it. `names` are those that the payload can have, if that is known."""
    method = _checked_method(method)
    template = UrlTemplate(url, "url", names, _names(hosts, "hosts"))
    read_url(template.example())
    if body is PAYLOAD and method not in _WITH_BODY:
        body = None
    if auth is not None and not isinstance(auth, Auth):
        raise InvalidValue("auth must be Basic(user, password) or Bearer(token)")
    secrets = (sign,) if isinstance(sign, str | Secret) else tuple(sign)
    written = [secret for secret in secrets if not isinstance(secret, Secret)]
    if written:
        webhooks.sign("task", b"", written, now=0)  # raises for what is no secret
    if redirects not in ("none", "same-host", "any"):
        raise InvalidValue(f"redirects must be none, same-host or any, got {redirects!r}")
    if certificate is not None and not isinstance(certificate, str | Secret):
        raise InvalidValue("certificate must be the text of a PEM file with certificate and key, or its path, or a Secret with that text")
    if callback is not None and not isinstance(callback, Callback):
        raise InvalidValue(f"callback must be Callback(within=…, silence=…), got {callback!r}")
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
        raise InvalidValue(f"keep, the bytes of an answer that are kept, must be a whole number of at least 0, got {keep!r}")
    return HttpRequest(
        url=template,
        method=method,
        body=body if body is None or isinstance(body, Payload) else JsonTemplate(body, "body", names),
        headers=_checked_headers(headers or {}, names, auth),
        auth=auth,
        sign=secrets,
        connect=connect,
        redirects=redirects,
        fatal=frozenset(_status(each) for each in fatal),
        certificate=certificate,
        keep=keep,
        callback=callback,
        stored=stored,
    )


def _checked_method(method: str) -> str:
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise InvalidValue(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return method.upper()


def _checked_headers(
    headers: Mapping[str, str | Secret], names: Sequence[str] | None, auth: Auth | None
) -> dict[str, HeaderTemplate | Secret]:
    checked: dict[str, HeaderTemplate | Secret] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidValue(f"{name!r} cannot be the name of a header")
        low = name.lower()
        if low in _OF_THE_CONNECTION:
            raise InvalidValue(f"the header {name} belongs to the connection and cannot be set")
        if low in _OURS or low.startswith(("duetime-", "webhook-")):
            raise InvalidValue(f"the header {name} is set by Duetime, so that receivers can rely on it, and cannot be overridden")
        if low == "authorization" and auth is not None:
            raise InvalidValue("the header Authorization is given twice, as a header and by auth=")
        if low in {each.lower() for each in checked}:
            raise InvalidValue(f"the header {name} is given twice")
        if isinstance(value, Secret) and low == "content-type":
            raise InvalidValue("the header Content-Type says how the body is written, so it must be text and no Secret")
        checked[name] = value if isinstance(value, Secret) else HeaderTemplate(value, f"the header {name}", names)
    return checked


def _names(values: Sequence[str], what: str) -> Sequence[str]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise InvalidValue(f"{what} must be a list of texts, got {values!r}")
    return values


def _status(status: int) -> int:
    if isinstance(status, bool) or not isinstance(status, int) or not 300 <= status <= 599:
        raise InvalidValue(f"fatal lists statuses from 300 to 599, got {status!r}")
    return status
