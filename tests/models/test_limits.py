"""Permits of a limit as a model, walked in every order of events, and broken on purpose: do never more run than the limit allows.

Calls of a worker may be lost, arrive late and out of order, and so may their answers. Another worker asks at the same time; its calls
arrive at once, because what matters is what it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.models.exploring import Found, explore

LIMIT, MOST_CALLS = 2, 3


class Call(NamedTuple):
    """A call on its way to the store, or its answer on the way back."""

    number: int
    held: int
    want: int
    answer: int | None = None


class Fleet(NamedTuple):
    """What the store says the worker has, since which number; what it says itself; what runs; its calls; the number that it waits for.

    Beside it: what the other worker has and runs, and whether an attempt goes on elsewhere, accepted by somebody.
    """

    stored: int = 0
    stored_number: int = 0
    held: int = 0
    running: int = 0
    number: int = 0
    calls: frozenset[Call] = frozenset()
    awaited: int = 0
    lives: bool = True
    others: int = 0
    others_running: int = 0
    accepted: int = 0


def permits(broken: str = "") -> Found[Fleet]:
    def arrivals(fleet: Fleet) -> Iterator[tuple[str, Fleet]]:
        for call in fleet.calls:
            rest = fleet._replace(calls=fleet.calls - {call})
            yield "a call or its answer is lost", rest
            if call.answer is not None:
                if fleet.lives and fleet.awaited == call.number:
                    yield "is answered", rest._replace(held=call.answer, awaited=0)
            elif call.number > fleet.stored_number or broken == "numbers are not compared":
                granted = max(call.held, min(call.want, LIMIT - fleet.others - fleet.accepted))
                if fleet.lives or fleet.stored:
                    calls = rest.calls | {call._replace(answer=granted)}
                    yield "is allotted", rest._replace(stored=granted, stored_number=call.number, calls=calls)

    def steps(fleet: Fleet) -> Iterator[tuple[str, Fleet]]:
        yield from arrivals(fleet)
        if fleet.accepted:
            yield "accepted work ends", fleet._replace(accepted=0)
        if fleet.others + fleet.stored + fleet.accepted < LIMIT:
            yield "the other gets one", fleet._replace(others=fleet.others + 1)
        if fleet.others_running < fleet.others:
            yield "the other starts", fleet._replace(others_running=fleet.others_running + 1)
            yield "the other gives one back", fleet._replace(others=fleet.others - 1)
        if fleet.others_running:
            yield "the other ends one", fleet._replace(others_running=fleet.others_running - 1)
        if not fleet.lives:
            if fleet.stored:
                yield "is reaped", fleet._replace(stored=0)
            return
        if fleet.number < MOST_CALLS:
            number = fleet.number + 1
            more = fleet.calls | {Call(number, fleet.held, LIMIT)}
            yield "asks for more", fleet._replace(number=number, calls=more, awaited=number)
            if fleet.held > fleet.running:
                held = fleet.held if broken == "the store's number first" else fleet.running
                less = fleet.calls | {Call(number, fleet.running, fleet.running)}
                yield "gives back", fleet._replace(number=number, held=held, calls=less, awaited=number)
        if fleet.running < fleet.held:
            yield "starts", fleet._replace(running=fleet.running + 1)
        if fleet.running:
            yield "ends", fleet._replace(running=fleet.running - 1)
            if not fleet.accepted:
                held = fleet.held if broken == "the permit of accepted work is kept" else fleet.held - 1
                awaited = fleet.awaited if broken == "an answer from before it counts" else 0
                yield "is accepted elsewhere", fleet._replace(running=fleet.running - 1, held=held, accepted=1, awaited=awaited)
        if broken == "reaped alive" and fleet.stored:
            yield "is reaped while it runs", fleet._replace(stored=0)
        yield "dies", fleet._replace(lives=False, running=0, held=0)

    def wrong(fleet: Fleet) -> bool:
        return fleet.running + fleet.others_running + fleet.accepted > LIMIT

    return explore(Fleet(), steps, wrong=wrong, unfinished=lambda fleet: False)


def test_never_more_run_than_the_limit_allows() -> None:
    found = permits()
    assert found.wrong is None
    assert found.states > 1_000


@pytest.mark.parametrize(
    "broken",
    [
        "numbers are not compared",
        "the store's number first",
        "reaped alive",
        "the permit of accepted work is kept",
        "an answer from before it counts",
    ],
)
def test_each_rule_is_needed(broken: str) -> None:
    assert permits(broken).wrong is not None
