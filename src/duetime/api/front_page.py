"""What a browser sees at `/`: a page that says what this is and what to try. It needs no token and reveals nothing but the version."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import shlex
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from starlette.responses import Response

from duetime.api.route import Route
from duetime.wire.fields import NoQuery

if TYPE_CHECKING:
    from duetime.api.call import Call

MEDIA_TYPE = "text/html"
_HOST = re.compile(r"[A-Za-z0-9.:\[\]_-]{1,255}")
_KEY = "order-7"
_HALF_AN_HOUR = 1_800


class Line(NamedTuple):
    """A command to try, and what it does."""

    text: str
    command: str


def lines_to_try(url: str, handler: str, payload: dict[str, Any], *, with_token: bool) -> list[Line]:
    """Return three commands that can be pasted in order: submit with a delay and a key, wait for a result, cancel by key."""
    token = ' -H "Authorization: Bearer $DUETIME_TOKEN"' if with_token else ""
    head = f"curl -sw '\\n'{token} -H 'Content-Type: application/json'"

    def command(path: str, **body: object) -> str:
        return f"{head} {shlex.quote(url + path)} -d {shlex.quote(msgspec.json.encode(body).decode())}"

    task = {"handler": handler, "payload": payload}
    return [
        Line(
            "Submit a task that is due in half an hour, under a key of your own:",
            command("/v1/tasks", **task, delay=_HALF_AN_HOUR, key=_KEY, if_exists="replace"),
        ),
        Line("Submit one that is due now, and wait for its result:", command("/v1/tasks?wait=30", **task)),
        Line("Cancel the first one by its key:", command("/v1/tasks/cancel", handler=handler, key=_KEY)),
    ]


_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5d6878; --paper: #f6f7f9; --card: #fff; --line: #dfe3e8; --accent: #0b6e6e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --dim: #9aa5b4; --paper: #14181d; --card: #1c2229; --line: #2e363f; --accent: #5fd0c5; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 52rem; margin: 0 auto; padding: 3.5rem 1.25rem 4rem; }
h1 { margin: 0; font-size: 2.1rem; letter-spacing: -.02em; }
h1 small { margin-left: .5rem; color: var(--dim); font-size: .95rem; font-weight: 400; letter-spacing: 0; }
h2 { margin: 2.25rem 0 .75rem; font-size: 1.1rem; }
p { margin: .35rem 0; }
.lead { font-size: 1.1rem; }
.dim { color: var(--dim); }
a { color: var(--accent); }
a:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
ul { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: .6rem; margin: 0; padding: 0;
  list-style: none; }
li { padding: .7rem .9rem; border: 1px solid var(--line); border-radius: .5rem; background: var(--card); }
li a { font-family: ui-monospace, monospace; }
li span { display: block; color: var(--dim); font-size: .9rem; }
ol { margin: 0; padding-left: 1.25rem; }
ol li { margin-bottom: .9rem; padding: 0; border: 0; background: none; }
pre { margin: .3rem 0 0; padding: .7rem .9rem; border: 1px solid var(--line); border-radius: .5rem; background: var(--card);
  font: .85rem/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; user-select: all; }
"""
_LINKS = (
    ("/openapi.json", "the whole API, for people and for generators of clients"),
    ("/v1/stats", "how many tasks there are, by handler and state"),
    ("/metrics", "metrics for Prometheus"),
    ("/readyz", "whether tasks can be accepted"),
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Duetime</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
<h1>Duetime <small>{version}</small></h1>
<p class="lead">Runs work at the right time, at least once and never twice at once. This is its HTTP API.</p>
<p class="dim">{durability}</p>
<h2>Look around</h2>
<ul>
{links}
</ul>
<h2>Try it</h2>
<ol>
{lines}
</ol>
<p class="dim">{hint}</p>
</main>
</body>
</html>
"""
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "content-type": f"{MEDIA_TYPE}; charset=utf-8",
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


async def front(call: Call) -> Response:
    call.query(NoQuery)
    if call.shared.browsers is not None and MEDIA_TYPE in call.request.headers.get("accept", ""):
        return Response(status_code=303, headers={"location": call.prefix + call.shared.browsers, "vary": "accept"})
    host = call.request.headers.get("host", "")
    url = f"{call.request.url.scheme}://{host if _HOST.fullmatch(host) else '127.0.0.1:8420'}{call.prefix}"
    return Response(page(url, call.app.insight.durability, call.shared.to_try, call.prefix), headers=_HEADERS)


def page(url: str, durability: str, known: tuple[str, dict[str, Any]] | None, prefix: str = "") -> str:
    """Write the page, whose links begin with `prefix`.

    `known` is a handler and a payload for it; without them the commands name a handler to be replaced.
    """
    handler, payload = known or ("HANDLER", {"name": "Ada"})
    start = html.escape(prefix)
    links = [f'<li><a href="{start}{address}">{start}{address}</a><span>{text}</span></li>' for address, text in _LINKS]
    lines = [
        f"<li>{html.escape(line.text)}<pre>{html.escape(line.command)}</pre></li>"
        for line in lines_to_try(url, handler, payload, with_token=known is None)
    ]
    hint = "" if known else "Put in a handler of yours and its payload. If this server asks for tokens, DUETIME_TOKEN is yours."
    return _PAGE.format(
        style=_STYLE, version=html.escape(version("duetime")), durability=html.escape(durability), links="\n".join(links),
        lines="\n".join(lines), hint=hint,
    )  # fmt: skip


ROUTES = (
    Route(
        name="get_front", method="GET", path="/", endpoint=front, scope=None,
        summary="Show a browser what this is and what to try.", answer=str, media=MEDIA_TYPE,
    ),
)  # fmt: skip
