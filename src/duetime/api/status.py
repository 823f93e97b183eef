"""Public status pages and badges, for handlers and schedules that DUETIME_PUBLIC_STATUS names; without a token, and without any detail.

What is not named is answered as what does not exist.
"""

from __future__ import annotations

import base64
import hashlib
import html
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.problems import Refusal
from duetime.api.route import Route
from duetime.model.access import fits
from duetime.model.health import HealthVerdict
from duetime.wire.fields import NoQuery
from duetime.wire.problem import NO_ROUTE

if TYPE_CHECKING:
    from duetime.api.call import Call

State: TypeAlias = Literal["well", "troubled", "down"]

MAX_AGE = 30  # seconds that anybody may keep an answer
COLOURS: dict[State, str] = {"well": "#1a7f4b", "troubled": "#9a6700", "down": "#c62f2f"}
WORDS: dict[State, str] = {"well": "All is well.", "troubled": "Something is not as it should be.", "down": "It does not work at present."}
_STYLE = (
    "body{font:18px/1.5 system-ui,sans-serif;max-width:36rem;margin:4rem auto;padding:0 1rem;color-scheme:light dark}"
    "h1{font-size:1.4rem}p::before{content:'';display:inline-block;width:.8em;height:.8em;border-radius:50%;margin-right:.6em;"
    "background:currentColor}.well{color:#1a7f4b}.troubled{color:#9a6700}.down{color:#c62f2f}"
)
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "cache-control": f"public, max-age={MAX_AGE}",
    "access-control-allow-origin": "*",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'",
}


class Status(msgspec.Struct, frozen=True):
    """How something is, for everybody."""

    name: str
    state: State
    text: str


def state_of(name: str, verdict: HealthVerdict) -> State:
    """Return how a handler or a schedule is: down if something about it, or the store, is a problem, troubled if there is a warning."""
    about = [
        each
        for each in verdict.findings
        if each.subject in ("store", "maintenance") or (name in each.handlers if each.subject == "alert" else each.name == name)
    ]
    levels = {each.level for each in about}
    return "down" if "problem" in levels else "troubled" if "warning" in levels else "well"


async def page(call: Call) -> Response:
    """Answer as a page, or as JSON for who asks for that."""
    found = await _status(call, call.path["name"])
    if "application/json" in call.request.headers.get("accept", ""):
        return answer(found, 200, _HEADERS | {"vary": "accept"})
    name = html.escape(found.name)
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{name}: {found.state}</title><style>{_STYLE}</style></head>"
        f'<body><h1>{name}</h1><p class="{found.state}">{found.text}</p></body></html>'
    )
    return Response(text, headers={"content-type": "text/html; charset=utf-8", "vary": "accept", **_HEADERS})


async def badge(call: Call) -> Response:
    """Answer as a picture for a README."""
    found = await _status(call, call.path["name"])
    name, colour = html.escape(found.name), COLOURS[found.state]
    left, right = 14 + 7 * min(60, len(found.name)), 14 + 7 * len(found.state)
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{name}: {found.state}">'
        f'<rect width="{left}" height="20" fill="#444"/><rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        f'<g fill="#fff" font-family="Verdana,sans-serif" font-size="11"><text x="7" y="14">{name}</text>'
        f'<text x="{left + 7}" y="14">{found.state}</text></g></svg>'
    )
    return Response(text, headers={"content-type": "image/svg+xml", **_HEADERS})


async def _status(call: Call, name: str) -> Status:
    call.query(NoQuery)
    public = call.app.config.public_status
    known = None
    if public is not None and fits(public, name):
        await call.shared.known.refresh()
        known = call.shared.known.answer
    if known is None or name not in known.names:
        raise Refusal(NO_ROUTE, "there is no such page")
    state = state_of(name, known.verdict)
    return Status(name, state, WORDS[state])


ROUTES = (
    Route(
        name="get_status_badge", method="GET", path="/status/{name}/badge.svg", endpoint=badge, scope=None,
        summary="Return a badge of a handler or schedule whose status is public.", answer=None, problems=(404,),
    ),
    Route(
        name="get_status", method="GET", path="/status/{name}", endpoint=page, scope=None,
        summary="Say how a handler or schedule is whose status is public; a page, or JSON for who asks for it.",
        answer=Status, problems=(404,),
    ),
)  # fmt: skip
