"""Which task is meant: by its id, by the beginning of its id, or by handler and key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from duetime.cli import show
from duetime.errors import Conflict, TaskNotFound

if TYPE_CHECKING:
    from duetime.app.app import App

Function = TypeVar("Function", bound=Callable[..., Any])

MOST_LISTED = 10
EXPECTED = "give the ID of a task, or --handler and --key"

_HANDLER = click.option("--handler", metavar="NAME", help="Instead of an ID: the handler of the task that --key names.")
_KEY = click.option("--key", metavar="KEY", help="Instead of an ID: the live task with this key, or the latest that had it.")


def key_options(function: Function) -> Function:
    """Add --handler and --key."""
    return _HANDLER(_KEY(function))


class Named(NamedTuple):
    """Tasks as they were named: by ids or their beginnings, or one by its handler and key."""

    ids: Sequence[str] = ()
    handler: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        return ", ".join(self.ids) if self.ids else f"{self.handler}, key {self.key}"


def named(ids: Sequence[str], handler: str | None, key: str | None) -> Named:
    """Return what a command was given. It must be ids, or handler and key."""
    by_key = handler is not None and key is not None
    if bool(ids) == by_key or (handler is None) != (key is None):
        raise click.UsageError(EXPECTED)
    return Named(ids, handler, key)


async def one_id(app: App, name: Named) -> str:
    """Return the id of the one task that was named."""
    if name.handler is not None and name.key is not None:
        return (await app.client.find(name.handler, name.key)).id
    [text] = name.ids
    return await whole_id(app, text)


async def whole_id(app: App, text: str) -> str:
    """Return the id that begins with a text. Where several do, list them and raise Conflict."""
    from duetime.ids import is_id
    from duetime.model.query import Query, is_id_prefix

    prefix = text.lower()
    if is_id(prefix) or not is_id_prefix(prefix):
        return prefix  # whether there is such a task is told when it is used
    found = (await app.client.page(Query(id_prefix=prefix, limit=MOST_LISTED + 1))).items
    if not found:
        raise TaskNotFound(
            f"no task has an id that begins with {prefix}: it was never submitted to this store, or it has been deleted or pruned"
        )
    if len(found) > 1:
        for task in found[:MOST_LISTED]:
            show.note(show.printable(f"{task.id} {task.handler} {task.state}"))
        number = len(found) if len(found) <= MOST_LISTED else f"more than {MOST_LISTED}"
        raise Conflict(f"{number} task ids begin with {prefix}; write more of the one that is meant")
    return found[0].id
