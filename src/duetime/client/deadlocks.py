"""A warning for handlers that wait for tasks which may need the very slots that such handlers take."""

from __future__ import annotations

import logging
from typing import cast

from duetime.client.insight import LocalInsight, names_of
from duetime.model.task import State, TaskRecord
from duetime.model.why import Reason, ReasonKind
from duetime.store import Store
from duetime.targets.context import Inside
from duetime.targets.output import current_attempt

logger = logging.getLogger("duetime.client")


class DeadlockWatch:
    """Looks at waits inside attempts. If every attempt that could free a slot waits for a task that needs one, all wait forever."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._insight = LocalInsight(store)
        self._warned: set[str] = set()  # handlers, each warned about once

    async def look(self, awaited: TaskRecord) -> None:
        """Warn if this code runs in an attempt whose slot the awaited task may need."""
        inside = current_attempt.get()
        if inside is None or awaited.state is not State.PENDING:
            return
        waiting = cast(Inside, inside).context.task
        if waiting.handler in self._warned or (reason := await self._needs_slot_of(waiting.id, awaited)) is None:
            return
        self._warned.add(waiting.handler)
        logger.warning(
            "%s waits inside its attempt (task %s) for task %s of %s, which may need that slot: %s. If all of these attempts wait, none "
            "ever ends. Give the awaited tasks slots of their own: another handler or worker for them (duetime worker --handler %s), "
            "or more slots than can wait; or do not wait in the attempt, but raise RetryLater and look again",
            *(waiting.handler, waiting.id, awaited.id, awaited.handler, reason.text, awaited.handler),
        )

    async def _needs_slot_of(self, waiting_id: str, awaited: TaskRecord) -> Reason | None:
        """Return what the awaited task lacks, if the attempt that waits has one of those slots."""
        reasons = {reason.kind: reason for reason in await self._insight.why(awaited)}
        if not reasons.keys() & {ReasonKind.SLOTS_FULL, ReasonKind.WORKER_FULL}:
            return None
        [waiting] = await self._store.get([waiting_id])
        if waiting is None:
            return None
        names = names_of(await self._store.declarations())
        if ReasonKind.SLOTS_FULL in reasons and names.present(waiting.handler) == names.present(awaited.handler):
            return reasons[ReasonKind.SLOTS_FULL]
        same_worker = any(worker.id == waiting.worker and awaited.handler in worker.slots for worker in await self._store.workers())
        return reasons.get(ReasonKind.WORKER_FULL) if same_worker else None
