"""Which store a command works on."""

from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine, Shop


@pytest.fixture
def app_of_the_shop(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program of its own whose App names the shop's store; nothing of it is imported in this test's process afterwards."""
    name = f"program_{abs(hash(url))}"
    (tmp_path / f"{name}.py").write_text(f"from duetime import App\napp = App({url!r})\nopen_app = App()\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_commands_use_the_store_of_the_app_that_the_environment_names(
    shop: Shop, duetime: CommandLine, app_of_the_shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = duetime.submit("greet", "name=Ada")
    elsewhere = CommandLine(f"sqlite:///{tmp_path}/elsewhere.db")
    elsewhere("tasks", code=5)
    monkeypatch.setenv("DUETIME_APP", f"{app_of_the_shop}:app")
    assert elsewhere.ids() == [task]
    assert elsewhere("why", task).exit_code == 0
    elsewhere("tasks", "--url", elsewhere.url, code=5)


def test_an_app_that_leaves_its_url_open_takes_that_of_the_environment(
    shop: Shop, duetime: CommandLine, app_of_the_shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = duetime.submit("greet", "name=Ada")
    monkeypatch.setenv("DUETIME_APP", f"{app_of_the_shop}:open_app")
    assert duetime.ids() == [task]


def test_an_app_that_cannot_be_imported_is_said_and_nothing_else_is_read(
    shop: Shop, duetime: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUETIME_APP", "no_such_module:app")
    assert "there is no module 'no_such_module'" in duetime("tasks", code=2).output
