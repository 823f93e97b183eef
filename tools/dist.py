"""Build the packages that are published, and show that they work without this folder: `python -m tools.dist`.

The wheel is built from the source package, as a distributor would. It is installed into an empty environment, in which the demo then runs.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def build(into: Path) -> tuple[Path, Path]:
    """Build the source package, and from nothing but it the wheel. Return the paths of both."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        sdist = _built("sdist", ROOT, Path(temporary) / "sdist")
        with tarfile.open(sdist) as archive:
            archive.extractall(temporary, filter="data")
        wheel = _built("wheel", Path(temporary) / sdist.name.removesuffix(".tar.gz"), Path(temporary) / "wheel")
        return Path(shutil.copy(sdist, into)), Path(shutil.copy(wheel, into))


def _built(kind: str, source: Path, into: Path) -> Path:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", into], cwd=source, check=True)
    [package] = into.iterdir()
    return package


def install(wheel: Path, environment: Path, *, offline: bool = False) -> None:
    """Install a wheel into a new environment; offline, with the dependencies that this interpreter has."""
    venv.create(environment, with_pip=False)
    if offline:
        _unpack(wheel, environment)
        return
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel], check=True)


def _unpack(wheel: Path, environment: Path) -> None:
    """Do what pip would do with a wheel of plain Python. A path file hands on packages, but not the path files among them.

    So this folder, which stands in such a file here, stays out of sight.
    """
    [packages] = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    command = environment / "bin" / "duetime"
    command.write_text(f"#!{environment}/bin/python\nfrom duetime.cli.main import main\nmain()\n")
    command.chmod(0o755)


def run_demo(environment: Path, *options: str) -> None:
    """Run the demo of an environment from an empty folder, without variables that could lead it back here."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DUETIME", "VIRTUAL_ENV"))}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([environment / "bin" / "duetime", "demo", *options], cwd=folder, env=inherited, check=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--into", type=Path, default=ROOT / "dist", help="folder for the packages (default: dist)")
    arguments.add_argument("--offline", action="store_true", help="take the dependencies from this environment instead of downloading them")
    options = arguments.parse_args()
    packages = build(options.into)
    with tempfile.TemporaryDirectory() as environment:
        install(packages[1], Path(environment), offline=options.offline)
        run_demo(Path(environment), "--orders", "300", "--seconds", "5")
    print("\nInstalled into an empty environment, the demo runs. Built:", *packages, sep="\n  ")


if __name__ == "__main__":
    main()
