"""A handler that was renamed: its former names, its aliases, are names of the same handler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping


class HandlerNames:
    """Which names belong to one handler; `aliases` maps former names to the present one. A name that is in neither stands for itself."""

    def __init__(self, aliases: Mapping[str, str] | None = None) -> None:
        self._present = dict(aliases or {})
        self._former: defaultdict[str, list[str]] = defaultdict(list)
        for alias, name in sorted(self._present.items()):
            self._former[name].append(alias)

    def __bool__(self) -> bool:
        return bool(self._present)

    def present(self, name: str) -> str:
        """Return the present name of the handler that has or had this name."""
        return self._present.get(name, name)

    def all(self, name: str) -> list[str]:
        """Return all names of the handler that has or had this name, the present one first."""
        present = self.present(name)
        return [present, *self._former[present]] if present in self._former else [present]
