"""Look up host names in threads of their own.

`getaddrinfo` cannot be interrupted. A name server that never answers would fill the event loop's own executor, which others share; here
it holds one thread per name and at most 16 in all, and whoever asked is told after five seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from duetime.errors import MissingExtra

try:
    from aiohttp.abc import AbstractResolver, ResolveResult
except ModuleNotFoundError as missing:
    raise MissingExtra(f"HTTP handlers need the package {missing.name}: pip install 'duetime[http]'") from None

THREADS = 16
ANSWER_WITHIN = 5.0

GetAddrInfo = Callable[..., list[tuple[Any, ...]]]


class _Lookup:
    """One name that is being looked up, for all who ask for it meanwhile."""

    def __init__(self, call: Callable[[], list[tuple[Any, ...]]], loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.loop = loop
        self.answer: asyncio.Future[list[tuple[Any, ...]]] = loop.create_future()
        self.waiting = 1
        self.begun = False


class Lookups(AbstractResolver):
    """The resolver of all connectors of one worker. `get_addr_info` is called in threads, with the arguments of `socket.getaddrinfo`."""

    def __init__(self, get_addr_info: GetAddrInfo = socket.getaddrinfo, *, threads: int = THREADS, within: float = ANSWER_WITHIN) -> None:
        self._get_addr_info = get_addr_info
        self._most = threads
        self._within = within
        self._threads = self._unfinished = 0
        self._queue: queue.SimpleQueue[_Lookup | None] = queue.SimpleQueue()
        self._pending: dict[tuple[str, int], _Lookup] = {}
        self._lock = threading.Lock()

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        """Return the addresses of a host. Raises `socket.gaierror` if there are none, or no answer in time."""
        key = (host, int(family))
        lookup = self._pending.get(key)
        if lookup is None:
            lookup = self._begin(key)
        else:
            lookup.waiting += 1
        try:
            async with asyncio.timeout(self._within):
                infos = await asyncio.shield(lookup.answer)
        except TimeoutError:
            raise socket.gaierror(socket.EAI_AGAIN, f"the name servers did not answer for {host} within {self._within:g} s") from None
        finally:
            lookup.waiting -= 1
            if not lookup.waiting and not lookup.begun:  # nobody needs it, and it must not delay others
                self._forget(key, lookup)
        return [
            ResolveResult(hostname=host, host=address[0], port=port, family=found, proto=proto, flags=socket.AI_NUMERICHOST)
            for found, _, proto, _, address in infos
            if found in (socket.AF_INET, socket.AF_INET6)
        ]

    async def close(self) -> None:
        """Let idle threads end, and the others with their lookup."""
        with self._lock:
            for _ in range(self._threads):
                self._queue.put(None)
            self._threads = 0

    def _begin(self, key: tuple[str, int]) -> _Lookup:
        host, family = key
        call = partial(self._get_addr_info, host, None, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        lookup = self._pending[key] = _Lookup(call, asyncio.get_running_loop())
        lookup.answer.add_done_callback(lambda answer: self._forget(key, lookup))
        self._queue.put(lookup)
        with self._lock:
            self._unfinished += 1
            if self._threads < min(self._most, self._unfinished):
                self._threads += 1
                # a daemon: a lookup that never ends must not keep the interpreter alive
                threading.Thread(target=self._run, name="duetime-lookup", daemon=True).start()
        return lookup

    def _forget(self, key: tuple[str, int], lookup: _Lookup) -> None:
        if self._pending.get(key) is lookup:
            del self._pending[key]
        if lookup.answer.done() and not lookup.answer.cancelled():
            lookup.answer.exception()  # it may be that nobody waits any more; then asyncio would log it

    def _run(self) -> None:
        while (lookup := self._queue.get()) is not None:
            self._perform(lookup)
            with self._lock:
                self._unfinished -= 1

    def _perform(self, lookup: _Lookup) -> None:
        lookup.begun = True
        infos: list[tuple[Any, ...]] = []
        failure: BaseException | None = None
        try:
            if not lookup.waiting:
                raise socket.gaierror(socket.EAI_AGAIN, "nobody waited for it any more")
            infos = lookup.call()
        except Exception as error:  # UnicodeError for a label that is too long, besides those of sockets
            failure = error if isinstance(error, OSError) else socket.gaierror(socket.EAI_NONAME, str(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            lookup.loop.call_soon_threadsafe(_settle, lookup.answer, infos, failure)


def _settle(answer: asyncio.Future[list[tuple[Any, ...]]], infos: list[tuple[Any, ...]], failure: BaseException | None) -> None:
    if answer.done():
        return
    if failure is None:
        answer.set_result(infos)
    else:
        answer.set_exception(failure)
