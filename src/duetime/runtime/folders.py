"""Removing a folder whatever somebody has put into it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_OPENING = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_folder(top: Path) -> bool:
    """Remove a folder with all that is in it; return whether it is gone. Nothing must write there any more. Links are not followed.

    It goes down and up one step at a time and holds one descriptor, so folders may be nested deeper than a path, the stack or the number
    of open files allows; `shutil.rmtree` fails at a thousand.
    """
    with contextlib.suppress(OSError):
        os.chmod(top, 0o700)
        here = os.open(top, _OPENING)
        try:
            waiting: list[list[str]] = [_remove_files(here)]
            above: list[str] = []
            while waiting[-1] or above:
                if waiting[-1]:
                    above.append(waiting[-1].pop())
                    os.chmod(above[-1], 0o700, dir_fd=here)
                    here = _moved(here, above[-1])
                    waiting.append(_remove_files(here))
                else:
                    waiting.pop()
                    here = _moved(here, "..")
                    os.rmdir(above.pop(), dir_fd=here)
        finally:
            os.close(here)
        os.rmdir(top)
    return not os.path.lexists(top)


def _moved(here: int, name: str) -> int:
    there = os.open(name, _OPENING, dir_fd=here)
    os.close(here)
    return there


def _remove_files(folder: int) -> list[str]:
    """Remove all but the folders in a folder, and return their names."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in found if is_folder]
