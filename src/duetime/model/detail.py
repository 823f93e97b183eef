"""The detail of an attempt: what its target observed, as a small JSON object that is kept and shown with the attempt.

For example the status, the phases and the address of a request, or the exit code of a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

MAX_DETAIL = 4_096  # bytes
TRIMMED = "trimmed"  # says that values were cut or left out
_SHORT = 200  # characters that stay of a text that is cut

_encode = msgspec.json.Encoder().encode


def detail_of(facts: Mapping[str, Any]) -> bytes | None:
    """Return facts as an attempt's detail; those that are None are left out, and None is returned if none is left.

    What is too large is trimmed and says so: texts are cut first, then the largest facts are left out. It never fails an attempt.
    """
    kept = {name: fact for name, fact in facts.items() if fact is not None}
    if not kept:
        return None
    try:
        detail = _encode(kept)
    except UnicodeEncodeError:
        kept = _clean(kept)
        detail = _encode(kept)
    if len(detail) <= MAX_DETAIL:
        return detail
    kept = {name: _cut(fact) for name, fact in kept.items()} | {TRIMMED: True}
    while len(detail := _encode(kept)) > MAX_DETAIL:
        del kept[max((name for name in kept if name != TRIMMED), key=lambda name: len(_encode({name: kept[name]})))]
    return detail


def _clean(fact: Any) -> Any:
    """Replace lone surrogates, which neither JSON nor a database can hold."""
    if isinstance(fact, str):
        return fact.encode("utf-8", "replace").decode("utf-8")
    if isinstance(fact, Mapping):
        return {_clean(name): _clean(each) for name, each in fact.items()}
    if isinstance(fact, list | tuple):
        return [_clean(each) for each in fact]
    return fact


def _cut(fact: Any) -> Any:
    if isinstance(fact, str) and len(fact) > _SHORT:
        return fact[: _SHORT - 1] + "…"
    if isinstance(fact, Mapping):
        return {name: _cut(each) for name, each in fact.items()}
    if isinstance(fact, list):
        return [_cut(each) for each in fact]
    return fact
