"""One worker process as the supervisor sees it: its start, its messages, and how it ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

from duetime.cli.failures import DONE
from duetime.cli.hosting.lifeline import Found, Left, Message, Ready, environment, new_worker_id, read_message
from duetime.cli.hosting.messages import MessageReader
from duetime.starting import signal_held_back

USUAL_GRACE = 30.0  # seconds, until the process has sent its own
MEANINGS = {70: "code that was told to stop did not end"}  # of exit codes besides those of commands


class WorkerProcess:
    """A process that runs a worker, started as a new program (not a fork).

    It has its own process group, so that Ctrl-C on a terminal reaches only the supervisor, which decides what to do.
    `generation` counts rolling restarts.
    """

    def __init__(self, command: Sequence[str], number: int, generation: int, name: str | None = None) -> None:
        self.number = number
        self.generation = generation
        self.worker = new_worker_id(None if name is None else f"{name}-{number}")
        self.url: str | None = None
        self.grace = USUAL_GRACE
        self.left = False
        self.started_at = time.monotonic()
        self.ready_at: float | None = None
        self.told_to_stop_at: float | None = None
        self.ended_at: float | None = None
        self.connection, theirs = socket.socketpair()
        self.connection.setblocking(False)
        self._reader: MessageReader[Message] = MessageReader(self.connection, read_message)
        try:
            with signal_held_back():
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **environment(theirs.fileno(), self.worker, number)},
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
        except OSError:
            self.connection.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid  # until the worker has said its own, which is below two guards

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.pid})"

    @property
    def code(self) -> int:
        """The exit code, or the number of the signal that killed it as a negative number."""
        assert self._process.returncode is not None
        return self._process.returncode

    def has_ended(self) -> bool:
        """Return whether it has ended; if so, it is also reaped."""
        if self._process.poll() is None:
            return False
        self.ended_at = self.ended_at or time.monotonic()
        return True

    def stop(self) -> None:
        """Ask it to stop; a second call changes nothing."""
        self.told_to_stop_at = self.told_to_stop_at or time.monotonic()
        self._process.send_signal(signal.SIGTERM)

    def stand_by(self) -> None:
        """Let it start nothing more, or go on if it stands by already. One that is still starting would end of the signal."""
        if self.ready_at is not None and self.told_to_stop_at is None:
            self._process.send_signal(signal.SIGUSR2)

    def kill(self) -> None:
        self._process.kill()

    def receive(self) -> list[Message]:
        """Return its messages since the last call."""
        return self._reader.receive()

    @property
    def hung_up(self) -> bool:
        """Whether it and all its sub-processes are gone."""
        return self._reader.hung_up

    def note(self, message: Message) -> str | None:
        """Record a message. Return its former worker id if it has restarted itself under another."""
        match message:
            case Found(worker, url, grace, pid):
                before, self.worker = self.worker, worker
                self.pid = pid
                self.url, self.grace = url, grace
                if before != worker:
                    self.ready_at, self.left = None, False
                    return before
            case Ready():
                self.ready_at = time.monotonic()
            case Left():
                self.left = True
        return None

    @property
    def up_for(self) -> float:
        """The seconds for which it was, or has been, up."""
        return 0.0 if self.ready_at is None else (self.ended_at or time.monotonic()) - self.ready_at

    @property
    def stopped_in_order(self) -> bool:
        """Whether it stopped as requested."""
        return self.told_to_stop_at is not None and self.code == DONE

    @property
    def may_have_claims(self) -> bool:
        """Whether tasks may still be claimed by it: it has not unregistered, and did not fail before it began."""
        return not self.left and (self.ready_at is not None or self.code < 0)

    def describe_end(self) -> str:
        """Describe how it ended."""
        if self.code >= 0:
            meaning = MEANINGS.get(self.code)
            return f"ended with exit code {self.code}" + (f" ({meaning})" if meaning else "")
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"was killed by {name}"
