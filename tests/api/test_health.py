"""The verdict over HTTP, through an App at a server, and what a restricted token is told."""

from __future__ import annotations

from duetime import App
from tests.api.conftest import Client
from tests.api.test_tokens import Bearer, bearer  # noqa: F401  # a fixture


async def test_the_verdict_is_the_same_at_the_store_and_at_the_server(app: App, http: Client) -> None:
    assert (await http("GET", "/v1/health")).json == {"well": True, "text": "All is well.", "findings": []}
    await http.submit()
    told = (await http("GET", "/v1/health")).json
    assert told["well"] is False
    [finding] = told["findings"]
    assert (finding["kind"], finding["level"], finding["subject"], finding["name"]) == ("no worker", "problem", "handler", "greet")
    async with App(http.url) as remote:
        for used in (app, remote):
            found = await used.health()
            assert (found.well, [each.name for each in found.findings]) == (False, ["greet"])
            assert found.text.startswith("greet has 1 due task and no live worker;")
    await http.problem("GET", "/v1/health", status=422, surprise=1)


async def test_a_restricted_token_is_told_of_its_handlers_only(bearer: Bearer) -> None:  # noqa: F811
    shop, operator = await bearer("shop", "operate", handlers=["gre*"]), await bearer("operator", "operate")
    await operator.submit("anything")
    assert (await operator("GET", "/v1/health")).json["well"] is False
    assert (await shop("GET", "/v1/health")).json == {"well": True, "text": "All is well.", "findings": []}
    await operator.submit()
    answer = await shop("GET", "/v1/health")
    assert [each["name"] for each in answer.json["findings"]] == ["greet"]
    assert b"anything" not in answer.data
