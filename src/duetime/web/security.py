"""What keeps other sites out: the headers of every page, the check of every form, and the cookie of a session."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from duetime.api.access import authority_of, is_loopback, name_of
from duetime.api.problems import Refusal
from duetime.wire.problem import FORBIDDEN

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; manifest-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types duetime"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}
# A cookie with this prefix is accepted by browsers over TLS only. On loopback there is none, so the cookie has another name there; cookies
# ignore ports, so other services on the same host name may be sent it. It is good for this dashboard alone.
COOKIE, COOKIE_ON_LOOPBACK = "__Secure-duetime", "duetime"
SAID = "duetime-said"  # what the last action did, to be shown once


def check_same_origin(request: Request) -> None:
    """Refuse a form that another site's page has sent, or that does not say where it comes from. No token in the page is needed."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        if site == "same-origin":
            return
        raise Refusal(FORBIDDEN, f"this form was sent by a page of another site (Sec-Fetch-Site: {site[:40]}); send it from the dashboard")
    if origin is None or authority_of(origin) != request.headers.get("host", ""):
        said = "without saying from which page" if origin is None else f"by a page of {origin[:200]!r}"
        raise Refusal(FORBIDDEN, f"this form was sent {said}; send it from the dashboard. Programs use the API, with a token")


def on_loopback(request: Request) -> bool:
    return is_loopback(name_of(request.headers.get("host", "")))


def check_confidential(request: Request) -> None:
    """Refuse to take a token that came over a network unencrypted. What encrypts may stand before this server; the browser knows."""
    if request.headers.get("origin", "").startswith("http://") and not on_loopback(request):
        raise Refusal(
            FORBIDDEN,
            "this address is not encrypted, so others on the network could read the token, and the browser would not keep the session; "
            "use https, or a tunnel to a loopback address",
        )


def secret_of(request: Request) -> str | None:
    """Return the session's secret from the cookie."""
    found = request.cookies.get(COOKIE)
    return request.cookies.get(COOKIE_ON_LOOPBACK) if found is None and on_loopback(request) else found


def set_session(response: Response, request: Request, path: str, secret: str) -> None:
    secure = not on_loopback(request)
    name = COOKIE if secure else COOKIE_ON_LOOPBACK
    response.set_cookie(name, secret, path=path, secure=secure, httponly=True, samesite="strict")


def end_session(response: Response, request: Request, path: str) -> None:
    secure = not on_loopback(request)
    response.delete_cookie(COOKIE if secure else COOKIE_ON_LOOPBACK, path=path, secure=secure, httponly=True, samesite="strict")
