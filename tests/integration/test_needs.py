"""Tasks that need others: said in Python, seen by `why`, in the caller's transaction, and many at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from duetime import App, InvalidValue, RetryPolicy, State, TaskNotFound, ended
from duetime.errors import TaskCancelled
from duetime.ids import new_id
from duetime.model.needs import MAX_NEEDS, Need, edges_of
from duetime.model.query import Query
from duetime.model.task import Edge
from duetime.store.postgres.runner import Runner
from duetime.store.postgres.submit import Submission
from tests.servers.waiting import PATIENCE

A, B = "01890000-0000-7000-8000-00000000000a", "01890000-0000-7000-8000-00000000000b"


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    url: str = f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return App(url, user="test")


@pytest.mark.covers("CEL.2")
async def test_a_task_starts_once_all_that_it_needs_has_succeeded(app: App) -> None:
    began: list[str] = []

    @app.task
    async def step(name: str) -> None:
        began.append(name)

    async with app.worker():
        first = await step.after(0.2, name="first")
        second = await step.options(needs=[first]).now(name="second")
        both = await step.options(needs=[first, second.id]).now(name="both")
        assert (await app.get(both)).state is State.BLOCKED
        await app.result(both, timeout=PATIENCE)
    assert began == ["first", "second", "both"]


async def test_a_task_is_cancelled_if_what_it_needs_fails_and_runs_if_it_needs_only_its_end(app: App) -> None:
    @app.task(retry=RetryPolicy.none())
    async def charge() -> None:
        raise ValueError("no money")

    @app.task
    async def tell() -> str:
        return "told"

    async with app.worker():
        charged = await charge.after(0.2)
        shipped = await tell.options(needs=[charged]).now()
        told = await tell.options(needs=[ended(charged)]).now()
        assert await app.result(told, timeout=PATIENCE) == "told"
        with pytest.raises(TaskCancelled, match=f"task {charged.id}, whose success it needed, ended otherwise"):
            await app.result(shipped, timeout=PATIENCE)
        assert (await tell.options(needs=[charged]).now()).state is State.CANCELLED  # known at once


async def test_why_names_what_a_task_waits_for(app: App) -> None:
    @app.task
    async def step(number: int = 0) -> None: ...

    async with app.worker(handlers=[]):
        first, second = await step.after(60), await step.after(60)
        one = await step.options(needs=[ended(first)]).now()
        two = await step.options(needs=[first, ended(second)]).now()
        many = await step.options(needs=[await step.after(60) for _ in range(5)]).now()
        assert (await app.why(one))[0].text == f"it waits for task {first.id} of {step.name} (pending) to end"
        assert (await app.why(two))[0].text == (
            f"it waits for task {first.id} of {step.name} (pending) to succeed and task {second.id} of {step.name} (pending) to end"
        )
        assert (await app.why(many))[0].text.endswith(" to succeed and 2 more")
        await app.cancel(second)
        assert (await app.why(two))[0].text == f"it waits for task {first.id} of {step.name} (pending) to succeed"


async def test_a_task_that_is_not_there_cannot_be_needed(app: App) -> None:
    @app.task
    async def step() -> None: ...

    async with app:
        with pytest.raises(TaskNotFound, match=f"no task {A} to wait for"):
            await step.options(needs=[A]).now()
        assert (await app.client.page(Query())).items == []


async def test_a_chain_is_stored_in_a_few_statements(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task needs the one before, which is stored by the same call."""

    @app.task
    async def step(number: int) -> None: ...

    async with app:
        await step.now(number=-1)
        chain = [step.new(number=0)]
        for number in range(1, 200):
            chain.append(step.options(needs=[chain[-1].id]).new(number=number))
        statements: list[str] = []
        begin = Submission.__init__

        class Counting:
            def __init__(self, run: Runner) -> None:
                self._run = run

            async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Sequence[Any]]:
                statements.append(sql)
                return await self._run.rows(sql, parameters)

        monkeypatch.setattr(Submission, "__init__", lambda self, run, *given, **named: begin(self, Counting(run), *given, **named))
        stored = await app.submit_many(chain)
        assert [task.state for task in stored] == [State.PENDING, *[State.BLOCKED] * 199]
        assert len(statements) < 10
        assert statements or app.url.startswith("sqlite")
        assert [task.state for task in await app.submit_many(chain)] == [task.state for task in stored]  # a repeat
        await app.cancel(stored[0])
        assert {(await app.get(task)).state for task in stored} == {State.CANCELLED}


async def test_tasks_that_cannot_run_any_more_take_along_those_that_need_them_in_the_same_call(app: App) -> None:
    @app.task
    async def step(number: int) -> None: ...

    async with app:
        gone = await step.after(60, number=0)
        await app.cancel(gone)
        vain = step.options(needs=[gone]).new(number=1)
        also = step.options(needs=[vain.id]).new(number=2)
        after = step.options(needs=[ended(vain.id)]).new(number=3)
        assert [task.state for task in await app.submit_many([vain, also, after])] == [State.CANCELLED, State.CANCELLED, State.PENDING]


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        (A, "needs is a list of tasks"),
        (ended(A), "needs is a list of tasks"),
        (["x"], r"needs\[0\] is not the id of a task: 'x'"),
        ([A, 7], r"needs\[1\] must be a task or its id, got int; submit it first"),
        ([new_id() for _ in range(MAX_NEEDS + 1)], "at most 1,000 others, got 1,001"),
    ],
)
def test_needs_that_make_no_sense_are_refused(needs: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        edges_of(needs)


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ([], ()),
        ([A.upper()], (Edge(A),)),
        ([A, B, A], (Edge(A), Edge(B))),
        ([ended(A), A], (Edge(A),)),
        ([A, ended(A)], (Edge(A),)),
    ],
)
def test_each_task_is_needed_once(needs: list[Need], expected: tuple[Edge, ...]) -> None:
    assert edges_of(needs) == expected


def test_a_condition_is_not_mistaken_for_a_state() -> None:
    with pytest.raises(TypeError, match=r"ask \(await app.get\(task\)\).state"):
        assert ended(A)
