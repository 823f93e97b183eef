"""Secrets over HTTP: put, listed without values, deleted, sealed anew. No answer has a value."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.route import Route
from duetime.client.secrets import Rotation, SecretInfo, check_secret_name
from duetime.model.access import Scope
from duetime.wire.fields import NoBody, NoQuery
from duetime.wire.problem import pointing
from duetime.wire.secrets import SecretBody, SecretList

_body = msgspec.json.Decoder(SecretBody)


async def list_secrets(call: Call) -> Response:
    call.query(NoQuery)
    return answer(SecretList(await call.app.secrets.list()))


async def put(call: Call) -> Response:
    call.query(NoQuery)
    name = check_secret_name(call.path["name"])
    body = await call.body(_body)
    async with call.acting("secrets.put", name) as act:
        with pointing("", {"value": "value", "grace": "grace"}):
            info = await call.app.secrets.put(name, body.value, grace=body.grace, by=call.caller.name)
        act.detail = str(info)
    return answer(info)


async def delete(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    name = check_secret_name(call.path["name"])
    async with call.acting("secrets.delete", name):
        await call.app.secrets.delete(name)
    return Response(status_code=204)


async def rotate(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    async with call.acting("secrets.rotate", "all secrets") as act:
        done = await call.app.secrets.rotate()
        act.detail = str(done)
    return answer(done)


ROUTES = (
    Route(
        name="list_secrets", method="GET", path="/v1/secrets", endpoint=list_secrets, scope=Scope.ADMIN,
        summary="List the secrets, without their values.", answer=SecretList,
    ),
    Route(
        name="put_secret", method="PUT", path="/v1/secrets/{name}", endpoint=put, scope=Scope.ADMIN,
        summary="Store a secret, or another value of it. No request returns the value.",
        body=SecretBody, answer=SecretInfo, problems=(409,),
    ),
    Route(
        name="delete_secret", method="DELETE", path="/v1/secrets/{name}", endpoint=delete, scope=Scope.ADMIN,
        summary="Remove a secret with all its versions.", status=204, problems=(404,),
    ),
    Route(
        name="rotate_secret_keys", method="POST", path="/v1/secret-keys/rotate", endpoint=rotate, scope=Scope.ADMIN,
        summary="Seal all secrets anew with the first key of the server.",
        body=NoBody, optional_body=True, answer=Rotation, problems=(409,),
    ),
)  # fmt: skip
