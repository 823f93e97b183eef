"""What all roles of the production store share: the address, the statements, the connections, the clock, the lanes and the wake-ups."""

from __future__ import annotations

from duetime.clock import Clock, Instant
from duetime.errors import StoreUnavailable
from duetime.store.postgres.address import Address
from duetime.store.postgres.connection import Database
from duetime.store.postgres.lanes import Lanes
from duetime.store.postgres.statements import statements
from duetime.store.postgres.wakeups import Wakeups
from duetime.store.server_clock import ServerClock
from duetime.store.values import HintKind


class OpenSchema:
    """One schema of one database. Each role of the store is a class on top of this one.

    What is declared without a value is made by `open`; a verb comes to it after `_opened`, which raises if the store is not open.
    """

    _lanes: Lanes
    _wakeups: Wakeups
    _patient: Database  # connections for statements that look at everything

    def __init__(self, address: Address, clock: Clock | None) -> None:
        self._address = address
        self._sql = statements(address.schema)
        self._clock = ServerClock(clock)
        self._whereabouts = ""
        self._database: Database | None = None

    @property
    def url(self) -> str:
        return self._address.shown

    @property
    def _opened(self) -> Database:
        if self._database is None:
            raise StoreUnavailable(f"the store {self.url} is not open; await open() first")
        return self._database

    @property
    def _opened_patiently(self) -> Database:
        self._opened  # noqa: B018  raises if it is not open
        return self._patient

    def _hint(self, kind: HintKind, at: Instant | None = None) -> None:
        self._wakeups.send(kind, at)
