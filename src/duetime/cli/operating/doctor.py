"""The `doctor` command: find and repair impossible states of a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from duetime.cli import show
from duetime.cli.failures import REFUSED
from duetime.cli.session import file_of, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.store.values import WorkerRecord


class Finding(msgspec.Struct, frozen=True):
    """Something that the doctor found: a problem is to be repaired, a note is only worth knowing."""

    level: Literal["problem", "note"]
    kind: str
    subject: str
    detail: str
    repaired: bool = False


@click.command()
@click.option("--repair", is_flag=True, help="Repair what can be repaired; no live task is lost or invented. Watches silent workers first.")
@json_option
@store_option
def doctor(repair: bool, as_json: bool) -> None:
    """Find and repair impossible states.

    Dead and silent workers, due work without a worker, and closed gates are reported too. The exit code is 1 if problems remain.
    """

    async def use(app: App) -> tuple[dict[str, str], list[Finding]]:
        with show.waiting(f"examining {app.url}") as say:
            return _facts(app), [finding async for finding in _examine(app, repair, say)]

    facts, findings = on_store(use)
    left = [finding for finding in findings if finding.level == "problem" and not finding.repaired]
    if as_json:
        show.print_json({**facts, "healthy": not left, "findings": findings})
    else:
        show.print_facts(facts.items())
        for finding in findings:
            click.echo(show.printable(f"{_label(finding)}: {finding.kind}: {finding.subject}: {finding.detail}"))
        click.echo(_summary(findings, left))
    if left:
        raise click.exceptions.Exit(REFUSED)


def _facts(app: App) -> dict[str, str]:
    import platform
    from importlib.metadata import version

    facts = {
        "store": app.url,
        "durability": app.insight.durability,
        "liveness": {
            "lock": "a worker lives as long as it holds its file lock; all workers must be on this machine",
            "lease": "a worker lives as long as it renews its lease",
        }[app.store.traits.liveness],
        "duetime": version("duetime"),
        "python": platform.python_version(),
    }
    if file_of(app.url) is not None:
        import sqlite3

        facts["sqlite"] = sqlite3.sqlite_version
    return facts


async def _examine(app: App, repair: bool, say: Callable[[str], None]) -> AsyncIterator[Finding]:
    """Yield what is wrong. Dead workers come first: the later checks need their tasks to be taken back."""
    from duetime.client.insight import lives, silence

    store = app.store
    workers, now = await store.workers(), store.now()
    silent = {worker.id: seconds for worker in workers if (seconds := silence(worker, now)) is not None}
    taken = await _take_back(app, workers, silent, say) if repair else ()
    others = any(lives(worker, now) for worker in workers)
    for worker in workers:
        held = show.count(worker.running, "attempt")
        if worker.id in silent:
            yield _silent(worker, silent[worker.id], taken, others=others, watched=repair)
        elif worker.alive is False:
            detail = f"{_who(worker)} has ended; what it holds ({held}) goes back when a worker runs, or with --repair"
            yield Finding("problem", "dead worker", worker.id, detail, worker.id in taken)
        elif worker.pull:
            detail = f"{_who(worker)} holds {held}; its lease is {worker.lease:g} s, and a server or worker that runs watches it"
            yield Finding("note", "pull worker", worker.id, detail)
        elif worker.alive is None and worker.beat_at is None:
            detail = f"{_who(worker)} cannot be judged from here; it holds {held}"
            yield Finding("note", "unknown worker", worker.id, detail)
    for problem in await store.inspect(repair=repair):
        yield Finding("problem", problem.kind, problem.subject, problem.detail, problem.repaired)
    served = {handler for worker in await store.workers() if lives(worker, store.now()) for handler in worker.slots}
    for counts in (await app.insight.stats()).handlers:
        if counts.due and counts.handler not in served:
            yield Finding("note", "no worker", counts.handler, f"{show.count(counts.due, 'due task')} and no live worker that runs them")
    for gate in await app.gates.list():
        until = "until it is opened" if gate.until_at is None else f"until {show.absolute(gate.until_at)}"
        yield Finding("note", "closed gate", gate.handler, f"{gate.action} {gate.collection or 'all'} {until}, set by {gate.set_by}")


def _who(worker: WorkerRecord) -> str:
    return f"pull worker {worker.host}" if worker.pull else f"process {worker.pid} on {worker.host}"


def _silent(worker: WorkerRecord, seconds: float, taken: Collection[str], *, others: bool, watched: bool) -> Finding:
    """Describe a worker that does not beat. It is a problem only if it holds tasks that nobody else will take back."""
    description = f"{_who(worker)} has not beaten for {show.span(timedelta(seconds=seconds))}, its lease is {worker.lease:g} s"
    held = f"what it holds ({show.count(worker.running, 'attempt')})"
    if watched and worker.id not in taken:
        return Finding("note", "silent worker", worker.id, f"{description}; it beat again while it was watched")
    if others:
        return Finding(
            "note", "silent worker", worker.id, f"{description}; another worker watches it and takes back {held}", worker.id in taken
        )
    detail = f"{description}, and no other worker beats; {held} goes back when a worker or a server runs, or with --repair"
    return Finding("problem" if worker.running else "note", "silent worker", worker.id, detail, worker.id in taken)


async def _take_back(app: App, workers: Sequence[WorkerRecord], silent: Collection[str], say: Callable[[str], None]) -> set[str]:
    """Reap dead workers, and silent ones after watching them for their lease; return the ids of those that are gone.

    The reaper decides who is dead. A silent worker is watched until it is reaped or beats again.
    """
    from duetime.duties.reaper import LOOK_EVERY, Reaper
    from duetime.runtime.service import Alarms

    store = app.store
    reaper = Reaper(store, Alarms(), lease=app.config.lease)
    watched: Mapping[str, int] = {worker.id: worker.beat for worker in workers if worker.id in silent}
    if watched:
        longest = max(app.config.lease, *(worker.lease for worker in workers if worker.id in watched))
        watching = f"watching {show.count(len(watched), 'silent worker')}"
        show.note(f"{watching} for a lease, up to {longest:g} s: one that does not beat meanwhile is dead")
        say(watching)
    while True:
        await reaper.reap()
        present = {worker.id: worker.beat for worker in await store.workers()}
        watched = {id: beat for id, beat in watched.items() if present.get(id) == beat}
        if not watched:
            return {worker.id for worker in workers} - present.keys()
        await asyncio.sleep(LOOK_EVERY)


def _label(finding: Finding) -> str:
    return "repaired" if finding.repaired else finding.level


def _summary(findings: list[Finding], left: list[Finding]) -> str:
    problems = sum(finding.level == "problem" for finding in findings)
    if not problems:
        return "no problems"
    if not left:
        return f"{show.count(problems, 'problem')}, repaired"
    return f"{show.count(len(left), 'problem')} left of {problems}; what can be repaired is: duetime doctor --repair"
