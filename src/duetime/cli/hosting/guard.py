"""Guards: two small processes above a worker that take along whatever its handlers have started, when it dies.

`duetime worker` starts as one process and becomes three before anything heavy is imported:

    outer guard (the process that was started) ── inner guard ── worker ── what handlers start

A guard is a *child subreaper*: a process below it that loses its parent becomes its child, also one that forked twice and left its
session, so nothing below it can get away. It does nothing but wait.

| who ends                  | then                                                                                            |
| ------------------------- | ----------------------------------------------------------------------------------------------- |
| the worker, in order      | the guards end as it did; daemons that handlers started on purpose live on                      |
| the worker, in any other way | the inner guard kills everything that is left, and only then do the guards end as the worker did |
| the inner guard           | the kernel kills the worker with it; the outer guard kills what is left                         |
| the outer guard           | the inner guard kills the worker and what is left                                               |

There are two because either may be killed: people kill the process that they started. Whoever kills all three at the same moment gets rid
of the guards too; then a process that left the worker's session lives on.

While they tidy up the guards hold the worker's lock (`Guarded.hold`), so that on SQLite nobody takes its tasks before. They hold the
supervisor's socket as well, by inheritance. On PostgreSQL the lease lasts longer than this takes.

A guard has one thread and no handlers: signals are blocked and taken one at a time. Those that come from a person or a service manager are
passed on; those of a terminal reach the worker by themselves, because all three are one process group.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import select
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from duetime.cli.failures import INTERRUPTED
from duetime.cli.hosting.lifeline import SOCKET, WORKER
from duetime.clock import monotonic
from duetime.runtime.processes import SET_DEATH_SIGNAL, become_subreaper, end_all_children, prctl

TOGETHER = 1.0  # seconds within which a SIGTERM of the same sender is not a second one: `timeout` signals a process and then its group
RESTART = 79  # exit code of a worker that wants to be started again, in a new process

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON = (*_STOP_SIGNALS, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_WATCHED = {*_PASSED_ON, signal.SIGCHLD}


class Guarded:
    """The worker's side. Nobody reads the socket: descriptors that lie in it stay open as long as a guard lives."""

    def __init__(self, mailbox: socket.socket) -> None:
        self._mailbox = mailbox

    def hold(self, descriptors: Sequence[int]) -> None:
        """Let the guards hold these open until they have ended."""
        if descriptors:
            socket.send_fds(self._mailbox, [b"."], list(descriptors))

    def leave(self) -> None:
        """Tell the guards that this process ends in order: nothing that it leaves behind has to be killed."""
        self._mailbox.shutdown(socket.SHUT_WR)

    def restart(self) -> NoReturn:
        """End this process. When all that it has started is gone, the outer guard starts the same command again."""
        os._exit(RESTART)


def guard() -> Guarded | None:
    """Become three processes and go on in the innermost; None where the kernel has no subreapers, then nothing has happened.

    Call it before there are threads, because it forks.
    """
    if not become_subreaper():
        return None
    kept, mailbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    parent = os.getppid()
    for is_outer, at_its_end in ((True, signal.SIGCHLD), (False, signal.SIGKILL)):
        own = os.getpid()
        child = os.fork()
        if child:
            _Guard(child, parent, kept, mask, is_outer=is_outer).run()
        parent = own
        prctl(SET_DEATH_SIGNAL, at_its_end)
        if os.getppid() != parent:
            os._exit(INTERRUPTED)
        if is_outer:
            become_subreaper()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Guarded(mailbox)


class _Guard:
    """One guard: waits for the end of its child, and then sees to it that nothing is left of it."""

    def __init__(self, child: int, parent: int, kept: socket.socket, mask: set[int | signal.Signals], *, is_outer: bool) -> None:
        self._child = child
        self._kept = kept
        self._mask = mask
        self._is_outer = is_outer
        self._parent = parent
        self._supervised = SOCKET in os.environ
        self._stops = 0
        self._term: tuple[int, float] | None = None  # who sent the first SIGTERM, and when

    def run(self) -> NoReturn:
        while (status := self._collect()) is None:
            self._react(signal.sigwaitinfo(_WATCHED))  # the death of its parent is a SIGCHLD too
        if not self._ended_in_order():
            end_all_children()
        if self._is_outer and self._stops > 1:
            os._exit(INTERRUPTED)
        if self._is_outer and os.waitstatus_to_exitcode(status) == RESTART:
            self._start_again()
        _end_as(status)

    def _collect(self) -> int | None:
        """Collect all children that have ended, orphans of the worker too; return how the own one did, if it has."""
        status = None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._child:
                    status = ended[1]
        return status

    def _react(self, got: signal.struct_siginfo) -> None:
        orphaned = os.getppid() != self._parent
        if not self._is_outer and orphaned:
            os.kill(self._child, signal.SIGKILL)
        if got.si_signo == signal.SIGCHLD:
            return
        if self._is_outer and got.si_signo == signal.SIGTERM:
            if self._term is None:
                self._term = (got.si_pid, monotonic())
            elif got.si_pid == self._term[0] and monotonic() - self._term[1] < TOGETHER:
                return
        if self._is_outer and got.si_signo in _STOP_SIGNALS:
            # under a supervisor repeated signals are one: a service manager may signal all processes
            self._stops += self._stops == 0 or not self._supervised or orphaned
            if self._stops > 1:
                with contextlib.suppress(OSError):
                    os.write(2, b"duetime: second signal: ending at once; what was running is run again\n")
                os.kill(self._child, signal.SIGKILL)
                return
        if got.si_code <= 0:  # sent by a process, not by the terminal
            os.kill(self._child, got.si_signo)

    def _ended_in_order(self) -> bool:
        looking = select.poll()
        looking.register(self._kept, select.POLLRDHUP)
        return bool(looking.poll(0))

    def _start_again(self) -> NoReturn:
        if self._supervised:
            os.environ[WORKER] = secrets.token_hex(8)
        signal.pthread_sigmask(signal.SIG_SETMASK, {*self._mask, signal.SIGTERM})  # until the new program can handle it
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _end_as(status: int) -> NoReturn:
    """End as another process did."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker has written its own
        number = signal.Signals(-code)
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        code = 128 - code  # the first process of a container does not die by its own signal
    os._exit(code)
