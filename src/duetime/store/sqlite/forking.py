"""No fork of this process is made while one of its threads is inside SQLite.

SQLite keeps in memory which connections of a process hold which locks, and guards its memory by mutexes. In a copy of the process both are
as they were, and nobody is there to let go of them: made in the middle of a transaction or of an allocation, a copy that used a file of
SQLite itself waited for ever. So whoever uses a connection holds a lock meanwhile, and a fork waits for all of them. What SQLite does for
the garbage collector is left out: of a cursor that was left to it. Forks in C, and those of `subprocess`, run none of this.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

LONGEST_WAIT = 10.0  # seconds that a fork waits for a thread: to wait for ever would be worse than what it guards against

_locks: list[weakref.ref[Any]] = []  # in the order in which they were made, in which everybody takes them
_held = threading.local()


def lock_against_forks() -> threading.Lock:
    """Return a lock; forks of this process wait until nobody holds it."""
    lock = threading.Lock()
    _locks[:] = [each for each in _locks if each() is not None]
    _locks.append(weakref.ref(lock))
    return lock


def _wait_for_all() -> None:
    _held.locks = [lock for each in tuple(_locks) if (lock := each()) is not None and lock.acquire(timeout=LONGEST_WAIT)]


def _go_on() -> None:
    for lock in _held.locks:
        lock.release()
    _held.locks = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_all, after_in_parent=_go_on, after_in_child=_go_on)
