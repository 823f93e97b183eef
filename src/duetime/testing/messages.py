"""Messages of handlers that publish, in tests: no broker, the test says what it would have said."""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias, get_args

from duetime.clock import to_datetime
from duetime.errors import InvalidValue
from duetime.targets.http.answers import lower
from duetime.targets.publish.messages import Acknowledgement, BrokerUnreachable, Message, PublishRefused
from duetime.targets.publish.spec import CONTENT_TYPE, Publish
from duetime.targets.spec import HandlerSpec
from duetime.testing.requests import Requests, SentRequest, UnansweredRequest

BrokerAnswer: TypeAlias = Literal["confirmed", "refused", "unreachable"]


class Messages:
    """What handlers have published, and what brokers say to it. It is listed among the requests."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._answers: dict[str, deque[BrokerAnswer]] = {}

    def prepare(self, handler: str, answer: BrokerAnswer, times: int) -> None:
        """Answer the next messages of a handler."""
        if answer not in get_args(BrokerAnswer):
            raise InvalidValue(f"broker must be one of {', '.join(get_args(BrokerAnswer))}, got {answer!r}")
        self._answers.setdefault(handler, deque()).extend([answer] * times)

    def publisher(self, handler: HandlerSpec) -> _TestPublisher:
        assert isinstance(handler.target, Publish)
        return _TestPublisher(self, handler.name, handler.target.address.shown)

    def answer(self, handler: str, broker: str, message: Message) -> Acknowledgement:
        headers = lower({CONTENT_TYPE: message.content_type, **message.headers})
        attempt = int(headers["duetime-attempt"])
        self._requests.sent.append(
            SentRequest(
                handler=handler,
                task=message.id,
                attempt=attempt,
                at=to_datetime(self._requests.clock.now()),
                method="PUBLISH",
                url=broker,
                to=message.to,
                headers=headers,
                body=message.body,
            )
        )
        answers = self._answers.get(handler)
        if not answers:
            raise UnansweredRequest(
                f"{handler} published to {message.to} (attempt {attempt} of task {message.id}), and no answer is prepared for it: "
                f'call t.answer_next({handler}, broker="confirmed") before'
            )
        match answers.popleft():
            case "unreachable":
                raise BrokerUnreachable(f"{broker} cannot be reached: the test said so")
            case "refused":
                raise PublishRefused("PublishRefused", f"{broker} refused the message: the test said so")
            case "confirmed":
                return {}


class _TestPublisher:
    def __init__(self, messages: Messages, handler: str, broker: str) -> None:
        self._messages = messages
        self._handler = handler
        self._broker = broker

    async def publish(self, message: Message) -> Acknowledgement:
        return self._messages.answer(self._handler, self._broker, message)
