"""Gates: which one holds a task, and until when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.model.gate import Gate, GateAction, Gates

NOW = 1_000


def pause(handler: str = "work", collection: str | None = None, until_at: int | None = None) -> Gate:
    return Gate(handler=handler, collection=collection, action=GateAction.PAUSE, until_at=until_at)


def drop(handler: str = "work", collection: str | None = None, until_at: int | None = None) -> Gate:
    return Gate(handler=handler, collection=collection, action=GateAction.DROP, until_at=until_at)


def test_without_gates_nothing_is_held() -> None:
    gates = Gates()
    assert gates.holding("work", None, NOW) is None
    assert gates.holding("work", "eu", NOW) is None
    assert (gates.version, list(gates), bool(gates)) == (0, [], False)


def test_a_handlers_gate_holds_all_its_collections_and_no_other_handler() -> None:
    gate = pause()
    gates = Gates(3, [gate])
    assert gates.holding("work", None, NOW) is gate
    assert gates.holding("work", "eu", NOW) is gate
    assert gates.holding("other", None, NOW) is None
    assert (gates.version, list(gates), bool(gates)) == (3, [gate], True)


def test_a_collections_gate_holds_only_that_collection() -> None:
    gate = drop(collection="eu")
    gates = Gates(1, [gate])
    assert gates.holding("work", "eu", NOW) is gate
    assert gates.holding("work", "us", NOW) is None
    assert gates.holding("work", None, NOW) is None
    assert gates.holding("other", "eu", NOW) is None


@pytest.mark.parametrize("turned", [False, True])
def test_a_collections_own_gate_speaks_before_its_handlers(turned: bool) -> None:
    whole, part = drop(), pause(collection="eu")
    gates = Gates(1, [part, whole] if turned else [whole, part])
    assert gates.holding("work", "eu", NOW) is part
    assert gates.holding("work", "us", NOW) is whole
    assert gates.holding("work", None, NOW) is whole


def test_a_timed_gate_is_open_from_its_instant_on() -> None:
    gate = pause(until_at=NOW)
    assert gate.closed(NOW - 1)
    assert not gate.closed(NOW)
    assert not gate.closed(NOW + 1)
    assert pause().closed(10**18)


def test_a_collections_gate_that_is_over_gives_way_to_its_handlers() -> None:
    whole, part = drop(), pause(collection="eu", until_at=NOW)
    gates = Gates(1, [whole, part])
    assert gates.holding("work", "eu", NOW - 1) is part
    assert gates.holding("work", "eu", NOW) is whole


def test_a_handlers_gate_that_is_over_leaves_its_collections_gate() -> None:
    whole, part = pause(until_at=NOW), drop(collection="eu")
    gates = Gates(1, [whole, part])
    assert gates.holding("work", "eu", NOW + 1) is part
    assert gates.holding("work", "us", NOW + 1) is None


def test_the_later_of_two_gates_for_the_same_tasks_counts() -> None:
    first, second = pause(), drop()
    gates = Gates(1, [first, second])
    assert list(gates) == [second]
    assert gates.holding("work", None, NOW) is second


gate = st.builds(
    Gate,
    handler=st.sampled_from(["a", "b"]),
    collection=st.sampled_from([None, "x", "y"]),
    action=st.sampled_from(GateAction),
    until_at=st.none() | st.integers(NOW - 2, NOW + 2),
)


@given(st.lists(gate), st.sampled_from(["a", "b", "c"]), st.sampled_from([None, "x", "y", "z"]))
def test_a_task_is_held_exactly_if_a_closed_gate_covers_it(gates: list[Gate], handler: str, collection: str | None) -> None:
    newest = {(each.handler, each.collection): each for each in gates}
    covering = [each for each in newest.values() if each.handler == handler and each.collection in (None, collection) and each.closed(NOW)]
    held = Gates(1, gates).holding(handler, collection, NOW)
    assert (held is not None) == bool(covering)
    if held is not None:
        assert held in covering
        assert held.collection is not None or all(each.collection is None for each in covering)
