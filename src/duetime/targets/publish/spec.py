"""A handler that publishes, as it is declared, and the messages that it makes. Nothing here needs a broker's client."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.trace_context import TRACEPARENT, TRACESTATE, read_headers
from duetime.store.values import ClaimedTask
from duetime.targets.http.auth import Basic, reveal
from duetime.targets.http.spec import PAYLOAD, Payload
from duetime.targets.occurrence import since_of
from duetime.targets.publish.address import Address, read_address
from duetime.targets.publish.destinations import Destination
from duetime.targets.publish.messages import Message, Options
from duetime.targets.templates import Facts, HeaderTemplate, JsonTemplate, UnfitReference, moment

if TYPE_CHECKING:
    from duetime.targets.host import TargetHost
    from duetime.targets.spec import HandlerSpec
    from duetime.targets.target import AttemptHandle, Target

CONTENT_TYPE = "Content-Type"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OPTIONS = {"max_length": "redis", "exchange": "amqp", "retain": "mqtt"}


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """How a handler's attempts are messages: where they go and what they have."""

    address: Address
    to: Destination
    body: JsonTemplate | Payload = PAYLOAD
    headers: Mapping[str, HeaderTemplate] = {}
    options: Options = Options()
    auth: Basic | None = None

    @property
    def kind(self) -> str:
        return "publish"

    def open(self, handler: HandlerSpec, host: TargetHost) -> Target:
        from duetime.targets.publish.target import PublishTarget  # not before a worker needs it

        return PublishTarget(self, handler, host)

    async def credited(self, attempt: AttemptHandle) -> Address:
        """Return the broker's address with user and password."""
        if self.auth is None:
            return self.address
        password, *_ = await reveal(self.auth.password, attempt)
        return msgspec.structs.replace(self.address, user=self.auth.user, password=password)

    def build(self, task: ClaimedTask, payload: Mapping[str, Any], *, now: Instant) -> Message:
        """Return the message of an attempt. Raises what a template raises for a value that is missing or does not fit."""
        facts = Facts(task, payload, now, uuid4)
        own = {name: template.fill(facts) for name, template in self.headers.items()}
        content_type = next((own.pop(name) for name in tuple(own) if name.lower() == "content-type"), "application/json")
        return Message(
            id=task.id,
            to=self.to.fill(facts),
            headers={**own, **_headers_of(task)},
            body=self._filled_body(payload, facts, content_type),
            content_type=content_type,
            key=task.key,
            expires_at=task.expires_at,
            now=now,
            options=self.options,
        )

    def _filled_body(self, payload: Mapping[str, Any], facts: Facts, content_type: str) -> bytes:
        if isinstance(self.body, Payload):
            return msgspec.json.encode(payload)
        value = self.body.fill(facts)
        if "json" in content_type.lower():
            return msgspec.json.encode(value)
        if not isinstance(value, str):
            raise UnfitReference("the body must be text, because the handler's Content-Type is not JSON; it is " + type(value).__name__)
        return value.encode("utf-8", "replace")


def _headers_of(task: ClaimedTask) -> dict[str, str]:
    """Return what tells a receiver which attempt of which task this is. The fence grows with each attempt; the task's id never changes."""
    headers = {
        "Duetime-Task": task.id,
        "Duetime-Handler": task.handler.encode("ascii", "backslashreplace").decode(),
        "Duetime-Attempt": str(task.attempt),
        "Duetime-Fence": str(task.fence),
        "Duetime-Due-At": moment(task.since_at),
    }
    if task.planned_at is not None:
        headers["Duetime-Planned-At"] = moment(task.planned_at)
        headers["Duetime-Since"] = moment(since_of(task.meta) or task.planned_at)
    return headers | read_headers(task.meta.get(TRACEPARENT), task.meta.get(TRACESTATE))


def publish_spec(
    url: str,
    *,
    to: str,
    names: Sequence[str] | None,
    body: Any = PAYLOAD,
    headers: Mapping[str, str] | None = None,
    auth: Basic | None = None,
    max_length: int | None = None,
    exchange: str | None = None,
    retain: bool | None = None,
    stored: bool = False,
) -> Publish:
    """Check a declaration and return it. `names` are those that the payload can have, if that is known."""
    address = msgspec.structs.replace(read_address(url), guarded=stored)
    given = {"max_length": max_length, "exchange": exchange, "retain": retain}
    for option, value in given.items():
        if value is not None and _OPTIONS[option] != address.kind:
            raise InvalidValue(f"{option} is for {_OPTIONS[option]}:// and means nothing to {address.kind}://")
    if max_length is not None and (isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1):
        raise InvalidValue(f"max_length, the messages that a stream keeps about, must be a whole number of at least 1, got {max_length!r}")
    if exchange is not None and (not isinstance(exchange, str) or len(exchange.encode()) > 255):
        raise InvalidValue(f"exchange must be a name of at most 255 bytes, got {exchange!r}")
    if auth is not None and not isinstance(auth, Basic):
        raise InvalidValue("auth must be Basic(user, password)")
    if auth is not None and address.user is not None:
        raise InvalidValue("user and password are given twice, in the url and by auth=")
    return Publish(
        address=address,
        auth=auth,
        to=Destination(to, address.kind, names),
        body=body if isinstance(body, Payload) else JsonTemplate(body, "body", names),
        headers=_checked_headers(headers or {}, names, address),
        options=Options(max_length=max_length, exchange=exchange or "", retain=bool(retain)),
    )


def _checked_headers(headers: Mapping[str, str], names: Sequence[str] | None, address: Address) -> dict[str, HeaderTemplate]:
    checked: dict[str, HeaderTemplate] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidValue(f"{name!r} cannot be the name of a header")
        low = name.lower()
        if low.startswith(("duetime-", "nats-")) or low in (TRACEPARENT, TRACESTATE):
            raise InvalidValue(f"the header {name} is set by Duetime, so that receivers can rely on it, and cannot be overridden")
        if address.kind == "redis" and low == "body":
            raise InvalidValue("the field body of a Redis stream has the message itself; give the header another name")
        if low in {each.lower() for each in checked}:
            raise InvalidValue(f"the header {name} is given twice")
        checked[name] = HeaderTemplate(value, f"the header {name}", names)
    return checked
