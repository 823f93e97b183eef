"""Keeping one process serving while code changes, for `duetime dev`.

Two processes: this one holds the port and watches the files, and one that serves. New code is imported in a new process while the old
one still serves. Only when that has worked is the old one told to stop, and the new one takes over when it has ended. The port is open all
the while, so requests wait in it instead of being refused, and code that does not load changes nothing.
"""

from __future__ import annotations

import selectors
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

import click
import msgspec

from duetime.cli.dev.link import Launch, Loaded, WatcherEnd
from duetime.cli.dev.watching import Watching
from duetime.cli.failures import DONE, INTERRUPTED, REFUSED, UNREACHABLE, USAGE

STOP_MARGIN = 10.0  # seconds beyond the grace for cleaning up, writing outcomes and leaving
LOOK_EVERY = 0.3
FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.5, 30.0
WELL_AFTER = 60.0  # seconds for which a process must have served, so that its end counts as the first


def say(line: str) -> None:
    click.echo(f"duetime: {line}", err=True)


class Serving:
    """A process that serves, or is about to. Started as a new program in a process group of its own: ^C reaches this one alone."""

    def __init__(self, launch: Launch, listener: socket.socket) -> None:
        self.link = WatcherEnd()
        theirs = self.link.theirs
        argument = msgspec.json.encode(msgspec.structs.replace(launch, link=theirs.fileno())).decode()
        self.loaded = self.serving = False
        self.told_to_stop_at: float | None = None
        self.served_at: float | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "duetime.cli.dev.serving", argument],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), listener.fileno()),
                process_group=0,
            )
        except OSError:
            self.link.close()
            raise
        finally:
            theirs.close()

    @property
    def code(self) -> int | None:
        """The exit code once it has ended."""
        return self._process.poll()

    def end(self) -> str:
        code = self._process.returncode
        return f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"

    def stop(self) -> None:
        if self.told_to_stop_at is None:
            self.told_to_stop_at = time.monotonic()
            self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def is_overdue(self, grace: float) -> bool:
        return self.told_to_stop_at is not None and time.monotonic() > self.told_to_stop_at + grace + STOP_MARGIN


class Reloading:
    """Keeps one process serving: `current` does, `successor` has newer code. It has one thread and imports nothing of the App."""

    def __init__(self, launch: Launch, listener: socket.socket, watching: Watching | None) -> None:
        self._launch = launch
        self._listener = listener
        self._watching = watching
        self._selector = selectors.DefaultSelector()
        self._current: Serving | None = None
        self._successor: Serving | None = None
        self._leaving: list[Serving] = []  # killed while they loaded: newer code has come meanwhile
        self._ever_served = False
        self._signals = 0
        self._ends = 0  # in a row, of processes that nobody told to end
        self._start_at: float | None = None
        self._code = DONE

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        self._start()
        stopping = False
        while True:
            for key, _ in self._selector.select(LOOK_EVERY):
                self._hear(key.data)
            self._see_ends()
            if self._signals and not stopping:
                stopping = True
                self._stop_all()
            if self._signals > 1:
                return self._kill_all()
            if stopping and not self._processes:
                if self._code == DONE:
                    say("stopped")
                return self._code
            if not stopping:
                self._look_at_files()
                self._go_on()
            for process in self._processes:
                if process.is_overdue(self._launch.grace):
                    process.kill()

    @property
    def _processes(self) -> list[Serving]:
        return [process for process in (self._current, self._successor, *self._leaving) if process is not None]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    # ---- starting, and taking over ----

    def _start(self) -> None:
        self._start_at = None
        if self._successor is not None:
            self._leaving.append(self._successor)
            self._successor.kill()
        self._successor = Serving(self._launch, self._listener)
        self._selector.register(self._successor.link.socket, selectors.EVENT_READ, self._successor)

    def _go_on(self) -> None:
        """Let the successor take over as soon as it can."""
        if self._start_at is not None and time.monotonic() >= self._start_at:
            self._start()
        if self._successor is None or not self._successor.loaded:
            return
        if self._current is not None:
            self._current.stop()
            return
        self._current, self._successor = self._successor, None
        self._current.link.go_on()

    def _hear(self, process: Serving) -> None:
        for message in process.link.receive():
            if isinstance(message, Loaded):
                process.loaded = True
                if self._watching is not None and process not in self._leaving:
                    self._watching.note_imported(message.files)
            else:
                process.serving, process.served_at = True, time.monotonic()
                self._ever_served = True
                self._launch = msgspec.structs.replace(self._launch, quiet=True)
        if process.link.hung_up:
            self._selector.unregister(process.link.socket)
            process.link.close()

    def _look_at_files(self) -> None:
        changed = [] if self._watching is None else self._watching.changes()
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            say(f"{changed[0]}{more} changed: loading the new code")
            self._ends = 0
            self._start()

    # ---- ends ----

    def _see_ends(self) -> None:
        for process in self._processes:
            if process.code is None:
                continue
            if process in self._leaving:
                self._leaving.remove(process)
            elif process is self._successor:
                self._successor = None
                self._not_loaded(process)
            elif process is self._current:
                self._current = None
                if process.told_to_stop_at is None and not self._signals:
                    self._ended_by_itself(process)

    def _not_loaded(self, process: Serving) -> None:
        """Say what becomes of it that code could not be loaded; the process has said why."""
        code = process.code or 0
        if self._signals:
            return
        if self._watching is None or (not self._ever_served and self._current is None and code == USAGE):
            self._give_up(code)
        elif self._current is not None:
            say("the old code goes on; waiting for the next change")
        else:
            self._watching.note_imported(())
            say("nothing serves; requests wait for the next change of the code")

    def _ended_by_itself(self, process: Serving) -> None:
        code = process.code or 0
        if not process.serving and (self._watching is None or code in (USAGE, UNREACHABLE)) and not self._ever_served:
            self._give_up(code)
        elif not process.serving and self._watching is not None:
            say("nothing serves; requests wait for the next change of the code")
        else:
            if process.served_at is not None and time.monotonic() - process.served_at > WELL_AFTER:
                self._ends = 0
            self._ends += 1
            wait = min(FIRST_BACK_OFF * 2 ** min(self._ends - 1, 10), LONGEST_BACK_OFF)
            say(f"the serving process {process.end()}; it starts again in {wait:g} s, and what it ran runs again")
            self._start_at = time.monotonic() + wait

    def _give_up(self, code: int) -> None:
        self._code = code if code > 0 else REFUSED
        self._signals = max(self._signals, 1)

    # ---- stopping ----

    def _stop_all(self) -> None:
        if self._code == DONE:
            say("stopping; ^C again does not wait")
        for process in self._processes:
            process.stop()

    def _kill_all(self) -> int:
        for process in self._processes:
            process.kill()
        say("ended at once; what was running runs again")
        return INTERRUPTED
