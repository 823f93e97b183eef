"""What tests of the PostgreSQL store share: the store of a URL, and the server behind it as its administrator sees it."""

from __future__ import annotations

import psycopg

from duetime.store import Store
from duetime.store.open import store_from_url


def admin(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url.partition("?")[0], autocommit=True)


def schema_of(url: str) -> str:
    return url.partition("schema=")[2]


async def opened(url: str) -> Store:
    store = store_from_url(url)
    await store.open()
    return store
