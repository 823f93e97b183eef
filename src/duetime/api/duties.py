"""The duties of the system in a server. Workers in other languages die too, and schedules fire where no worker of ours runs: whoever has
only a server beside them must not miss anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from duetime.app.app import App
from duetime.runtime.service import Alarms, Service
from duetime.store.shard import HintReceiver
from duetime.store.values import Hint


@contextlib.asynccontextmanager
async def performing(app: App) -> AsyncIterator[Sequence[Service]]:
    """Perform the duties as long as the block lasts, and give them; each is safe when many processes perform it at once."""
    alarms = Alarms()
    duties = app.duties(app.store, alarms)
    receivers = [duty for duty in duties if isinstance(duty, HintReceiver)]

    def on_hint(hint: Hint) -> None:
        for duty in receivers:
            duty.on_hint(hint)

    listener = app.client.listen(on_hint)
    for duty in duties:
        duty.start()
    try:
        yield duties
    finally:
        for duty in duties:
            await duty.stop()
        listener.close()
        alarms.close()
