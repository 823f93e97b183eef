"""What must hold of limits by key and by rate at the end of a simulated world.

| rule  | what it finds                                                                       |
| ----- | ----------------------------------------------------------------------------------- |
| key   | more attempts of one user at once than its limit allows                             |
| rate  | more attempts that began within a time than the rate lets begin in it               |
| leak  | a part of a limit that is still taken although all tasks are final                  |

When an attempt was handed out only the store knows; it begins later if a process or an answer was held up meanwhile. So starts are counted
only in worlds without such faults, and with free slots.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from duetime.testing.simulation.cluster import Settings
from duetime.testing.simulation.faults import Fault
from tests.simulation.checker import Facts, Simulated
from tests.simulation.journal import Journal
from tests.simulation.keyed import PER_USER, TAKES, VENDOR

LATE = 0.2  # seconds from a claim to the start of what it brought, where nothing is held up
HOLDS_UP = frozenset({"freeze", "slow", "lose", "away", "step", "skew"})


def violations(
    journal: Journal, facts: Facts, settings: Settings, planned: Sequence[Fault], execute: Callable[[str], list[Any]]
) -> Iterator[str]:
    history = Simulated(journal, facts)
    yield from _users(history, facts, journal, cancels=settings.on_lease_lost == "cancel")
    if settings.concurrency is None and not HOLDS_UP & {fault.kind for fault in planned}:
        yield from _pace(
            sorted(each.start.at for attempts in history.attempts.values() for each in attempts if each.start.handler == "paced")
        )
    ((rows,),) = execute("select count(*) from duetime_admitted")
    if rows:
        yield f"leak: {rows} parts of limits are taken although all tasks are final"


def _users(history: Simulated, facts: Facts, journal: Journal, *, cancels: bool) -> Iterator[str]:
    """Count by the handlers' own journal. `cancels`: nobody kills a worker that is frozen past its lease, so its attempts do not count."""
    changes: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for task, attempts in history.attempts.items():
        for each in attempts:
            over_at = history._over_at(each)
            if each.start.handler not in TAKES or over_at is None or (task, each.start.fence) in journal.excused:
                continue
            if cancels and each.start.pid in facts.cut_off:
                continue
            user, takes = msgspec.json.decode(facts.records[task].payload)["user"], TAKES[each.start.handler]
            changes[user] += [(each.start.at, takes), (over_at, -takes)]
    for user, its in changes.items():
        running = 0
        for at, change in sorted(its):
            running += change
            if change > 0 and running > (PER_USER.running or 0):
                yield f"key: {running} of {user} were taken at {at:.6f} s, but {PER_USER.running} may be"


def _pace(starts: Sequence[float]) -> Iterator[str]:
    [rate] = VENDOR.rate
    for first, since in enumerate(starts):
        for last, until in enumerate(starts[first:], first):
            count, most = last - first + 1, rate.count * (until - since + 0.1 + LATE) + rate.burst
            if count > most:
                yield f"rate: {count} began within {until - since:.3f} s, from {since:.3f} s on, but {most:.1f} may"
                return
