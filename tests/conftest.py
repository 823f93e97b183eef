"""What all tests share."""

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# Whoever starts the suite in the background of a shell hands on that ^C is ignored, also to the programs under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["pytester", "tests.coverage_plugin", "tests.servers.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scope",
        choices=["quick", "usual", "everything"],
        default="usual",
        help="quick: nothing slow, no server; everything: every test on every store, and many more examples of the state machine",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of a quick run what is slow or needs a server."""
    if config.getoption("--scope") != "quick":
        return
    left_out = [item for item in items if item.get_closest_marker("slow") or _needs_server(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def _needs_server(item: pytest.Item) -> bool:
    fixtures = item.fixturenames if isinstance(item, pytest.Function) else []
    return "postgres" in item.name.partition("[")[2] or any("postgres" in fixture for fixture in fixtures)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make what was captured readable: tests print odd bytes, and a process that runs tests beside others cannot pass them on."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which examples of pull workers were run: they need what may not be installed."""
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
