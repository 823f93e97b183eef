"""Tokens and the audit over HTTP, for admins. Only the answer to making or rotating a token has its secret."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import UnsetType
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.api.route import Route
from duetime.client.access.service import AuditList, TokenInfo
from duetime.model.access import Scope, read_token
from duetime.remote.address import part
from duetime.wire.access import AuditQuery, RevokeQuery, RotateBody, TokenBody, TokenList, TokenWithSecret, with_secret
from duetime.wire.fields import NoQuery, given
from duetime.wire.problem import INVALID

_body = msgspec.json.Decoder(TokenBody)
_rotation = msgspec.json.Decoder(RotateBody)


async def list_tokens(call: Call) -> Response:
    call.query(NoQuery)
    return answer(TokenList(await call.app.tokens.list()))


async def create(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.body(_body)
    made = await call.app.tokens.create(
        body.name,
        scopes=body.scopes,
        handlers=body.handlers,
        owner=given(body.owner),
        addresses=body.addresses,
        expires=_expiry(body.expires),
        rate=given(body.rate),
        note=body.note,
        by=call.caller,
    )
    return answer(with_secret(made), 201, {"location": f"{call.prefix}/v1/tokens/{part(made.info.name)}"})


async def rotate(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.optional_body(_rotation, RotateBody())
    made = await call.app.tokens.rotate(_name(call), grace=body.grace, expires=_expiry(body.expires), by=call.caller)
    return answer(with_secret(made))


async def revoke(call: Call) -> Response:
    force = call.query(RevokeQuery).force
    await call.empty_body()
    return answer(await call.app.tokens.revoke(_name(call), force=force, by=call.caller))


async def audit(call: Call) -> Response:
    query = call.query(AuditQuery)
    found = await call.app.tokens.audit.list(
        by=given(query.by),
        action=given(query.action),
        subject=given(query.subject),
        since=given(query.after),
        until=given(query.before),
        limit=query.limit,
        cursor=given(query.cursor),
    )
    return answer(found)


def _expiry(expires: float | datetime | UnsetType | None) -> float | datetime | None:
    return None if isinstance(expires, UnsetType) else expires


def _name(call: Call) -> str:
    name = call.path["name"]
    text = read_token(name)
    if text is not None:
        raise Refusal(
            INVALID, f"an address must not hold a token, because proxies write addresses into their logs; write its id, {text.id}"
        )
    return name


ROUTES = (
    Route(
        name="list_tokens", method="GET", path="/v1/tokens", endpoint=list_tokens, scope=Scope.ADMIN,
        summary="List the tokens, without their secrets.", answer=TokenList,
    ),
    Route(
        name="create_token", method="POST", path="/v1/tokens", endpoint=create, scope=Scope.ADMIN,
        summary="Make a token. The answer has its secret, this once.",
        body=TokenBody, answer=TokenWithSecret, status=201, problems=(409,),
    ),
    Route(
        name="rotate_token", method="POST", path="/v1/tokens/{name}/rotate", endpoint=rotate, scope=Scope.ADMIN,
        summary="Replace the secret of a token, by name or id. The answer has the new one, this once.",
        body=RotateBody, optional_body=True, answer=TokenWithSecret, problems=(404, 409),
    ),
    Route(
        name="revoke_token", method="DELETE", path="/v1/tokens/{name}", endpoint=revoke, scope=Scope.ADMIN,
        summary="Revoke a token, by name or id.", query=RevokeQuery, answer=TokenInfo, problems=(404, 409),
    ),
    Route(
        name="list_audit", method="GET", path="/v1/audit", endpoint=audit, scope=Scope.ADMIN,
        summary="List what operators did, the latest first.", query=AuditQuery, answer=AuditList,
    ),
)  # fmt: skip
