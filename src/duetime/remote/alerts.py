"""Alerts and channels over HTTP."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import UNSET

from duetime.client.alerts.alerts import LONGEST_MUTE, Alert, AlertRuleInfo, Alerts, AlertStateName, check_rule
from duetime.client.alerts.channels import ChannelInfo, Channels, check_channel
from duetime.clock import Seconds
from duetime.model.alerts.conditions import span
from duetime.model.alerts.rule import AlertRule, check_alert_name
from duetime.model.task import Task
from duetime.remote.address import part
from duetime.remote.transport import Transport
from duetime.targets.notices.channels import Channel
from duetime.wire.alerts import (
    AcknowledgeBody,
    Acknowledged,
    AlertList,
    AlertRuleList,
    ChannelList,
    MuteRuleBody,
    SuggestedRules,
    rule_body,
)


class RemoteAlerts(Alerts):
    """`app.alerts` over HTTP. The server says who did it: the token."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def put(self, rule: AlertRule, *, by: str | None = None) -> AlertRuleInfo:
        path = _rule(check_rule(rule).name)
        await self._opened()
        return await self._transport.ask(AlertRuleInfo, "PUT", path, body=rule_body(rule), again=True)

    async def get(self, name: str) -> AlertRuleInfo:
        path = _rule(name)
        await self._opened()
        return await self._transport.ask(AlertRuleInfo, "GET", path)

    async def list(self) -> builtins.list[AlertRuleInfo]:
        await self._opened()
        return (await self._transport.ask(AlertRuleList, "GET", "/v1/alert-rules")).items

    async def delete(self, name: str) -> None:
        path = _rule(name)
        await self._opened()
        await self._transport.send("DELETE", path)

    async def mute(self, name: str, *, lasting: Seconds, by: str | None = None) -> AlertRuleInfo:
        body = MuteRuleBody(lasting=span("lasting", lasting, 0.0, LONGEST_MUTE))
        path = f"{_rule(name)}/mute"
        await self._opened()
        return await self._transport.ask(AlertRuleInfo, "POST", path, body=body, again=True)

    async def firing(self, *, state: AlertStateName | None = "firing", rule: str | None = None) -> builtins.list[Alert]:
        query: Mapping[str, Any] = {"state": state or "all", **({} if rule is None else {"rule": rule})}
        await self._opened()
        return (await self._transport.ask(AlertList, "GET", "/v1/alerts", query=query)).items

    async def acknowledge(self, rule: str, subject: str | None = None, *, by: str | None = None) -> int:
        body = AcknowledgeBody(rule=rule, subject=UNSET if subject is None else subject)
        await self._opened()
        return (await self._transport.ask(Acknowledged, "POST", "/v1/alerts/acknowledge", body=body, again=True)).acknowledged

    async def suggest(self) -> builtins.list[AlertRule]:
        await self._opened()
        return (await self._transport.ask(SuggestedRules, "GET", "/v1/alerts/suggested")).items


class RemoteChannels(Channels):
    """`app.channels` over HTTP. The token needs the scope admin, but for looking and testing."""

    def __init__(self, transport: Transport, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._transport = transport
        self._opened = opened

    async def put(self, name: str, channel: Channel, *, by: str | None = None) -> ChannelInfo:
        check_channel(name, channel)
        await self._opened()
        return await self._transport.ask(ChannelInfo, "PUT", _channel(name), body=channel, again=True)

    async def get(self, name: str) -> ChannelInfo:
        path = _channel(name)
        await self._opened()
        return await self._transport.ask(ChannelInfo, "GET", path)

    async def list(self) -> builtins.list[ChannelInfo]:
        await self._opened()
        return (await self._transport.ask(ChannelList, "GET", "/v1/channels")).items

    async def delete(self, name: str) -> None:
        path = _channel(name)
        await self._opened()
        await self._transport.send("DELETE", path)

    async def test(self, name: str) -> Task[Any]:
        path = f"{_channel(name)}/test"
        await self._opened()
        return await self._transport.ask(Task[Any], "POST", path)


def _rule(name: str) -> str:
    return f"/v1/alert-rules/{part(check_alert_name(name, 'the name of a rule'))}"


def _channel(name: str) -> str:
    return f"/v1/channels/{part(check_alert_name(name, 'the name of a channel'))}"
