"""Several worker processes of one App: start them, start them again when they die, restart them one by one, stop them all.

The supervisor does no work itself. It has a single thread, opens no store and does not import the App, so nothing that a
handler or a store does can hold it up. Each process hangs on a socket: when the supervisor is gone, however it ended, they
stop by themselves.

The first process is started alone. What is wrong with the App, its settings or the store is then said once, and the supervisor
ends with that process's exit code, as a worker without supervisor would. The others follow when the first one is ready.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence

from duetime.cli import show
from duetime.cli.failures import DONE, INTERRUPTED, NOT_FOUND, REFUSED, USAGE, complain
from duetime.cli.hosting.lifeline import Ready
from duetime.cli.hosting.processes import WorkerProcess
from duetime.cli.hosting.reap import Reaping
from duetime.cli.hosting.status import ago, span, write_status

_logger = logging.getLogger("duetime.supervisor")

FIRST_BACK_OFF = 0.5
LONGEST_BACK_OFF = 30.0
WELL_AFTER = 60.0  # seconds for which a process must have been up, so that its next death counts as the first
STOP_MARGIN = 15.0  # seconds beyond the grace for cleaning up, writing outcomes and leaving
LINGER = 5.0  # seconds in which the sub-processes of a dead worker end; the kernel kills them with it
SLOW_START = 60.0


def supervise(path: str, command: Sequence[str], count: int, *, log_level: str) -> int:
    """Run so many worker processes until a signal, and give the exit code."""
    return asyncio.run(Supervisor(path, command, count, log_level=log_level).run())


def back_off(failures: int) -> float:
    """Give the seconds before the next start after so many deaths in a row."""
    return float(min(FIRST_BACK_OFF * 2 ** min(failures - 1, 16), LONGEST_BACK_OFF))


def is_hopeless(code: int, *, was_ready: bool, ever_ready: bool, others_up: bool) -> bool:
    """Tell whether to start a process again is in vain.

    Until one has been ready, nobody knows that it can work at all. Later, what the App or its options are refused for stays
    wrong until somebody changes it; but as long as others work, they are not given up for it.
    """
    return not ever_ready or (code in (USAGE, NOT_FOUND) and not was_ready and not others_up)


class Place:
    """One of the worker processes that there should be. `successor` is to replace `current` in a rolling restart."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.current: WorkerProcess | None = None
        self.successor: WorkerProcess | None = None
        self.starts = 0
        self.failures = 0  # deaths in a row
        self.again: asyncio.TimerHandle | None = None
        self.last_end: tuple[str, float] | None = None


class Supervisor:
    """Keeps all places filled until it is told to stop."""

    def __init__(self, path: str, command: Sequence[str], count: int, *, log_level: str) -> None:
        self._path = path
        self._command = command
        self._places = [Place(number) for number in range(1, count + 1)]
        self._processes: set[WorkerProcess] = set()
        self._reaping = Reaping(log_level)
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
            signal.SIGCHLD: self._look,
            signal.SIGTERM: lambda: self._on_stop("SIGTERM"),
            signal.SIGINT: lambda: self._on_stop("SIGINT"),
            signal.SIGHUP: self._on_hang_up,
            signal.SIGUSR1: self._show,
        }
        for number, reaction in reactions.items():
            self._loop.add_signal_handler(number, reaction)
        _logger.info(
            "process %d supervises %s of %s", os.getpid(), show.count(len(self._places), "worker process", "worker processes"), self._path
        )
        self._start(self._places[0])
        await self._done
        _logger.info("all worker processes have ended after %s", span(time.monotonic() - self._began_at))
        return self._code

    # ---- starting ----

    def _start(self, place: Place, *, as_successor: bool = False) -> None:
        place.again = None
        try:
            process = WorkerProcess(self._command, place.number, self._generation)
        except OSError as problem:
            self._not_started(place, problem, as_successor)
            return
        place.starts += 1
        if as_successor:
            place.successor = process
        else:
            place.current = process
        self._processes.add(process)
        self._loop.add_reader(process.connection, self._hear, process)
        self._loop.call_later(SLOW_START, self._remark_slow_start, process)
        _logger.info("worker %d starts as process %d", process.number, process.pid)

    def _not_started(self, place: Place, problem: OSError, as_successor: bool) -> None:
        if as_successor:
            self._give_up_rolling(f"no process can be started: {problem}")
        elif not self._ever_ready:
            self._give_up(f"no process can be started: {problem}", REFUSED)
        else:
            self._start_later(place, f"worker {place.number}: no process can be started: {problem}")

    def _start_later(self, place: Place, why: str) -> None:
        place.failures += 1
        wait = back_off(place.failures)
        _logger.error("%s; starts again in %g s", why, wait)
        place.again = self._loop.call_later(wait, self._start, place)

    def _remark_slow_start(self, process: WorkerProcess) -> None:
        if process.ready_at is None and process.ended_at is None:
            _logger.warning("%s is not ready after %s", process, span(SLOW_START))

    # ---- what they say ----

    def _hear(self, process: WorkerProcess) -> None:
        for message in process.receive():
            before = process.note(message)
            if before is not None and process.url is not None:
                _logger.warning("%s has started itself anew, as worker %s instead of %s", process, process.worker, before)
                self._reaping.note(process.url, before)
            if isinstance(message, Ready):
                self._is_ready(process)
        if process.hung_up:
            self._loop.remove_reader(process.connection)
            if process.ended_at is not None:
                self._bury(process)

    def _is_ready(self, process: WorkerProcess) -> None:
        place = self._places[process.number - 1]
        if not self._ever_ready:
            self._ever_ready = True
            for other in self._places:
                if other is not place and not self._stopping:
                    self._start(other)
        if process is place.successor and not self._stopping:
            old, place.current, place.successor = place.current, process, None
            if old is not None:
                _logger.info("worker %d: process %d takes over; process %d finishes", place.number, process.pid, old.pid)
                self._stop(old)
        self._roll()

    # ---- their end ----

    def _look(self) -> None:
        """See who has ended; signals of several ends may arrive as one."""
        for process in tuple(self._processes):
            if process.ended_at is None and process.has_ended():
                self._on_end(process)
        self._reaping.look()
        self._end_if_all_have()

    def _on_end(self, process: WorkerProcess) -> None:
        place = self._places[process.number - 1]
        self._hear(process)  # its last words
        if not process.hung_up:
            self._loop.call_later(LINGER, self._bury, process)
        place.last_end = process.end(), time.monotonic()
        if process.stopped_in_order:
            _logger.info("%s has stopped", process)
        elif process.told_to_stop_at is not None:
            _logger.error("%s did not stop in order: it %s", process, process.end())
            self._code = self._code or (REFUSED if self._stopping else DONE)
        elif process is place.successor:
            place.successor = None
            self._give_up_rolling(f"{process} {process.end()} before it was ready")
        elif process is place.current:
            self._replace(place, process)
        self._roll()

    def _replace(self, place: Place, ended: WorkerProcess) -> None:
        end = f"{ended} {ended.end()} after {span(time.monotonic() - ended.started_at)}"
        place.current, place.successor = place.successor, None
        if place.current is not None:
            _logger.error("%s; process %d was about to replace it", end, place.current.pid)
            return
        others_up = any(other.current is not None and other.current.ready_at is not None for other in self._places)
        if is_hopeless(ended.code, was_ready=ended.ready_at is not None, ever_ready=self._ever_ready, others_up=others_up):
            code = ended.code if ended.code > DONE else REFUSED
            self._give_up(f"{ended} {ended.end()} before it was ready; it is not started again", code)
            return
        if ended.well_for >= WELL_AFTER:
            place.failures = 0
        self._start_later(place, end if ended.ready_at is not None else f"{end}, before it was ready")

    def _bury(self, process: WorkerProcess) -> None:
        """Forget a process that has ended; what it had goes back at once if all its sub-processes are gone too."""
        if process not in self._processes:
            return
        self._processes.discard(process)
        if not process.hung_up:
            self._loop.remove_reader(process.connection)
            _logger.warning("something that %s started still runs; other workers take back its tasks when that has ended", process)
        elif process.url is not None and process.may_hold_tasks:
            self._reaping.note(process.url, process.worker)
        process.connection.close()
        self._end_if_all_have()

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
        """Go on with the rolling restart: one new process at a time, and only while none starts or finishes."""
        if self._rolling_since is None or self._stopping or any(self._is_unsettled(process) for process in self._processes):
            return
        for place in self._places:
            if place.current is not None and place.current.generation < self._generation:
                self._start(place, as_successor=True)
                return
        _logger.info("the rolling restart is done, after %s", span(time.monotonic() - self._rolling_since))
        self._rolling_since = None

    @staticmethod
    def _is_unsettled(process: WorkerProcess) -> bool:
        return process.ended_at is None and (process.ready_at is None or process.told_to_stop_at is not None)

    def _give_up_rolling(self, why: str) -> None:
        _logger.error("%s: the rolling restart ends here, and the old processes go on", why)
        self._rolling_since = None
        for place in self._places:
            if place.current is not None:
                place.current.generation = self._generation

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
        complain(why)
        self._code = code
        self._stop_all()

    def _stop_all(self) -> None:
        self._stopping = True
        for place in self._places:
            if place.again is not None:
                place.again.cancel()
                place.again = None
        for process in self._processes:
            if process.ended_at is None:
                self._stop(process)
        self._end_if_all_have()

    def _stop(self, process: WorkerProcess) -> None:
        process.stop()
        self._loop.call_later(process.grace + STOP_MARGIN, self._end_overdue, process)

    def _end_overdue(self, process: WorkerProcess) -> None:
        if process.ended_at is None:
            _logger.error("%s has not stopped within %s: it is killed", process, span(process.grace + STOP_MARGIN))
            process.kill()

    def _end_if_all_have(self) -> None:
        if self._stopping and not self._processes and not self._reaping.busy and not self._done.done():
            self._done.set_result(None)

    # ---- showing ----

    def _show(self) -> None:
        now = time.monotonic()
        up = sum(place.current is not None and place.current.ready_at is not None for place in self._places)
        since = f"process {os.getpid()} has supervised them for {span(now - self._began_at)}"
        headline = f"duetime: {up} of {len(self._places)} workers are up; {since}"
        write_status(headline, ("worker", "process", "state", "for", "starts", "last end"), self._rows(now))

    def _rows(self, now: float) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        for place in self._places:
            living = sorted(
                (each for each in self._processes if each.number == place.number and each.ended_at is None), key=lambda each: each.pid
            )
            last_end = None if place.last_end is None else f"{place.last_end[0]}, {ago(now - place.last_end[1])}"
            for process in living:
                state, since = _state(process)
                rows.append((place.number, process.pid, state, span(now - since), place.starts, last_end))
            if place.current is None and place.again is not None:
                wait = span(max(0.0, place.again.when() - self._loop.time()))
                rows.append((place.number, None, f"starts again in {wait}", None, place.starts, last_end))
            elif not living:
                rows.append((place.number, None, "down", None, place.starts, last_end))
        return rows


def _state(process: WorkerProcess) -> tuple[str, float]:
    if process.told_to_stop_at is not None:
        return "finishing", process.told_to_stop_at
    if process.ready_at is not None:
        return "up", process.ready_at
    return "starting", process.started_at
