"""Performs notices: looks their channel up when they are sent, so that one that was repaired is used by those that still wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from duetime import webhooks
from duetime.clock import to_datetime
from duetime.model.detail import detail_of
from duetime.model.outcome import Ended, Outcome
from duetime.model.secrets import Secret
from duetime.model.task import ErrorInfo
from duetime.targets.http.answers import judge
from duetime.targets.http.auth import sendable
from duetime.targets.http.messages import Request, RequestFailed, Sender
from duetime.targets.http.phases import Phases
from duetime.targets.http.spec import http_request
from duetime.targets.notices.channels import Mail, Slack, Webhook, kind_of, smtp_server
from duetime.targets.notices.documents import StoredChannel
from duetime.targets.notices.mail import Delivery, MailFailed
from duetime.targets.notices.notice import Notice, mail_of, read_notice, slack_of, webhook_of
from duetime.targets.spec import HandlerSpec
from duetime.targets.target import AttemptHandle, Stop

if TYPE_CHECKING:
    from duetime.targets.host import TargetHost

_read_stored = msgspec.json.Decoder(StoredChannel).decode
ChannelReader: TypeAlias = Callable[[str], Awaitable[bytes | None]]

SLOTS = 10
SLOTS_OF_ONE = 3  # of a channel: one that hangs leaves the others to others
AGAIN_IN = 2.0  # seconds after which a notice is tried again whose channel has all of these


class NoticeTarget:
    """Sends notices to channels."""

    direct_call = None

    def __init__(self, handler: HandlerSpec, host: TargetHost) -> None:
        self._handler = handler
        self._host = host
        self._sender: Sender | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._under_way = Counter[str]()

    def stop(self, attempt: AttemptHandle, reason: Stop) -> float:
        attempt.cancel()
        return 0.0

    async def perform(self, attempt: AttemptHandle) -> Ended:
        try:
            notice = read_notice(attempt.claimed.payload)
            body = await self._host.channels(notice.channel)
            channel = None if body is None else _read_stored(body).channel
        except msgspec.MsgspecError as error:
            return Ended(Outcome.FATAL, error=ErrorInfo("NoticeUnreadable", str(error)[:2_000]))
        if channel is None:
            text = f"there is no channel {notice.channel!r} any more; the alert was told to nobody"
            return Ended(Outcome.FATAL, error=ErrorInfo("ChannelNotFound", text))
        if self._under_way[notice.channel] >= SLOTS_OF_ONE:
            text = f"{SLOTS_OF_ONE} other notices are on their way to the channel {notice.channel}, which takes its time"
            return Ended(Outcome.RETRY_LATER, delay=AGAIN_IN, error=ErrorInfo("ChannelBusy", text))
        self._under_way[notice.channel] += 1
        try:
            ended = await (self._mail(attempt, notice, channel) if isinstance(channel, Mail) else self._post(attempt, notice, channel))
        finally:
            self._under_way[notice.channel] -= 1
        return msgspec.structs.replace(ended, detail=ended.detail or detail_of({"channel": notice.channel, "kind": kind_of(channel)}))

    async def _mail(self, attempt: AttemptHandle, notice: Notice, channel: Mail) -> Ended:
        message = mail_of(
            notice,
            sender=channel.sender,
            to=channel.to,
            message_id=f"<{attempt.claimed.id}@duetime>",  # the same at each try: who gets it twice sees one
            at=to_datetime(attempt.started_at),
        )
        auth = channel.auth
        login = None if auth is None else (auth.user, await sendable(auth.password, attempt))
        try:
            await Delivery(smtp_server(channel.server), message, login, self._mailing()).send()
        except MailFailed as failure:
            return Ended(Outcome.FAILED, error=ErrorInfo(failure.kind, str(failure)))
        return Ended(Outcome.SUCCEEDED)

    async def _post(self, attempt: AttemptHandle, notice: Notice, channel: Webhook | Slack) -> Ended:
        body = slack_of(notice) if isinstance(channel, Slack) else webhook_of(notice)
        url = await sendable(channel.url, attempt)
        headers = {"Content-Type": "application/json", "User-Agent": "duetime", "Idempotency-Key": f'"{attempt.claimed.id}"'}
        if isinstance(channel, Webhook) and channel.sign is not None:
            keys = await attempt.reveal(channel.sign)
            headers |= webhooks.sign(attempt.claimed.id, body, keys, now=attempt.started_at)
        own = frozenset({"idempotency-key"})
        request = Request(method="POST", url=url, headers=headers, body=body, own=own)
        hidden = isinstance(channel.url, Secret)  # then neither the path nor the host is anybody's business
        shown = msgspec.structs.replace(request, url="(a secret)") if hidden else request
        phases = Phases()
        try:
            answer = await self._sending(url).send(request, phases)
        except RequestFailed as failure:
            outcome = Outcome.TIMED_OUT if failure.timed_out else Outcome.FAILED
            text = f"the channel {notice.channel} cannot be reached: {failure.kind}" if hidden else str(failure)[:2_000]
            return Ended(outcome, error=ErrorInfo(failure.kind, text))
        ended, note = judge(shown, answer, fatal=frozenset(), keep=0, now=attempt.started_at + phases.elapsed())
        detail = detail_of({"channel": notice.channel, "kind": kind_of(channel), "status": answer.status, "note": note})
        return msgspec.structs.replace(ended, detail=detail, result=None)

    def _mailing(self) -> ThreadPoolExecutor:
        if self._threads is None:
            threads = self._threads = ThreadPoolExecutor(SLOTS, thread_name_prefix="duetime-mail")

            async def close() -> None:
                threads.shutdown(wait=False)  # no attempt is left, so nothing is sent any more

            self._host.closing.append(close)
        return self._threads

    def _sending(self, url: str) -> Sender:
        if self._host.sender is not None:
            return self._host.sender(self._handler)
        if self._sender is None:
            from duetime.targets.http.sender import NetworkSender  # only here: it needs aiohttp

            # trusts no address but those that are allowed: a stored channel is not the program's code
            declared = http_request("https://channels.invalid/", names=None, redirects="same-host", stored=True)
            network = NetworkSender(declared, self._host, slots=SLOTS)
            self._host.closing.append(network.close)
            self._sender = network
        return self._sender
