"""A worker process on a store that goes by leases: `python -m tests.chaos.leased FOLDER LEASE`.

The SQLite store needs no lease, because a lock tells who lives. Here it pretends to be one that cannot tell; renewals fail as
long as the file `cut` exists, as if the network were down.
"""

import asyncio
import re
import sys
import time
from pathlib import Path

from duetime import App, Context, RetryPolicy
from duetime.errors import StoreUnavailable
from duetime.store.protocol import Lease, NewWorker, Renewal
from duetime.store.sqlite.store import SqliteLease, SqliteStore
from tests.chaos.history import Journal


class CutLease(SqliteLease):
    """A lease that cannot be renewed while the line is cut."""

    cut: Path

    def renew(self) -> Renewal:
        if self.cut.exists():
            raise StoreUnavailable("the line is cut")
        return super().renew()


class LeasedStore(SqliteStore):
    """SQLite as if nobody could tell who lives."""

    liveness = "lease"

    async def register(self, worker: NewWorker) -> Lease:
        lease = await super().register(worker)
        assert isinstance(lease, SqliteLease)
        lease.__class__ = CutLease
        assert isinstance(lease, CutLease)
        lease.cut = Path(self._path).with_name("cut")
        return lease


def leased_app(folder: Path, lease: float) -> tuple[App, SqliteStore]:
    app = App(f"sqlite:///{folder / 'duetime.db'}", lease=lease)
    journal = Journal(folder / "journal")

    @app.task(retry=RetryPolicy(base=0.0))
    async def waits(ctx: Context, seconds: float) -> None:
        with journal.attempt(ctx):
            await asyncio.sleep(seconds)

    @app.task
    async def clings(ctx: Context) -> None:
        """Refuse to end."""
        with journal.attempt(ctx):
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue

    @app.task
    async def holds(ctx: Context) -> None:
        """Hold the interpreter's lock for longer than any lease here."""
        with journal.attempt(ctx):
            re.match(r"(a+)+$", "a" * 40 + "b")

    @app.task
    def sleeps(ctx: Context) -> None:
        with journal.attempt(ctx):
            time.sleep(60)

    return app, LeasedStore(str(folder / "duetime.db"))


async def main() -> None:
    app, store = leased_app(Path(sys.argv[1]), float(sys.argv[2]))
    async with app.using_store(store), app.worker(on_stuck="exit"):
        await asyncio.sleep(3_600)


if __name__ == "__main__":
    asyncio.run(main())
