"""The sampler: notes every ten seconds how many tasks wait and run, and adds up what was noted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket

from duetime.clock import SECOND
from duetime.errors import StoreUnavailable
from duetime.model.series import STEPS
from duetime.runtime.service import Alarms, Service
from duetime.store import Store

LOOK_EVERY = float(STEPS[0])
FOLD_EVERY = 60.0
LEASE = 25.0  # seconds: two samples
SHARE = 20  # a look that takes long is followed by a pause of so many times as long


class Sampler(Service):
    """Keeps a sample in each bucket of ten seconds. One process at a time does so; while one has the lease, the others do not look.

    A store that lies idle is not written to, neither by samples nor by the lease: while nothing is due and nothing runs, a sample is kept
    only if it differs from the last one.
    """

    name = "sampler"

    def __init__(self, store: Store, alarms: Alarms) -> None:
        super().__init__(alarms)
        self._store = store
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._held = False
        self._fold_at = 0.0  # by the event loop's clock
        self._begun = False

    async def run_once(self) -> float | None:
        clock = asyncio.get_running_loop().time
        began = clock()
        if not self._begun:  # what a process was started for comes first
            self._begun = True
            self.skipped()
            return self._until_next_bucket()
        waits = await self.sample()
        if waits is not None:
            return waits + random.uniform(0.1, 2.0)
        if clock() >= self._fold_at:
            self._fold_at = clock() + FOLD_EVERY
            while await self._store.fold_series():
                self.progressed()
        return max(self._until_next_bucket(), SHARE * (clock() - began))

    def _until_next_bucket(self) -> float:
        """Return the seconds until a little after the next bucket begins, so that each has one sample, however long the last one took."""
        return LOOK_EVERY - self._store.now() / SECOND % LOOK_EVERY + random.uniform(0.1, 1.0)

    async def sample(self) -> float | None:
        """Keep a sample if there is something to tell. If another process does that, return for how many seconds it will."""
        lease = (await self._store.duties()).get(self.name)
        if lease is None or not lease.granted or lease.holder == self._holder:
            sample = await self._store.sample()
            if not sample.says_more_than(await self._store.last_sample()):
                return None
            lease = await self._store.take_duty(self.name, self._holder, LEASE)
            self._held = lease.granted
            if lease.granted:
                await self._store.keep_sample(sample)
                return None
        return max(0.0, (lease.until_at - lease.now) / SECOND)

    async def stop(self) -> None:
        await super().stop()
        if self._held:
            self._held = False
            with contextlib.suppress(StoreUnavailable):
                await self._store.leave_duty(self.name, self._holder)
