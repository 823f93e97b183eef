"""A schema for the length of one test: made under a name that nobody has, and dropped with all that is in it.

A session holds a lock on its name. So a schema whose lock is free was left by a process that was killed, and whoever makes the next one
drops it.
"""

from __future__ import annotations

import contextlib
import logging
import secrets

import asyncpg
import msgspec

from duetime.errors import InvalidValue
from duetime.store.postgres.address import Address
from duetime.store.postgres.connection import Link, connect, translated
from duetime.store.postgres.statements import in_schema, statements

logger = logging.getLogger("duetime.testing")

PREFIX = "duetime_test_"
PATIENCE = "1s"  # for locks of a transaction that the test has left open: it may be one that this very thread would have to end


class TemporarySchema:
    """Makes a name, holds it, and drops the schema. `address` is where a store finds it; a schema that the URL names is not touched."""

    def __init__(self, address: Address) -> None:
        if address.pooled:
            raise InvalidValue(
                "a test's schema is guarded by a lock of a session, and behind a pooler in transaction mode (pooled=on) there are none; "
                "name the server itself in the URL"
            )
        self.name = PREFIX + secrets.token_hex(8)
        self.address = msgspec.structs.replace(address, schema=self.name, shown=f"{address.shown.partition('?')[0]}?schema={self.name}")
        self._sql = statements("duetime")  # of no schema in particular
        self._link: Link | None = None

    async def hold(self) -> None:
        """Hold the name, and drop what killed processes have left. The schema itself is made by the store that is opened there."""
        try:
            self._link = link = await connect(self.address)
            await link.rows(self._sql.hold_schema, [self.name])
            await link.script(f"set lock_timeout = '{PATIENCE}'")
            for [name] in await link.rows(self._sql.temporary_schemas, [PREFIX]):
                await self._drop_leftover(link, name)
        except BaseException as error:
            await self.close()
            raise translated(error, self.address) from error

    async def _drop_leftover(self, link: Link, name: str) -> None:
        [[mine]] = await link.rows(self._sql.try_to_hold_schema, [name])
        if mine and name != self.name:
            with contextlib.suppress(asyncpg.LockNotAvailableError):  # a transaction of a test is still open there; the next one drops it
                await self._drop(link, name)
        if mine:
            await link.rows(self._sql.let_go_of_schema, [name])

    async def remove(self) -> None:
        """Drop the schema; if a transaction keeps it from being dropped, say so and leave it to the next test."""
        link = self._link
        try:
            if link is not None and link.usable:
                await self._drop(link, self.name)
        except asyncpg.LockNotAvailableError:
            logger.warning(
                "the schema %s of %s is left behind, because a transaction that wrote there is still open: commit it or roll it back "
                "before the block of using(…) ends. The next test on this database drops the schema, or you do: drop schema %s cascade",
                self.name,
                self.address.shown.partition("?")[0],
                self.name,
            )
        finally:
            await self.close()

    async def close(self) -> None:
        """End the session, and with it the lock."""
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(Exception):
                await link.connection.close(timeout=1.0)
            link.drop()

    @staticmethod
    async def _drop(link: Link, name: str) -> None:
        await link.script(in_schema("drop schema if exists duetime.x cascade", name).replace(".x", ""))
