"""Duties: background jobs of the system itself. Each is safe when many processes perform it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from duetime.duties.alerts import Alerts
from duetime.duties.deadlines import Deadlines
from duetime.duties.firing import Firing
from duetime.duties.flows import Flows
from duetime.duties.heartbeat import Heartbeat
from duetime.duties.intents import Intents
from duetime.duties.operations import Operations
from duetime.duties.pruner import Pruner
from duetime.duties.reaper import Reaper
from duetime.duties.sampler import Sampler
from duetime.duties.sweeper import Sweeper
from duetime.duties.tidier import Tidier
from duetime.duties.waits import Waits
from duetime.model.task import State
from duetime.runtime.service import Alarms, Service
from duetime.store import Store

__all__ = [
    "Alerts",
    "Deadlines",
    "Firing",
    "Flows",
    "Heartbeat",
    "Intents",
    "Operations",
    "Pruner",
    "Reaper",
    "Sampler",
    "Sweeper",
    "Tidier",
    "Waits",
    "all_duties",
]


def all_duties(
    store: Store, alarms: Alarms, *, lease: float, retention: Mapping[State, timedelta], heartbeat: str | None = None
) -> Sequence[Service]:
    """Create every duty of one process. `heartbeat` is the URL that a monitor outside wants to be called at."""
    return (
        Firing(store, alarms),
        Reaper(store, alarms, lease=lease),
        Sweeper(store, alarms),
        Deadlines(store, alarms),
        Intents(store, alarms),
        Flows(store, alarms),
        Waits(store, alarms),
        Operations(store, alarms),
        Pruner(store, alarms, retention),
        Tidier(store, alarms),
        Sampler(store, alarms),
        Alerts(store, alarms),
        *(() if heartbeat is None else (Heartbeat(store, alarms, heartbeat),)),
    )
