"""The packages that are published work without the folder that they were built in."""

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools import dist


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return dist.build(tmp_path_factory.mktemp("dist"))


def test_the_source_package_holds_what_its_own_checks_need(packages: tuple[Path, Path]) -> None:
    with tarfile.open(packages[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = ["README.md", "LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt", "pyproject.toml", "mkdocs.yml"]
    assert [name for name in wanted if name not in names] == []
    tracked = subprocess.run(["git", "ls-files", "src", "docs", "examples"], cwd=dist.ROOT, capture_output=True, text=True, check=False)
    assert [name for name in tracked.stdout.splitlines() if name not in names] == []


def test_the_wheel_holds_every_file_of_the_program_and_nothing_else(packages: tuple[Path, Path]) -> None:
    source = dist.ROOT / "src"
    wanted = {str(path.relative_to(source)) for path in source.glob("duetime/**/*") if path.is_file() and "__pycache__" not in path.parts}
    with zipfile.ZipFile(packages[1]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == wanted


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment_runs_the_demo(packages: tuple[Path, Path], tmp_path: Path) -> None:
    dist.install(packages[1], tmp_path, offline=True)
    where = subprocess.run(
        [tmp_path / "bin" / "python", "-c", "import duetime; print(duetime.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout).is_relative_to(tmp_path), "it is not the folder of this test that runs"
    dist.run_demo(tmp_path, "--orders", "40", "--seconds", "3")
