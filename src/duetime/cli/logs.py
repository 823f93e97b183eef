"""What attempts printed and logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duetime.cli import show
from duetime.cli.session import on_store, store_option
from duetime.errors import TaskNotFound

if TYPE_CHECKING:
    from duetime.app import App
    from duetime.output import OutputFiles


@click.command()
@click.argument("task_id", metavar="ID")
@click.option("--attempt", type=click.IntRange(min=1), help="Only this attempt; otherwise all that have output.")
@click.option("--follow", "-f", is_flag=True, help="Go on as output comes, until the attempt, or without --attempt the task, has ended.")
@store_option
def logs(task_id: str, attempt: int | None, follow: bool) -> None:
    """Print what a task's attempts printed and logged."""

    async def use(app: App) -> None:
        found = await app.client.get(task_id)
        files = _files(app)
        if attempt is not None and attempt > found.attempt and not (follow and not found.final):
            raise TaskNotFound(f"task {found.id} has no attempt {attempt}; its last one is {found.attempt}")
        if follow:
            await _follow(app, files, found.id, attempt)
        else:
            _print(files, found.id, files.attempts(found.id) if attempt is None else [attempt])

    on_store(use)


def _files(app: App) -> OutputFiles:
    from duetime.output import OutputFiles

    folder = app.config.output or app.store.output_folder
    if folder is None:
        raise click.ClickException("this store keeps no output beside it; set DUETIME_OUTPUT to the folder that the workers use")
    return OutputFiles(folder)


def _print(files: OutputFiles, task_id: str, attempts: list[int]) -> None:
    texts = {attempt: files.read(task_id, attempt) for attempt in attempts}
    if not any(texts.values()):
        show.note(f"no output of task {task_id} is kept in {files.folder}")
    for attempt, text in texts.items():
        _print_head(attempt, alone=len(texts) == 1)
        click.echo(text, nl=not text.endswith("\n"))


def _print_head(attempt: int, *, alone: bool) -> None:
    """Name the attempt on stderr, where it cannot be taken for output."""
    if not alone:
        show.note(f"attempt {attempt}:")


async def _follow(app: App, files: OutputFiles, task_id: str, only: int | None) -> None:
    present = files.attempts(task_id)
    attempt = only or (present[0] if present else 1)
    while True:

        async def finished(number: int = attempt) -> bool:
            task = await app.client.get(task_id)
            return task.final or task.attempt > number or (only is not None and task.attempt == number and task.state != "running")

        headed = only is not None or attempt == 1
        async for text in files.follow(task_id, attempt, finished):
            if not headed:
                _print_head(attempt, alone=False)
                headed = True
            click.echo(text, nl=False)
        if only is not None or attempt >= (await app.client.get(task_id)).attempt:
            return
        attempt += 1
