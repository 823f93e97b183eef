"""An App on a store that does not know who lives: a worker that is silent is dead only after a lease, which nobody waits for here."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from duetime import App
from duetime.store.sqlite.store import SqliteStore
from duetime.store.values import WorkerRecord


class UnsureStore(SqliteStore):
    """SQLite without the evidence of its file locks."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.traits = msgspec.structs.replace(self.traits, liveness="lease")

    async def workers(self) -> list[WorkerRecord]:
        records: Sequence[WorkerRecord] = await super().workers()
        return [msgspec.structs.replace(record, alive=None) for record in records]


app = App(lease=600)
app._use(app._services_of(UnsureStore.from_url(app.config.url)))


def once(path: str) -> None:
    """Run until it is killed; a second attempt finds the mark of the first and ends."""
    mark = Path(path)
    if mark.exists():
        return
    mark.with_suffix(".new").write_text(str(os.getpid()))
    mark.with_suffix(".new").rename(mark)
    time.sleep(3_600)


def escaping(path: str) -> None:
    """Leave a process behind that outlives this one, and so may still do what the attempt did."""
    if os.fork() == 0:
        os.setsid()
        once(path)
        os._exit(0)
    time.sleep(3_600)


in_child = app.task(name="in_child", isolation="process")(once)
in_thread = app.task(name="in_thread")(once)
escapes = app.task(name="escapes", isolation="process")(escaping)
