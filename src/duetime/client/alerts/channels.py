"""`app.channels`: where notices of alerts go."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Protocol

import msgspec

from duetime.client.client import Client
from duetime.clock import to_datetime
from duetime.errors import ChannelNotFound, Conflict, InvalidValue
from duetime.ids import new_id
from duetime.model.alerts.rule import check_alert_name
from duetime.model.retry import RetryPolicy
from duetime.model.targets import NewTarget
from duetime.model.task import NewTask, Task
from duetime.store import Store
from duetime.store.alerts import DocumentKind
from duetime.targets.declaring import declaration_of
from duetime.targets.notices.channels import Channel, Mail, Slack, Webhook
from duetime.targets.notices.documents import Kept, StoredChannel, change, channels_of, rules_of
from duetime.targets.notices.notice import NOTIFY, Notice
from duetime.targets.stored.definitions import StoredNotices, write_definition
from duetime.targets.stored.specs import spec_of

MOST_CHANNELS = 1_000
RACES = 20  # changes of others at the same moment, before ours gives up
SLOTS = 10  # notices that a worker sends at once
RETRY = RetryPolicy(tries=60, base=2, cap=1_800)  # for a day, after which a notice is worth nothing


class ChannelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored channel, and which rules tell it something."""

    name: str
    channel: Channel
    rules: list[str]
    changed_at: datetime
    changed_by: str


class Channels(Protocol):
    """Channels by name."""

    async def put(self, name: str, channel: Channel, *, by: str | None = None) -> ChannelInfo:
        """Store a channel in place of an earlier one of this name: Mail, Webhook or Slack. What still waits to be sent uses the new one."""
        ...

    async def get(self, name: str) -> ChannelInfo:
        """Return a channel. Raises ChannelNotFound if there is none."""
        ...

    async def list(self) -> list[ChannelInfo]:
        """Return all channels by name."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a channel. Raises Conflict while a rule tells it something."""
        ...

    async def test(self, name: str) -> Task[Any]:
        """Send a notice that says it is a test. The task succeeds when it has arrived, and says otherwise what is wrong."""
        ...


class LocalChannels(Channels):
    """The channels of a store."""

    def __init__(self, store: Store, client: Client, *, user: str, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._client = client
        self._user = user
        self._opened = opened

    async def put(self, name: str, channel: Channel, *, by: str | None = None) -> ChannelInfo:
        check_channel(name, channel)
        await self._opened()
        await self._serve()
        for _ in range(RACES):
            before = next(iter(await channels_of(self._store, [name])), None)
            if before is not None and before.value.channel == channel:
                return await self.get(name)
            if before is None and len(await self._store.alert_documents(DocumentKind.CHANNEL)) >= MOST_CHANNELS:
                raise Conflict(f"there are {MOST_CHANNELS:,} channels already; delete those that nobody needs")
            stored = StoredChannel(channel=channel, changed_at=self._store.now(), changed_by=by or self._user)
            if await self._store.change_alert_documents([change(DocumentKind.CHANNEL, name, before, stored)]):
                return await self.get(name)
        raise Conflict(f"others keep changing the channel {name!r} at this moment; try again")

    async def _serve(self) -> None:
        """Let all workers send notices from now on."""
        definition = StoredNotices(concurrency=SLOTS, priority=9, retry=RETRY, doc="Sends the notices of alerts to their channels.")
        target = NewTarget(name=NOTIFY, kind="notices", definition=write_definition(definition), changed_by="duetime")
        await self._store.put_target(target, declaration_of(spec_of(NOTIFY, definition)))
        self._client.admission.forget()

    async def get(self, name: str) -> ChannelInfo:
        return await self._info(await self._channel(name))

    async def list(self) -> builtins.list[ChannelInfo]:
        await self._opened()
        return [await self._info(each) for each in await channels_of(self._store)]

    async def delete(self, name: str) -> None:
        for _ in range(RACES):
            channel = await self._channel(name)
            info = await self._info(channel)
            if info.rules:
                raise Conflict(f"the channel {name!r} is told by the rule {info.rules[0]!r}; change the rule first, or delete it")
            if await self._store.change_alert_documents([change(DocumentKind.CHANNEL, name, channel, None)]):
                return
        raise Conflict(f"others keep changing the channel {name!r} at this moment; try again")

    async def test(self, name: str) -> Task[Any]:
        await self._channel(name)
        payload = msgspec.json.encode(Notice(channel=name, test=True))
        retry = msgspec.json.encode({"tries": 1})
        return await self._client.submit(NewTask[Any](id=new_id(), handler=NOTIFY, payload=payload, priority=9, retry=retry))

    async def _channel(self, name: str) -> Kept[StoredChannel]:
        check_alert_name(name, "the name of a channel")
        await self._opened()
        found = next(iter(await channels_of(self._store, [name])), None)
        if found is None:
            raise ChannelNotFound(f"there is no channel {name!r}; `duetime channels` lists all")
        return found

    async def _info(self, kept: Kept[StoredChannel]) -> ChannelInfo:
        rules = [each.name for each in await rules_of(self._store) if kept.name in each.value.rule.channels]
        stored = kept.value
        return ChannelInfo(
            name=kept.name, channel=stored.channel, rules=rules, changed_at=to_datetime(stored.changed_at), changed_by=stored.changed_by
        )


def check_channel(name: str, channel: object) -> None:
    check_alert_name(name, "the name of a channel")
    if not isinstance(channel, Mail | Webhook | Slack):
        raise InvalidValue(f"a channel is Mail(…), Webhook(…) or Slack(…), got {channel!r}")
