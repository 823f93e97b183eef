"""What `t.answer_next` prepares: the answer to a request, the end of a command, or what a broker says."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from duetime.errors import InvalidValue
from duetime.targets.http.answers import lower
from duetime.targets.http.messages import Answer
from duetime.targets.spec import HandlerSpec
from duetime.testing.messages import BrokerAnswer, Messages
from duetime.testing.requests import CommandAnswer, Requests


class PreparedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `t.answer_next`. Which of them may be given depends on the handler's target."""

    status: int | None
    body: object
    headers: Mapping[str, str] | None
    exit: int | None
    output: str | bytes
    result: object
    broker: BrokerAnswer | None

    def prepare(self, spec: HandlerSpec, requests: Requests, messages: Messages, times: int) -> None:
        """Answer the next attempts of a handler."""
        for_request = self.status is not None or self.body is not None or self.headers is not None
        for_command = self.exit is not None or bool(self.output) or self.result is not None
        match spec.target.kind:
            case "http" if not for_command and self.broker is None:
                answer = answer_from(200 if self.status is None else self.status, self.body, self.headers)
                requests.prepare(spec.name, answer, times)
            case "command" if not for_request and self.broker is None:
                requests.prepare_exit(spec.name, exit_from(self.exit or 0, self.output, self.result), times)
            case "publish" if not for_request and not for_command:
                messages.prepare(spec.name, self.broker or "confirmed", times)
            case "http":
                raise InvalidValue(f"{spec.name} is an HTTP handler: answer it with status, body and headers")
            case "command":
                raise InvalidValue(f"{spec.name} is a command: answer it with exit, output and result")
            case "publish":
                raise InvalidValue(f"{spec.name} publishes messages: answer it with broker")
            case _:
                raise InvalidValue(f"{spec.name} is neither an HTTP handler nor a command, nor does it publish; use fail_next")


def exit_from(exit: int, output: str | bytes, result: object) -> CommandAnswer:
    """Return how a command ends."""
    if isinstance(exit, bool) or not isinstance(exit, int) or not -64 <= exit <= 255:
        raise InvalidValue(f"exit must be a code from 0 to 255, or a signal as a negative number, got {exit!r}")
    printed = output.encode() if isinstance(output, str) else output
    return CommandAnswer(exit, printed, b"" if result is None else msgspec.json.encode(result))


def answer_from(status: int, body: object, headers: Mapping[str, str] | None) -> Answer:
    """Return an answer: bytes and text as they are, anything else as JSON."""
    if isinstance(status, bool) or not isinstance(status, int) or not 100 <= status <= 599:
        raise InvalidValue(f"status must be a number from 100 to 599, got {status!r}")
    own = lower(headers or {})
    match body:
        case None:
            return Answer(status=status, headers=own)
        case bytes():
            return Answer(status=status, headers=own, body=body)
        case str():
            return Answer(status=status, headers={"content-type": "text/plain", **own}, body=body.encode())
        case _:
            return Answer(status=status, headers={"content-type": "application/json", **own}, body=msgspec.json.encode(body))
