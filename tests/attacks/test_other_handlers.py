"""Attack: a token for some handlers looks for what it can learn of the others, in every answer of every route."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec
import pytest

from duetime import App, Every, Plan, RetryPolicy, Schedule
from duetime.api import workers
from duetime.api.app import ROUTES
from duetime.api.route import Route
from duetime.ids import new_id
from duetime.model.access import Scope
from duetime.model.limit import Ask
from duetime.store.output import OutputChunk
from duetime.store.values import NewWorker
from tests.api.conftest import Answer, Client, served
from tests.servers.waiting import PATIENCE

MARK = "zebra"
HIDDEN = f"{MARK}.charge"
OWN = {"handler": "greet", "payload": {"name": "Ada"}}
INSTANT = "2030-01-01T00:00:00Z"


class Scene(NamedTuple):
    """A server with tasks, schedules, gates, workers and output of a hidden handler, and the client that may not know of it."""

    shop: Client
    own: dict[str, str]  # what stands in an address, of the shop's own handler
    hidden: dict[str, str]
    worker: str
    unseen: str  # a worker that has none of the shop's handlers, while the hidden one is shared


@pytest.fixture
async def scene(app: App) -> AsyncIterator[Scene]:
    @app.task(name=HIDDEN, aliases=["greet_old"])
    async def charge(text: str = "") -> None:
        raise RuntimeError(f"{MARK} error")

    async with app:
        admin = (await app.tokens.create(f"{MARK} admin", scopes=["admin"])).token
        token = (await app.tokens.create("shop", scopes=["operate", "work"], handlers=["gree*"])).token
        own = await app.handler("greet").options(key="own").after(3600, name="Ada")
        hidden = (
            await app.handler(HIDDEN)
            .options(key=f"{MARK} key", collection=f"{MARK}-eu", meta={MARK: MARK})
            .after(3600, text=f"{MARK} text")
        )
        await app.store.keep_output([OutputChunk(hidden.id, 1, 0, f"common {MARK} words\n")])
        await app.schedules.put(Schedule("own", "greet", Every(3600), payload={"name": "Ada"}))
        await app.schedules.put(Schedule(f"{MARK}-nightly", HIDDEN, Every(3600), payload={"text": MARK}))
        failing = await app.handler(HIDDEN).options(retry=RetryPolicy.none()).now(text=MARK)
        async with app.worker():
            await app.client.wait(failing, timeout=PATIENCE)
        flow = await app.chain(app.handler("greet").new(name="Ada"))
        hidden_flow = await app.chain(app.handler(HIDDEN).new(text=MARK), app.handler("greet").new(name="Ada"))
        for name in ("greet-lock", f"{MARK}-lock"):
            await app.store.take_lock(name, "0123456789abcdef", MARK if name.startswith(MARK) else "shop", 3600.0, None)
        asks = [
            Ask(limit=name, declared=4, uses=uses, held=0, want=0)
            for name, uses in (("greet-limit", {"greet": 1}), (f"{MARK}-limit", {"greet": 1, HIDDEN: 1}))
        ]
        (await app.store.register(NewWorker(id="asks", host="here", pid=1, slots={"greet": 1}))).close()
        await app.store.allot("asks", 1, asks)
        await app.store.unregister("asks")
        await app.gates.pause(HIDDEN, collection=f"{MARK}-eu", note=f"{MARK} note")
        await app.gates.pause("greet", note="own note")
        await app.weights.put(HIDDEN, {f"{MARK}-eu": 2}, note=f"{MARK} note")
        async with served(app) as http:
            everybody, shop = http.bearing(admin), http.bearing(token)
            theirs = {"handlers": {HIDDEN: {"slots": 7}, "greet": {}}, "name": "shared"}
            hidden_worker = (await everybody("POST", "/v1/workers", theirs, status=201)).json["id"]
            only = {"handlers": {HIDDEN: {}}, "name": f"{MARK} worker"}
            unseen = (await everybody("POST", "/v1/workers", only, status=201)).json["id"]
            worker = (await shop("POST", "/v1/workers", {"handlers": {"greet": {}}}, status=201)).json["id"]
            [group] = (await everybody("GET", "/v1/failures")).json["items"]
            theirs = (await everybody("POST", "/v1/operations", {"verb": "retry", "filter": {"handler": HIDDEN}}, status=None)).json["id"]
            mine = (await shop("POST", "/v1/operations", {"verb": "retry", "filter": {"handler": "greet"}}, status=None)).json["id"]
            yield Scene(
                shop,
                {
                    "tasks": own.id,
                    "workers": worker,
                    "gates": "greet",
                    "weights": "greet",
                    "handlers": "greet",
                    "schedules": "own",
                    "calendars": "none",
                    "tokens": f"{MARK} admin",
                    "secrets": "none",
                    "failures": "0" * 16,
                    "operations": mine,
                    "flows": flow.id,
                    "locks": "greet-lock",
                    "signals": "greet-signal",
                    "limits": "greet-limit",
                    "alert-rules": "none",
                    "channels": "none",
                    "{name}": "greet",  # public status pages
                    "artifacts": "none",
                    "uploads": "none",
                },
                {
                    "failures": group["fingerprint"],
                    "operations": theirs,
                    "flows": hidden_flow.id,
                    "locks": f"{MARK}-lock",
                    "signals": f"{MARK}-signal",
                    "limits": f"{MARK}-limit",
                    "alert-rules": f"{MARK} rule",
                    "channels": f"{MARK} channel",
                    "tasks": hidden.id,
                    "workers": hidden_worker,
                    "gates": HIDDEN,
                    "weights": HIDDEN,
                    "handlers": HIDDEN,
                    "schedules": f"{MARK}-nightly",
                },
                worker,
                unseen,
            )


def bodies(scene: Scene) -> dict[str, Any]:
    """Return a body that fits each route that needs one."""
    told = {"worker": scene.worker, "attempt": 1}
    return {
        "submit_task": OWN,
        "submit_tasks": [OWN, {"handler": HIDDEN}, {"handler": "greet_old"}, {"handler": "greet_nobody"}],
        "cancel_tasks": {"handler": "greet", "dry_run": True},
        "retry_tasks": {"handler": "greet", "dry_run": True},
        "edit_tasks": {"handler": "greet", "set": {"priority": 7}, "dry_run": True},
        "edit_task": {"priority": 9},
        "put_gate": {"action": "pause"},
        "put_target": {"kind": "http", "url": "https://example.com"},
        "reconcile_schedules": {"schedules": [], "remove": True},
        "put_schedule": {**OWN, "every": 60},
        "backfill_schedule": {"start": INSTANT, "end": INSTANT, "dry_run": True},
        "preview_rule": {"every": 60},
        "copy_schedule": {"to": "greetings"},
        "rerun_flow": {"node": "greet"},
        "submit_flow": {"name": "own", "nodes": [{"name": "first", "task": OWN}]},
        "put_limit": {"running": 2},
        "put_weights": {"weights": {"eu": 2}},
        "take_lock": {"holder": "fedcba9876543210"},
        "renew_lock": {"holder": "fedcba9876543210"},
        "free_lock": {"holder": "fedcba9876543210"},
        "send_signal": {"value": 1},
        "put_calendar": {"weekdays": "sat,sun"},
        "register_worker": {"handlers": {"greet": {}}},
        "complete_task": told,
        "complete_tasks": {"items": [{"task": scene.own["tasks"], "attempt": 1}]},
        "note_progress": {**told, "fraction": 0.5},
        "append_logs": {**told, "text": "common"},
        "start_operation": {"verb": "retry", "filter": {"handler": "greet"}},
        "mute_failure": {"until_at": INSTANT},
    }


QUERIES: dict[str, dict[str, Any]] = {"list_tasks": {"handler": "greet"}, "search_logs": {"handler": "greet", "q": "common"}}


# calendars and what only admins may do are of no handler, and the names of schedules are shared by all
ADDRESSED = [
    route
    for route in ROUTES
    if route.parameters and route.parts[1] != "calendars" and route.scope not in (None, Scope.ADMIN) and route.name != "put_schedule"
]


def address(route: Route, names: dict[str, str]) -> str:
    kind = route.parts[1] if len(route.parts) > 1 else ""
    path = route.path
    for name in route.parameters:
        path = path.replace(f"{{{name}}}", names[kind])
    return path


async def ask(scene: Scene, route: Route, names: dict[str, str], body: Any = None) -> Answer:
    body = bodies(scene).get(route.name) if body is None else body
    return await scene.shop(route.method, address(route, names), body, status=None, **QUERIES.get(route.name, {}))


def text_of(answer: Answer) -> str:
    return f"{answer.status} {sorted(answer.headers.items())} {answer.data.decode()}"


async def test_no_answer_names_what_is_of_another_handler(scene: Scene) -> None:
    for route in ROUTES:  # the address is of the own handler, so that the answer is not a refusal of the address
        answer = await ask(scene, route, scene.own)
        assert MARK not in text_of(answer), f"{route.name}: {answer}"


async def test_the_marks_are_there_for_somebody_who_may_see_them(app: App, scene: Scene) -> None:
    whole = scene.shop.bearing((await app.tokens.create("all", scopes=["admin"])).token)
    for path in (
        "/v1/tasks",
        "/v1/gates",
        "/v1/weights",
        "/v1/handlers",
        "/v1/schedules",
        "/v1/forecast",
        "/v1/workers",
        "/v1/stats",
        "/metrics",
    ):
        assert MARK in text_of(await whole("GET", path)), path
    assert MARK in text_of(await whole("GET", "/v1/logs", q="common"))
    assert MARK in text_of(await whole("GET", "/v1/series", by="handler"))


async def test_series_are_of_the_own_handlers_only(scene: Scene) -> None:
    found = (await scene.shop("GET", "/v1/series", by="handler")).json["items"]
    assert {each["handler"] for each in found} == {OWN["handler"]}
    await scene.shop("GET", "/v1/series", status=403)  # the sums over all handlers would tell of the others
    await scene.shop("GET", "/v1/series", status=403, handler=HIDDEN)


@pytest.mark.parametrize("route", ADDRESSED, ids=lambda route: route.name)
async def test_what_is_hidden_is_answered_like_what_does_not_exist(scene: Scene, route: Route) -> None:
    nobody = {
        "limits": "yebra-limit",
        "locks": f"{MARK}-free",
        "signals": f"{MARK}-unsent",
        "schedules": f"{MARK}-nobody1",
        "failures": "1" * 16,
        "alert-rules": "no-rule",
        "channels": "no-channel",
    }
    nobody |= {kind: new_id() for kind in ("tasks", "flows", "workers", "operations")}
    nobody |= dict.fromkeys(("gates", "handlers", "weights"), f"{MARK}.nobody")
    kind = route.parts[1]
    names = scene.hidden | ({"workers": scene.unseen} if route in workers.ROUTES else {})  # a shared worker may be seen in part
    hidden, missing = await ask(scene, route, names), await ask(scene, route, nobody)
    assert hidden.status in (403, 404, 410)
    assert text_of(hidden).replace(names[kind], "it") == text_of(missing).replace(nobody[kind], "it")


async def test_the_name_of_a_hidden_schedule_is_taken_and_nothing_else_is_said(scene: Scene) -> None:
    [put] = [route for route in ROUTES if route.name == "put_schedule"]
    answer = await ask(scene, put, scene.hidden)
    assert answer.status == 403
    assert MARK not in text_of(answer).replace(scene.hidden["schedules"], "")
    declared = {"schedules": [{"name": scene.hidden["schedules"], **OWN, "every": 60}]}
    answer = await scene.shop("PUT", "/v1/schedules", declared, status=403)
    assert HIDDEN not in text_of(answer)


@pytest.mark.parametrize("handler", ["greet_old", HIDDEN, f"{MARK}.nobody", "greetzebra.charge", "greet.chargd"])
async def test_submitting_elsewhere_names_no_handler(scene: Scene, handler: str) -> None:
    """An older name of a hidden handler leads nowhere, and a name that is nearly right is not corrected to a hidden one."""
    single = await scene.shop("POST", "/v1/tasks", {"handler": handler}, status=None)
    [item] = (await scene.shop("POST", "/v1/tasks/batch", [{"handler": handler}])).json["items"]
    scheduled = await scene.shop("PUT", "/v1/schedules/new", {"handler": handler, "every": 60}, status=None)
    gate = await scene.shop("PUT", f"/v1/gates/{handler}", {"action": "pause"}, status=None)
    for text in (text_of(single), msgspec.json.encode(item).decode(), text_of(scheduled), text_of(gate)):
        assert HIDDEN not in text.replace(handler, "")


async def test_a_worker_that_is_shared_is_shown_with_what_is_known_of_it_here(scene: Scene) -> None:
    found = (await scene.shop("GET", "/v1/workers")).json["items"]
    assert {(each["host"], tuple(each["slots"]), each["running"]) for each in found if each["pull"]} == {
        ("shared", ("greet",), None),
        ("shop", ("greet",), 0),
    }


async def test_a_key_or_a_request_of_another_handler_is_no_conflict(scene: Scene) -> None:
    headers = {"Idempotency-Key": f"{MARK} key"}
    await scene.shop("POST", "/v1/tasks", {**OWN, "key": f"{MARK} key"}, status=201, headers=headers)


async def test_the_key_of_a_hidden_flow_says_no_more_than_that_it_is_taken(app: App, scene: Scene) -> None:
    @app.flow(name="private")
    def private(plan: Plan) -> None:
        plan.add(app.handler(HIDDEN).new(text=MARK), name=MARK)

    hidden = await private.options(key="taken").now()
    for if_exists in ("keep", "error"):
        body = {"name": "private", "key": "taken", "if_exists": if_exists, "nodes": [{"name": "first", "task": OWN}]}
        answer = await scene.shop("POST", "/v1/flows", body, status=409)
        assert MARK not in text_of(answer)
        assert hidden.id not in text_of(answer)


async def test_why_does_not_name_the_hidden_handler_that_takes_the_slots_of_a_worker(app: App) -> None:
    @app.task(name=HIDDEN)
    async def charge() -> None: ...

    async with app:
        admin = (await app.tokens.create("admin", scopes=["admin"])).token
        token = (await app.tokens.create("shop", scopes=["read"], handlers=["gree*"])).token
        await app.store.register(NewWorker(id="w", host="here", pid=1, slots={HIDDEN: 1, "greet": 1}, concurrency=1))
        await app.handler(HIDDEN).now()
        assert len((await app.store.claim("w", 1, {HIDDEN: 1}, 1)).tasks) == 1
        own = await app.handler("greet").now(name="Ada")
        async with served(app) as http:
            for bearer, named in ((admin, HIDDEN), (token, "other handlers")):
                [reason] = (await http.bearing(bearer)("GET", f"/v1/tasks/{own.id}/why")).json["items"]
                assert (reason["kind"], f"1 run in 1 slot (1 of {named})" in reason["text"]) == ("worker_full", True), reason
            [worker] = (await http.bearing(token)("GET", "/v1/workers")).json["items"]
            assert (worker["slots"], worker["concurrency"], worker["running"]) == ({"greet": 1}, None, None)


async def test_a_query_reaches_no_further_than_the_own_handlers(scene: Scene) -> None:
    for query in ("state:pending", f"handler:{HIDDEN}", "handler:*", f"handler:{MARK}*", "handler:g*", ""):
        for path in ("/v1/tasks", "/v1/tasks/count"):
            answer = await scene.shop("GET", path, status=403, q=query)
            assert MARK not in text_of(answer).replace(query, "")
    for path in ("/v1/tasks", "/v1/tasks/count"):
        assert MARK not in text_of(await scene.shop("GET", path, q="handler:greet"))


@pytest.mark.parametrize(
    "chosen", [{}, *({"handler": name} for name in ("*", "g*", f"{MARK}*", HIDDEN, "*e*")), {"q": "handler:*"}, {"q": ""}]
)
async def test_an_operation_reaches_no_further_than_the_own_handlers(app: App, scene: Scene, chosen: dict[str, str]) -> None:
    for path, body in (
        ("/v1/operations", {"verb": "cancel", "filter": chosen}),
        ("/v1/tasks/cancel", chosen),
        ("/v1/tasks/edit", {**chosen, "set": {"priority": 9}}),
    ):
        answer = await scene.shop("POST", path, body, status=403)
        assert MARK not in text_of(answer).replace(chosen.get("handler", "none"), "")
    hidden = await app.get(scene.hidden["tasks"])
    assert (hidden.state, hidden.priority) == ("pending", 5)


async def test_an_operation_on_a_pattern_within_the_own_handlers_touches_these_alone(app: App, scene: Scene) -> None:
    await scene.shop("POST", "/v1/tasks/cancel", {"handler": "gree*"}, wait=10)
    assert (await app.get(scene.own["tasks"])).state == "cancelled"
    assert (await app.get(scene.hidden["tasks"])).state == "pending"
