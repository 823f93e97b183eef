"""Test runs of handlers in JSON."""

from __future__ import annotations

import msgspec

from duetime.wire.fields import Arguments


class TestBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What to test a handler with."""

    __test__ = False  # for pytest

    payload: Arguments = {}
