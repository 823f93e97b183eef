"""Alerts in tests: rules are evaluated when the test asks, and what would be told is returned instead of sent."""

from __future__ import annotations

from duetime.duties.alert_facts import Memory
from duetime.duties.alerts import evaluate
from duetime.store import Store
from duetime.store.alerts import DocumentKind
from duetime.targets.notices.documents import change, messages_of
from duetime.targets.notices.notice import Notice


async def new_notices(store: Store) -> list[Notice]:
    """Evaluate all rules once, and take out the notices that follow."""
    while not await evaluate(store, Memory()):
        pass  # the test has changed a rule meanwhile
    messages = await messages_of(store)
    await store.change_alert_documents([change(DocumentKind.MESSAGE, each.name, each, None) for each in messages])
    return [each.value for each in messages]
