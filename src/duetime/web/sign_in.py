"""Signing in with a token, and out. The token itself is kept nowhere: the browser gets a secret that is good for these pages only."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import RedirectResponse, Response

from duetime.api.access import origin_of
from duetime.api.call import Call
from duetime.model.access import Denial, Refusal
from duetime.web.page import View
from duetime.web.security import HEADERS, check_confidential, check_same_origin, end_session, secret_of, set_session
from duetime.web.visit import read_fields


def view(call: Call, refusal: Refusal | None = None) -> View:
    """Return the sign-in page; `refusal` is why the last token was not good."""
    to = _return_address(call, read_fields(call.request.scope["query_string"].decode("latin-1")).get("to", ""))
    status = 200
    if refusal is not None:
        status = 429 if refusal.why is Denial.TOO_FAST else 401
    return View(title="Sign in", facts={"refusal": refusal, "to": to}, every=None, status=status)


async def enter(call: Call, form: Mapping[str, str]) -> Response | View:
    """Sign somebody in and send them where they wanted to go, or show the page again with the reason."""
    check_same_origin(call.request)
    check_confidential(call.request)
    begun = await call.shared.sessions.begin(form.get("token", ""), origin=origin_of(call.request))
    if isinstance(begun, Refusal):
        return view(call, begun)
    secret, caller = begun
    await call.app.tokens.audit.record("ui.sign_in", caller.name, by=caller)
    answer = RedirectResponse(f"{call.prefix}{_return_address(call, form.get('to', ''))}", 303, HEADERS)
    set_session(answer, call.request, f"{call.prefix}/ui/", secret)
    return answer


async def leave(call: Call) -> Response:
    """Sign out, on every server."""
    check_same_origin(call.request)
    secret = secret_of(call.request)
    if secret is not None:
        await call.shared.sessions.end(secret)
    answer = RedirectResponse(f"{call.prefix}/ui/sign-in", 303, HEADERS)
    end_session(answer, call.request, f"{call.prefix}/ui/")
    return answer


def _return_address(call: Call, to: str) -> str:
    """Return where to go afterwards, without the prefix: a page of this dashboard, never another site."""
    bad = not to.startswith("/ui/") or "\\" in to or any(character < " " for character in to)
    return "/ui/" if bad or to.startswith("/ui/sign-in") else to[:2_000]
