"""Opening the store that a command works on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from duetime.cli import interrupts
from duetime.errors import StoreUnavailable

if TYPE_CHECKING:
    from duetime.app.app import App

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

_URL = "duetime.url"


def store_option(function: Function) -> Function:
    """Add --url. A group and its commands may both have it; the one nearest to the verb counts."""

    def keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta[_URL] = value

    return click.option(
        "--url",
        metavar="URL",
        expose_value=False,
        callback=keep,
        help="The store, or a server (https://…, with DUETIME_TOKEN); otherwise DUETIME_URL, or else sqlite:///duetime.db.",
    )(function)


def json_option(function: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")(function)


def given_url() -> str | None:
    """Give what --url said."""
    url: str | None = click.get_current_context().meta.get(_URL)
    return url


class Audited(NamedTuple):
    """An operator's action for the audit: what, on what, and how its answer tells what came of it and whether it was done."""

    action: str
    subject: str
    told: Callable[[Any], str] = lambda answer: ""
    done: Callable[[Any], bool] = lambda answer: True


def on_store(use: Callable[[App], Awaitable[T]], *, app: App | None = None, creates: bool = False, audited: Audited | None = None) -> T:
    """Run a verb on the opened store, and keep it in the audit if it is an operator's; a server that is asked instead does that itself.

    Only verbs that put something into a store may create it: a mistyped URL must not look like an empty store.
    """
    from duetime.app.app import App

    opened = App(given_url()) if app is None else app

    async def run() -> T:
        if not creates:
            refuse_missing(opened.store.url)
            await opened.store.open(migrate=False)
        async with opened:
            return await use(opened) if audited is None or not opened.has_store else await _kept(opened, use, audited)

    return interrupts.run(run())


async def _kept(app: App, use: Callable[[App], Awaitable[T]], audited: Audited) -> T:
    from duetime.model.access import AuditOutcome

    async with app.tokens.audit.acting(audited.action, audited.subject) as act:
        answer = await use(app)
        act.detail = audited.told(answer)
        act.outcome = AuditOutcome.DONE if audited.done(answer) else AuditOutcome.REFUSED
        return answer


def refuse_missing(url: str) -> None:
    path = file_of(url)
    if path is not None and not path.exists():
        raise StoreUnavailable(f"there is no store at {url}: give --url or set DUETIME_URL; a worker, or `duetime migrate`, creates it")


def file_of(url: str) -> Path | None:
    """Give the file behind a store's URL, if it is one."""
    scheme, separator, path = url.partition(":///")
    return Path(path) if separator and scheme == "sqlite" and path != ":memory:" else None
