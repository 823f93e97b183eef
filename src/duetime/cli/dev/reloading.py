"""Keep one process serving while code changes, for `duetime dev`.

This process holds the port and watches the files; another one serves. New code is imported in a new process while the old one still
serves. Only if that works is the old one stopped, and the new one takes over when it has ended. The port stays open, so requests wait
instead of being refused, and code that does not load changes nothing.
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
from duetime.cli.dev.watching import Watcher
from duetime.cli.failures import DONE, INTERRUPTED, REFUSED, UNREACHABLE, USAGE
from duetime.cli.hosting.log import said
from duetime.starting import signal_held_back

STOP_MARGIN = 10.0  # seconds beyond the grace for cleaning up, writing outcomes and unregistering
LOOK_EVERY = 0.3
FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.5, 30.0
WELL_AFTER = 60.0  # after so many seconds of serving, the next end counts as the first


class ServingChild:
    """A process that serves, or is about to. It has its own process group, so that ^C reaches only the watching process."""

    def __init__(self, launch: Launch, listener: socket.socket) -> None:
        self.link = WatcherEnd()
        theirs = self.link.theirs
        argument = msgspec.json.encode(msgspec.structs.replace(launch, link=theirs.fileno())).decode()
        self.loaded = self.serving = False
        self.told_to_stop_at: float | None = None
        self.served_at: float | None = None
        try:
            with signal_held_back():
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

    def describe_end(self) -> str:
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
    """Keeps one process serving: `current` serves, `successor` has newer code. It has one thread and does not import the App."""

    def __init__(self, launch: Launch, listener: socket.socket, watcher: Watcher | None) -> None:
        self._launch = launch
        self._listener = listener
        self._watcher = watcher
        self._selector = selectors.DefaultSelector()
        self._current: ServingChild | None = None
        self._successor: ServingChild | None = None
        self._discarded: list[ServingChild] = []  # killed while loading, because still newer code has come
        self._ever_served = False
        self._signals = 0
        self._ends = 0  # in a row, of processes that were not asked to stop
        self._start_at: float | None = None
        self._code = DONE

    def run(self) -> int:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        self._start()
        stopping = False
        while True:
            for key, _ in self._selector.select(LOOK_EVERY):
                self._on_messages(key.data)
            self._find_ended()
            if self._signals and not stopping:
                stopping = True
                self._stop_all()
            if self._signals > 1:
                return self._kill_all()
            if stopping and not self._processes:
                if self._code == DONE:
                    self._say("stopped")
                return self._code
            if not stopping:
                self._look_at_files()
                self._take_over()
            for process in self._processes:
                if process.is_overdue(self._launch.grace):
                    process.kill()

    @property
    def _processes(self) -> list[ServingChild]:
        return [process for process in (self._current, self._successor, *self._discarded) if process is not None]

    def _say(self, line: str) -> None:
        click.echo(said(line, self._launch.log), err=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    # ---- starting, and taking over ----

    def _start(self) -> None:
        self._start_at = None
        if self._successor is not None:
            self._discarded.append(self._successor)
            self._successor.kill()
        self._successor = ServingChild(self._launch, self._listener)
        self._selector.register(self._successor.link.socket, selectors.EVENT_READ, self._successor)

    def _take_over(self) -> None:
        """Let the successor take over as soon as possible."""
        if self._start_at is not None and time.monotonic() >= self._start_at:
            self._start()
        if self._successor is None or not self._successor.loaded:
            return
        if self._current is not None:
            self._current.stop()
            return
        self._current, self._successor = self._successor, None
        self._current.link.send_go()

    def _on_messages(self, process: ServingChild) -> None:
        for message in process.link.receive():
            if isinstance(message, Loaded):
                process.loaded = True
                if self._watcher is not None and process not in self._discarded:
                    self._watcher.note_imported(message.files)
            else:
                process.serving, process.served_at = True, time.monotonic()
                self._ever_served = True
                self._launch = msgspec.structs.replace(self._launch, quiet=True)
        if process.link.hung_up:
            self._selector.unregister(process.link.socket)
            process.link.close()

    def _look_at_files(self) -> None:
        changed = [] if self._watcher is None else self._watcher.changes()
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            self._say(f"{changed[0]}{more} changed: loading the new code")
            self._ends = 0
            self._start()

    # ---- ends ----

    def _find_ended(self) -> None:
        for process in self._processes:
            if process.code is None:
                continue
            if process in self._discarded:
                self._discarded.remove(process)
            elif process is self._successor:
                self._successor = None
                self._on_load_failure(process)
            elif process is self._current:
                self._current = None
                if process.told_to_stop_at is None and not self._signals:
                    self._on_unexpected_end(process)

    def _on_load_failure(self, process: ServingChild) -> None:
        """Report that new code did not load. The process itself has printed the reason."""
        code = process.code or 0
        if self._signals:
            return
        if self._watcher is None or (not self._ever_served and self._current is None and code == USAGE):
            self._give_up(code)
        elif self._current is not None:
            self._say("the old code goes on; waiting for the next change")
        else:
            self._watcher.note_imported(())
            self._say("nothing serves; requests wait for the next change of the code")

    def _on_unexpected_end(self, process: ServingChild) -> None:
        code = process.code or 0
        if not process.serving and (self._watcher is None or code in (USAGE, UNREACHABLE)) and not self._ever_served:
            self._give_up(code)
        elif not process.serving and self._watcher is not None:
            self._say("nothing serves; requests wait for the next change of the code")
        else:
            if process.served_at is not None and time.monotonic() - process.served_at > WELL_AFTER:
                self._ends = 0
            self._ends += 1
            wait = min(FIRST_BACK_OFF * 2 ** min(self._ends - 1, 10), LONGEST_BACK_OFF)
            self._say(f"the serving process {process.describe_end()}; it starts again in {wait:g} s, and what it ran runs again")
            self._start_at = time.monotonic() + wait

    def _give_up(self, code: int) -> None:
        self._code = code if code > 0 else REFUSED
        self._signals = max(self._signals, 1)

    # ---- stopping ----

    def _stop_all(self) -> None:
        if self._code == DONE:
            self._say("stopping; ^C again does not wait")
        for process in self._processes:
            process.stop()

    def _kill_all(self) -> int:
        for process in self._processes:
            process.kill()
        self._say("ended at once; what was running runs again")
        return INTERRUPTED
