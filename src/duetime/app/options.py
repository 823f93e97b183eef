"""Options that the handlers of every target have, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from duetime.app.handlers import aliases_of, policy_or_default, positive, slots, whole_number
from duetime.clock import Seconds
from duetime.errors import InvalidValue
from duetime.model.disabling import DisableAfter, Disabling
from duetime.model.fairness import Fair, check_fair
from duetime.model.limit import MOST_COUNTED, Limit
from duetime.model.quota import Quota, check_quota
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
    limits: Sequence[Limit]
    reserve: Mapping[int, int] | None
    fair: Fair | None
    quota: Quota | None
    start_within: Seconds | None
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
    limits: Sequence[Limit] = (),
    reserve: Mapping[int, int] | None = None,
    fair: Fair | None = None,
    quota: Quota | None = None,
    start_within: Seconds | None = None,
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
        limits=limits_of(name, limits),
        reserve=reserve_of(name, reserve, concurrency),
        fair=check_fair(name, fair),
        quota=check_quota(name, quota),
        start_within=None if start_within is None else positive(start_within, "start_within"),
        doc=doc.strip(),
    )


def reserve_of(handler: str, reserve: Mapping[int, int] | None, concurrency: int) -> dict[int, int]:
    """Return the slots that a handler keeps for high priorities, checked: one slot at least is for all."""
    if reserve is None:
        return {}
    if not isinstance(reserve, Mapping):
        raise InvalidValue(f"{handler}: reserve says how many slots are kept for which priorities, such as {{9: 5}}, got {reserve!r}")
    kept = {
        check_priority(priority): whole_number(count, f"{handler}: the slots that reserve keeps") for priority, count in reserve.items()
    }
    if 0 in kept:
        raise InvalidValue(f"{handler}: reserve keeps slots for a priority and those above it; for 0 that is all of them: leave it out")
    if sum(kept.values()) >= concurrency:
        raise InvalidValue(
            f"{handler}: reserve keeps {sum(kept.values())} of {concurrency} slots, so that lower priorities would never start; "
            "raise concurrency= or keep fewer"
        )
    return dict(sorted(kept.items()))


def limits_of(handler: str, limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Return the limits of a handler if each is one, and of another name."""
    if not isinstance(limits, Sequence) or not all(isinstance(limit, Limit) for limit in limits):
        raise InvalidValue(f'{handler}: limits must be a list such as [Limit("erp", running=40)], got {limits!r}')
    names = [limit.name for limit in limits]
    if len(set(names)) < len(names):
        raise InvalidValue(f"{handler}: a limit is given twice: {max(names, key=names.count)}; use take(2) if an attempt needs two of it")
    counted = [limit.name for limit in limits if limit.is_counted]
    if len(counted) > MOST_COUNTED:
        raise InvalidValue(
            f"{handler}: at most {MOST_COUNTED} limits may have by=, rate= or over=, got {', '.join(counted)}; the others running= alone"
        )
    return tuple(limits)
