"""What all tests share."""

import compileall
import faulthandler
import gc
import os
import signal
import sys
import warnings
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.browsers import chromium

# Whoever starts the suite in the background of a shell hands on that ^C is ignored, also to the programs under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["pytester", "tests.coverage_plugin", "tests.servers.fixtures"]


# Kept between runs wherever bytecode is switched off: tests with their assertions rewritten, which takes a third of the collection.
sys.dont_write_bytecode = False


def pytest_configure(config: pytest.Config) -> None:
    """Compile the program, once for all the processes that tests start: each would spend more time on that than on its work."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=2)


def pytest_collection_finish() -> None:
    """Leave no bytecode from here on: some tests look at what a program leaves in its folder."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scope",
        choices=["quick", "usual", "everything"],
        default="usual",
        help="quick: nothing slow, no server; everything: every test on every store, and many more examples of the state machine",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of a quick run what is slow or needs a server, and of all but the longest what is long or needs the system's packages."""
    scope = config.getoption("--scope")
    left_out = {item for item in items if _is_left_out(item, scope)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _is_left_out(item: pytest.Item, scope: str) -> bool:
    if scope != "everything" and any(item.get_closest_marker(name) is not None for name in ("system", "long")):
        return True
    if item.get_closest_marker("browser") is not None and (scope == "quick" or chromium() is None):
        return True
    return scope == "quick" and (item.get_closest_marker("slow") is not None or _needs_server(item))


def _needs_server(item: pytest.Item) -> bool:
    fixtures = item.fixturenames if isinstance(item, pytest.Function) else []
    return "postgres" in item.name.partition("[")[2] or any("postgres" in fixture for fixture in fixtures)


HANGS_AFTER = 300.0  # seconds, as the limit per test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Give up the process if tidying up hangs: the limit per test does not hold any more after a failure, and a run would never end."""
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Clear away what a failed test left open: its warnings would fail whatever test the collector of garbage happens to run in."""
    failed = item.session.testsfailed
    done = yield
    if item.session.testsfailed > failed:
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):  # pytest keeps them for debuggers, and they keep its frames
            vars(sys).pop(name, None)
        with warnings.catch_warnings(action="ignore"):
            gc.collect()
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make what was captured readable: tests print odd bytes, and a process that runs tests beside others cannot pass them on."""
    report = yield
    if report.failed and "from pytest-timeout" in str(report.longrepr):
        for warning in ("Unraisable", "UnhandledThread"):  # the code of a test that hung may go on, and ends within another test
            item.config.addinivalue_line("filterwarnings", f"ignore::pytest.Pytest{warning}ExceptionWarning")
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not run because it needs what may not be installed: a browser, and some examples of pull workers."""
    if chromium() is None and terminalreporter.config.getoption("--scope") != "quick":
        terminalreporter.write_line("tests in a browser were NOT run: there is no Chromium; `make browser` installs it, and runs them")
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    if any("test_pull" in getattr(report, "nodeid", "") for report in reports):
        from tests.api.pulling import which

        terminalreporter.write_line(f"examples of pull workers: {which()}")


# No example has a time limit of its own: a busy machine must not fail a test. The limit per test still holds.
settings.register_profile("duetime", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("duetime")


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what workers gather in the user's folder for state out of it, also for programs that tests start."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
