"""Options that the handlers of every target have, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from duetime.app.handlers import aliases_of, policy_or_default, positive, slots
from duetime.clock import Seconds
from duetime.model.disabling import DisableAfter, Disabling
from duetime.model.retry import RetryPolicy
from duetime.model.task import State, check_name, check_priority
from duetime.targets.policies import DisableScope
from duetime.targets.spec import HandlerSpec, Payloads, TargetSpec


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


def checked_spec(
    name: str,
    target: TargetSpec,
    payloads: Payloads,
    *,
    prefix: str,
    timeout: Seconds,
    retry: RetryPolicy | None,
    concurrency: int,
    priority: int,
    aliases: Sequence[str],
    keep: Mapping[State, float],
    disabling: Disabling | None = None,
    doc: str,
) -> HandlerSpec:
    """Return the spec of a handler, whatever its target, with the options checked that all of them have. Aliases get the `prefix`."""
    return HandlerSpec(
        name=name,
        target=target,
        payloads=payloads,
        timeout=positive(timeout, "timeout"),
        retry=policy_or_default(retry),
        concurrency=slots(concurrency),
        priority=check_priority(priority),
        aliases=tuple(check_name(prefix + alias, "an alias") for alias in aliases_of(aliases)),
        keep=keep,
        disabling=disabling,
        doc=doc.strip(),
    )
