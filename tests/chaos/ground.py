"""A PostgreSQL server behind a network, both at a test's mercy: killed, cut off, its clock set, failed over."""

import asyncio
from types import TracebackType
from typing import Self

from tests.chaos.journal import Journal
from tests.chaos.processes import until
from tests.servers.fixtures import NEWEST
from tests.servers.installations import installations
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy
from tests.servers.wire import PostgresConversation

HOUR = 3_600

# As in functions/time.sql, plus an offset: both functions in one statement, so that nobody sees only one of them changed.
_CLOCKS = """
do $do$ begin
    create or replace function {schema}.clock() returns bigint language sql stable parallel safe as
    $$ select (extract(epoch from statement_timestamp()) * 1000000)::bigint + {micros} $$;
    create or replace function {schema}.moment() returns bigint language sql volatile as
    $$ select (extract(epoch from clock_timestamp()) * 1000000)::bigint + {micros} $$;
end $do$
"""


class Ground:
    """One server of its own and the proxy before it. Whatever takes long runs in a thread, so that the test's loop goes on."""

    def __init__(self, schema: str = "chaos", name: str = NEWEST, **options: str) -> None:
        self.schema = schema
        self.server = Postgres(installations()[name])
        self._options = options
        self.offset = 0.0

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.server.start)
        assert self.server.port is not None
        self.proxy = Proxy(self.server.port, PostgresConversation)
        self.proxy.__enter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.proxy.__exit__(kind, error, trace)
        await asyncio.to_thread(self.server.remove)

    @property
    def url(self) -> str:
        """The way over the network that can fail."""
        return self.server.url(port=self.proxy.port, schema=self.schema, **self._options)

    @property
    def look_url(self) -> str:
        """The way that always works while the server does."""
        return self.server.url(schema=self.schema)

    async def query(self, statement: str) -> list[tuple[object, ...]]:
        return await asyncio.to_thread(self.server.query, statement)

    # ---- faults ----

    async def crash(self, journal: Journal, down: float = 0.0) -> None:
        """Kill the server with all its backends and start it again after so many seconds."""
        journal.write("down")
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(down)
        await asyncio.to_thread(self.server.start)

    async def step_clock(self, seconds: float, journal: Journal) -> None:
        """Set the store's clock to so many seconds off the real time. The journal never says less than it is ahead."""
        if seconds > self.offset:
            journal.write("stepped", offset=seconds)
        await self.query(_CLOCKS.format(schema=self.schema, micros=round(seconds * 1_000_000)))
        if seconds <= self.offset:
            journal.write("stepped", offset=seconds)
        self.offset = seconds

    async def follow(self) -> Postgres:
        """Start a replica."""
        return await asyncio.to_thread(self.server.replica)

    async def fail_over(self, replica: Postgres, journal: Journal, *, behind: float = 0.0) -> None:
        """Cut the replica off, let the server acknowledge for so many seconds what the replica never hears, and switch over."""
        await self.sever(replica, journal)
        await asyncio.sleep(behind)
        await self.switch(replica, journal)

    async def sever(self, replica: Postgres, journal: Journal) -> None:
        """Let the replica have all that was acknowledged so far, and nothing of what follows."""
        journal.write("severed")
        await asyncio.to_thread(replica.catch_up, self.server)
        for statement in ("alter system set primary_conninfo = ''", "select pg_reload_conf()"):
            await asyncio.to_thread(replica.query, statement)
        followers = "select count(*) from pg_stat_replication"

        async def alone() -> bool:
            return await self.query(followers) == [(0,)]

        await until("the replica is cut off", alone)

    async def switch(self, replica: Postgres, journal: Journal) -> None:
        """Kill the server and let a replica that was cut off take over."""
        old, self.server = self.server, replica
        await asyncio.to_thread(old.kill)
        await asyncio.to_thread(old.remove)
        await asyncio.to_thread(replica.promote)
        assert replica.port is not None
        self.proxy.lead_to(replica.port)
        journal.write("promoted")
