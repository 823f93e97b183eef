"""Values as query parameters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime


def query_params(values: Mapping[str, object]) -> dict[str, str]:
    """Convert values to query parameters; None is left out."""
    return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime) else str(value)
