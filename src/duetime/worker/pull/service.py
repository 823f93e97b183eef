"""Guests: workers in other languages, which ask a server for tasks and tell it how they ended.

A guest has a lease, as every worker has, and whichever server gets its request renews it. Nothing that a guest needs is kept in a
server: any number of them may stand behind a load balancer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from duetime.clock import SECOND, Instant
from duetime.errors import StoreUnavailable, TaskNotFound
from duetime.ids import is_id, new_id
from duetime.model.figures import STALE_WRITES, FigureKey
from duetime.model.gate import Gates
from duetime.model.lifecycle import conclude
from duetime.model.outcome import Ended, Outcome, Settlement, SettleVerdict
from duetime.model.retry import RetryPolicy
from duetime.model.task import FINAL, TaskRecord
from duetime.store import Store
from duetime.store.pull_workers import PullWorker, RunningTask
from duetime.store.values import Declaration, Progress
from duetime.worker.metrics import Tally
from duetime.worker.pull.claim_wait import ClaimWait
from duetime.worker.pull.facts import (
    Completed,
    Held,
    Offer,
    Renewed,
    Told,
    as_holdings,
    cancelling,
    declaration,
    over,
    own_number,
    room,
    timed_out,
)

Allow = Callable[[str], None]

logger = logging.getLogger("duetime.guests")

RENEW_SHARE = 3  # renewals that fit into a lease: one may be late and one be lost
WAIT_SHARE = 0.5  # of the lease: how long a claim may wait, since it renews the lease only when it begins and ends
CLAIMS_AT_ONCE = 8  # of all guests of a server, which one hint may wake together
KNOWN_FOR = 5.0  # seconds for which what handlers declare is not asked again

RELEASED = Ended(Outcome.RELEASED)

# What a guest itself can have said of an attempt; the other outcomes are a server's or a reaper's word.
OWN_WORD = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.FATAL, Outcome.RETRY_LATER, Outcome.CANCELLED})


class Guests:
    """Speaks for guests. `store` is asked each time, because an App may be opened on another one."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._declared: dict[str, Declaration] = {}
        self._asked_at = -KNOWN_FOR
        self._claiming = asyncio.Semaphore(CLAIMS_AT_ONCE)
        self._waiting: set[asyncio.Event] = set()
        self._closed = False
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._stale = 0

    def totals(self) -> dict[FigureKey, int]:
        """Give what was counted of the attempts of guests that ended by way of this server."""
        totals = {key: count for handler, tally in self._tallies.items() for key, count in tally.totals(handler)}
        return totals | {FigureKey(STALE_WRITES): self._stale}

    def close(self) -> None:
        """Let nobody wait any longer: the server stops."""
        self._closed = True
        for woken in self._waiting:
            woken.set()

    # ---- coming and going ----

    async def admit(self, name: str, offers: Mapping[str, Offer], lease: float) -> PullWorker:
        """Register a guest, and declare the handlers of which it says something or nobody else has."""
        store = self._store()
        await self._ask()
        changed = [each for each in (declaration(name, offer, self._declared.get(name)) for name, offer in offers.items()) if each]
        if changed:
            await store.declare(changed)
            self._asked_at = -KNOWN_FOR
        guest = PullWorker(id=new_id(), name=name, slots={handler: offer.slots for handler, offer in offers.items()}, lease=lease)
        await store.register_pull_worker(guest)
        return guest

    async def get(self, id: str) -> PullWorker:
        """Give a guest; LeaseOver if there is none."""
        guest = await self._store().pull_worker(id) if is_id(id) else None
        if guest is None:
            raise over(id)
        return guest

    async def dismiss(self, guest: PullWorker) -> None:
        """Forget a guest that leaves; what it holds goes back, and no try is used up."""
        await self._store().unregister(guest.id)

    def lease_until(self, guest: PullWorker) -> Instant:
        return self._store().now() + round(guest.lease * SECOND)

    async def renew(self, guest: PullWorker, *, running: Collection[str] | None = None, answered: int | None = None) -> Renewed:
        """Renew a guest's lease, end what has run for too long, and compare what it runs with what the store counts as its own.

        `running` names the tasks of which the guest has not been told that their end is stored. With it, what the store has taken from
        it is told as lost. With the number of its newest claim whose answer arrived, attempts that never reached it go back.
        """
        await self._beat(guest)
        kept, late = await self._in_time(guest)
        if running is None:
            return Renewed(self.lease_until(guest), cancelling(kept), late)
        if answered is not None:
            strays = [held for held in kept if held.holding.claim <= answered and held.holding.id not in running]
            await self._end(guest.id, [(held, RELEASED) for held in strays])
            kept = [held for held in kept if held not in strays]
        own = {held.holding.id for held in kept}
        return Renewed(self.lease_until(guest), cancelling(kept), [task for task in running if task not in own])

    async def _beat(self, guest: PullWorker) -> None:
        if not await self._store().renew_pull_worker(guest.id):
            raise over(guest.id)

    # ---- claiming ----

    async def claim(
        self, guest: PullWorker, limit: int, *, number: int | None = None, wait: float = 0.0, gone: asyncio.Future[None] | None = None
    ) -> list[Held]:
        """Hand tasks to a guest, at most `limit` and as its slots allow; wait for some, but not when it has gone or the server stops.

        Whoever repeats a claim with the same number, here or at another server, gets the same tasks, without those that have ended.
        Without a number nobody can ask again: what was claimed for a guest that has gone meanwhile goes back.
        """
        await self._beat(guest)
        loop = asyncio.get_running_loop()
        end = loop.time() + min(wait, guest.lease * WAIT_SHARE)
        with ClaimWait(self._store(), gone) as waiting:
            self._waiting.add(waiting.woken)
            try:
                while True:
                    claimed = await self._look(guest, limit, number, waiting)
                    if claimed or not await self._until_due(waiting, end):
                        break
            finally:
                self._waiting.discard(waiting.woken)
        if claimed and waiting.gone and number is None:
            await self._end(guest.id, [(held, RELEASED) for held in claimed])
            return []
        if wait:
            with contextlib.suppress(StoreUnavailable):  # what was claimed must arrive; half of the lease is left
                await self._beat(guest)
        return claimed

    async def _until_due(self, waiting: ClaimWait, end: float) -> bool:
        """Wait until there may be work; False if the time is over, the guest has gone or the server stops."""
        loop = asyncio.get_running_loop()
        while (left := end - loop.time()) > 0 and not self._closed and not waiting.gone:
            waiting.woken.clear()
            pause = waiting.pause(loop.time())
            if pause <= 0:
                return True
            await waiting.wait(min(left, pause))
        return False

    async def _look(self, guest: PullWorker, limit: int, number: int | None, waiting: ClaimWait) -> list[Held]:
        """Look once for tasks of a guest; give what it holds under the number already, if that is anything."""
        seconds = asyncio.get_running_loop().time()
        reasons = waiting.lookout.begin(self._store().now(), seconds)
        await self._know(guest.slots)  # before the claim: nothing that can fail may follow it
        kept, _ = await self._in_time(guest)
        again = [held for held in kept if held.holding.claim == number]
        if again:
            return again
        wants = room(guest, kept)
        waiting.full = not wants
        async with self._claiming:
            if not wants or waiting.gone or self._closed:  # nothing is claimed for somebody who is gone
                waiting.lookout.found(seconds)
                return []
            claim = await self._store().claim_for(guest.id, own_number() if number is None else number, wants, limit)
        if not claim.tasks:
            waiting.lookout.found_nothing(reasons, seconds, now=claim.now, next_at=claim.next_at)
            if claim.next_at is not None:
                waiting.lookout.know(claim.next_at, self._store().now())
        return await self._ungated(guest, [self._held(holding) for holding in as_holdings(claim, number)])

    async def _ungated(self, guest: PullWorker, claimed: list[Held]) -> list[Held]:
        """Give back what a gate holds that came into force while it was claimed: a guest has no second look of its own."""
        store = self._store()
        gates = await store.gates() if claimed else Gates()
        if not gates:
            return claimed
        now = store.now()
        shut = [held for held in claimed if gates.holding(held.holding.handler, held.holding.collection, now) is not None]
        await self._end(guest.id, [(held, RELEASED) for held in shut])
        return [held for held in claimed if held not in shut]

    # ---- what guests say of their attempts ----

    async def complete(self, worker: str, task: str, attempt: int, ended: Ended, allow: Allow) -> Completed:
        """Record how an attempt ended. Only whoever holds exactly this attempt changes anything; all others are told how it is.

        `allow` is asked whether the caller may do this for the task's handler, and raises if not.
        """
        held = await self._hold(worker, task, attempt, allow)
        if held is not None:
            if held.holding.cancelling and ended.outcome is Outcome.RELEASED:
                ended = Ended(Outcome.CANCELLED)
            [(settlement, verdict)] = await self._end(worker, [(held, ended)])
            # going back may have been turned into a cancel, which the store alone knows; a final state is what was said
            if verdict is SettleVerdict.ACCEPTED and settlement.state in FINAL:
                return Completed(verdict, settlement.state)
            if verdict is SettleVerdict.ACCEPTED:
                return Completed(verdict, (await self._record(task)).state)
        record, verdict = await self._record(task), await self._said_before(worker, task, attempt, ended.outcome)
        if verdict is SettleVerdict.STALE:
            self._stale += 1
            logger.warning("guest %s: attempt %d of task %s is no longer its own; nothing was changed", worker[:80], attempt, task)
        return Completed(verdict, record.state)

    async def _said_before(self, worker: str, task: str, attempt: int, outcome: Outcome) -> SettleVerdict:
        """Tell a repeat from a word that comes too late: an attempt that ran out of time was ended in the guest's name, not by it."""
        own = OWN_WORD | ({Outcome.RELEASED} if outcome is Outcome.RELEASED else set())
        for record in await self._store().attempts(task):
            if record.attempt == attempt and record.worker == worker and record.outcome in own:
                return SettleVerdict.ALREADY
        return SettleVerdict.STALE

    async def progress(self, worker: str, task: str, attempt: int, fraction: float, text: str, allow: Allow) -> Told:
        """Note how far an attempt is."""
        told = await self.holds(worker, task, attempt, allow)
        if told.verdict is SettleVerdict.ACCEPTED:
            await self._store().progress(worker, [Progress(task, attempt, fraction, text)])
        return told

    async def holds(self, worker: str, task: str, attempt: int, allow: Allow) -> Told:
        """Tell whether a guest holds exactly this attempt, and whether it shall stop it."""
        held = await self._hold(worker, task, attempt, allow)
        return Told(SettleVerdict.STALE, False) if held is None else Told(SettleVerdict.ACCEPTED, held.holding.cancelling)

    async def _hold(self, worker: str, task: str, attempt: int, allow: Allow) -> Held | None:
        """Give an attempt, if it is the guest's own; TaskNotFound if there is no such task."""
        # not if the guest is gone, nor for a worker of our own, which nobody else may speak for
        known = is_id(worker) and await self._store().pull_worker(worker) is not None
        for holding in await self._store().running_tasks(worker, [task]) if known else ():
            if holding.attempt == attempt:
                allow(holding.handler)
                await self._know([holding.handler])
                return self._held(holding)
        allow((await self._record(task)).handler)
        return None

    async def _record(self, task: str) -> TaskRecord:
        [record] = await self._store().get([task])
        if record is None:
            raise TaskNotFound(f"there is no task {task[:80]!r}; it was never submitted, or has been pruned")
        return record

    # ---- ending attempts ----

    async def _in_time(self, guest: PullWorker) -> tuple[list[Held], list[str]]:
        """Give what a guest holds, and the tasks whose attempts had run out of time and have been ended."""
        holdings = await self._store().running_tasks(guest.id)
        await self._know([holding.handler for holding in holdings])
        held = [self._held(holding) for holding in holdings]
        now = self._store().now()
        late = [each for each in held if each.deadline_at <= now]
        await self._end(guest.id, [(each, timed_out(each)) for each in late])
        return [each for each in held if each.deadline_at > now], [each.holding.id for each in late]

    async def _end(self, guest: str, ends: Sequence[tuple[Held, Ended]]) -> list[tuple[Settlement, SettleVerdict]]:
        """End attempts of a guest; the store checks that they are its own."""
        if not ends:
            return []
        store, now = self._store(), self._store().now()
        held = [each for each, _ in ends]
        settlements = [
            conclude(each, ended, self._policy(each), started_at=each.claimed_at, now=now, chance=random.random())
            for (each, _), ended in ends
        ]
        verdicts = await store.settle(guest, settlements)
        for (holding, _), settlement, verdict in zip(held, settlements, verdicts, strict=True):
            if verdict is SettleVerdict.ACCEPTED:
                self._tallies[holding.handler].note(settlement, holding.due_at)
        schedules = {each.schedule for each, _ in held if each.schedule is not None}
        if schedules:
            await store.wake_schedules(sorted(schedules))
        return list(zip(settlements, verdicts, strict=True))

    # ---- what handlers declare ----

    def _held(self, holding: RunningTask) -> Held:
        declared = self._declared.get(holding.handler)
        timeout = holding.timeout or (Declaration(name="").timeout if declared is None else declared.timeout)
        return Held(holding, holding.claimed_at + round(timeout * SECOND))

    def _policy(self, holding: RunningTask) -> RetryPolicy:
        declared = self._declared.get(holding.handler)
        numbers = holding.retry or (b"{}" if declared is None else declared.retry)
        return RetryPolicy().with_numbers(numbers)

    async def _know(self, handlers: Collection[str]) -> None:
        """See to it that what these handlers declare is known, and not for too long."""
        old = asyncio.get_running_loop().time() - self._asked_at >= KNOWN_FOR
        if handlers and (old or not self._declared.keys() >= set(handlers)):
            await self._ask()

    async def _ask(self) -> None:
        self._declared = {each.name: each for each in await self._store().declarations()}
        self._asked_at = asyncio.get_running_loop().time()
