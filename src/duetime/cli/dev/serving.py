"""The process of `duetime dev` that runs server and worker. It loads the code once and is replaced when that changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.api.app import Api
from duetime.api.front_page import lines_to_try
from duetime.api.server import Server, loop_factory
from duetime.cli.dev.link import Launch, Loaded, Serving, ServingEnd
from duetime.cli.dev.sample import sample_of
from duetime.cli.dev.watching import imported_below
from duetime.cli.failures import DONE, report
from duetime.cli.hosting.guard import Guarded, guard
from duetime.cli.hosting.host import CLEAN_UP
from duetime.cli.hosting.log import LogChoice, log_to_stderr, said
from duetime.cli.importing import find_app
from duetime.clock import SECOND
from duetime.model.outcome import Outcome, Settlement
from duetime.model.task import State
from duetime.web.web import Web

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.worker.attempt import Attempt

LOOK_EVERY = 1.0  # seconds between checks whether more files have been imported
MAX_LINES = 20  # of an attempt's logs on the terminal; `duetime logs` has all
NOT_SHOWN = {"/readyz", "/livez", "/healthz", "/metrics"}  # nor what open pages of the dashboard ask for

_log = LogChoice("warning")  # what this process was started with


def say(line: str) -> None:
    """Write a line to the terminal, past the capture of what attempts print; as JSON if the log is."""
    stream = sys.__stderr__
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.write(f"{said(line, _log) if _log.format == 'json' else line}\n")
            stream.flush()


def printable(text: str) -> str:
    """Escape control characters in text that comes from outside."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)


class ShownApi(Api):
    """The API, with a line on the terminal for each request. The query is left out, because it may contain secrets."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        began, status = time.perf_counter(), 0

        async def noting(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await super().__call__(scope, receive, noting)
        if scope["type"] == "http" and not _is_quiet(scope["path"]):
            took = time.perf_counter() - began
            address = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
            say(f"{_clock()}  {scope['method']} {printable(address[:200])} {status or 'gone'} ({_milliseconds(took)})")


def show_end(attempt: Attempt, settlement: Settlement) -> None:
    """Write what an attempt printed, and a line on how it ended: what is stored, whatever the handler's code did.

    The traceback of a failure follows. In JSON it is in the log instead.
    """
    if settlement.started_at is None:  # it was released before it began
        return
    for line in _printed(attempt):
        say(f"{_clock()}  │ {line}")
    claimed = attempt.claimed
    again = f", attempt {claimed.attempt}" if claimed.attempt > 1 else ""
    took = (settlement.finished_at - settlement.started_at) / SECOND
    say(f"{_clock()}  {claimed.handler} {claimed.id}{again} {how_it_ended(settlement)} ({_milliseconds(took)})")
    if settlement.error is not None and _log.format == "text":
        for line in settlement.error.traceback.splitlines()[-MAX_LINES:]:
            say(f"{_clock()}  │ {printable(line.expandtabs(4))}")


def how_it_ended(settlement: Settlement) -> str:
    """Describe in one line how an attempt ended, why, and where its code failed."""
    if settlement.outcome is Outcome.PARKED:
        ended = "parked until the handler's parameters change, or its payload"
    elif settlement.state is State.PENDING:
        wait = 0 if settlement.due_at is None else (settlement.due_at - settlement.finished_at) / SECOND
        ended = f"{settlement.outcome.replace('_', ' ')}, runs again" + (f" in {wait:.3g} s" if wait >= 0.001 else "")
    else:
        ended = str(settlement.state)
    error = settlement.error
    if error is None:
        return ended
    first_line = str(error).partition("\n")[0]
    where = f" ({printable(error.location)})" if error.location else ""
    return f"{ended}: {printable(first_line[:300])}{where}"


def _printed(attempt: Attempt) -> list[str]:
    try:
        text = "" if attempt.sink is None else attempt.sink.read()
    except OSError:
        return []
    lines = [printable(line.expandtabs(4)) for line in text.splitlines()]
    if len(lines) > MAX_LINES:
        left = len(lines) - MAX_LINES
        lines = [*lines[:MAX_LINES], f"… and {left} more lines: duetime logs {attempt.claimed.id}"]
    return lines


def _is_quiet(path: str) -> bool:
    return path in NOT_SHOWN or path.startswith("/ui/")


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


class ServingProcess:
    """Loads the App, waits for `go`, and serves until it is asked to stop."""

    def __init__(self, launch: Launch, guarded: Guarded | None = None) -> None:
        global _log
        self._launch = launch
        self._guarded = guarded
        _log = launch.log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._link = ServingEnd(launch.link, self._on_watcher_gone)
        os.set_inheritable(launch.listener, False)
        self._listener = socket.socket(fileno=launch.listener)

    def run(self) -> int:
        app = find_app(self._launch.app, self._launch.url)
        # in text, the line on an attempt's end has what the log would say
        log_to_stderr(self._launch.log, without="duetime.failures" if self._launch.log.format == "text" else None)
        if self._launch.log.level != "error":
            logging.getLogger("duetime.alerts").setLevel(logging.INFO)  # who sees an alert begin sees its end
        self._report_loaded()
        self._link.wait_for_go()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._serve(app))
        return DONE

    def _report_loaded(self) -> list[str]:
        files = [] if self._launch.folder is None else imported_below(Path(self._launch.folder))
        self._link.send(Loaded(files))
        return files

    def _on_watcher_gone(self) -> None:
        """End this process, also when its event loop is blocked. Called in a thread."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it is ending anyway
                self._loop.call_soon_threadsafe(self._stop.set)
            time.sleep(self._launch.grace + CLEAN_UP + 2.0)
        os._exit(1)

    async def _serve(self, app: App) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        api, grace = ShownApi(app, extension=Web()), self._launch.grace
        # the worker is the inner one, so that requests are still answered while its attempts end
        async with (
            Server(app, api=api, listener=self._listener, grace=grace).running() as server,
            app.worker(
                path=self._launch.app,
                grace=grace,
                on_stuck="exit",
                on_lease_lost="exit",
                hold=None if self._guarded is None else self._guarded.hold,
                addresses=app.config.addresses(loopback=True, own=[self._listener.getsockname()[:2]]),
                targets=True,
                allow=self._launch.allow,
            ) as worker,
        ):
            worker.executor.watch(show_end)
            worker.on_stuck = self._stop.set
            api.shared.pulses += worker.pulses
            self._introduce(app, server)
            self._link.send(Serving())
            await self._until_stopped(worker)
            running = len(worker.executor.running)
            if running:
                say(f"duetime: {running} running; what is not done in {grace:g} s runs again")
        if self._guarded is not None and worker.left:
            self._guarded.leave()

    async def _until_stopped(self, worker: Any) -> None:
        assert self._stop is not None
        known = self._report_loaded()
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._stop.wait()
            if self._launch.folder is not None and imported_below(Path(self._launch.folder)) != known:
                known = self._report_loaded()

    def _introduce(self, app: App, server: Server) -> None:
        names = ", ".join(sorted({spec.name for spec in app.specs.values()})) or "none"
        sample = sample_of(app)
        if not server.asks_for_tokens:
            server.api.shared.to_try = sample
        if self._launch.quiet:
            say(f"duetime: the new code serves (handlers: {names})")
            return
        say(f"duetime {version('duetime')} at {server.url}   store: {app.url}   handlers: {names}")
        say(f"Dashboard: {server.url}/ui/")
        if server.asks_for_tokens:
            say("The store has tokens, so requests need one: put it into DUETIME_TOKEN (`duetime tokens create` makes one).")
        if sample is None:
            say("No payload could be made up for any handler; the page at that address shows how requests look.")
        else:
            for line in lines_to_try(server.url, sample.handler, sample.payload, with_token=server.asks_for_tokens):
                say(f"\n# {line.text}\n{line.command}")
        say("\nHTTP handlers may connect to loopback addresses here; in production name them in DUETIME_HTTP_ALLOW.")
        say(f"{_watched(self._launch.folder)} ^C ends it.\n")


def _watched(folder: str | None) -> str:
    return (
        "Give an APP (module:name) to serve your own handlers." if folder is None else f"Code below {folder} is reloaded when it changes."
    )


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = ServingProcess(msgspec.json.decode(sys.argv[1], type=Launch), guard()).run()
    except SystemExit:  # a signal, before it served
        code = DONE
    except (Exception, KeyboardInterrupt) as error:
        code = report(error)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    # the next process must not wait for threads that an attempt left behind
    os._exit(code)


if __name__ == "__main__":
    main()
