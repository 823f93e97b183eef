"""Choose a store by its URL."""

from __future__ import annotations

from duetime.clock import Clock
from duetime.errors import InvalidValue, StoreUnavailable
from duetime.store import Store

EXAMPLES = "sqlite:///duetime.db, sqlite:////var/lib/app/duetime.db, sqlite:///:memory: or postgresql://user@host/database"


def store_from_url(url: str, *, clock: Clock | None = None) -> Store:
    """Make the store that a URL names; nothing is opened or created yet."""
    scheme = url.partition(":")[0].strip().lower()  # not urlsplit, which may refuse the rest with a text that shows it
    if scheme == "sqlite":
        from duetime.store.sqlite.store import SqliteStore

        return SqliteStore.from_url(url, clock=clock)
    if scheme in ("postgresql", "postgres"):
        try:
            from duetime.store.postgres.store import PostgresStore
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise StoreUnavailable("a PostgreSQL store needs asyncpg: pip install 'duetime[postgres]'") from error

        return PostgresStore.from_url(url, clock=clock)
    raise InvalidValue(f"{_hidden(url)!r} names no store that this version knows; expected a URL such as {EXAMPLES}")


def _hidden(url: str) -> str:
    """Leave out what may be a secret."""
    scheme, separator, rest = url.partition("://")
    return url if "@" not in rest else f"{scheme}{separator}…@{rest.rpartition('@')[2]}"
