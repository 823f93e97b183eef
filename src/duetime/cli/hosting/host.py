"""A worker in its own process: its signals, its end, and how it continues when a handler's code does not end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from types import FrameType
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

import click

from duetime.cli import show
from duetime.cli.failures import DONE, INTERRUPTED
from duetime.cli.hosting.guard import Guarded
from duetime.cli.hosting.lifeline import Found, Left, Lifeline, Ready, new_worker_id, successor_of
from duetime.cli.hosting.log import Echoing, LogChoice, said
from duetime.cli.hosting.status import ago, write_status
from duetime.errors import DuetimeError
from duetime.starting import let_signal_in, signal_held_back
from duetime.targets.target import Stop

if TYPE_CHECKING:
    from duetime.app.app import App
    from duetime.worker.worker import Worker

_logger = logging.getLogger("duetime.cli")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
CLEAN_UP = 5.0  # seconds for attempts that were told to stop to clean up
LOOK_EVERY = 0.02


class StoredChoice(NamedTuple):
    """Whether a worker serves stored targets, and which kinds besides the usual ones."""

    serves: bool = False
    allow: tuple[Literal["command"], ...] = ()


def host(
    app: App,
    *,
    path: str,
    handlers: Sequence[str] | None,
    stored: StoredChoice,
    concurrency: int | None,
    lifeline: Lifeline | None,
    log: LogChoice,
    echo: bool,
    guarded: Guarded | None = None,
    health: tuple[str, int] | None = None,
    name: str | None = None,
) -> int:
    """Run an App's worker until a signal, or until its supervisor is gone, and return the exit code.

    `health`: host and port for probes. `name`: how the worker's id begins.
    """
    hosted = HostedWorker(app, path, handlers, concurrency, lifeline, guarded, log=log, echo=echo, stored=stored, name=name)
    with hosted.signals(), hosted.probed(health), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(hosted.serve())
    return DONE


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Use uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class HostedWorker:
    """One worker, from its start line to its summary.

    Under a guard or a supervisor a second signal does nothing: a service manager may signal all processes, and they decide when this
    one is killed.
    """

    def __init__(
        self,
        app: App,
        path: str,
        handlers: Sequence[str] | None,
        concurrency: int | None,
        lifeline: Lifeline | None = None,
        guarded: Guarded | None = None,
        *,
        log: LogChoice,
        echo: bool,
        stored: StoredChoice,
        name: str | None = None,
    ) -> None:
        self._app = app
        self._worker_name = name
        self._stored = stored
        self._path = path
        self._handlers = handlers
        self._concurrency = concurrency
        self._folder = os.getcwd()
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None
        self._starting: asyncio.Task[None] | None = None
        self._lifeline = lifeline
        self._log = log
        self._guarded = guarded
        self._name = "duetime" if lifeline is None else f"duetime worker {lifeline.number}"
        self._number = None if lifeline is None else lifeline.number
        self._echo = Echoing(log, self._number) if echo else None
        self._signals = 0
        self._standing_by = False
        self._changing: asyncio.Future[None] | None = None
        self._asked_to_stop: str | None = None
        self._worker: Worker | None = None
        self._listening: list[tuple[str, int]] = []

    # ---- probes ----

    @contextlib.contextmanager
    def probed(self, address: tuple[str, int] | None) -> Iterator[None]:
        """Answer probes at this address as long as the block lasts, also while the worker starts and stops."""
        if address is None:
            yield
            return
        from duetime.cli.hosting.health_port import HealthPort, bind, url_of
        from duetime.cli.hosting.probes import Probes

        listener = bind(*address)
        self._listening.append(listener.getsockname()[:2])
        self._say(f"health at {url_of(listener)}: /livez, /readyz and /metrics")
        with HealthPort(listener, Probes(lambda: self._worker, self._is_draining).pages()).serving():
            yield

    def _is_draining(self) -> bool:
        return self._asked_to_stop is not None or (self._worker is not None and self._worker.stuck is not None)

    # ---- signals ----

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle signals.

        With `signal.signal`, not through the event loop: a second signal must also end a process whose loop is blocked.
        """
        before = {each: signal.signal(each, self._on_signal) for each in STOP_SIGNALS}
        before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._show)
        before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, self._on_standby)
        let_signal_in()
        if self._lifeline is not None:
            # meant for the supervisor, but `pkill -HUP duetime` reaches this process too. A handler, unlike SIG_IGN, is not
            # inherited by sub-processes.
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: None)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork that a handler made ends as it would without us: its parent may wait for that
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._signals += 1
        if self._signals > 1 and self._lifeline is None and self._guarded is None:
            self._end_now()
        self._ask_to_stop(signal.Signals(number).name)

    def _ask_to_stop(self, why: str) -> None:
        self._asked_to_stop = self._asked_to_stop or why
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped anyway
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._starting is not None:
            self._starting.cancel()  # a lifespan may wait for something that never comes
        if self._woken is not None:
            self._woken.set()

    def _on_supervisor_gone(self) -> None:
        """Stop as after a first signal. From now on a second signal ends the process at once, as with any worker."""
        self._lifeline, self._signals = None, 0
        self._ask_to_stop("the supervisor is gone")

    def _on_standby(self, number: int, frame: FrameType | None) -> None:
        if self._loop is not None and self._worker is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._change_standby)

    def _change_standby(self) -> None:
        self._standing_by = not self._standing_by
        self._changing = asyncio.ensure_future(self._stand_by(self._standing_by))

    async def _stand_by(self, standing_by: bool) -> None:
        """Start nothing more until the next such signal, as if an operator had drained the worker."""
        if self._worker is None:
            return
        try:
            await self._app.client.workers.drain(self._worker.id, undo=not standing_by)
        except DuetimeError as error:
            self._standing_by = not standing_by
            self._say(f"SIGUSR2: nothing changes, because {error}")
        else:
            self._say("SIGUSR2: starts nothing more until the next SIGUSR2" if standing_by else "SIGUSR2: claims again")

    def _show(self, number: int, frame: FrameType | None) -> None:
        """Print the status from within the signal handler, because the event loop may be blocked."""
        worker = self._worker
        if worker is None:
            write_status(f"{self._name}: process {os.getpid()} is starting", (), ())
            return
        health = worker.health()
        write_status(
            f"{self._name}: worker {worker.id} (process {os.getpid()}) is {'well' if health.ok else 'not well'}",
            ("loop", "last success", "failures", "error"),
            [(loop.name, ago(loop.succeeded_ago), loop.failures, loop.error) for loop in health.loops],
            (
                f"proof of life {ago(health.proved_ago)}; {show.count(health.running, 'attempt')} running; "
                f"{show.count(health.unsettled, 'outcome')} to be written",
                *(f"problem: {problem}" for problem in health.problems),
            ),
        )

    def _end_now(self) -> NoReturn:
        """End without telling the store; what was running runs again elsewhere."""
        os.write(2, b"duetime: second signal: ending at once; what was running is run again\n")
        if self._worker is not None:
            self._worker.kill_children()
        os._exit(INTERRUPTED)

    # ---- running ----

    async def serve(self) -> None:
        """Run the worker until it is asked to stop. While it still starts, that is given up, and what it has opened is closed."""
        self._loop, self._woken, self._starting = asyncio.get_running_loop(), asyncio.Event(), asyncio.current_task()
        try:
            if self._asked_to_stop is None:
                await self._serve(self._woken)
        except asyncio.CancelledError:
            if self._starting is None or self._asked_to_stop is None:
                raise
            self._starting.uncancel()
        if self._worker is None:
            self._say(f"{self._asked_to_stop}: stopped before it began")

    async def _serve(self, woken: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        lifeline = self._lifeline
        if lifeline is not None:
            lifeline.watch(loop, self._on_supervisor_gone)
            lifeline.send(Found(lifeline.worker, self._app.config.url, self._app.config.grace, os.getpid()))
        async with self._app.worker(
            handlers=self._handlers,
            concurrency=self._concurrency,
            path=self._path,
            on_stuck="exit",
            on_lease_lost="exit",
            id=new_worker_id(self._worker_name) if lifeline is None else lifeline.worker,
            inherit=() if lifeline is None else (lifeline.descriptor,),
            echo=self._echo,
            hold=None if self._guarded is None else self._guarded.hold,
            addresses=self._app.config.addresses(own=self._listening),
            targets=self._stored.serves,
            allow=self._stored.allow,
        ) as worker:
            self._worker, self._starting = worker, None
            worker.on_stuck = woken.set
            self._say(self._start_line(worker))
            if lifeline is not None:
                lifeline.send(Ready())
            while self._asked_to_stop is None and worker.stuck is None:
                await woken.wait()
                woken.clear()
            if self._asked_to_stop is None:
                await self._hand_over(worker)
            self._say(self._stop_line(worker))
        if lifeline is not None and worker.left:
            lifeline.send(Left())
        if self._guarded is not None and worker.left:
            self._guarded.leave()
        self._say(f"stopped after {_seconds(time.monotonic() - began)}: {show.count(worker.executor.finished, 'attempt')} ended here")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more
            click.echo(said(line, self._log, self._number), err=True)

    def _start_line(self, worker: Worker) -> str:
        app = self._app
        names = {spec.name: spec.concurrency for name, spec in app.specs.items() if self._handlers is None or name in self._handlers}
        slots = sum(names.values()) if self._total is None else self._total
        handlers = f"{show.count(len(names), 'handler')} ({', '.join(sorted(names)) or 'none'})"
        if self._stored.serves:
            handlers += f" and stored targets{', commands included' if self._stored.allow else ', but no commands'},"
        durability = f" {app.insight.durability}" if self._number in (None, 1) else ""  # once for all processes
        return (
            f"worker {worker.id} ({version('duetime')}, process {os.getpid()}) runs {self._path} on {app.url}: "
            f"{handlers} in {show.count(slots, 'slot')}.{durability}"
        )

    @property
    def _total(self) -> int | None:
        return self._app.config.concurrency if self._concurrency is None else self._concurrency

    def _stop_line(self, worker: Worker) -> str:
        name = self._asked_to_stop or "the stuck attempt"
        running = len(worker.executor.running)
        if not running:
            return f"{name}: stopping, nothing is running"
        grace = _seconds(self._app.config.grace)
        hint = ", a second signal ends at once" if self._lifeline is None else ""
        return f"{name}: stopping; {show.count(running, 'attempt')} may go on for up to {grace}{hint}"

    # ---- continuing without a stuck attempt ----

    async def _hand_over(self, worker: Worker) -> None:
        """Let the other attempts finish, then replace this process by a new one.

        A single thread cannot be killed. Its task stays claimed as long as its process lives, so only a new process can run it
        again. The guards see to that; without them it is done with `exec`. Either way the process that was started stays, for a service
        manager. Returns only if a signal to stop arrives meanwhile.
        """
        stuck = worker.stuck
        assert stuck is not None
        task = f"attempt {stuck.claimed.attempt} of task {stuck.claimed.id} ({stuck.spec.name})"
        _logger.error("%s does not end: this process lets the others finish for up to %g s and then restarts", task, self._grace)
        await worker.feeder.stop()
        worker.executor.hold_starts()
        await self._until_alone(worker, self._grace)
        worker.executor.stop_all(Stop.RELEASE)
        await self._until_alone(worker, CLEAN_UP)
        if self._asked_to_stop is not None:
            return
        await worker.settler.drain()
        await worker.executor.close()
        _logger.warning("restarting in process %d; task %s runs again or ends by its policy", os.getpid(), stuck.claimed.id)
        worker.kill_children()
        self._restart()

    @property
    def _grace(self) -> float:
        return self._app.config.grace

    async def _until_alone(self, worker: Worker, seconds: float) -> None:
        """Wait until only the stuck attempt is left, at most this long, or until a signal."""
        deadline = time.monotonic() + seconds
        while len(worker.executor.running) > 1 and time.monotonic() < deadline and self._asked_to_stop is None:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY)

    def _restart(self) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        if self._guarded is not None:
            self._guarded.restart()
        os.chdir(self._folder)
        if self._lifeline is not None:
            os.environ.update(self._lifeline.pass_on(successor_of(self._lifeline.worker)))
        with signal_held_back():
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.0f} min"
