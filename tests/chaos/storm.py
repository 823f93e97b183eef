"""A storm: many faults of all kinds, one after the other and some at once, while clients submit and workers work."""

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from duetime.errors import StoreUnavailable
from tests.chaos.fleet import Fleet, until
from tests.chaos.ground import HOUR, Ground
from tests.chaos.history import History, rules
from tests.chaos.load import Load, persistently
from tests.chaos.processes import WorkerProcess
from tests.servers.proxy import Cut, Side

LEASE = 2.0
WORKERS = 4
FROZEN_FOR = 1.3 * LEASE
CLOCKS_OFF = (0.0, 600.0, 0.0, -600.0)


@dataclass(frozen=True)
class Plan:
    """How many of each. `freezes` counts frozen workers, of which several are frozen at once; `long_outages` outlast the lease."""

    tasks: int = 20_000
    kills: int = 20
    freezes: int = 4
    crashes: int = 4
    long_outages: int = 0
    cuts: int = 8
    half_opens: int = 2
    lost_claims: int = 3
    lost_settles: int = 3
    steps: int = 4
    gates: int = 1
    fail_overs: int = 0


@dataclass
class Report:
    """What was done and what came of it."""

    faults: Counter[str] = field(default_factory=Counter)
    tasks: int = 0
    attempts: int = 0
    busy_kills: int = 0
    connections_cut: int = 0
    given_back: int = 0
    gone: int = 0
    rolled_back: int = 0
    cancelled: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    taken_back: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)


class Storm:
    """One storm over one store, whose clock earlier ones may have left set forward."""

    def __init__(self, ground: Ground, fleet: Fleet, plan: Plan, *, seed: int) -> None:
        self._ground = ground
        self._fleet = fleet
        self._plan = plan
        self._chance = random.Random(seed)
        self._base = ground.offset
        self._load = Load(fleet, plan.tasks, random.Random(seed + 1), lambda: ground.server.url(port=ground.proxy.port))
        self._thaws: set[asyncio.Task[None]] = set()
        self._seen: set[int] = set()
        self._taken_back: list[tuple[float, float]] = []  # when a worker was killed, and when the store knew
        self._hired = 0
        self.report = Report()

    async def run(self) -> Report:
        self._fleet.journal.write("stepped", offset=self._base)
        await self._hire()
        await until("a worker is ready", lambda: any(worker.ready for worker in self._fleet.alive), seconds=90)
        load = asyncio.create_task(self._load.run())
        watch = asyncio.create_task(self._watch())
        for name, fault in self._deck():
            await self._work_goes_on()
            await fault()
            self.report.faults[name] += 1
            self._ground.proxy.heal()
            await self._hire()
        await asyncio.gather(*self._thaws)
        # what was put off while the clock was ahead becomes due
        await self._ground.step_clock(self._base + HOUR if self._plan.steps else self._base, self._fleet.journal)
        self._load.relentless = True
        await load
        await self._hire()
        await self._fleet.finish(seconds=120 + self._plan.tasks / 100)
        watch.cancel()
        return await self._sum_up()

    def _deck(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        plan = self._plan
        deck: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            *[("kill", self._kill)] * plan.kills,
            *[("freeze", self._freeze_two)] * ((plan.freezes + 1) // 2),
            *[("crash", self._crash)] * plan.crashes,
            *[("long outage", self._long_outage)] * plan.long_outages,
            *[("cut", self._cut)] * plan.cuts,
            *[("half-open", self._half_open)] * plan.half_opens,
            *[("lost claim", lambda: self._lose(b".claim("))] * plan.lost_claims,
            *[("lost settle", lambda: self._lose(b".settle"))] * plan.lost_settles,
            *[("step", self._step)] * plan.steps,
            *[("gate", self._gate)] * plan.gates,
            *[("fail-over", self._fail_over)] * plan.fail_overs,
        ]
        self._chance.shuffle(deck)
        return deck

    # ---- workers ----

    async def _hire(self) -> None:
        """Start as many workers as are missing."""
        for worker in self._fleet.workers:
            worker.note_death()
        for _ in range(WORKERS - sum(worker.running for worker in self._fleet.workers)):
            self._hired += 1
            await self._fleet.start("--lease", f"{LEASE}s", ready=False, clock_off=CLOCKS_OFF[self._hired % len(CLOCKS_OFF)])

    async def _work_goes_on(self) -> None:
        """Wait until most workers are there and some of them are in the middle of something: a fault in a standstill shows little."""

        async def most_work() -> bool:
            await self._hire()  # one that found the server down has ended
            ready = {worker.pid for worker in self._fleet.alive if worker.ready}
            return len(ready) > WORKERS // 2 and len(ready & self._fleet.busy()) > 1

        await until("most workers work", most_work, seconds=120)
        await asyncio.sleep(self._chance.uniform(0.0, 0.3))

    def _victims(self, count: int) -> list[WorkerProcess]:
        """Choose workers, those that run something first."""
        ready = [worker for worker in self._fleet.alive if worker.ready]
        busy = self._fleet.busy()
        self._chance.shuffle(ready)
        return sorted(ready, key=lambda worker: worker.pid not in busy)[:count]

    async def _watch(self) -> None:
        """Note when the store has taken back what a killed worker had."""
        waiting: dict[int, float] = {}
        while True:
            await asyncio.sleep(0.05)
            waiting |= {worker.pid: worker.killed_at for worker in self._fleet.workers if worker.killed_at and worker.pid not in self._seen}
            self._seen |= waiting.keys()
            with contextlib.suppress(StoreUnavailable):
                known = {worker.pid for worker in await self._fleet.store.workers()}
                for pid in waiting.keys() - known:
                    self._taken_back.append((waiting.pop(pid), time.monotonic()))

    async def _kill(self) -> None:
        for worker in self._victims(1):
            worker.kill()

    async def _freeze_two(self) -> None:
        for worker in self._victims(2):
            if worker.running:
                worker.freeze()
                self.report.faults["frozen"] += 1
                thaw = asyncio.create_task(self._thaw(worker))
                self._thaws.add(thaw)
                thaw.add_done_callback(self._thaws.discard)

    async def _thaw(self, worker: WorkerProcess) -> None:
        await asyncio.sleep(FROZEN_FOR)
        worker.thaw()

    # ---- server and network ----

    async def _crash(self) -> None:
        await self._ground.crash(self._fleet.journal, self._chance.uniform(0.0, 0.5 * LEASE))

    async def _long_outage(self) -> None:
        await self._ground.crash(self._fleet.journal, 1.5 * LEASE)

    async def _cut(self) -> None:
        """Cut all connections, or one at a byte of the protocol that chance chooses."""
        proxy, chance = self._ground.proxy, self._chance
        how = chance.choice([Cut.FIN, Cut.RST])
        if chance.random() < 0.3:
            self.report.connections_cut += proxy.cut(how)
            return
        done = proxy.cut_after(chance.randrange(20_000), chance.choice([Side.CLIENT, Side.SERVER]), how)
        self.report.connections_cut += await self._happens(done)

    async def _half_open(self) -> None:
        """Let all connections vanish without a word, in one direction or both, perhaps for longer than a renewal may take."""
        sides = self._chance.choice([(Side.CLIENT,), (Side.SERVER,), (Side.CLIENT, Side.SERVER)])
        self.report.connections_cut += self._ground.proxy.live
        self._ground.proxy.swallow(sides)
        await asyncio.sleep(self._chance.uniform(0.1, 0.6) * LEASE)

    async def _lose(self, marker: bytes) -> None:
        self.report.connections_cut += await self._happens(self._ground.proxy.lose_reply(marker))

    async def _happens(self, event: threading.Event) -> bool:
        """Wait for something that happens as soon as there is traffic."""
        try:
            await until("it has happened", event.is_set, seconds=10)
        except AssertionError:
            return False
        return True

    # ---- the rest ----

    async def _step(self) -> None:
        """Set the store's clock an hour forward or back, and come by where it was."""
        offsets = [offset for offset in (self._base - HOUR, self._base, self._base + HOUR) if abs(offset - self._ground.offset) == HOUR]
        await self._ground.step_clock(self._chance.choice(offsets), self._fleet.journal)
        await asyncio.sleep(0.3)

    async def _gate(self) -> None:
        fleet = self._fleet
        answer = await persistently(lambda: fleet.app.gates.pause("stumbles"))
        if answer.in_force:
            fleet.journal.write("gate", handler="stumbles")
        else:
            self.report.faults["gate not confirmed"] += 1
        await asyncio.sleep(0.5)
        fleet.journal.write("opened", handler="stumbles")
        await persistently(lambda: fleet.app.gates.open("stumbles"))

    async def _fail_over(self) -> None:
        replica = await self._ground.follow()
        await self._ground.fail_over(replica, self._fleet.journal, behind=self._chance.uniform(0.3, 1.0))
        await self._fleet.look_at(self._ground.look_url)

    # ---- the end ----

    async def _sum_up(self) -> Report:
        fleet, report = self._fleet, self.report
        report.violations = await fleet.violations()
        report.violations += [f"state: {problem}" for problem in await fleet.store.inspect(repair=False)]
        report.broken = rules(report.violations)
        history: History = fleet.history()
        report.tasks = len(history.submitted())
        report.attempts = sum(map(len, history.attempts.values()))
        report.busy_kills = history.busy_kills()
        report.gone = len(history.gone(await fleet.states()))
        report.taken_back = [knew_at - killed_at for killed_at, knew_at in self._taken_back if not history.interrupted(killed_at, knew_at)]
        report.recoveries = history.recoveries(but=["bulk"])
        report.given_back = sum(worker.log().count("never arrived; it goes back") for worker in fleet.workers)
        report.rolled_back, report.cancelled = self._load.rolled_back, self._load.cancelled
        return report
