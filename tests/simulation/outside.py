"""Who works outside of our processes: a pull worker, and a server that accepts work and reports its end later.

Both talk to an HTTP server of ours, which is the client's process, over a network that loses requests and answers. What they ask is
answered by the real `PullService`.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from duetime import RetryPolicy
from duetime.clock import SECOND
from duetime.errors import DuetimeError, TaskNotFound
from duetime.model.outcome import Ended, Outcome, SettleVerdict
from duetime.model.task import ErrorInfo
from duetime.store.pull_workers import PullWorker
from duetime.targets.host import TargetHost
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import Accepted, AttemptHandle, Stop
from duetime.testing.simulation.faults import CLIENT
from duetime.testing.simulation.process import Process, current
from duetime.worker.pull.accepted import Claimant
from duetime.worker.pull.service import PullService
from duetime.worker.pull.values import LeaseOver, Offer, PulledAttempt
from tests.simulation.journal import Work, journal
from tests.simulation.programs import TRIES

T = TypeVar("T")

PULLER = 9  # the number of the process that is the pull worker
SLOTS = 2
TIMEOUT = 10.0  # seconds for an attempt of the pull worker: several answers to its claim may be lost before it begins
RETRY = RetryPolicy(tries=TRIES, base=0.5, cap=2)
LOST = 0.04  # of requests, and of answers
ANSWER_WITHIN = 1.0


class Unanswered(Exception):
    """No answer came, or the server could not reach the store: nobody knows what was done."""


class Requests:
    """The network between those outside and our server."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._chance = random.Random(f"{world.plan.seed} requests")
        self._services: dict[Process, PullService] = {}

    async def ask(self, call: Callable[[PullService], Awaitable[T]], wait: float = 0.0) -> T:
        """Send a request and return its answer."""
        cluster, here = self._world.cluster, current()
        future: asyncio.Future[T] = cluster.loop.create_future()
        server = cluster.present.get(CLIENT)
        if server is not None and not server.dead and not self._loses():
            begin = self._served(server, call, future, here)
            cluster.outside.run(cluster.loop.call_later, self._chance.uniform(0.0, 0.01), server.begin, begin)
        try:
            return await asyncio.wait_for(future, wait + ANSWER_WITHIN)
        except TimeoutError:
            raise Unanswered from None

    async def _served(
        self, server: Process, call: Callable[[PullService], Awaitable[T]], future: asyncio.Future[T], asker: Process | None
    ) -> None:
        """Answer a request in the server's process."""
        service = self._services.setdefault(server, PullService(lambda: server.store))
        value: Any = None
        error: Exception | None = None
        try:
            value = await call(service)
        except (LeaseOver, TaskNotFound) as refused:
            error = refused
        except DuetimeError:
            error = Unanswered()
        if not self._loses():
            context = self._world.cluster.outside if asker is None else asker.context
            self._world.cluster.loop.call_later(self._chance.uniform(0.0, 0.01), _answer, future, value, error, context=context)

    def _loses(self) -> bool:
        return not self._world.healed and self._chance.random() < LOST


def _answer(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if not future.done():
        future.set_result(value) if error is None else future.set_exception(error)


def anything(handler: str) -> bool:
    return True


# ---- a pull worker ----


class Puller:
    """One process of a pull worker, as the pages of pull workers say that it should be written."""

    def __init__(self, world: Any, requests: Requests) -> None:
        self._world = world
        self._ask = requests.ask
        self._jobs: dict[str, asyncio.Task[None]] = {}  # until their ends are reported
        self._cancelled: set[str] = set()  # tasks that are to be stopped
        self._answered = 0  # the newest claim whose answer has come
        self._proved_at = 0.0

    async def main(self) -> None:
        lease: float = self._world.plan.settings.lease
        offers = {"pulled": Offer(slots=SLOTS, timeout=TIMEOUT, retry=RETRY)}
        while True:
            self._proved_at = asyncio.get_running_loop().time()
            try:
                worker = await self._ask(lambda service: service.register("puller", offers, lease))
            except Unanswered:
                await asyncio.sleep(0.3)
                continue
            loops = [asyncio.create_task(loop) for loop in (self._claim(worker), self._renew(worker))]
            await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)  # one ends when the lease is over
            await self._stop([*loops, *self._jobs.values()])
            self._jobs.clear()

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _claim(self, worker: PullWorker) -> None:
        number = 0
        while True:
            number += 1
            while True:
                try:
                    claimed = await self._ask(self._claiming(worker, number), wait=1.0)
                    break
                except Unanswered:
                    await asyncio.sleep(0.2)  # and ask again with the same number
                except LeaseOver:
                    return
            self._answered = number
            for each in claimed:
                older = self._jobs.get(each.task.id)
                if older is not None:
                    await self._stop([older])
                self._jobs[each.task.id] = asyncio.create_task(self._work(worker, each))
            await asyncio.sleep(0.05)

    def _claiming(self, worker: PullWorker, number: int) -> Callable[[PullService], Awaitable[list[PulledAttempt]]]:
        return lambda service: service.claim(worker, SLOTS, number=number, wait=1.0)

    async def _renew(self, worker: PullWorker) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() - self._proved_at < 0.7 * worker.lease:
            await asyncio.sleep(worker.lease / 6)
            sent_at, answered, running = loop.time(), self._answered, list(self._jobs)
            try:
                renewed = await self._ask(lambda service: service.renew(worker, running=running, answered=answered))  # noqa: B023
            except Unanswered:
                continue
            except LeaseOver:
                return
            self._proved_at = sent_at
            self._cancelled.update(renewed.cancelled)
            for task in (*renewed.cancelled, *renewed.lost):
                if task in self._jobs:
                    self._jobs[task].cancel()

    async def _work(self, worker: PullWorker, pulled: PulledAttempt) -> None:
        task, process = pulled.task, current()
        assert process is not None
        how = msgspec.json.decode(task.payload, type=dict[str, Any])
        work = Work(task.id, task.handler, task.key, task.collection, task.due_at / SECOND, task.fence)
        journal.start(work, process)
        try:
            await asyncio.sleep(60.0 if how["how"] == "hangs" else how["seconds"])
        except asyncio.CancelledError:
            journal.end(work, process, "CancelledError")
            self._jobs.pop(task.id, None)
            if task.id in self._cancelled:
                with contextlib.suppress(Unanswered, LeaseOver, TaskNotFound):
                    await self._report(worker, pulled, Ended(Outcome.CANCELLED))
            raise
        if how["how"] == "fails" and task.tries < 2:
            journal.end(work, process, "RuntimeError")
            ended = Ended(Outcome.FAILED, error=ErrorInfo("RuntimeError", "it fails"))
        else:
            journal.end(work, process, "returned")
            ended = Ended(Outcome.SUCCEEDED, result=b"1")
        try:
            while True:
                with contextlib.suppress(Unanswered):
                    verdict = await self._report(worker, pulled, ended)
                    if verdict is not SettleVerdict.STALE and ended.outcome is Outcome.SUCCEEDED:
                        self._world.facts.reported.add((task.id, task.fence))
                    break
                await asyncio.sleep(0.2)
        finally:
            self._jobs.pop(task.id, None)

    async def _report(self, worker: PullWorker, pulled: PulledAttempt, ended: Ended) -> SettleVerdict:
        task = pulled.task
        return (await self._ask(lambda service: service.complete(worker.id, task.id, task.attempt, ended, anything))).verdict


# ---- a server that accepts work ----


class AcceptingServer:
    """Accepts each request with 202, works on it, says now and then that it does, and reports the end.

    A later request of a task, or of its key, ends the work of an earlier one, and one with a lower fence comes too late: it goes by the
    fence.
    """

    kind = "http"
    direct_call = None

    def __init__(self, world: Any, requests: Requests) -> None:
        self._world = world
        self._ask = requests.ask
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._process: Process = world.cluster.outside.run(Process, world.cluster, CLIENT, 0)
        self._process.name = "outside"
        self._fences: dict[str, int] = {}

    def open(self, handler: HandlerSpec, host: TargetHost) -> "AcceptingServer":
        return self

    async def perform(self, attempt: AttemptHandle) -> Accepted | Ended:
        claimed = attempt.claimed
        if claimed.fence < self._fences.get(claimed.id, 0):
            return Ended(Outcome.FAILED, error=ErrorInfo("TooLate", "a request with a higher fence has come"))
        self._fences[claimed.id] = claimed.fence
        how = msgspec.json.decode(claimed.payload, type=dict[str, Any])
        work = Work(claimed.id, claimed.handler, claimed.key, claimed.collection, claimed.due_at / SECOND, claimed.fence)
        for older in [journal.running[name][2] for name in work.names if name in journal.running]:
            if older.task in self._jobs:
                self._jobs.pop(older.task).cancel()
                journal.end(older, self._process, "superseded")
        journal.start(work, self._process)
        self._jobs[claimed.id] = self._process.begin(self._work(work, how))
        await asyncio.sleep(0.02)  # the answer is on its way
        return Accepted(deadline_at=attempt.started_at + 6 * SECOND, silence=how["silence"])

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        attempt.cancel()
        return 0.0

    async def _work(self, work: Work, how: dict[str, Any]) -> None:
        claimant = Claimant(work.task, fence=work.fence)
        if how["how"] == "silent":  # it has forgotten the work; the journal says when somebody else may have it
            await asyncio.sleep(how["seconds"])
            journal.end(work, self._process, "forgotten")
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + how["seconds"]
        ended = Ended(Outcome.SUCCEEDED, result=b"1")
        while (left := until - loop.time()) > 0:
            await asyncio.sleep(min(left, 0.4))
            with contextlib.suppress(Unanswered):
                answer = await self._ask(lambda service: service.hear(claimant, None, "", None, anything))
                if answer.verdict is SettleVerdict.STALE:
                    journal.end(work, self._process, "stale")
                    return
                if answer.cancelling:
                    ended = Ended(Outcome.CANCELLED)
                    break
        journal.end(work, self._process, "returned" if ended.outcome is Outcome.SUCCEEDED else "cancelled")
        while True:
            with contextlib.suppress(Unanswered):
                done = await self._ask(lambda service: service.complete_accepted(claimant, ended, anything))
                if done.verdict is not SettleVerdict.STALE and ended.outcome is Outcome.SUCCEEDED:
                    self._world.facts.reported.add((work.task, work.fence))
                return
            await asyncio.sleep(0.2)
