"""Opening the store that a command works on."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
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


def remember_url(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Keep the value of the option that names the store."""
    if value is not None:
        ctx.meta[_URL] = value


def store_option(function: Function) -> Function:
    """Add --url. A group and its commands may both have it; the innermost one counts."""

    return click.option(
        "--url",
        metavar="URL",
        expose_value=False,
        callback=remember_url,
        help="The store, or a server (https://…, with DUETIME_TOKEN); otherwise that of DUETIME_APP, DUETIME_URL, or sqlite:///duetime.db.",
    )(function)


def json_option(function: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")(function)


def given_url() -> str | None:
    """Return the value of --url."""
    url: str | None = click.get_current_context().meta.get(_URL)
    return url


def store_url() -> str | None:
    """Return the store to work on: --url, or that of the App which DUETIME_APP names; None leaves it to DUETIME_URL."""
    url, app_path = given_url(), os.environ.get("DUETIME_APP")
    if url is not None or not app_path:
        return url
    from duetime.cli.importing import find_app

    return find_app(app_path, None).config.url


class Audited(NamedTuple):
    """An operator's action as the audit records it: its name, its subject, and how to read its details and success from what it returns.

    `known` reads the subject from what it returns, where that says more than what people typed.
    """

    action: str
    subject: str
    detail: Callable[[Any], str] = lambda result: ""
    done: Callable[[Any], bool] = lambda result: True
    known: Callable[[Any], str] | None = None


def on_store(use: Callable[[App], Awaitable[T]], *, app: App | None = None, creates: bool = False, audited: Audited | None = None) -> T:
    """Open the store, run `use` on it, and record the action in the audit. A server records its own.

    Only commands that write may create a store (`creates`): a mistyped URL must not look like an empty store.
    """
    from duetime.app.app import App

    opened = App(store_url()) if app is None else app

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
        if audited.known is not None:
            act.subject = audited.known(result)
        act.detail = audited.detail(result)
        act.outcome = AuditOutcome.DONE if audited.done(result) else AuditOutcome.REFUSED
        return result


def now_of(app: App) -> datetime:
    """Return the time of the store."""
    from duetime.clock import to_datetime

    return to_datetime(app.insight.now())


def refuse_missing(url: str) -> None:
    from duetime.store.open import file_of

    path = file_of(url)
    if path is not None and not path.exists():
        raise StoreUnavailable(f"there is no store at {url}: give --url or set DUETIME_URL; a worker, or `duetime migrate`, creates it")
