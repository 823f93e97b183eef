"""Claiming and settling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import repeat
from typing import Any, NamedTuple

from duetime.clock import SECOND, Instant
from duetime.model.claim_order import Below, ClaimOrder, DueEntry, LaneFacts, choose, most_of
from duetime.model.flow import FLOW
from duetime.model.gate import Gate, GateAction, Gates
from duetime.model.outcome import Outcome, Settlement, SettleVerdict
from duetime.model.partitions import Admission, Spot, Usage
from duetime.model.task import State
from duetime.store.postgres import arrays
from duetime.store.postgres import gates as gating
from duetime.store.postgres.connection import Database, Link, Rejected
from duetime.store.postgres.counting import Counting, admit_claimed, read_usages
from duetime.store.postgres.fairness import FairLanes, Heads, read_weights
from duetime.store.postgres.lanes import ROAD_BITS, Lane, Lanes
from duetime.store.postgres.open_claims import OpenClaims, plain_successes
from duetime.store.postgres.records import write_detail, write_error
from duetime.store.postgres.runner import Runner
from duetime.store.postgres.suspending import hold, put_edges, wake
from duetime.store.rows.extras import read_extras
from duetime.store.rows.failures import write_kind
from duetime.store.server_clock import ServerClock, monotonic
from duetime.store.shard import Grouping
from duetime.store.sql import Statements
from duetime.store.values import Claim, ClaimedTask, HintKind, Progress

CLAIM_WITHIN = 15.0  # seconds for which the reply to a claim is waited for; a claim whose reply is lost is found by the next renewals
MAX_RETRIES = 6
_NOTHING = OpenClaims()
FIRST_POLL, LONGEST_POLL = SECOND // 20, SECOND  # without wake-ups: how soon to look again after work was found, and at the latest
LINGER = 0.003  # seconds to wait once for the rest of a claim that is about to end as a whole


Admitted = tuple[set[str], Admission]  # who of a claim may not start, and what was decided


class _How(IntEnum):
    """How a claim went, as the SQL function `claim` reports it."""

    DONE = 0
    OUTDATED = 1
    NOT_ALLOWED = 2  # the worker is not registered, or drains
    CLOSED = 3


class Claims:
    """Claims of one store object: remembers gates, lanes, the claim order, and which claim holds a running task."""

    def __init__(self, database: Database, sql: Statements, lanes: Lanes, clock: ServerClock, *, polls: bool) -> None:
        self._database = database
        self._sql = sql
        self._lanes = lanes
        self._clock = clock
        self._polls = polls
        self._poll = FIRST_POLL
        self._gates = Gates(-1, [])
        self._claim_order = ClaimOrder()
        self._open_claims: dict[str, OpenClaims] = {}  # by worker
        self._flows: dict[str, str] = {}  # by task: what it is claimed as a member of
        self._usages: Mapping[str, Sequence[Usage]] = {}  # by handler: what its attempts take of limits that the store counts
        self.admitted: dict[str, tuple[int, tuple[str, ...]]] = {}  # by task: the attempt that such limits have admitted, and these
        self.freed: set[Spot] = set()  # partitions in which others may go on
        self.replaced: list[str] = []  # running tasks that newer ones replace

    async def claim(
        self,
        worker: str,
        number: int,
        wants: Mapping[str, int],
        total: int,
        lead: int,
        through: Gate | None = None,
        below: Below | None = None,
        inside: Link | None = None,
    ) -> Claim:
        """Hand due tasks to a worker, or one that may pass a gate; see the contract in `store.shard`. `inside` has a transaction open."""
        wants = {name: want for name, want in wants.items() if want > 0}
        run: Runner = inside or self._database  # not another connection: those who hold one each could wait for each other's
        for _ in range(MAX_RETRIES):
            # what is chosen and counted below is by this version, whatever another claim of this process learns meanwhile
            version, usages = self._gates.version, self._usages
            if through is None:
                lanes, dropping, opens_at = self._open_lanes(wants, self._clock.now())
            else:
                lanes, dropping, opens_at = self._lanes_behind(through, wants, self._clock.now()), (), None
            if below:
                lanes = [lane for lane in lanes if most_of(lane.priority, below.get(lane.handler), 1) > 0]
            last_handler = self._claim_order.last_handler
            fair = self._claim_order.fairness.weights if through is None else {}
            order, quotas = await self._plan(run, lanes, wants, total, lead, below or {}, fair)
            watched = [*lanes, *dropping] if dropping else lanes
            how, claim = await self._take(worker, number, watched, order, quotas, lead, version, usages, inside)
            if how is _How.DONE:
                break
            if order:  # or the handlers of this plan would be passed over, although they got nothing
                by_id = self._lanes.by_id
                self._claim_order.take_back([by_id[lane].handler for lane in order], last_handler)
            if how is not _How.OUTDATED:
                break
            gates = await gating.read_gates(run, self._sql, self._clock.parameter)
            names = await gating.read_names(run, self._sql)
            self._claim_order.fairness.learn(gates.version, await read_weights(run, self._sql), names.all)
            # together: with these gates another claim goes through, so it must know what is counted as of their version
            self._usages, self._gates = await read_usages(run, self._sql), gates
            await self._lanes.load(run)
        instants = [at for at in (claim.next_at, opens_at) if at is not None]
        if self._polls and how is _How.DONE:
            self._poll = FIRST_POLL if claim.tasks else min(LONGEST_POLL, self._poll * 2)
            instants.append(claim.now + self._poll)
        return Claim(claim.tasks, claim.now, min(instants, default=None))

    def _open_lanes(self, wants: Mapping[str, int], now: Instant) -> tuple[list[Lane], Sequence[Lane], Instant | None]:
        """Return the open lanes and roads of handlers, those behind a gate that drops, and when the first gate opens by itself."""
        ways, gates = self._lanes.ways, self._gates
        if not gates:
            return [lane for name in wants for lane in ways.get(name, ())], (), None
        lanes: list[Lane] = []
        dropping: list[Lane] = []
        opens_at: Instant | None = None
        for name in wants:
            for lane in self._lanes.single(name) if gates.divides(name) else ways.get(name, ()):
                gate = gates.holding(name, lane.collection or None, now)
                if gate is None:
                    lanes.append(lane)
                    continue
                if gate.action is GateAction.DROP:
                    dropping.append(lane)
                if gate.until_at is not None:
                    opens_at = gate.until_at if opens_at is None else min(opens_at, gate.until_at)
        return lanes, dropping, opens_at

    def _lanes_behind(self, gate: Gate, wants: Mapping[str, int], now: Instant) -> list[Lane]:
        """Return the lanes of the requested handlers that nothing holds but this gate, which one task may pass."""
        every = [lane for name in wants for lane in self._lanes.single(name)]
        return [lane for lane in every if self._gates.probes(gate, lane.handler, lane.collection or None, now)]

    async def _plan(
        self,
        run: Runner,
        lanes: Sequence[Lane],
        wants: Mapping[str, int],
        total: int,
        lead: int,
        below: Below,
        fair: Mapping[str, Mapping[str, float]],
    ) -> tuple[list[int], dict[int, int]]:
        """Return how many tasks to take from each lane, and the order of lanes in which to start them.

        One lane needs no plan, and that is by far the most frequent case. Several, and roads of fair handlers, are looked into first.
        """
        if len(lanes) <= 1 and not (fair and any(lane.is_road and lane.handler in fair for lane in lanes)):
            return [], {lane.id: min(most_of(lane.priority, below.get(lane.handler), wants[lane.handler]), total) for lane in lanes}
        limit = min(total, max(wants.values()))
        unseen = lanes if not fair else [lane for lane in lanes if lane.handler not in fair or not self._behind(lane.handler)]
        heads = await self._peek(run, unseen, limit, lead)

        def scan(lane: int, limit: int) -> Iterator[DueEntry]:
            return iter(heads[lane][:limit])

        among, divided = await self._divided(run, lanes, heads, wants, total, lead, fair) if fair else (lanes, ())
        facts = [LaneFacts(lane.id, lane.handler, lane.priority, lane.collection) for lane in among if lane.id in heads]
        order = [lane for lane, _ in choose(facts, wants, total, self._claim_order, scan, below, divided).entries]
        return order, dict(Counter(order))

    async def _peek(self, run: Runner, lanes: Sequence[Lane], limit: int, lead: int) -> Heads:
        if not lanes:
            return {}
        parameters = [self._clock.parameter, [lane.id for lane in lanes], [lane.floor for lane in lanes], limit + 1, lead]
        return {row[0]: [(position,) for position in row[1]] for row in await run.rows(self._sql.peek, parameters)}

    def _behind(self, handler: str) -> bool:
        return self._claim_order.fairness.shares(handler).behind

    async def _divided(
        self,
        run: Runner,
        lanes: Sequence[Lane],
        heads: Heads,
        wants: Mapping[str, int],
        total: int,
        lead: int,
        fair: Mapping[str, Mapping[str, float]],
    ) -> tuple[Sequence[Lane], Collection[str]]:
        """Return the lanes to claim from, and which handlers are fair among them.

        Of a fair handler of which more is due than it can have, these are lanes of the collections that come first, whose first entries
        are put into `heads`; of others all of theirs.
        """
        due: Counter[str] = Counter()
        for lane in lanes:
            due[lane.handler] += len(heads.get(lane.id, ()))
        chosen, divided = lanes, set()
        for handler in due.keys() & fair.keys():
            shares, need = self._claim_order.fairness.shares(handler), min(wants[handler], total)
            if not shares.behind and due[handler] <= wants[handler] and not (due[handler] and due.total() > total):
                continue
            mine = [lane for lane in lanes if lane.handler == handler]
            looking = FairLanes(run, self._sql, self._lanes, self._clock, self._gates, lead)
            found = await looking.first(handler, mine, shares, fair[handler], need)
            if found is None:
                if shares.behind:  # no more: all that is due is claimed as if nobody had to share
                    heads |= await self._peek(run, mine, need, lead)
            else:
                heads |= found
                by_id = self._lanes.by_id
                chosen = [lane for lane in chosen if lane.handler != handler] + [by_id[id] for id in found]
                divided.add(handler)
            shares.behind = found is not None
        return chosen, divided

    async def _take(
        self,
        worker: str,
        number: int,
        watched: Sequence[Lane],
        order: Sequence[int],
        quotas: Mapping[int, int],
        lead: int,
        version: int,
        usages: Mapping[str, Sequence[Usage]],
        inside: Link | None = None,
    ) -> tuple[_How, Claim]:
        by_id = self._lanes.by_id
        chosen = [by_id[lane] for lane in quotas]
        alone = len(chosen) == 1 and not order
        asked = sum(quotas.values())
        looks = bool(watched) and inside is None and self._lanes.due_for_look()  # a look is proved by its own transaction's number

        counts = bool(usages) and any(lane.handler in usages for lane in chosen)

        async def send(link: Link) -> tuple[int, int, list[Sequence[Any]], Admitted | None]:
            parameters = [
                *(self._clock.parameter, worker, number, [lane.id for lane in chosen]),
                *([lane.start if alone else lane.floor for lane in chosen], [lane.floor for lane in chosen]),
                *([quotas[lane.id] for lane in chosen], asked, [lane.id for lane in watched]),
                *([lane.floor for lane in watched] if looks else None, version, self._lanes.version, link.incarnation, lead),
            ]
            sent_at, era = monotonic(), self._lanes.era
            if not counts:
                return sent_at, era, await link.rows(self._sql.claim, parameters, CLAIM_WITHIN), None
            async with link.connection.transaction():
                [reply] = await link.rows(self._sql.claim, parameters, CLAIM_WITHIN)
                tasks = [] if reply[8] is None else await self._tasks_of(reply, order, quotas, link)
                return sent_at, era, [reply], await self.admit(link, worker, number, tasks, usages)

        sent_at, era, [reply], admitted = await (self._database.once(send) if inside is None else send(inside))
        how, now, next_at, last_pos, seen_at, oldest, next_number, firsts, ids = _How(reply[0]), *reply[1:9]
        self._clock.heard(now, sent_at)
        if how is _How.CLOSED:
            await self._lanes.restore(inside or self._database)  # behind a pooler this is how a fail-over is noticed
        if how is not _How.DONE:
            return how, Claim([], now, next_at if how is _How.CLOSED else None)
        current = era == self._lanes.era
        size = 0 if ids is None else len(ids)
        if alone:
            if current:
                self._lanes.taken(chosen[0], last_pos or 0, full=size >= asked)
            self._claim_order.count(chosen[0].handler, size)
        if looks and current:
            self._lanes.looked(seen_at, oldest, next_number, firsts, watched)
        if ids is None:
            return how, Claim([], now, next_at)
        tasks = await self._tasks_of(reply, order, quotas, inside)
        if refused := self.note(admitted):
            tasks, ids = [task for task in tasks if task.id not in refused], [id for id in ids if id not in refused]
            next_at = now
        if self._claim_order.fairness:
            self._claim_order.fairness.count((task.handler, task.collection) for task in tasks)
        if ids:
            self._open_claims.setdefault(worker, OpenClaims()).add(number, ids)
        if reply[_EXTRAS] is not None:
            self._flows |= {task.id: task.meta[FLOW] for task in tasks if task.meta is not None and FLOW in task.meta}
        return how, Claim(tasks, now, next_at)

    async def _tasks_of(
        self, reply: Sequence[Any], order: Sequence[int], quotas: Mapping[int, int], run: Runner | None
    ) -> list[ClaimedTask]:
        """Return the tasks of a claim's reply in the order in which to start them."""
        by_id = self._lanes.by_id
        if not by_id.keys() >= set(reply[9]):  # of a lane that was put on the road after the versions were compared
            await self._lanes.load(run)
            by_id = self._lanes.by_id
        tasks = _claimed(reply, by_id)
        if len(set(order)) == 1 or not order:
            return tasks
        return _in_order(tasks, [lane if lane in quotas else lane >> ROAD_BITS for lane in reply[9]], order)

    async def admit(
        self, run: Runner, worker: str, number: int, tasks: Sequence[ClaimedTask], usages: Mapping[str, Sequence[Usage]]
    ) -> Admitted | None:
        """Of tasks that this transaction has claimed, keep those back that a counted limit does not let start."""
        return await admit_claimed(run, self._sql, usages, worker, number, tasks, self._clock.parameter) if usages else None

    def note(self, admitted: Admitted | None) -> set[str]:
        """Remember what was decided, after the commit; return who may not start."""
        if admitted is None:
            return set()
        refused, done = admitted
        self.admitted |= {str(each.task): (each.attempt, tuple(need.limit for need in each.needs)) for each in done.admitted}
        self.freed |= done.freed
        self.replaced += map(str, done.stopped)
        return refused

    def left_by(self, settlements: Sequence[Settlement]) -> tuple[list[tuple[str, int]], set[str]] | None:
        """Return the attempts among these that counted limits have admitted, and the limits; and forget them. None: there are none."""
        found, limits = [], set[str]()
        for each in settlements:
            admitted = self.admitted.get(each.id)
            if admitted is not None and admitted[0] == each.attempt:
                del self.admitted[each.id]
                found.append((each.id, each.attempt))
                limits.update(admitted[1])
        return (found, limits) if found else None

    def rotation(self, handlers: Iterable[str]) -> list[str]:
        return self._claim_order.rotation(handlers)

    def flows_of(self, settlements: Sequence[Settlement]) -> set[str]:
        """Return the flows that settled tasks belong to, as their claims have told, and forget these."""
        if not self._flows:
            return set()
        found = (self._flows.pop(each.id, None) for each in settlements)
        return {flow for flow in found if flow is not None}

    def complete(self, worker: str, settlements: Sequence[Settlement], at_most: int) -> int:
        """Return how many of these, from the first, end whole claims."""
        return self._open_claims.get(worker, _NOTHING).portion(settlements, at_most)

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> Settled:
        """Record how attempts ended, if the worker runs exactly these attempts."""
        held = self._open_claims.get(worker, _NOTHING)
        slices = held.slices(settlements)
        if slices is not None:
            parameters = [self._clock.parameter, worker, *map(list, zip(*slices, strict=True)), *times(settlements)]
            try:
                [[earliest]] = await self._database.rows(self._sql.settle_slices, parameters)
            except Rejected:
                pass  # it is not, or no longer, as this process remembers it
            else:
                held.forget_slices(slices)
                return Settled([SettleVerdict.ACCEPTED] * len(settlements), True, earliest, False)
        return await self._settle_matched(worker, settlements, held)

    async def _settle_matched(self, worker: str, settlements: Sequence[Settlement], held: OpenClaims) -> Settled:
        said = {(settlement.id, settlement.attempt): settlement for settlement in settlements}
        once = settlements if len(said) == len(settlements) else list(said.values())
        claims = held.claims_of(once)
        held.forget(once)  # before anybody waits: they may be claimed again at once
        parameters = [self._clock.parameter, worker, claims, *columns(once)]
        refused = [settlement for settlement in once if settlement.outcome is Outcome.PARKED]
        suspended = [settlement for settlement in once if settlement.state is State.BLOCKED]
        if refused or suspended:
            waiting = await put_edges(self._database, self._sql, suspended) if suspended else {}
            accepted, finals, earliest = await self._settle_and_hold(parameters, once, waiting)
            woken_at = (await wake(self._database, self._sql, [each.id for each in suspended], self._clock.parameter))[1]
            earliest = min((at for at in (earliest, woken_at) if at is not None), default=None)
        else:
            [[accepted, finals, earliest]] = await self._database.rows(self._sql.settle, parameters)
        if accepted is None and once is settlements:
            return Settled([SettleVerdict.ACCEPTED] * len(settlements), finals > 0, earliest, bool(refused))
        taken = range(1, len(once) + 1) if accepted is None else set(accepted)
        accepted_by_attempt = {(s.id, s.attempt): index in taken for index, s in enumerate(once, 1)}
        before = await self._settled_before(worker, [s for s in once if not accepted_by_attempt[s.id, s.attempt]])
        verdicts = []
        for settlement in settlements:
            attempt = (settlement.id, settlement.attempt)
            if accepted_by_attempt.get(attempt):
                verdicts.append(SettleVerdict.ACCEPTED)
                accepted_by_attempt[attempt] = False
                before.add(attempt)  # said twice in one call
            else:
                verdicts.append(SettleVerdict.ALREADY if attempt in before else SettleVerdict.STALE)
        return Settled(verdicts, finals > 0, earliest, bool(refused))

    async def _settle_and_hold(
        self, parameters: Sequence[Any], settlements: Sequence[Settlement], waiting: Mapping[str, int]
    ) -> Sequence[Any]:
        """Record ends, some of which are parked or suspended: these leave where they went back to before anybody can see them there."""

        async def job(run: Runner) -> Sequence[Any]:
            [reply] = await run.rows(self._sql.settle, parameters)
            taken = range(1, len(settlements) + 1) if reply[0] is None else set(reply[0])
            ours = [s for index, s in enumerate(settlements, 1) if index in taken]
            parked = [s for s in ours if s.outcome is Outcome.PARKED]
            if parked:
                await run.rows(self._sql.park, [[s.id for s in parked], [s.refused_by for s in parked]])
            suspended = [s for s in ours if s.state is State.BLOCKED]
            if suspended:
                await hold(run, self._sql, suspended, waiting)
            return reply

        return await self._database.transaction(job)

    async def _settled_before(self, worker: str, settlements: Sequence[Settlement]) -> set[tuple[str, int]]:
        """Return which of these attempts this worker has ended already; what a reaper wrote does not count."""
        if not settlements:
            return set()
        outcomes = [settlement.outcome.value for settlement in settlements]
        parameters = [worker, [s.id for s in settlements], [s.attempt for s in settlements], outcomes]
        return {(row[0], row[1]) for row in await self._database.rows(self._sql.settled_before, parameters)}

    def forget_attempts(self, worker: str, ids: Sequence[str]) -> None:
        self._open_claims.get(worker, _NOTHING).forget_ids(ids)

    def forget(self, worker: str) -> None:
        """Forget a worker, and where its tasks belong: a duty looks into their flows."""
        self._flows.clear()
        self._open_claims.pop(worker, None)


def _claimed(reply: Sequence[Any], by_id: Mapping[int, Lane]) -> list[ClaimedTask]:
    """Make tasks of the columns of a claim's reply; most of them need no look at the single task."""
    ids, lanes, payloads, attempts, tries, crashes, dues, sinces, submitted, submitters, *special, epoch = reply[8:]
    of = [by_id[lane] for lane in lanes]
    handlers, collections, priorities = (
        [lane.handler for lane in of],
        [lane.collection or None for lane in of],
        [lane.priority for lane in of],
    )
    expiries, timeouts, retries, extras, keys, schedules, planned = (_NULLS if column is None else column for column in special)
    columns = (
        *(ids, _filled(handlers), payloads, *map(_filled, (attempts, tries, crashes)), sinces if dues is None else dues, sinces),
        *(_filled(submitted), _filled(submitters), expiries, timeouts, retries),
        *(_NULLS if extras is _NULLS else map(read_extras, extras), keys, _filled(collections), _filled(priorities), schedules, planned),
    )
    return list(map(ClaimedTask, *columns, repeat(epoch)) if epoch else map(ClaimedTask, *columns))


_NULLS = repeat(None)
_EXTRAS = 21  # the column of a claim's reply in which most tasks have nothing


def _filled(column: list[Any]) -> Iterable[Any]:
    return repeat(column[0]) if len(column) == 1 else column


def _in_order(tasks: Sequence[ClaimedTask], lanes: Sequence[int], order: Sequence[int]) -> list[ClaimedTask]:
    """Put tasks that came lane by lane into the order in which their lanes take turns."""
    if len(lanes) == 1:
        return list(tasks)
    by_lane: dict[int, list[ClaimedTask]] = {}
    for task, lane in zip(tasks, lanes, strict=True):
        by_lane.setdefault(lane, []).append(task)
    left = {lane: iter(each) for lane, each in by_lane.items()}
    placed = (next(left[lane], None) for lane in order if lane in left)
    return [task for task in placed if task is not None]


class WholeClaims:
    """Groups settlements so that claims end whole, if they do: fewer and larger steps."""

    def __init__(self, claims: Claims, worker: str) -> None:
        self._claims = claims
        self._worker = worker
        self._waited = False

    def wait(self, waiting: Sequence[Settlement], at_most: int) -> float:
        self._waited = not self._waited and not self._claims.complete(self._worker, waiting, at_most)
        return LINGER if self._waited else 0.0

    def size(self, waiting: Sequence[Settlement], at_most: int) -> int:
        self._waited = False
        return self._claims.complete(self._worker, waiting, at_most) or min(len(waiting), at_most)


class Settled(NamedTuple):
    """What a settle did: a verdict per settlement, whether anything ended for good, the earliest new position, whether any was parked."""

    verdicts: list[SettleVerdict]
    finished: bool
    earliest: Instant | None
    parked: bool


def times(settlements: Sequence[Settlement]) -> list[str]:
    return [arrays.numbers([s.started_at for s in settlements]), arrays.numbers([s.finished_at for s in settlements])]


def details(settlements: Sequence[Settlement]) -> str | None:
    found = [write_detail(s.detail) for s in settlements]
    return None if found.count(None) == len(found) else arrays.texts(found)


def failing(settlements: Sequence[Settlement]) -> list[str | None]:
    """Return what is counted of failures: their fingerprints, handlers and kinds; nothing if none failed."""
    fingerprints = [s.fingerprint for s in settlements]
    if fingerprints.count(None) == len(fingerprints):
        return [None, None, None]
    return [arrays.texts(fingerprints), arrays.texts([s.handler for s in settlements]), arrays.texts(list(map(write_kind, settlements)))]


_AS_PENDING = State.PENDING.value  # what is suspended goes on from there, in the same transaction


def columns(settlements: Sequence[Settlement]) -> list[Any]:
    """Return settlements as columns; the server fills in what all plain successes share."""
    parts: list[Any] = [
        arrays.plain([s.id for s in settlements]),
        arrays.numbers([s.attempt for s in settlements]),
        *times(settlements),
    ]
    if plain_successes(settlements):
        return [*parts, *[None] * 11]
    return [
        *parts,
        arrays.plain([_AS_PENDING if s.state is State.BLOCKED else s.state.value for s in settlements]),
        arrays.plain([s.outcome.value for s in settlements]),
        arrays.numbers([s.tries for s in settlements]),
        arrays.numbers([s.crashes for s in settlements]),
        arrays.numbers([s.due_at for s in settlements]),
        arrays.texts([None if s.result is None else s.result.decode() for s in settlements]),
        arrays.texts([write_error(s.error) for s in settlements]),
        details(settlements),
        *failing(settlements),
    ]


class Working(Counting):
    """Claims tasks and records how attempts ended."""

    _claims: Claims  # made by `open`, as all that is declared so

    async def claim(
        self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0, below: Below | None = None
    ) -> Claim:
        self._opened  # noqa: B018  raises if it is not open
        claimed = await self._claims.claim(worker, claim, wants, total, ahead, below=below)
        if self._claims.freed or self._claims.replaced:
            await self._after_admission()
        return claimed

    async def claim_probe(self, worker: str, claim: int, names: Collection[str], gate: Gate) -> Claim:
        self._opened  # noqa: B018
        return await self._claims.claim(worker, claim, dict.fromkeys(names, 1), 1, 0, through=gate)

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        self._opened  # noqa: B018
        if not settlements:
            return []
        settled = await self._claims.settle(worker, settlements)
        if settled.earliest is not None:
            self._hint(HintKind.DUE, settled.earliest)
        if settled.finished:
            self._hint(HintKind.DONE)
        if settled.parked:
            self._hint(HintKind.PARKED)
        if self._claims.admitted and (left := self._claims.left_by(settlements)):
            await self.leave_limits(*left)
        return settled.verdicts

    async def _after_admission(self) -> None:
        """Let others go on instead of those that a claim has parked, and stop what newer ones replace."""
        freed, self._claims.freed = self._claims.freed, set()
        replaced, self._claims.replaced = self._claims.replaced, []
        if freed:
            await self._let_go_on(freed)
        if replaced:
            await self.cancel(replaced)

    def grouping(self, worker: str) -> Grouping:
        return WholeClaims(self._claims, worker)

    async def progress(self, worker: str, marks: Sequence[Progress]) -> None:
        if marks:
            newest = {mark.id: mark for mark in marks}.values()
            columns = [[m.id for m in newest], [m.attempt for m in newest], [m.fraction for m in newest], [m.text for m in newest]]
            await self._opened.rows(self._sql.progress, [worker, *columns])
