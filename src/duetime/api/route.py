"""A route as data: one row of the table that dispatches requests, documents them and is tested against the documentation."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from duetime.api.call import Endpoint
from duetime.model.access import Scope
from duetime.wire.fields import NoQuery

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Header(msgspec.Struct, frozen=True):
    """A header that a request may carry. One that is not `checked` is never a reason to refuse the request."""

    name: str
    text: str
    checked: bool = True


IDEMPOTENCY = Header("Idempotency-Key", "Names this request: repeated with the same body it is answered with what the first one stored.")


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What is at an address. `body` is the type of a JSON body, `answer` that of the body of the answer `status`; None if there is none.

    A body of `bytes` is anything. `callback`: a callback token allows it too, for the task in its address.
    `own`: a token with the scope own may use it too, and reaches only what its owner has submitted.
    `stream` describes the events where the answer can also be an event stream. `scope` None: no token is needed. `problems` are statuses
    besides those that every such route has.
    """

    name: str
    method: Method
    path: str
    endpoint: Endpoint
    summary: str
    scope: Scope | None
    callback: bool = False
    own: bool = False
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    optional_body: bool = False
    lines: bool = False
    answer: Any = None
    media: str = "application/json"
    stream: str = ""
    status: int = 200
    also: tuple[int, ...] = ()
    problems: tuple[int, ...] = ()
    headers: tuple[Header, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))

    @property
    def parameters(self) -> list[str]:
        """The names in the path."""
        return [part[1:-1] for part in self.parts if part.startswith("{")]
