"""The keeper: a thread that proves the worker alive, and watches an event loop which cannot watch itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import threading
from collections.abc import Callable
from typing import NamedTuple

from duetime.clock import Instant, monotonic
from duetime.runtime.service import NO_PROGRESS, Pulse
from duetime.store.shard import Lease
from duetime.store.values import Renewal
from duetime.worker.attempt import Attempt, Current, Interrupted
from duetime.worker.deadman import DeadMan

logger = logging.getLogger("duetime.worker")

LOOK = 0.1
BLOCKED_AFTER = 1.0
LAGS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # in steps, so that few changes are written
HOPELESS_AFTER = 10.0  # seconds beyond its deadline for which a handler may block the loop although it is interrupted

# Shares of the lease, counted from the sending of the last renewal that succeeded.
RENEW, HOLD, STOP, KILL = 0.2, 0.6, 0.7, 0.9

# A real-time signal that nobody uses by habit; it makes the main thread run our handler between two steps of Python code,
# and ends a blocking system call there.
INTERRUPT = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else None


class Sent(NamedTuple):
    """When a renewal was sent: by the monotonic clock, and by that of the dead-man timer."""

    at: float
    armed_at: float | None


class Keeper:
    """Renews the lease from a thread of its own and interrupts handlers that block the event loop past their deadline.

    `fenced`: the store goes by leases, so attempts must be stopped before the lease has run out. `deadly`: the kernel ends the
    process if that does not happen. `hold` and `lost` are called in the event loop, which may be blocked; `sever` is called as well, in
    the thread that noticed.
    """

    def __init__(
        self,
        lease: Lease,
        current: Current,
        *,
        period: float,
        fenced: bool,
        deadly: bool,
        registered_at: float,
        renewed: Callable[[Renewal], None],
        hold: Callable[[], None],
        lost: Callable[[], None],
        sever: Callable[[], None],
        hopeless: Callable[[Attempt], None],
        now: Callable[[], Instant],
    ) -> None:
        self._lease = lease
        self._current = current
        self._period = period
        self._fenced = fenced
        self._deadly = deadly
        self.proved_at = registered_at  # monotonic: when the last proof of life that arrived was sent, the registering first
        self._renewed = renewed
        self._hold = hold
        self._lost = lost
        self._sever = sever
        self._hopeless = hopeless
        self._now = now  # the store's time, by which deadlines are set
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._interrupts = INTERRUPT is not None and threading.current_thread() is threading.main_thread()
        self._deadman = self._new_deadman() if deadly else None
        self._ended = threading.Event()
        self._beat_answered = True
        self._beat_asked_at = 0.0
        self._reported: Attempt | None = None
        self._given_up: Attempt | None = None
        self._reported_nobody = False
        self._fence_lock = threading.Lock()
        self._carried_out = 0  # how much of the fence has been carried out since the last proof: 1 hold, 2 stop
        self._doomed = False
        self.pulse = Pulse("keeper")
        self._latest = 0.0  # the longest that the loop has taken to answer since somebody asked
        self.blocked = 0  # how often the loop was found blocked
        self._thread = threading.Thread(target=self._run, name="duetime-keeper", daemon=True)

    def _new_deadman(self) -> DeadMan:
        return DeadMan()

    def start(self) -> None:
        if self._interrupts and INTERRUPT is not None:
            self._previous = signal.signal(INTERRUPT, self._interrupt)
        if self._deadman is not None:
            # from the start, because even the first renewal may fail
            self._deadman.arm(self._period * KILL, since=self._deadman.now() - (monotonic() - self.proved_at))
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._interrupts and INTERRUPT is not None:
            signal.signal(INTERRUPT, self._previous)
        if self._deadman is not None:
            self._deadman.disarm()
        self._lease.close()

    def arm(self, seconds: float) -> None:
        """Let the kernel end this process after so many seconds, whatever it does until then."""
        self._doomed = True
        self._deadman = self._deadman or self._new_deadman()
        self._deadman.arm(seconds)

    def proves(self, now: float) -> bool:
        """Return whether the lease still allows the worker to start attempts."""
        return not self._fenced or now - self.proved_at < self._period * HOLD

    def blocked_for(self, now: float) -> float:
        """Return for how many seconds the event loop has not answered; 0 while that is not long enough to matter."""
        waited = 0.0 if self._beat_answered else now - self._beat_asked_at
        return waited if waited >= BLOCKED_AFTER else 0.0

    def _run(self) -> None:
        """Look ten times a second; renew every fifth of the lease."""
        renew_at = monotonic()
        while not self._ended.wait(LOOK):
            if monotonic() >= renew_at:
                renew_at = self._renew()
            self.fence()
            self._watch(monotonic())

    def _renew(self) -> float:
        """Prove that the worker lives; return the instant of the next try."""
        sent = self._begin_renewal()
        try:
            renewal = self._lease.renew()
        except Exception as error:
            return self._not_renewed(sent, error)
        return self._has_renewed(sent, renewal)

    def _begin_renewal(self) -> Sent:
        sent = Sent(monotonic(), None if self._deadman is None else self._deadman.now())
        self.pulse.begin(sent.at)
        return sent

    def _not_renewed(self, sent: Sent, error: Exception) -> float:
        """Note a renewal that failed; return the instant of the next try."""
        self.pulse.fail(error, monotonic())
        return sent.at + self._period * RENEW / 4

    def _has_renewed(self, sent: Sent, renewal: Renewal) -> float:
        """Note a renewal whose answer has come; return the instant of the next one."""
        with self._fence_lock:
            self.proved_at, self._carried_out = sent.at, 0
            if self._deadman is not None and self._deadly and not self._doomed:
                self._deadman.arm(self._period * KILL, since=sent.armed_at)
        self.pulse.succeed(monotonic())
        self._call(self._renewed, renewal)
        return sent.at + self._period * RENEW

    def fence(self) -> None:
        """Stop the worker's attempts before anyone else may have them.

        The event loop calls it too, because the keeper's own thread may be waiting for the answer to a renewal.
        """
        if not self._fenced:
            return
        with self._fence_lock:
            unproved = monotonic() - self.proved_at
            due = 2 if unproved >= self._period * STOP else 1 if unproved >= self._period * HOLD else 0
            done, self._carried_out = self._carried_out, max(due, self._carried_out)
        if done < 1 <= due:
            self._call(self._hold)
        if done < 2 <= due:
            logger.error("the lease could not be renewed for %.1f s: stopping all attempts", unproved)
            self._call(self._lost)
            self._sever()

    def fenced_in(self, now: float) -> float:
        """Return for how many seconds there is nothing to fence, even if no renewal succeeds until then."""
        return self.proved_at + self._period * HOLD - now if self._fenced else math.inf

    def spare(self) -> None:
        """Let the process outlive its lease, because nothing runs in it; the next renewal that succeeds arms the timer again.

        Called in the event loop, while no attempt may start there: one may only after such a renewal.
        """
        with self._fence_lock:
            if self._carried_out == 2 and self._deadman is not None and not self._doomed:
                self._deadman.disarm()

    def _call(self, function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *args)

    def _watch(self, now: float) -> None:
        """Ask the loop for a sign of life; name the handler that blocks it, and end it once its time is over."""
        if self._beat_answered:
            self._beat_answered, self._beat_asked_at = False, now
            self._call(self._answer)
            return
        blocked_for = now - self._beat_asked_at
        attempt = self._current.attempt
        if attempt is None and blocked_for > NO_PROGRESS and not self._reported_nobody:
            self._reported_nobody = True
            logger.error("the event loop has been blocked for %.1f s, by no handler: nothing goes on in this worker", blocked_for)
        if blocked_for < BLOCKED_AFTER or attempt is None:
            return
        if self._reported is not attempt:
            self._reported = attempt
            self.blocked += 1
            logger.warning(
                "handler %s has blocked the event loop for %.1f s (task %s): use `def` or isolation='process' for such work",
                attempt.spec.name,
                blocked_for,
                attempt.claimed.id,
            )
        overdue = (self._now() - attempt.deadline_at) / 1_000_000
        if overdue > 0 and self._interrupts and INTERRUPT is not None:
            signal.pthread_kill(self._loop_thread, INTERRUPT)
        if overdue > max(self._period, HOPELESS_AFTER) and self._given_up is not attempt:
            self._given_up = attempt
            self._hopeless(attempt)

    def take_lag(self) -> float:
        """Return the longest that the loop has taken to answer since the last call, in steps; 0 if that is not long."""
        latest, self._latest = self._latest, 0.0
        return max((step for step in LAGS if step <= latest), default=0.0)

    def _answer(self) -> None:
        self._latest = max(self._latest, monotonic() - self._beat_asked_at)
        if self._reported_nobody:
            logger.warning("the event loop goes on after %.1f s", monotonic() - self._beat_asked_at)
        self._beat_answered, self._reported_nobody = True, False
        self._reported = None

    def _interrupt(self, number: int, frame: object) -> None:
        """Runs in the main thread, in the middle of whatever blocks it."""
        attempt = self._current.attempt
        if attempt is not None and self._now() > attempt.deadline_at:
            raise Interrupted
