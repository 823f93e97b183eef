"""`duetime.asgi`: the HTTP API inside of another web application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetime.app.app import App
from duetime.errors import MissingExtra

if TYPE_CHECKING:
    from duetime.api.mounted import Mounted


def asgi(app: App, *, body_limit: int | str = "64MB") -> Mounted:
    """Return the HTTP API of an App as an ASGI application, to be mounted: `parent.mount("/duetime", duetime.asgi(app))`.

    Every request needs a token, as at `duetime server`. It starts with its first request and stops when the App is closed; `async with`
    opens the App, starts it at once, and closes both. `body_limit` is the largest accepted body of a batch, in bytes or as "64MB".
    """
    from duetime.config import parse_size

    try:
        from duetime.api.mounted import Mounted
        from duetime.api.shared import Limits
        from duetime.web.web import Web
    except ModuleNotFoundError as missing:
        raise MissingExtra(f"the HTTP API needs the package {missing.name}: pip install 'duetime[server]'") from None
    return Mounted(app, limits=Limits(batch=parse_size(body_limit, "body_limit")), extension=Web)
