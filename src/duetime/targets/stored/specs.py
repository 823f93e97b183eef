"""The handler that a stored target stands for."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec
from msgspec import UNSET

from duetime.clock import Seconds, to_seconds
from duetime.errors import InvalidValue
from duetime.model.retry import RetryPolicy, StoredRetry
from duetime.model.task import check_name, check_priority
from duetime.targets.command.command import command, described
from duetime.targets.http.spec import PAYLOAD, http_request
from duetime.targets.notices.notice import NOTIFY
from duetime.targets.notices.spec import NoticeSpec
from duetime.targets.policies import disabling_of, own_retention
from duetime.targets.publish.spec import publish_spec
from duetime.targets.spec import HandlerSpec, TargetSpec
from duetime.targets.stored.definitions import Definition, StoredCommand, StoredHttp, StoredNotices, StoredPublish
from duetime.targets.typed import AnyPayloads

MOST_SLOTS = 10_000


def spec_of(name: str, definition: Definition) -> HandlerSpec:
    """Return the handler of a definition. Raises InvalidValue that says what to change."""
    check_name(name, "the name of a handler")
    if isinstance(definition.concurrency, bool) or not 1 <= definition.concurrency <= MOST_SLOTS:
        raise InvalidValue(
            f"concurrency, the slots in each worker process, must be from 1 to {MOST_SLOTS:,}, got {definition.concurrency!r}"
        )
    return HandlerSpec(
        name=name,
        target=_target_of(name, definition),
        payloads=AnyPayloads(name, Any),
        timeout=_positive(definition.timeout, "timeout"),
        retry=_policy(definition.retry),
        concurrency=definition.concurrency,
        priority=check_priority(definition.priority),
        keep=own_retention(
            definition.keep_succeeded,
            definition.keep_failed,
            definition.keep_cancelled,
            definition.keep_dropped,
            definition.keep_expired,
        ),
        disabling=disabling_of(definition.disable_after, definition.disable),
        doc=definition.doc.strip(),
    )


def _target_of(name: str, definition: Definition) -> TargetSpec:
    match definition:
        case StoredHttp():
            return http_request(
                definition.url,
                names=None,
                method=definition.method,
                body=PAYLOAD if definition.body is UNSET else definition.body,
                headers=definition.headers,
                hosts=definition.hosts,
                auth=definition.auth,
                sign=definition.sign,
                connect=_positive(definition.connect, "connect"),
                redirects=definition.redirects,
                fatal=definition.fatal,
                certificate=definition.certificate,
                keep=definition.keep,
                callback=definition.callback,
                stored=True,
            )
        case StoredPublish():
            return publish_spec(
                definition.url,
                names=None,
                to=definition.to,
                body=PAYLOAD if definition.body is UNSET else definition.body,
                headers=definition.headers,
                auth=definition.auth,
                max_length=definition.max_length,
                exchange=definition.exchange,
                retain=definition.retain,
                stored=True,
            )
        case StoredCommand():
            try:
                return command(
                    name,
                    definition.argv,
                    artifact=definition.artifact,
                    stdin=definition.stdin,
                    env=definition.env,
                    keep_env=definition.keep_env,
                    sandbox=definition.sandbox,
                    exits=definition.exits,
                    stop=definition.stop,
                    grace=definition.grace,
                    result=None,
                    names=None,
                )
            except InvalidValue as error:  # it names the handler first; here the field comes first
                raise InvalidValue(str(error).removeprefix(f"{name}: ")) from None
        case StoredNotices():
            return _notices(name)
    assert_never(definition)


def _notices(name: str) -> NoticeSpec:
    if name != NOTIFY:
        raise InvalidValue(f"kind: notices are sent by {NOTIFY} alone; store a channel instead: duetime channels put")
    return NoticeSpec()


def _positive(duration: Seconds, what: str) -> float:
    seconds = to_seconds(duration, what)
    if seconds <= 0:
        raise InvalidValue(f"{what} must be positive, got {duration}")
    return seconds


def _policy(retry: StoredRetry | None) -> RetryPolicy:
    return RetryPolicy() if retry is None else RetryPolicy(**{name: getattr(retry, name) for name in StoredRetry.__struct_fields__})


def summary_of(definition: Definition) -> str:
    """Return what a definition does, in one line for people."""
    match definition:
        case StoredHttp():
            return f"{definition.method.upper()} {definition.url}"
        case StoredPublish():
            return f"publish to {definition.to} at {definition.url}"
        case StoredCommand():
            return described(definition.argv or (), definition.artifact)
        case StoredNotices():
            return "notices of alerts"
    assert_never(definition)


def shown_definition(definition: Definition) -> dict[str, Any]:
    """Return a definition as plain JSON values."""
    shown: dict[str, Any] = msgspec.to_builtins(definition)
    return shown
