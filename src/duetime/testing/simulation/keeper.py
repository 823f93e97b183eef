"""The keeper and the dead-man timer of a simulated worker: the real ones, without a thread and without the kernel."""

from __future__ import annotations

import asyncio
from functools import partial

from duetime.clock import monotonic
from duetime.store.sqlite.shared import SharedLease
from duetime.store.values import Renewal
from duetime.testing.simulation.process import Process, current
from duetime.worker.deadman import DeadMan
from duetime.worker.keeper import KILL, Keeper, Sent

LOOK = 0.25


class SimulatedDeadMan(DeadMan):
    """Kills the simulated process at its time, also while that is frozen."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._cluster = process.cluster
        self._handle: asyncio.TimerHandle | None = None

    @property
    def available(self) -> bool:
        return True

    def now(self) -> float:
        return self._cluster.loop.time()

    def arm(self, seconds: float, since: float | None = None) -> None:
        self.disarm()
        at = (self.now() if since is None else since) + seconds
        self._handle = self._cluster.outside.run(self._cluster.loop.call_at, at, self._kill)

    def disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _kill(self) -> None:
        self._cluster.note(self._process, "killed by its dead-man timer")
        self._cluster.kill(self._process)


class SimulatedKeeper(Keeper):
    """Renews as the thread would: while an answer has not come, it does nothing else."""

    _handle: asyncio.TimerHandle | None = None
    _renew_at = 0.0

    def _new_deadman(self) -> DeadMan:
        process = current()
        assert process is not None
        return SimulatedDeadMan(process)

    def start(self) -> None:
        if self._deadman is not None:
            self._deadman.arm(self._period * KILL, since=self.proved_at)
        self._handle = self._loop.call_later(LOOK, self._look)

    def stop(self) -> None:
        self._ended.set()
        if self._handle is not None:
            self._handle.cancel()
        if self._deadman is not None:
            self._deadman.disarm()
        self._lease.close()

    def _look(self) -> None:
        process = current()
        if self._ended.is_set() or process is None:
            return
        if monotonic() >= self._renew_at:
            sent = self._begin_renewal()
            assert isinstance(self._lease, SharedLease)
            process.network.begin("renew", self._lease.execute, partial(self._answered, sent))
        else:
            self._go_on()

    def _answered(self, sent: Sent, renewal: Renewal, error: Exception | None) -> None:
        self._renew_at = self._has_renewed(sent, renewal) if error is None else self._not_renewed(sent, error)
        self._go_on()

    def _go_on(self) -> None:
        self.fence()  # besides, the worker's own loop does so
        if not self._ended.is_set():
            self._handle = self._loop.call_later(max(LOOK, self._renew_at - monotonic()), self._look)
