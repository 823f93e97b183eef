"""Reading what is known of many tasks, when their payloads and large results do not matter."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duetime.model.occurrences import LARGEST_RESULT
from duetime.model.task import TaskRecord
from duetime.store import Store

AT_ONCE = 20  # tasks that are read together: each may have two megabytes of payload and result


async def without_payloads(store: Store, ids: Sequence[str]) -> list[TaskRecord | None]:
    """Return tasks by id, without payloads and large results; None for one that does not exist."""
    found: list[TaskRecord | None] = []
    for start in range(0, len(ids), AT_ONCE):
        found += [None if record is None else _light(record) for record in await store.get(ids[start : start + AT_ONCE])]
    return found


def _light(record: TaskRecord) -> TaskRecord:
    result = None if record.result is not None and len(record.result) > LARGEST_RESULT else record.result
    return msgspec.structs.replace(record, payload=b"{}", result=result)
