"""The `submit` command: submit a task, and wait for its result if asked to."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duetime.cli import parsing, show
from duetime.cli.session import given_url, json_option, on_store, store_option
from duetime.cli.tasks.listing import print_task_json
from duetime.cli.tasks.naming import whole_id
from duetime.errors import StoreUnavailable

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.model.needs import Need
    from duetime.model.task import Task, TaskRecord

LOOK_EVERY = 0.5


@click.command()
@click.argument("handler")
@click.argument("arguments", metavar="[NAME=VALUE]...", nargs=-1, callback=parsing.argument_map)
@click.option(
    "--payload", metavar="JSON|@FILE|-", callback=parsing.payload, help="The arguments as a JSON object, from a file or standard input."
)
@click.option(
    "--in", "delay", metavar=parsing.DURATION, callback=parsing.duration, help="Due this long from now: 30s, 10m, 1h30m, 2d or seconds."
)
@click.option("--at", metavar=parsing.INSTANT, callback=parsing.instant, help="Due at an instant: 2030-01-31T07:00:00Z.")
@click.option("--priority", type=int, help="0 to 9, 9 first; otherwise the handler's.")
@click.option("--key", metavar="KEY", help="Your own name for the task; one live task per handler and key.")
@click.option(
    "--if-exists", type=click.Choice(["error", "keep", "replace", "queue_one"]), help="What to do when a live task holds the key."
)
@click.option(
    "--debounce",
    metavar=parsing.DURATION,
    callback=parsing.duration,
    help="Start once nothing came with this key for so long; newest wins.",
)
@click.option(
    "--max-wait",
    metavar=parsing.DURATION,
    callback=parsing.duration,
    help="With --debounce: start this long after the first at the latest.",
)
@click.option("--throttle", metavar=parsing.DURATION, callback=parsing.duration, help="Store one with this key within so long.")
@click.option("--collection", metavar="NAME", help="A label that gates and filters can address.")
@click.option("--timeout", metavar=parsing.DURATION, callback=parsing.duration, help="How long an attempt may run.")
@click.option(
    "--expires", metavar="DURATION|ISO", callback=parsing.expiry, help="Do not start after this instant, or this long after the due time."
)
@click.option("--meta", metavar="NAME=VALUE", multiple=True, callback=parsing.text_map, help="Travels with the task; may be repeated.")
@click.option("--needs", metavar="[ended:]ID", multiple=True, help="A task that must succeed before, or only end; may be repeated.")
@click.option("--allow-unknown", is_flag=True, help="Also if no process has declared the handler yet.")
@click.option("--app", "app_path", metavar="APP", help="Declare the handlers of this App (module:name) first.")
@click.option("--wait", is_flag=True, help="Wait until it ends and print its result.")
@click.option("--wait-timeout", metavar=parsing.DURATION, callback=parsing.duration, help="Wait at most this long.")
@parsing.tz_option
@json_option
@store_option
def submit(
    handler: str,
    arguments: dict[str, Any],
    payload: dict[str, Any] | None,
    delay: float | None,
    at: datetime | None,
    allow_unknown: bool,
    app_path: str | None,
    needs: tuple[str, ...],
    wait: bool,
    wait_timeout: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Submit a task and print its id. A VALUE that is JSON is read as JSON, any other is text."""
    if delay is not None and at is not None:
        raise click.UsageError("give --in or --at, not both")
    twice = arguments.keys() & (payload or {}).keys()
    if twice:
        raise click.UsageError(f"{min(twice)} is given both as NAME=VALUE and in --payload")
    app = None
    if app_path is not None:
        from duetime.cli.importing import find_app

        app = find_app(app_path, given_url())

    async def use(app: App) -> None:
        chosen = {**options, "allow_unknown": allow_unknown, "needs": [await _needed(app, text) for text in needs] or None}
        task = await _submit(app, handler, {**(payload or {}), **arguments}, delay, at, chosen)
        if wait or wait_timeout is not None:
            await print_result(app, task, wait_timeout, as_json)
        elif as_json:
            print_task_json(task)
        else:
            click.echo(task.id)

    on_store(use, app=app, creates=allow_unknown or app is not None)


async def _submit(
    app: App, handler: str, payload: dict[str, Any], delay: float | None, at: datetime | None, options: dict[str, Any]
) -> Task[Any]:
    chosen = app.handler(handler).options(**{name: value for name, value in options.items() if value is not None})
    if at is not None:
        return await chosen.at(at, **payload)
    return await (chosen.now(**payload) if delay is None else chosen.after(delay, **payload))


async def _needed(app: App, text: str) -> Need:
    """Read what --needs was given: a task's id or its beginning, perhaps behind `ended:`."""
    from duetime.model.needs import ended

    id_text = text.removeprefix("ended:")
    task_id = await whole_id(app, id_text)
    return task_id if id_text == text else ended(task_id)


async def print_result(app: App, task: Task[Any], timeout: float | None, as_json: bool) -> None:
    """Wait, then print the result, or the whole task as JSON. The id goes to stderr before the waiting."""
    from duetime.model.task import shown

    show.note(task.id)
    with show.waiting(f"waiting for task {task.id}") as say:
        watching = asyncio.create_task(_watch(app, task.id, say))
        try:
            record: TaskRecord = await app.client.wait(task, timeout=timeout)
        finally:
            watching.cancel()
    if as_json:
        print_task_json(shown(record))
    result = await app.client.result(task, timeout=0)  # raises unless the task succeeded
    if not as_json:
        click.echo(b"null" if result.result is None else result.result)


async def _watch(app: App, task_id: str, say: Any) -> None:
    while True:
        try:
            task = await app.client.get(task_id)
        except StoreUnavailable:
            say(f"waiting for task {task_id}; the store is away")
        else:
            progress = "" if task.progress is None else f", {task.progress:.0%} {task.progress_text}"
            say(f"task {task_id} of {task.handler} is {task.state}{progress}")
        await asyncio.sleep(LOOK_EVERY)
