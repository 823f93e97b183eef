"""Values as parameters of an address."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime


def texts(values: Mapping[str, object]) -> dict[str, str]:
    """Write values as parameters of an address; None is left out."""
    return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime) else str(value)
