"""Taking back at once what a worker had that has certainly ended.

A store whose workers may be on other machines waits for a whole lease before it takes a silent worker for dead. A supervisor
that has seen its own process end, with all its sub-processes, need not wait. It asks the store from a short-lived process,
`python -m duetime.cli.hosting.reap`: a store that does not answer cannot hold up the supervisor then, which keeps a single thread.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable

import msgspec

from duetime.cli.failures import DONE, report

_logger = logging.getLogger("duetime.supervisor")

WITHIN = 15.0


class Wish(msgspec.Struct, frozen=True):
    """What the short-lived process is to do; sent through a pipe, because URLs may hold passwords."""

    url: str
    workers: list[str]
    log_level: str


class Reaping:
    """The supervisor's side: one process at a time, for all that ended meanwhile. A failure is logged, and no more."""

    def __init__(self, log_level: str) -> None:
        self._log_level = log_level
        self._waiting: dict[str, list[str]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._overdue: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        return self._process is not None or bool(self._waiting)

    def note(self, url: str, worker: str) -> None:
        """Take back what this worker had."""
        self._waiting.setdefault(url, []).append(worker)
        self._begin()

    def look(self) -> None:
        """See whether the process has ended, and go on with the next."""
        if self._process is None or self._process.poll() is None:
            return
        if self._process.returncode != DONE:
            _logger.warning("what the ended process had could not be taken back at once; other workers do it when its lease has run out")
        self._process = None
        if self._overdue is not None:
            self._overdue.cancel()
        self._begin()

    def _begin(self) -> None:
        if self._process is not None or not self._waiting:
            return
        url, workers = self._waiting.popitem()
        command = [sys.executable, "-m", "duetime.cli.hosting.reap"]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
        except OSError as problem:
            _logger.warning("no process can be started: %s", problem)
            return
        assert self._process.stdin is not None
        kill: Callable[[], None] = self._process.kill
        self._overdue = asyncio.get_running_loop().call_later(WITHIN, kill)
        try:
            with self._process.stdin as pipe:
                pipe.write(msgspec.json.encode(Wish(url, workers, self._log_level)))
        except OSError:
            pass  # it has ended already; the look at its exit code tells


async def reap(wish: Wish) -> None:
    """Reap those workers that the store still lists."""
    from duetime.model.figures import ATTEMPTS_LOST, WORKERS_LOST, FigureKey
    from duetime.store.open import store_from_url

    store = store_from_url(wish.url)
    await store.open(migrate=False)
    try:
        for record in await store.workers():
            if record.id in wish.workers:
                attempts = await store.reap(record.id, record.beat)
                if attempts is not None:
                    _logger.warning("worker %s (process %d) has ended; %d attempts go back", record.id, record.pid, attempts)
                    lost = {FigureKey(WORKERS_LOST): 1, FigureKey(ATTEMPTS_LOST): attempts}
                    await store.add_figures(f"reaping {record.id}", 1, lost)
    finally:
        await store.close()


def main() -> int:
    from duetime.cli.hosting.log import log_to_stderr

    wish = msgspec.json.decode(sys.stdin.buffer.read(), type=Wish)
    log_to_stderr(wish.log_level)
    try:
        asyncio.run(reap(wish))
    except (Exception, KeyboardInterrupt) as error:
        return report(error)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
