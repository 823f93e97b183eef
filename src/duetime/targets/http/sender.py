"""Send requests over the network: guarded, bounded, and with their phases noted."""

from __future__ import annotations

import socket
import ssl
import tempfile
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from duetime.errors import InvalidValue
from duetime.model.addresses import AddressRules
from duetime.targets.host import TargetHost
from duetime.targets.http.answers import lower
from duetime.targets.http.guard import AddressRefused, GuardedConnector
from duetime.targets.http.lookups import Lookups
from duetime.targets.http.messages import MAX_BODY, Answer, Request, RequestFailed
from duetime.targets.http.phases import Phases
from duetime.targets.http.spec import HttpRequest

import aiohttp  # isort: skip  after the guard, which says how to install it
from aiohttp.abc import AbstractResolver, ResolveResult  # isort: skip
from yarl import URL  # isort: skip

KEEP_ALIVE = 15.0  # seconds that an idle connection is kept for the next attempt
LONGEST_LINE = 8_190  # bytes of the first line and of each header of an answer
MOST_HEADERS = 100

_phases: ContextVar[Phases | None] = ContextVar("duetime_http_phases", default=None)


class NotingContext(ssl.SSLContext):
    """TLS that notes when a handshake begins. asyncio and uvloop both call `wrap_bio` then, in the context of the request."""

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        wrapped = super().wrap_bio(*args, **kwargs)
        phases = _phases.get()
        if phases is not None:
            phases.enter("tls")
            phases.tls = wrapped
        return wrapped


class NotingConnector(GuardedConnector):
    """Notes the phases of connecting. aiohttp's own traces tell the same, but cost each request a tenth of its time."""

    def __init__(self, rules: AddressRules, lookups: Lookups, **options: Any) -> None:
        super().__init__(rules, NotingLookups(lookups), on_socket=_note_socket, **options)

    def _connecting(self) -> None:
        phases = _phases.get()
        if phases is not None:
            phases.connecting()

    def _connected(self) -> None:
        phases = _phases.get()
        if phases is not None:
            phases.connected()


class NotingLookups(AbstractResolver):
    """Notes when a name is looked up."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        phases = _phases.get()
        if phases is not None:
            phases.enter("dns")
        found = await self._lookups.resolve(host, port, family)
        if phases is not None:
            phases.enter("connect")
        return found

    async def close(self) -> None:
        """Leave the lookups to the worker: others use them too."""


def _note_socket(address: str, port: int) -> None:
    phases = _phases.get()
    if phases is not None:
        phases.reused = False
        phases.address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        phases.say(f"connects to {phases.address}")


def tls_context(certificate: str | None) -> ssl.SSLContext:
    """Return the client's side of TLS: the system's authorities (SSL_CERT_FILE changes them), TLS 1.2 or newer, names are checked.

    `certificate` is the client's own, with its key: the text of a PEM file, or its path.
    """
    context = NotingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_default_certs()
    if certificate is not None:
        try:
            _load(context, certificate)
        except (OSError, ValueError) as error:
            raise InvalidValue(f"the client's certificate cannot be used: {type(error).__name__}: {error}") from None
    return context


def _load(context: ssl.SSLContext, certificate: str) -> None:
    if "-----BEGIN" not in certificate:
        context.load_cert_chain(certificate)
        return
    with tempfile.TemporaryDirectory(prefix="duetime-") as folder:  # only its owner may look into it; OpenSSL reads files only
        path = Path(folder, "client.pem")
        path.write_text(certificate)
        context.load_cert_chain(path)


class NetworkSender:
    """Sends the requests of one handler in one worker, over connections of its own."""

    def __init__(self, declared: HttpRequest, host: TargetHost, *, slots: int) -> None:
        self._declared = declared
        self._host = host
        self._slots = slots
        self._session: aiohttp.ClientSession | None = None
        self._known: dict[str, tuple[str | None, str | None]] = {}  # address and certificate's expiry of connections that may be used again
        written = declared.certificate if isinstance(declared.certificate, str) else None
        self._tls = None if written is None else tls_context(written)  # a wrong one is told at the start
        self._certificate: str | None = None  # the stored one that the connections use
        self._former: aiohttp.ClientSession | None = None  # with the one before it: requests may still be under way

    async def send(self, request: Request, phases: Phases) -> Answer:
        if request.certificate != self._certificate:
            await self._change(request.certificate)
        session = self._session or self._open()
        token = _phases.set(phases)
        try:
            url = URL(request.url, encoded=True)
            response = await session.request(request.method, url, headers=request.headers, data=request.body, allow_redirects=False)
            try:
                self._note_connection(url.raw_authority, phases)
                if phases.told:
                    phases.say(f"is answered: {response.status} {response.reason or ''}".rstrip())
                phases.enter("body")
                body = b"" if response.content.at_eof() else await _read(response, request)
            finally:
                response.release()  # what was not read to its end is closed
            return Answer(status=response.status, headers=lower(response.headers), body=body, reason=response.reason or "")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _failure(request, error, phases, self._declared) from error
        finally:
            _phases.reset(token)

    async def close(self) -> None:
        """Close all connections."""
        for session in (self._session, self._former):
            if session is not None:
                await session.close()

    async def _change(self, certificate: str | None) -> None:
        """Use another client's certificate for new connections, because its secret has another value now."""
        try:
            tls = tls_context(certificate)
        except InvalidValue as error:
            raise RequestFailed("CertificateUnusable", f"{self._declared.certificate!r}: {error}", fatal=True) from None
        before, self._former = self._former, self._session
        self._tls, self._certificate, self._session = tls, certificate, None
        if before is not None:
            await before.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._tls is None and (self._declared.redirects != "none" or self._declared.url.scheme == "https"):
            self._tls = tls_context(None)  # takes 30 ms
        connector = NotingConnector(
            self._host.addresses,
            self._host.lookups,
            trusted=self._declared.trusted,
            limit=self._slots,
            keepalive_timeout=KEEP_ALIVE,
            ssl=self._tls or True,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=self._declared.connect),
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
            max_headers=MOST_HEADERS,
            skip_auto_headers=["Content-Type"],
        )
        return self._session

    def _note_connection(self, authority: str, phases: Phases) -> None:
        """Note where the connection leads to and how long its certificate is good; for one that is used again, as it was before."""
        if phases.reused:
            phases.address, phases.certificate_expires = self._known.get(authority, (None, None))
            return
        phases.certificate_expires = _expiry(phases.tls)
        phases.tls = None
        self._known[authority] = phases.address, phases.certificate_expires


def _expiry(tls: ssl.SSLObject | None) -> str | None:
    certificate = None if tls is None else tls.getpeercert()
    if not certificate:
        return None
    seconds = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


async def _read(response: aiohttp.ClientResponse, request: Request) -> bytes:
    """Read a body piece by piece, and no more than is allowed."""
    if response.content_length is not None and response.content_length > MAX_BODY and request.method != "HEAD":
        raise _too_large(request, response, f"{response.content_length:,} bytes")
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BODY:
            raise _too_large(request, response, "more")
    return b"".join(pieces)


def _too_large(request: Request, response: aiohttp.ClientResponse, size: str) -> RequestFailed:
    response.close()  # what is still under way is not read
    return RequestFailed("ResponseTooLarge", f"{request.shown} answered {response.status} with {size}; at most {MAX_BODY:,} bytes are read")


def _failure(request: Request, error: Exception, phases: Phases, declared: HttpRequest) -> RequestFailed:
    """Return what went wrong, named after the phase."""
    text = f"{request.shown}: {str(error) or type(error).__name__}"
    match error:
        case AddressRefused():
            return RequestFailed("AddressRefused", text, fatal=True)
        case aiohttp.ServerTimeoutError() | TimeoutError():
            waited = f"{request.shown}: no connection within connect={declared.connect:g} s; meanwhile {phases.sentence}"
            return RequestFailed("TimedOut", waited, timed_out=True)
        case aiohttp.ClientConnectorDNSError():
            return RequestFailed("DnsFailed", text)
        case aiohttp.ClientSSLError():
            return RequestFailed("TlsFailed", text)
        case aiohttp.ClientConnectorError():
            kind = "ConnectRefused" if isinstance(error.os_error, ConnectionRefusedError) else "ConnectFailed"
            return RequestFailed("TlsFailed" if phases.under_way == "tls" else kind, text)
        case aiohttp.ClientPayloadError():
            return RequestFailed("IncompleteBody", text)
        case aiohttp.ClientResponseError():
            large = "Got more than" in error.message or "Too many" in error.message
            return RequestFailed("ResponseTooLarge" if large else "BadAnswer", f"{request.shown}: {error.message[:500]}")
        case aiohttp.InvalidURL():
            return RequestFailed("InvalidUrl", text, fatal=True)
    if isinstance(error, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError) or "[SSL" in text:
        return RequestFailed("TlsFailed", text)
    # TLS 1.3 refuses a client without a certificate after the handshake, often by a mere reset
    hint = "; does it require a client's certificate?" if phases.tls is not None and declared.certificate is None else ""
    return RequestFailed("ConnectionLost", f"{text}; meanwhile {phases.sentence}{hint}")
