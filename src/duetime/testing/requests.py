"""Requests of HTTP handlers, and commands, in tests: no network and no process, the answers come from the test."""

from __future__ import annotations

import contextlib
import shlex
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.artifacts.source import ArtifactSource, Ready
from duetime.clock import ManualClock, to_datetime
from duetime.model.artifacts import Artifact, Reference
from duetime.targets.command.supervising import Order, Report, Supervision
from duetime.targets.http.answers import lower
from duetime.targets.http.messages import Answer, Request
from duetime.targets.http.phases import Phases
from duetime.targets.spec import HandlerSpec


class UnansweredRequest(BaseException):
    """A handler sent a request, or ran a command, for which the test has prepared no answer. Not an Exception: no retry may hide it."""


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that a handler has sent, a message that it has published (`PUBLISH`), or a command that it has run.

    The names of headers are in lower case. Of a message `to` is the subject, stream, topic or routing key, and `url` the broker. Of a
    command there are `argv` and `env`, and its body is what it could read from stdin.
    """

    handler: str
    task: str
    attempt: int
    at: datetime
    method: str = ""
    url: str = ""
    headers: Mapping[str, str] = {}
    body: bytes = b""
    argv: Sequence[str] = ()
    env: Mapping[str, str] = {}
    to: str = ""

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)


class Requests:
    """What HTTP handlers have sent and commands were run, and the answers that they get."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._answers: dict[str, deque[Answer]] = {}
        self._exits: dict[str, deque[CommandAnswer]] = {}
        self.sent: list[SentRequest] = []

    def prepare(self, handler: str, answer: Answer, times: int) -> None:
        """Answer the next requests of a handler."""
        self._answers.setdefault(handler, deque()).extend([answer] * times)

    def prepare_exit(self, handler: str, answer: CommandAnswer, times: int) -> None:
        """Let the next commands of a handler end so."""
        self._exits.setdefault(handler, deque()).extend([answer] * times)

    def run(self, order: Order) -> CommandAnswer:
        """Note a command, and return how it ends."""
        task, attempt = order.env["DUETIME_TASK"], int(order.env["DUETIME_ATTEMPT"])
        body = b"" if order.stdin is None else order.stdin.encode()
        sent = SentRequest(
            handler=order.handler,
            task=task,
            attempt=attempt,
            at=to_datetime(self.clock.now()),
            body=body,
            argv=tuple(order.argv),
            env=dict(order.env),
        )
        self.sent.append(sent)
        exits = self._exits.get(order.handler)
        if not exits:
            raise UnansweredRequest(
                f"{order.handler} ran {shlex.join(order.argv)} (attempt {attempt} of task {task}), and no answer is prepared for it: "
                f"call t.answer_next({order.handler}, exit=0) before"
            )
        return exits.popleft()

    def sender(self, handler: HandlerSpec) -> _TestSender:
        return _TestSender(self, handler.name)

    def answer(self, handler: str, request: Request) -> Answer:
        headers = lower(request.headers)
        task, attempt = headers["duetime-task"], int(headers["duetime-attempt"])
        self.sent.append(
            SentRequest(
                handler=handler,
                task=task,
                attempt=attempt,
                at=to_datetime(self.clock.now()),
                method=request.method,
                url=request.url,
                headers=headers,
                body=request.body or b"",
            )
        )
        answers = self._answers.get(handler)
        if not answers:
            raise UnansweredRequest(
                f"{handler} sent {request.method} {request.url} (attempt {attempt} of task {task}), and no answer is prepared for it: "
                f"call t.answer_next({handler}, status=200) before"
            )
        return answers.popleft()


class _TestSender:
    def __init__(self, requests: Requests, handler: str) -> None:
        self._requests = requests
        self._handler = handler

    async def send(self, request: Request, phases: Phases) -> Answer:
        return self._requests.answer(self._handler, request)


class TestArtifacts(ArtifactSource):
    """Fetches nothing: every artifact is there, as a single program of which only the name is known."""

    __test__ = False  # not for pytest to collect

    @contextlib.asynccontextmanager
    async def using(self, reference: Reference) -> AsyncIterator[Ready]:
        facts: dict[str, Any] = {"sha256": "0" * 64, "size": 1, "file": reference.name, "made_at": 0, "made_by": "test"}
        path = f"/artifacts/{reference}"
        yield Ready(Artifact(name=reference.name, version=reference.version or 1, kind="file", **facts), path, {})

    async def close(self) -> None:
        """Nothing is open."""


class CommandAnswer(msgspec.Struct, frozen=True):
    """How a command ends in a test: its exit code (negative: the signal that killed it), what it printed, and its result as JSON."""

    exit: int
    output: bytes
    result: bytes


class TestCommands:
    """Runs no command: the test says how each ends. Stands for the supervisors of a worker, and for each of them."""

    __test__ = False  # not for pytest to collect
    killed_on_purpose = False

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def run(self, order: Order, output: Callable[[bytes], None], result: Callable[[bytes], None]) -> Report:
        answer = self._requests.run(order)
        output(answer.output)
        result(answer.result)
        return Report(status=-answer.exit if answer.exit < 0 else answer.exit << 8)

    def stop(self, number: int, grace: float) -> None:
        """Nothing runs."""

    def take(self) -> TestCommands:
        return self

    def put_back(self, supervision: Supervision) -> None:
        """It is always there."""

    def kill(self) -> None:
        """Nothing runs."""

    async def close(self) -> None:
        """Nothing is open."""
