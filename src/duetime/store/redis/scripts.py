"""The scripts, one for each verb that must be atomic. A script is known to the server by its hash, and sent again when it is not."""

from __future__ import annotations

import hashlib
from importlib.resources import files


class Script:
    """A script's text with what all share before it, and its name in the server."""

    def __init__(self, name: str) -> None:
        folder = files(__package__ or "duetime.store.redis").joinpath("lua")
        self.name = name
        self.text = folder.joinpath("common.lua").read_text("utf-8") + folder.joinpath(f"{name}.lua").read_text("utf-8")
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


ADD, PEEK, CLAIM, SETTLE, CHANGE, READ, RENEW, BEGIN, MIRROR, LEASE, MARK = map(
    Script, ("add", "peek", "claim", "settle", "change", "read", "renew", "begin", "mirror", "lease", "mark")
)
