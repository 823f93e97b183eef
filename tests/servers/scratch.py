"""A folder for servers that lasts as long as the test session and that any account may enter."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "duetime-servers-"


@functools.cache
def scratch() -> Path:
    """Give this session's folder. Pytest's own would not do: only the account that runs the tests may enter it."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _remove_if_abandoned(left)
    made = Path(tempfile.mkdtemp(prefix="new-"))
    made.chmod(0o755)
    lock = os.open(made / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # held until this process ends, in whatever way
    # named only now: between making the lock and taking it, another session that begins would think it abandoned
    folder = made.rename(made.with_name(PREFIX + made.name.removeprefix("new-")))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _remove_if_abandoned(folder: Path) -> None:
    """Remove what a session that was killed left behind."""
    with contextlib.suppress(OSError):
        lock = os.open(folder / "lock", os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
