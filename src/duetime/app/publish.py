"""Declare handlers whose attempts are messages to a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, Unpack, overload

from duetime.app.handlers import AnyHandler, Handler
from duetime.app.options import TargetOptions, checked_spec
from duetime.clock import Seconds
from duetime.errors import InvalidValue
from duetime.model.disabling import DisableAfter
from duetime.model.fairness import Fair
from duetime.model.limit import Limit
from duetime.model.quota import Quota
from duetime.model.retry import RetryPolicy
from duetime.model.task import check_name
from duetime.targets.http.auth import Basic
from duetime.targets.http.spec import PAYLOAD
from duetime.targets.policies import DisableScope, disabling_of, own_retention
from duetime.targets.publish.spec import publish_spec
from duetime.targets.spec import DEFAULT_CONCURRENCY, HandlerSpec
from duetime.targets.typed import payloads_of

P = ParamSpec("P")

DEFAULT_TIMEOUT = 30.0


class PublishOptions(TargetOptions, total=False):
    """The options of a handler that publishes, besides its payload; `DeclaresPublish.publish` explains them."""

    body: Any
    headers: Mapping[str, str]
    auth: Basic | None
    max_length: int | None
    exchange: str | None
    retain: bool | None
    doc: str


class DeclaresPublish:
    """Declares handlers whose attempts are messages to a broker."""

    _prefix: str

    def register(self, spec: HandlerSpec) -> AnyHandler:
        raise NotImplementedError

    @overload
    def publish(
        self, name: str, url: str, *, to: str, payload: Callable[P, object], **options: Unpack[PublishOptions]
    ) -> Handler[P, None, Callable[..., NoReturn]]: ...
    @overload
    def publish(
        self, name: str, url: str, *, to: str, **options: Unpack[PublishOptions]
    ) -> Handler[..., None, Callable[..., NoReturn]]: ...
    def publish(
        self,
        name: str,
        url: str,
        *,
        to: str,
        payload: Callable[..., object] | None = None,
        body: Any = PAYLOAD,
        headers: Mapping[str, str] | None = None,
        auth: Basic | None = None,
        max_length: int | None = None,
        exchange: str | None = None,
        retain: bool | None = None,
        timeout: Seconds = DEFAULT_TIMEOUT,
        retry: RetryPolicy | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        priority: int = 5,
        limits: Sequence[Limit] = (),
        reserve: Mapping[int, int] | None = None,
        fair: Fair | None = None,
        quota: Quota | None = None,
        start_within: Seconds | None = None,
        aliases: Sequence[str] = (),
        keep_succeeded: Seconds | None = None,
        keep_failed: Seconds | None = None,
        keep_cancelled: Seconds | None = None,
        keep_dropped: Seconds | None = None,
        keep_expired: Seconds | None = None,
        disable_after: int | DisableAfter | None = None,
        disable: DisableScope = "handler",
        doc: str = "",
    ) -> Any:
        """Declare a handler whose attempts are messages to a broker. It is submitted and scheduled like any other.

            command = app.publish("devices.command", "mqtt://broker.example", to="devices/{payload.device}/commands")
            await command.at(tonight, device="d7", action="restart")

        `url` is the broker: `nats://`, `redis://` (or `valkey://`), `mqtt://`, `amqp://` or `kafka://`, and the same with TLS. `to` is the
        subject, stream, topic or routing key. It, `body` (a JSON value) and the values of `headers` are templates with references:
        `{payload.…}`, `{meta.…}`, `{task.id}`, `{now}`, `{uuid}`. Without a `body` the payload is sent. `payload` is a class or function
        with the parameters that a payload has. `auth` is `Basic(user, password)`; the password may be a `Secret`. An attempt succeeds when
        the broker has confirmed the message; while the broker cannot be reached tasks wait and use no tries.

        For Redis, `max_length` is about how many messages a stream keeps. For AMQP, `exchange` is where messages go instead of the queue
        named by `to`. For MQTT, with `retain` the broker keeps the last message for those who come later.
        `keep_succeeded` and the like: how long its finished tasks are kept, as for `task`.

        `disable_after` failures in a row over ten minutes (or as a `DisableAfter` says) disable the handler, or with `disable="collection"`
        the collection of the failing tasks: they wait behind an automatic gate, and every quarter of an hour one of them tries. When one
        succeeds, the gate opens.
        """
        full = check_name(self._prefix + name, "the name of a handler")
        payloads = payloads_of(full, payload, None)
        try:
            target = publish_spec(
                url,
                to=to,
                names=payloads.names,
                body=body,
                headers=headers,
                auth=auth,
                max_length=max_length,
                exchange=exchange,
                retain=retain,
            )
        except InvalidValue as error:
            raise InvalidValue(f"{full}: {error}") from None
        return self.register(
            checked_spec(
                full,
                target,
                payloads,
                prefix=self._prefix,
                timeout=timeout,
                retry=retry,
                concurrency=concurrency,
                priority=priority,
                limits=limits,
                reserve=reserve,
                fair=fair,
                quota=quota,
                start_within=start_within,
                aliases=aliases,
                keep=own_retention(keep_succeeded, keep_failed, keep_cancelled, keep_dropped, keep_expired),
                disabling=disabling_of(disable_after, disable),
                doc=doc,
            )
        )
