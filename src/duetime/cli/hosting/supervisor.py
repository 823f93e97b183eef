"""Several worker processes of one App: start them, start them again when they die, restart them one by one, stop them all.

The supervisor does no work itself. It has a single thread, opens no store and does not import the App, so no handler and no store
can block it. Each process holds a socket to it: when the supervisor ends, for whatever reason, they stop by themselves.

The first process is started alone. A mistake in the App, its settings or the store is then reported once, and the supervisor
ends with that process's exit code, as a single worker would. The others are started when the first one is ready.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence

from duetime.cli import show
from duetime.cli.failures import DONE, INTERRUPTED, NOT_FOUND, REFUSED, USAGE, print_error
from duetime.cli.hosting.lifeline import Ready
from duetime.cli.hosting.log import LogChoice
from duetime.cli.hosting.processes import WorkerProcess
from duetime.cli.hosting.reap import Reaping
from duetime.cli.hosting.status import ago, span, write_status

_logger = logging.getLogger("duetime.supervisor")

FIRST_BACK_OFF = 0.5
LONGEST_BACK_OFF = 30.0
WELL_AFTER = 60.0  # after so many seconds up, the next death counts as the first
STOP_MARGIN = 15.0  # seconds beyond the grace for cleaning up, writing outcomes and unregistering
LINGER = 5.0  # seconds in which the sub-processes of a dead worker end; the kernel kills them with it
SLOW_START = 60.0


def supervise(path: str, command: Sequence[str], count: int, *, log: LogChoice, name: str | None = None) -> int:
    """Run `count` worker processes until a signal, and return the exit code."""
    return asyncio.run(Supervisor(path, command, count, log=log, name=name).run())


def back_off(failures: int) -> float:
    """Return the seconds to wait before the next start, after this many deaths in a row."""
    return float(min(FIRST_BACK_OFF * 2 ** min(failures - 1, 16), LONGEST_BACK_OFF))


def is_hopeless(code: int, *, was_ready: bool, ever_ready: bool, others_up: bool) -> bool:
    """Return whether it is useless to start a process again.

    Before any process has been ready, nobody knows that one can work at all. Later, an App or options that were refused stay wrong
    until somebody changes them; but as long as other processes work, they go on.
    """
    return not ever_ready or (code in (USAGE, NOT_FOUND) and not was_ready and not others_up)


class Replica:
    """One of the worker processes that should be running. `successor` replaces `current` in a rolling restart."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.current: WorkerProcess | None = None
        self.successor: WorkerProcess | None = None
        self.starts = 0
        self.failures = 0  # deaths in a row
        self.again: asyncio.TimerHandle | None = None
        self.last_end: tuple[str, float] | None = None


class Supervisor:
    """Keeps all replicas running until it is asked to stop."""

    def __init__(self, path: str, command: Sequence[str], count: int, *, log: LogChoice, name: str | None = None) -> None:
        self._path = path
        self._worker_name = name
        self._command = command
        self._replicas = [Replica(number) for number in range(1, count + 1)]
        self._processes: set[WorkerProcess] = set()
        self._reaping = Reaping(log)
        self._generation = 0
        self._rolling_since: float | None = None
        self._ever_ready = False
        self._signals = 0
        self._stopping = False
        self._code = DONE
        self._had_terminal = os.isatty(2)
        self._began_at = time.monotonic()

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        reactions = {
            signal.SIGCHLD: self._find_ended,
            signal.SIGTERM: lambda: self._on_stop("SIGTERM"),
            signal.SIGINT: lambda: self._on_stop("SIGINT"),
            signal.SIGHUP: self._on_hang_up,
            signal.SIGUSR1: self._show,
            signal.SIGUSR2: self._pass_standby_on,
        }
        for number, reaction in reactions.items():
            self._loop.add_signal_handler(number, reaction)
        _logger.info(
            "process %d supervises %s of %s", os.getpid(), show.count(len(self._replicas), "worker process", "worker processes"), self._path
        )
        self._start(self._replicas[0])
        await self._done
        _logger.info("all worker processes have ended after %s", span(time.monotonic() - self._began_at))
        return self._code

    # ---- starting ----

    def _start(self, replica: Replica, *, as_successor: bool = False) -> None:
        replica.again = None
        try:
            process = WorkerProcess(self._command, replica.number, self._generation, self._worker_name)
        except OSError as problem:
            self._not_started(replica, problem, as_successor)
            return
        replica.starts += 1
        if as_successor:
            replica.successor = process
        else:
            replica.current = process
        self._processes.add(process)
        self._loop.add_reader(process.connection, self._on_messages, process)
        self._loop.call_later(SLOW_START, self._remark_slow_start, process)
        _logger.info("worker %d starts as process %d", process.number, process.pid)

    def _not_started(self, replica: Replica, problem: OSError, as_successor: bool) -> None:
        if as_successor:
            self._give_up_rolling(f"no process can be started: {problem}")
        elif not self._ever_ready:
            self._give_up(f"no process can be started: {problem}", REFUSED)
        else:
            self._start_later(replica, f"worker {replica.number}: no process can be started: {problem}")

    def _start_later(self, replica: Replica, why: str) -> None:
        replica.failures += 1
        wait = back_off(replica.failures)
        _logger.error("%s; starts again in %g s", why, wait)
        replica.again = self._loop.call_later(wait, self._start, replica)

    def _remark_slow_start(self, process: WorkerProcess) -> None:
        if process.ready_at is None and process.ended_at is None:
            _logger.warning("%s is not ready after %s", process, span(SLOW_START))

    # ---- their messages ----

    def _on_messages(self, process: WorkerProcess) -> None:
        for message in process.receive():
            before = process.note(message)
            if before is not None and process.url is not None:
                _logger.warning("%s has restarted itself, as worker %s instead of %s", process, process.worker, before)
                self._reaping.add(process.url, before)
            if isinstance(message, Ready):
                self._is_ready(process)
        if process.hung_up:
            self._loop.remove_reader(process.connection)
            if process.ended_at is not None:
                self._forget(process)

    def _is_ready(self, process: WorkerProcess) -> None:
        replica = self._replicas[process.number - 1]
        if not self._ever_ready:
            self._ever_ready = True
            for other in self._replicas:
                if other is not replica and not self._stopping:
                    self._start(other)
        if process is replica.successor and not self._stopping:
            old, replica.current, replica.successor = replica.current, process, None
            if old is not None:
                _logger.info("worker %d: process %d takes over; process %d finishes", replica.number, process.pid, old.pid)
                self._stop(old)
        self._roll()

    # ---- their end ----

    def _find_ended(self) -> None:
        """Find the processes that have ended; one signal may stand for several."""
        for process in tuple(self._processes):
            if process.ended_at is None and process.has_ended():
                self._on_end(process)
        self._reaping.poll()
        self._end_if_all_ended()

    def _on_end(self, process: WorkerProcess) -> None:
        replica = self._replicas[process.number - 1]
        self._on_messages(process)  # the last ones
        if not process.hung_up:
            self._loop.call_later(LINGER, self._forget, process)
        replica.last_end = process.describe_end(), time.monotonic()
        if process.stopped_in_order:
            _logger.info("%s has stopped", process)
        elif process.told_to_stop_at is not None:
            _logger.error("%s did not stop in order: it %s", process, process.describe_end())
            self._code = self._code or (REFUSED if self._stopping else DONE)
        elif process is replica.successor:
            replica.successor = None
            self._give_up_rolling(f"{process} {process.describe_end()} before it was ready")
        elif process is replica.current:
            self._replace(replica, process)
        self._roll()

    def _replace(self, replica: Replica, ended: WorkerProcess) -> None:
        end = f"{ended} {ended.describe_end()} after {span(time.monotonic() - ended.started_at)}"
        replica.current, replica.successor = replica.successor, None
        if replica.current is not None:
            _logger.error("%s; process %d was about to replace it", end, replica.current.pid)
            return
        others_up = any(other.current is not None and other.current.ready_at is not None for other in self._replicas)
        if is_hopeless(ended.code, was_ready=ended.ready_at is not None, ever_ready=self._ever_ready, others_up=others_up):
            code = ended.code if ended.code > DONE else REFUSED
            self._give_up(f"{ended} {ended.describe_end()} before it was ready; it is not started again", code)
            return
        if ended.up_for >= WELL_AFTER:
            replica.failures = 0
        self._start_later(replica, end if ended.ready_at is not None else f"{end}, before it was ready")

    def _forget(self, process: WorkerProcess) -> None:
        """Forget a process that has ended. If its sub-processes are gone too, its tasks are taken back at once."""
        if process not in self._processes:
            return
        self._processes.discard(process)
        if not process.hung_up:
            self._loop.remove_reader(process.connection)
            _logger.warning("something that %s started still runs; other workers take back its tasks when that has ended", process)
        elif process.url is not None and process.may_have_claims:
            self._reaping.add(process.url, process.worker)
        process.connection.close()
        self._end_if_all_ended()

    def _pass_standby_on(self) -> None:
        _logger.info("SIGUSR2: told to all worker processes")
        for process in self._processes:
            if process.ended_at is None:
                process.stand_by()

    # ---- rolling restart ----

    def _on_hang_up(self) -> None:
        if self._had_terminal and not os.isatty(2):
            self._on_stop("the terminal is gone")
        elif not self._ever_ready or self._stopping:
            _logger.warning("SIGHUP: there is nothing to restart yet, or any more")
        else:
            _logger.info("SIGHUP: restarting all worker processes, one by one")
            self._generation += 1
            self._rolling_since = self._rolling_since or time.monotonic()
            self._roll()

    def _roll(self) -> None:
        """Continue the rolling restart: one new process at a time, and only while no other is starting or stopping."""
        if self._rolling_since is None or self._stopping or any(self._is_changing(process) for process in self._processes):
            return
        for replica in self._replicas:
            if replica.current is not None and replica.current.generation < self._generation:
                self._start(replica, as_successor=True)
                return
        _logger.info("the rolling restart is done, after %s", span(time.monotonic() - self._rolling_since))
        self._rolling_since = None

    @staticmethod
    def _is_changing(process: WorkerProcess) -> bool:
        return process.ended_at is None and (process.ready_at is None or process.told_to_stop_at is not None)

    def _give_up_rolling(self, why: str) -> None:
        _logger.error("%s: the rolling restart ends here, and the old processes go on", why)
        self._rolling_since = None
        for replica in self._replicas:
            if replica.current is not None:
                replica.current.generation = self._generation

    # ---- stopping ----

    def _on_stop(self, why: str) -> None:
        self._signals += 1
        alive = [process for process in self._processes if process.ended_at is None]
        if self._signals == 1:
            _logger.info("%s: stopping %s; a second signal kills", why, show.count(len(alive), "worker process", "worker processes"))
            self._stop_all()
        elif self._signals == 2:
            _logger.error(
                "%s again: killing %s; what was running is run again", why, show.count(len(alive), "worker process", "worker processes")
            )
            self._code = INTERRUPTED
            for process in alive:
                process.kill()
        elif not self._done.done():
            self._done.set_result(None)

    def _give_up(self, why: str, code: int) -> None:
        print_error(why)
        self._code = code
        self._stop_all()

    def _stop_all(self) -> None:
        self._stopping = True
        for replica in self._replicas:
            if replica.again is not None:
                replica.again.cancel()
                replica.again = None
        for process in self._processes:
            if process.ended_at is None:
                self._stop(process)
        self._end_if_all_ended()

    def _stop(self, process: WorkerProcess) -> None:
        process.stop()
        self._loop.call_later(process.grace + STOP_MARGIN, self._end_overdue, process)

    def _end_overdue(self, process: WorkerProcess) -> None:
        if process.ended_at is None:
            _logger.error("%s has not stopped within %s: it is killed", process, span(process.grace + STOP_MARGIN))
            process.kill()

    def _end_if_all_ended(self) -> None:
        if self._stopping and not self._processes and not self._reaping.busy and not self._done.done():
            self._done.set_result(None)

    # ---- status ----

    def _show(self) -> None:
        now = time.monotonic()
        up = sum(replica.current is not None and replica.current.ready_at is not None for replica in self._replicas)
        since = f"process {os.getpid()} has supervised them for {span(now - self._began_at)}"
        headline = f"duetime: {up} of {len(self._replicas)} workers are up; {since}"
        write_status(headline, ("worker", "process", "state", "for", "starts", "last end"), self._rows(now))

    def _rows(self, now: float) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        for replica in self._replicas:
            living = sorted(
                (each for each in self._processes if each.number == replica.number and each.ended_at is None), key=lambda each: each.pid
            )
            last_end = None if replica.last_end is None else f"{replica.last_end[0]}, {ago(now - replica.last_end[1])}"
            for process in living:
                state, since = _state(process)
                rows.append((replica.number, process.pid, state, span(now - since), replica.starts, last_end))
            if replica.current is None and replica.again is not None:
                wait = span(max(0.0, replica.again.when() - self._loop.time()))
                rows.append((replica.number, None, f"starts again in {wait}", None, replica.starts, last_end))
            elif not living:
                rows.append((replica.number, None, "down", None, replica.starts, last_end))
        return rows


def _state(process: WorkerProcess) -> tuple[str, float]:
    if process.told_to_stop_at is not None:
        return "finishing", process.told_to_stop_at
    if process.ready_at is not None:
        return "up", process.ready_at
    return "starting", process.started_at
