"""The shape of the package: who may import whom. The layers themselves are in pyproject.toml."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp
import pytest
from importlinter.api import read_configuration

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = str(ROOT / "pyproject.toml")

# Where a dependency may be imported, besides the standard library, which may be imported anywhere unless it is listed here.
HOMES = {
    "aio_pika": {"duetime.targets.publish"},
    "aiohttp": {"duetime.targets", "duetime.remote"},
    "aiokafka": {"duetime.targets.publish"},
    "aiomqtt": {"duetime.targets.publish"},
    "asyncpg": {"duetime.store.postgres"},
    "click": {"duetime.cli"},
    "cryptography": {"duetime.secrets", "duetime.webhooks"},
    "jinja2": {"duetime.web"},
    "nats": {"duetime.targets.publish"},
    "obstore": {"duetime.artifacts"},
    "opentelemetry": {"duetime.tracing"},
    "prometheus_client": {"duetime.api"},
    "redis": {"duetime.store.redis", "duetime.targets.publish"},
    "hiredis": {"duetime.store.redis"},
    "rich": {"duetime.cli"},
    "sqlite3": {"duetime.store.sqlite", "duetime.cli"},  # the demonstration keeps its own orders
    "starlette": {"duetime.api", "duetime.web"},
    "uvicorn": {"duetime.api"},
}

# What rules must not be able to do: wait, look at the clock, touch files, processes or the network.
IMPURE = {"asyncio", "io", "multiprocessing", "os", "pathlib", "select", "signal", "socket", "sqlite3", "subprocess", "threading", "time"}


@cache
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("duetime", include_external_packages=True, cache_dir=None)


def inside(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def importers(outside: str) -> set[str]:
    return imports().find_modules_that_directly_import(outside) if outside in imports().modules else set()


def test_modules_import_only_from_layers_below() -> None:
    # in a process of its own, because it configures logging and so silences every logger that exists
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True, no_logo=True))"
    done = subprocess.run([sys.executable, "-c", code, CONFIGURATION], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_has_a_layer() -> None:
    [contract] = read_configuration(CONFIGURATION)["contracts_options"]
    layered = set(re.findall(r"[\w.]+", " ".join(contract["layers"])))
    ours = {module for module in imports().modules if module.startswith("duetime.")}
    homeless = {module for module in ours if not inside(module, layered)} - {"duetime.store"}
    assert not homeless, f"put these into the layers of pyproject.toml: {sorted(homeless)}"


@pytest.mark.parametrize("package", ["duetime.model", "duetime.runtime.wheel"])
def test_rules_import_only_the_standard_library_and_msgspec(package: str) -> None:
    allowed = (set(sys.stdlib_module_names) - IMPURE) | {"msgspec", "duetime"}
    modules = {module for module in imports().modules if inside(module, {package})}
    assert modules
    surplus = {
        (module, imported)
        for module in modules
        for imported in imports().find_modules_directly_imported_by(module)
        if imported.partition(".")[0] not in allowed
    }
    assert not surplus


@pytest.mark.parametrize("dependency", HOMES)
def test_a_dependency_has_one_home(dependency: str) -> None:
    strangers = {module for module in importers(dependency) if not inside(module, HOMES[dependency])}
    assert not strangers, f"{dependency} may be imported in {sorted(HOMES[dependency])} only"
