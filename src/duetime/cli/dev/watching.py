"""Which files of an App have changed, by polling its folder: the standard library has nothing better."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

MAX_FOLDERS, MAX_FILES = 1_000, 5_000  # checking more would keep a processor busy
_NOT_CODE = {"__pycache__", "node_modules", "site-packages"}


def folder_of(path: str) -> Path:
    """Return the folder of an App's package or module, without importing it."""
    top = path.partition(":")[0].partition(".")[0]
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    if spec is not None and spec.has_location and spec.origin is not None:
        return Path(spec.origin).parent
    return Path.cwd()


def imported_below(folder: Path) -> list[str]:
    """List the files below a folder that this process has imported modules from."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted({file for file in files if isinstance(file, str) and Path(file).is_relative_to(folder)})


class Watcher:
    """Remembers the files of a folder as they were at the last check.

    Only files that the running code was imported from count, and new ones, since they may be what was missing. If nothing was
    imported, the code did not load: then any file counts, since it may be the reason.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.too_large = False
        self._imported: Collection[str] = ()
        self._seen = self._read()

    def note_imported(self, files: Collection[str]) -> None:
        """Set the files that the running code was imported from; none if it did not load."""
        self._imported = frozenset(files)
        self._seen = {**_stamps(files), **self._seen}  # a file seen now for the first time is not a new file

    def changes(self) -> list[str]:
        """Return the files that have changed since the last call, relative to the folder."""
        before, self._seen = self._seen, self._read()
        changed = [path for path in before.keys() | self._seen.keys() if before.get(path) != self._seen.get(path)]
        counted = [path for path in changed if path in self._imported or not self._imported or path not in before]
        return sorted(os.path.relpath(path, self.folder) for path in counted)

    def _read(self) -> dict[str, tuple[int, int]]:
        return _stamps({*self._files(), *self._imported})

    def _files(self) -> Iterator[str]:
        """Yield the source files below the folder; none if there are too many."""
        if self.too_large:
            return
        found: list[str] = []
        for number, (folder, names, files) in enumerate(os.walk(self.folder)):
            names[:] = [name for name in names if name[0] != "." and name not in _NOT_CODE and not _is_environment(folder, name)]
            found += [os.path.join(folder, name) for name in files if name.endswith(".py") and name[0] != "."]
            if number >= MAX_FOLDERS or len(found) > MAX_FILES:
                self.too_large = True
                return
        yield from found


def _stamps(paths: Collection[str]) -> dict[str, tuple[int, int]]:
    stamps = {}
    for path in paths:
        with contextlib.suppress(OSError):  # it is gone by now
            status = os.stat(path)
            stamps[path] = status.st_mtime_ns, status.st_size
    return stamps


def _is_environment(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
