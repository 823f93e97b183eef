"""Handing mail to a server: in a thread, with bounded waiting, and interrupted at once when the attempt is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import smtplib
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from email.message import EmailMessage

from duetime.targets.notices.channels import SmtpServer

ANSWER_WITHIN = 20.0  # seconds for each answer of the server


class MailFailed(Exception):
    """The server does not answer, or refuses. `kind` is the error's type for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Plain(smtplib.SMTP):
    """Tells of its socket as soon as there is one: a server that accepts and then says nothing must not hold anybody."""

    def __init__(self, server: SmtpServer, opened: Callable[[socket.socket], None]) -> None:
        self._opened = opened
        super().__init__(server.host, server.port, timeout=ANSWER_WITHIN)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        connection = socket.create_connection((host, port), timeout)
        self._opened(connection)
        return connection


class _Secure(smtplib.SMTP_SSL):
    def __init__(self, server: SmtpServer, context: ssl.SSLContext, opened: Callable[[socket.socket], None]) -> None:
        self._opened = opened
        super().__init__(server.host, server.port, timeout=ANSWER_WITHIN, context=context)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        connection = socket.create_connection((host, port), timeout)
        self._opened(connection)
        try:
            return self.context.wrap_socket(connection, server_hostname=host)
        except BaseException:
            connection.close()
            raise


class Delivery:
    """One message on its way to the server, in one of some threads of its own: a server that hangs must not keep others from theirs."""

    def __init__(self, server: SmtpServer, message: EmailMessage, login: tuple[str, str] | None, threads: Executor) -> None:
        self._server = server
        self._message = message
        self._login = login
        self._threads = threads
        self._connection: socket.socket | None = None
        self._stopped = False

    async def send(self) -> None:
        """Hand it over. When cancelled, the connection is cut, and its code has ended when this returns."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._send)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._cut()
            with contextlib.suppress(MailFailed):
                await work
            raise

    def _cut(self) -> None:
        self._stopped = True
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _opened(self, connection: socket.socket) -> None:
        self._connection = connection
        if self._stopped:
            self._cut()

    def _send(self) -> None:
        server = self._server
        at = f"{server.host}:{server.port}"
        try:
            context = ssl.create_default_context()
            client = _Secure(server, context, self._opened) if server.tls else _Plain(server, self._opened)
            with client:
                client.ehlo()
                if not server.tls and client.has_extn("starttls"):
                    client.starttls(context=context)
                    client.ehlo()
                elif not server.tls and not server.may_be_plain:
                    raise MailFailed(
                        "MailNotEncrypted", f"{at} offers no TLS, and nothing is sent without it; use a server that has STARTTLS"
                    )
                if self._login is not None:
                    client.login(*self._login)
                refused = client.send_message(self._message)
                if refused:
                    told = "; ".join(f"{address}: {code} {_text(said)}" for address, (code, said) in refused.items())
                    raise MailFailed("MailRefused", f"{at} refuses some of those addressed: {told}"[:2_000])
        except smtplib.SMTPRecipientsRefused as error:
            told = "; ".join(f"{address}: {code} {_text(said)}" for address, (code, said) in error.recipients.items())
            raise MailFailed("MailRefused", f"{at} refuses all those addressed: {told}"[:2_000]) from None
        except smtplib.SMTPResponseException as error:
            raise MailFailed("MailRefused", f"{at} answers {error.smtp_code} {_text(error.smtp_error)}") from None
        except (OSError, smtplib.SMTPException) as error:
            why = str(error) or type(error).__name__
            raise MailFailed("MailUnreachable", f"{at} cannot be reached or does not answer: {why}") from None


def _text(said: bytes | str) -> str:
    return (said.decode("utf-8", "replace") if isinstance(said, bytes) else said)[:500]
