"""Artifacts over HTTP: announced, uploaded to an address that needs no token, and committed. Only the commit makes a version."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response

from duetime.api.answers import answer
from duetime.api.call import Call
from duetime.api.problems import Refusal
from duetime.api.route import Route
from duetime.client.artifacts import ArtifactInfo, LocalArtifacts, NewUpload
from duetime.model.access import Scope
from duetime.model.artifacts import UPLOAD_WITHIN, check_artifact_name, read_reference
from duetime.remote.address import part
from duetime.wire.artifacts import ArtifactList, DeleteQuery, UploadBody, UploadQuery
from duetime.wire.fields import NoBody, NoQuery
from duetime.wire.problem import INVALID, TOO_LARGE, Fault, pointing

NEWEST = "newest"

_body = msgspec.json.Decoder(UploadBody)
_FIELDS = {name: name for name in UploadBody.__struct_fields__}


def _artifacts(call: Call) -> LocalArtifacts:
    found = call.app.artifacts
    assert isinstance(found, LocalArtifacts), "a server has a store"
    return found


def _reference(call: Call) -> str:
    name, version = check_artifact_name(call.path["name"]), call.path["version"]
    return name if version == NEWEST else str(read_reference(f"{name}@{version}"))


async def list_artifacts(call: Call) -> Response:
    call.query(NoQuery)
    return answer(ArtifactList(await call.app.artifacts.list()))


async def list_versions(call: Call) -> Response:
    call.query(NoQuery)
    return answer(ArtifactList(await call.app.artifacts.list(check_artifact_name(call.path["name"]))))


async def get(call: Call) -> Response:
    call.query(NoQuery)
    return answer(await call.app.artifacts.get(_reference(call)))


async def begin(call: Call) -> Response:
    call.query(NoQuery)
    name, body = check_artifact_name(call.path["name"]), await call.body(_body)
    async with call.acting("artifacts.begin", name) as act:
        with pointing("", _FIELDS):
            upload = await _artifacts(call).begin(
                name,
                sha256=body.sha256,
                size=body.size,
                file=body.file,
                run=body.run,
                note=body.note,
                unpack=body.unpack,
                by=call.caller.name,
            )
        act.detail = f"upload {upload.id}, {body.size:,} bytes, SHA-256 {body.sha256}"
    if upload.url.startswith("/"):
        upload = msgspec.structs.replace(upload, url=f"{call.prefix}{upload.url}")
    return answer(upload, 201, {"location": upload.url})


async def receive(call: Call) -> Response:
    """Take the bytes of an upload. Its address is all that it needs, so nothing is read before that is known to be good."""
    signature = call.query(UploadQuery).signature
    artifacts = _artifacts(call)
    upload = await artifacts.signed(call.path["upload"], signature)
    announced = call.header("content-length")
    if announced is not None and announced != str(upload.size):
        raise _wrong_size(upload.size, announced)
    call.take_time(UPLOAD_WITHIN)
    await artifacts.receive(upload, _pieces(call, upload.size))
    return Response(status_code=204)


async def _pieces(call: Call, size: int) -> AsyncIterator[bytes]:
    """Yield the body, and refuse it as soon as it is known not to have the announced size."""
    received = 0
    async for piece in call.pieces():
        received += len(piece)
        if received > size:
            raise _wrong_size(size, f"more than {size}")
        yield piece
    if received != size:
        raise _wrong_size(size, str(received))


def _wrong_size(size: int, got: str) -> Refusal:
    return Refusal(
        TOO_LARGE if not got.isdecimal() or int(got) > size else INVALID,
        f"{size:,} bytes were announced, got {got[:30]}; begin another upload with the right size",
        faults=[Fault("is not of the announced size", pointer="")],
        headers={"connection": "close"},
    )


async def commit(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    name = check_artifact_name(call.path["name"])
    async with call.acting("artifacts.put", name) as act:
        made = await _artifacts(call).commit(name, call.path["upload"])
        act.detail = str(made)
    return answer(made, 201, _location(call, made))


def _location(call: Call, made: ArtifactInfo) -> dict[str, str]:
    return {"location": f"{call.prefix}/v1/artifacts/{part(made.name)}/versions/{made.version}"}


async def restore(call: Call) -> Response:
    call.query(NoQuery)
    await call.empty_body()
    reference = _reference(call)
    async with call.acting("artifacts.restore", reference) as act:
        made = await call.app.artifacts.restore(reference, by=call.caller.name)
        act.detail = str(made)
    return answer(made, 201, _location(call, made))


async def delete(call: Call) -> Response:
    force = call.query(DeleteQuery).force
    await call.empty_body()
    reference = _reference(call)
    async with call.acting("artifacts.delete", reference) as act:
        removed = await call.app.artifacts.delete(reference, force=force)
        act.detail = str(removed)
    return answer(removed)


ROUTES = (
    Route(
        name="list_artifacts", method="GET", path="/v1/artifacts", endpoint=list_artifacts, scope=Scope.ADMIN,
        summary="List the newest version of each artifact.", answer=ArtifactList,
    ),
    Route(
        name="list_artifact_versions", method="GET", path="/v1/artifacts/{name}", endpoint=list_versions, scope=Scope.ADMIN,
        summary="List the versions of an artifact, the newest first.", answer=ArtifactList, problems=(404,),
    ),
    Route(
        name="begin_upload", method="POST", path="/v1/artifacts/{name}/uploads", endpoint=begin, scope=Scope.ADMIN,
        summary="Announce an upload. The answer has an address to which the bytes can be sent for 15 minutes, without a token.",
        body=UploadBody, answer=NewUpload, status=201, problems=(409,),
    ),
    Route(
        name="upload", method="PUT", path="/v1/uploads/{upload}", endpoint=receive, scope=None,
        summary="Send the bytes of an upload to the address that announcing it returned. They are not kept before they are committed.",
        query=UploadQuery, body=bytes, status=204, problems=(404, 409, 413, 422),
    ),
    Route(
        name="commit_upload", method="POST", path="/v1/artifacts/{name}/uploads/{upload}/commit", endpoint=commit, scope=Scope.ADMIN,
        summary="Make a version of what was uploaded, if its size and its hash are those that were announced.",
        body=NoBody, optional_body=True, answer=ArtifactInfo, status=201, problems=(404, 409),
    ),
    Route(
        name="get_artifact", method="GET", path="/v1/artifacts/{name}/versions/{version}", endpoint=get, scope=Scope.ADMIN,
        summary="Return a version of an artifact, by its number or as `newest`.", answer=ArtifactInfo, problems=(404,),
    ),
    Route(
        name="restore_artifact", method="POST", path="/v1/artifacts/{name}/versions/{version}/restore", endpoint=restore,
        scope=Scope.ADMIN, summary="Make an earlier version of an artifact the newest one again, under a new number.",
        body=NoBody, optional_body=True, answer=ArtifactInfo, status=201, problems=(404,),
    ),
    Route(
        name="delete_artifact", method="DELETE", path="/v1/artifacts/{name}/versions/{version}", endpoint=delete, scope=Scope.ADMIN,
        summary="Remove a version of an artifact, with `force` also one that stored targets need. Its number is not used again.",
        query=DeleteQuery, answer=ArtifactInfo, problems=(404, 409),
    ),
)  # fmt: skip
