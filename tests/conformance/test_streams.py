"""What members of flows return is read in pages; what they yield is kept piece by piece, of the attempt that succeeded and no other."""

from __future__ import annotations

import msgspec
import pytest

from duetime.clock import ManualClock
from duetime.ids import new_id
from duetime.model.flow import PORTION, NodePlan
from duetime.model.flow_values import Source
from duetime.model.outcome import SettleVerdict
from duetime.model.task import State
from duetime.store import Store
from duetime.store.flows import PAGE_BYTES, PIECE_ITEMS, KeptValue, NewFlow, NewPiece, Piece, PieceVerdict
from duetime.store.results import results_page
from duetime.store.values import ClaimedTask
from tests.conformance.build import Worker, add, ended, new_task
from tests.conformance.conftest import Hire
from tests.conformance.test_flows import flow, node, on, payloads, read, states, tasks_of

KEPT, UNREAD, STALE = PieceVerdict.KEPT, PieceVerdict.UNREAD, PieceVerdict.STALE


def piece(task: ClaimedTask, first: int, *items: int) -> NewPiece:
    return NewPiece(task=task.id, attempt=task.attempt, first=first, items=len(items), data=msgspec.json.encode(items))


def long_piece(task: ClaimedTask, first: int) -> NewPiece:
    return piece(task, first, *range(first, first + PIECE_ITEMS))


async def save(store: Store, worker: Worker, *pieces: NewPiece) -> list[PieceVerdict]:
    return await store.save_pieces(worker.id, pieces)


async def listing(store: Store, *more: NodePlan) -> NewFlow:
    each = flow(node("list", keeps=True), *more)
    await store.add_flow(each)
    return each


async def test_what_an_attempt_yields_is_there_when_it_has_succeeded(store: Store, worker: Worker) -> None:
    each = await listing(store, node("next", on("list")))
    task = await worker.take_one("list")
    assert await save(store, worker, piece(task, 0, 1, 2)) == [KEPT]
    for _ in range(2):
        assert await save(store, worker, piece(task, 2, 3)) == [KEPT], "a repeat changes nothing"
    assert await store.flow_pieces(each.id, 0, 0) == [], "it has not succeeded yet"
    assert await worker.end(task, State.SUCCEEDED, result=b'"three"') is SettleVerdict.ACCEPTED
    assert await store.flow_values(each.id, 0) == [KeptValue(0, b'"three"', 3)]
    assert await store.flow_pieces(each.id, 0, 0) == [Piece(0, 2, b"[1,2]"), Piece(2, 1, b"[3]")]
    assert await store.flow_pieces(each.id, 0, 0, first=1) == [Piece(0, 2, b"[1,2]"), Piece(2, 1, b"[3]")]
    assert await store.flow_pieces(each.id, 0, 0, first=2) == [Piece(2, 1, b"[3]")]
    assert await store.flow_pieces(each.id, 0, 0, first=3) == []
    assert (await read(store, each)).nodes[0].items == 3
    assert (await states(store, each))["next"] == "running"
    assert await store.save_pieces(worker.id, []) == []


async def test_pieces_of_another_attempt_are_never_read(store: Store, worker: Worker, hire: Hire) -> None:
    each = await listing(store)
    first = await worker.take_one("list")
    assert await save(store, worker, piece(first, 0, 1, 2), piece(first, 2, 3, 4)) == [KEPT, KEPT]
    await worker.end(first, State.PENDING)
    assert await save(store, worker, piece(first, 4, 5)) == [STALE]
    second = await worker.take_one("list")
    another = await hire()
    assert await save(store, another, piece(second, 0, 6)) == [STALE], "it runs in another worker"
    assert await save(store, worker, piece(first, 0, 7)) == [STALE]
    assert await save(store, worker, piece(second, 0, 8)) == [KEPT]
    await worker.end(second, State.SUCCEEDED, result=b"1")
    assert await store.flow_pieces(each.id, 0, 0) == [Piece(0, 1, b"[8]")]
    assert await store.flow_values(each.id, 0) == [KeptValue(0, b"1", 1)]
    assert await save(store, worker, piece(second, 1, 9)) == [STALE], "it has ended"


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
async def test_pieces_of_earlier_attempts_are_gone_when_the_task_has_ended(store: Store, worker: Worker, state: State) -> None:
    each = await listing(store)
    first = await worker.take_one("list")
    assert await save(store, worker, piece(first, 0, 1, 2)) == [KEPT]
    await worker.end(first, State.PENDING)
    second = await worker.take_one("list")
    await worker.end(second, state, result=b"[5]" if state is State.SUCCEEDED else None)
    assert await store.flow_values(each.id, 0) == ([KeptValue(0, b"[5]")] if state is State.SUCCEEDED else [])
    assert await store.flow_pieces(each.id, 0, 0) == []
    if state is State.FAILED:  # it lives again, and yields anew
        await store.retry([second.id])
        third = await worker.take_one("list")
        assert await save(store, worker, piece(third, 0, 6)) == [KEPT]
        await worker.end(third, State.SUCCEEDED, result=b"1")
        assert await store.flow_pieces(each.id, 0, 0) == [Piece(0, 1, b"[6]")]


async def test_what_nobody_reads_is_not_kept(store: Store, worker: Worker) -> None:
    unread = flow(node("list"))
    await store.add_flow(unread)
    of_a_flow = await worker.take_one("list")
    await add(store)
    alone = await worker.take_one()
    assert await save(store, worker, piece(of_a_flow, 0, 1), piece(alone, 0, 1)) == [UNREAD, UNREAD]
    assert await store.flow_of(of_a_flow.id) == unread.id
    assert await store.flow_of(alone.id) is None
    assert await store.flow_of(new_id()) is None
    assert await store.flow_of("no id") is None


async def test_a_map_over_what_a_task_has_yielded(store: Store, worker: Worker, hire: Hire) -> None:
    over = NodePlan(name="part", handler="part", needs=(on("list"),), members=0, group=True, reads=True, each=("list",))
    each = flow(node("list", keeps=True), over)
    part = msgspec.structs.replace(new_task("part"), payload=b'{"item":{"$item":[]}}')
    await store.add_flow(msgspec.structs.replace(each, tasks=[each.tasks[0], [part]]))
    task = await worker.take_one("list")
    assert await save(store, worker, piece(task, 0, 7), piece(task, 1, *range(1, PIECE_ITEMS)), long_piece(task, PIECE_ITEMS)) == [KEPT] * 3
    await worker.end(task, State.SUCCEEDED, result=b"1")
    expected = [7, *range(1, 2 * PIECE_ITEMS)]
    assert len(expected) > PORTION
    assert (await read(store, each)).nodes[1].members == len(expected)
    assert await payloads(store, each, "part") == [b'{"item":%d}' % item for item in expected]


async def test_what_was_yielded_is_an_argument_if_it_fits_and_else_a_stream(store: Store, worker: Worker) -> None:
    whole = NodePlan(name="whole", handler="whole", needs=(on("list"),), reads=True)
    streamed = NodePlan(name="streamed", handler="streamed", needs=(on("list"),), reads=True)
    plans = flow(node("list", keeps=True), whole, streamed)
    drafts = [
        plans.tasks[0],
        [msgspec.structs.replace(new_task("whole"), payload=b'{"all":{"$value":"list"}}')],
        [msgspec.structs.replace(new_task("streamed"), payload=b'{"all":{"$stream":"list"}}')],
    ]
    short, long = msgspec.structs.replace(plans, tasks=drafts), msgspec.structs.replace(plans, id=new_id(), tasks=drafts)
    for each, text in ((short, "x"), (long, "x" * 600_000)):
        await store.add_flow(each)
        task = await worker.take_one("list")
        data = msgspec.json.encode([text])
        assert await save(store, worker, *(NewPiece(task=task.id, attempt=1, first=n, items=1, data=data) for n in range(2))) == [KEPT] * 2
        await worker.end(task, State.SUCCEEDED, result=b"1")
        assert await payloads(store, each, "streamed") == [b'{"all":{"$results":{"node":"list","number":0}}}']
    assert await payloads(store, short, "whole") == [b'{"all":["x","x"]}']
    assert "what list has yielded is longer than the 1,000,000 bytes of a payload" in (await read(store, long)).nodes[1].error


async def test_values_are_read_in_pages_by_number_and_size(store: Store, hire: Hire) -> None:
    each = flow(node("part", members=5, keeps=True))
    await store.add_flow(each)
    worker = await hire()
    tasks = await worker.take("part")
    positions = {id: position for position, id in enumerate(await tasks_of(store, each, "part"))}
    long = b'"%s"' % (b"x" * (PAGE_BYTES // 2))
    results = [b"0", long, long, b"3", b"4"]
    settled = [ended(task, State.SUCCEEDED, at=store.now(), result=results[positions[task.id]]) for task in tasks]
    await store.settle(worker.id, settled)
    assert [kept.position for kept in await store.flow_values(each.id, 0)] == [0, 1, 2]
    assert [kept.position for kept in await store.flow_values(each.id, 0, after=2)] == [3, 4]
    assert [kept.position for kept in await store.flow_values(each.id, 0, after=0, limit=1)] == [1]
    assert await store.flow_values(each.id, 0, after=4) == []
    assert await store.flow_values(each.id, 0, round=2) == []
    assert await store.flow_values(new_id(), 0) == await store.flow_values("no id", 0) == []
    assert await store.flow_pieces("no id", 0, 0) == await store.flow_pieces(new_id(), 0, 0) == []


async def everything(store: Store, each: NewFlow, source: Source, limit: int = 1_000) -> list[bytes]:
    """Read all pages of a stream."""
    found: list[bytes] = []
    first: int | None = 0
    while first is not None:
        page = await results_page(store, each.id, source, first, limit)
        assert len(page.items) <= limit
        found += [bytes(item) for item in page.items]
        first = page.next
    return found


@pytest.mark.parametrize("limit", [1, 700, 1_000])
async def test_pages_of_a_stream_have_each_item_once(store: Store, worker: Worker, limit: int) -> None:
    each = flow(node("list", keeps=True), node("part", members=3, keeps=True), node("plain", keeps=True))
    await store.add_flow(each)
    task = await worker.take_one("list")
    many = 2 if limit == 1 else 11  # more pieces than are read at once
    for number in range(many):
        items = range(number * 4, number * 4 + 4) if limit == 1 else range(number * PIECE_ITEMS, (number + 1) * PIECE_ITEMS)
        assert await save(store, worker, piece(task, items.start, *items)) == [KEPT]
    await worker.end(task, State.SUCCEEDED, result=b"1")
    for name in ("part", "part", "part"):
        task = await worker.take_one(name)
        member = (await tasks_of(store, each, "part")).index(task.id)
        if member == 1:
            assert await save(store, worker, piece(task, 0, 8, 9), piece(task, 2, 10)) == [KEPT, KEPT]
        await worker.end(task, State.FAILED if member == 2 else State.SUCCEEDED, result=b"%d" % member)
    await worker.run(State.SUCCEEDED, "plain", result=b'["a","b"]')
    total = many * (4 if limit == 1 else PIECE_ITEMS)
    assert await everything(store, each, Source(node="list", number=0), limit) == [b"%d" % item for item in range(total)]
    assert await everything(store, each, Source(node="part", number=1, group=True), limit) == [b"0", b"[8,9,10]"]
    assert await everything(store, each, Source(node="plain", number=2), limit) == [b'"a"', b'"b"']


async def test_a_rerun_yields_anew_and_the_former_round_stays_readable(store: Store, worker: Worker) -> None:
    each = await listing(store)
    for item in (1, 2):
        task = await worker.take_one("list")
        assert await save(store, worker, piece(task, 0, item)) == [KEPT]
        await worker.end(task, State.SUCCEEDED, result=b"1")
        if item == 1:
            await store.rerun_flow(each.id, 0)
            assert await store.flow_pieces(each.id, 0, 0) == []
    assert await store.flow_pieces(each.id, 0, 0) == [Piece(0, 1, b"[2]")]
    assert await store.flow_pieces(each.id, 0, 0, round=1) == [Piece(0, 1, b"[1]")]


async def test_what_was_yielded_lives_as_long_as_the_flow(store: Store, worker: Worker, clock: ManualClock) -> None:
    each = await listing(store)
    task = await worker.take_one("list")
    await save(store, worker, piece(task, 0, 1))
    await worker.end(task, State.SUCCEEDED, result=b"1")
    await store.delete([task.id])
    assert await store.flow_pieces(each.id, 0, 0) == [Piece(0, 1, b"[1]")]
    clock.advance(1)
    assert await store.prune_flows(clock.now(), 10) == 1
    assert await store.flow_pieces(each.id, 0, 0, round=1) == []
    assert await store.inspect_flows(repair=False) == []
