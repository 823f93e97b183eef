"""Attack: a token with one scope tries every route. What happens is what the table in docs/tokens.md says."""

from __future__ import annotations

from pathlib import Path

from duetime import App
from duetime.api.app import ROUTES
from duetime.api.route import Route
from duetime.ids import new_id
from duetime.model.access import Scope
from tests.api.conftest import Client, served

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tokens.md"
NOBODY = "no token"
HANDLERS = "token for some handlers"


def table() -> dict[str, dict[str, str]]:
    """Return the table of requests: of each, what every column says."""
    lines = PAGE.read_text().partition("## Every request\n")[2].partition("\n## ")[0].strip().splitlines()
    head, _, *rows = ([cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines)
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def name(route: Route) -> str:
    return f"{route.method} {route.path}"


def path_of(route: Route, handler: str) -> str:
    """Return an address of a route; what it names does not exist, but for the handler."""
    values = {"id": new_id(), "handler": handler, "name": "nothing", "upload": "0", "version": "1", "fingerprint": "0" * 16}
    return "/".join(values.get(part.strip("{}"), part) if part.startswith("{") else part for part in route.path.split("/"))


async def may(client: Client, route: Route) -> bool:
    """Return whether a caller gets past the check of its scope; what it asks for is nonsense, so nothing is done."""
    answer = await client(route.method, path_of(route, "greet"), status=None, headers={"content-type": "application/json"})
    if answer.status == 401:
        return False
    return answer.status != 403 or "lacks the scope" not in answer.json["detail"]


async def test_every_route_and_scope_is_in_the_table_as_it_is(app: App) -> None:
    async with app:
        tokens = {scope: (await app.tokens.create(scope, scopes=[scope])).token for scope in Scope}
        async with served(app) as http:
            callers = {NOBODY: http, **{scope.value: http.bearing(token) for scope, token in tokens.items()}}
            found = {
                name(route): {column: "yes" if await may(client, route) else "" for column, client in callers.items()} for route in ROUTES
            }
    told = {row: {column: cell for column, cell in cells.items() if column != HANDLERS} for row, cells in table().items()}
    assert found == told


async def test_what_the_table_says_of_a_token_for_some_handlers_is_so(app: App) -> None:
    async with app:
        token = (await app.tokens.create("shop", scopes=["operate", "work"], handlers=["greet"])).token
        async with served(app) as http:
            shop = http.bearing(token)
            for route in ROUTES:
                body = {"weekdays": "sat"} if route.name == "put_calendar" else None
                answer = await shop(route.method, path_of(route, "fail"), body, status=None)
                match table()[name(route)][HANDLERS]:
                    case "refused":
                        assert answer.status == 403, answer
                        assert "use one that is for all" in answer.json["detail"]
                    case "must name one":
                        if route.method == "GET":
                            assert answer.status == 403, answer
                            assert "name one of them as handler" in answer.json["detail"]
                    case "must name one, or `by=handler`: others left out":
                        assert answer.status == 403, answer
                        assert "name one of them as handler" in answer.json["detail"]
                        await shop(route.method, f"{route.path}?by=handler", status=200)
                    case "its own" | "each of its own":
                        assert answer.status >= 400, answer  # nothing that it names is its own
                    case "none may be admin":
                        assert answer.status == 403, answer
                        assert "lacks the scope admin" in answer.json["detail"]
                    case "others left out" | "not about handlers":
                        assert answer.status != 403, answer
                    case other:
                        raise AssertionError(f"{name(route)}: {other!r} means nothing here")
