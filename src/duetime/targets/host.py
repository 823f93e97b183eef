"""What the targets of one worker share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from duetime.artifacts.source import ArtifactSource, NoArtifacts
from duetime.errors import SecretUnreadable
from duetime.model.addresses import AddressRules
from duetime.secrets.reading import Revealed, SecretReader
from duetime.targets.python.children import ChildPool
from duetime.targets.python.middleware import Middleware
from duetime.targets.python.threads import Threads

if TYPE_CHECKING:
    from duetime.targets.command.supervising import Supervising
    from duetime.targets.http.callbacks import CallbackDoor
    from duetime.targets.http.lookups import Lookups
    from duetime.targets.http.messages import Sender
    from duetime.targets.notices.target import ChannelReader
    from duetime.targets.publish.brokers import Brokers
    from duetime.targets.publish.messages import Publisher
    from duetime.targets.spec import HandlerSpec
    from duetime.targets.steps import StepDoor

NewSender: TypeAlias = "Callable[[HandlerSpec], Sender]"
NewPublisher: TypeAlias = "Callable[[HandlerSpec], Publisher]"

MOST_SUSPECTS = 4  # sub-processes for tasks whose process died; one poisonous task may have made hundreds of suspects


class NoSecrets(SecretReader):
    """For a worker that was given none."""

    async def reveal(self, name: str) -> Revealed:
        raise SecretUnreadable(f"the secret {name!r} cannot be read: this worker was given no secrets; start it with `app.worker()`")


async def _no_channel(name: str) -> bytes | None:
    return None


class TargetHost:
    """Middleware, threads, sub-processes and secrets. `children` is None where the app cannot be imported by another process.

    `addresses` says where requests of HTTP handlers may go, and `callback_door` where servers report on work that they have accepted.
    `steps` is how attempts reach what they have saved; None in tests of targets alone.
    `sender` makes what sends requests instead of the network, in tests, and `publisher` what publishes messages.
    `channels` returns where notices of alerts go, by name. `closing` is called when
    the worker ends. `inherit` are descriptors that prove the worker alive: what runs for it in other processes holds them too, so that
    nobody takes its tasks before all of that has ended.
    """

    def __init__(
        self,
        middleware: Iterable[Middleware] = (),
        *,
        addresses: AddressRules | None = None,
        secrets: SecretReader | None = None,
        artifacts: ArtifactSource | None = None,
        callback_door: CallbackDoor | None = None,
    ) -> None:
        self.middleware = list(middleware)
        self.secrets = secrets or NoSecrets()
        self.artifacts = artifacts or NoArtifacts()
        self.threads = Threads()
        self.children: ChildPool | None = None
        self.addresses = addresses or AddressRules()
        self.callback_door = callback_door
        self._lookups: Lookups | None = None
        self._brokers: Brokers | None = None
        self.sender: NewSender | None = None
        self.publisher: NewPublisher | None = None
        self.steps: StepDoor | None = None
        self.channels: ChannelReader = _no_channel
        self.closing: list[Callable[[], Awaitable[None]]] = []
        self.suspects = asyncio.Semaphore(MOST_SUSPECTS)
        self.inherit: Sequence[int] = ()
        self.supervising: Supervising | None = None

    @property
    def supervisors(self) -> Supervising:
        """What runs commands: supervisors, made when one is first needed, unless this is a test."""
        if self.supervising is None:
            from duetime.targets.command.supervisors import Supervisors

            self.supervising = Supervisors(inherit=self.inherit)
        return self.supervising

    @property
    def lookups(self) -> Lookups:
        """The resolver that all HTTP handlers share; made when one is first needed, because it needs aiohttp."""
        if self._lookups is None:
            from duetime.targets.http.lookups import Lookups

            self._lookups = Lookups()
        return self._lookups

    @property
    def brokers(self) -> Brokers:
        """The connections to brokers that all handlers share."""
        if self._brokers is None:
            from duetime.targets.publish.brokers import Brokers

            self._brokers = Brokers()
        return self._brokers

    def kill(self) -> None:
        """Kill all sub-processes now; from any thread, because the event loop may be blocked."""
        if self.children is not None:
            self.children.kill()
        if self.supervising is not None:
            self.supervising.kill()

    async def close(self) -> None:
        self.threads.close()
        await self.artifacts.close()
        for close in self.closing:
            await close()
        if self._brokers is not None:
            await self._brokers.close()
        if self._lookups is not None:
            await self._lookups.close()
        if self.children is not None:
            await self.children.close()
        if self.supervising is not None:
            await self.supervising.close()
