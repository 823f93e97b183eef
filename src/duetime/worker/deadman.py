"""Let the kernel end a process that no longer shows that it may live.

A worker that cannot renew its lease must be dead before anyone else may have its tasks. It cannot be trusted to see to that itself: a
regular expression may hold the GIL for minutes, the whole process may be stopped. So it sets a timer of the kernel that would kill it,
and moves the timer forward at each renewal.

| way                              | where                      | ends the process by              | GIL held | stopped (SIGSTOP)          |
| -------------------------------- | -------------------------- | -------------------------------- | -------- | -------------------------- |
| `timer_create`, SIGKILL          | Linux                      | SIGKILL                          | dies     | dies                       |
| `timer_create`, handler `_exit`  | Linux, as PID 1            | `_exit(SIGRTMAX)`, status 64     | dies     | dies when continued        |
| `setitimer`, SIGALRM             | macOS, BSD; Linux that refuses the above | SIGALRM            | dies     | dies when continued        |
| none                             | elsewhere                  | nothing; `available` is False    | lives    | lives                      |

PID 1 is the init process of its container, and the kernel discards a SIGKILL that comes from inside (tried: it lives on). A signal with
a handler does arrive, and the C library's `_exit` as the handler needs no Python. Python's own handlers would not do: they wait for the
GIL.

What it cannot do:

- A paused virtual machine and a process frozen by cgroup v1 or by a debugger die only when they run again. The kernel acts
  before the program does, if the virtual machine's clock has counted the pause; often it has not. Then only the fence protects.
- The timer ends this process, not its children: those hang on a pipe that closes with it (`targets.process`).
- Timers do not survive `fork`, nor `exec`. A forked child has none and is refused the use of its parent's.
- `setitimer` exists once per process: it conflicts with `signal.alarm`, `signal.setitimer` and libraries that use them. If
  SIGALRM already has a handler, that way is not taken; a handler that is set later disables it. A handler set later for SIGRTMAX
  disables the way of PID 1. SIGKILL can have no handler, and each `timer_create` is a timer of its own: no conflicts there.
- The clock is CLOCK_BOOTTIME, which counts while the machine sleeps, or CLOCK_MONOTONIC, which does not, if the kernel knows
  no better: then a suspended machine may overstay by the time for which it slept. The same holds for `setitimer`.
"""

import ctypes
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Protocol

__all__ = ["DeadMan"]

_log = logging.getLogger(__name__)

_NANOSECONDS = 1_000_000_000
_SIGEV_SIGNAL = 0
_TIMER_ABSTIME = 1


class DeadMan:
    """A kernel timer that ends the process: after `arm`, the process ends unless it is armed again or disarmed in time.

    Armed, it stays so even if the object is dropped. May be used from any thread, but make it in the process that is to die.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process_id = os.getpid()
        self._said_unavailable = False
        self._way = _first_possible_way()

    @property
    def available(self) -> bool:
        """Whether this platform has such a timer."""
        return self._way is not None

    def __repr__(self) -> str:
        return f"<DeadMan {self._way or 'unavailable'}>"

    def now(self) -> float:
        """Read the clock of the timer, in seconds; for `since`."""
        return self._way.now() if self._way else time.monotonic()

    def arm(self, seconds: float, since: float | None = None) -> None:
        """End the process `seconds` after `since`, a reading of `now()`; without it, after this call.

        Replaces what was armed before. An instant that has passed ends the process at once. A lease counts from the moment
        at which its renewal was *sent*: read `now()` before sending and pass it as `since`. A process that is stopped between
        the reply and this call then gains nothing by it.
        """
        if not math.isfinite(seconds):
            raise ValueError(f"seconds must be finite, got {seconds}; to let the process live, disarm")
        with self._lock:
            self._refuse_other_processes()
            if self._way:
                self._way.arm((self._way.now() if since is None else since) + seconds)
            elif not self._said_unavailable:
                self._said_unavailable = True
                _log.warning("no dead-man timer on %s: a worker that hangs past its lease is not killed; only fences protect", sys.platform)

    def disarm(self) -> None:
        """Let the process live. Does nothing if it is not armed."""
        with self._lock:
            self._refuse_other_processes()
            if self._way:
                self._way.disarm()

    def _refuse_other_processes(self) -> None:
        if os.getpid() != self._process_id:
            raise RuntimeError(f"this DeadMan belongs to process {self._process_id}: timers do not survive a fork, make one in the child")


class _Way(Protocol):
    """A way to set the kernel's timer. The constructor raises OSError where there is none."""

    def now(self) -> float: ...
    def arm(self, deadline: float) -> None: ...
    def disarm(self) -> None: ...


class _KernelTimer:
    """`timer_create`: a timer of our own, on a clock that we choose, with a signal that we choose."""

    _signal: int
    _clock: int
    _clock_name: str
    _timer: ctypes.c_void_p | None

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError("timers of this kind are used on Linux only")
        self._signal = _signal_for_init() if os.getpid() == 1 else int(signal.SIGKILL)
        try:
            self._clock, self._clock_name = time.CLOCK_BOOTTIME, "CLOCK_BOOTTIME"
            self._timer = self._create()
        except OSError:
            self._clock, self._clock_name = time.CLOCK_MONOTONIC, "CLOCK_MONOTONIC"
            self._timer = self._create()

    def __repr__(self) -> str:
        return f"timer_create({self._clock_name}, {signal.Signals(self._signal).name})"

    def now(self) -> float:
        return time.clock_gettime(self._clock)

    def arm(self, deadline: float) -> None:
        if self._timer is None:
            self._timer = self._create()
        # Zero would disarm the timer; an instant in the past fires at once.
        nanoseconds = max(1, round(deadline * _NANOSECONDS))
        setting = _TimerSetting(value=_Timespec(*divmod(nanoseconds, _NANOSECONDS)))
        _check(_libc().timer_settime, self._timer, _TIMER_ABSTIME, ctypes.byref(setting), None)

    def disarm(self) -> None:
        # Deleting leaves nothing behind when workers come and go within one process.
        if self._timer is not None:
            _check(_libc().timer_delete, self._timer)
            self._timer = None

    def _create(self) -> ctypes.c_void_p:
        timer = ctypes.c_void_p()
        event = _SignalEvent(signal=self._signal, notify=_SIGEV_SIGNAL)
        _check(_libc().timer_create, self._clock, ctypes.byref(event), ctypes.byref(timer))
        return timer


class _IntervalTimer:
    """`setitimer`: the one real-time timer of the process, whose signal ends it if nobody handles that signal."""

    def __init__(self) -> None:
        if sys.platform == "win32":
            raise OSError("Windows has no setitimer")
        if os.getpid() == 1:
            raise OSError("PID 1 does not receive signals without a handler")
        if signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
            raise OSError("SIGALRM has a handler: somebody else uses the timer")

    def __repr__(self) -> str:
        return "setitimer(ITIMER_REAL, SIGALRM)"

    def now(self) -> float:
        return time.monotonic()

    def arm(self, deadline: float) -> None:
        # Relative only. Zero would disarm it, and it counts in microseconds.
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, deadline - self.now()))

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


_WAYS: tuple[Callable[[], _Way], ...] = (_KernelTimer, _IntervalTimer)


def _first_possible_way() -> _Way | None:
    for way in _WAYS:
        try:
            return way()
        except (OSError, AttributeError) as refusal:  # AttributeError: the C library or the module has no such function
            _log.debug("%s refused: %s", way.__name__, refusal)
    return None


class _SignalEvent(ctypes.Structure):
    """`struct sigevent`, which Linux pads to 64 bytes."""

    _fields_ = (("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_byte * 48))


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSetting(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (("interval", _Timespec), ("value", _Timespec))


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library that is linked already; glibc before 2.34 keeps timers in a second one."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)


def _check(function: Callable[..., int], *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _signal_for_init() -> int:
    """Make the C library's `_exit` the handler of a signal that nobody uses, and return the signal."""
    if sys.platform != "linux":
        raise OSError("only Linux has an init process per container")
    libc, number = _libc(), int(signal.SIGRTMAX)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(number, ctypes.cast(libc._exit, ctypes.c_void_p))
    return number
