"""The duties of the system in a server.

Pull workers die too, and schedules must fire even if no Python worker runs. So an installation with only a server and pull workers lacks
nothing.
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
    """Perform the duties as long as the block lasts, and yield them. Each is safe when many processes perform it at once."""
    alarms = Alarms()
    duties = app.duties(app.store, alarms)
    receivers = [duty for duty in duties if isinstance(duty, HintReceiver)]

    def on_hint(hint: Hint) -> None:
        for duty in receivers:
            duty.on_hint(hint)

    listener = app.client.listen(on_hint)
    doctor = app.doctor
    for duty in duties:
        duty.start()
    doctor.reaping = True
    try:
        yield duties
    finally:
        doctor.reaping = False
        for duty in duties:
            await duty.stop()
        listener.close()
        alarms.close()
