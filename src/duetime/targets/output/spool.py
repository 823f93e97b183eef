"""Where workers collect output until it is in the store: one folder per store, and in it one per worker.

A worker, and every child that it starts, holds the lock of its folder; the kernel frees the lock when the last of them has ended. A worker
that gets the lock of another folder may ship what a dead worker left there. The files of a living worker are left alone.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from duetime.runtime.forks import forget_in_forks
from duetime.runtime.permissions import PRIVATE, make_folder, share
from duetime.store.output import CHUNK
from duetime.targets.output.journal import attempts_of, read_attempt, segments

OFF = "off"
LOCK = "lock"

_FILE = re.compile(r"([0-9a-f-]{36})\.([1-9][0-9]{0,9})\.log\Z")
_KEEPING_LENGTH = "duetime.keeping-length"


def _one_a_byte(error: UnicodeError) -> tuple[str, int]:
    """Show what is not UTF-8 as one question mark a byte, so that an offset in a file is the same in its text."""
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error(_KEEPING_LENGTH, _one_a_byte)


def spool_root(setting: str | None, beside: str | None, url: str) -> Path | None:
    """Return the folder in which the workers of a store have theirs; None if output is off.

    A folder that was chosen may serve several stores, so each has its own below it.
    """
    if setting is not None and setting.lower() == OFF:
        return None
    if setting is None and beside is not None:
        return Path(beside)
    return (_state() if setting is None else Path(setting)) / name_of(url)


def name_of(url: str) -> str:
    """Return the name of a store's folder: readable, and different for every store."""
    readable = re.sub(r"[^a-z0-9]+", "-", url.lower())[:60].strip("-")
    return f"{readable}-{hashlib.blake2b(url.encode(), digest_size=6).hexdigest()}"


def _state() -> Path:
    chosen = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(chosen):
        return Path(chosen) / "duetime" / "output"
    with contextlib.suppress(RuntimeError):  # a user without a home
        home = Path.home() / ".local" / "state"
        if os.access(next(folder for folder in (home, *home.parents) if folder.exists()), os.W_OK):
            return home / "duetime" / "output"
    return _temporary() / "output"


def _temporary() -> Path:
    import tempfile  # every program would pay for it

    return Path(tempfile.gettempdir()) / f"duetime-{os.getuid()}"


def _refuse_strangers(root: Path) -> None:
    """Refuse a folder among everybody's temporary ones that somebody else has made: its owner could redirect our files."""
    folder = _temporary()
    if folder in root.parents:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.lstat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")


class SpoolFile(NamedTuple):
    """The file of an attempt."""

    path: Path
    task: str
    attempt: int


class Spool:
    """One worker's folder, held by its lock."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self.descriptor = descriptor
        forget_in_forks(self)

    @classmethod
    def begin(cls, root: Path) -> Self:
        """Make a folder for this worker. Raises OSError if that cannot be done."""
        _refuse_strangers(root)
        make_folder(root, like=root)
        while True:
            folder = root / secrets.token_hex(8)
            make_folder(folder, like=root)
            spool = cls.lock(folder)
            if spool is not None:  # otherwise a worker that looks for dead ones was faster and removed the empty folder
                share(folder / LOCK, like=folder)
                return spool

    @classmethod
    def lock(cls, folder: Path) -> Self | None:
        """Lock a folder and return its spool; None if another process has the lock, or the folder is gone."""
        path = folder / LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):  # not one that was removed meanwhile
                return cls(folder, descriptor)
        except OSError:
            pass
        os.close(descriptor)
        return None

    def files(self) -> list[SpoolFile]:
        return list(files_in(self.folder))

    def leave(self) -> None:
        """Release the lock, and remove the folder unless output is left in it."""
        if not self.files() and not segments(self.folder):
            with contextlib.suppress(OSError):
                (self.folder / LOCK).unlink(missing_ok=True)
                self.folder.rmdir()
        self._release()

    def forget_after_fork(self) -> None:
        self._release()

    def _release(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def abandoned(root: Path, own: Spool) -> Iterator[Spool]:
    """Take the folders of workers that are dead."""
    for folder in _folders(root):
        if folder != own.folder and (spool := Spool.lock(folder)) is not None:
            yield spool


def _folders(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            return [root / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def files_in(folder: Path) -> Iterator[SpoolFile]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return
    for name in names:
        if (match := _FILE.match(name)) is not None:
            yield SpoolFile(folder / name, match[1], int(match[2]))


def find(root: Path, task: str, attempt: int) -> Path | None:
    """Return an attempt's file if a worker on this machine has one. The task's id must have been checked."""
    paths = (folder / f"{task}.{attempt}.log" for folder in _folders(root))
    return next((path for path in paths if path.exists()), None)


def read_unshipped(root: Path, task: str, attempt: int, offset: int, limit: int) -> tuple[bytes, bool] | None:
    """Read what an attempt wrote from an offset on, and whether that was all, if a worker on this machine has it.

    None if none has: then the store has it, or another machine. The task's id must have been checked.
    """
    path = find(root, task, attempt)
    if path is not None:
        try:
            return read_from(path, offset, limit)
        except OSError:  # shipped meanwhile, or not for this user to read
            return None
    found = (read_attempt(folder, task, attempt, offset, limit) for folder in _folders(root))
    return next((each for each in found if each is not None), None)


def unshipped_attempts(root: Path, task: str, numbers: Iterable[int]) -> set[int]:
    """Return which of a task's attempts have output that a worker on this machine has. The task's id must have been checked."""
    found: set[int] = set()
    for folder in _folders(root):
        found |= attempts_of(folder, task)
    return {number for number in numbers if number in found or find(root, task, number) is not None}


def read_from(path: Path, offset: int, limit: int) -> tuple[bytes, bool]:
    """Read from an offset; return whether that was all. FileNotFoundError if the file is gone."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(limit + 1)
    return data[:limit], len(data) <= limit


def text_of(data: bytes) -> str:
    """Return bytes as text that any store takes, of the same length in UTF-8."""
    return data.decode("utf-8", _KEEPING_LENGTH).replace("\0", "?")


def whole_characters(data: bytes | bytearray) -> int:
    """Return how many bytes there are without an incomplete character at the end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:  # the first of several bytes
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4 if byte < 0xF8 else 1
            return len(data) - back if length > back else len(data)
        if byte < 0x80:
            break
    return len(data)


def pieces(data: bytes) -> Iterator[bytes]:
    """Cut output into chunks, between lines if there are any, and never within a character."""
    while len(data) > CHUNK:
        end = data.rfind(b"\n", 0, CHUNK) + 1 or whole_characters(data[:CHUNK]) or CHUNK
        yield data[:end]
        data = data[end:]
    if data:
        yield data
