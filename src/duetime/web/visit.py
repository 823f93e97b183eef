"""One request for a page: who asks, for what, with which preferences; and addresses of other pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, tzinfo
from urllib.parse import parse_qsl, quote, urlencode
from zoneinfo import ZoneInfo

import msgspec
from starlette.requests import Request

from duetime.api.access import allow
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.app.app import App
from duetime.client.access.service import Act
from duetime.clock import Instant
from duetime.errors import InvalidValue
from duetime.model.access import Caller, Scope
from duetime.model.hiding import Hiding
from duetime.web.sight import Eye, Noting
from duetime.wire.problem import BAD_REQUEST, WRONG_MEDIA

MOST_FIELDS = 200
FORM = "application/x-www-form-urlencoded"
THEMES = ("auto", "light", "dark")
DENSITIES = ("comfortable", "compact")


class Preferences(msgspec.Struct, frozen=True, kw_only=True):
    """What a person has chosen; kept in cookies of the browser."""

    theme: str = "auto"
    density: str = "comfortable"
    zone: str = "UTC"
    keys: bool = True

    @property
    def tz(self) -> tzinfo:
        return UTC if self.zone == "UTC" else ZoneInfo(self.zone)


def preferences_of(request: Request) -> Preferences:
    """Read the preferences. Cookies can contain anything, so what is not a choice is ignored."""
    cookies = request.cookies
    theme, density, zone = cookies.get("duetime-theme", ""), cookies.get("duetime-density", ""), cookies.get("duetime-zone", "")
    return Preferences(
        theme=theme if theme in THEMES else "auto",
        density=density if density in DENSITIES else "comfortable",
        zone=zone if is_zone(zone) else "UTC",
        keys=cookies.get("duetime-keys") != "off",
    )


def is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError):  # unknown, or a path
        return False
    return len(name) < 64


class Visit:
    """One request for a page. `query` and `form` have the last value of each field; `path` the parts of the address by name.

    `menu` are the pages of the navigation that the person may see, as name, address and icon.
    """

    def __init__(
        self, call: Call, sight: Eye, query: Mapping[str, str], form: Mapping[str, str], menu: Sequence[tuple[str, str, str]] = ()
    ) -> None:
        self.call = call
        self.app: App = call.app
        self.path = call.path
        self.sight = Noting(sight)
        self.menu = menu
        self.query = query
        self.form = form
        self.preferences = preferences_of(call.request)
        self.now: Instant = call.app.store.now()

    @property
    def caller(self) -> Caller:
        return self.call.caller

    def may(self, scope: str, handler: str | None = None) -> bool:
        """Return whether the person may do something. What they may not do is not offered, and refused all the same."""
        return self.caller.may(Scope(scope), handler)

    def may_see(self, handler: str) -> bool:
        return self.call.may_see(handler)

    @property
    def hiding(self) -> Hiding:
        return self.call.hiding

    def allow(self, scope: Scope, handler: str | None = None) -> None:
        """Refuse what the person may not do."""
        allow(self.caller, scope, handler)

    def acting(self, action: str, subject: str) -> AbstractAsyncContextManager[Act]:
        """Record the block in the audit."""
        return self.call.acting(action, subject)

    def link(self, *parts: str, **query: object) -> str:
        """Return the address of a page: its parts, each quoted, and its query without what is None or empty."""
        address = f"{self.call.prefix}/ui/" + "/".join(quote(part, safe="") for part in parts)
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        return f"{address}?{urlencode(given)}" if given else address

    def here(self, **changes: object) -> str:
        """Return the address of this page with some fields of its query changed; None leaves a field out."""
        address = self.call.request.url.path
        given = {name: str(value) for name, value in ({**self.query, **changes}).items() if value not in (None, "")}
        return f"{quote(address)}?{urlencode(given)}" if given else quote(address)

    def field(self, name: str, otherwise: str = "") -> str:
        """Return a field of the form without white space around it."""
        return self.form.get(name, otherwise).strip()

    def needed(self, name: str) -> str:
        """Return a field of the form that must be filled in."""
        text = self.field(name)
        if not text:
            raise InvalidValue(f"{name.replace('_', ' ')} must be filled in")
        return text


def read_fields(text: str) -> dict[str, str]:
    """Read a query string, or the body of a form: the last value of each field, and none of control characters but line breaks."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise Refusal(BAD_REQUEST, f"the address or the form cannot be read: {error}") from None
    for name, value in pairs:
        if "\0" in name or "\0" in value:
            raise Refusal(BAD_REQUEST, f"the field {name[:80]!r} must not contain the character NUL")
    return dict(pairs)


async def read_form(call: Call) -> dict[str, str]:
    given = call.request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != FORM:
        raise Refusal(WRONG_MEDIA, f"a form must be {FORM}, got {given[:200] or 'no content type'!r}")
    return read_fields((await call.data(call.shared.limits.body)).decode("latin-1"))
