"""The process of `duetime dev` that does everything: API, worker and duties. It loads the code once and ends when that has changed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import duetime
from duetime.api.app import Api
from duetime.api.front import lines_to_try
from duetime.api.server import Server, loop_factory
from duetime.cli.dev.link import Launch, Loaded, Serving, ServingEnd
from duetime.cli.dev.sample import sample_of
from duetime.cli.dev.watching import imported_below
from duetime.cli.failures import DONE, report
from duetime.cli.hosting.host import LAST_WORD
from duetime.cli.hosting.log import log_to_stderr
from duetime.cli.importing import find_app
from duetime.clock import SECOND
from duetime.model.outcome import Settlement
from duetime.model.task import State

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.worker.attempt import Attempt

LOOK_EVERY = 1.0  # seconds between looks whether more has been imported
MOST_LINES = 20  # of an attempt's output on the terminal; all of it is in `duetime logs`
UNINTERESTING = {"/readyz", "/livez", "/healthz", "/metrics"}
_PLACE = re.compile(r'^[ |]*File "(.+)", line (\d+)', re.MULTILINE)  # in a traceback
_OWN = Path(duetime.__file__).parent


def say(line: str) -> None:
    """Write a line to the terminal, past what captures the output of attempts."""
    stream = sys.__stderr__
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.write(f"{line}\n")
            stream.flush()


def printable(text: str) -> str:
    """Keep what comes from outside from commanding the terminal."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)


class ShownApi(Api):
    """The API, with a line on the terminal for each request. What follows the `?` is left out: it may be anybody's secret."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        began, status = time.perf_counter(), 0

        async def noting(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await super().__call__(scope, receive, noting)
        if scope["type"] == "http" and scope["path"] not in UNINTERESTING:
            took = time.perf_counter() - began
            address = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
            say(f"{_clock()}  {scope['method']} {printable(address[:200])} {status or 'gone'} ({_milliseconds(took)})")


def show_end(attempt: Attempt, settlement: Settlement) -> None:
    """Write a line on how an attempt ended, beneath what it printed. It says what is stored, whatever the handler's code did."""
    if settlement.started_at is None:  # it was given back before it began
        return
    for line in _printed(attempt):
        say(f"{_clock()}  │ {line}")
    claimed = attempt.claimed
    again = f", attempt {claimed.attempt}" if claimed.attempt > 1 else ""
    took = (settlement.finished_at - settlement.started_at) / SECOND
    say(f"{_clock()}  {claimed.handler} {claimed.id}{again} {how_it_ended(settlement)} ({_milliseconds(took)})")


def how_it_ended(settlement: Settlement) -> str:
    """Say in one line what becomes of a task, why, and where its code failed."""
    if settlement.state is State.PENDING:
        wait = 0 if settlement.due_at is None else (settlement.due_at - settlement.finished_at) / SECOND
        ended = f"{settlement.outcome.replace('_', ' ')}, runs again" + (f" in {wait:.3g} s" if wait >= 0.001 else "")
    else:
        ended = str(settlement.state)
    error = settlement.error
    if error is None:
        return ended
    said = f"{error.type}: {error.message}" if error.message else error.type
    first_line = said.partition("\n")[0]
    return f"{ended}: {printable(first_line[:300])}{_place(error.traceback)}"


def _place(trace: str) -> str:
    """Say where code failed: the last place in a traceback that is not this package's own, if there is one."""
    places = [(Path(file), line) for file, line in _PLACE.findall(trace)]
    if not places:
        return ""
    path, line = next((each for each in reversed(places) if not each[0].is_relative_to(_OWN)), places[-1])
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" ({printable(str(shown))}, line {line})"


def _printed(attempt: Attempt) -> list[str]:
    try:
        text = "" if attempt.sink is None else attempt.sink.read()
    except OSError:
        return []
    lines = [printable(line.expandtabs(4)) for line in text.splitlines()]
    if len(lines) > MOST_LINES:
        left = len(lines) - MOST_LINES
        lines = [*lines[:MOST_LINES], f"… and {left} more lines: duetime logs {attempt.claimed.id}"]
    return lines


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


class ServingProcess:
    """Loads the App, waits for the word, and serves until it is told to stop."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._link = ServingEnd(launch.link, self._on_watcher_gone)
        os.set_inheritable(launch.listener, False)
        self._listener = socket.socket(fileno=launch.listener)

    def run(self) -> int:
        app = find_app(self._launch.app, self._launch.url)
        log_to_stderr(self._launch.log_level)
        self._tell_loaded()
        self._link.wait_for_go()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._serve(app))
        return DONE

    def _tell_loaded(self) -> list[str]:
        files = [] if self._launch.folder is None else imported_below(Path(self._launch.folder))
        self._link.tell(Loaded(files))
        return files

    def _on_watcher_gone(self) -> None:
        """End although nobody is left to tell; called in a thread. What blocks the event loop does not keep this process alive."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it is ending anyway
                self._loop.call_soon_threadsafe(self._stop.set)
            time.sleep(self._launch.grace + LAST_WORD + 2.0)
        os._exit(1)

    async def _serve(self, app: App) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        api, grace = ShownApi(app), self._launch.grace
        # the worker is the inner one: while its attempts end, requests are still answered
        async with (
            Server(app, api=api, listener=self._listener, grace=grace).running() as server,
            app.worker(path=self._launch.app, grace=grace, on_stuck="exit", on_lease_lost="exit") as worker,
        ):
            worker.executor.watch(show_end)
            worker.on_stuck = self._stop.set
            api.shared.pulses += worker.pulses
            self._introduce(app, server)
            self._link.tell(Serving())
            await self._until_told_to_stop(worker)
            running = len(worker.executor.running)
            if running:
                say(f"duetime: {running} running; what is not done in {grace:g} s goes back and runs again")

    async def _until_told_to_stop(self, worker: Any) -> None:
        assert self._stop is not None
        known = self._tell_loaded()
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._stop.wait()
            if self._launch.folder is not None and imported_below(Path(self._launch.folder)) != known:
                known = self._tell_loaded()

    def _introduce(self, app: App, server: Server) -> None:
        names = ", ".join(sorted({spec.name for spec in app.specs.values()})) or "none"
        sample = sample_of(app)
        if not server.asks_for_tokens:
            server.api.shared.to_try = sample
        if self._launch.quiet:
            say(f"duetime: the new code serves (handlers: {names})")
            return
        say(f"duetime {version('duetime')} at {server.url}   store: {app.store.url}   handlers: {names}")
        if server.asks_for_tokens:
            say("The store has tokens, so requests need one: put it into DUETIME_TOKEN (`duetime tokens create` makes one).")
        if sample is None:
            say("No payload could be made up for any handler; the page at that address shows how requests look.")
        else:
            for line in lines_to_try(server.url, sample.handler, sample.payload, with_token=server.asks_for_tokens):
                say(f"\n# {line.text}\n{line.command}")
        say(f"\n{_watched(self._launch.folder)} ^C ends it.\n")


def _watched(folder: str | None) -> str:
    return (
        "Give an APP (module:name) to serve your own handlers."
        if folder is None
        else f"Code below {folder} is loaded anew when it changes."
    )


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = ServingProcess(msgspec.json.decode(sys.argv[1], type=Launch)).run()
    except (Exception, KeyboardInterrupt) as error:
        code = report(error)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    # threads that an attempt left behind must not keep the next process waiting
    os._exit(code)


if __name__ == "__main__":
    main()
