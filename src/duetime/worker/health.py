"""A worker's health: whether each of its loops makes progress, and whether it can prove that it lives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from duetime.clock import monotonic
from duetime.model.wording import count
from duetime.runtime.service import Alarms, Pulse, Service

logger = logging.getLogger("duetime.worker")

LOOK_EVERY = 1.0


class LoopHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One loop of a worker. Durations are in seconds; `failures` counts those in a row, of which `error` is the last.

    `succeeded_ago` is None before the first success. It may be long: a loop without anything to do waits. `stalled_for`
    is more than 0 if it has been at work, or failing, for so long without progress that something is wrong.
    """

    name: str
    succeeded_ago: float | None
    failures: int
    error: str | None
    stalled_for: float


class WorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one moment. `problems` says in sentences what is wrong; without any it is `ok`.

    `unsettled` counts outcomes that wait in memory to be written. `proved`: whether the store has taken the worker's
    proof of life recently enough for it to start attempts. `blocked_for`: seconds for which the event loop has not answered.
    `store_away`: whether some loop could not reach the store when it last tried.
    """

    problems: tuple[str, ...]
    loops: tuple[LoopHealth, ...]
    proved: bool
    proved_ago: float
    blocked_for: float
    running: int
    unsettled: int
    store_away: bool

    @property
    def ok(self) -> bool:
        return not self.problems


def loop_health(pulse: Pulse, now: float) -> LoopHealth:
    return LoopHealth(
        name=pulse.name,
        succeeded_ago=None if pulse.succeeded_at is None else max(0.0, now - pulse.succeeded_at),
        failures=pulse.failures,
        error=pulse.error,
        stalled_for=pulse.stalled_for(now),
    )


def judge(
    pulses: Sequence[Pulse],
    now: float,
    *,
    proved: bool,
    proved_ago: float,
    blocked_for: float,
    running: int,
    unsettled: int,
    store_away: bool,
    stuck: str | None,
) -> WorkerHealth:
    """Return what is wrong, in sentences."""
    problems = [problem for pulse in pulses if (problem := pulse.problem(now)) is not None]
    if not proved:
        problems.append(f"the store has not taken its proof of life for {proved_ago:.1f} s: it starts nothing")
    if blocked_for:
        problems.append(f"the event loop has been blocked for {blocked_for:.1f} s")
    if stuck is not None:
        problems.append(f"{stuck} does not end although it was told to")
    return WorkerHealth(
        problems=tuple(problems),
        loops=tuple(loop_health(pulse, now) for pulse in pulses),
        proved=proved,
        proved_ago=proved_ago,
        blocked_for=blocked_for,
        running=running,
        unsettled=unsettled,
        store_away=store_away,
    )


class Watch(Service):
    """Logs when a loop makes no progress, or the store is away for as long, and how many outcomes wait to be written."""

    name = "watch"

    def __init__(self, pulses: Sequence[Pulse], alarms: Alarms, *, unsettled: Callable[[], int], fence: Callable[[], float]) -> None:
        super().__init__(alarms)
        self._pulses = pulses
        self._unsettled = unsettled
        self._fence = fence  # returns the seconds after which it is to be called again
        self._outage = alarms.outage
        self._away = False  # that the store is away is logged

    async def run_once(self) -> float | None:
        again_in = self._fence()
        self.look(monotonic())
        return min(again_in, LOOK_EVERY)

    def look(self, now: float) -> None:
        complaints = [complaint for pulse in self._pulses if (complaint := pulse.problem_to_log(now)) is not None]
        if complaints:
            logger.error("%s. %s to be written", "; ".join(complaints), self._waiting())
        away_for = max((pulse.away_for(now) for pulse in self._pulses), default=0.0) if self._outage.lasts else 0.0
        if away_for and not self._away:
            logger.error("the store has not answered for %.1f s. %s to be written", away_for, self._waiting())
        self._away = away_for > 0

    def _waiting(self) -> str:
        return count(self._unsettled(), "outcome waits", "outcomes wait")
