"""Named statements and numbered migrations, read from files beside the store that uses them.

A statement begins with a line `-- name: purpose`; everything up to the next such line belongs to it. A migration is one
file, `tables/0001_tables.sql`, whose statements end with a semicolon at the end of a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

import msgspec

_NAME = re.compile(r"^-- (?P<name>[a-z_0-9]+): (?P<purpose>.+)$", re.MULTILINE)


class Statements:
    """The statements of a package, as attributes. `rewrite` changes each text, to put in the name of a schema."""

    def __init__(self, package: str, folder: str = "sql", *, rewrite: Callable[[str], str] = str) -> None:
        self._rewrite = rewrite
        self._texts: dict[str, str] = {}
        for file in sorted(files(package).joinpath(folder).iterdir(), key=lambda entry: entry.name):
            if file.name.endswith(".sql"):
                self._read(file.name, file.read_text("utf-8"))

    def _read(self, file: str, text: str) -> None:
        heads = list(_NAME.finditer(text))
        for head, following in zip(heads, [*heads[1:], None], strict=True):
            name = head["name"]
            if name in self._texts:
                raise ValueError(f"{file}: statement {name} is defined twice")
            self._texts[name] = self._rewrite(text[head.end() : following.start() if following else len(text)].strip())

    def __getattr__(self, name: str) -> str:
        try:
            text = self._texts[name]
        except KeyError:
            raise AttributeError(f"no statement is named {name}") from None
        self.__dict__[name] = text  # the next time it is a plain attribute
        return text

    def names(self) -> list[str]:
        return list(self._texts)


class Migration(msgspec.Struct, frozen=True):
    """One forward step of a schema."""

    version: int
    name: str
    text: str

    @property
    def statements(self) -> list[str]:
        """Split the text, for drivers that take one statement at a time."""
        return [part.strip() for part in re.split(r";[ \t]*(?:\n|\Z)", self.text) if _code(part)]


def migrations(package: str, folder: str = "tables") -> list[Migration]:
    """Read all steps in order; numbers must follow one another from 1."""
    steps = []
    for file in sorted(files(package).joinpath(folder).iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        number, _, name = file.name.removesuffix(".sql").partition("_")
        steps.append(Migration(int(number), name, file.read_text("utf-8")))
    if [step.version for step in steps] != list(range(1, len(steps) + 1)):
        raise ValueError(f"migrations of {package} must be numbered from 1 without gaps")
    return steps


def _code(text: str) -> bool:
    return any(line.strip() and not line.lstrip().startswith("--") for line in text.splitlines())
