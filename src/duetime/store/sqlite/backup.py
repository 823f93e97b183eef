"""A consistent copy of a store's file, while workers go on."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from duetime.errors import StoreUnavailable
from duetime.runtime.permissions import make_file

AT_ONCE = 2_000  # pages between two reports


def back_up(source: Path, target: Path, progress: Callable[[int, int], None]) -> int:
    """Copy a store's file to a new one and return its size in bytes. `progress` is told how many pages are done, and of how many.

    The copy is made under another name, checked and flushed before it gets its own: what has the name is whole.
    """
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    make_file(partial)
    try:
        with (
            closing(sqlite3.connect(f"file:{_quoted(source)}?mode=ro", uri=True)) as live,
            closing(sqlite3.connect(partial, isolation_level=None)) as copy,
        ):
            live.backup(copy, pages=AT_ONCE, progress=lambda _, left, total: progress(total - left, total))
            copy.execute("pragma journal_mode = delete")  # one file, without a log beside it
            # A copy that takes the store's place does not know of later attempts there: its first claim begins an epoch (model/fences.py).
            copy.execute("update duetime_fact set value = -1 - abs(value) where name = 'epoch'")
            [[found]] = copy.execute("pragma integrity_check(1)").fetchall()
            if found != "ok":
                raise StoreUnavailable(f"the copy of {source} is damaged ({found}); the file itself probably is too: duetime doctor")
        _flush(partial)
        os.link(partial, target)  # unlike a rename it never replaces a file that somebody made meanwhile
        _flush(target.parent)
        return target.stat().st_size
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{source} could not be copied to {target}: {error}") from error
    except OSError as error:
        raise StoreUnavailable(f"{source} could not be copied to {target}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _quoted(path: Path) -> str:
    """Return a path for SQLite's form of a URI."""
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
