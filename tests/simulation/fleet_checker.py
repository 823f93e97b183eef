"""What must hold of flows, limits and locks at the end of a simulated world.

| rule  | what it finds                                                                                                     |
| ----- | ----------------------------------------------------------------------------------------------------------------- |
| flow  | one that has not ended, or in another state than its tasks say; tasks of a node that were made although its needs |
|       | were not met, not made, or not all; one that began before what it needs had ended; counts that are wrong          |
| stop  | a task of a flow that began after the cancel of the flow was answered                                             |
| value | a task that was given something else than the node returned that it reads                                         |
| limit | more attempts at once than the limit allows in the whole fleet                                                    |
| lock  | one that was taken while another holder counted it as held, or with a fence that is not higher                    |
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from duetime.model.flow import Condition, Graph, NodePlan
from duetime.model.task import FINAL, State, TaskRecord
from duetime.testing.simulation.cluster import Cluster
from tests.chaos.history import Attempt
from tests.simulation.checker import OUTSIDE, Facts, Simulated
from tests.simulation.fleet import Fleet
from tests.simulation.journal import Journal
from tests.simulation.programs import TAKES


class Stored(NamedTuple):
    """A flow as the database has it at the end: each node's members, and what is counted of them (opened, ended, failed)."""

    state: str
    stopping: str | None
    members: Mapping[int, Sequence[TaskRecord]]
    counts: Mapping[int, tuple[int, int, int]]


def violations(fleet: Fleet, journal: Journal, facts: Facts, cluster: Cluster, execute: Callable[[str], list[Any]]) -> Iterator[str]:
    history = Simulated(journal, facts)
    yield from journal.wrong
    stored = {id: _stored(id, state, stopping, fleet, facts, execute) for id, state, stopping in _flows(execute)}
    for id, submitted in fleet.flows.items():
        if id in stored:
            yield from _flow(id, submitted.graph, stored[id], retried=id in fleet.retried)
            if id not in fleet.retried:
                yield from _order(id, submitted.graph, stored[id], history, journal)
                yield from _values(id, submitted.graph, stored[id], journal)
                yield from _stops(id, fleet, stored[id], history, journal)
        elif submitted.acknowledged:
            yield f"flow: {id} was acknowledged, but is not in the store"
    yield from _limit(fleet, facts, history, journal, cancels=cluster.settings.on_lease_lost == "cancel")
    yield from _leaks(cluster, execute)


def _flows(execute: Callable[[str], list[Any]]) -> list[Any]:
    return execute("select id, state, stopping from duetime_flow order by id")


def _stored(id: str, state: str, stopping: str | None, fleet: Fleet, facts: Facts, execute: Callable[[str], list[Any]]) -> Stored:
    members: dict[int, list[TaskRecord]] = {}
    for task, node, _ in fleet.members(id):
        members.setdefault(node, []).append(facts.records[task])
    rows = execute(f"select number, opened, ended, failed from duetime_node where flow = '{id}'")
    return Stored(state, stopping, members, {number: (opened, ended, failed) for number, opened, ended, failed in rows})


# ---- flows ----


def _flow(id: str, graph: Graph, stored: Stored, *, retried: bool) -> Iterator[str]:
    states: dict[str, str] = {}
    for number, plan in enumerate(graph.nodes):
        members = stored.members.get(number, [])
        where = f"node {plan.name!r} of flow {id}"
        lost = sum(each.state is not State.SUCCEEDED for each in members)
        counted, there = stored.counts[number], (len(members), sum(each.state in FINAL for each in members), lost)
        if counted != there:
            yield f"flow: {where} counts {counted} members that were made, ended and failed, but they are {there}"
        if plan.undoes:
            states[plan.name] = _state(plan, len(members), lost)
            continue
        met = all(_met(each, states, stored, graph) for each in plan.needs)
        states[plan.name] = _state(plan, len(members), lost)
        if members and not met and not retried:
            yield f"flow: tasks of {where} were made, but its needs were not met"
        if len(members) > plan.members or (stored.stopping is None and met and len(members) != plan.members):
            yield f"flow: {where} has {len(members)} tasks instead of {plan.members}"
    own = {plan.name: states[plan.name] for plan in graph.nodes if not plan.undoes}
    if stored.stopping is None:
        expected = {"failed" if _unhandled(graph, own) else "succeeded"}
    else:
        expected = {"cancelled"} if stored.stopping == "cancel" else {"failed"}
    undos = [plan for plan in graph.nodes if plan.undoes]
    for plan in undos if not retried else ():
        if (states[plan.name] != "skipped") != (stored.state != "succeeded" and states[plan.undoes] == "succeeded"):
            target = f"{plan.undoes} {states[plan.undoes]}"
            yield f"flow: {plan.name} of flow {id}, which is {stored.state}, is {states[plan.name]}, and {target}"
    if any(states[plan.name] == "failed" for plan in undos) or (retried and any(states[plan.name] != "skipped" for plan in undos)):
        expected = {"failed"} if not retried else {"failed", "cancelled"}
    if stored.state not in expected:
        yield f"flow: {id} is {stored.state} although its tasks say {', '.join(expected)}"


def _state(plan: NodePlan, made: int, lost: int) -> str:
    if not made:
        return "skipped"
    most = plan.tolerate * plan.members if plan.tolerate < 1 else plan.tolerate
    return "failed" if lost + plan.members - made > most else "succeeded"


def _met(condition: Condition, states: Mapping[str, str], stored: Stored, graph: Graph) -> bool:
    if condition.of:
        return sum(_met(each, states, stored, graph) for each in condition.of) >= condition.least
    state = states[condition.node]
    if condition.on == "returned":
        number = [plan.name for plan in graph.nodes].index(condition.node)
        return state == "succeeded" and _number(stored.members[number][0]) == condition.value
    return (
        state
        in {
            "succeeded": {"succeeded"},
            "failed": {"failed"},
            "ended": {"succeeded", "failed", "skipped"},
            "not_failed": {"succeeded", "skipped"},
        }[condition.on]
    )


def _unhandled(graph: Graph, states: Mapping[str, str]) -> bool:
    handled = {
        each.node
        for plan in graph.nodes
        if states.get(plan.name) == "succeeded"
        for each in _singles(plan.needs)
        if each.on in ("failed", "ended")
    }
    return any(state == "failed" and name not in handled for name, state in states.items())


def _singles(needs: Sequence[Condition]) -> list[Condition]:
    return [single for each in needs for single in (_singles(each.of) if each.of else [each])]


def _number(record: TaskRecord) -> int:
    return int(msgspec.json.decode(record.payload)["number"])


def _order(id: str, graph: Graph, stored: Stored, history: Simulated, journal: Journal) -> Iterator[str]:
    numbers = {plan.name: number for number, plan in enumerate(graph.nodes)}
    for number, plan in enumerate(graph.nodes):
        began = [attempts[0].start.at for each in stored.members.get(number, []) if (attempts := history.attempts.get(each.id))]
        if plan.undoes and began:
            before = [other for other, each in enumerate(graph.nodes) if not each.undoes or numbers[each.undoes] > numbers[plan.undoes]]
            for parent in [record for other in before if other != number for record in stored.members.get(other, [])]:
                for attempt in _sure(history, journal, parent.id):
                    if (history._over_at(attempt) or 0.0) > min(began):
                        yield f"flow: {plan.name!r} of flow {id} began before {parent.id} had ended"
        for need in plan.needs:
            for parent in stored.members.get(numbers[need.node], []) if began and not need.of else []:
                for attempt in _sure(history, journal, parent.id):
                    if (history._over_at(attempt) or 0.0) > min(began):
                        yield f"flow: a task of {plan.name!r} of flow {id} began before {parent.id} of {need.node!r} had ended"


def _sure(history: Simulated, journal: Journal, task: str) -> list[Attempt]:
    """Return the attempts of a task that its worker was bound to stop in time."""
    return [each for each in history.attempts.get(task, []) if (task, each.start.fence) not in journal.excused]


def _values(id: str, graph: Graph, stored: Stored, journal: Journal) -> Iterator[str]:
    numbers = {plan.name: number for number, plan in enumerate(graph.nodes)}
    for number, plan in enumerate(graph.nodes):
        if not plan.reads:
            continue
        [read] = [each.node for each in plan.needs if not each.of]
        source = graph.nodes[numbers[read]]
        values = [_number(each) for each in stored.members.get(numbers[read], []) if each.state is State.SUCCEEDED]
        for each in stored.members.get(number, []):
            given, expected = journal.given.get(each.id), values if source.group else values[0]
            if each.id in journal.given and given != expected:
                yield f"value: {each.id} of {plan.name!r} of flow {id} was given {given} instead of {expected}"


def _stops(id: str, fleet: Fleet, stored: Stored, history: Simulated, journal: Journal) -> Iterator[str]:
    stopped = fleet.stopped.get(id)
    if stopped is None:
        return
    undos = {number for number, plan in enumerate(fleet.flows[id].graph.nodes) if plan.undoes}
    for each in [record for number, members in stored.members.items() if number not in undos for record in members]:
        for attempt in _sure(history, journal, each.id):
            if attempt.start.at > stopped.at and attempt.start.number > stopped.attempts.get(each.id, 0):
                yield f"stop: attempt {attempt.start.number} of {each.id} began after the cancel of flow {id} was answered"


# ---- limits ----


def _limit(fleet: Fleet, facts: Facts, history: Simulated, journal: Journal, *, cancels: bool) -> Iterator[str]:
    """Count by the handlers' own journal. `cancels`: nobody kills a worker that is frozen past its lease, so its attempts do not count."""
    changes: list[tuple[float, int]] = []
    for task, attempts in history.attempts.items():
        for each in attempts:
            over_at, fence = history._over_at(each), (task, each.start.fence)
            if each.start.handler not in TAKES or over_at is None or fence in journal.excused:
                continue
            if cancels and each.start.pid in facts.cut_off:
                continue
            if each.start.handler in OUTSIDE and fence not in facts.reported:
                continue  # the store may have given the work up, which its server did not know
            takes = TAKES[each.start.handler]
            changes += [(each.start.at, takes), (over_at, -takes)]
    running = 0
    for at, change in sorted(changes):
        running += change
        if change > 0 and running > _allowed(fleet, at):
            yield f"limit: {running} were taken at {at:.6f} s, but {_allowed(fleet, at)} may be"


def _allowed(fleet: Fleet, at: float) -> int:
    """Return the highest bound that may be in force: one that was asked for, and that no later one has surely replaced."""
    asked = [each for each in fleet.bounds if each.asked_at <= at]
    sure = [number for number, each in enumerate(asked) if each.sure_at is not None and each.sure_at <= at]
    return max(each.running for each in asked[sure[-1] :])


def _leaks(cluster: Cluster, execute: Callable[[str], list[Any]]) -> Iterator[str]:
    for what, sql in (
        ("arrivals that are not counted", "select count(*) from duetime_arrival"),
        ("permits of workers that are gone", "select count(*) from duetime_permit where worker not in (select id from duetime_worker)"),
    ):
        ((rows,),) = execute(sql)
        if rows:
            yield f"leak: {rows} {what}"
    for process in cluster.present.values():
        if process.worker is None or process.dead or process.frozen:
            continue
        for name, held in process.worker._permits.limits.items():
            if held.used:
                yield f"leak: {process.name} counts {held.used} of {name} as used although all tasks are final"
