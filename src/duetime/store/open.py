"""Choose a store by its URL."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from duetime.clock import Clock
from duetime.errors import InvalidValue, MissingExtra
from duetime.store import Store
from duetime.store.alerts import MAP, DocumentKind

if TYPE_CHECKING:
    from duetime.store.postgres.store import PostgresStore
    from duetime.store.redis.store import RedisStore

Engine: TypeAlias = Literal["sqlite", "postgresql", "redis"]

EXAMPLES = (
    "sqlite:///duetime.db, sqlite:////var/lib/app/duetime.db, sqlite:///:memory:, postgresql://user@host/database, redis://host:6379/0, "
    "redis+sentinel://host:26379,host:26379,host:26379/service or redis+cluster://host:6379,host:6379"
)


def store_from_url(url: str, *, clock: Clock | None = None) -> Store:
    """Make the store that a URL names; nothing is opened or created yet."""
    engine, url = engine_of(url)
    if engine == "sqlite":
        from duetime.store.sqlite.store import SqliteStore

        return SqliteStore.from_url(url, clock=clock)
    if engine == "redis":
        return _redis_store().from_url(url, partial(_control_from_url, clock=clock), clock=clock)
    return _postgres_store().from_url(url, clock=clock)


async def over_shards(store: Store, *, clock: Clock | None = None) -> Store:
    """Return the layer over an open store's shards, open too; the store itself if it has none."""
    found = await store.alert_documents(DocumentKind.SHARDS, [MAP])
    if not found:
        return store
    from duetime.store.sharded.store import ShardedStore

    if isinstance(store, ShardedStore):
        return store
    sharded = ShardedStore(store, lambda url: store_from_url(url, clock=clock))
    await sharded.read_map()
    return sharded


def engine_of(url: str) -> tuple[Engine, str]:
    """Return which kind of store a URL names, and the URL without SQLAlchemy's name of a driver."""
    scheme = url.partition(":")[0].strip().lower()  # not urlsplit, which may refuse the rest with a text that shows it
    if scheme.partition("+")[0] in ("redis", "rediss"):
        _redis_store()
        return "redis", url
    if "+" in scheme:  # SQLAlchemy's way to name a driver; ours are fixed
        scheme = scheme.partition("+")[0]
        url = scheme + url[url.index(":") :]
    if scheme == "sqlite":
        return "sqlite", url
    if scheme in ("postgresql", "postgres"):
        _postgres_store()
        return "postgresql", url
    raise InvalidValue(f"{_hidden(url)!r} names no store that this version knows; expected a URL such as {EXAMPLES}")


def _postgres_store() -> type[PostgresStore]:
    try:
        from duetime.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise MissingExtra("a PostgreSQL store needs asyncpg: pip install 'duetime[postgres]'") from error
    return PostgresStore


def _redis_store() -> type[RedisStore]:
    try:
        from duetime.store.redis.store import RedisStore
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("redis", "hiredis"):
            raise
        raise MissingExtra("a Redis store needs redis-py: pip install 'duetime[redis]'") from error
    return RedisStore


def _control_from_url(url: str, *, clock: Clock | None) -> Store:
    """Make the SQL store beside a Redis server."""
    if engine_of(url)[0] == "redis":
        raise InvalidValue("control in a redis URL is a SQL store: sqlite:///… or postgresql://…")
    return store_from_url(url, clock=clock)


def file_of(url: str) -> Path | None:
    """Return the file that a SQLite URL names; None for any other URL."""
    scheme, separator, path = url.partition(":///")
    return Path(path) if separator and scheme == "sqlite" and path != ":memory:" else None


def artifacts_beside(url: str) -> Path | None:
    """Return the folder for artifacts beside the file of a SQLite URL; None for any other URL."""
    path = file_of(url)
    return None if path is None else Path(f"{path}-duetime") / "artifacts"


def _hidden(url: str) -> str:
    """Leave out what may be a secret."""
    scheme, separator, rest = url.partition("://")
    return url if "@" not in rest else f"{scheme}{separator}…@{rest.rpartition('@')[2]}"
