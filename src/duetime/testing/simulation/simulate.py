"""Run a program's own handlers in simulated clusters that crash, and find what they do twice."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.app.app import App
from duetime.clock import SECOND, Seconds, to_datetime, to_micros
from duetime.errors import InvalidValue
from duetime.model.lifecycle import QUARANTINE_CRASHES
from duetime.runtime.portal import running_loop
from duetime.targets.context import current as current_context
from duetime.targets.python.function import PythonFunction
from duetime.testing.simulation.cluster import Cluster, Settings
from duetime.testing.simulation.faults import CLIENT, Fault, Kind, plan
from duetime.testing.simulation.loop import Deadlock, Endless
from duetime.testing.simulation.process import current as current_process

FAULTY = (1.0, 3.0, 10.0)  # virtual seconds from the beginning in which faults begin: most scenarios are over soon
PATIENCE = 600.0  # virtual seconds that tasks may take to end after the scenario
DEAD_AFTER = 0.8  # of a lease in which a worker is frozen or without the store
FAR = 2.0  # seconds until the next task is due, beyond which the store's clock is set forward instead of waiting
KINDS: Sequence[Kind] = ("crash", "crash", "crash", "kill", "kill", "lose", "lose", "freeze", "fail", "slow", "away", "restart")
SHOWN_LINES = 40

Scenario = Callable[["Simulation"], Awaitable[None]]
NewResources = Callable[["Simulation"], Sequence[object]]


class NotIdempotent(AssertionError):
    """An effect happened twice. `seed` repeats it, with `simulate(app, scenario, seeds=[seed])`."""

    def __init__(self, message: str, seed: int, name: str) -> None:
        super().__init__(message)
        self.seed = seed
        self.name = name


class NeverEnded(AssertionError):
    """A task did not end, although nothing went wrong any more. `seed` repeats it."""

    def __init__(self, message: str, seed: int) -> None:
        super().__init__(message)
        self.seed = seed


class Effect(msgspec.Struct, frozen=True):
    """Something that was done to the world outside."""

    name: str
    key: tuple[object, ...]
    at: float
    by: str

    def __str__(self) -> str:
        return f"at {self.at:.3f} s by {self.by}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was simulated: how many seeds, tasks, effects, and deaths of processes."""

    seeds: int
    tasks: int
    effects: int
    deaths: int


class Simulation:
    """What a scenario is given: the seed's own chance, a clock, and where effects are noted."""

    def __init__(self, cluster: Cluster, left_alone: frozenset[str]) -> None:
        self._cluster = cluster
        self._left_alone = left_alone
        self.seed = cluster.seed
        self.chance = random.Random(f"{cluster.seed} scenario")
        """Random numbers that follow from the seed, for scenarios that differ from seed to seed."""
        self._effects: dict[tuple[str, tuple[object, ...]], list[Effect]] = {}

    @property
    def now(self) -> datetime:
        """The store's present time."""
        return to_datetime(self._cluster.clock.now())

    def effect(self, name: str, /, *key: object) -> None:
        """Note that something was done which must be done only once for this key: `t.effect("charged", order_id)`.

        Call it where the world outside changes: in a stand-in for the payment service, in the test's own table.
        """
        process = current_process()
        if process is None or process.dead:
            return
        try:
            context = current_context()
            by = f"attempt {context.attempt} of {context.task.handler} (task {context.task.id}) in {process.name}"
        except InvalidValue:
            by = process.name
        effect = Effect(name, key, self._cluster.now, by)
        self._effects.setdefault((name, key), []).append(effect)
        self._cluster.note(process, "effect", f"{name}({', '.join(map(repr, key))})")

    def effects(self, name: str) -> list[tuple[object, ...]]:
        """Return the keys of all effects of a name that have happened, in order."""
        found = [effect for effects in self._effects.values() for effect in effects if effect.name == name]
        return [effect.key for effect in sorted(found, key=lambda effect: effect.at)]

    async def advance(self, by: Seconds = 0, /, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Set the store's clock forward; what comes due runs as soon as workers find it."""
        step = to_micros(by, "the step") + to_micros(timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))
        if step <= 0:
            raise InvalidValue("advance moves the clock forward and takes a positive duration")
        self._cluster.set_clock(self._cluster.clock.offset + step)
        await asyncio.sleep(0.0)

    async def until_done(self) -> None:
        """Wait until every task has ended; where all of them wait for a later time, the clock is set to it."""
        await _until_done(self._cluster, self._left_alone)

    def _doubled(self) -> Iterator[tuple[Effect, Effect]]:
        for effects in self._effects.values():
            if len(effects) > 1:
                yield effects[0], effects[1]


def simulate(
    app: App, scenario: Scenario, *, seeds: int | Iterable[int] = 1_000, workers: int = 2, resources: NewResources | None = None
) -> Report:
    """Run a scenario once for each seed, on simulated workers that crash, freeze and lose answers; raise what goes wrong, with its seed.

    `scenario` is an `async def` that is given a `Simulation`; it submits tasks, and may wait for them and assert. Afterwards all tasks are
    run to their ends. Whatever `t.effect` notes twice for one key raises NotIdempotent. `resources` makes what `ctx.get` finds, anew for
    each seed; without it the app's own lifespan runs in each worker. `seeds` is how many, or which.

    Handlers run as coroutines in virtual time; those that send requests, publish or run commands are left alone, and their tasks too.
    Call it from synchronous code.
    """
    if not isinstance(app, App):
        raise InvalidValue(f"simulate takes an App, got {type(app).__name__}")
    if isinstance(seeds, int) and (isinstance(seeds, bool) or seeds < 1):
        raise InvalidValue(f"seeds must be a whole number of at least 1, or the seeds themselves, got {seeds!r}")
    if running_loop() is not None:
        raise RuntimeError("simulate has an event loop of its own: call it from a plain `def`, outside of any loop")
    chosen = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    tasks = effects = deaths = 0
    with _quiet():
        for seed in chosen:
            faults = faults_of(seed, workers)
            run = _Run(app, scenario, resources, workers, seed, faults)
            error = run.run()
            if error is not None:
                raise _explained(error, run, faults)
            tasks, effects, deaths = tasks + run.tasks, effects + run.effects, deaths + run.deaths
    return Report(seeds=len(chosen), tasks=tasks, effects=effects, deaths=deaths)


def faults_of(seed: int, workers: int) -> list[Fault]:
    """Return what goes wrong in a user's simulation of a seed; only workers are hit.

    Of faults that kill workers there are fewer than would quarantine a task, whose handler has done nothing wrong.
    """
    chance = random.Random(f"{seed} faults")
    faults = plan(chance, workers=workers, seconds=chance.choice(FAULTY), lease=Settings().lease, most=6, kinds=KINDS)
    chosen = [fault for fault in faults if fault.process != CLIENT]
    deadly = [fault for fault in chosen if fault.kind in ("kill", "crash") or fault.seconds > DEAD_AFTER * Settings().lease]
    return [fault for fault in chosen if fault not in deadly[QUARANTINE_CRASHES - 1 :]]


class _Run:
    """One simulation of a scenario."""

    def __init__(
        self, app: App, scenario: Scenario, resources: NewResources | None, workers: int, seed: int, faults: Sequence[Fault]
    ) -> None:
        self._app = app
        self._scenario = scenario
        self._resources = resources
        self._settings = Settings(workers=workers, client_waits=True)
        self._seed = seed
        self._faults = faults

    def with_faults(self, faults: Sequence[Fault]) -> _Run:
        return _Run(self._app, self._scenario, self._resources, self._settings.workers, self._seed, faults)

    def run(self) -> Exception | None:
        """Run it; return what went wrong."""
        cluster = self.cluster = Cluster(self._seed, lambda version: self._app, self._faults, self._settings)
        cluster.loop.ends_at = cluster.began_at + 24 * 3_600.0
        left_alone = _left_alone(self._app)
        t = Simulation(cluster, left_alone)

        async def main() -> None:
            client = await cluster.client()
            await client.begin(self._scenario(t))
            await _until_done(cluster, left_alone)

        error: Exception | None = None
        with self._lent(t):
            try:
                cluster.run(main)
            except (Deadlock, Endless) as stuck:
                error = NeverEnded(f"the scenario did not end: {stuck}", self._seed)
            except Exception as failure:
                error = failure
        self.tasks = cluster.finished_tasks
        self.effects = sum(map(len, t._effects.values()))
        self.deaths = sum(process.dead and process.number >= 0 for process in cluster.processes if process.ended.is_set())
        for first, second in t._doubled():
            key = ", ".join(map(repr, first.key))
            return NotIdempotent(f"{first.name}({key}) happened twice: first {first}, then {second}", self._seed, first.name)
        return error

    @contextmanager
    def _lent(self, t: Simulation) -> Iterator[None]:
        """Give workers the resources of this run instead of the app's own."""
        before = self._app.lifespan
        if self._resources is not None:
            lent = self._resources(t)

            @asynccontextmanager
            async def lifespan() -> Any:
                yield lent

            self._app.lifespan = lifespan
        try:
            yield
        finally:
            self._app.lifespan = before


async def _until_done(cluster: Cluster, left_alone: frozenset[str]) -> None:
    end = cluster.now + PATIENCE
    while cluster.now < end:
        counts = cluster.memory.counts(cluster.clock.now())
        lanes = [lane for lane in counts.lanes if lane.handler not in left_alone]
        if not any(lane.due or lane.later or lane.blocked or lane.running or lane.parked for lane in lanes):
            cluster.finished_tasks = sum(final.count for final in counts.finals)
            return
        idle = not any(lane.due or lane.running for lane in lanes)
        next_at = cluster.memory.next_due(counts.now)
        if idle and next_at is not None and next_at > counts.now + FAR * SECOND:
            cluster.set_clock(cluster.clock.offset + next_at - counts.now)
        await asyncio.sleep(0.5)
    waiting = ", ".join(sorted({lane.handler for lane in lanes if lane.due or lane.blocked or lane.running or lane.parked}))
    raise NeverEnded(
        f"tasks of {waiting or 'some handlers'} have not ended {PATIENCE:.0f} virtual seconds after the scenario", cluster.seed
    )


def _left_alone(app: App) -> frozenset[str]:
    """Return the handlers whose tasks nobody waits for: those of schedules never end, and only Python functions run here."""
    scheduled = {schedule.handler_name for schedule in app._all_schedules()}
    return frozenset(scheduled | {name for name, spec in app.specs.items() if not isinstance(spec.target, PythonFunction)})


def _explained(error: Exception, run: _Run, faults: Sequence[Fault]) -> Exception:
    """Add to an error how it came about: the fewest faults that make it, and the last lines of the history."""
    kept = list(faults)
    for fault in list(faults):
        fewer = [each for each in kept if each is not fault]
        tried = run.with_faults(fewer)
        again = tried.run()
        if type(again) is type(error) and getattr(again, "name", None) == getattr(error, "name", None):
            kept, run, error = fewer, tried, again
    listed = "\n".join(f"  {fault}" for fault in kept) or "  none: it fails by itself"
    # what workers only ask for from time to time would hide what happened
    told = [
        line
        for line in run.cluster.history
        if line.who == "" or (line.what in _TOLD and (line.what != "claim" or line.more not in ("", "fails")))
    ]
    if isinstance(error, NotIdempotent):  # what came after the second effect is of no interest
        effects = [number for number, line in enumerate(told) if line.what == "effect" and str(error).startswith(f"{line.more} ")]
        told = told[: effects[-1] + 1] if effects else told
    error.add_note(f"seed {run._seed}; repeat it with simulate(app, scenario, seeds=[{run._seed}]). The faults that it needs:\n{listed}")
    error.add_note("What happened:\n" + "\n".join(f"  {line}" for line in told[-SHOWN_LINES:]))
    return error


_TOLD = {
    *("effect", "dies", "is frozen", "goes on", "works", "fault", "killed by its dead-man timer"),
    *("add", "claim", "settle", "reap", "save_steps", "send_signals"),
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what simulated workers log to themselves: a thousand crashes would fill the screen."""
    logger = logging.getLogger("duetime")
    before = logger.disabled, logger.propagate, logger.level
    handler = logging.NullHandler()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.disabled, logger.propagate, logger.level = before
