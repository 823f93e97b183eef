"""Whether a worker counts as alive, for people."""

from __future__ import annotations

from duetime.clock import SECOND, Instant
from duetime.store.values import WorkerRecord


def silence(worker: WorkerRecord, now: Instant) -> float | None:
    """Return for how many seconds a worker has sent no beat, if that exceeds its lease and the store cannot tell whether it is alive.

    `now` is by the store's clock, like the instants of beats. This is information for people and decides nothing: the clock may have
    been set, and no worker could beat while the store was down. The reaper, which watches the worker for a whole lease, takes its tasks
    back.
    """
    if worker.alive is not None or worker.beat_at is None:
        return None
    seconds = (now - worker.beat_at) / SECOND
    return seconds if seconds > worker.lease else None


def lives(worker: WorkerRecord, now: Instant) -> bool:
    """Return whether a worker counts as alive: not known to be dead, and not silent."""
    return worker.alive is not False and silence(worker, now) is None
