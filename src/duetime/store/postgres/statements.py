"""The statements of this store, for the schema that it was opened with."""

from __future__ import annotations

import functools
import re

from duetime.store.sql import Migration, Statements, migrations

PACKAGE = "duetime.store.postgres"

_QUALIFIED = re.compile(r"\bduetime\.(?=[a-z_%])")


def in_schema(text: str, schema: str) -> str:
    """Put a schema's name where a text says `duetime.name` or `'duetime'`."""
    if schema == "duetime":
        return text
    quoted = '"' + schema.replace('"', '""') + '"'
    literal = "'" + schema.replace("'", "''") + "'"
    return _QUALIFIED.sub(lambda _: f"{quoted}.", text).replace("'duetime'", literal)


@functools.lru_cache(maxsize=64)
def statements(schema: str) -> Statements:
    return Statements(PACKAGE, rewrite=lambda text: in_schema(text, schema))


@functools.cache
def steps() -> list[Migration]:
    return migrations(PACKAGE)
