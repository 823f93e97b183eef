"""`handlers test`: run one task of a handler and watch it."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing, show
from duetime.cli.session import json_option, on_store, store_option
from duetime.cli.tasks.listing import print_task_json
from duetime.cli.tasks.logs import print_as_they_come
from duetime.model.task import State
from duetime.model.why import ReasonKind

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.client.insight import AttemptInfo
    from duetime.model.task import Task

WAIT = 30.0  # seconds until a worker must have taken it
LOOK_EVERY = 0.1
EXPLAIN_AFTER = 1.0  # seconds: a target that was just put is served within one
PHASES = {"dns": "DNS", "connect": "connect", "tls": "TLS", "first_byte": "first byte", "body": "body", "total": "total"}


@click.command("test")
@click.argument("name")
@click.argument("arguments", metavar="[NAME=VALUE]...", nargs=-1, callback=parsing.argument_map)
@click.option("--payload", metavar="JSON|@FILE|-", callback=parsing.payload, help="The arguments as a JSON object.")
@click.option("--wait", metavar=parsing.DURATION, callback=parsing.duration, help="How long a worker may take to begin: 30s unless given.")
@json_option
@store_option
def test_handler(name: str, arguments: dict[str, Any], payload: dict[str, Any] | None, wait: float | None, as_json: bool) -> None:
    """Run one task of a handler now, and watch it.

    A worker runs it, because only what that one can reach counts. The phases of a request are printed as they begin, and what a program
    or a function prints as it comes. It is tried once; the exit code is 1 unless it succeeds.
    """

    async def use(app: App) -> None:
        task = await app.targets.test(name, **{**(payload or {}), **arguments})
        show.note(task.id)
        await _taken(app, task, WAIT if wait is None else wait)
        if as_json:
            await _ended(app, task)
            print_task_json(await app.client.get(task), attempts=await app.insight.attempts(task.id))
        else:
            await print_as_they_come(app, task.id, 1)
            for attempt in (await app.insight.attempts(task.id))[:1]:
                _print_end(attempt)
        if (await app.client.get(task)).state is State.PENDING:  # "not now": whoever tests has seen that
            await app.client.cancel(task.id)
        await app.client.result(task, timeout=0)  # raises unless it succeeded

    on_store(use)


async def _taken(app: App, task: Task[Any], wait: float) -> None:
    """Wait until a worker has begun, and say meanwhile why none has. Cancels the task and raises TimeoutError when the time is over."""
    began, told = monotonic(), list[ReasonKind]()
    while (found := await app.client.get(task)).state in (State.PENDING, State.BLOCKED) and found.attempt == 0:
        waited = monotonic() - began
        if waited >= min(wait, EXPLAIN_AFTER):
            reasons = await app.insight.why(await app.client.record(task.id))
            why, kinds = " ".join(reason.text for reason in reasons), [reason.kind for reason in reasons]
            if waited >= wait:
                await app.client.cancel(task.id)
                raise TimeoutError(f"no worker has begun with the test of {task.handler} within {wait:g} s, so it was cancelled: {why}")
            if kinds != told:  # not whenever the text differs: it says how many seconds are left
                show.note(show.printable(why))
                told = kinds
        await asyncio.sleep(LOOK_EVERY)


async def _ended(app: App, task: Task[Any]) -> None:
    """Wait until its attempt has ended."""
    async for _ in app.output.follow(task.id, 1):
        pass


def _print_end(attempt: AttemptInfo) -> None:
    detail = attempt.detail or {}
    phases = detail.get("phases") or {}
    certificate = detail.get("certificate_expires")
    show.print_facts(
        (
            ("outcome", attempt.outcome),
            ("status", detail.get("status")),
            ("exit code", detail.get("exit_code")),
            ("signal", detail.get("signal")),
            ("artifact", detail.get("artifact")),
            ("broker", detail.get("broker")),
            ("address", detail.get("address")),
            ("phases", ", ".join(f"{PHASES.get(name, name)} {seconds:.3f} s" for name, seconds in phases.items()) or None),
            ("certificate", None if certificate is None else f"expires {certificate}"),
            ("note", detail.get("note")),
        )
    )
