"""The API as an ASGI application: the table of routes, and the dispatch of requests."""

from __future__ import annotations

import logging
import time
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from duetime.api import calendars, forecast, front_page, gates, health, metrics, openapi, output, overview, pull, schedules, tasks
from duetime.api.access import Access, TokenAccess, allow
from duetime.api.call import Call, Gone
from duetime.api.problems import Refusal, headers_of, problem_of
from duetime.api.route import Header, Route
from duetime.api.shared import Limits, Shared
from duetime.app.app import App
from duetime.client.gates import GateInfo
from duetime.client.insight import Stats
from duetime.errors import StoreUnavailable
from duetime.model.access import Caller, Scope
from duetime.model.task import Task
from duetime.wire.fields import NoBody
from duetime.wire.gates import GateAnswer, GateBody, GateList, GateQuery
from duetime.wire.overview import HandlerList, Health, WorkerList
from duetime.wire.problem import BAD_REQUEST, MEDIA_TYPE, NO_METHOD, NO_ROUTE, Fault
from duetime.wire.tasks import (
    AttemptList,
    BatchAnswer,
    BulkAnswer,
    BulkBody,
    BulkEditBody,
    CancelAnswer,
    Change,
    ListQuery,
    NewTaskBody,
    ReasonList,
    TaskList,
    WaitQuery,
)

_logger = logging.getLogger("duetime.api")

_IDEMPOTENCY = Header(
    "Idempotency-Key", "Names this request: repeated with the same body it is answered with the task that the first one stored."
)
_TRACE = (
    Header("traceparent", "The trace that the tasks belong to, by the W3C's Trace Context; carried in their meta.", checked=False),
    Header("tracestate", "What else there is to tell of the trace.", checked=False),
)
_IF_MATCH = Header("If-Match", "Only if the task still has this ETag.")
_IF_NONE_MATCH = Header("If-None-Match", "Answered with 304 if the task still has this ETag.")

# Paths without `{…}` take precedence over paths with it.
ROUTES = (
    Route(
        name="submit_task", method="POST", path="/v1/tasks", endpoint=tasks.submit, scope=Scope.SUBMIT,
        summary="Submit a task. Answered as soon as it is committed.",
        query=WaitQuery, body=NewTaskBody, answer=Task, status=201, also=(200,), problems=(404, 409), headers=(_IDEMPOTENCY, *_TRACE),
    ),
    Route(
        name="list_tasks", method="GET", path="/v1/tasks", endpoint=tasks.list_tasks, scope=Scope.READ,
        summary="List tasks, newest first; latest finished first when one final state is asked for.",
        query=ListQuery, answer=TaskList,
    ),
    Route(
        name="submit_tasks", method="POST", path="/v1/tasks/batch", endpoint=tasks.submit_many, scope=Scope.SUBMIT,
        summary="Submit up to 10,000 tasks in one commit. Each is answered with its verdict; bad ones do not stop the others.",
        body=list[NewTaskBody], lines=True, answer=BatchAnswer, headers=_TRACE,
    ),
    Route(
        name="cancel_tasks", method="POST", path="/v1/tasks/cancel", endpoint=tasks.cancel_many, scope=Scope.OPERATE,
        summary="Cancel all live tasks that match a filter.", body=BulkBody, answer=BulkAnswer,
    ),
    Route(
        name="retry_tasks", method="POST", path="/v1/tasks/retry", endpoint=tasks.retry_many, scope=Scope.OPERATE,
        summary="Retry all finished tasks that match a filter; without a state those that failed.", body=BulkBody, answer=BulkAnswer,
    ),
    Route(
        name="edit_tasks", method="POST", path="/v1/tasks/edit", endpoint=tasks.edit_many, scope=Scope.OPERATE,
        summary="Change all waiting tasks that match a filter.", body=BulkEditBody, answer=BulkAnswer,
    ),
    Route(
        name="get_task", method="GET", path="/v1/tasks/{id}", endpoint=tasks.get, scope=Scope.READ,
        summary="Return a task as it is now, or when it is final.",
        query=WaitQuery, answer=Task, also=(304,), problems=(404,), headers=(_IF_NONE_MATCH,),
    ),
    Route(
        name="edit_task", method="PATCH", path="/v1/tasks/{id}", endpoint=tasks.edit, scope=Scope.OPERATE,
        summary="Change when a waiting task is due, its priority or its collection.",
        body=Change, answer=Task, problems=(404, 409, 412), headers=(_IF_MATCH,),
    ),
    Route(
        name="cancel_task", method="POST", path="/v1/tasks/{id}/cancel", endpoint=tasks.cancel, scope=Scope.OPERATE,
        summary="Cancel a task.", body=NoBody, optional_body=True, answer=CancelAnswer, problems=(404,),
    ),
    Route(
        name="retry_task", method="POST", path="/v1/tasks/{id}/retry", endpoint=tasks.retry, scope=Scope.OPERATE,
        summary="Run a task again that ended in any way but success.",
        body=NoBody, optional_body=True, answer=Task, problems=(404, 409),
    ),
    Route(
        name="list_attempts", method="GET", path="/v1/tasks/{id}/attempts", endpoint=tasks.attempts, scope=Scope.READ,
        summary="List all attempts of a task.", answer=AttemptList, problems=(404,),
    ),
    Route(
        name="ask_why", method="GET", path="/v1/tasks/{id}/why", endpoint=tasks.why, scope=Scope.READ,
        summary="Say what holds a task, or how it ended.", answer=ReasonList, problems=(404,),
    ),
    Route(
        name="list_gates", method="GET", path="/v1/gates", endpoint=gates.list_gates, scope=Scope.READ,
        summary="List the closed gates.", answer=GateList,
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
    Route(
        name="list_workers", method="GET", path="/v1/workers", endpoint=overview.workers, scope=Scope.READ,
        summary="List the registered workers.", answer=WorkerList,
    ),
    Route(
        name="list_handlers", method="GET", path="/v1/handlers", endpoint=overview.handlers, scope=Scope.READ,
        summary="List the declared handlers, with the schemas of their payloads.", answer=HandlerList,
    ),
    Route(
        name="get_stats", method="GET", path="/v1/stats", endpoint=overview.stats, scope=Scope.READ,
        summary="Count the tasks of the whole store.", answer=Stats,
    ),
    *output.ROUTES,
    *schedules.ROUTES,
    *calendars.ROUTES,
    *forecast.ROUTES,
    *pull.ROUTES,
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

_UNKNOWN = "(none)"  # the route of requests that match none, in the metrics
_VERSION = (b"duetime-version", version("duetime").encode())
_NOBODY = Caller(name="nobody", scopes=frozenset())


class Api:
    """Answers requests.

    It has its own dispatch for two reasons. Parts of a path must be unquoted one by one, because a handler's name may contain a slash.
    And a framework's router, which tries one pattern after the other, costs more than the rest of a submit.
    """

    def __init__(self, app: App, *, limits: Limits | None = None) -> None:
        self.shared = Shared(app, limits or Limits(), lambda: openapi.describe(ROUTES))
        self.access: Access = TokenAccess(app)  # replaced on a server without tokens, which listens on loopback only
        self._fixed: dict[str, dict[str, Route]] = {}
        self._open: list[tuple[tuple[str, ...], dict[str, Route]]] = []
        for route in ROUTES:
            self._enter(route)

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
        self.shared.pull.close()

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is spoken here, not {scope['type']}")
        began = time.perf_counter()
        name, route = _UNKNOWN, None
        try:
            route, path = self._route(scope)
            name = route.name
            response = await self._answer(route, Call(self.shared, scope, receive, path))
        except Gone:
            return
        except Exception as error:
            response = self._problem(error, route, scope)
        response.raw_headers.append(_VERSION)
        self.shared.figures.note(name, response.status_code, time.perf_counter() - began)
        await response(scope, receive, send)

    async def _answer(self, route: Route, call: Call) -> Response:
        if route.scope is None:
            call.caller = _NOBODY
        else:
            call.caller, call.needed = await self.access.identify(call.request), route.scope
            allow(call.caller, route.scope)
        if route.method != "GET" and _IDEMPOTENCY not in route.headers and call.header("idempotency-key") is not None:
            raise Refusal(
                BAD_REQUEST,
                "Idempotency-Key is understood by POST /v1/tasks only; leave it out here",
                faults=[Fault("is not understood here", parameter="Idempotency-Key")],
            )
        return await route.endpoint(call)

    def _route(self, scope: Connection) -> tuple[Route, dict[str, str]]:
        raw = scope.get("raw_path") or scope["path"].encode()
        address = raw.decode("latin-1")
        address = ALIASES.get(address, address)
        path: dict[str, str] = {}
        methods = self._fixed.get(address)
        if methods is None:
            methods, path = self._match(address)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route = methods.get(method)
        if route is None:
            allowed = sorted({*methods, *(["HEAD"] if "GET" in methods else [])})
            raise Refusal(
                NO_METHOD,
                f"{scope['method'][:20]} is not possible here; there are {', '.join(allowed)}",
                headers={"allow": ", ".join(allowed)},
            )
        return route, path

    def _match(self, address: str) -> tuple[dict[str, Route], dict[str, str]]:
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
        raise Refusal(NO_ROUTE, f"there is nothing at {address[:200]}; /openapi.json lists all addresses")

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
