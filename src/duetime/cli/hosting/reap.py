"""Taking back the claims of a worker process that has certainly ended.

A store whose workers may be on other machines waits for a whole lease before it declares a silent worker dead. A supervisor that
has seen its own process end, with all its sub-processes, need not wait. It does so in a short-lived process,
`python -m duetime.cli.hosting.reap`, so that a store that does not answer cannot block the supervisor's only thread.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable

import msgspec

from duetime.cli.failures import DONE, report
from duetime.cli.hosting.log import LogChoice, log_to_stderr
from duetime.model.wording import count

_logger = logging.getLogger("duetime.supervisor")

TIMEOUT = 15.0


class ReapRequest(msgspec.Struct, frozen=True):
    """What the short-lived process is to do. It is sent through a pipe, because URLs may contain passwords."""

    url: str
    workers: list[str]
    log: LogChoice


class Reaping:
    """The supervisor's side: one process at a time, for all workers that have ended meanwhile. A failure is only logged."""

    def __init__(self, log: LogChoice) -> None:
        self._log = log
        self._waiting: dict[str, list[str]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._overdue: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        return self._process is not None or bool(self._waiting)

    def add(self, url: str, worker: str) -> None:
        """Take back the claims of this worker."""
        self._waiting.setdefault(url, []).append(worker)
        self._start()

    def poll(self) -> None:
        """If the process has ended, continue with the next."""
        if self._process is None or self._process.poll() is None:
            return
        if self._process.returncode != DONE:
            _logger.warning(
                "the tasks of the ended process could not be taken back at once; other workers do it when its lease has expired"
            )
        self._process = None
        if self._overdue is not None:
            self._overdue.cancel()
        self._start()

    def _start(self) -> None:
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
        self._overdue = asyncio.get_running_loop().call_later(TIMEOUT, kill)
        try:
            with self._process.stdin as pipe:
                pipe.write(msgspec.json.encode(ReapRequest(url, workers, self._log)))
        except OSError:
            pass  # it has ended already; `poll` reports its exit code


async def reap(request: ReapRequest) -> None:
    """Reap those of the workers that the store still lists."""
    from duetime.duties.reaper import reap as reap_worker
    from duetime.model.figures import ATTEMPTS_LOST, FigureKey
    from duetime.store.open import store_from_url

    store = store_from_url(request.url)
    await store.open(migrate=False)
    try:
        for record in await store.workers():
            if record.id in request.workers:
                counted = await reap_worker(store, record)
                if counted is not None:
                    back = count(counted[FigureKey(ATTEMPTS_LOST)], "attempt goes", "attempts go")
                    _logger.warning("worker %s (process %d) has ended; %s back", record.id, record.pid, back)
                    await store.add_figures(f"reaping {record.id}", 1, counted)
    finally:
        await store.close()


def main() -> int:

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ReapRequest)
    log_to_stderr(request.log)
    try:
        asyncio.run(reap(request))
    except (Exception, KeyboardInterrupt) as error:
        return report(error)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
