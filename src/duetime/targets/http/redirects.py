"""Which redirects are followed, and what the next request carries; and where accepted work can be withdrawn."""

from __future__ import annotations

from typing import Literal, TypeAlias
from urllib.parse import urljoin

import msgspec

from duetime.model.urls import read_url
from duetime.targets.http.messages import Answer, Request, RequestFailed

Redirects: TypeAlias = Literal["none", "same-host", "any"]

MOST = 3
_FOLLOWED = (301, 302, 303, 307, 308)
_NOT_TO_WITHDRAW = ("content-", "webhook-", "duetime-callback")
_OF_BODY = frozenset({"content-type", "content-encoding", "content-language"})


def followed(request: Request, answer: Answer, rule: Redirects, hops: int) -> Request | None:
    """Return the request that a redirect asks for; None if the answer is none that is followed.

    On another origin it carries no credentials and nothing else that the handler's author added.
    """
    location = answer.headers.get("location")
    if rule == "none" or answer.status not in _FOLLOWED or not location:
        return None
    try:
        url = urljoin(request.url, location)
        here, there = read_url(request.url), read_url(url.partition("#")[0])
    except ValueError as error:
        raise RequestFailed("RedirectRefused", f"{request.shown} leads elsewhere: {error}") from None
    if hops >= MOST:
        raise RequestFailed("TooManyRedirects", f"{request.shown} is the redirect number {hops + 1}; at most {MOST} are followed")
    if here.scheme == "https" and there.scheme != "https":
        raise RequestFailed("RedirectRefused", f"{request.shown} leads from https to http ({there.host}), which is not followed")
    if rule == "same-host" and here.host != there.host:
        raise RequestFailed("RedirectRefused", f'{request.shown} leads to another host, {there.host}; redirects="any" would follow it')
    headers, own, body, method = dict(request.headers), request.own, request.body, request.method
    if here != there:
        headers, own = {name: value for name, value in headers.items() if name.lower() not in own}, frozenset()
    if answer.status == 303 or (answer.status in (301, 302) and method == "POST"):
        method, body = "HEAD" if method == "HEAD" else "GET", None
        headers = {name: value for name, value in headers.items() if name.lower() not in _OF_BODY}
    return msgspec.structs.replace(request, method=method, url=url.partition("#")[0], headers=headers, body=body, own=own)


def location_of(request: Request, answer: Answer) -> str | None:
    """Return where accepted work can be withdrawn; None if its server has not said where, or named another origin."""
    location = answer.headers.get("location")
    if not location or not location.isascii():
        return None
    try:
        url = urljoin(request.url, location).partition("#")[0]
        return url if read_url(request.url) == read_url(url) else None
    except ValueError:
        return None


def withdrawing(request: Request, location: str) -> Request:
    """Return the request that withdraws the work of another one.

    It carries the credentials of that, unless a redirect had led to another origin; but neither its signature, which is of another body,
    nor the token of the callback.
    """
    dropped = () if read_url(request.url) == read_url(location) else request.own
    headers = {
        name: value
        for name, value in request.headers.items()
        if not name.lower().startswith(_NOT_TO_WITHDRAW) and name.lower() not in dropped
    }
    return msgspec.structs.replace(request, method="DELETE", url=location, headers=headers, body=None)
