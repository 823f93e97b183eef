"""Flows of 100,000 tasks in `make test-all`, of some thousands otherwise: each task once, and sums that are folded on the way."""

from collections import Counter

import msgspec
import pytest

from duetime.ids import new_id
from duetime.model.flow import Condition, Graph, NodePlan
from duetime.model.task import State
from duetime.store import Store
from duetime.store.flows import SUMMED_FROM, NewFlow, NewPiece, PieceVerdict
from tests.chaos.stepping import HalfWay, half_way, hire, opened
from tests.conformance.build import Worker, ended, new_task

pytestmark = pytest.mark.slow
AT_ONCE = 20  # members in one settle: many arrivals
PIECE = 1_000


@pytest.fixture
def many(request: pytest.FixtureRequest) -> int:
    return 100_000 if request.config.getoption("--scope") == "everything" else 3_000


def chord(many: int) -> NewFlow:
    part = NodePlan(name="part", handler="part", members=many, group=True)
    graph = Graph(nodes=(part, NodePlan(name="join", handler="join", needs=(Condition("part"),))))
    return NewFlow(id=new_id(), name="chord", graph=graph, tasks=[[new_task("part") for _ in range(many)], [new_task("join")]])


async def run_all(store: Store, worker: Worker, handler: str, many: int, at_once: int) -> Counter[bytes]:
    """Let all tasks of a handler succeed, so many at once; return how often each payload ran."""
    ran: Counter[bytes] = Counter()
    while ran.total() < many:
        left = min(at_once, many - ran.total())
        tasks = await worker.take(wants={handler: left}, total=left)
        assert tasks, f"{ran.total()} of {many} have run, and no more can be claimed"
        ran.update(task.payload.encode() if isinstance(task.payload, str) else task.payload for task in tasks)
        await store.settle(worker.id, [ended(task, State.SUCCEEDED, at=store.now()) for task in tasks])
    return ran


async def uncounted(transaction: HalfWay) -> int:
    """Return how many arrivals stand there that no step has counted."""
    await transaction.begin()
    [[found]] = await transaction.rows('select count(*) from "%s".arrival')
    await transaction.rollback()
    return int(found)


@pytest.mark.parametrize("held", [False, True], ids=["alone", "beside an old snapshot"])
async def test_a_large_chord_joins_once_and_little_is_left_uncounted(postgres_url: str, many: int, held: bool) -> None:
    """What is counted stands in a table of arrivals that come and go; nothing that goes can be removed while a snapshot is held."""
    async with opened(postgres_url) as store, half_way(postgres_url, begun=False) as old, half_way(postgres_url, begun=False) as trial:
        worker = await hire(store, lease=600.0)
        each = chord(many)
        await store.add_flow(each)
        if held:
            await old.rows("begin isolation level repeatable read")
            await old.rows('select count(*) from "%s".arrival')
        for _ in range(3):
            await run_all(store, worker, "part", many // 4, AT_ONCE)
            assert await uncounted(trial) <= 65
        await run_all(store, worker, "part", many - 3 * (many // 4), AT_ONCE)
        [found] = await store.flows([each.id])
        assert found is not None
        assert (found.nodes[0].ended, found.nodes[1].opened) == (many, 1)
        assert len(await store.flow_members(each.id, 1)) == 1
        await run_all(store, worker, "join", 1, 1)
        [found] = await store.flows([each.id])
        assert found is not None
        assert found.state == "succeeded"


async def test_what_was_counted_is_not_looked_at_again_and_a_duty_looks_at_all(postgres_url: str) -> None:
    """A look begins at the flow's floor. In a database that was restored floors mean nothing, and then the duty finds what has arrived."""
    async with opened(postgres_url) as store, half_way(postgres_url) as trial:
        worker = await hire(store, lease=600.0)
        each = chord(SUMMED_FROM + 10)
        await store.add_flow(each)
        await run_all(store, worker, "part", SUMMED_FROM + 5, 1)
        [[floor]] = await trial.rows('select floor::text::bigint from "%s".flow')
        [[least]] = await trial.rows('select min(written_by::text::bigint) from "%s".arrival')
        assert 0 < floor <= least, "a step has counted most of them"
        await trial.rows("""update "%s".flow set floor = '18446744073709551615'""")
        await trial.commit()
        await run_all(store, worker, "part", 5, 1)
        [found] = await store.flows([each.id])
        assert found is not None
        assert (found.nodes[0].ended, found.nodes[1].opened) == (SUMMED_FROM + 10, 0), "nobody has looked so far back"
        assert await store.advance_flows() == 1
        await run_all(store, worker, "join", 1, 1)


async def test_a_large_map_over_what_a_task_yields_has_each_item_once(postgres_url: str, many: int) -> None:
    graph = Graph(
        nodes=(
            NodePlan(name="list", handler="list", keeps=True),
            NodePlan(name="part", handler="part", needs=(Condition("list"),), members=0, group=True, reads=True, each=("list",)),
        )
    )
    draft = msgspec.structs.replace(new_task("part"), payload=b'{"item":{"$item":[]}}')
    each = NewFlow(id=new_id(), name="map", graph=graph, tasks=[[new_task("list")], [draft]])
    async with opened(postgres_url) as store:
        worker = await hire(store, lease=600.0)
        await store.add_flow(each)
        task = await worker.take_one("list")
        for first in range(0, many, PIECE):
            data = msgspec.json.encode(list(range(first, first + PIECE)))
            piece = NewPiece(task=task.id, attempt=task.attempt, first=first, items=PIECE, data=data)
            assert await store.save_pieces(worker.id, [piece]) == [PieceVerdict.KEPT]
        await worker.end(task, State.SUCCEEDED, result=b"1")
        ran = await run_all(store, worker, "part", many, 500)
        assert ran == Counter(b'{"item":%d}' % item for item in range(many))
        [found] = await store.flows([each.id])
        assert found is not None
        assert (found.state, found.nodes[1].members, found.nodes[1].ended) == ("succeeded", many, many)
