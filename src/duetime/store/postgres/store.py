"""The production store: verbs of the seam on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from duetime.clock import Clock, Instant
from duetime.model.task import FINAL
from duetime.store.postgres import schema
from duetime.store.postgres.access import Access
from duetime.store.postgres.address import Address
from duetime.store.postgres.alerts import Alerts
from duetime.store.postgres.artifacts import Artifacts
from duetime.store.postgres.connection import Database, Link
from duetime.store.postgres.control import Declarations
from duetime.store.postgres.disabling import TargetWatching
from duetime.store.postgres.events import Events
from duetime.store.postgres.failures import Failures
from duetime.store.postgres.fairness import Weighing
from duetime.store.postgres.figures import Figures
from duetime.store.postgres.flows import FlowKeeping
from duetime.store.postgres.gates import GateKeeping
from duetime.store.postgres.inspection import Inspecting
from duetime.store.postgres.lanes import Lanes
from duetime.store.postgres.limits import Limiting
from duetime.store.postgres.locks import Locks
from duetime.store.postgres.output import AT_ONCE, Output
from duetime.store.postgres.parked import Parking
from duetime.store.postgres.pull_workers import PullWorkers
from duetime.store.postgres.quotas import Quotas
from duetime.store.postgres.read import LookingUp
from duetime.store.postgres.requests import Requests
from duetime.store.postgres.schedules import Scheduling
from duetime.store.postgres.secrets import Secrets
from duetime.store.postgres.series import SeriesKeeping
from duetime.store.postgres.servers import Servers
from duetime.store.postgres.steps import Steps
from duetime.store.postgres.targets import Targets
from duetime.store.postgres.upkeep import Upkeep, width
from duetime.store.postgres.wakeups import Wakeups
from duetime.store.postgres.work import Claims
from duetime.store.server_clock import monotonic
from duetime.store.shard import Listener
from duetime.store.traits import Traits
from duetime.store.values import Hint

DURABILITY = (
    "A returned write survives a crash of the process and of the server, if the server flushes its commits "
    "(fsync and synchronous_commit on, as is the default); after a fail-over to an asynchronous replica the last ones may be gone."
)
PATIENCE = 600.0  # seconds that a statement may take which looks at everything


class PostgresStore(
    Limiting,
    FlowKeeping,  # with CallersTransactions, Registering, Accepting, Operations and Sweeping
    Parking,
    PullWorkers,
    LookingUp,
    SeriesKeeping,  # with Listing
    Declarations,
    GateKeeping,
    Weighing,
    Quotas,
    TargetWatching,
    Scheduling,
    Access,
    Secrets,
    Artifacts,
    Targets,
    Requests,
    Figures,
    Failures,
    Events,
    Locks,
    Steps,
    Alerts,
    Servers,
    Output,
    Upkeep,
    Inspecting,
):
    """One schema of one database behind the verbs of `duetime.store.Store`."""

    output_folder: str | None = None

    def __init__(self, address: Address, *, clock: Clock | None = None) -> None:
        super().__init__(address, clock)
        self.now: Callable[[], Instant] = self._clock.now  # called twice per attempt, so without a call in between
        self.reached: Callable[[], Instant] = self._clock.reached
        self.traits = Traits(
            atomic="call",
            durability=DURABILITY,
            liveness="lease",
            claim_ahead=10_000,
            settles_at_once=2,
            output_batch=AT_ONCE,
            retention_steps={state: width(state) for state in FINAL},
        )
        self._door = asyncio.Lock()

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> PostgresStore:
        return cls(Address.from_url(url), clock=clock)

    async def open(self, *, migrate: bool = True) -> None:
        async with self._door:
            if self._database is None:
                await self._open(migrate)

    async def _open(self, migrate: bool) -> None:
        database = Database(self._address)
        try:
            async with database.link() as link:
                found = await schema.versions(link, self._address)
                if found is None or not found.current:
                    if not migrate:
                        raise schema.refuse_old(self._address, found)
                    await schema.migrate(link, self._address, self._clock.now())
                await self._read_identity(link)
            lanes = Lanes(database, self._sql)
            await lanes.load()
        except BaseException:
            await database.close()
            raise
        database.repair = self._make_missing_partitions
        database.arrive = lanes.restore
        self._database, self._lanes = database, lanes
        self._patient = Database(msgspec.structs.replace(self._address, timeout=max(PATIENCE, self._address.timeout), connections=2))
        self._wakeups = Wakeups(self._address)
        self._claims = Claims(database, self._sql, lanes, self._clock, polls=not self._address.notify)

    async def _read_identity(self, link: Link) -> None:
        """Read the server's time and the identity of this store."""
        for _ in range(3):  # the first takes longer than its answer is worth
            sent_at = monotonic()
            [[now]] = await link.rows(self._sql.tell_time)
            self._clock.heard(now, sent_at)
        [[self._whereabouts, *_]] = await link.rows(self._sql.whereabouts)

    async def close(self) -> None:
        self._door = asyncio.Lock()  # a later event loop needs its own
        database, self._database = self._database, None
        if database is not None:
            await self._wakeups.close()
            await self._patient.close()
            await database.close()

    async def ping(self) -> None:
        await self._opened.rows(self._sql.ping)

    def script(self) -> str:
        return schema.script(self._address.schema)

    def listen(self, on_hint: Callable[[Hint], None]) -> Listener:
        self._opened  # noqa: B018
        return self._wakeups.listen(on_hint)
