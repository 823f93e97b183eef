"""Keeping a store healthy: `migrate` and `doctor`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from duetime.cli import show
from duetime.cli.failures import REFUSED
from duetime.cli.session import file_of, given_url, json_option, on_store, store_option

if TYPE_CHECKING:
    from duetime.app import App


class Finding(msgspec.Struct, frozen=True):
    """Something that the doctor saw: a problem is to be repaired, a note is only worth knowing."""

    level: Literal["problem", "note"]
    kind: str
    subject: str
    detail: str
    repaired: bool = False


@click.command()
@click.option("--sql", is_flag=True, help="Print the statements instead of executing them.")
@store_option
def migrate(sql: bool) -> None:
    """Create the store or update its tables."""
    from duetime.app import App
    from duetime.remote.address import needs_store

    app = App(given_url())
    if not app.has_store:
        raise needs_store("migrate", app.store.url)
    if sql:
        click.echo(app.store.script(), nl=False)
        return
    app.config = msgspec.structs.replace(app.config, migrate=True)
    path = file_of(app.store.url)
    was_there = path is None or path.exists()

    async def use(app: App) -> None:
        return None

    on_store(use, app=app, creates=True)
    click.echo(f"{app.store.url} {'is up to date' if was_there else 'was created'}")


@click.command()
@click.option("--repair", is_flag=True, help="Put right what can be: no live task is lost, none is invented.")
@json_option
@store_option
def doctor(repair: bool, as_json: bool) -> None:
    """Find and repair impossible states.

    Also told are dead workers, due work without a worker, and closed gates. Ends with 1 if problems remain.
    """

    async def use(app: App) -> tuple[dict[str, str], list[Finding]]:
        with show.waiting(f"examining {app.store.url}"):
            return _facts(app), [finding async for finding in _examine(app, repair)]

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
        "store": app.store.url,
        "durability": app.store.durability,
        "liveness": {
            "lock": "a worker lives as long as it holds its file lock; all workers must be on this machine",
            "lease": "a worker lives as long as it renews its lease",
        }[app.store.liveness],
        "duetime": version("duetime"),
        "python": platform.python_version(),
    }
    if file_of(app.store.url) is not None:
        import sqlite3

        facts["sqlite"] = sqlite3.sqlite_version
    return facts


async def _examine(app: App, repair: bool) -> AsyncIterator[Finding]:
    """Give what is wrong. Dead workers come first: taking their tasks back is what the later checks build on."""
    store = app.client.store
    for worker in await store.workers():
        held = show.count(worker.running, "attempt")
        if worker.alive is False:
            taken = await store.reap(worker.id, worker.beat) if repair else None
            detail = (
                f"process {worker.pid} on {worker.host} has ended; what it holds ({held}) goes back when a worker runs, or with --repair"
            )
            yield Finding("problem", "dead worker", worker.id, detail, taken is not None)
        elif worker.guest:
            detail = f"pull worker {worker.host} holds {held}; its lease is {worker.lease:g} s, and a server or worker that runs watches it"
            yield Finding("note", "pull worker", worker.id, detail)
        elif worker.alive is None:
            detail = f"process {worker.pid} on {worker.host} cannot be judged from here; it holds {held}"
            yield Finding("note", "unknown worker", worker.id, detail)
    for problem in await store.inspect(repair=repair):
        yield Finding("problem", problem.kind, problem.subject, problem.detail, problem.repaired)
    served = {handler for worker in await store.workers() if worker.alive is not False for handler in worker.slots}
    for counts in (await app.insight.stats()).handlers:
        if counts.due and counts.handler not in served:
            yield Finding("note", "no worker", counts.handler, f"{show.count(counts.due, 'due task')} and no live worker that runs them")
    for gate in await app.gates.list():
        until = "until it is opened" if gate.until_at is None else f"until {show.absolute(gate.until_at)}"
        yield Finding("note", "closed gate", gate.handler, f"{gate.action} {gate.collection or 'all'} {until}, set by {gate.set_by}")


def _label(finding: Finding) -> str:
    return "repaired" if finding.repaired else finding.level


def _summary(findings: list[Finding], left: list[Finding]) -> str:
    problems = sum(finding.level == "problem" for finding in findings)
    if not problems:
        return "no problems"
    if not left:
        return f"{show.count(problems, 'problem')}, repaired"
    return f"{show.count(len(left), 'problem')} left of {problems}; what can be repaired is: duetime doctor --repair"
