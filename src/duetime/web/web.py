"""The dashboard as an extension of the API: finds the page, identifies the person, and answers with the whole page or what has changed."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote, unquote

from starlette.responses import RedirectResponse, Response

from duetime.api.access import allow
from duetime.api.app import Api
from duetime.api.call import Call
from duetime.api.problems import Refusal, problem_of
from duetime.api.route import Route
from duetime.errors import DuetimeError
from duetime.model.access import AuditOutcome, Caller, Scope
from duetime.web import downloads, sign_in
from duetime.web.assets import HEADERS as ASSET_HEADERS
from duetime.web.assets import assets
from duetime.web.marks import glyph
from duetime.web.page import Action, Done, Page, View
from duetime.web.pages import PAGES
from duetime.web.rendering import Parts, read_known, render
from duetime.web.security import HEADERS, SAID, check_same_origin, secret_of
from duetime.web.sight import Sight
from duetime.web.visit import Preferences, Visit, preferences_of, read_fields, read_form
from duetime.web.words import Words
from duetime.wire.problem import BAD_REQUEST, NO_ROUTE, UNAUTHORIZED

KNOWN = "duetime-parts"  # a request with this header wants only the parts that differ from those it names
NEXT = "duetime-next"  # seconds after which to ask again
TROUBLE = "duetime-trouble"  # seconds since what is shown was read, and why it cannot be read again
LOUDEST = 2_000  # characters of what an action says

_logger = logging.getLogger("duetime.web")
_HTML = "text/html; charset=utf-8"


class Web:
    """The pages below `/ui/`. Sight and sessions are shared by all viewers of this server."""

    root = "/ui/"

    def __init__(self, pages: Sequence[Page] = PAGES) -> None:
        self.pages = pages
        self.sight = Sight()
        self.label = os.environ.get("DUETIME_LABEL", "")
        routes = [
            Route(name="ui_root", method="GET", path="/ui", endpoint=_to_root, scope=None, summary="Lead to the dashboard."),
            Route(name="ui_asset", method="GET", path="/ui/assets/{digest}/{file}", endpoint=_asset, scope=None, summary="Send a file."),
            Route(name="ui_sign_in", method="GET", path="/ui/sign-in", endpoint=self._sign_in_page, scope=None, summary="Ask for a token."),
            Route(name="ui_sign_in", method="POST", path="/ui/sign-in", endpoint=self._sign_in, scope=None, summary="Sign in."),
            Route(name="ui_sign_out", method="POST", path="/ui/sign-out", endpoint=sign_in.leave, scope=None, summary="Sign out."),
        ]
        for page in pages:
            name = "ui_" + (page.path.strip("/").replace("/", "_").replace("{", "").replace("}", "") or "overview")
            endpoint = _Endpoint(self, page)
            routes += [
                Route(name=name, method="GET", path=f"/ui{page.path}", endpoint=endpoint.show, scope=None, summary="Show a page."),
                Route(name=name, method="POST", path=f"/ui{page.path}", endpoint=endpoint.act, scope=None, summary="Act on a page."),
            ]
        for path, send, scope in (
            ("/tasks/{id}/log", downloads.log, Scope.READ),
            ("/tasks.ndjson", downloads.tasks, Scope.READ),
            ("/audit.ndjson", downloads.audit_lines, Scope.ADMIN),
            ("/audit.csv", downloads.audit_table, Scope.ADMIN),
        ):
            file = _File(self, send, scope)
            routes.append(
                Route(name="ui_download", method="GET", path=f"/ui{path}", endpoint=file.send, scope=None, summary="Send a file.")
            )
        self.routes: Sequence[Route] = routes

    def join(self, api: Api) -> None:
        self._api = api

    def stop(self) -> None:
        self.sight.close()

    # ---- who ----

    async def identify(self, call: Call) -> Caller:
        """Return the person. On a server without tokens it is whoever runs it, after the checks of `OpenOnLoopback`."""
        call.caller = await self._api.access.signed_in(call.request, call.shared.sessions, secret_of(call.request))
        return call.caller

    # ---- answers ----

    async def visit(self, call: Call, page: Page | None, form: Mapping[str, str]) -> Visit:
        call.needed = Scope.READ if page is None else page.scope
        allow(call.caller, call.needed)
        if page is not None and page.whole:
            call.allow_whole("this page is about all of them")
        query = read_fields(call.request.scope["query_string"].decode("latin-1"))
        menu = [(each.name, f"{call.prefix}/ui{each.path}", each.icon) for each in self._menu(call.caller)]
        return Visit(call, self.sight, query, form, menu)

    async def shown(self, visit: Visit, page: Page, *, said: Done | None = None) -> Response:
        """Answer with a page, or with the parts of it that the browser does not have yet."""
        view = await page.view(visit)
        known = visit.call.header(KNOWN)
        parts = Parts()
        words = Words(visit.now, visit.preferences.tz, visit.preferences.zone)
        facts = {**view.facts, "visit": visit, "w": words, "part": parts.part, "link": visit.link, "title": view.title}
        frame = {**self._frame(visit.call, view, visit.preferences, page), "sight": visit.sight}
        text = render(page.template, {**facts, **frame, "layout": "frame.html" if known is None else "bare.html", "said": said})
        headers = {**HEADERS, "content-type": _HTML, "vary": "cookie", NEXT: f"{view.every:g}" if view.every else "0"}
        headers["duetime-now"] = str(visit.now // 1_000)
        if visit.sight.trouble:
            headers[TROUBLE] = f"{visit.sight.age:.0f} {quote(visit.sight.trouble[:LOUDEST])}"
        if said is not None:
            headers["duetime-said"] = quote(said.said[:LOUDEST])
            headers["duetime-good"] = "yes" if said.good else "no"
        if known is None:
            return Response(text, view.status, headers)
        changed = parts.changed(read_known(known))
        if not changed and said is None:
            return Response(status_code=204, headers=headers)
        return Response("".join(changed), 200, headers)

    def _frame(self, call: Call, view: View, preferences: Preferences, page: Page | None = None) -> dict[str, Any]:
        caller: Caller | None = getattr(call, "caller", None)
        start = f"{call.prefix}/ui"
        above = view.crumbs[0][0] if view.crumbs else None if page is None else page.path
        here = None if above is None else above.strip("/").partition("/")[0]
        menu = [
            {
                "name": each.name,
                "address": start + each.path,
                "letter": each.letter,
                "icon": each.icon,
                "more": each.more,
                "here": each.path.strip("/") == here,
            }
            for each in self._menu(caller)
        ]
        return {
            "menu": menu,
            "crumbs": [(start + address, name) for address, name in view.crumbs],
            "every": view.every,
            "caller": caller,
            "preferences": preferences,
            "label": self.label,
            "start": start,
            "files": f"{start}/assets/{assets().digest}",
            "version": version("duetime"),
            "signs_out": caller is not None and caller.token is not None,
            "reads_only": caller is not None and not caller.may(Scope.OPERATE),
            "glyph": glyph,
        }

    def _menu(self, caller: Caller | None) -> list[Page]:
        """Return the pages of the navigation that somebody may see."""
        if caller is None:
            return []
        return [each for each in self.pages if each.name and caller.may(each.scope) and not (each.whole and caller.handlers)]

    def framed(self, call: Call, template: str, view: View) -> Response:
        """Answer with a page that stands for itself: an error, the sign-in."""
        preferences = preferences_of(call.request)
        words = Words(0, preferences.tz, preferences.zone)
        facts = {**view.facts, "w": words, "title": view.title, "layout": "frame.html", "said": None, "part": Parts().part, "sight": None}
        text = render(template, {**facts, **self._frame(call, view, preferences)})
        return Response(text, view.status, {**HEADERS, "content-type": _HTML})

    async def refused(self, call: Call, error: Exception, problem: Response) -> Response:
        """Answer an error: as a page that says what, why and what to do; to a page that is open, as a sentence."""
        kind = error.kind if isinstance(error, Refusal) else None
        live = call.header(KNOWN) is not None
        if kind is UNAUTHORIZED and call.request.method in ("GET", "HEAD"):
            asked = call.request.url.path.removeprefix(unquote(call.prefix))
            query = f"?{call.request.url.query}" if call.request.url.query else ""
            to = f"{call.prefix}/ui/sign-in?to={quote(quote(asked) + query, safe='')}"
            if live:
                return Response(status_code=401, headers={**HEADERS, "duetime-go": to})
            return RedirectResponse(to, 303, HEADERS)
        told = problem_of(error)
        if live:
            return Response(told.detail, told.status, {**HEADERS, "content-type": "text/plain; charset=utf-8"})
        with contextlib.suppress(DuetimeError):  # with a name the page has its navigation
            await self.identify(call)
        facts = {"problem": told, "known": kind is not NO_ROUTE, "method": call.request.method}
        answer = self.framed(call, "problem.html", View(title=told.title, facts=facts, every=None, status=told.status))
        for name in ("retry-after", "allow"):
            if name in problem.headers:
                answer.headers[name] = problem.headers[name]
        return answer

    # ---- signing in ----

    async def _sign_in_page(self, call: Call) -> Response:
        return self.framed(call, "sign_in.html", sign_in.view(call))

    async def _sign_in(self, call: Call) -> Response:
        form = await read_form(call)
        answer = await sign_in.enter(call, form)
        return self.framed(call, "sign_in.html", answer) if isinstance(answer, View) else answer


class _Endpoint:
    """One page's two methods."""

    def __init__(self, web: Web, page: Page) -> None:
        self._web = web
        self._page = page

    async def show(self, call: Call) -> Response:
        await self._web.identify(call)
        visit = await self._web.visit(call, self._page, {})
        said = call.request.cookies.get(SAID)
        answer = await self._web.shown(visit, self._page, said=None if said is None else _read_said(said))
        if said is not None:
            answer.delete_cookie(SAID, path=f"{call.prefix}/ui/")
        return answer

    async def act(self, call: Call) -> Response:
        """Perform what a form asks for, and show its effect: the parts that changed, or the page again."""
        await self._web.identify(call)
        try:
            check_same_origin(call.request)
        except Refusal as refusal:
            await call.app.tokens.audit.record(
                "ui.forged", call.request.url.path[:200], by=call.caller, outcome=AuditOutcome.REFUSED, detail=str(refusal)
            )
            raise
        form = await read_form(call)
        visit = await self._web.visit(call, self._page, form)
        action = self._action(form)
        allow(call.caller, action.scope)
        live = call.header(KNOWN) is not None
        try:
            done = await action.run(visit)
        except DuetimeError as error:
            if live:
                raise
            done = Done(said=problem_of(error).detail, good=False)
        self._web.sight.forget()
        if live and done.to is None:
            return await self._web.shown(await self._web.visit(call, self._page, form), self._page, said=done)
        to = done.to or call.request.url.path + (f"?{call.request.url.query}" if call.request.url.query else "")
        if live:
            answer = Response(status_code=204, headers={**HEADERS, "duetime-go": to})
        else:
            answer = RedirectResponse(to, 303, HEADERS)
        for name, value in done.cookies.items():
            answer.set_cookie(name, value, path=f"{call.prefix}/ui/", samesite="strict", max_age=31_536_000)
        answer.set_cookie(SAID, ("+" if done.good else "-") + quote(done.said[:LOUDEST]), path=f"{call.prefix}/ui/", httponly=True,
                          samesite="strict", max_age=60)  # fmt: skip
        return answer

    def _action(self, form: Mapping[str, str]) -> Action:
        wanted = form.get("do", "")
        if wanted not in self._page.actions:
            names = ", ".join(self._page.actions) or "none"
            raise Refusal(BAD_REQUEST, f"this page has no action {wanted[:80]!r}; it has: {names}")
        return self._page.actions[wanted]


class _File:
    """A file that a page offers."""

    def __init__(self, web: Web, send: Callable[[Visit], Awaitable[Response]], scope: Scope) -> None:
        self._web = web
        self._send = send
        self._scope = scope

    async def send(self, call: Call) -> Response:
        await self._web.identify(call)
        visit = await self._web.visit(call, None, {})
        call.needed = self._scope
        visit.allow(self._scope)
        return await self._send(visit)


def _read_said(cookie: str) -> Done:
    return Done(said=unquote(cookie[1:], errors="replace")[:LOUDEST], good=cookie[:1] == "+")


async def _to_root(call: Call) -> Response:
    return RedirectResponse(f"{call.prefix}/ui/", 303, HEADERS)


async def _asset(call: Call) -> Response:
    """Send a file. An address of another version leads nowhere: its page is reloaded."""
    file = assets().files.get(call.path["file"])
    if file is None or call.path["digest"] != assets().digest:
        raise Refusal(NO_ROUTE, "there is no such file in this version; reload the page")
    return Response(file.data, headers={**ASSET_HEADERS, "content-type": file.media})
