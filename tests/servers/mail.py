"""A real mail server on loopback, which keeps what it takes."""

from __future__ import annotations

import ssl
from email import message_from_bytes
from email.message import Message
from types import TracebackType
from typing import Any, Self

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.servers.ports import free_port


class MailServer:
    """Takes mail; `refuse` has what it answers to addresses instead. With `login` only who knows it may send."""

    def __init__(
        self, *, tls: ssl.SSLContext | None = None, starttls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None
    ) -> None:
        self.received: list[Message] = []
        self.envelopes: list[Envelope] = []
        self.refuse: dict[str, str] = {}
        self.answer = "250 taken"
        self._login = login
        options: dict[str, Any] = {"tls_context": starttls, "require_starttls": True} if starttls else {}
        if login is not None:
            secure = starttls is not None or tls is not None
            options |= {"authenticator": self._authenticate, "auth_required": True, "auth_require_tls": secure}
        self._controller = Controller(self, hostname="127.0.0.1", port=free_port(), ssl_context=tls, **options)

    def __enter__(self) -> Self:
        self._controller.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._controller.stop()

    @property
    def port(self) -> int:
        return int(self._controller.port)

    def _authenticate(self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, auth: Any) -> AuthResult:
        good = isinstance(auth, LoginPassword) and (auth.login.decode(), auth.password.decode()) == self._login
        return AuthResult(success=good)

    async def handle_RCPT(self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]) -> str:  # noqa: N802
        if address in self.refuse:
            return self.refuse[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if self.answer.startswith("250"):
            assert isinstance(envelope.content, bytes)
            self.received.append(message_from_bytes(envelope.content))
            self.envelopes.append(envelope)
        return self.answer
