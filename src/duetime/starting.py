"""A signal to stop that arrives while `duetime worker`, `server` or `dev` still starts: the process ends in order, with exit code 0.

Most of a start is imports, and until somebody handles SIGTERM it kills. So the package imports this module before everything else. It
does nothing in programs that only use the library. Once a command runs, it handles the signal itself.

The start of the interpreter comes before any import. A supervisor therefore starts its processes with the signal blocked: it waits until
it is handled here.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

_COMMANDS = ("worker", "server", "dev")


@contextlib.contextmanager
def signal_held_back() -> Iterator[None]:
    """Block SIGTERM in the block, and in programs that are started in it until they can handle it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_signal_in() -> None:
    """Receive SIGTERM from now on, also one that has waited."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))


def is_command(arguments: list[str], whole: list[str]) -> bool:
    """Return whether `sys.argv` and `sys.orig_argv` are those of a command that runs until it is stopped.

    While packages are imported for `python -m`, the first argument is "-m" and the module is known from the whole command only.
    """
    program, *rest = [*arguments, ""]
    if program == "-m":
        program = whole[whole.index("-m") + 1] if "-m" in whole[:-1] else ""
    else:
        program = os.path.basename(program)
    return program == "duetime.cli.dev.serving" or (program in ("duetime", "duetime.cli") and rest[0] in _COMMANDS)


def _end(number: int, frame: FrameType | None) -> None:
    """End the process where it stands: nothing has begun that would have to be ended.

    An exception would not do. It is lost if the signal arrives in a destructor or in the callback of a weak reference, of which imports
    have many, or in user code that catches everything; the process would then start as if nobody had asked.
    """
    with contextlib.suppress(OSError):
        os.write(2, f"duetime: {signal.Signals(number).name}: stopped before it began\n".encode())
    os._exit(0)


def _stand_by() -> None:
    """Handle the signal, if this process is one of the commands and nobody has asked for something else."""
    if is_command(getattr(sys, "argv", []), sys.orig_argv) and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, _end)
            let_signal_in()


_stand_by()
