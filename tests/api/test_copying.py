"""A task is submitted once more: by the App on a store, over HTTP, and by an App at a server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from duetime import App, InvalidPayload, RetryPolicy, State, Task, TaskNotFound
from duetime.client.schedules.schedule import Schedule
from duetime.ids import new_id
from duetime.model.rules import Every
from tests.api.conftest import Client
from tests.api.test_tokens import Bearer, bearer  # noqa: F401  # a fixture


@pytest.fixture(params=["local", "remote"])
async def door(request: pytest.FixtureRequest, app: App, http: Client) -> AsyncIterator[App]:
    if request.param == "local":
        yield app
        return
    async with App(http.url) as remote:
        yield remote


async def origin(app: App) -> Task[str]:
    """Return a task with every option, long before it is due."""
    greet = app.handler("greet").options(
        key="g-7",
        collection="eu",
        priority=8,
        timeout=7,
        retry=RetryPolicy(tries=2),
        expires=90,
        meta={"tenant": "acme", "traceparent": "t"},
    )
    return await greet.after(3_600, name="Ada", times=2)


async def test_a_copy_has_payload_and_options_and_is_due_now_without_the_key(app: App, door: App) -> None:
    task = await origin(app)
    copy = await door.copy(task.id)
    assert copy.id != task.id
    assert (copy.state, copy.key, copy.due_at <= copy.submitted_at) == (State.PENDING, None, True)
    for name in ("handler", "payload", "collection", "priority", "timeout", "retry"):
        assert getattr(copy, name) == getattr(task, name), name
    assert copy.meta == {"tenant": "acme", "copy_of": task.id}
    assert copy.expires_at is not None
    assert (copy.expires_at - copy.due_at).total_seconds() == 90
    assert await app.get(task.id) == task, "the origin stays as it was"
    assert (await door.copy(copy.id)).meta["copy_of"] == copy.id


async def test_what_succeeded_is_run_again_as_a_copy_and_with_other_arguments(app: App, door: App) -> None:
    task = await app.handler("greet").now(name="Ada")
    async with app.worker():
        await app.result(task, timeout=60)
        same, other = await door.copy(task.id), await door.copy(task.id, payload={"name": "Grace"})
        assert await app.result(same.id, timeout=60) == await app.result(task, timeout=60)
        assert "Grace" in await app.result(other.id, timeout=60)
    with pytest.raises(InvalidPayload):
        await door.copy(task.id, payload={"nom": "Grace"})
    with pytest.raises(TaskNotFound):
        await door.copy(new_id())


async def test_a_copy_belongs_to_no_schedule(app: App, door: App) -> None:
    await app.schedules.put(Schedule(name="hourly", handler="greet", rule=Every(3_600), payload={"name": "Ada"}))
    task = await app.schedules.trigger("hourly")
    assert task.schedule == "hourly"
    copy = await door.copy(task.id)
    assert (copy.schedule, copy.planned_at, copy.payload) == (None, None, task.payload)


async def test_a_copy_is_submitted_by_those_who_may_under_their_name(app: App, bearer: Bearer) -> None:  # noqa: F811
    task = await origin(app)
    made = await (await bearer("kim", "submit"))("POST", f"/v1/tasks/{task.id}/copy", status=201)
    assert (made.status, made.json["submitted_by"], made.headers["location"]) == (201, "kim", f"/v1/tasks/{made.json['id']}")
    await (await bearer("eve", "read")).problem("POST", f"/v1/tasks/{task.id}/copy", status=403)
    other = await bearer("mailer", "submit", handlers=["mail.*"])
    await other.problem("POST", f"/v1/tasks/{task.id}/copy", status=404)
    assert (await app.count(handler="greet")).count == 2
