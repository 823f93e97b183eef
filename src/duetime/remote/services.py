"""The one place where App turns to a server instead of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from duetime.config import Config
from duetime.store import Store

if TYPE_CHECKING:
    from duetime.client.client import Client
    from duetime.client.insight import Insight
    from duetime.client.output import Outputs


def server_place(config: Config) -> Store:
    """Give what stands where the store of an App is; nothing is connected yet."""
    from duetime.remote.place import ServerPlace
    from duetime.remote.transport import Transport

    return cast(Store, ServerPlace(Transport(config.url, config.token)))


def server_services(place: Store, config: Config, **options: Any) -> tuple[Client, Insight, Outputs]:
    """Give the counterparts of Client, with its options, of Insight and of Outputs."""
    from duetime.remote.client import RemoteClient
    from duetime.remote.output import RemoteOutputs
    from duetime.remote.overview import RemoteInsight
    from duetime.remote.place import ServerPlace

    server = cast(ServerPlace, place)
    return RemoteClient(server, **options), RemoteInsight(server), RemoteOutputs(server, opened=options["opened"])
