"""Finding the server that has the keys at present: by the URL, by Sentinels, or by the nodes of a cluster.

A search is written once, as questions to be asked; who runs it asks them from an event loop or from a thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias

from redis.asyncio.connection import Connection as AsyncConnection
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.connection import Connection, SSLConnection
from redis.crc import key_slot
from redis.exceptions import RedisError, ResponseError

from duetime.errors import StoreUnavailable
from duetime.store.redis.address import FORMS, Address, Endpoint

Search: TypeAlias = Generator[tuple[Endpoint, tuple[str, ...]], Any, Endpoint]

ASKED_WITHIN = 2.0  # seconds that one of several may take to answer
MOST_NODES = 50


class Finder:
    """Finds the present server of one address. It learns which others may be asked; each thread has its own."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._order = list(address.hosts)  # whom to ask, the most promising first
        self._told: Endpoint | None = None

    def told(self, server: Endpoint) -> None:
        """Note what a server said of where the keys are; that is tried once before others are asked."""
        self._told = server

    async def find(self) -> Endpoint:
        search, reply, error = self._search(), None, None
        while True:
            try:
                server, words = search.send(reply) if error is None else search.throw(error)
            except StopIteration as found:
                return found.value  # type: ignore[no-any-return]
            reply, error = None, None
            try:
                reply = await self._ask(server, words)
            except (RedisError, OSError) as problem:
                error = problem

    def find_now(self, within: float) -> Endpoint:
        """Find it from a thread that has no event loop."""
        search, reply, error = self._search(), None, None
        while True:
            try:
                server, words = search.send(reply) if error is None else search.throw(error)
            except StopIteration as found:
                return found.value  # type: ignore[no-any-return]
            reply, error = None, None
            connection = (SSLConnection if self._address.tls else Connection)(**self._address.asking(server, min(within, ASKED_WITHIN)))
            try:
                connection.connect()  # type: ignore[no-untyped-call]
                connection.send_command(*words)  # type: ignore[no-untyped-call]
                reply = connection.read_response()
            except (RedisError, OSError) as problem:
                error = problem
            finally:
                connection.disconnect()  # type: ignore[no-untyped-call]

    async def _ask(self, server: Endpoint, words: Sequence[str]) -> Any:
        within = min(self._address.timeout, ASKED_WITHIN)
        connection = (AsyncSSLConnection if self._address.tls else AsyncConnection)(**self._address.asking(server, within))
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            await connection.send_command(*words)
            return await connection.read_response()
        finally:
            await connection.disconnect(nowait=True)

    def _search(self) -> Search:
        told, self._told = self._told, None
        if told is not None:
            return told
        match self._address.kind:
            case "single":
                return self._address.hosts[0]
            case "sentinel":
                return (yield from self._by_sentinels())
            case "cluster":
                return (yield from self._by_nodes())

    def _by_sentinels(self) -> Search:
        """Ask the Sentinels until more than half of them name the same server.

        One alone may be cut off from the others together with a former primary, and not know that there is a new one.
        """
        service, needed = self._address.service, len(self._address.hosts) // 2 + 1
        votes: Counter[Endpoint] = Counter()
        problems: list[str] = []
        for sentinel in list(self._order):
            try:
                reply = yield sentinel, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
                if reply is None:
                    problems.append(
                        f"{sentinel} watches no {service!r}, it watches {', '.join((yield from _services(sentinel))) or 'nothing'}"
                    )
                    continue
            except (RedisError, OSError) as error:
                if isinstance(error, ResponseError) and "unknown command" in str(error).lower():
                    problems.append(f"{sentinel} is no Sentinel; write {FORMS['single']}, or name the Sentinels")
                else:
                    problems.append(f"{sentinel}: {error}")
                self._order.remove(sentinel)
                self._order.append(sentinel)
                continue
            server = Endpoint(reply[0].decode(), int(reply[1]))
            votes[server] += 1
            if votes[server] >= needed:
                return server
        problems += [f"{count} of them name {server}" for server, count in votes.items()]
        asked = f"fewer than {needed} of {len(self._address.hosts)} Sentinels name the same primary"
        raise StoreUnavailable(f"{self._address.shown}: {asked} ({'; '.join(problems)})")

    def _by_nodes(self) -> Search:
        """Ask nodes of the cluster who has the slot of our keys, another one first each time: one may not have heard of a change."""
        slot = key_slot(f"{{{self._address.prefix}}}".encode())
        problems: list[str] = []
        for node in list(self._order):
            self._order.remove(node)
            self._order.append(node)
            try:
                slots = yield node, ("CLUSTER", "SLOTS")
            except (RedisError, OSError) as error:
                if isinstance(error, ResponseError) and "cluster support disabled" in str(error).lower():
                    raise StoreUnavailable(f"{node} belongs to no cluster: write {FORMS['single']}") from error
                problems.append(f"{node}: {error}")
                continue
            owner = None
            for first, last, *servers in slots:
                known = [Endpoint(each[0].decode() if each[0] else node.host, each[1]) for each in servers]
                self._order += [each for each in known if each not in self._order][: MOST_NODES - len(self._order)]
                owner = known[0] if first <= slot <= last else owner
            if owner is not None:
                return owner
            problems.append(f"{node} knows no owner of slot {slot}")
        raise StoreUnavailable(f"{self._address.shown}: no node of the cluster knows where the keys are ({'; '.join(problems)})")


def _services(sentinel: Endpoint) -> Generator[tuple[Endpoint, tuple[str, ...]], Any, list[str]]:
    """Ask a Sentinel for the names of what it watches."""
    found = yield sentinel, ("SENTINEL", "MASTERS")
    return [each[each.index(b"name") + 1].decode() for each in found]
