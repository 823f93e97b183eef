"""A worker process on a store that goes by leases: `python -m tests.chaos.leased FOLDER LEASE exit|cancel`.

The SQLite store needs no lease, because a lock tells who lives. Here it pretends to be one that cannot tell; renewals fail as
long as the file `cut` exists, as if the network were down, and do not return as long as `hang` exists.
"""

import asyncio
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from duetime import App, Context, RetryPolicy
from duetime.errors import StoreUnavailable
from duetime.store.shard import Lease
from duetime.store.sqlite.store import SqliteStore
from duetime.store.sqlite.workers import SqliteLease
from duetime.store.values import NewWorker, Renewal
from tests.chaos.history import Journal


class CutLease(SqliteLease):
    """A lease that cannot be renewed while the line is cut."""

    cut: Path
    hang: Path

    def renew(self) -> Renewal:
        while self.hang.exists():
            time.sleep(0.01)
        if self.cut.exists():
            raise StoreUnavailable("the line is cut")
        return super().renew()


class LeasedStore(SqliteStore):
    """SQLite as if nobody could tell who lives."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.traits = msgspec.structs.replace(self.traits, liveness="lease")

    async def register(self, worker: NewWorker) -> Lease:
        lease = await super().register(worker)
        assert isinstance(lease, SqliteLease)
        lease.__class__ = CutLease
        assert isinstance(lease, CutLease)
        lease.cut, lease.hang = Path(self._path).with_name("cut"), Path(self._path).with_name("hang")
        return lease


def leased_app(folder: Path, lease: float) -> tuple[App, SqliteStore]:
    app = App(f"sqlite:///{folder / 'duetime.db'}", lease=lease)
    journal = Journal(folder / "journal")

    @app.task(retry=RetryPolicy(base=0.0))
    async def waits(ctx: Context) -> None:
        """Wait until the file `go` exists."""
        with journal.attempt(ctx):
            while not (folder / "go").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

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
    async def blocks(ctx: Context) -> None:
        """Block the event loop."""
        with journal.attempt(ctx):
            while True:
                time.sleep(0.01)  # noqa: ASYNC251

    @app.task
    def sleeps(ctx: Context) -> None:
        with journal.attempt(ctx):
            time.sleep(60)

    @app.task
    def heeds(ctx: Context) -> None:
        """Stop when told to."""
        with journal.attempt(ctx):
            while True:
                ctx.check()
                time.sleep(0.01)

    @app.task(isolation="process")
    def boxed(ctx: Context) -> None:
        with journal.attempt(ctx):
            time.sleep(60)

    return app, LeasedStore(str(folder / "duetime.db"))


# where sub-processes find it
app = leased_app(Path(os.environ["LEASED_FOLDER"]), 15.0)[0] if "LEASED_FOLDER" in os.environ else None


async def main() -> None:
    folder, lease, how = sys.argv[1:]
    os.environ["LEASED_FOLDER"] = folder
    app, store = leased_app(Path(folder), float(lease))
    on_lease_lost: Literal["exit", "cancel"] = "exit" if how == "exit" else "cancel"
    async with app.using_store(store), app.worker(on_stuck="exit", on_lease_lost=on_lease_lost, path="tests.chaos.leased:app"):
        await asyncio.sleep(3_600)


if __name__ == "__main__":
    asyncio.run(main())
