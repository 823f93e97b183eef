"""Install the peers beside the virtual environment's own packages, which stay as they are: `python -m bench.peers.install`.

They live in the folder `peers` of the virtual environment, each with its dependencies, and go with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

FOLDER = Path(sys.prefix) / "peers"
NODE_FOLDER = FOLDER / "node"
NODE = NODE_FOLDER / "node_modules" / ".bin" / "node"
PGQUEUER_FOLDER = FOLDER / "pgqueuer"
CELERY_FOLDER = FOLDER / "celery"
DBOS_FOLDER = FOLDER / "dbos"
# graphile-worker 0.18 refuses a Node.js older than 22, so it gets its own
NODE_PACKAGES = ("node@22.23.3", "graphile-worker@0.18.0")
QUEUES_FOLDER = FOLDER / "queues"
QUEUES_PACKAGES = ("dramatiq[redis]==2.2.1", "celery[redis]==5.7.0", "huey==3.5.4", "rq==2.12.0")
PGQUEUER_PACKAGES = ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0")
CELERY_PACKAGES = ("celery[redis]==5.6.0",)
DBOS_PACKAGES = ("dbos==3.4.0",)


class PeerMissing(Exception):
    """A peer is not installed and could not be."""


def graphile_worker() -> None:
    """Make graphile-worker ready."""
    if _marked(NODE_FOLDER, NODE_PACKAGES):
        return
    if shutil.which("npm") is None:
        raise PeerMissing("graphile-worker needs npm to be installed, and there is none; install Node.js with npm and run this again")
    NODE_FOLDER.mkdir(parents=True, exist_ok=True)
    _run("graphile-worker", ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(NODE_FOLDER), *NODE_PACKAGES])
    _run("graphile-worker", [str(NODE), "--version"])  # where npm may run no scripts of packages, this one is not there
    _mark(NODE_FOLDER, NODE_PACKAGES)


def pgqueuer() -> None:
    """Make PgQueuer ready."""
    _from_wheels("PgQueuer", PGQUEUER_FOLDER, PGQUEUER_PACKAGES)


def celery() -> None:
    """Make Celery ready."""
    _from_wheels("Celery", CELERY_FOLDER, CELERY_PACKAGES)


def dbos() -> None:
    """Make DBOS ready."""
    _from_wheels("DBOS", DBOS_FOLDER, DBOS_PACKAGES)


def queues() -> None:
    """Make the queues on Redis ready: Dramatiq, Celery, Huey and RQ."""
    _from_wheels("the queues on Redis", QUEUES_FOLDER, QUEUES_PACKAGES)


def _from_wheels(peer: str, folder: Path, packages: Sequence[str]) -> None:
    if _marked(folder, packages):
        return
    # a virtual environment made without pip is filled by the pip of the interpreter that it was made from
    interpreters = (sys.executable, getattr(sys, "_base_executable", sys.executable))
    pip = next((each for each in interpreters if _has_pip(each)), sys.executable)
    shutil.rmtree(folder, ignore_errors=True)
    _run(peer, [pip, "-m", "pip", "install", "--quiet", "--target", str(folder), *packages])
    _mark(folder, packages)


PEERS: dict[str, Callable[[], None]] = {
    "graphile-worker": graphile_worker,
    "PgQueuer": pgqueuer,
    "Celery": celery,
    "DBOS": dbos,
    "queues on Redis": queues,
}


def _has_pip(interpreter: str) -> bool:
    return subprocess.run([interpreter, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0


def _run(peer: str, command: Sequence[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerMissing(f"{peer} could not be installed: {error}") from None
    except subprocess.CalledProcessError as error:
        raise PeerMissing(f"{peer} could not be installed: {' '.join(command[:3])} … said:\n{error.stderr[-2000:]}") from None


# The mark is written last and names the versions: half an installation or an old one is done again.
def _marked(folder: Path, packages: Sequence[str]) -> bool:
    mark = folder / ".installed"
    return mark.exists() and mark.read_text().split() == list(packages)


def _mark(folder: Path, packages: Sequence[str]) -> None:
    (folder / ".installed").write_text("\n".join(packages))


def main() -> int:
    for name, install in PEERS.items():
        print(f"{name} …")
        try:
            install()
        except PeerMissing as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
