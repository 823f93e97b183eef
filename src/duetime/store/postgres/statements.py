"""The statements of this store, for the schema that it was opened with."""

from __future__ import annotations

import functools
import hashlib
import re
from importlib.resources import files

from duetime.store.sql import Migration, Statements, migrations

PACKAGE = "duetime.store.postgres"

# The number of the functions in functions/*.sql. It goes up with each release that changes them; a program works with the functions of its
# own number and of the next, so what a released program calls stays for one number longer (functions/signatures.txt).
FUNCTIONS = 1

_QUALIFIED = re.compile(r"\bduetime\.(?=[a-z_%])")


def in_schema(text: str, schema: str) -> str:
    """Put a schema's name where a text says `duetime.name` or `'duetime'`."""
    if schema == "duetime":
        return text
    quoted = '"' + schema.replace('"', '""') + '"'
    literal = "'" + schema.replace("'", "''") + "'"
    if "\\" in schema:  # in e'…' a backslash is read the same whatever standard_conforming_strings says
        literal = "e" + literal.replace("\\", "\\\\")
    return _QUALIFIED.sub(lambda _: f"{quoted}.", text).replace("'duetime'", literal)


@functools.lru_cache(maxsize=64)
def statements(schema: str) -> Statements:
    return Statements(PACKAGE, rewrite=lambda text: in_schema(text, schema))


@functools.cache
def steps() -> list[Migration]:
    """Return what makes the tables."""
    return migrations(PACKAGE)


@functools.cache
def functions() -> str:
    """Return what makes the functions and views; it may be run again and again."""
    folder = sorted(files(PACKAGE).joinpath("functions").iterdir(), key=lambda entry: entry.name)
    return "\n".join(file.read_text("utf-8") for file in folder if file.name.endswith(".sql"))


@functools.cache
def functions_digest() -> str:
    """Return a hash that distinguishes these functions from others of the same number, which exist between two releases."""
    return hashlib.sha256(functions().encode()).hexdigest()[:16]
