"""Weights of collections in JSON. `WeightsInfo` says how the collections of a handler share its starts."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from duetime.client.weights import WeightsInfo
from duetime.model.fairness import LEAST_WEIGHT, MOST_WEIGHT, MOST_WEIGHTS

Weight = Annotated[float, Meta(ge=LEAST_WEIGHT, le=MOST_WEIGHT)]


class WeightsBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The weights of collections, in place of earlier ones; others weigh 1."""

    weights: Annotated[dict[Annotated[str, Meta(max_length=200)], Weight], Meta(min_length=1, max_length=MOST_WEIGHTS)]
    note: Annotated[str, Meta(max_length=1_000)] = ""


class WeightsList(msgspec.Struct, frozen=True):
    """The handlers whose collections share their starts, by name."""

    items: list[WeightsInfo]
    next: None = None
