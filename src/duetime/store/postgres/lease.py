"""A worker's lease: renewed from the keeper's own thread, over a connection of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from duetime.errors import StoreUnavailable
from duetime.store.postgres.address import Address
from duetime.store.postgres.connection import Link, connect, translated
from duetime.store.postgres.read import attempts_of
from duetime.store.postgres.statements import statements
from duetime.store.server_clock import ServerClock
from duetime.store.values import Renewal

PATIENCE = 1 / 7  # of the lease: how long one renewal may take, so that several fit in before it ends


class PostgresLease:
    """Beats in the worker's row. It has an event loop of its own, which runs only during a renewal."""

    def __init__(self, worker: str, period: float, address: Address, clock: ServerClock) -> None:
        self._worker = worker
        self._within = period * PATIENCE
        self._address = address
        self._sql = statements(address.schema)
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None

    def renew(self) -> Renewal:
        if self._loop is None:
            self._loop = asyncio.SelectorEventLoop()
        try:
            return self._loop.run_until_complete(asyncio.wait_for(self._renew(), self._within))
        except BaseException as error:
            self._drop()
            found = translated(error, self._address)
            if isinstance(found, Exception) and not isinstance(found, StoreUnavailable):
                raise StoreUnavailable(f"the lease could not be renewed: {found}") from error
            raise found from error

    async def _renew(self) -> Renewal:
        if self._link is None or not self._link.usable:
            self._link = await connect(self._address, within=self._within)
        try:
            renewed = await self._link.rows(self._sql.renew, [self._clock.parameter, self._worker])
            if not renewed:
                return Renewal(False, 0, [])
            [[gates_version, targets_version, draining]] = renewed
            attempts = await attempts_of(self._link, self._sql, self._worker)
            return Renewal(True, gates_version, attempts, targets_version, draining)
        except asyncio.CancelledError:
            # At once, before the driver begins to ask the server over another connection to stop: this loop would end in the
            # middle of that, and what the driver never came to await would be in the log as an error.
            self._drop()
            raise

    def inheritable(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        if self._loop is not None:
            # in a thread of its own, because the caller's may run an event loop, and one cannot run inside another
            closing = threading.Thread(target=self._finish, args=[self._loop], name="duetime-lease-end")
            self._loop = None
            closing.start()
            closing.join()

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        self._drop()
        loop.run_until_complete(asyncio.sleep(0))  # the transport closes its socket in here
        loop.close()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.drop()
            self._link = None
