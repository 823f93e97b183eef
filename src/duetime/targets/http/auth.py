"""How a request proves who sends it."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from duetime.errors import Fatal, InvalidValue
from duetime.model.secrets import Secret

if TYPE_CHECKING:
    from duetime.targets.target import AttemptHandle

Credential: TypeAlias = str | Secret


class Basic(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="basic"):
    """A user and a password (RFC 7617), or the `Secret` that has it. `repr` shows no password."""

    user: str
    password: Credential

    def __post_init__(self) -> None:
        if not isinstance(self.user, str) or ":" in self.user or not self.user.isprintable():
            raise InvalidValue(f"the user of Basic must be text without a colon, got {self.user!r}")
        check_credential(self.password, "the password of Basic")

    def __repr__(self) -> str:
        return f"Basic({self.user!r}, …)"


class Bearer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="bearer"):
    """A token (RFC 6750), or the `Secret` that has it. `repr` does not show it."""

    token: Credential

    def __post_init__(self) -> None:
        check_credential(self.token, "the token of Bearer")

    def __repr__(self) -> str:
        return "Bearer(…)"


Auth: TypeAlias = Basic | Bearer


def check_credential(value: Credential, what: str) -> None:
    """Refuse what cannot be sent, without showing it."""
    if isinstance(value, Secret):
        return
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InvalidValue(f"{what} must be text on one line and not empty, or a Secret; it is not shown here")


async def reveal(credential: Credential, attempt: AttemptHandle) -> tuple[str, ...]:
    """Return the good values of a credential, the newest first; the one function through which every secret of a request goes."""
    return (credential,) if isinstance(credential, str) else await attempt.reveal(credential)


async def authorization(auth: Auth, attempt: AttemptHandle) -> str:
    """Return the value of the header Authorization."""
    match auth:
        case Basic(user, password):
            return "Basic " + b64encode(f"{user}:{await sendable(password, attempt)}".encode()).decode()
        case Bearer(token):
            return f"Bearer {await sendable(token, attempt)}"


async def sendable(credential: Credential, attempt: AttemptHandle) -> str:
    """Return the newest value of a credential, for a header."""
    value, *_ = await reveal(credential, attempt)
    if isinstance(credential, Secret) and not value.isprintable():
        raise Fatal(f"{credential!r} cannot be sent as a header, because it is not text on one line; put it again without line breaks")
    return value
