"""Who may read the files that Duetime makes: their owner only, unless what they belong to is shared.

A database file that is there already keeps its mode, and the files beside it follow that, as SQLite does for its `-wal`. To share a store
with a group: `chmod 660` the database, and give it that group.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

PRIVATE = 0o600


def mode_of(path: str | Path) -> int:
    """Return who may read and write a file or a folder, as the mode of a file; private if there is none."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode) & 0o666
    except OSError:
        return PRIVATE


def folder_mode(mode: int) -> int:
    """Return the mode of a folder for files of this mode: whoever may read them may enter it."""
    return mode | (mode & 0o444) >> 2


def make_file(path: str | Path) -> None:
    """Make an empty private file, unless it exists.

    It is not opened: SQLite's locks on a file are those of the whole process, and closing any descriptor of it would free them.
    """
    with contextlib.suppress(OSError):  # it exists; or it cannot be made, which whoever opens it will say better
        try:
            os.mknod(path, PRIVATE | stat.S_IFREG)
        except PermissionError:  # on macOS only root may
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE))


def make_folder(path: Path, like: str | Path) -> None:
    """Make a folder, and those above it that are missing, for those who may use `like`, a file or folder. What exists is left alone."""
    mode = folder_mode(mode_of(like))
    for folder in reversed([each for each in (path, *path.parents) if not each.exists()]):
        with contextlib.suppress(FileExistsError):  # another process was faster
            folder.mkdir(mode=mode)
            share(folder, like)


def share(path: str | Path, like: str | Path) -> None:
    """Give a file, folder or socket that was just made to those who may use `like`, whatever the umask says."""
    wanted = mode_of(like)
    if wanted != PRIVATE:
        with contextlib.suppress(OSError):  # somebody outside the group has made it
            model = os.stat(like)
            os.chown(path, model.st_uid if os.geteuid() == 0 else -1, model.st_gid)
    if not os.path.isdir(path):
        os.chmod(path, wanted)
    elif wanted != PRIVATE:
        os.chmod(path, folder_mode(wanted))


def readable_by_others(path: Path) -> bool:
    """Return whether anybody on this machine may read a file, or list a folder."""
    try:
        return bool(path.lstat().st_mode & 0o004)
    except OSError:
        return False
