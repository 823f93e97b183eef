"""The role of the seam that is about weights of collections; a part of `store.control`. The rules are in `model.fairness`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from duetime.model.fairness import WeightsRecord


class WeightStore(Protocol):
    """Where weights live. `claim` goes by them from the next call on."""

    async def put_weights(self, handler: str, weights: Mapping[str, float], *, note: str, set_by: str) -> None:
        """Let the collections of a handler share its starts by these weights in place of earlier ones; others weigh 1.

        Any name of the handler stands for all of them. Without weights what code declares holds again.
        """
        ...

    async def weights(self) -> Sequence[WeightsRecord]:
        """Return what is declared or set, by handler; a record may say of a handler that it is neither."""
        ...
