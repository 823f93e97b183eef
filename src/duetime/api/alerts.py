"""Alerts and channels over HTTP. A token that is for some handlers only sees the alerts of these, and no rules and channels."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.route import Route
from duetime.api.tasks import task_answer
from duetime.client.alerts.alerts import Alert, AlertRuleInfo
from duetime.client.alerts.channels import ChannelInfo
from duetime.model.access import Scope
from duetime.model.alerts.rule import check_alert_name
from duetime.model.task import Task
from duetime.wire.alerts import (
    AcknowledgeBody,
    Acknowledged,
    AlertList,
    AlertQuery,
    AlertRuleList,
    ChannelBody,
    ChannelList,
    MuteRuleBody,
    RuleBody,
    SuggestedRules,
)
from duetime.wire.fields import NoBody, NoQuery, given
from duetime.wire.problem import pointing

_rule = msgspec.json.Decoder(RuleBody)
_mute = msgspec.json.Decoder(MuteRuleBody)
_acknowledge = msgspec.json.Decoder(AcknowledgeBody)
_channel = msgspec.json.Decoder(ChannelBody)
_RULE_FIELDS = {field: field for field in RuleBody.__struct_fields__}


def visible_alerts(call: Call, alerts: list[Alert]) -> list[Alert]:
    """Return the alerts that a caller may see: one who is for some handlers only sees those of these."""
    return [each for each in alerts if not call.caller.handlers or call.may_see(each.subject)]


async def list_alerts(call: Call) -> Response:
    query = call.query(AlertQuery)
    found = await call.app.alerts.firing(state=None if query.state == "all" else query.state, rule=given(query.rule))
    return answer(AlertList(visible_alerts(call, found)))


async def acknowledge(call: Call) -> Response:
    call.query(NoQuery)
    call.allow_whole("alerts are of all")
    body = await call.body(_acknowledge)
    subject = given(body.subject)
    async with call.acting("alerts.acknowledge", body.rule[:200]) as act:
        done = await call.app.alerts.acknowledge(body.rule, subject, by=call.caller.name)
        act.detail = subject or f"{done} of them"
    return answer(Acknowledged(done))


async def suggest(call: Call) -> Response:
    call.query(NoQuery)
    return answer(SuggestedRules(await call.app.alerts.suggest()))


async def list_rules(call: Call) -> Response:
    call.query(NoQuery)
    call.allow_whole("rules of alerts are of all")
    return answer(AlertRuleList(await call.app.alerts.list()))


async def get_rule(call: Call) -> Response:
    call.query(NoQuery)
    call.allow_whole("rules of alerts are of all")
    return answer(await call.app.alerts.get(_name(call, "a rule")))


async def put_rule(call: Call) -> Response:
    call.query(NoQuery)
    call.allow_whole("alerts are of all")
    name, body = _name(call, "a rule"), await call.body(_rule)
    async with call.acting("alerts.put", name):
        with pointing("", _RULE_FIELDS):
            info = await call.app.alerts.put(body.named(name), by=call.caller.name)
    return answer(info)


async def delete_rule(call: Call) -> Response:
    call.query(NoQuery)
    call.allow_whole("alerts are of all")
    await call.empty_body()
    name = _name(call, "a rule")
    async with call.acting("alerts.delete", name):
        await call.app.alerts.delete(name)
    return Response(status_code=204)


async def mute(call: Call) -> Response:
    call.query(NoQuery)
    call.allow_whole("alerts are of all")
    name, body = _name(call, "a rule"), await call.body(_mute)
    async with call.acting("alerts.mute", name) as act:
        info = await call.app.alerts.mute(name, lasting=body.lasting, by=call.caller.name)
        act.detail = f"for {body.lasting:g} s"
    return answer(info)


async def list_channels(call: Call) -> Response:
    call.query(NoQuery)
    call.allow_whole("channels are of all")
    return answer(ChannelList(await call.app.channels.list()))


async def get_channel(call: Call) -> Response:
    call.query(NoQuery)
    call.allow_whole("channels are of all")
    return answer(await call.app.channels.get(_name(call, "a channel")))


async def put_channel(call: Call) -> Response:
    call.query(NoQuery)
    name, body = _name(call, "a channel"), await call.body(_channel)
    async with call.acting("channels.put", name):
        info = await call.app.channels.put(name, body, by=call.caller.name)
    return answer(info)


async def delete_channel(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    name = _name(call, "a channel")
    async with call.acting("channels.delete", name):
        await call.app.channels.delete(name)
    return Response(status_code=204)


async def test_channel(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    name = _name(call, "a channel")
    async with call.acting("channels.test", name):
        task = await call.app.channels.test(name)
    return task_answer(task, 201)


def _name(call: Call, what: str) -> str:
    return check_alert_name(call.path["name"], f"the name of {what}")


ROUTES = (
    Route(
        name="list_alerts", method="GET", path="/v1/alerts", endpoint=list_alerts, scope=Scope.READ,
        summary="List what fires now, or is about to.", query=AlertQuery, answer=AlertList,
    ),
    Route(
        name="acknowledge_alert", method="POST", path="/v1/alerts/acknowledge", endpoint=acknowledge, scope=Scope.OPERATE,
        summary="Take notice of what a rule fires for: it is not repeated any more.",
        body=AcknowledgeBody, answer=Acknowledged, problems=(404, 409),
    ),
    Route(
        name="suggest_alert_rules", method="GET", path="/v1/alerts/suggested", endpoint=suggest, scope=Scope.READ,
        summary="Return rules that would suit what is declared; none is stored.", answer=SuggestedRules,
    ),
    Route(
        name="list_alert_rules", method="GET", path="/v1/alert-rules", endpoint=list_rules, scope=Scope.READ,
        summary="List the rules of alerts.", answer=AlertRuleList,
    ),
    Route(
        name="get_alert_rule", method="GET", path="/v1/alert-rules/{name}", endpoint=get_rule, scope=Scope.READ,
        summary="Return a rule of alerts.", answer=AlertRuleInfo, problems=(404,),
    ),
    Route(
        name="put_alert_rule", method="PUT", path="/v1/alert-rules/{name}", endpoint=put_rule, scope=Scope.OPERATE,
        summary="Store a rule in place of an earlier one of its name.", body=RuleBody, answer=AlertRuleInfo, problems=(409,),
    ),
    Route(
        name="delete_alert_rule", method="DELETE", path="/v1/alert-rules/{name}", endpoint=delete_rule, scope=Scope.OPERATE,
        summary="Remove a rule.", status=204, problems=(404, 409),
    ),
    Route(
        name="mute_alert_rule", method="POST", path="/v1/alert-rules/{name}/mute", endpoint=mute, scope=Scope.OPERATE,
        summary="Tell nothing of a rule for a while.", body=MuteRuleBody, answer=AlertRuleInfo, problems=(404, 409),
    ),
    Route(
        name="list_channels", method="GET", path="/v1/channels", endpoint=list_channels, scope=Scope.OPERATE,
        summary="List where notices go.", answer=ChannelList,
    ),
    Route(
        name="get_channel", method="GET", path="/v1/channels/{name}", endpoint=get_channel, scope=Scope.OPERATE,
        summary="Return a channel.", answer=ChannelInfo, problems=(404,),
    ),
    Route(
        name="put_channel", method="PUT", path="/v1/channels/{name}", endpoint=put_channel, scope=Scope.ADMIN,
        summary="Store a channel in place of an earlier one of its name.", body=ChannelBody, answer=ChannelInfo, problems=(409,),
    ),
    Route(
        name="delete_channel", method="DELETE", path="/v1/channels/{name}", endpoint=delete_channel, scope=Scope.ADMIN,
        summary="Remove a channel that no rule tells something.", status=204, problems=(404, 409),
    ),
    Route(
        name="test_channel", method="POST", path="/v1/channels/{name}/test", endpoint=test_channel, scope=Scope.ADMIN,
        summary="Send a test; the task says whether it arrived.", body=NoBody, optional_body=True, answer=Task, status=201, problems=(404,),
    ),
)  # fmt: skip
