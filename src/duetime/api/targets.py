"""Stored targets over HTTP: how the attempts of a handler are performed, without code."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from duetime.api import intake
from duetime.api.access import allow
from duetime.api.answers import answer
from duetime.api.call import JSON, Call, check_containers, decode
from duetime.api.misfits import types_in_json
from duetime.api.problems import Refusal
from duetime.api.route import Header, Route
from duetime.api.tasks import task_answer
from duetime.client.targets import TargetInfo, target_not_found
from duetime.errors import ChangedMeanwhile, InvalidValue, TargetNotFound
from duetime.model.access import Scope
from duetime.model.task import Task, check_name
from duetime.model.test_run import as_test
from duetime.remote.address import part
from duetime.targets.stored.definitions import Definition, StoredCommand, StoredHttp, StoredPublish, read_definition
from duetime.wire.fields import NoQuery
from duetime.wire.problem import BAD_REQUEST, INVALID, Fault, pointing
from duetime.wire.targets import TestBody
from duetime.wire.tasks import NewTaskBody

COMMAND = "command"
LONGEST_HEADER = 255
_any = msgspec.json.Decoder()
_tests = msgspec.json.Decoder(TestBody)
_FIELDS = {field: field for kind in (StoredHttp, StoredPublish, StoredCommand) for field in ("kind", *kind.__struct_fields__)}


async def get(call: Call) -> Response:
    call.query(NoQuery)
    name = _name(call)
    if not call.may_see(name):
        raise target_not_found(name)
    return _shown(await call.app.targets.get(name))


async def put(call: Call) -> Response:
    call.query(NoQuery)
    call.content_type(JSON)
    data = check_containers(await call.data(call.shared.limits.body))
    decode(_any, data)  # what is no JSON is answered as everywhere else
    name = _name(call)
    async with call.acting("handlers.put", name) as act:
        call.allow(name)
        with pointing("", _FIELDS):
            target = _read(data)
        stored = await _stored(call, name)
        _allow_commands(call, isinstance(target, StoredCommand) or (stored is not None and stored.kind == COMMAND))
        seen = _seen(call, name, stored)
        with pointing("", _FIELDS):
            info = await call.app.targets.put(name, target, seen=seen, by=call.caller.name)
        act.detail = f"{info.kind}, version {info.version}"
    if stored is not None:
        return _shown(info)
    return _shown(info, 201, {"location": f"{call.prefix}/v1/handlers/{part(name)}/target"})


def _read(data: bytes) -> Definition:
    try:
        return read_definition(data)
    except InvalidValue as error:
        raise InvalidValue(types_in_json(str(error))) from None


async def delete(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    name = _name(call)
    if call.header("if-none-match") is not None:
        raise Refusal(BAD_REQUEST, "If-None-Match makes no sense for DELETE; leave it out, or use If-Match")
    async with call.acting("handlers.delete", name):
        call.allow(name)
        stored = await _stored(call, name)
        _allow_commands(call, stored is not None and stored.kind == COMMAND)
        await call.app.targets.delete(name, seen=_seen(call, name, stored))
    return Response(status_code=204)


async def test(call: Call) -> Response:
    call.query(NoQuery)
    body = await call.optional_body(_tests, TestBody())
    task = intake.task_of(call.app, NewTaskBody(handler=_name(call), payload=body.payload), call.caller)
    stored = await call.app.client.submit(as_test(task))
    call.shared.figures.note_submitted(1)
    return task_answer(stored, 201, {"location": f"{call.prefix}/v1/tasks/{stored.id}"})


async def _stored(call: Call, name: str) -> TargetInfo | None:
    try:
        return await call.app.targets.get(name)
    except TargetNotFound:
        return None


def _allow_commands(call: Call, is_command: bool) -> None:
    """Refuse a caller without the scope admin what is about a command: it decides which programs run on workers."""
    if is_command:
        allow(call.caller, Scope.ADMIN)


def _seen(call: Call, name: str, stored: TargetInfo | None) -> int | None:
    """Return the version that the target must have, 0 if there must be none; None if the request does not say."""
    match, none = call.header("if-match"), call.header("if-none-match")
    if match is not None and none is not None:
        raise Refusal(BAD_REQUEST, "give If-Match or If-None-Match, not both")
    if none is not None:
        if none.strip() != "*":
            detail = "If-None-Match must be * here: only if no target is stored under that name"
            raise Refusal(INVALID, detail, faults=[Fault(detail, parameter="If-None-Match")])
        return 0
    if match is None:
        return None
    if not 1 <= len(match) <= LONGEST_HEADER:
        detail = f"If-Match must have 1 to {LONGEST_HEADER} characters, got {len(match):,}"
        raise Refusal(INVALID, detail, faults=[Fault(detail, parameter="If-Match")])
    tags = [each.strip().strip('"') for each in match.split(",")]
    if stored is None or not ("*" in tags or str(stored.version) in tags):
        is_now = "nothing is stored under it" if stored is None else f'its ETag is "{stored.version}"'
        raise ChangedMeanwhile(f"the target of {name!r} is not as If-Match expects: {is_now}")
    return stored.version


def _name(call: Call) -> str:
    return check_name(call.path["name"], "the name of a handler")


def _shown(info: TargetInfo, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return answer(info, status, {"etag": f'"{info.version}"', **(headers or {})})


_IF_MATCH = Header("If-Match", "Only if the target still has this ETag.")
_IF_NONE_MATCH = Header("If-None-Match", "`*`: only if no target is stored under that name.")

ROUTES = (
    Route(
        name="get_target", method="GET", path="/v1/handlers/{name}/target", endpoint=get, scope=Scope.READ,
        summary="Return the target that is stored under a handler's name.", answer=TargetInfo, problems=(404,),
    ),
    Route(
        name="put_target", method="PUT", path="/v1/handlers/{name}/target", endpoint=put, scope=Scope.OPERATE,
        summary="Store how a handler's attempts are performed: a request, a message to a broker or, with the scope admin, a command.",
        body=Definition, answer=TargetInfo, also=(201,), problems=(409, 412), headers=(_IF_MATCH, _IF_NONE_MATCH),
    ),
    Route(
        name="delete_target", method="DELETE", path="/v1/handlers/{name}/target", endpoint=delete, scope=Scope.OPERATE,
        summary="Remove a stored target; tasks of the handler wait. A command needs the scope admin.",
        status=204, problems=(404, 409, 412), headers=(_IF_MATCH,),
    ),
    Route(
        name="test_handler", method="POST", path="/v1/handlers/{name}/test", endpoint=test, scope=Scope.SUBMIT,
        summary="Run one task of a handler as a test: before others, tried once; a request writes its phases to its logs as they begin.",
        body=TestBody, optional_body=True, answer=Task, status=201, problems=(404,),
    ),
)  # fmt: skip
