"""Declare handlers whose attempts are HTTP requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar, Unpack, overload

from duetime.app.handlers import AnyHandler, Handler, positive
from duetime.app.options import TargetOptions, checked_spec
from duetime.clock import Seconds
from duetime.errors import InvalidValue
from duetime.model.disabling import DisableAfter
from duetime.model.fairness import Fair
from duetime.model.limit import Limit
from duetime.model.quota import Quota
from duetime.model.retry import RetryPolicy
from duetime.model.secrets import Secret
from duetime.model.task import check_name
from duetime.targets.http.auth import Auth, Credential
from duetime.targets.http.callbacks import Callback
from duetime.targets.http.redirects import Redirects
from duetime.targets.http.spec import PAYLOAD, http_request
from duetime.targets.policies import DisableScope, disabling_of, own_retention
from duetime.targets.spec import DEFAULT_CONCURRENCY, HandlerSpec
from duetime.targets.typed import payloads_of

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_TIMEOUT = 30.0
DEFAULT_CONNECT = 5.0


class HttpOptions(TargetOptions, total=False):
    """The options of an HTTP handler besides its payload and result; `DeclaresHttp.http` explains them."""

    method: str
    body: Any
    headers: Mapping[str, str | Secret]
    hosts: Sequence[str]
    auth: Auth | None
    sign: Credential | Sequence[Credential]
    connect: Seconds
    redirects: Redirects
    fatal: Sequence[int]
    certificate: Credential | None
    keep: int
    callback: Callback | None
    doc: str


class DeclaresHttp:
    """Declares handlers whose attempts are requests to a URL."""

    _prefix: str

    def register(self, spec: HandlerSpec) -> AnyHandler:
        raise NotImplementedError

    @overload
    def http(
        self, name: str, url: str, *, payload: Callable[P, object], result: type[R], **options: Unpack[HttpOptions]
    ) -> Handler[P, R, Callable[..., NoReturn]]: ...
    @overload
    def http(
        self, name: str, url: str, *, payload: Callable[P, object], **options: Unpack[HttpOptions]
    ) -> Handler[P, Any, Callable[..., NoReturn]]: ...
    @overload
    def http(self, name: str, url: str, *, result: type[R], **options: Unpack[HttpOptions]) -> Handler[..., R, Callable[..., NoReturn]]: ...
    @overload
    def http(self, name: str, url: str, **options: Unpack[HttpOptions]) -> Handler[..., Any, Callable[..., NoReturn]]: ...
    def http(
        self,
        name: str,
        url: str,
        *,
        payload: Callable[..., object] | None = None,
        result: Any = None,
        method: str = "POST",
        body: Any = PAYLOAD,
        headers: Mapping[str, str | Secret] | None = None,
        hosts: Sequence[str] = (),
        auth: Auth | None = None,
        sign: Credential | Sequence[Credential] = (),
        timeout: Seconds = DEFAULT_TIMEOUT,
        connect: Seconds = DEFAULT_CONNECT,
        redirects: Redirects = "none",
        fatal: Sequence[int] = (),
        certificate: Credential | None = None,
        keep: int = 16_384,
        callback: Callback | None = None,
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
        """Declare a handler whose attempts are requests to a URL. It is submitted and scheduled like any other.

            charge = app.http("charge", "https://billing.example/charges/{payload.order_id}", method="PUT")
            await charge.after(60, order_id=7, amount=12)

        `url`, `body` (a JSON value) and the values of `headers`, unless they are a `Secret`, are templates with references: `{payload.…}`,
        `{meta.…}`, `{task.id}`, `{now}`, `{uuid}`. Without a `body`, POST, PUT and PATCH send the payload; None sends nothing. `hosts`
        lists what a reference in the host may become. `payload` is a class or function with the parameters that a payload has, `result` the
        type of an answer's JSON. `auth` is `Basic(…)` or `Bearer(…)`, with the value itself or the name of a stored one,
        `Bearer(Secret("billing"))`. `sign` is a `Secret`, whose good values all sign, or a text (`duetime.webhooks.new_secret()`), or
        several: requests are signed as Standard Webhooks has it. `timeout` bounds an attempt, `connect` the time until it is connected.
        `redirects` are followed with "same-host" or "any", at most three. A status in `fatal`, and 410, is not tried again. `certificate`
        is the client's own with its key, as PEM text, the path of a file, or a `Secret` with that text. Of a body `keep` bytes are kept, as
        the attempt's output. `keep_succeeded` and the like: how long its finished tasks are kept, as for `task`.
        With `callback=Callback(within=…, silence=…)` the server may answer 202 and report the end later, to the URL in the header
        `Duetime-Callback`: no slot is taken meanwhile.

        `disable_after` failures in a row over ten minutes (or as a `DisableAfter` says) disable the handler, or with `disable="collection"`
        the collection of the failing tasks: they wait behind an automatic gate, and every quarter of an hour one of them tries. When one
        succeeds, the gate opens.
        """
        full = check_name(self._prefix + name, "the name of a handler")
        payloads = payloads_of(full, payload, result)
        try:
            target = http_request(
                url,
                names=payloads.names,
                method=method,
                body=body,
                headers=headers,
                hosts=hosts,
                auth=auth,
                sign=sign,
                connect=positive(connect, "connect"),
                redirects=redirects,
                fatal=fatal,
                certificate=certificate,
                keep=keep,
                callback=callback,
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
