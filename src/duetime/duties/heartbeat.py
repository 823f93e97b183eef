"""The heartbeat: tells a monitor outside, every minute, that this store takes writes. When all of Duetime is down, its silence tells."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import urllib.error
import urllib.request

from duetime.clock import SECOND
from duetime.ids import token
from duetime.runtime.service import Alarms, Service
from duetime.store.schedules import ScheduleStore

EVERY = 60.0  # seconds, the longest lease of a duty
WITHIN = 10.0

logger = logging.getLogger("duetime")


class Heartbeat(Service):
    """Calls a URL each minute, from one process: whoever has the lease, which only a store that takes writes can give."""

    name = "heartbeat"

    def __init__(self, store: ScheduleStore, alarms: Alarms, url: str) -> None:
        super().__init__(alarms)
        self._store = store
        self._url = url
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{token(4)}"
        self._failed = False

    async def run_once(self) -> float | None:
        lease = await self._store.take_duty(self.name, self._holder, EVERY)
        if not lease.granted:
            return max(0.0, (lease.until_at - lease.now) / SECOND) + random.uniform(0.1, 1.0)
        why = await asyncio.to_thread(_call, self._url)
        if why and not self._failed:
            logger.warning("the monitor of the heartbeat cannot be reached: %s", why)  # without the URL, which is often a secret
        self._failed = bool(why)
        return EVERY - 1


def _call(url: str) -> str:
    """Send a GET; return why it failed, or nothing."""
    request = urllib.request.Request(url, headers={"User-Agent": "duetime"})  # http and https only: checked as a setting
    try:
        with urllib.request.urlopen(request, timeout=WITHIN) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        error.close()
        return f"it answers {error.code}"
    except (OSError, ValueError) as error:
        return type(error).__name__
    return ""
