"""What `duetime dev` is made of: payloads made up from schemas, and a look at files."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from duetime import App
from duetime.cli.dev.sample import sample_of
from duetime.cli.dev.watching import Watcher, folder_of


class Address(msgspec.Struct):
    """Where something is."""

    name: str
    floor: int


async def plain(name: str, times: int, share: float, really: bool, note: str = "") -> None: ...


async def nested(address: Address, kind: Literal["a", "b"], tags: list[str], maybe: str | None, anything: Any) -> None: ...


async def timed(starts_at: datetime) -> None: ...


async def nothing() -> None: ...


@pytest.mark.parametrize(
    ("function", "payload"),
    [
        (plain, {"name": "Ada", "times": 7, "share": 1.5, "really": True}),
        (nested, {"address": {"name": "Ada", "floor": 7}, "kind": "a", "tags": [], "maybe": "example", "anything": "example"}),
        (timed, {"starts_at": "2030-01-01T00:00:00Z"}),
        (nothing, {}),
    ],
)
def test_a_payload_is_made_up_that_the_handler_takes(function: Callable[..., Any], payload: dict[str, Any]) -> None:
    app = App("sqlite:///:memory:")
    app.task(function)
    assert sample_of(app) == (function.__name__, payload)


def test_a_handler_that_no_payload_fits_is_passed_over() -> None:
    app = App("sqlite:///:memory:")

    @app.task
    async def picky(digits: Annotated[str, msgspec.Meta(pattern="^[0-9]{9}$")]) -> None: ...

    app.task(nothing)
    assert sample_of(app) == ("nothing", {})
    assert sample_of(App("sqlite:///:memory:")) is None


def test_the_folder_of_an_app_is_that_of_its_package_or_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "boutique"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (tmp_path / "kiosk.py").write_text("")
    assert folder_of("boutique.tasks:app") == package
    assert folder_of("kiosk:app") == tmp_path
    assert folder_of("nowhere:app") == tmp_path


def test_changes_of_what_was_imported_and_new_files_are_seen(tmp_path: Path) -> None:
    imported, other = tmp_path / "imported.py", tmp_path / "other.py"
    for path in (imported, other):
        path.write_text("1")
    for name in (".hidden", "__pycache__", "node_modules", "env"):
        (tmp_path / name).mkdir()
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    watching = Watcher(tmp_path)
    watching.note_imported([str(imported)])
    other.write_text("22")
    for name in (".hidden", "__pycache__", "node_modules", "env"):
        (tmp_path / name / "new.py").write_text("1")
    assert watching.changes() == []
    imported.write_text("22")
    (tmp_path / "new.py").write_text("1")
    assert watching.changes() == ["imported.py", "new.py"]
    assert watching.changes() == []
    os.utime(imported, (1, 1))
    assert watching.changes() == ["imported.py"]
    imported.unlink()
    assert watching.changes() == ["imported.py"]


def test_every_file_counts_while_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1")
    watching = Watcher(tmp_path)
    (tmp_path / "broken.py").write_text("22")
    assert watching.changes() == ["broken.py"]


def test_of_a_folder_that_is_too_large_only_what_was_imported_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.cli.dev.watching.MAX_FILES", 2)
    for number in range(4):
        (tmp_path / f"module_{number}.py").write_text("1")
    watching = Watcher(tmp_path)
    assert watching.too_large
    watching.note_imported([str(tmp_path / "module_1.py")])
    assert watching.changes() == []
    (tmp_path / "module_1.py").write_text("22")
    (tmp_path / "module_2.py").write_text("22")
    assert watching.changes() == ["module_1.py"]
