"""Opening the store that a command works on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from duetime.cli import interrupts
from duetime.errors import StoreUnavailable

if TYPE_CHECKING:
    from datetime import datetime

    from duetime.app.app import App

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

_URL = "duetime.url"


def store_option(function: Function) -> Function:
    """Add --url. A group and its commands may both have it; the innermost one counts."""

    def remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta[_URL] = value

    return click.option(
        "--url",
        metavar="URL",
        expose_value=False,
        callback=remember,
        help="The store, or a server (https://…, with DUETIME_TOKEN); otherwise DUETIME_URL, or else sqlite:///duetime.db.",
    )(function)


def json_option(function: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")(function)


def given_url() -> str | None:
    """Return the value of --url."""
    url: str | None = click.get_current_context().meta.get(_URL)
    return url


class Audited(NamedTuple):
    """An operator's action as the audit records it: its name, its subject, and how to read its details and success from what it returns."""

    action: str
    subject: str
    detail: Callable[[Any], str] = lambda result: ""
    done: Callable[[Any], bool] = lambda result: True


def on_store(use: Callable[[App], Awaitable[T]], *, app: App | None = None, creates: bool = False, audited: Audited | None = None) -> T:
    """Open the store, run `use` on it, and record the action in the audit. A server records its own.

    Only commands that write may create a store (`creates`): a mistyped URL must not look like an empty store.
    """
    from duetime.app.app import App

    opened = App(given_url()) if app is None else app

    async def run() -> T:
        if not creates:
            refuse_missing(opened.url)
            await opened.open_as_it_is()
        async with opened:
            return await use(opened) if audited is None or not opened.has_store else await _recorded(opened, use, audited)

    return interrupts.run(run())


async def _recorded(app: App, use: Callable[[App], Awaitable[T]], audited: Audited) -> T:
    from duetime.model.access import AuditOutcome

    async with app.tokens.audit.acting(audited.action, audited.subject) as act:
        result = await use(app)
        act.detail = audited.detail(result)
        act.outcome = AuditOutcome.DONE if audited.done(result) else AuditOutcome.REFUSED
        return result


def now_of(app: App) -> datetime:
    """Return the time of the store."""
    from duetime.clock import to_datetime

    return to_datetime(app.insight.now())


def refuse_missing(url: str) -> None:
    path = file_of(url)
    if path is not None and not path.exists():
        raise StoreUnavailable(f"there is no store at {url}: give --url or set DUETIME_URL; a worker, or `duetime migrate`, creates it")


def file_of(url: str) -> Path | None:
    """Return the file that a SQLite URL names; None for any other URL."""
    scheme, separator, path = url.partition(":///")
    return Path(path) if separator and scheme == "sqlite" and path != ":memory:" else None
