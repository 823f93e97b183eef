"""The services that an App uses: over a store, or over a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from duetime.client.admission import SubmitHook
from duetime.client.client import Client, LocalClient
from duetime.client.insight import Insight, LocalInsight
from duetime.client.output import LocalOutputs, Outputs
from duetime.client.schedules.schedule import Schedule
from duetime.store import Store
from duetime.targets.spec import HandlerSpec


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What services know of the program that uses them. `opened` opens the store, unless it is open."""

    user: str
    specs: Mapping[str, HandlerSpec]
    hooks: Sequence[SubmitHook]
    opened: Callable[[], Awaitable[None]]
    revision: int
    declared: Callable[[], Sequence[Schedule]]


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """The services of one store or server. `open` takes whether to migrate; without a `store`, `url` is a server."""

    url: str
    client: Client
    insight: Insight
    output: Outputs
    open: Callable[[bool], Awaitable[None]]
    close: Callable[[], Awaitable[None]]
    store: Store | None = None


def local_services(store: Store, program: Program, *, output: str | None, output_cap: int) -> Services:
    """Return the services over a store; nothing is opened yet."""
    client = LocalClient(
        store,
        user=program.user,
        specs=program.specs,
        hooks=program.hooks,
        opened=program.opened,
        revision=program.revision,
        declared=program.declared,
    )
    return Services(
        url=store.url,
        client=client,
        insight=LocalInsight(store),
        output=LocalOutputs(store, setting=output, cap=output_cap, opened=program.opened),
        open=lambda migrate: store.open(migrate=migrate),
        close=store.close,
        store=store,
    )
