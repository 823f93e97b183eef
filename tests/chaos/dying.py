"""The handlers of chaos tests in a worker that kills itself at one point of a flow's way: `CHAOS_DIES` names it.

It does so once, as soon as the file `deadly` exists, with SIGKILL: nothing of what it was about to do happens.
"""

import os
import signal
from typing import Any

from duetime.store.postgres import flows as postgres
from duetime.store.sqlite import flows as sqlite
from tests.chaos.handlers import FOLDER, app, journal

__all__ = ["app"]

POINTS = {
    "before the look": ("FlowKeeping", "_look"),  # the end of the member is committed
    "before the commit of the step": ("Tables", "write"),
}


def deadly(owner: type, name: str) -> None:
    """Let a method kill the process, once."""
    method = getattr(owner, name)

    async def dies(self: Any, *args: Any, **kwargs: Any) -> Any:
        file = FOLDER / "deadly"
        if file.exists():
            file.unlink()
            journal.write("killed", pid=os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)
        return await method(self, *args, **kwargs)

    setattr(owner, name, dies)


for module in (sqlite, postgres):
    kind, method = POINTS[os.environ["CHAOS_DIES"]]
    deadly(getattr(module, kind), method)
