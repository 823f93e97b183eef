"""What runs commands, as a target sees it: supervisors, or the test itself in the testing kit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec


class Order(msgspec.Struct, frozen=True):
    """What a supervisor is to run: in which folder, which it makes and removes, with which links in it, and what the command reads."""

    handler: str
    argv: Sequence[str]
    env: Mapping[str, str]
    folder: str
    limits: Mapping[str, int]
    stdin: str | None
    links: Mapping[str, str] = {}


class Report(msgspec.Struct, frozen=True):
    """How a command ended. `status` is that of wait(2); None if it never began (`problem`)."""

    status: int | None = None
    problem: str | None = None
    stopped: bool = False
    cpu: float = 0.0
    memory: int = 0
    out_of_memory: bool = False


class SupervisorDied(Exception):
    """A supervisor has ended before it reported the end of its command, of which nothing is left all the same."""


class Supervision(Protocol):
    """One that runs commands, one at a time."""

    killed_on_purpose: bool

    async def run(self, order: Order, output: Callable[[bytes], None], result: Callable[[bytes], None]) -> Report:
        """Run a command and return how it ended, once nothing of it is left; SupervisorDied if it was killed itself.

        What the command prints and what it writes to its descriptor 3 is passed on as it comes.
        """
        ...

    def stop(self, number: int, grace: float) -> None:
        """Have the command stopped: by a signal, and after `grace` seconds by force."""
        ...


class Supervising(Protocol):
    """All that run commands for one worker."""

    def take(self) -> Supervision:
        """Return an idle one, or a new one; OSError if none can be started."""
        ...

    def put_back(self, supervision: Supervision) -> None:
        """Keep one for the next command."""
        ...

    def kill(self) -> None:
        """Have all commands killed now; from any thread, because the event loop may be blocked."""
        ...

    async def close(self) -> None:
        """Have all commands killed, and wait until all supervisors have ended."""
        ...
