"""`app.weights`: how the collections of a handler share its starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Protocol

import msgspec

from duetime.client.gates import Named, check_note
from duetime.clock import to_datetime
from duetime.errors import UnknownHandler
from duetime.model.fairness import WeightsRecord, check_weights
from duetime.model.names import HandlerNames
from duetime.store import Store


class WeightsInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How the collections of a handler share its starts.

    `fair`: they do, because its code says so (`declared`) or because of the weights that somebody has set. Who has none weighs 1.
    """

    handler: str
    fair: bool
    declared: bool
    weights: dict[str, float]
    note: str
    set_by: str
    set_at: datetime | None


class Weights(Protocol):
    """`app.weights`: the weights of collections."""

    async def put(self, handler: str | Named, weights: Mapping[str, float], *, note: str = "") -> WeightsInfo:
        """Let the collections of a handler share its starts by these weights, in place of earlier ones; others weigh 1.

        Claims go by them at once, also if the handler is not declared with `fair=`. Raises UnknownHandler if nobody has declared it.
        """
        ...

    async def delete(self, handler: str | Named) -> WeightsInfo:
        """Forget the weights of a handler: its collections weigh the same, if its code says that they share, and share no more if not."""
        ...

    async def get(self, handler: str | Named) -> WeightsInfo:
        """Return how the collections of a handler share its starts. Raises UnknownHandler."""
        ...

    async def list(self) -> list[WeightsInfo]:
        """Return all handlers whose collections share their starts, by name."""
        ...


class LocalWeights(Weights):
    """Weights in a store."""

    def __init__(self, store: Store, *, user: str, opened: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._user = user
        self._opened = opened

    async def put(self, handler: str | Named, weights: Mapping[str, float], *, note: str = "") -> WeightsInfo:
        return await self.put_by(self._user, handler, weights, note)

    async def put_by(self, user: str, handler: str | Named, weights: Mapping[str, float], note: str) -> WeightsInfo:
        """Set them in the name of a user."""
        checked, note = check_weights(handler_name(handler), weights), check_note(note)
        name = await self._present(handler)
        await self._store.put_weights(name, checked, note=note, set_by=user)
        return await self.get(name)

    async def delete(self, handler: str | Named) -> WeightsInfo:
        name = await self._present(handler)
        await self._store.put_weights(name, {}, note="", set_by="")
        return await self.get(name)

    async def get(self, handler: str | Named) -> WeightsInfo:
        name = await self._present(handler)
        record = next((each for each in await self._store.weights() if each.handler == name), None)
        return weights_info(record or WeightsRecord(handler=name, declared=False))

    async def list(self) -> list[WeightsInfo]:
        await self._opened()
        found = map(weights_info, await self._store.weights())
        return [each for each in found if each.fair]

    async def _present(self, handler: str | Named) -> str:
        """Return the present name of a handler that somebody has declared."""
        await self._opened()
        name, declared = handler_name(handler), await self._store.declarations()
        present = HandlerNames({alias: each.name for each in declared for alias in each.aliases}).present(name)
        known = [each.name for each in declared]
        if present not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "it is known once a program that declares it has opened the store"
            raise UnknownHandler(f"there is no handler {name[:100]!r}; {hint}")
        return present


def weights_info(record: WeightsRecord) -> WeightsInfo:
    return WeightsInfo(
        handler=record.handler,
        fair=record.is_fair,
        declared=record.declared,
        weights=dict(sorted(record.weights.items())),
        note=record.note,
        set_by=record.set_by,
        set_at=None if record.set_at is None else to_datetime(record.set_at),
    )


def handler_name(handler: str | Named) -> str:
    return handler if isinstance(handler, str) else handler.name
