"""Claiming and settling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from duetime.clock import Instant
from duetime.model.claim_order import Below, DueEntry, LaneFacts, choose, most_of
from duetime.model.gate import Gate
from duetime.model.lifecycle import as_cancelled
from duetime.model.outcome import LAST_ATTEMPTS_KEPT, MOST_ATTEMPTS_KEPT, Outcome, Settlement, SettleVerdict
from duetime.model.task import FINAL
from duetime.store.pull_workers import MOST_CLAIMED_BYTES
from duetime.store.redis.database import ROUNDS, refused
from duetime.store.redis.keys import LETTERS, collection_of, handler_of, priority_of
from duetime.store.redis.link import Word
from duetime.store.redis.output import Output
from duetime.store.redis.records import claimed_of, encode, end_of, read_content, read_end, read_facts
from duetime.store.redis.scripts import CLAIM, PEEK, SETTLE
from duetime.store.shard import AsTheyCome, Grouping
from duetime.store.values import Claim, ClaimedTask, HintKind, Progress, may_fit

CLAIMED_AT_ONCE = 1_000  # tasks of one script
SETTLED_AT_ONCE = 500
PARKED_AT_ONCE = 100
NOT_THEIR_WORD = (Outcome.LOST, Outcome.RELEASED)  # what a reaper or a farewell writes in a worker's name


Heads: TypeAlias = dict[str, list[DueEntry]]  # the first entries of lanes, of those that have any


def _heads(lanes: Sequence[str], words: Sequence[Sequence[bytes]]) -> Heads:
    return {lane: list(zip(map(float, each[1::2]), each[::2], strict=True)) for lane, each in zip(lanes, words, strict=False) if each}


def _limit(lane: str, wants: Mapping[str, int], total: int, below: Below | None) -> int:
    """Return how many tasks of the only lane may start."""
    handler = handler_of(lane)
    return min(most_of(priority_of(lane), (below or {}).get(handler), wants[handler]), total)


def _more_than_fits(lanes: Sequence[str], wants: Mapping[str, int], total: int) -> int:
    """Return how many entries of one lane tell for certain that not all of them may start."""
    return min(total, max(wants[handler_of(lane)] for lane in lanes)) + 1


def _whole(lanes: Sequence[str], wants: Mapping[str, int], total: int) -> list[int]:
    """Return what the script must know to see whether all that is due may start."""
    handlers = list(dict.fromkeys(map(handler_of, lanes)))
    return [*(handlers.index(handler_of(lane)) + 1 for lane in lanes), total, *(wants[handler] for handler in handlers)]


class Working(Output):
    """How a worker gets tasks and reports on them."""

    async def claim(
        self, worker: str, claim: int, wants: Mapping[str, int], total: int, *, ahead: int = 0, below: Below | None = None
    ) -> Claim:
        return await self._claim(worker, claim, wants, total, self._is_open, ahead=ahead, below=below)

    async def claim_for(self, worker: str, claim: int, wants: Mapping[str, int], total: int) -> Claim:
        return await self._claim(worker, claim, wants, total, self._is_open, once=True)

    async def claim_probe(self, worker: str, claim: int, names: Collection[str], gate: Gate) -> Claim:
        def passes(lane: str, now: Instant) -> bool:
            return self._gates.probes(gate, handler_of(lane), collection_of(lane), now)

        return await self._claim(worker, claim, dict.fromkeys(names, 1), 1, passes)

    def _is_open(self, lane: str, now: Instant) -> bool:
        return self._gates.holding(handler_of(lane), collection_of(lane), now) is None

    async def _claim(
        self,
        worker: str,
        claim: int,
        wants: Mapping[str, int],
        total: int,
        is_open: Callable[[str, Instant], bool],
        *,
        ahead: int = 0,
        below: Below | None = None,
        once: bool = False,
    ) -> Claim:
        """Take all that is due if it fits; otherwise choose among the heads of the lanes, and take as many of each as were chosen.

        The script refuses if the gates or lanes are not those that we know, so what is taken is what they allow.
        """
        if total > CLAIMED_AT_ONCE:
            return await self._claim_much(worker, claim, wants, total, is_open, ahead=ahead, below=below, once=once)
        server = self._opened
        heads: Heads | None = None
        for _ in range(ROUNDS):
            link = await server.link()
            now = self.now()
            # what is chosen is by these, whatever another claim of this process learns while the heads are read
            version, known = self._gates.version, len(self._lanes)
            wanted = [lane for lane in sorted(self._lanes) if wants.get(handler_of(lane), 0) > 0]
            lanes = [lane for lane in wanted if is_open(lane, now)]
            if below:
                lanes = [lane for lane in lanes if most_of(priority_of(lane), below.get(handler_of(lane)), 1) > 0]
            whole: list[int] = []
            order: list[str] = []
            if len(lanes) < 2 or total <= 0:
                quotas = {lane: _limit(lane, wants, max(0, total), below) for lane in lanes}
            elif heads is None and not below:
                quotas = dict.fromkeys(lanes, _more_than_fits(lanes, wants, total))
                whole = _whole(wanted, wants, total)
            else:
                heads = heads or await self._peek(lanes, _more_than_fits(lanes, wants, total), ahead)
                order, quotas = self._chosen(heads, wants, total, below)
            now, said, *rest = await server.run_at(
                link,
                CLAIM,
                [self._keys.running(worker), *(self._keys.lane(lane) for lane in wanted)],
                [
                    *(link.incarnation, version, known, worker, claim, ahead, int(once)),
                    *(MOST_CLAIMED_BYTES, *(quotas.get(lane, 0) for lane in wanted), *whole),
                ],
            )
            if said == b"heads":
                heads = _heads(wanted, rest[0])
                continue
            heads = None
            match said:
                case b"ok":
                    if rest.pop():
                        await self._release()
                    expired = rest.pop()
                    taken_from = _heads(wanted, rest.pop())
                    if expired and not rest[-1]:
                        continue  # what expired stood before others
                    if taken_from:
                        order, _ = self._chosen(taken_from, wants, total, None)
                    return self._claimed(now, rest, order, wanted, ahead)
                case b"gates":
                    await self._learn_gates()
                case b"lanes":
                    await self._learn_lanes()
                case b"incarnation":
                    await link.close()
                case b"closed":
                    return Claim([], now, int(rest[0]))
                case _:
                    return Claim([], now, None)
        return Claim([], now, now)

    async def _claim_much(
        self,
        worker: str,
        claim: int,
        wants: Mapping[str, int],
        total: int,
        is_open: Callable[[str, Instant], bool],
        *,
        ahead: int,
        below: Below | None,
        once: bool,
    ) -> Claim:
        """Claim in several scripts what one would hold the server too long for."""
        tasks: list[ClaimedTask] = []
        left = dict(wants)
        while True:
            some = await self._claim(
                worker, claim, left, min(total - len(tasks), CLAIMED_AT_ONCE), is_open, ahead=ahead, below=below, once=once and not tasks
            )
            tasks += some.tasks
            for task in some.tasks:
                left[task.handler] -= 1
            if len(some.tasks) < CLAIMED_AT_ONCE or below or len(tasks) == total:
                return Claim(tasks, some.now, some.next_at)

    async def _peek(self, lanes: Sequence[str], few: int, ahead: int) -> Heads:
        reply: list[Any] = await self._run(PEEK, [self._keys.lane(lane) for lane in lanes], [ahead, few])
        return _heads(lanes, reply[1:])

    def _chosen(self, heads: Heads, wants: Mapping[str, int], total: int, below: Below | None) -> tuple[list[str], dict[str, int]]:
        """Return the lanes of the tasks to start, in that order, and how many that are of each lane."""
        lanes = list(heads)

        def scan(lane: int, limit: int) -> Iterator[DueEntry]:
            yield from heads[lanes[lane]][:limit]

        facts = [LaneFacts(number, handler_of(lane), priority_of(lane)) for number, lane in enumerate(lanes)]
        chosen = choose(facts, wants, total, self._claim_order, scan, below)
        order = [lanes[number] for number, _ in chosen.entries]
        return order, dict(Counter(order))

    def _claimed(self, now: Instant, rest: Sequence[Any], order: Sequence[str], wanted: Sequence[str], ahead: int) -> Claim:
        epoch, later, more, taken = rest
        by_lane: dict[str, list[ClaimedTask]] = {}
        tasks: list[ClaimedTask] = []
        for at in range(0, len(taken), 4):
            lane, id, facts, record = taken[at : at + 4]
            claimed = claimed_of(id.decode(), read_facts(facts), read_content(record), epoch)
            by_lane.setdefault(wanted[lane], []).append(claimed)
            tasks.append(claimed)
        if order:
            queues = {lane: iter(each) for lane, each in by_lane.items()}
            tasks = [task for lane in order if (task := next(queues.get(lane, iter(())), None)) is not None]
        else:
            for lane, each in by_lane.items():
                self._claim_order.count(handler_of(lane), len(each))
        instants = [later - ahead] if later >= 0 else []
        if more:
            instants.append(now)
        for lane in wanted:
            gate = self._gates.holding(handler_of(lane), collection_of(lane), now)
            if gate is not None and gate.until_at is not None:
                instants.append(gate.until_at)
        return Claim(tasks, now, min(instants, default=None))

    async def claim_parked(self, worker: str, claim: int, declared: Mapping[str, str], wants: Mapping[str, int]) -> Claim:
        now: Instant = self.now()
        for _ in range(ROUNDS):
            ids: list[bytes] = await self._opened.call("ZRANGEBYSCORE", self._keys.parked, "-inf", self.now())
            if not ids:
                return Claim([], now, None)
            await self._learn_gates()
            now, found = await self._read_tasks([id.decode() for id in ids])
            left = dict(wants)
            changes = self._changes()
            row, draining = await self._opened.call("HMGET", self._keys.workers, f"row:{worker}", f"draining:{worker}")
            version, epoch = await self._opened.call("HMGET", self._keys.meta, "gates", "epoch")
            if row is None or draining is not None:
                return Claim([], now, None)
            changes.expect(self._keys.workers, f"row:{worker}", row)
            changes.expect(self._keys.workers, f"draining:{worker}", None)
            changes.expect(self._keys.meta, "gates", version)
            chosen: list[ClaimedTask] = []
            for stored in sorted(found.values(), key=lambda each: (-each.facts.priority, each.facts.n)):
                facts = stored.facts
                if len(chosen) == PARKED_AT_ONCE or left.get(facts.handler, 0) <= 0 or facts.s != "p" or not facts.p or facts.d > now:
                    continue
                if (facts.e is not None and facts.e <= now) or not may_fit(declared.get(facts.handler), facts.r or ""):
                    continue
                if self._gates.holding(facts.handler, facts.collection, now) is not None:
                    continue
                left[facts.handler] -= 1
                changes.seen(stored)
                changes.leave(stored)
                facts.s, facts.p, facts.a, facts.w, facts.c, facts.g = "r", 0, facts.a + 1, worker, claim, now
                changes.put(stored.id, facts)
                changes.do("SADD", self._keys.running(worker), stored.id)
                chosen.append(claimed_of(stored.id, facts, stored.content, int(epoch or 0)))
            if not chosen or await self._write(changes):
                return Claim(chosen, now, None)
        return Claim([], now, None)

    # ---- ends ----

    async def settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        if any(settlement.suspension is not None for settlement in settlements):
            raise refused("steps")
        verdicts: list[SettleVerdict] = []
        for start in range(0, len(settlements), SETTLED_AT_ONCE):
            verdicts += await self._settle(worker, settlements[start : start + SETTLED_AT_ONCE])
        return verdicts

    async def _settle(self, worker: str, settlements: Sequence[Settlement]) -> list[SettleVerdict]:
        again = [settlement.id for settlement in settlements if settlement.state not in FINAL]
        found = (await self._read_tasks(again))[1] if again else {}  # a task that runs stays in its lane
        keys = [self._keys.running(worker)]
        words: list[Word] = [worker]
        for settlement in settlements:
            lane = attempts = 0
            letter, cancelled = LETTERS.get(settlement.state, "p"), b""
            if settlement.state not in FINAL:
                cancelled = end_of(as_cancelled(settlement), worker)
                letter = "P" if settlement.outcome is Outcome.PARKED else "p"
                stored = found.get(settlement.id)
                if stored is not None:
                    keys += [self._keys.lane(stored.facts.l), self._keys.attempts(settlement.id)]
                    lane, attempts = len(keys) - 1, len(keys)
            words += [
                *(settlement.id, settlement.attempt, letter, settlement.due_at or 0, settlement.tries, settlement.crashes),
                *(end_of(settlement, worker), cancelled, settlement.finished_at, lane, attempts, settlement.refused_by or ""),
            ]
        reply: list[Any] = await self._run(SETTLE, keys, words)
        if reply[1]:
            await self._release()
        letters = [letter.decode() for letter in reply[2:]]
        for settlement, letter in zip(settlements, letters, strict=True):
            if letter in ("p", "P") and settlement.attempt > MOST_ATTEMPTS_KEPT:
                await self._leave_out(settlement.id, settlement.attempt - LAST_ATTEMPTS_KEPT)
        refused_ones = [settlement for settlement, letter in zip(settlements, letters, strict=True) if not letter]
        before = await self._settled_before(worker, refused_ones) if refused_ones else {}
        self._tell(settlements, letters, reply[0])
        return [
            SettleVerdict.ACCEPTED if letter else before[settlement.id, settlement.attempt, settlement.outcome]
            for settlement, letter in zip(settlements, letters, strict=True)
        ]

    def _tell(self, settlements: Sequence[Settlement], letters: Sequence[str], now: Instant) -> None:
        again = [settlement.due_at or now for settlement, letter in zip(settlements, letters, strict=True) if letter == "p"]
        if again:
            self._hint(HintKind.DUE, max(now, min(again)))
        if any(letter in "SFC" for letter in letters if letter):
            self._hint(HintKind.DONE)
        if "P" in letters:
            self._hint(HintKind.PARKED)

    async def _settled_before(self, worker: str, settlements: Sequence[Settlement]) -> dict[tuple[str, int, Outcome], SettleVerdict]:
        """Tell repeats from what is stale: whether this worker has said before how this attempt ended."""
        commands: list[tuple[str | int, ...]] = []
        for settlement in settlements:
            commands.append(("HGET", self._keys.ends, settlement.id))
            commands.append(("HGET", self._keys.attempts(settlement.id), settlement.attempt))
        replies = await self._opened.call_all(commands)
        verdicts = {}
        for index, settlement in enumerate(settlements):
            ends = [read_end(raw) for raw in replies[2 * index : 2 * index + 2] if raw is not None]
            known = any(
                end.attempt == settlement.attempt
                and end.worker == worker
                and (end.outcome == settlement.outcome.value or Outcome(end.outcome) not in NOT_THEIR_WORD)
                for end in ends
            )
            verdicts[settlement.id, settlement.attempt, settlement.outcome] = SettleVerdict.ALREADY if known else SettleVerdict.STALE
        return verdicts

    def grouping(self, worker: str) -> Grouping:
        return AsTheyCome()

    async def progress(self, worker: str, marks: Sequence[Progress]) -> None:
        if not marks:
            return
        found = (await self._read_tasks([mark.id for mark in marks]))[1]
        commands = []
        for mark in marks:
            stored = found.get(mark.id)
            if stored is not None and stored.facts.s == "r" and (stored.facts.w, stored.facts.a) == (worker, mark.attempt):
                commands.append(("HSET", self._keys.progress, mark.id, encode((mark.attempt, mark.fraction, mark.text))))
        if commands:
            await self._opened.call_all(commands)
