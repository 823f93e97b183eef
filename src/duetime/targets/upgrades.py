"""Payloads that were stored before their handler's parameters changed: functions that turn them into present ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, TypeAlias

Upgrade: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


def fingerprint(upgrades: Sequence[Upgrade]) -> str:
    """Return a text that changes when the code of the upgrades does: what they could not read before they may read now."""
    if not upgrades:
        return ""
    digest = hashlib.sha256()
    for upgrade in upgrades:
        code = getattr(upgrade, "__code__", None)
        for part in _parts(code) if code is not None else [repr(upgrade).encode()]:
            digest.update(part)
    return digest.hexdigest()[:16]


def _parts(code: CodeType) -> Iterator[bytes]:
    """Return what a function does, without where it stands: neither files nor line numbers."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames)).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        else:
            yield repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant).encode()
