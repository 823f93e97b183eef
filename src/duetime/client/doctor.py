"""`app.doctor`: finds and repairs impossible states of a store, and tells what else is worth knowing of it."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from duetime.client.artifacts import LocalArtifacts
from duetime.client.fits import by_declaration, report
from duetime.client.gates import GateKeeper
from duetime.client.insight import Insight, names_of
from duetime.client.limits import LimitInfo, Limits
from duetime.client.liveness import lives, silence
from duetime.client.secrets import LocalSecrets
from duetime.clock import ahead_of
from duetime.model.wording import count, span
from duetime.runtime.permissions import readable_by_others
from duetime.runtime.service import Service
from duetime.store import Store
from duetime.store.open import file_of
from duetime.store.values import WorkerRecord
from duetime.targets.output.spool import spool_root

LOOKED_AT = 10_000  # waiting tasks, the newest, whose payloads are compared with what is declared

_LIVENESS = {
    "lock": "a worker lives as long as it holds its file lock; all workers must be on the store's machine",
    "lease": "a worker lives as long as it renews its lease",
}


class Finding(msgspec.Struct, frozen=True):
    """Something that the doctor found: a problem is to be repaired, a note is only worth knowing."""

    level: Literal["problem", "note"]
    kind: str
    subject: str
    detail: str
    repaired: bool = False

    @property
    def left(self) -> bool:
        """Whether it is a problem that is still there."""
        return self.level == "problem" and not self.repaired


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an examination found, and what was examined: the store, and the versions of the process that examined it.

    It is `healthy` if no problem is left. `durability` is what a returned write survives, `liveness` how workers are known to live,
    `commands` what would hold commands together if they ran on the machine that was examined.
    """

    store: str
    durability: str
    liveness: str
    duetime: str
    python: str
    sqlite: str | None = None
    commands: str | None = None
    healthy: bool
    findings: list[Finding]

    def __str__(self) -> str:
        problems = sum(finding.level == "problem" for finding in self.findings)
        left = sum(finding.left for finding in self.findings)
        if not problems:
            return "no problems"
        return f"{count(problems, 'problem')}, repaired" if not left else f"{count(left, 'problem')} left of {problems:,}"


class Doctor(Protocol):
    """`app.doctor`: examines the store. `reaping`: this process watches workers and reaps the dead ones all the time, as a server does."""

    reaping: bool = False

    async def examine(self, *, repair: bool = False, on_watch: Callable[[int, float], None] | None = None) -> Diagnosis:
        """Look for what is wrong, and repair what can be repaired; no live task is lost or invented.

        A repair takes tasks back from dead workers at once, and from silent ones after watching them for their lease: before it waits,
        `on_watch` is called with how many they are and the most seconds that it takes. Without a repair it waits for nothing.
        """
        ...


class LocalDoctor(Doctor):
    """Examines a store that this process has opened. `output` is the setting of that name."""

    def __init__(
        self,
        store: Store,
        *,
        gates: GateKeeper,
        limits: Limits,
        insight: Insight,
        secrets: LocalSecrets,
        artifacts: LocalArtifacts,
        output: str | None,
        lease: float,
        reaper: Callable[[], Service],
        opened: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._gates = gates
        self._limits = limits
        self._insight = insight
        self._secrets = secrets
        self._artifacts = artifacts
        self._output = output
        self._lease = lease
        self._reaper = reaper
        self._opened = opened

    async def examine(self, *, repair: bool = False, on_watch: Callable[[int, float], None] | None = None) -> Diagnosis:
        from importlib.metadata import version  # every program would pay 7 ms for it

        await self._opened()
        findings = [finding async for finding in self._findings(repair, on_watch)]
        return Diagnosis(
            store=self._store.url,
            durability=self._store.traits.durability,
            liveness=_LIVENESS[self._store.traits.liveness],
            duetime=version("duetime"),
            python=platform.python_version(),
            sqlite=self._sqlite(),
            commands=_commands(),
            healthy=not any(finding.left for finding in findings),
            findings=findings,
        )

    def _sqlite(self) -> str | None:
        if file_of(self._store.url) is None:
            return None
        from duetime.store.sqlite.store import SQLITE

        return SQLITE

    async def _findings(self, repair: bool, on_watch: Callable[[int, float], None] | None) -> AsyncIterator[Finding]:
        """Yield what is wrong. Dead workers come first: the later checks need their tasks to be taken back."""
        workers, now = await self._store.workers(), self._store.now()
        silent = {worker.id: seconds for worker in workers if (seconds := silence(worker, now)) is not None}
        watched = () if self.reaping else silent
        taken = await self._take_back(workers, watched, on_watch) if repair else ()
        keeper = "this server" if self.reaping else "another worker" if any(lives(worker, now) for worker in workers) else None
        for worker in workers:
            if worker.id in silent:
                beat_again = repair and worker.id in watched and worker.id not in taken
                yield _silent(worker, silent[worker.id], keeper=keeper, beat_again=beat_again, repaired=worker.id in taken)
            elif (finding := _about(worker, taken, reaping=self.reaping)) is not None:
                yield finding
        for problem in await self._store.inspect(repair=repair):
            yield Finding("problem", problem.kind, problem.subject, problem.detail, problem.repaired)
        for problem in await self._store.inspect_flows(repair=repair):
            yield Finding("problem", problem.kind, problem.subject, problem.detail, problem.repaired)
        async for finding in self._waiting():
            yield finding
        for finding in self._readable():
            yield finding
        for finding in self._clock():
            yield finding
        async for finding in self._unreadable():
            yield finding
        for reference in await self._artifacts.missing():
            detail = "its bytes are gone, so what runs it fails; put it again, or delete this version"
            yield Finding("problem", "missing artifact", reference, detail)
        for gate in await self._gates.list():
            until = "until it is opened" if gate.until_at is None else f"until {gate.until_at:%Y-%m-%d %H:%M:%S} UTC"
            if gate.probe_at is not None:
                until = f"until a task succeeds, the next one tries at {gate.probe_at:%Y-%m-%d %H:%M:%S} UTC"
            why = f": {gate.note}" if gate.automatic else ""
            text = f"{gate.action} {gate.collection or 'all'} {until}, set by {gate.set_by}{why}"
            yield Finding("note", "closed gate", gate.handler, text)
        for limit in await self._limits.list():
            for finding in _of_limit(limit):
                yield finding

    async def _waiting(self) -> AsyncIterator[Finding]:
        """Find tasks that wait for a worker or for other code."""
        now = self._store.now()
        serving = [worker for worker in await self._store.workers() if lives(worker, now) and not worker.draining]
        served = {handler for worker in serving for handler in worker.slots}
        names, unserved = names_of(await self._store.declarations()), Counter[str]()
        for lane in (await self._store.counts()).lanes:  # by the names that tasks have: workers may know only one of a handler's
            if lane.due and lane.handler not in served:
                unserved[names.present(lane.handler)] += lane.due
        # what waits under a limit is well; `duetime limits` tells how much that is
        counted = {handler for limit in await self._store.limits() if limit.is_counted and limit.parked for handler in limit.uses}
        for counts in (await self._insight.stats()).handlers:
            if due := unserved[counts.handler]:
                yield Finding("note", "no worker", counts.handler, f"{count(due, 'due task')} and no live worker that runs them")
            if counts.parked and counts.handler not in counted:
                detail = (
                    f"{count(counts.parked, 'task')} parked: the payload fits no code that has tried them. Start a worker with fitting "
                    "code, change the payload (duetime edit --payload) or cancel them; duetime tasks --parked lists them"
                )
                yield Finding("note", "parked", counts.handler, detail)
        for misfits in (await report(self._store, by_declaration(await self._store.declarations()), LOOKED_AT)).misfits:
            yield Finding("note", "misfit", misfits.handler, str(misfits))

    def _clock(self) -> Iterator[Finding]:
        """Find a clock of this machine that tells another time than the store's."""
        ahead = 0.0 if self._store.traits.liveness == "lock" else ahead_of(self._store.now())
        if ahead:
            detail = (
                f"the clock of this machine is {span(timedelta(seconds=abs(ahead)))} {'ahead of' if ahead > 0 else 'behind'} that of the "
                "store, which decides what is due: an instant that a program here takes from its own clock is off by that. Synchronise both"
            )
            yield Finding("note", "clocks apart", platform.node(), detail)

    def _readable(self) -> Iterator[Finding]:
        """Find files of the store that any user of this machine may read: payloads, results and logs are in them."""
        file = file_of(self._store.url)
        paths = [] if file is None else [file, Path(f"{file}-duetime")]  # SQLite's own files beside it follow the file
        output = spool_root(self._output, self._store.output_folder, self._store.url)
        if output is not None and output.parent not in paths:
            paths.append(output)
        for path in paths:
            if readable_by_others(path):
                command = f"chmod -R o= {path}" if path.is_dir() else f"chmod o= {path}"
                detail = f"every user of this machine may read it; run `{command}` unless that is intended"
                yield Finding("note", "readable by others", str(path), detail)

    async def _unreadable(self) -> AsyncIterator[Finding]:
        """Find secrets that no key can read: what uses them fails."""
        stored = await self._secrets.list()
        if stored and not self._secrets.has_keys:
            detail = f"{count(len(stored), 'secret')} cannot be checked: set DUETIME_SECRET_KEYS here as for the workers"
            yield Finding("note", "no secret keys", "DUETIME_SECRET_KEYS", detail)
        elif stored:
            for name, reason in (await self._secrets.unreadable()).items():
                yield Finding("problem", "unreadable secret", name, reason)

    async def _take_back(
        self, workers: Sequence[WorkerRecord], silent: Collection[str], on_watch: Callable[[int, float], None] | None
    ) -> Collection[str]:
        """Reap dead workers, and silent ones after watching them for their lease; return the ids of those that are gone.

        The reaper decides who is dead. A silent worker is watched until it is reaped or beats again.
        """
        reaper = self._reaper()
        watched: Mapping[str, int] = {worker.id: worker.beat for worker in workers if worker.id in silent}
        if watched and on_watch is not None:
            on_watch(len(watched), max(self._lease, *(worker.lease for worker in workers if worker.id in watched)))
        while True:
            look_again = await reaper.run_once()
            present = {worker.id: worker.beat for worker in await self._store.workers()}
            watched = {id: beat for id, beat in watched.items() if present.get(id) == beat}
            if not watched:
                return {worker.id for worker in workers} - present.keys()
            await asyncio.sleep(look_again or 0.0)


def _of_limit(limit: LimitInfo) -> Iterator[Finding]:
    """Describe a limit that was changed, and what can never run under it."""
    for handler, takes in limit.handlers.items():
        if limit.running is not None and takes > limit.running:
            detail = f"an attempt of {handler} takes {takes} of {limit.running}, so it never runs: duetime limits reset {limit.name}"
            yield Finding("problem", "limit too low", limit.name, detail)
    if limit.own is not None:
        until = "until it is reset" if limit.until_at is None else f"until {limit.until_at:%Y-%m-%d %H:%M:%S} UTC"
        note = f": {limit.note}" if limit.note else ""
        detail = f"allows {limit.own} instead of {limit.declared} {until}, set by {limit.set_by or 'somebody'}{note}"
        yield Finding("note", "changed limit", limit.name, detail)


def _silent(worker: WorkerRecord, seconds: float, *, keeper: str | None, beat_again: bool, repaired: bool) -> Finding:
    """Describe a worker that does not beat. It is a problem only if it holds tasks that nobody else will take back."""
    description = f"{_who(worker)} has not beaten for {span(timedelta(seconds=seconds))}, its lease is {worker.lease:g} s"
    held = f"what it holds ({count(worker.running, 'attempt')})"
    if beat_again:
        return Finding("note", "silent worker", worker.id, f"{description}; it beat again while it was watched")
    if keeper is not None:
        return Finding("note", "silent worker", worker.id, f"{description}; {keeper} watches it and takes back {held}", repaired)
    detail = f"{description}, and no other worker beats; {held} goes back when a worker or a server runs, or with --repair"
    return Finding("problem" if worker.running else "note", "silent worker", worker.id, detail, repaired)


def _about(worker: WorkerRecord, taken: Collection[str], *, reaping: bool) -> Finding | None:
    """Describe a worker that has ended or cannot be judged; None for one that lives."""
    held = count(worker.running, "attempt")
    if worker.alive is False:
        if reaping:
            detail = f"{_who(worker)} has ended; this server takes back what it holds ({held})"
            return Finding("note", "dead worker", worker.id, detail, worker.id in taken)
        detail = f"{_who(worker)} has ended; what it holds ({held}) goes back when a worker runs, or with --repair"
        return Finding("problem", "dead worker", worker.id, detail, worker.id in taken)
    if worker.pull:
        detail = f"{_who(worker)} holds {held}; its lease is {worker.lease:g} s, and a server or worker that runs watches it"
        return Finding("note", "pull worker", worker.id, detail)
    if worker.alive is None and worker.beat_at is None:
        return Finding("note", "unknown worker", worker.id, f"{_who(worker)} cannot be judged from here; it holds {held}")
    return None


def _who(worker: WorkerRecord) -> str:
    return f"pull worker {worker.host}" if worker.pull else f"process {worker.pid} on {worker.host}"


def _commands() -> str | None:
    if platform.system() != "Linux":
        return None
    from duetime.targets.command.cgroup import containment, parent_of_groups

    return containment(parent_of_groups())
