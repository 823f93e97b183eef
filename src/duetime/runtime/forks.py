"""Forks of this process, which a handler may make: what they must not keep, and what must not run in them.

`os.fork` copies one thread with all descriptors and all memory. Such a copy must not hold what proves that this process lives, and when
its code comes back into ours (`sys.exit`, an `exec` that failed, a plain return), it must not go on as a second worker: it would settle
its parent's tasks over its parent's connections.

The kernel's process number is not asked for: a flag that the fork itself sets in the copy costs the hottest loop of a worker a single
look at an attribute.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
import weakref
from typing import NoReturn, Protocol

EXIT_FORKED = 71  # of a copy that came back, unless it asked for another code with sys.exit


class Forgets(Protocol):
    """Holds something that a fork must let go of."""

    def forget_after_fork(self) -> None:
        """Let go of it in the copy; the original must not notice."""
        ...


_owners: weakref.WeakSet[Forgets] = weakref.WeakSet()


def forget_in_forks(owner: Forgets) -> None:
    """Call `owner.forget_after_fork()` in every fork of this process, as long as the owner lives."""
    _owners.add(owner)


def _forget() -> None:
    for owner in tuple(_owners):
        owner.forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Original:
    """Knows whether it is in the process in which it was made. Code that a copy may come back to checks `copied`, and calls `leave`.

    With an event loop, a copy that comes back into that ends as well, before it waits for anything.
    """

    __slots__ = ("__weakref__", "_loop", "_process", "_thread", "copied")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.copied = False
        self._process = os.getpid()
        self._loop = loop
        self._thread = threading.get_ident()
        forget_in_forks(self)

    def forget_after_fork(self) -> None:
        self.copied = True
        if self._loop is not None and threading.get_ident() == self._thread:
            with contextlib.suppress(RuntimeError):  # it is closed
                self._loop.call_soon(self.leave)
            _see_nothing(self._loop)

    def close(self) -> None:
        """Let forks be: what was guarded has ended."""
        _owners.discard(self)

    def leave(self, error: BaseException | None = None) -> NoReturn:
        """End this copy at once. Nothing is flushed, closed or written: all of it is the original's."""
        why = "returned" if error is None else f"raised {type(error).__name__}: {error}"[:500]
        line = (
            f"duetime: process {os.getpid()}, a fork of process {self._process}, {why} and came back into the code of Duetime: "
            "it ends here. End a fork with os._exit, or start a program with subprocess instead\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, line.encode("utf-8", "backslashreplace"))
        os._exit(_exit_code(error))


def _see_nothing(loop: asyncio.AbstractEventLoop) -> None:
    """Give the copy of an event loop an empty set of descriptors to poll.

    The original's set is shared: what a copy takes from it (a wake-up, a reply) the original never sees, and what it removes there the
    original never hears of again. A worker on uvloop whose fork had polled once waited for its own threads for ever.
    """
    find = getattr(loop, "_get_backend_id", None) or getattr(getattr(loop, "_selector", None), "fileno", None)
    if find is not None and hasattr(select, "epoll"):
        with select.epoll() as empty:
            os.dup2(empty.fileno(), find(), inheritable=False)


def _exit_code(error: BaseException | None) -> int:
    """Return what the copy asked for with `sys.exit`, as the interpreter would read it."""
    if not isinstance(error, SystemExit):
        return EXIT_FORKED
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1
