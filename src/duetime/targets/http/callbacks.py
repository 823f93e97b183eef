"""Work that a server accepts with 202 and reports on later."""

from __future__ import annotations

import msgspec

from duetime.clock import SECOND, Instant, Seconds, to_seconds
from duetime.errors import InvalidValue
from duetime.model.callbacks import Permit, new_callback_token
from duetime.store.values import ClaimedTask

LONGEST = 366 * 86_400.0
URL_HEADER, TOKEN_HEADER = "Duetime-Callback", "Duetime-Callback-Token"


class Callback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Let a server answer 202 and report the end later: `within` so many seconds of the attempt's start.

    `silence` is how many seconds may pass without a report; None: any.
    """

    within: Seconds
    silence: Seconds | None = None

    def __post_init__(self) -> None:
        for name, value in (("within", self.within), ("silence", self.silence)):
            if value is not None and not 0 < to_seconds(value, name) <= LONGEST:
                raise InvalidValue(f"{name} of a Callback must be a duration from 0 to 366 days, got {value!r}")

    def deadline_at(self, started_at: Instant) -> Instant:
        return started_at + round(to_seconds(self.within, "within") * SECOND)


class CallbackDoor(msgspec.Struct, frozen=True):
    """Where servers report to: the public URL of the API, and the keys that make tokens for it."""

    url: str
    keys: tuple[bytes, ...] = ()

    def headers(self, task: ClaimedTask, deadline_at: Instant) -> dict[str, str]:
        """Return what tells a server where and with which token to report on an attempt. Without keys it needs one of its own."""
        headers = {URL_HEADER: f"{self.url}/v1/tasks/{task.id}/complete"}
        if self.keys:
            headers[TOKEN_HEADER] = new_callback_token(self.keys[0], task.id, Permit(task.fence, deadline_at))
        return headers
