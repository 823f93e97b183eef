"""The first step of an attempt: what it leaves behind, whether its handler waits, returns or raises."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from types import coroutine
from typing import Any

import msgspec
import pytest

from duetime import App, Context, InvalidPayload, current
from duetime.clock import SECOND
from duetime.model.outcome import Ended, Outcome
from duetime.store.values import ClaimedTask
from duetime.targets.context import Resources
from duetime.targets.host import TargetHost
from duetime.targets.output import OutputFiles, current_attempt
from duetime.targets.target import Accepted
from duetime.worker.attempt import Attempt
from duetime.worker.steps import FirstStep, end_of, first_step


class Nowhere:
    """What an attempt needs of its executor."""

    resources = Resources()
    host = TargetHost()
    output: OutputFiles | None = None
    permits = None

    def report(self, attempt: Attempt, fraction: float, text: str) -> None: ...

    def may_begin(self, attempt: Attempt) -> bool:
        return True

    def has_begun(self, attempt: Attempt) -> None: ...


class Thing:
    """Something that can be waited to be let go."""


@pytest.fixture(autouse=True)
def no_attempt_afterwards() -> Iterator[None]:
    token = current_attempt.set(None)
    yield
    current_attempt.reset(token)


@coroutine
def pause() -> Generator[str, str, str]:
    return (yield "paused")


def beginning(function: Callable[..., Coroutine[Any, Any, object]]) -> tuple[Callable[[str], Attempt], Callable[[], FirstStep]]:
    app = App("sqlite:///:memory:")
    app.task(name="work")(function)
    spec = app.specs["work"]

    def attempt(payload: str) -> Attempt:
        nothing: dict[str, Any] = dict.fromkeys(ClaimedTask.__struct_fields__)
        claimed = ClaimedTask(**nothing | {"id": "task", "handler": "work", "attempt": 1, "payload": payload})
        return Attempt(claimed, spec, Nowhere(), None, 0, 0)

    target = spec.target.open(spec, TargetHost())
    return attempt, partial(first_step, target, direct=True)


def result_of(ended: Ended) -> object:
    assert ended.outcome is Outcome.SUCCEEDED
    return None if ended.result is None else msgspec.json.decode(ended.result)


def test_a_first_step_goes_from_one_attempt_to_the_next() -> None:
    async def work(number: int) -> int:
        assert current().attempt == 1
        return number * 2

    attempt, begin_one = beginning(work)
    begin = begin_one()
    for number in range(3):
        one = attempt(f'{{"number":{number}}}')
        assert result_of(begin(one)) == number * 2
        assert one.work is None
        assert current() is one.context


def test_the_context_comes_before_the_arguments() -> None:
    async def work(ctx: Context, number: int) -> int:
        return ctx.attempt + number

    attempt, begin_one = beginning(work)
    assert result_of(begin_one()(attempt('{"number":6}'))) == 7


def test_what_waits_is_left_in_the_attempt_and_goes_on_by_itself() -> None:
    async def work(number: int) -> str:
        return f"{number} {await pause()}"

    attempt, begin_one = beginning(work)
    begin, one = begin_one(), attempt('{"number":7}')
    assert begin(one) == "paused"
    assert one.work is not None
    with pytest.raises(StopIteration) as done:
        one.work.send("goes on")
    assert done.value.value == "7 goes on"
    del begin
    gc.collect()


def test_a_result_is_let_go_while_the_next_attempt_waits() -> None:
    things: list[weakref.ref[Thing]] = []

    async def work(waits: bool) -> Thing | None:
        if waits:
            await pause()
            return None
        thing = Thing()
        things.append(weakref.ref(thing))
        return thing

    attempt, begin_one = beginning(work)
    begin = begin_one()
    assert begin(attempt('{"waits":false}')).outcome is Outcome.FATAL, "a Thing is no result"
    one = attempt('{"waits":true}')
    assert begin(one) == "paused"
    gc.collect()
    assert [thing() for thing in things] == [None]
    assert one.work is not None
    one.work.close()


@pytest.mark.parametrize("error", [ValueError("wrong"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_what_a_handler_raises_comes_out_and_the_next_step_is_as_good(error: BaseException) -> None:
    async def work(number: int) -> int:
        if number == 0:
            raise error
        return number

    attempt, begin_one = beginning(work)
    with pytest.raises(type(error)) as raised:
        begin_one()(attempt('{"number":0}'))
    assert raised.value is error
    assert result_of(begin_one()(attempt('{"number":1}'))) == 1


def test_a_payload_that_does_not_fit_leaves_nothing_to_go_on_with() -> None:
    async def work(number: int) -> None: ...

    attempt, begin_one = beginning(work)
    one = attempt('{"number":"seven"}')
    with pytest.raises(InvalidPayload):
        begin_one()(one)
    assert one.work is None


def test_an_attempt_that_was_handed_over_is_not_taken_for_a_success() -> None:
    accepted = Accepted(deadline_at=1_900_000_000 * SECOND, silence=60)
    assert end_of(accepted, direct=False) is accepted
    assert accepted.outcome is None
