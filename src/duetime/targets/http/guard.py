"""The connections of HTTP handlers, each judged by its real address before a packet is sent.

The one way by which every connection goes is the socket: literals (for which no resolver is asked), each answer of a name server, a
name that leads elsewhere the second time, redirects, the race between IPv4 and IPv6. So the judge sits where the socket is made.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from duetime.errors import InvalidValue, MissingExtra
from duetime.model.addresses import AddressRules, endpoint_of
from duetime.model.urls import Endpoint, read_url

try:
    import aiohttp
    from aiohttp.abc import AbstractResolver
except ModuleNotFoundError as missing:
    raise MissingExtra(f"HTTP handlers need the package {missing.name}: pip install 'duetime[http]'") from None


OnSocket = Callable[[str, int], None]

MOST_ORIGINS = 1_000  # that are remembered; a template with `hosts=` may have any number


class AddressRefused(aiohttp.ClientError):
    """A URL or an address to which this handler may not connect. Nothing was sent."""


class _Asked:
    """What a request asks for, and what became of its connections; the sockets of one race share it."""

    __slots__ = ("endpoint", "opened", "refused", "trusted")

    def __init__(self, endpoint: Endpoint, trusted: bool) -> None:
        self.endpoint = endpoint
        self.trusted = trusted
        self.refused: list[str] = []
        self.opened = 0


# Sockets are made in the context of the request, or in a copy of it. Without a request nothing is trusted.
_asked: ContextVar[_Asked | None] = ContextVar("duetime_http_asked", default=None)


class GuardedConnector(aiohttp.TCPConnector):
    """Connects to what the rules allow and to nothing else.

    `trusted` are hosts with ports that are written literally in the program's code; never such that are stored or made from a payload.
    So each declared handler has a connector of its own, also because idle connections are used again without another judgement.
    `on_socket` is called with address and port whenever a socket is made, in the context of the request.
    """

    def __init__(
        self,
        rules: AddressRules,
        lookups: AbstractResolver,
        *,
        trusted: Iterable[tuple[str, int]] = (),
        on_socket: OnSocket | None = None,
        **options: Any,
    ) -> None:
        self._rules = rules
        self._trusted = frozenset(endpoint_of(host, port) for host, port in trusted)
        self._on_socket = on_socket
        self._judged: dict[tuple[str, str], tuple[Endpoint, bool]] = {}  # origins whose ports are allowed
        super().__init__(resolver=lookups, socket_factory=self._make_socket, **options)

    async def connect(self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout) -> Any:
        """Return a connection for a request. Raises AddressRefused if all its addresses are refused, or its URL is."""
        asked = self._asked_by(req)
        before = _asked.set(asked)
        self._connecting()
        try:
            connection = await super().connect(req, traces, timeout)
            self._connected()
            return connection
        except aiohttp.ClientConnectorError as error:
            if asked.refused and not asked.opened:
                raise AddressRefused(f"{asked.endpoint} is refused: {'; '.join(dict.fromkeys(asked.refused))}") from error
            raise
        finally:
            _asked.reset(before)

    def _connecting(self) -> None:
        """Called when a request asks for a connection, in its context."""

    def _connected(self) -> None:
        """Called when it has one."""

    def _asked_by(self, req: aiohttp.ClientRequest) -> _Asked:
        if req.proxy is not None:  # then the proxy is what we connect to
            return _Asked(*self._judge_origin(str(req.proxy.with_user(None))))
        # reading a URL takes as long as sending it: what a handler sends goes to few origins, so they are judged once
        origin = req.url.scheme, req.url.raw_authority
        judged = self._judged.get(origin)
        if judged is None:
            judged = self._judge_origin(str(req.url))
            if len(self._judged) < MOST_ORIGINS:
                self._judged[origin] = judged
        return _Asked(*judged)

    def _judge_origin(self, url: str) -> tuple[Endpoint, bool]:
        """Return where a URL leads and whether code has named that; raises AddressRefused for a port that is not allowed."""
        try:
            there = read_url(url)
        except InvalidValue as error:
            raise AddressRefused(str(error)) from None
        endpoint = endpoint_of(there.host, there.port)
        trusted = endpoint in self._trusted
        by_port = self._rules.judge_port(there.port, host=there.host, trusted=trusted)
        if not by_port.allowed:
            raise AddressRefused(f"{endpoint} is refused: {by_port.why}")
        return endpoint, trusted

    def _make_socket(self, addr_info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, (address, port, *_) = addr_info
        asked = _asked.get()
        judgement = self._rules.judge(
            address,
            port,
            host="" if asked is None else asked.endpoint.host,
            trusted=asked is not None and asked.trusted,
            local=self._rules.listens_everywhere(port) and _is_local(family, address),
        )
        if not judgement.allowed:
            if asked is not None:
                asked.refused.append(judgement.why)
            raise PermissionError(errno.EACCES, judgement.why)  # with a number: aiohttp would lose the text without one
        if asked is not None:
            asked.opened += 1
        if self._on_socket is not None:
            self._on_socket(address, port)
        return socket.socket(family, kind, protocol)


def _is_local(family: int, address: str) -> bool:
    """Return whether an address is one of this machine's: then a socket can be bound to it."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
