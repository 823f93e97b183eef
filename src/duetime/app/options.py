"""Options that the handlers of every target have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from duetime.clock import Seconds
from duetime.model.disabling import DisableAfter
from duetime.model.retry import RetryPolicy
from duetime.targets.policies import DisableScope


class TargetOptions(TypedDict, total=False):
    """How a handler's attempts are bounded, repeated and kept; `App.task` explains them."""

    aliases: Sequence[str]
    timeout: Seconds
    retry: RetryPolicy | None
    concurrency: int
    priority: int
    keep_succeeded: Seconds | None
    keep_failed: Seconds | None
    keep_cancelled: Seconds | None
    keep_dropped: Seconds | None
    keep_expired: Seconds | None
    disable_after: int | DisableAfter | None
    disable: DisableScope
