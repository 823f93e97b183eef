"""Test runs: one task that shows how a handler's attempts go, from where its workers are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from duetime.clock import SECOND
from duetime.model.retry import RetryPolicy
from duetime.model.task import NewTask

TEST = "duetime.test"  # the name in a task's meta
TEST_PRIORITY = 9
TEST_EXPIRES = 60 * SECOND


def as_test(task: NewTask[Any]) -> NewTask[Any]:
    """Return a task as a test run: first in the order, tried once, and not started any more after a minute, when nobody looks."""
    return msgspec.structs.replace(
        task,
        priority=TEST_PRIORITY,
        retry=RetryPolicy.none().numbers(),
        expires_in=TEST_EXPIRES,
        meta={**(task.meta or {}), TEST: "1"},
    )


def is_test(meta: Mapping[str, str] | None) -> bool:
    """Return whether a task with this meta is a test run."""
    return meta is not None and TEST in meta
