"""A worker whose command leaves a daemon behind, to be killed: `python -m tests.attacks.commanding STORE FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from duetime import App

# Forks twice, leads a session of its own, ignores signals, has closed everything and wiped its environment. Then it goes on for ever.
DAEMON = """
import ctypes, os, signal, sys, time
path, then = sys.argv[1:3]
def note(kind):
    with open(path, "a") as file: file.write(f"{kind} {os.getpid()}\\n")
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    note("daemon")
    os.closerange(0, 1024)
    libc = ctypes.CDLL(None)
    libc.prctl(15, b"innocent", 0, 0, 0)
    while True: time.sleep(0.01)
while "daemon" not in (open(path).read() if os.path.exists(path) else ""): time.sleep(0.005)
with open(path + ".folder", "w") as file: file.write(os.getcwd())
note("command")
if then == "wait":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True: time.sleep(0.01)
sys.exit(int(then))
"""


def daemon(path: Path, then: str) -> list[str]:
    """Return a command that leaves a daemon behind and then exits with a code, or waits and ignores SIGTERM."""
    return [sys.executable, "-I", "-S", "-c", DAEMON.replace("{", "{{").replace("}", "}}"), str(path), then]


async def main(store: str, folder: str) -> None:
    app = App(store, user="test")
    leaves = app.command("leaves", daemon(Path(folder) / "signs", "wait"))
    async with app.worker():
        await leaves.now()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
