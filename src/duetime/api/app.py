"""The API as an ASGI application: the table of routes, and the dispatch of requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Protocol
from urllib.parse import quote, unquote

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from duetime.api import (
    alerts,
    artifacts,
    calendars,
    doctor,
    events,
    failures,
    flows,
    forecast,
    front_page,
    gates,
    health,
    limits,
    locks,
    metrics,
    openapi,
    operations,
    output,
    overview,
    pull,
    schedules,
    secrets,
    servers,
    signals,
    status,
    targets,
    tasks,
    tokens,
    weights,
    workers,
)
from duetime.api.access import Access, TokenAccess, allow, by_callback, callback_token
from duetime.api.call import Call, Gone
from duetime.api.problems import Refusal, headers_of, problem_of
from duetime.api.route import IDEMPOTENCY, Header, Route
from duetime.api.shared import Limits, Shared
from duetime.app.app import App
from duetime.client.gates import GateInfo
from duetime.client.insight import HandlerDetails, Stats
from duetime.errors import StoreUnavailable
from duetime.model.access import Caller, Scope
from duetime.model.health import HealthVerdict
from duetime.model.query import TaskCount
from duetime.model.task import Task
from duetime.wire.fields import NoBody
from duetime.wire.gates import GateAnswer, GateBody, GateList, GateQuery, GatesAnswer, GatesBody, GatesQuery
from duetime.wire.overview import HandlerList, Health, SeriesList, SeriesQuery, UpcomingQuery
from duetime.wire.problem import BAD_REQUEST, MEDIA_TYPE, NO_METHOD, NO_ROUTE, Fault
from duetime.wire.tasks import (
    AttemptList,
    AttemptQuery,
    BatchAnswer,
    CancelAnswer,
    CopyBody,
    CountQuery,
    ListQuery,
    NewTaskBody,
    ReasonList,
    TaskChange,
    TaskList,
    WaitQuery,
)

_logger = logging.getLogger("duetime.api")

_TRACE = (
    Header("traceparent", "The trace that the tasks belong to, by the W3C's Trace Context; carried in their meta.", checked=False),
    Header("tracestate", "What else there is to tell of the trace.", checked=False),
)
_IF_MATCH = Header("If-Match", "Only if the task still has this ETag.")
_IF_NONE_MATCH = Header("If-None-Match", "Answered with 304 if the task still has this ETag.")

# Paths without `{…}` take precedence over paths with it.
ROUTES = (
    Route(
        name="submit_task", method="POST", path="/v1/tasks", endpoint=tasks.submit, scope=Scope.SUBMIT, own=True,
        summary="Submit a task. Answered as soon as it is committed.",
        query=WaitQuery, body=NewTaskBody, answer=Task, status=201, also=(200,), problems=(404, 409), headers=(IDEMPOTENCY, *_TRACE),
    ),
    Route(
        name="list_tasks", method="GET", path="/v1/tasks", endpoint=tasks.list_tasks, scope=Scope.READ, own=True,
        summary="List tasks, newest first; latest finished first when only final states are asked for.",
        query=ListQuery, answer=TaskList,
    ),
    Route(
        name="count_tasks", method="GET", path="/v1/tasks/count", endpoint=tasks.count, scope=Scope.READ, own=True,
        summary="Count the tasks that match a filter, up to a limit.", query=CountQuery, answer=TaskCount,
    ),
    Route(
        name="submit_tasks", method="POST", path="/v1/tasks/batch", endpoint=tasks.submit_many, scope=Scope.SUBMIT, own=True,
        summary="Submit up to 10,000 tasks in one commit. Each is answered with its verdict; bad ones do not stop the others.",
        body=list[NewTaskBody], lines=True, answer=BatchAnswer, headers=_TRACE,
    ),
    Route(
        name="get_task", method="GET", path="/v1/tasks/{id}", endpoint=tasks.get, scope=Scope.READ, own=True,
        summary="Return a task as it is now, or when it is final.",
        query=WaitQuery, answer=Task, also=(304,), problems=(404,), headers=(_IF_NONE_MATCH,),
    ),
    Route(
        name="edit_task", method="PATCH", path="/v1/tasks/{id}", endpoint=tasks.edit, scope=Scope.OPERATE, own=True,
        summary="Change when a waiting task is due, its priority, its collection or its payload.",
        body=TaskChange, answer=Task, problems=(404, 409, 412), headers=(_IF_MATCH,),
    ),
    Route(
        name="delete_task", method="DELETE", path="/v1/tasks/{id}", endpoint=tasks.delete, scope=Scope.OPERATE, own=True,
        summary="Remove a task that waits or has ended, with its attempts and logs.", status=204, problems=(404, 409),
    ),
    Route(
        name="cancel_task", method="POST", path="/v1/tasks/{id}/cancel", endpoint=tasks.cancel, scope=Scope.OPERATE, own=True,
        summary="Cancel a task.", body=NoBody, optional_body=True, answer=CancelAnswer, problems=(404,),
    ),
    Route(
        name="retry_task", method="POST", path="/v1/tasks/{id}/retry", endpoint=tasks.retry, scope=Scope.OPERATE, own=True,
        summary="Run a task again that ended in any way but success.",
        body=NoBody, optional_body=True, answer=Task, problems=(404, 409),
    ),
    Route(
        name="copy_task", method="POST", path="/v1/tasks/{id}/copy", endpoint=tasks.copy, scope=Scope.SUBMIT, own=True,
        summary="Submit a task once more as a new one, due now, without its key; its meta names the origin as copy_of.",
        body=CopyBody, optional_body=True, answer=Task, status=201, problems=(404,),
    ),
    Route(
        name="list_attempts", method="GET", path="/v1/tasks/{id}/attempts", endpoint=tasks.attempts, scope=Scope.READ, own=True,
        summary="List attempts of a task, the first one first. Of very many the first 100 and the last 400 are kept.",
        query=AttemptQuery, answer=AttemptList, problems=(404,),
    ),
    Route(
        name="ask_why", method="GET", path="/v1/tasks/{id}/why", endpoint=tasks.why, scope=Scope.READ, own=True,
        summary="Say what holds a task, or how it ended.", answer=ReasonList, problems=(404,),
    ),
    Route(
        name="list_gates", method="GET", path="/v1/gates", endpoint=gates.list_gates, scope=Scope.READ,
        summary="List the closed gates.", answer=GateList,
    ),
    Route(
        name="put_gates", method="POST", path="/v1/gates", endpoint=gates.put_gates, scope=Scope.OPERATE,
        summary="Pause or drop the tasks of every declared handler that fits a pattern.",
        body=GatesBody, answer=GatesAnswer, problems=(404,),
    ),
    Route(
        name="open_gates", method="DELETE", path="/v1/gates", endpoint=gates.open_gates, scope=Scope.OPERATE,
        summary="Open every gate of the handlers that fit a pattern; answered with what was closed.",
        query=GatesQuery, answer=GateList,
    ),
    Route(
        name="get_gate", method="GET", path="/v1/gates/{handler}", endpoint=gates.get, scope=Scope.READ,
        summary="Return the gate of a handler, or of one of its collections.", query=GateQuery, answer=GateInfo, problems=(404,),
    ),
    Route(
        name="put_gate", method="PUT", path="/v1/gates/{handler}", endpoint=gates.put, scope=Scope.OPERATE,
        summary="Pause or drop the tasks of a handler, or of one of its collections.",
        query=GateQuery, body=GateBody, answer=GateAnswer, problems=(404,),
    ),
    Route(
        name="open_gate", method="DELETE", path="/v1/gates/{handler}", endpoint=gates.open_gate, scope=Scope.OPERATE,
        summary="Open a gate; what was paused runs.", query=GateQuery, status=204, problems=(404,),
    ),
    *workers.ROUTES,
    *servers.ROUTES,
    Route(
        name="list_handlers", method="GET", path="/v1/handlers", endpoint=overview.handlers, scope=Scope.READ, own=True,
        summary="List the declared handlers, with the schemas of their payloads.", answer=HandlerList,
    ),
    Route(
        name="get_handler", method="GET", path="/v1/handlers/{name}", endpoint=overview.handler, scope=Scope.READ,
        summary="Return a handler and what it does: what runs, how its last attempt went, when its next task is due.",
        answer=HandlerDetails, problems=(404,),
    ),
    Route(
        name="list_upcoming", method="GET", path="/v1/handlers/{name}/upcoming", endpoint=overview.upcoming, scope=Scope.READ,
        summary="List the waiting tasks of a handler in the order in which they are due.",
        query=UpcomingQuery, answer=TaskList, problems=(404,),
    ),
    Route(
        name="get_stats", method="GET", path="/v1/stats", endpoint=overview.stats, scope=Scope.READ,
        summary="Count tasks, by handler and state.", answer=Stats,
    ),
    Route(
        name="get_health", method="GET", path="/v1/health", endpoint=overview.health, scope=Scope.READ,
        summary="Say whether all is well, and what is not, worst first.", answer=HealthVerdict,
    ),
    Route(
        name="get_series", method="GET", path="/v1/series", endpoint=overview.series, scope=Scope.READ,
        summary="Return what happened when: attempts, lateness, what waits and runs, in equal steps of time.",
        query=SeriesQuery, answer=SeriesList,
    ),
    *flows.ROUTES,
    *operations.ROUTES,
    *output.ROUTES,
    *schedules.ROUTES,
    *calendars.ROUTES,
    *secrets.ROUTES,
    *artifacts.ROUTES,
    *targets.ROUTES,
    *forecast.ROUTES,
    *pull.ROUTES,
    *tokens.ROUTES,
    *doctor.ROUTES,
    *failures.ROUTES,
    *events.ROUTES,
    *limits.ROUTES,
    *weights.ROUTES,
    *locks.ROUTES,
    *signals.ROUTES,
    *alerts.ROUTES,
    *status.ROUTES,
    *front_page.ROUTES,
    Route(
        name="get_openapi", method="GET", path="/openapi.json", endpoint=openapi.document, scope=None,
        summary="Return this description of the API.", answer=dict[str, Any],
    ),
    Route(
        name="is_ready", method="GET", path="/readyz", endpoint=health.ready, scope=None,
        summary="Return whether tasks can be accepted.", answer=Health,
    ),
    Route(
        name="is_alive", method="GET", path="/livez", endpoint=health.alive, scope=None,
        summary="Return whether every loop of the server makes progress.", answer=Health,
    ),
    Route(
        name="get_metrics", method="GET", path="/metrics", endpoint=metrics.metrics, scope=Scope.READ,
        summary="Return metrics for Prometheus.", answer=str, media=metrics.MEDIA_TYPE,
    ),
)  # fmt: skip
ALIASES = {"/healthz": "/readyz"}

UNKNOWN = "(none)"  # the route of requests that match none, in the metrics
_VERSION = (b"duetime-version", version("duetime").encode())
_NOBODY = Caller(name="nobody", scopes=frozenset())


class Extension(Protocol):
    """More addresses than the API has, all below `root`, from a layer above this one: the dashboard.

    Its routes have no scope: it identifies its callers itself, by `Access.signed_in`. They are not part of the API's description.
    """

    root: str
    routes: Sequence[Route]

    def join(self, api: Api) -> None:
        """Called once, with the API that it is part of."""
        ...

    async def refused(self, call: Call, error: Exception, problem: Response) -> Response:
        """Return the answer to a request below `root` that failed; `problem` is what the API would answer."""
        ...

    def stop(self) -> None:
        """End what is under way, because the server is about to stop."""
        ...


class Api:
    """Answers requests.

    It has its own dispatch for two reasons. Parts of a path must be unquoted one by one, because a handler's name may contain a slash.
    And a framework's router, which tries one pattern after the other, costs more than the rest of a submit.
    """

    def __init__(self, app: App, *, limits: Limits | None = None, extension: Extension | None = None) -> None:
        self.shared = Shared(app, limits or Limits(), lambda: openapi.describe(ROUTES))
        self.access: Access = TokenAccess(app)  # replaced on a server without tokens, which listens on loopback only
        self._fixed: dict[str, dict[str, Route]] = {}
        self._open: list[tuple[tuple[str, ...], dict[str, Route]]] = []
        self._extension = extension
        for route in (*ROUTES, *([] if extension is None else extension.routes)):
            self._enter(route)
        if extension is not None:
            self.shared.browsers = extension.root
            extension.join(self)

    def _enter(self, route: Route) -> None:
        if not route.parameters:
            self._fixed.setdefault(route.path, {})[route.method] = route
            return
        methods = next((methods for parts, methods in self._open if parts == route.parts), None)
        if methods is None:
            methods = {}
            self._open.append((route.parts, methods))
        methods[route.method] = route

    def stop(self) -> None:
        """End all waiting requests, because the server is about to stop."""
        self.shared.stopping = True
        self.shared.waiters.close()
        self.shared.figures.close()
        self.shared.known.close()
        self.shared.pull.close()
        if self._extension is not None:
            self._extension.stop()

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is spoken here, not {scope['type']}")
        began = time.perf_counter()
        name, route, prefix, address = UNKNOWN, None, "", ""
        try:
            prefix, address = divided(scope)
            route, path = self._route(scope["method"], prefix, ALIASES.get(address, address))
            name = route.name
            response = await self._answer(route, Call(self.shared, scope, receive, path, prefix))
        except Gone:
            return
        except Exception as error:
            response = await self._refused(error, route, scope, receive, prefix, address)
        response.raw_headers.append(_VERSION)
        self.shared.figures.note(name, response.status_code, time.perf_counter() - began)
        await response(scope, receive, send)

    async def _answer(self, route: Route, call: Call) -> Response:
        if route.scope is None:
            call.caller = _NOBODY
        else:
            call.needed = route.scope
            if route.callback and (token := callback_token(call.request)) is not None:
                keys, task, now = self.shared.callback_keys, call.path["id"], call.app.store.now()
                call.caller, call.permit = by_callback(call.request, token, keys, task, now)
            else:
                call.caller = await self.access.identify(call.request)
            if route.own and call.caller.only_own(route.scope):
                call.needed, call.owner = Scope.OWN, call.caller.submitted_by
            allow(call.caller, call.needed)
        if route.method != "GET" and IDEMPOTENCY not in route.headers and call.header("idempotency-key") is not None:
            raise Refusal(
                BAD_REQUEST,
                "Idempotency-Key is understood by POST /v1/tasks only; leave it out here",
                faults=[Fault("is not understood here", parameter="Idempotency-Key")],
            )
        return await route.endpoint(call)

    def _route(self, method: str, prefix: str, address: str) -> tuple[Route, dict[str, str]]:
        path: dict[str, str] = {}
        methods = self._fixed.get(address)
        if methods is None:
            methods, path = self._match(prefix, address)
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = sorted({*methods, *(["HEAD"] if "GET" in methods else [])})
            raise Refusal(
                NO_METHOD,
                f"{method[:20]} is not possible here; there are {', '.join(allowed)}",
                headers={"allow": ", ".join(allowed)},
            )
        return route, path

    def _match(self, prefix: str, address: str) -> tuple[dict[str, Route], dict[str, str]]:
        given = address.strip("/").split("/")
        for parts, methods in self._open:
            if len(parts) == len(given) and all(part == mine or part[0] == "{" for part, mine in zip(parts, given, strict=True)):
                if not all(given) or not address.startswith("/") or address.endswith("/"):
                    break
                try:
                    return methods, {
                        part[1:-1]: unquote(mine, errors="strict") for part, mine in zip(parts, given, strict=True) if part[0] == "{"
                    }
                except UnicodeDecodeError:
                    raise Refusal(BAD_REQUEST, "the address is not UTF-8") from None
        raise Refusal(NO_ROUTE, f"there is nothing at {(prefix + address)[:200]}; {prefix}/openapi.json lists all addresses")

    async def _refused(
        self, error: Exception, route: Route | None, scope: Connection, receive: Receive, prefix: str, address: str
    ) -> Response:
        problem = self._problem(error, route, scope)
        if self._extension is None or not f"{address}/".startswith(self._extension.root):
            return problem
        return await self._extension.refused(Call(self.shared, scope, receive, {}, prefix), error, problem)

    def _problem(self, error: Exception, route: Route | None, scope: Connection) -> Response:
        fields: tuple[str, ...] = ()
        if route is not None and isinstance(route.body, type) and issubclass(route.body, msgspec.Struct):
            fields = route.body.__struct_fields__
        problem = problem_of(error, fields)
        if problem.status == 500:
            _logger.error("%s %s failed", scope["method"], scope["path"][:200], exc_info=error)
        if isinstance(error, StoreUnavailable):
            self.shared.figures.note_store_error()
        body = msgspec.json.encode(problem)
        headers = {"content-type": MEDIA_TYPE, "x-content-type-options": "nosniff", "cache-control": "no-store"}
        return Response(body, problem.status, headers | headers_of(error, problem))


def divided(scope: Connection) -> tuple[str, str]:
    """Divide the path of a request, both parts quoted: the prefix that another application has mounted this one at, and the address.

    A server gives the whole path beside the prefix (`root_path`), as ASGI asks for; one that has cut the prefix off is understood too.
    """
    raw = scope.get("raw_path")
    address = raw.decode("latin-1") if raw else quote(scope["path"])
    prefix = scope.get("root_path", "").rstrip("/")
    if not prefix:
        return "", address
    # compared part by part as it was sent: a quoted slash in a name must not end a part
    parts, size = address.split("/"), prefix.count("/") + 1
    if unquote("/".join(parts[:size])) == prefix:
        address = "/" + "/".join(parts[size:])
    return quote(prefix), address
